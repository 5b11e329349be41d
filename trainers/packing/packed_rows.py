"""Padded rows as one trie, and the hidden states at its nodes as those before the trained tokens.

Inside the base model there is one row of distinct tokens. Behind it there are the hidden states before each trained
token of each sample, and no others: padded to the longest reply they would take many times the pass's own memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput

from clawrl_trl.trainers.inputs import Inputs, make_trained_mask
from clawrl_trl.trainers.packing.attention import plan_attention
from clawrl_trl.trainers.packing.trie import build_trie


@dataclass
class PackedOutput(BaseModelOutput):  # type: ignore[misc]
    """A base model's output, [1, N, H] hidden states before the trained tokens alone, row by row."""

    trained: torch.Tensor = None  # type: ignore[assignment]
    """[B, T] bools: the N trained tokens. Always given; a model's output must have defaults."""


class PackedRows:
    """One pass's rows as a trie.

    Args:
        inputs: The micro-batch, without pictures.
    """

    def __init__(self, inputs: Inputs) -> None:
        device = inputs["prompt_ids"].device
        self.trained = make_trained_mask(inputs)
        self._targets = inputs["completion_ids"][self.trained]
        trained, prompts = self.trained.cpu().numpy(), inputs["prompt_mask"].bool().cpu().numpy()
        prompt_ids, completion_ids = inputs["prompt_ids"].cpu().numpy(), inputs["completion_ids"].cpu().numpy()
        # Nothing is asked about the last trained token or what comes behind it.
        ends = [int(row.nonzero()[0].max(initial=0)) for row in trained]
        trie = build_trie(
            [
                np.concatenate([prompt[mask], completion[:end]])
                for prompt, mask, completion, end in zip(prompt_ids, prompts, completion_ids, ends, strict=True)
            ]
        )
        starts = prompts.sum(1) - 1
        nodes = [path[start + row.nonzero()[0]] for path, start, row in zip(trie.paths, starts, trained, strict=True)]
        self._nodes = torch.as_tensor(np.concatenate(nodes), device=device)
        self._arguments: dict[str, Any] = {
            "input_ids": torch.as_tensor(trie.tokens, device=device)[None],
            "position_ids": torch.as_tensor(trie.positions, device=device)[None],
            # Of four dimensions it is taken as it is, and no mask of the whole trie is made; it is not read.
            "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
            "trie": plan_attention(trie, device),
        }

    def score(self, model: torch.nn.Module, base: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and entropies by the fused head.

        Args:
            model: Causal language model with TRL's fused head, wrapped or not.
            base: Its transformer without the head.

        Returns:
            `([B, T] log-probabilities, [B, T] entropies or None)`, 0 on tokens that are not trained. The head of a
            reference computes no entropies.
        """
        with self._unpack(base):
            output = model(**self._arguments, shift_labels=self._targets[None], fused_lm_head=True)
        entropies = None if output.entropy is None else self._scatter(output.entropy[0])
        return self._scatter(output.log_probs[0]), entropies

    def _scatter(self, values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(self.trained.shape).masked_scatter(self.trained, values)

    @contextmanager
    def _unpack(self, base: torch.nn.Module) -> Iterator[None]:
        """Turn nodes into trained tokens in front of other hooks of the base model."""

        def select(module: torch.nn.Module, args: Any, output: BaseModelOutput) -> PackedOutput:
            states = output.last_hidden_state[0].index_select(0, self._nodes)
            return PackedOutput(last_hidden_state=states[None], trained=self.trained)

        handle = base.register_forward_hook(select, prepend=True)
        try:
            yield
        finally:
            handle.remove()
