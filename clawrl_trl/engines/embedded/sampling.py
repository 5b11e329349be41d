"""Sampling of the next token, with the log-probability it was drawn with.

The log-probabilities returned are those of the distribution sampled from: after bias, penalties, temperature and
truncation, in float32. Training divides by them, so this file is where they must be right. A greedy row
(temperature 0) reports the distribution at temperature 1 after bias and penalties, as vLLM does.

A draw inverts the cumulative distribution at one uniform number from the row's own generator. So a seed gives the
same tokens whoever else is in the batch: rounding differences between batch shapes move the boundaries by about
1e-7, and the number of draws a row has made never depends on its neighbours.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling parameters of one request, and its ends.

    Args:
        temperature (`float`): 0 is greedy.
        top_p, top_k, min_p: Truncations; 1.0, 0 and 0.0 are off.
        presence_penalty, frequency_penalty: Subtracted from logits of tokens in the output so far.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt and output.
        seed (`int`, *optional*): Makes the draws reproducible.
        max_tokens (`int`): Most tokens to draw; 0 draws none.
        min_tokens (`int`): Stop tokens can't be drawn before so many.
        stop_token_ids (`frozenset[int]`): Tokens that end the reply, the model's own included unless ignored.
        logit_bias (`dict[int, float]`): Added to logits.
        top_logprobs (`int`, *optional*): Alternatives to report per token. `None`: report no log-probabilities.
        loop_sizes (`range`): Lengths of a pattern, in tokens, whose repetition ends the reply; empty is off.
        loop_count (`int`): So many times in a row.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    logit_bias: dict[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None
    loop_sizes: range = range(0)
    loop_count: int = 2

    def has_loop(self, output_ids: list[int]) -> bool:
        """Return whether a reply ends with a pattern that stands `loop_count` times in a row."""
        for size in self.loop_sizes:
            span = size * self.loop_count
            if span > len(output_ids):
                return False  # sizes ascend, so no longer one fits either
            if output_ids[-span:-size] == output_ids[size - span :]:
                return True
        return False

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def truncates(self) -> bool:
        return not self.is_greedy and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @property
    def penalises(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


class SampledRow(Protocol):
    """A reply being decoded, as far as the sampler reads it."""

    @property
    def sampling(self) -> Sampling: ...
    @property
    def prompt_ids(self) -> list[int]: ...
    @property
    def output_ids(self) -> list[int]: ...
    @property
    def random(self) -> random.Random: ...


@dataclass(frozen=True)
class DrawnTokens:
    """One drawn token per row: ids, their log-probabilities, and the likeliest alternatives asked for."""

    ids: list[int]
    logprobs: list[float]
    alternatives: list[list[tuple[int, float]]]


class Sampler:
    """Draws for a fixed set of rows; a batch makes a new one when its members change.

    Everything that holds for all steps is laid out as tensors once, so that a step costs a few vector operations
    however many rows there are, and features nobody asked for cost nothing.
    """

    def __init__(self, rows: Sequence[SampledRow], vocab_size: int, device: torch.device) -> None:
        self._rows = rows
        settings = [row.sampling for row in rows]
        self._device = device
        self._temperature = self._column(
            [1.0 if sampling.is_greedy else sampling.temperature for sampling in settings]
        )
        # Dividing by 1 costs a pass over the vocabulary for every row.
        self._heated = any(not sampling.is_greedy and sampling.temperature != 1 for sampling in settings)
        self._greedy = [sampling.is_greedy for sampling in settings]
        self._greedy_mask = torch.tensor(self._greedy, device=device)
        self._biased = [
            (
                index,
                torch.tensor(list(sampling.logit_bias), device=device),
                self._column(list(sampling.logit_bias.values()))[:, 0],
            )
            for index, sampling in enumerate(settings)
            if sampling.logit_bias
        ]
        self._unfinished = [
            index for index, sampling in enumerate(settings) if sampling.min_tokens and sampling.stop_token_ids
        ]
        self._truncated = _Truncation(settings, device) if any(sampling.truncates for sampling in settings) else None
        self._penalties = (
            _Penalties(rows, vocab_size, device) if any(sampling.penalises for sampling in settings) else None
        )
        self._alternatives = max((sampling.top_logprobs or 0 for sampling in settings), default=0)

    def _column(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)[:, None]

    def draw(self, logits: Tensor) -> DrawnTokens:
        """Draw one token per row.

        Args:
            logits (`Tensor` of shape `[rows, vocabulary]`): Raw logits of the next position.
        """
        logprobs = self.logprobs(logits)
        tokens = self._choose(logprobs)
        token_logprobs = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        ids: list[int] = tokens.tolist()
        if self._penalties is not None:
            self._penalties.count(tokens)
        return DrawnTokens(ids, token_logprobs, self._likeliest(logprobs))

    def logprobs(self, logits: Tensor) -> Tensor:
        """The distribution to draw from: float32 log-probabilities, `[rows, vocabulary]`."""
        logits = logits.to(torch.float32, copy=True)
        for index, ids, values in self._biased:
            logits[index, ids] += values
        for index in self._unfinished:
            row = self._rows[index]
            if len(row.output_ids) < row.sampling.min_tokens:
                logits[index, list(row.sampling.stop_token_ids)] = -math.inf
        if self._penalties is not None:
            self._penalties.apply(logits)
        if self._heated:
            logits /= self._temperature
        if self._truncated is not None:
            self._truncated.apply(logits)
        return torch.log_softmax(logits, dim=-1)

    def _choose(self, logprobs: Tensor) -> Tensor:
        if all(self._greedy):
            return logprobs.argmax(-1)
        # In float64: over a large vocabulary the rounding of float32 sums would move every boundary.
        below = logprobs.exp().cumsum(-1, dtype=torch.float64)
        total = below[:, -1:]
        uniform = [
            0.0 if greedy else row.random.random() for row, greedy in zip(self._rows, self._greedy, strict=True)
        ]
        target = torch.tensor(uniform, dtype=torch.float64, device=self._device)[:, None] * total
        # A draw that rounds up to the total itself would fall behind the last token.
        target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
        tokens = torch.searchsorted(below, target, right=True)[:, 0].clamp_(max=logprobs.shape[1] - 1)
        if any(self._greedy):
            tokens = torch.where(self._greedy_mask, logprobs.argmax(-1), tokens)
        return tokens

    def _likeliest(self, logprobs: Tensor) -> list[list[tuple[int, float]]]:
        if not self._alternatives:
            return [[] for _ in self._rows]
        values, ids = logprobs.topk(min(self._alternatives, logprobs.shape[1]), dim=-1)
        pairs = [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
        return [
            alternatives[: row.sampling.top_logprobs or 0] for alternatives, row in zip(pairs, self._rows, strict=True)
        ]


class _Truncation:
    """min-p, top-k and top-p, for the rows that ask for one of them."""

    def __init__(self, settings: list[Sampling], device: torch.device) -> None:
        indices = [index for index, sampling in enumerate(settings) if sampling.truncates]
        self._index = torch.tensor(indices, device=device)
        truncating = [settings[index] for index in indices]
        self._min_p = torch.tensor([sampling.min_p for sampling in truncating], device=device)[:, None]
        self._top_k = torch.tensor([sampling.top_k for sampling in truncating], device=device)[:, None]
        self._top_p = torch.tensor([sampling.top_p for sampling in truncating], dtype=torch.float32, device=device)[
            :, None
        ]

    def apply(self, logits: Tensor) -> None:
        part = logits[self._index]
        probabilities = part.softmax(-1)
        part = part.masked_fill(probabilities < self._min_p * probabilities.amax(-1, keepdim=True), -math.inf)
        ordered, order = part.sort(dim=-1, descending=True, stable=True)
        place = torch.arange(part.shape[1], device=part.device)
        outside = (self._top_k > 0) & (place >= self._top_k)
        ordered = ordered.masked_fill(outside, -math.inf)
        shares = ordered.softmax(-1)
        above = shares.cumsum(-1) - shares
        # By the share above it, so that the token which crosses `top_p` stays in, and the first one always does.
        beyond = (above >= self._top_p) & (self._top_p < 1) & (place > 0)
        ordered = ordered.masked_fill(beyond, -math.inf)
        logits[self._index] = torch.empty_like(part).scatter_(1, order, ordered)


class _Penalties:
    """Presence, frequency and repetition penalties, for the rows that ask for one of them."""

    def __init__(self, rows: Sequence[SampledRow], vocab_size: int, device: torch.device) -> None:
        indices = [index for index, row in enumerate(rows) if row.sampling.penalises]
        self._index = torch.tensor(indices, device=device)
        penalised = [rows[index] for index in indices]
        self._counts = torch.stack([_counts(row.output_ids, vocab_size, device) for row in penalised])
        self._seen = torch.stack([_counts(row.prompt_ids, vocab_size, device) for row in penalised]) > 0
        self._seen |= self._counts > 0

        def column(name: str) -> Tensor:
            values = [getattr(row.sampling, name) for row in penalised]
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self._presence, self._frequency = column("presence_penalty"), column("frequency_penalty")
        self._repetition = column("repetition_penalty")

    def apply(self, logits: Tensor) -> None:
        part = logits[self._index]
        repeated = torch.where(part > 0, part / self._repetition, part * self._repetition)
        part = torch.where(self._seen, repeated, part)
        part -= self._frequency * self._counts + self._presence * (self._counts > 0)
        logits[self._index] = part

    def count(self, tokens: Tensor) -> None:
        ids = tokens[self._index][:, None]
        self._counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=self._counts.dtype))
        self._seen.scatter_(1, ids, True)


def _counts(ids: list[int], vocab_size: int, device: torch.device) -> Tensor:
    return torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=vocab_size).to(device, torch.float32)
