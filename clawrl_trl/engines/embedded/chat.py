"""Rendering of chat messages to prompts, and parsing of sampled text to messages.

Rendering is the tokenizer's chat template; parsing is transformers' streamable response parser, driven by the
response template that the tokenizer ships or that TRL or transformers know for its family. One parser serves streamed
and plain replies: a plain message is the sum of the deltas of its stream, so the two can't differ.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.chat_parsing import ResponseParser

from clawrl_trl.engines.chat_template import find_variables
from clawrl_trl.engines.embedded.deadline import OutOfTimeError, call_within
from clawrl_trl.messages import Json

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
CONTENT_FIELD = "content"
RENDER_LIMIT_S = 10.0
"""Longest time that a chat template may take. The largest request that fits a context takes some tens of ms."""

TEMPLATE_FAULTS = (
    TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError
)  # fmt: skip
"""What a template's code may raise over messages that it was not written for."""
TOOLS_FIELD = "tool_calls"


class PromptError(Exception):
    """Messages that can't be turned into a prompt; the text is meant for the client."""


@dataclass(frozen=True)
class ParsedToolCall:
    """A complete call: `arguments` is JSON text, as OpenAI's protocol has it."""

    name: str
    arguments: str


@dataclass
class Delta:
    """A piece of a reply."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ParsedToolCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)

    def add(self, other: "Delta") -> None:
        """Append what came next."""
        self.reasoning += other.reasoning
        self.content += other.content
        self.tool_calls += other.tool_calls


class ChatFormat:
    """The format in which one model family writes prompts and replies.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): With a chat template, else chat requests are refused.
        response_template (`dict`, *optional*): How replies are parsed; `None` leaves them as plain text.
        limit_s (`float`, defaults to 10): Longest time that rendering may take, seconds.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, response_template: Json | None, limit_s: float = RENDER_LIMIT_S
    ) -> None:
        self._tokenizer = tokenizer
        self._template = response_template
        self._limit_s = limit_s

    @cached_property
    def delimiters(self) -> str:
        """Every text that the response template may look for outside plain content."""
        fields = (self._template or {}).get("fields", {}).items()
        return json.dumps([field for name, field in fields if name != CONTENT_FIELD]).replace("\\", "")

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables of the chat template that a client may set."""
        return find_variables(self._tokenizer.chat_template)

    def render(
        self,
        messages: Sequence[Json],
        tools: list[Json] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_arguments: Json | None = None,
    ) -> str:
        """Render the prompt text of a conversation.

        Raises:
            PromptError: If there is no chat template, it has no such variable, refuses these messages, or takes too
                long over them.
        """
        if not self._tokenizer.chat_template:
            raise PromptError(
                "The model has no chat template: serve a chat (instruct) model, or put a chat_template.jinja into the "
                "model's folder. /v1/completions takes plain prompts."
            )
        self._check_arguments(template_arguments or {})
        normalised = [self._normalise(message) for message in messages]

        def apply() -> str:
            text: str = self._tokenizer.apply_chat_template(
                normalised,
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **(template_arguments or {}),
            )
            return text

        try:
            return call_within(self._limit_s, apply)
        except OutOfTimeError:
            raise PromptError(f"The chat template took longer than {self._limit_s:g} s over these messages.") from None
        except TEMPLATE_FAULTS as error:
            raise PromptError(f"The chat template can't render these messages: {error}") from error

    def _check_arguments(self, arguments: Json) -> None:
        for name in arguments:
            if name not in self.variables:
                accepted = ", ".join(sorted(self.variables))
                raise PromptError(f"chat_template_kwargs.{name[:100]}: the model's template has only {accepted}.")

    def _normalise(self, message: Json) -> Json:
        # Templates test `is defined`, for which a null is there.
        normalised = {key: value for key, value in message.items() if value is not None}
        normalised["content"] = _join_content(message.get("content"))
        # Templates that know no developer refuse the role or drop the message.
        if normalised.get("role") == "developer" and "developer" not in str(self._tokenizer.chat_template):
            normalised["role"] = "system"
        reasoning = normalised.get("reasoning_content") or normalised.get("reasoning")
        if isinstance(reasoning, str):
            normalised["reasoning_content"] = reasoning
            # gpt-oss's name for it, whose template refuses it beside content and calls.
            if not (normalised["content"] and normalised.get("tool_calls")):
                normalised.setdefault("thinking", reasoning)
        if normalised.get("tool_calls"):
            normalised["tool_calls"] = [_call_for_template(call) for call in normalised["tool_calls"]]
        return normalised

    def make_reader(self, prompt: str, tools: list[Json] | None) -> "ReplyReader":
        """Make a reader for one reply to this prompt; without tools, the text of a call is content."""
        template = self._template
        if template is not None and not tools:
            fields = {name: field for name, field in template["fields"].items() if name != TOOLS_FIELD}
            template = {**template, "fields": fields}
        return ReplyReader(template, prompt, tools)


def _join_content(content: str | list[Json] | None) -> str:
    """Join message content to one text: parts by line breaks; no content is empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part.get("type") not in ("text", "input_text", "output_text", "refusal"):
            raise PromptError(
                f"Content of type '{part.get('type')}' is not supported, only text is: this engine serves language "
                "models; one that sees needs vLLM (--engine vllm, or its URL)."
            )
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)


def _call_for_template(call: Json) -> Json:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    # Clients send arguments as JSON text; templates write them out themselves, from an object.
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except ValueError:
            function["arguments"] = arguments
    return {**call, "function": function}


class ReplyReader:
    """Reads one reply as it is sampled.

    Whitespace between parts (around reasoning, before a tool call) belongs to the format and is dropped; content on
    its own is passed on exactly as it was sampled. A call that is no valid call is passed on as content, and so is
    all that follows it. The text goes through the parser character by character, so that a call that fails to parse
    can't take along what came before it.
    """

    def __init__(self, template: Json | None, prompt: str, tools: list[Json] | None) -> None:
        self._parser = None if template is None else ResponseParser(template, prefix=prompt, tools=tools)
        call = (template or {}).get("fields", {}).get(TOOLS_FIELD, {})
        self._open_call = _compile_open_pattern(call)
        self._call_delimiters = json.dumps(call).replace("\\", "")
        self._is_in_call = False
        self._raw = ""
        self._region_end = 0
        self._call_start = 0
        self._after_part = False
        self._reasoning_begun = False
        self._held = {"reasoning": "", "content": ""}

    def feed(self, text: str) -> Delta:
        """Take more text; returns what is certain now."""
        delta = Delta()
        for place, character in enumerate(text):
            if self._parser is None:
                self._add_content(text[place:], delta)
                break
            self._raw += character
            self._parse(self._parser.feed, character, delta)
        return delta

    def finish(self, end: str = "") -> Delta:
        """End the reply; returns what was held back.

        Args:
            end (`str`): Text of the token that ended it, which some families' calls are closed by.
        """
        delta = Delta()
        if self._parser is not None and self._is_in_call and end and end in self._call_delimiters:
            self._parse(self._parser.feed, end, delta)
        if self._parser is not None:
            self._parse(lambda _: self._parser.finalize()[1] if self._parser else [], "", delta)
        delta.content += self._held["content"]
        return delta

    def _parse(self, step: Callable[[str], Iterable[Json]], text: str, delta: Delta) -> None:
        try:
            events = step(text)
        except (ValueError, TypeError, KeyError):
            self._give_up(delta)
            return
        for event in events:
            if self._parser is not None:
                self._handle(event, delta)

    def _handle(self, event: Json, delta: Delta) -> None:
        name, kind = event["field"], event["type"]
        if name == TOOLS_FIELD:
            self._handle_call(event, delta)
        elif kind == "region_chunk" and name == CONTENT_FIELD:
            self._add_content(event["text"], delta)
        elif kind == "region_chunk" and name in REASONING_FIELDS:
            self._add_reasoning(event["text"], delta)
        elif kind == "region_close" and name in REASONING_FIELDS:
            self._held["reasoning"] = ""
            self._end_part()

    def _end_part(self) -> None:
        self._after_part = True
        self._region_end = max(len(self._raw) - 1, 0)

    def _handle_call(self, event: Json, delta: Delta) -> None:
        if event["type"] == "region_open":
            starts = [match.start() for match in self._open_call.finditer(self._raw, self._region_end)]
            self._call_start = starts[0] if starts else self._region_end
            self._is_in_call = True
        elif event["type"] == "region_close":
            self._is_in_call = False
            call = _read_call(event["value"])
            if call is None:
                self._give_up(delta)
                return
            self._held["content"] = ""
            self._end_part()
            delta.tool_calls.append(call)

    def _add_content(self, text: str, delta: Delta) -> None:
        if self._after_part:
            text = text.lstrip()
            self._after_part = not text
        self._held["content"] += text
        self._emit_plain(delta)

    def _emit_plain(self, delta: Delta) -> None:
        # White space at the end may turn out to be the seam before a call.
        pending = self._held["content"]
        certain = pending.rstrip()
        delta.content += certain
        self._held["content"] = pending[len(certain) :]

    def _add_reasoning(self, text: str, delta: Delta) -> None:
        if not self._reasoning_begun:
            text = text.lstrip()
            self._reasoning_begun = bool(text)
        pending = self._held["reasoning"] + text
        certain = pending.rstrip()
        delta.reasoning += certain
        self._held["reasoning"] = pending[len(certain) :]

    def _give_up(self, delta: Delta) -> None:
        """Stop parsing at a call that turned out to be none: from its beginning on, everything is plain content."""
        self._parser = None
        self._add_content(self._raw[self._call_start :], delta)


def _compile_open_pattern(call: Json) -> re.Pattern[str]:
    literals = call.get("open", [])
    literals = [literals] if isinstance(literals, str) else literals
    return re.compile(call.get("open_pattern") or "|".join(map(re.escape, literals)) or r"(?!)", re.DOTALL)


def _read_call(value: object) -> ParsedToolCall | None:
    """Convert a parsed call to OpenAI's form; `None` if a client could not run it."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        return None
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if arguments is None:
        arguments = {}
    return (
        ParsedToolCall(function["name"], json.dumps(arguments, ensure_ascii=False))
        if isinstance(arguments, dict)
        else None
    )


def find_response_template(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Json | None:
    """The response template of a model family: the tokenizer's own, else TRL's for its chat template, else
    transformers' for its architecture, else `None`. TRL is imported only when the tokenizer ships none."""
    own = getattr(tokenizer, "response_template", None)
    if own is not None or not tokenizer.chat_template:
        return own
    from transformers.cli.serving.utils import get_response_template
    from trl.chat_template_utils import add_response_schema

    with suppress(ValueError):  # a chat template that TRL doesn't know
        add_response_schema(tokenizer)
    template: Json | None = get_response_template(tokenizer, model)
    return template
