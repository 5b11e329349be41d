"""The bundled tokenizer and chat template: any text survives, templates render, replies parse."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response

from clawrl_trl.tiny import MODEL_PATH
from recipes.tiny import calculator, dialogues, render
from recipes.tiny.tokenizer import MARKERS, SPECIAL

TOKENIZER = AutoTokenizer.from_pretrained(MODEL_PATH)
CALCULATOR = calculator.make_schema(random.Random(0), usual=True)
NO_THOUGHT = "<think>\n\n</think>\n\n"


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_survives(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


@given(st.integers(0, 10**9))
def test_digits_are_single_tokens(number: int) -> None:
    tokens = TOKENIZER.encode(f"{number}", add_special_tokens=False)
    assert len(tokens) == len(str(number))


@pytest.mark.parametrize("token", [*SPECIAL, *MARKERS])
def test_markers_are_single_tokens(token: str) -> None:
    assert len(TOKENIZER.encode(token, add_special_tokens=False)) == 1


def test_markers_survive_when_special_tokens_are_skipped() -> None:
    ids = TOKENIZER.encode("<think>\n5\n</think><|im_end|>", add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think>\n5\n</think>"


def _render(messages: list[dict[str, Any]], **options: Any) -> str:
    return str(TOKENIZER.apply_chat_template(messages, tokenize=False, **options))


def test_thinking_is_off_by_default() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    start = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert _render(messages, add_generation_prompt=True) == start + NO_THOUGHT
    assert _render(messages, add_generation_prompt=True, enable_thinking=False) == start + NO_THOUGHT
    assert _render(messages, add_generation_prompt=True, enable_thinking=True) == start


def test_messages_of_parts_and_developers_render() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "5"}, {"type": "text", "text": "+1?"}]},
    ]
    assert _render(messages) == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n5+1?<|im_end|>\n"


@pytest.mark.parametrize("tools", [None, [CALCULATOR]])
def test_a_message_of_one_part_renders_as_its_text(tools: list[dict[str, Any]] | None) -> None:
    """Some servers (vLLM) turn every message's text into a part before they render."""
    chat = [(role, f"What the {role} says.") for role in ("system", "user", "assistant", "tool", "user")]
    plain = [{"role": role, "content": text} for role, text in chat]
    parts = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in chat]
    assert _render(parts, tools=tools) == _render(plain, tools=tools)
    assert all(text in _render(plain, tools=tools) for _, text in chat)


@pytest.mark.parametrize("thought", [None, "12 * 7 = 84."])
def test_a_longer_chat_starts_with_the_shorter_one(thought: str | None) -> None:
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "12*7"}}}
    reply = {"role": "assistant", "content": "", "tool_calls": [call]}
    if thought:
        reply["reasoning_content"] = thought
    chat = [
        {"role": "user", "content": "What is 12 x 7?"},
        reply,
        {"role": "tool", "content": "84"},
        {"role": "assistant", "content": "The answer is 84."},
        {"role": "user", "content": "Thanks!"},
    ]
    options: dict[str, Any] = {"tools": [CALCULATOR], "enable_thinking": bool(thought)}
    for end in range(1, len(chat)):
        prompt = _render(chat[:end], add_generation_prompt=chat[end]["role"] == "assistant", **options)
        if end == 3 and thought:  # this reply came without a thought although it was allowed one
            prompt = _render(chat[:end], **options)
        assert _render(chat[: end + 1], **options).startswith(prompt)
    assert '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*7"}}\n</tool_call>' in _render(chat)
    assert "<|im_start|>user\n<tool_response>\n84\n</tool_response><|im_end|>" in _render(chat)


def test_trl_finds_the_template_prefix_preserving() -> None:
    assert is_chat_template_prefix_preserving(TOKENIZER)


def test_the_recipe_renders_as_the_template_does() -> None:
    rng = random.Random(7)
    for _ in range(400):
        talk = dialogues.dialogue(rng)
        parts = render.render_pieces(talk)
        ids = [i for text, _ in parts for i in TOKENIZER.encode(text, add_special_tokens=False)]
        messages = [{k: v for k, v in message.items() if k != "context"} for message in talk.messages]
        rendered = TOKENIZER.apply_chat_template(
            messages, tools=talk.tools, return_dict=True, return_assistant_tokens_mask=True
        )
        assert rendered["input_ids"] == ids
        learnt = [int(mode != "no") for text, mode in parts for _ in TOKENIZER.encode(text, add_special_tokens=False)]
        assert rendered["assistant_masks"] == learnt


def test_replies_are_parsed() -> None:
    prompt = _render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert TOKENIZER.parse_response("**12**<|im_end|>", prefix=prompt)["content"] == "**12**"
    called = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*7"}}\n</tool_call><|im_end|>'
    ids = TOKENIZER.encode(called, add_special_tokens=False)
    prefix = TOKENIZER.encode(prompt, add_special_tokens=False)
    parsed = parse_response(TOKENIZER, ids, prefix=prefix)
    function = {"name": "calculator", "arguments": {"expression": "12*7"}}
    assert parsed["tool_calls"] == [{"type": "function", "function": function}]
    thinking = _render([{"role": "user", "content": "Hi"}], add_generation_prompt=True, enable_thinking=True)
    parsed = TOKENIZER.parse_response("<think>\n5 + 7 = 12.\n</think>\n\n12<|im_end|>", prefix=thinking)
    assert (parsed["reasoning_content"].strip(), parsed["content"]) == ("5 + 7 = 12.", "12")
