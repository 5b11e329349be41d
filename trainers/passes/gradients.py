"""Gradients of passes that may fail, and their mean over processes that hold the same weights."""

import torch

BUCKET_ELEMENTS = 16_000_000
"""Gradients that are averaged over the processes in one call."""

SavedGradients = list[torch.Tensor | None]


class Gradients:
    """The gradients of a model's trained parameters.

    Args:
        model: The model, without wrappers.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def set_aside(self) -> SavedGradients:
        """Take what is accumulated out of the parameters, so that a failed pass leaves no part of its own in it."""
        saved = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return saved

    def put_back(self, saved: SavedGradients) -> None:
        """Restore what was set aside, in place of what a failed pass has left."""
        for parameter, gradient in zip(self._parameters, saved, strict=True):
            parameter.grad = gradient

    def add(self, saved: SavedGradients) -> None:
        """Add what was set aside to the gradients of a pass that ended well."""
        for parameter, gradient in zip(self._parameters, saved, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def average(self, processes: int) -> None:
        """Replace gradients by their means over the processes; one that no process has stays absent."""
        held = torch.tensor([parameter.grad is not None for parameter in self._parameters], dtype=torch.int32)
        held = held.to(self._parameters[0].device)
        torch.distributed.all_reduce(held)
        bucket: list[torch.Tensor] = []
        for parameter, holders in zip(self._parameters, held.tolist(), strict=True):
            if not holders:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            other = bucket and bucket[0].dtype != parameter.grad.dtype
            if other or sum(gradient.numel() for gradient in bucket) >= BUCKET_ELEMENTS:
                _average_bucket(bucket, processes)
                bucket = []
            bucket.append(parameter.grad)
        if bucket:
            _average_bucket(bucket, processes)


def _average_bucket(bucket: list[torch.Tensor], processes: int) -> None:
    flat = torch.cat([gradient.flatten() for gradient in bucket])
    torch.distributed.all_reduce(flat)
    flat /= processes
    for gradient, mean in zip(bucket, torch.split(flat, [gradient.numel() for gradient in bucket]), strict=True):
        gradient.copy_(mean.view_as(gradient))
