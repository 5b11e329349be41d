"""Trained weights, collected from all processes and given back to them.

Only what is trained is collected: the adapter where there is one, else the whole model. A parameter is plain (one
process, DDP, ZeRO-1 and -2), a `DTensor` (FSDP2) or DeepSpeed's own (ZeRO-3); a tensor at a time is whole, so that no
device has to hold the model once more. Every process calls these functions together.
"""

from collections.abc import Callable, Iterator

import torch
from accelerate.utils import is_peft_model
from peft import get_peft_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from clawrl_trl.trainers.parallel.process_group import broadcast_tensor
from clawrl_trl.trainers.parallel.zero import gather_partitioned, is_partitioned

Weights = dict[str, torch.Tensor]


@torch.no_grad()
def gather_weights(model: PreTrainedModel, *, keep: bool) -> Weights:
    """Collect the trained parameters, or those of the whole model where there is no adapter, with its buffers.

    Args:
        model: The model without distributed wrappers.
        keep: Whether this process wants them; the others take part only.

    Returns:
        Copies on the CPU by the names of `state_dict`; tied parameters are one tensor. Empty without `keep`.
    """
    weights: Weights = {}
    copies: dict[int, torch.Tensor] = {}
    # Before `state_dict`, which puts FSDP2's shards in the place of whole parameters: where PEFT turned an adapter off
    # among the ones and on among the others, the shards say still that nothing is trained.
    frozen = {
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if is_peft_model(model) and not parameter.requires_grad
    }
    # Before anything is collected: under FSDP2 and ZeRO-3 these are the shards and cost nothing.
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in frozen:
            continue
        if id(tensor) not in copies:
            copies[id(tensor)] = _gather(tensor, keep)
        weights[name] = copies[id(tensor)]
    return weights if keep else {}


def _gather(tensor: torch.Tensor, keep: bool) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        whole = tensor.full_tensor()
        return whole.cpu() if keep else whole.new_empty(0)
    with gather_partitioned(tensor):
        # On the CPU, and a copy: training goes on in place.
        return tensor.detach().cpu().clone() if keep else torch.empty(0)


@torch.no_grad()
def scatter_weights(model: PreTrainedModel, read: Callable[[str], torch.Tensor] | None) -> None:
    """Give the parameters that `gather_weights` collects new values.

    Args:
        model: The model without distributed wrappers.
        read: Returns a parameter's whole value by its name; asked on the main process, `None` elsewhere.
    """
    for name, parameter in _iterate_trained(model):
        value = None if read is None else read(name)
        if isinstance(parameter, DTensor):
            _scatter_shards(parameter, value)
            continue
        with gather_partitioned(parameter, changed=True):
            if value is not None:
                parameter.copy_(value)
            # DeepSpeed hands out the main process's values when the block ends.
            if not is_partitioned(parameter):
                broadcast_tensor(parameter.data)


def _iterate_trained(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Parameter]]:
    # In the order of the modules, which is the same on every process.
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or not is_peft_model(model):
            yield name, parameter


def _scatter_shards(parameter: DTensor, value: torch.Tensor | None) -> None:
    local = parameter.to_local()
    if value is None:
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=local.device)
    else:
        whole = value.to(device=local.device, dtype=parameter.dtype)
    shards = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=0)
    local.copy_(shards.to_local())


def name_saved_weights(model: PreTrainedModel) -> dict[str, str]:
    """Names that an adapter's trained parameters have in its file, by those they have in the model."""
    placeholders = {name: torch.empty(0) for name, _ in _iterate_trained(model)}
    names = {id(placeholder): name for name, placeholder in placeholders.items()}
    saved = get_peft_model_state_dict(
        model, state_dict=placeholders, adapter_name=model.active_adapter, save_embedding_layers=False
    )
    return {names[id(tensor)]: key for key, tensor in saved.items() if id(tensor) in names}
