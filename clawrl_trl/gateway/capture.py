"""Capture of token ids and log-probabilities from an engine's reply stream.

A `Capture` reads the events of a stream, or the one object of a plain reply, and keeps for each choice the
message as the client sees it and the token ids and log-probs as the engine reported them. It never tokenises
and never fills a gap: where ids and log-probs do not fit together, the choice says why it can't be trained on.
An engine that exchanges its weights under a reply notes from which token on which policy version speaks.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from clawrl_trl.engines.calls import UNKNOWN_VERSION
from clawrl_trl.messages import Json

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "abort"})


@dataclass
class Choice:
    """One of the replies to a request."""

    index: int
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, Json] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] | None = None
    finish_reason: str | None = None
    counted_tokens: int | None = None
    fault: str | None = None
    notes: list[tuple[int, int]] = field(default_factory=list)
    """From token `start` on, `version` samples; the later note wins."""

    @property
    def versions(self) -> list[int]:
        """The policy version of each token, as the engine noted it; empty if it said nothing."""
        versions: list[int] = []
        for start, version in self.notes:
            versions[start:] = [version] * max(0, len(self.token_ids) - start)
        return versions

    @property
    def message(self) -> Json:
        """The assistant message as the client saw it; white space beside other parts is the model's format."""
        message: Json = {"role": "assistant", "content": "".join(self.content)}
        if (self.reasoning or self.tool_calls) and not message["content"].strip():
            message["content"] = None
        if self.tool_calls:
            message["tool_calls"] = [call for _, call in sorted(self.tool_calls.items())]
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        return message

    @property
    def is_sampled(self) -> bool:
        """True if anything was sampled."""
        return bool(self.token_ids or any(self.content) or self.reasoning or self.tool_calls)

    @property
    def stored_finish_reason(self) -> str:
        """The finish reason in the ledger's words; a choice that never finished was aborted."""
        if self.finish_reason in FINISH_REASONS:
            return self.finish_reason
        return "abort" if self.finish_reason in (None, "error") else "stop"

    def obstacle(self) -> str | None:
        """Why these tokens can't be trained on, or `None`."""
        ids, logprobs = len(self.token_ids), len(self.logprobs)
        if self.fault:
            return self.fault
        if not self.prompt_ids:
            return "the engine sent no prompt token ids"
        if not ids:
            return "the engine sent no token ids"
        if ids != logprobs:
            return f"{ids} token ids came with {logprobs} log-probs"
        if not all(map(math.isfinite, self.logprobs)):
            return "a log-prob is not finite"
        if UNKNOWN_VERSION in self.versions:
            return "the weights under its adapter were exchanged"
        # Streamed tool calls of vLLM can lose token ids (its issue 27482); the count alone gives that away.
        if self.counted_tokens is not None and self.counted_tokens != ids:
            return f"the engine counted {self.counted_tokens} tokens and sent the ids of {ids}"
        return None

    def take(self, choice: Json) -> None:
        """Add a delta, or a whole choice."""
        part = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        self.content.append(part.get("content") or "")
        # vLLM calls it `reasoning`, other engines `reasoning_content`.
        reasoning = part.get("reasoning_content") or part.get("reasoning")
        if reasoning:
            self.reasoning.append(reasoning)
        for position, call in enumerate(part.get("tool_calls") or ()):
            self._take_call(call.get("index", position), call)
        self.token_ids.extend(choice.get("token_ids") or ())
        self.prompt_ids = choice.get("prompt_token_ids") or self.prompt_ids
        self._take_logprobs(choice.get("logprobs") or {})
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_call(self, index: int, call: Json) -> None:
        call_so_far = self.tool_calls.setdefault(
            index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call_so_far["id"] = call.get("id") or call_so_far["id"]
        function = call.get("function") or {}
        call_so_far["function"]["name"] += function.get("name") or ""
        call_so_far["function"]["arguments"] += function.get("arguments") or ""

    def _take_logprobs(self, logprobs: Json) -> None:
        # Text completions list bare numbers, chat completions an object for each token.
        values = logprobs.get("token_logprobs")
        if values is None:
            values = [entry.get("logprob") for entry in logprobs.get("content") or ()]
        for value in values:
            if value is None:
                self.fault = "a token came without a log-prob"
            else:
                self.logprobs.append(float(value))


class Capture:
    """Everything the engine said in answer to one request.

    Args:
        started_at (`float`, *optional*): When the request came, on the monotonic clock. Default: now.
    """

    def __init__(self, started_at: float | None = None) -> None:
        self.started_at = time.monotonic() if started_at is None else started_at
        self.first_token_at: float | None = None
        self.choices: dict[int, Choice] = {}
        self.prompt_ids: list[int] | None = None
        self.usage: Json | None = None
        self.constrained: bool | None = None
        """Whether the engine sampled under a grammar, if it says."""

    def take(self, reply: Json) -> None:
        """Add an event of a stream, or a whole reply."""
        self.prompt_ids = reply.get("prompt_token_ids") or self.prompt_ids
        choices = reply.get("choices") or ()
        for choice in choices:
            captured = self.choice(choice.get("index", 0))
            captured.take(choice)
            # The first event of a chat holds the role and no token.
            if self.first_token_at is None and (choice.get("token_ids") or captured.content[-1]):
                self.first_token_at = time.monotonic()
        # Only our own vLLM server notes versions, and it says in the same event whether a grammar was applied.
        self.constrained = (
            reply.get("constrained", self.constrained) if "policy_versions" in reply else self.constrained
        )
        for index, start, version in reply.get("policy_versions") or ():
            self.choice(index).notes.append((start, version))
        self._take_usage(reply.get("usage"), choices)

    def choice(self, index: int) -> Choice:
        """The choice of an index, made when it is first mentioned."""
        return self.choices.setdefault(index, Choice(index))

    @property
    def is_finished(self) -> bool:
        """True if every choice that began has its finish reason."""
        return bool(self.choices) and all(choice.finish_reason for choice in self.choices.values())

    def settle(self) -> list[Choice]:
        """The choices in order, each with the prompt's ids, when nothing more will come."""
        choices = [choice for _, choice in sorted(self.choices.items())]
        for choice in choices:
            choice.prompt_ids = choice.prompt_ids or self.prompt_ids
        # A total over several choices says nothing about any one of them.
        if len(choices) == 1 and self.usage is not None and choices[0].counted_tokens is None:
            choices[0].counted_tokens = self.usage.get("completion_tokens")
        return choices

    def timings(self) -> dict[str, float | None]:
        """Seconds from the request's arrival to its first token and to now."""
        first = self.first_token_at
        return {
            "ttft_s": None if first is None else round(first - self.started_at, 6),
            "total_s": round(time.monotonic() - self.started_at, 6),
        }

    def _take_usage(self, usage: object, choices: Sequence[Json]) -> None:
        if not isinstance(usage, dict):
            return
        if len(choices) == 1 and choices[0].get("delta", choices[0].get("text")) is not None:
            # A running count comes with every event of a stream, for the choice of that event.
            self.choice(choices[0].get("index", 0)).counted_tokens = usage.get("completion_tokens")
        self.usage = usage
