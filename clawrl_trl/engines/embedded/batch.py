"""Prompts going in and tokens coming out, several rows at a time.

`Prefill` runs prompts of one policy through the model in chunks, so that rows that already run wait for one chunk at
most. `DecodeBatch` holds the running rows of one policy and decodes one token for each per step. Both pad on the
left; the padding is masked and takes no position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from clawrl_trl.engines.embedded.adapters import LoadedPolicy
from clawrl_trl.engines.embedded.cache import concatenate_caches, new_cache, select_rows
from clawrl_trl.engines.embedded.generation import Generation, PromptScores, Row, Update
from clawrl_trl.engines.embedded.sampling import Sampler


def accept_drawn(rows: Sequence[Row], sampler: Sampler, logits: Tensor) -> list[Update]:
    """Draw one token per row from `logits` (`[rows, vocabulary]`) and let each row take its own."""
    tokens = sampler.draw(logits)
    columns = zip(rows, tokens.ids, tokens.logprobs, tokens.alternatives, strict=True)
    return [row.accept(token, logprob, alternatives) for row, token, logprob, alternatives in columns]


@dataclass(frozen=True, eq=False)
class PrefillResult:
    """Result of a finished prefill: the rows' first updates, and the rows that go on as a batch of their own."""

    updates: list[Update]
    batch: "DecodeBatch | None"


class Prefill:
    """Runs the prompts of some generations of one policy, at most `chunk` tokens per step."""

    def __init__(self, generations: list[Generation], chunk: int) -> None:
        self.generations = generations
        self._policy = generations[0].policy
        self._device = self._policy.model.device
        lengths = [len(generation.prompt_ids) for generation in generations]
        self._width = max(lengths)
        # The bound is on all rows together, because their columns are computed in one pass.
        self._columns = max(chunk // len(generations), 1)
        self._done = 0
        padded = [
            [0] * (self._width - len(generation.prompt_ids)) + generation.prompt_ids for generation in generations
        ]
        self._ids = torch.tensor(padded, device=self._device)
        self._starts = self._width - torch.tensor(lengths, device=self._device)
        self._cache = new_cache(self._policy.layers)
        self._scored = [
            index for index, generation in enumerate(generations) if generation.prompt_logprobs is not None
        ]
        for index in self._scored:
            generations[index].prompt_scores = PromptScores()

    @property
    def cancelled(self) -> bool:
        """True if nobody waits for any of these prompts any more."""
        return all(generation.cancelled for generation in self.generations)

    def step(self) -> PrefillResult | None:
        """Run one chunk. Returns what starts when the last chunk is done, `None` before."""
        begin, end = self._done, min(self._done + self._columns, self._width)
        output = self._policy.model(
            input_ids=self._ids[:, begin:end],
            attention_mask=self._mask(begin, end),
            position_ids=self._positions(begin, end),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=0 if self._scored else 1,  # 0 keeps all
        )
        self._done = end
        for index in self._scored:
            self._score(index, begin, output.logits[index])
        return self._start(output.logits[:, -1]) if end == self._width else None

    def _positions(self, begin: int, end: int) -> Tensor:
        return (torch.arange(begin, end, device=self._device) - self._starts[:, None]).clamp_(min=0)

    def _mask(self, begin: int, end: int) -> Tensor | dict[str, Tensor] | None:
        if begin == 0 and not self._starts.any():
            return None  # prompts of one length in one chunk: the model's own causal mask is cheaper
        keys = torch.arange(end, device=self._device)
        distances = keys[begin:, None] - keys
        real = keys >= self._starts[:, None, None]
        # A padded query sees itself: a row of the mask without any key would make NaNs.
        return self._policy.mask(((distances >= 0) & (real | (distances == 0)))[:, None], distances)

    def _score(self, index: int, begin: int, logits: Tensor) -> None:
        generation, start = self.generations[index], int(self._starts[index])
        # The logits of a position score the token behind it, so the last position of the prompt scores none.
        first, last = max(begin, start), min(begin + logits.shape[0], self._width - 1)
        scores, count = generation.prompt_scores, generation.prompt_logprobs
        if scores is None or count is None or first >= last:
            return
        logprobs = torch.log_softmax(logits[first - begin : last - begin].float(), dim=-1)
        token_logprobs = logprobs.gather(1, self._ids[index, first + 1 : last + 1, None])
        scores.logprobs.extend(token_logprobs[:, 0].tolist())
        scores.ranks.extend(((logprobs > token_logprobs).sum(-1) + 1).tolist())
        if count:
            values, ids = logprobs.topk(min(count, logprobs.shape[1]), dim=-1)
            pairs = zip(ids.tolist(), values.tolist(), strict=True)
            scores.alternatives.extend([list(zip(*pair, strict=True)) for pair in pairs])
        else:
            scores.alternatives.extend([[] for _ in range(last - first)])

    def _start(self, logits: Tensor) -> PrefillResult:
        rows: list[Row] = []
        sources: list[int] = []
        ended: list[Update] = []
        for source, generation in enumerate(self.generations):
            if generation.sampling.max_tokens == 0:
                ended += [
                    Update(generation=generation, index=row.index, finish_reason="length")
                    for row in generation.make_rows()
                ]
            elif not generation.cancelled:
                rows += generation.make_rows()
                sources += [source] * generation.choices
        if not rows:
            return PrefillResult(ended, None)  # all were scored alone, or cancelled meanwhile
        source_index = torch.tensor(sources, device=self._device)
        sampler = Sampler(rows, logits.shape[-1], self._device)
        updates = accept_drawn(rows, sampler, logits[source_index])
        going = [index for index, update in enumerate(updates) if update.finish_reason is None]
        if not going:
            return PrefillResult(ended + updates, None)
        keep = source_index[going]
        # Columns that pad every row that is left; attention would go over them at each token.
        drop = int(self._starts[keep].min())
        cache = select_rows(self._cache, keep, drop)
        batch = DecodeBatch(self._policy, [rows[index] for index in going], cache, self._starts[keep] - drop)
        return PrefillResult(ended + updates, batch)


class DecodeBatch:
    """The running rows of one policy.

    `cache` holds every token of each row but the last one drawn; `starts` (`[rows]` int64) is the column of each
    row's first token. Both change only when rows join or leave.
    """

    def __init__(self, policy: LoadedPolicy, rows: list[Row], cache: Cache, starts: Tensor) -> None:
        self.policy = policy
        self.rows = rows
        self._model = policy.model
        self._cache = cache
        self._starts = starts
        self._rebuild_tensors()

    def _rebuild_tensors(self) -> None:
        device = self._starts.device
        length = self._cache.get_seq_length()
        self._tokens = torch.tensor([[row.output_ids[-1]] for row in self.rows], device=device)
        self._positions = (length - self._starts)[:, None]
        self._sampler = Sampler(self.rows, self.policy.vocab_size, device)
        self._padded = bool(self._starts.any())
        self._make_room(length)

    def _make_room(self, length: int) -> None:
        # More than is needed now, so that a step slices instead of building.
        self._columns = torch.arange(length + 512, device=self._starts.device)
        self._real = (self._columns >= self._starts[:, None])[:, None, None]

    def _mask(self, end: int) -> Tensor | dict[str, Tensor] | None:
        if not self._padded:
            return None  # the model's own mask is cheaper
        if end > len(self._columns):
            self._make_room(end)
        return self.policy.mask(self._real[..., :end], end - 1 - self._columns[None, :end])

    def join(self, joining: "DecodeBatch") -> None:
        """Take over the rows of another batch of the same policy."""
        own_length, their_length = self._cache.get_seq_length(), joining._cache.get_seq_length()
        longest = max(own_length, their_length)
        self._starts = torch.cat([self._starts + longest - own_length, joining._starts + longest - their_length])
        self._cache = concatenate_caches(self._cache, joining._cache)
        self.rows = self.rows + joining.rows
        self._rebuild_tensors()

    def keep(self, going: list[int]) -> None:
        """Drop all rows but these; at least one must stay."""
        index = torch.tensor(going, device=self._starts.device)
        starts = self._starts[index]
        drop = int(starts.min())
        self._cache = select_rows(self._cache, index, drop)
        self._starts = starts - drop
        self.rows = [self.rows[place] for place in going]
        self._rebuild_tensors()

    def step(self) -> list[Update]:
        """Decode one token for every row. Finished rows stay until `keep` is called."""
        output = self._model(
            input_ids=self._tokens,
            attention_mask=self._mask(self._cache.get_seq_length() + 1),
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        updates = accept_drawn(self.rows, self._sampler, output.logits[:, -1])
        self._tokens = torch.tensor([[row.output_ids[-1]] for row in self.rows], device=self._starts.device)
        self._positions = self._positions + 1
        return updates
