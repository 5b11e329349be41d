"""A request as the decoding thread sees it, and what it hands back.

`Generation` is one prompt; it grows one `Row` per choice. The decoding thread owns both once they are submitted; the
only thing another thread may do is set `cancelled`. Everything that goes back is an immutable `Update`, delivered in
order, and the last one of a choice carries its finish reason.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from clawrl_trl.engines.embedded.adapters import LoadedPolicy
from clawrl_trl.engines.embedded.detokenize import Detokenizer
from clawrl_trl.engines.embedded.sampling import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptScores:
    """Raw log-probabilities (temperature 1) of the prompt's tokens, from the second one on.

    `logprobs[i]`, `ranks[i]` (1 is the likeliest) and `alternatives[i]` (id and log-probability) belong to
    `prompt_ids[i + 1]`.
    """

    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """Progress of one choice since the last update: new tokens, the text certain by now, or the end."""

    generation: "Generation"
    index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    alternatives: tuple[list[tuple[int, float]], ...] = ()
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(eq=False, kw_only=True)
class Generation:
    """One prompt to continue `choices` times.

    Args:
        policy (`LoadedPolicy`): The weights; this reference keeps them alive until the last choice is finished.
        prompt_ids (`list[int]`): At least one token.
        sampling (`Sampling`): How to continue.
        new_text (`Callable`): Makes the detokeniser of one choice.
        deliver (`Callable`): Takes each update; called in the event loop.
        choices (`int`): How many continuations.
        prompt_logprobs (`int`, *optional*): Alternatives to report per prompt token; `None` reports nothing.
    """

    policy: LoadedPolicy
    prompt_ids: list[int]
    sampling: Sampling
    new_text: Callable[[], Detokenizer]
    deliver: Callable[[Update], None]
    choices: int = 1
    prompt_logprobs: int | None = None
    prompt_scores: PromptScores | None = None
    cancelled: bool = False

    @property
    def only_scores(self) -> bool:
        """True if its prompt's log-probs are what it is for: it samples one token at most, as vLLM demands."""
        return self.prompt_logprobs is not None and self.sampling.max_tokens <= 1

    def make_rows(self) -> list["Row"]:
        """Make fresh rows, one per choice; with a seed, choice i draws with seed + i."""
        seed = self.sampling.seed
        # Not the same seed for all: the choices of one prompt would be equal.
        return [
            Row(self, index, random.Random(None if seed is None else seed + index)) for index in range(self.choices)
        ]

    def fail(self, message: str) -> list[Update]:
        """The updates that end all its choices with an error, made without anything that may fail itself."""
        return [
            Update(generation=self, index=index, error=message, finish_reason="error") for index in range(self.choices)
        ]


class Row:
    """One choice being decoded."""

    def __init__(self, generation: Generation, index: int, generator: random.Random) -> None:
        self.generation = generation
        self.index = index
        self.random = generator
        self.sampling = generation.sampling
        self.prompt_ids = generation.prompt_ids
        self.output_ids: list[int] = []
        self._text = generation.new_text()

    @property
    def cancelled(self) -> bool:
        return self.generation.cancelled

    def accept(self, token_id: int, logprob: float, alternatives: list[tuple[int, float]]) -> Update:
        """Take the drawn token; the update says whether it was the last one."""
        if logprob != logprob:  # NaN: whatever token came with it was not sampled
            return self.fail(f"the policy '{self.generation.policy.name}' produced logits that are not numbers")
        self.output_ids.append(token_id)
        text, finish_reason, stop_reason = self._advance(token_id)
        return Update(
            generation=self.generation,
            index=self.index,
            token_ids=(token_id,),
            logprobs=(logprob,),
            alternatives=(alternatives,),
            text=text,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _advance(self, token_id: int) -> tuple[str, str | None, str | int | None]:
        sampling, text = self.sampling, self._text
        # `output_ids` holds the stop token already, so more than `min_tokens` of them leave that many before it.
        if token_id in sampling.stop_token_ids and len(self.output_ids) > sampling.min_tokens:
            rest = text.flush()
            return rest, "stop", text.stopped or self.generation.policy.stop_reason(token_id)
        released = text.push(token_id)
        if text.stopped is not None:
            return released, "stop", text.stopped
        has_loop = sampling.has_loop(self.output_ids)
        if has_loop or len(self.output_ids) >= sampling.max_tokens:
            released += text.flush()
            cut = "repetition" if has_loop else "length"
            return released, "stop" if text.stopped is not None else cut, text.stopped
        return released, None, None

    def fail(self, message: str) -> Update:
        """The update that ends this choice with an error."""
        return Update(generation=self.generation, index=self.index, error=message, finish_reason="error")
