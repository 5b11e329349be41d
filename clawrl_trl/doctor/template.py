"""Checks that a longer conversation begins with exactly the tokens of the shorter one.

When it does, the turns of a conversation share their tokens in training (`--packing trie`) and the engine's prefix
cache holds. Templates that rewrite what was said before, by dropping an earlier turn's thinking for example, break
it. Nothing is wrong then: each turn is trained with the prompt it was sampled under. It costs computing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.replies import request_json
from clawrl_trl.doctor.target import Target
from clawrl_trl.doctor.tokens import CALCULATOR, TEXT, TOOLS
from clawrl_trl.messages import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

APART = "nothing to do: turns are trained each under its own prompt, and share fewer tokens under --packing trie"

CALL: Json = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "calculator", "arguments": {"expression": "17 * 23"}},
}


@dataclass(frozen=True)
class Dialogue:
    """A conversation whose turns are rendered one after the other.

    Args:
        name: Name of the finding.
        messages: All messages; each assistant message ends a turn.
        tools: Tools offered.
        arguments: Arguments of the template.
    """

    name: str
    messages: Sequence[Json]
    tools: Sequence[Json] | None = None
    arguments: Json = field(default_factory=dict)


PLAIN = Dialogue(
    "prefix, plain",
    [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is 17 times 23?"},
        {"role": "assistant", "content": "17 times 23 is 391."},
        {"role": "user", "content": "And 18 times 23?"},
        {"role": "assistant", "content": "It is 414."},
        {"role": "user", "content": "Thanks!"},
    ],
    arguments={"enable_thinking": False},
)
TOOL_CALLS = Dialogue(
    "prefix, tool calls",
    [
        {"role": "user", "content": "What is 17 times 23?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "391"},
        {"role": "assistant", "content": "It is 391."},
        {"role": "user", "content": "Thanks!"},
    ],
    [CALCULATOR],
    {"enable_thinking": False},
)
THINKING = Dialogue(
    "prefix, thinking",
    [
        {"role": "user", "content": "What is 17 times 23?"},
        {"role": "assistant", "reasoning_content": "17 * 20 = 340 and 17 * 3 = 51.", "content": "It is 391."},
        {"role": "user", "content": "Thanks!"},
    ],
    arguments={"enable_thinking": True},
)


async def check_plain_text(target: Target) -> Finding:
    """Check a conversation of text alone."""
    return compare_turns(target.tokenizer, PLAIN)


async def check_tool_calls(target: Target) -> Finding:
    """Check a call, its result, an answer."""
    return compare_turns(target.tokenizer, TOOL_CALLS)


async def check_thinking(target: Target) -> Finding:
    """Check a turn with its reasoning."""
    return compare_turns(target.tokenizer, THINKING)


async def check_as_served(target: Target) -> Finding:
    """Check that sampled tokens, sent back by a client, are rendered by the engine as the same ids."""
    name = "prefix, as served"
    shared, total, kinds = 0, 0, []
    for kind, body in (("text", TEXT), ("tool call", TOOLS)):
        reply = await target.request_reply({**body, "max_tokens": 400})
        # A reply that was cut off lacks the end-of-turn token that the template writes behind it.
        if reply.obstacle() or reply.finish_reason == "length" or (kind == "tool call" and not reply.tool_calls):
            continue
        answers = [{"role": "tool", "tool_call_id": call.get("id"), "content": "12"} for call in _calls(reply.message)]
        messages = [*body["messages"], reply.message, *(answers or [{"role": "user", "content": "Thanks!"}])]
        request = {"model": target.base, "messages": messages, "tools": body.get("tools")}
        request["chat_template_kwargs"] = body["chat_template_kwargs"]
        tokenized = await request_json(target.engine, "POST", "/tokenize", request)
        before = [*(reply.prompt_ids or []), *reply.token_ids]
        shared += count_common(before, tokenized["tokens"])
        total += len(before)
        kinds.append(kind)
    if not kinds:
        raise Skip("no reply came to its end")
    return _make_finding(name, shared, total, f" ({' and '.join(kinds)})")


def _calls(message: Json) -> Sequence[Json]:
    calls: Sequence[Json] = message.get("tool_calls") or ()
    return calls


def compare_turns(tokenizer: "PreTrainedTokenizerBase", dialogue: Dialogue) -> Finding:
    """Render every turn of a dialogue and compare each with the one after it.

    Raises:
        Skip: If the tokenizer has no template, or the template refuses the dialogue.
    """
    ends = [place for place, message in enumerate(dialogue.messages) if message["role"] == "assistant"]
    shared, total = 0, 0
    for end in ends:
        before = _render_tokens(tokenizer, dialogue, end + 1, prompt=False)
        prompt = _render_tokens(tokenizer, dialogue, end, prompt=True)
        after = _render_tokens(tokenizer, dialogue, _next(ends, end, len(dialogue.messages)), prompt=True)
        before = _cut_after_end(tokenizer, before)
        # A turn that does not begin with the prompt it was sampled under counts as wholly rewritten.
        shared += min(count_common(before, after), len(before)) if count_common(prompt, before) == len(prompt) else 0
        total += len(before)
    return _make_finding(dialogue.name, shared, total, "")


def _next(ends: Sequence[int], end: int, length: int) -> int:
    return next((later for later in ends if later > end), length)


def _render_tokens(tokenizer: "PreTrainedTokenizerBase", dialogue: Dialogue, count: int, *, prompt: bool) -> list[int]:
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            list(dialogue.messages[:count]),
            tools=dialogue.tools,
            add_generation_prompt=prompt,
            tokenize=False,
            **dialogue.arguments,
        )
    except (ValueError, TypeError, TemplateError) as error:
        raise Skip(f"the chat template refuses it ({str(error).splitlines()[0][:120]})") from None
    # The template has written the special tokens already.
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _cut_after_end(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> list[int]:
    """Cut ids after the end-of-turn token, the last one that an engine samples; templates often add a line break."""
    if tokenizer.eos_token_id in ids:
        return ids[: len(ids) - ids[::-1].index(tokenizer.eos_token_id)]
    return ids


def count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Count the tokens of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def _make_finding(name: str, shared: int, total: int, forms: str) -> Finding:
    if shared == total:
        return Finding(
            name, "ok", f"all {total} tokens stay when the conversation goes on{forms}: turns share their tokens"
        )
    detail = f"{shared} of {total} tokens stay when the conversation goes on{forms}: turns share fewer tokens"
    return Finding(name, "warn", detail, APART)
