"""A reply as a list of parts, one after the other, read from the events of a chat completion.

A chat completion says thoughts, text and tool calls in fields side by side; the other APIs open and close one
part after another. `Parts` is where the one becomes the other, for streams and for whole replies alike (a whole
message is one big delta), so that what a client is streamed and what it gets at once can't differ. No API's own
words occur here.

White space that stands alone between two parts is the model's format and no part of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["reasoning", "text", "call"]


@dataclass(eq=False)
class Part:
    """A piece of a reply. `text` is what was said or thought, for a call its arguments as JSON text."""

    kind: Kind
    index: int
    text: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class PartEvent:
    """Effect of one event on a part: it began, gained `text`, or is over."""

    what: Literal["open", "grow", "close"]
    part: Part
    text: str = ""


class Parts:
    """Follows one reply.

    Attributes:
        id (`str`): The completion's id.
        model (`str`): The model's name as the client knows it.
        parts (`list[Part]`): The parts so far.
        finish_reason (`str | None`): Chat's word for why it ended.
        stop_sequence (`str | None`): The stop sequence that ended it.
        prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens (`int`): Counts so far; cached ones are of
            the prompt, those of reasoning of the completion, as far as the engine tells them.
    """

    def __init__(self) -> None:
        self.id = ""
        self.model = ""
        self.parts: list[Part] = []
        self.finish_reason: str | None = None
        self.stop_sequence: str | None = None
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = self.reasoning_tokens = 0
        self._open: Part | None = None
        self._calls: dict[int, Part] = {}
        self._blank = ""

    def take(self, reply: Mapping[str, Any]) -> list[PartEvent]:
        """Add an event of a stream, or a whole reply; of several choices the first counts."""
        self.id = reply.get("id") or self.id
        self.model = reply.get("model") or self.model
        self._count(reply)
        steps: list[PartEvent] = []
        for choice in reply.get("choices") or ():
            if choice.get("index", 0) == 0:
                steps += self._take_choice(choice)
        return steps

    def end(self) -> list[PartEvent]:
        """Nothing more will come."""
        steps: list[PartEvent] = []
        blank = self._blank
        # White space alone separates nothing where there is no part: it is the reply.
        if blank and not self.parts:
            self._grow(self._enter("text", steps), blank, steps)
        return self._close(steps)

    @property
    def has_calls(self) -> bool:
        """True if the reply calls a tool."""
        return any(part.kind == "call" for part in self.parts)

    def _take_choice(self, choice: Mapping[str, Any]) -> list[PartEvent]:
        delta = choice.get("delta") or choice.get("message") or {}
        steps: list[PartEvent] = []
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self._grow(self._enter("reasoning", steps), thought, steps)
        if text := delta.get("content"):
            self._take_text(text, steps)
        for position, call in enumerate(delta.get("tool_calls") or ()):
            self._take_call(call.get("index", position), call, steps)
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        stopped_by = choice.get("stop_reason")
        # vLLM states a token's id here where the model ended the reply by one of its stop tokens.
        self.stop_sequence = stopped_by if isinstance(stopped_by, str) else self.stop_sequence
        return steps

    def _take_text(self, text: str, steps: list[PartEvent]) -> None:
        if self._open is None or self._open.kind != "text":
            self._blank += text
            # Held back until it is known what follows: only in front of text is it a part of it.
            if not self._blank.strip():
                return
            text = self._blank
        self._grow(self._enter("text", steps), text, steps)

    def _take_call(self, index: int, call: Mapping[str, Any], steps: list[PartEvent]) -> None:
        function = call.get("function") or {}
        part = self._calls.get(index)
        if part is None:
            # An id is made up where the engine sends none: results are matched with calls by it.
            part = self._calls[index] = Part("call", -1, call_id=f"call_{self.id}_{index}")
        part.call_id = call.get("id") or part.call_id
        if part.index < 0:
            part.name += function.get("name") or ""
            # The other APIs state a call's name when they open it.
            if part.name:
                self._begin(part, steps)
        if arguments := function.get("arguments"):
            if part.index < 0:
                part.text += arguments
            else:
                self._grow(part, arguments, steps)

    def _enter(self, kind: Kind, steps: list[PartEvent]) -> Part:
        """The open part if it is of this kind, else a new one."""
        if self._open is None or self._open.kind != kind:
            self._begin(Part(kind, -1), steps)
        assert self._open is not None
        return self._open

    def _begin(self, part: Part, steps: list[PartEvent]) -> None:
        self._close(steps)
        self._blank = ""
        part.index = len(self.parts)
        self.parts.append(part)
        self._open = part
        steps.append(PartEvent("open", part))
        if early := part.text:
            # Arguments that came before the name of their function.
            part.text = ""
            self._grow(part, early, steps)

    def _grow(self, part: Part, text: str, steps: list[PartEvent]) -> None:
        part.text += text
        steps.append(PartEvent("grow", part, text))

    def _close(self, steps: list[PartEvent]) -> list[PartEvent]:
        if self._open is not None:
            steps.append(PartEvent("close", self._open))
            self._open = None
        return steps

    def _count(self, reply: Mapping[str, Any]) -> None:
        # They come with the first event, `usage` only with the last.
        if prompt_ids := reply.get("prompt_token_ids"):
            self.prompt_tokens = len(prompt_ids)
        usage = reply.get("usage")
        if isinstance(usage, Mapping):
            self.prompt_tokens = usage.get("prompt_tokens") or self.prompt_tokens
            self.completion_tokens = usage.get("completion_tokens") or self.completion_tokens
            of_prompt = usage.get("prompt_tokens_details") or {}
            of_completion = usage.get("completion_tokens_details") or {}
            self.cached_tokens = of_prompt.get("cached_tokens") or self.cached_tokens
            self.reasoning_tokens = of_completion.get("reasoning_tokens") or self.reasoning_tokens
