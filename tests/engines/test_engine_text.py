"""Text released piece by piece is the text, and messages are the same however the text was cut."""

from pathlib import Path
from typing import Any

import pytest
from engine_models import BROKEN, CALL, SECOND_CALL, SHAPELESS, TOOLS
from family_models import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from trl.chat_template_utils import gptoss_template, llama3_template, qwen3_5_template, qwen3_template

from clawrl_trl.engines.embedded.chat import ChatFormat, Delta, PromptError
from clawrl_trl.engines.embedded.detokenize import Detokenizer, Vocabulary

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="session")
def vocabulary(model_folder: Path) -> Vocabulary:
    return Vocabulary(AutoTokenizer.from_pretrained(model_folder / "base"))


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 300), max_size=40), prompt=st.lists(st.integers(0, 300), max_size=8))
def test_pieces_add_up_to_the_decoded_ids(vocabulary: Vocabulary, ids: list[int], prompt: list[int]) -> None:
    text = Detokenizer(vocabulary, prompt, hidden=vocabulary.special_ids)
    pieces = [text.push(token) for token in ids]
    assert all(not piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in pieces if len(piece) == 1)
    assert "".join([*pieces, text.flush()]) == vocabulary.decode(ids, skip_special=True)


@settings(max_examples=200, deadline=None)
@given(text=st.text("abcé👋🏽 ", max_size=30), stops=st.lists(st.text("abc 👋", min_size=1, max_size=4), max_size=3))
def test_a_stop_string_never_leaks(vocabulary: Vocabulary, text: str, stops: list[str]) -> None:
    reader = Detokenizer(vocabulary, [], stop=tuple(stops))
    released, expected = "", text
    ids = vocabulary.encode(text, special=False)
    for count, token in enumerate(ids, 1):
        released += reader.push(token)
        so_far = vocabulary.decode(ids[:count])
        if found := [so_far.find(stop) for stop in stops if stop in so_far]:
            expected = so_far[: min(found)]
            break
    assert (reader.stopped is not None) == (expected != text)
    assert released + reader.flush() == expected


class NoTokenizer:
    chat_template = None


def read(
    template: dict[str, Any] | None, pieces: list[str], tools: Any = TOOLS, prompt: str = PROMPT, end: str = ""
) -> Delta:
    reader = ChatFormat(NoTokenizer(), template).make_reader(prompt, tools)
    total = Delta()
    for piece in pieces:
        total.add(reader.feed(piece))
    total.add(reader.finish(end))
    return total


REPLIES = [
    "Plain. With 1 < 2 and <b>tags</b>.\n",
    f"Let me see.\n{CALL}",
    f"{CALL}\n{SECOND_CALL}",
    f"First.\n{CALL}\nThen this.\n\n{SECOND_CALL}\nLast.",
    f"<think>\nHm, <tool_call> is a tag.\n</think>\n\n{CALL}",
    "<think>\nNever closed",
    f"ok {BROKEN} and {CALL}",
    f"ok {SHAPELESS} more",
    CALL[:-14],
    f"  {CALL}",
    "\n\n  indented\n",
]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("reply", REPLIES)
def test_a_message_does_not_depend_on_how_its_text_was_cut(reply: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=6)))
    pieces = [reply[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    assert read(qwen3_template, pieces) == read(qwen3_template, [reply])


def test_text_around_calls_is_kept() -> None:
    delta = read(qwen3_template, [REPLIES[3]])
    assert delta.content == "First.Then this.Last."
    assert [call.arguments for call in delta.tool_calls] == ['{"expression": "2+3"}', '{"expression": "4*5"}']


def test_from_a_broken_call_on_everything_is_content() -> None:
    assert read(qwen3_template, [REPLIES[6]]) == Delta(content=f"ok {BROKEN} and {CALL}")
    assert read(qwen3_template, [f"Yes.\n{CALL}\n{BROKEN}"]).content == f"Yes.{BROKEN}"


def test_thinking_that_the_prompt_has_opened() -> None:
    delta = read(qwen3_template, ["So.\n</think>\n\nFive."], prompt=f"{PROMPT}<think>\n")
    assert (delta.reasoning, delta.content) == ("So.", "Five.")
    closed = read(qwen3_template, ["Five."], prompt=f"{PROMPT}<think>\n\n</think>\n\n")
    assert (closed.reasoning, closed.content) == ("", "Five.")


def test_calls_of_another_family() -> None:
    text = (
        "Look.\n<tool_call>\n<function=calculator>\n<parameter=expression>\n7\n</parameter>\n</function>\n</tool_call>"
    )
    delta = read(qwen3_5_template, list(text))
    assert delta.content == "Look."
    assert delta.tool_calls[0].arguments == '{"expression": "7"}'


def test_the_token_that_ends_a_reply_closes_a_call() -> None:
    prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    call = '{"name": "calculator", "parameters": {"expression": "7"}}'
    delta = read(llama3_template, list(call), prompt=prompt, end="<|eot_id|>")
    assert delta.content == "" and delta.tool_calls[0].arguments == '{"expression": "7"}'
    for reply, end in ((call, ""), (call[:-3], "<|eot_id|>"), ("It is 7.", "<|eot_id|>")):
        assert read(llama3_template, [reply], prompt=prompt, end=end) == Delta(content=reply)


def test_an_end_that_closes_no_call_is_no_part_of_one() -> None:
    reply = CALL.removesuffix("\n</tool_call>")
    assert read(qwen3_template, [reply], end="<|im_end|>") == read(qwen3_template, [CALL])


def test_channels_are_reasoning_and_calls() -> None:
    thought = "<|channel|>analysis<|message|>Seven.<|end|><|start|>assistant"
    call = ' to=functions.calculator<|channel|>commentary json<|message|>{"expression": "7"}'
    delta = read(gptoss_template, [thought, call], prompt="<|start|>assistant", end="<|call|>")
    assert (delta.reasoning, delta.content) == ("Seven.", "")
    assert delta.tool_calls[0].arguments == '{"expression": "7"}'


def test_thoughts_go_back_under_the_templates_own_name() -> None:
    tokenizer = make_tokenizer("gptoss", "<|return|>")
    chat = ChatFormat(tokenizer, gptoss_template)
    call = {"id": "a", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "7"}'}}
    user, tool = {"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "a", "content": "7"}
    reply = {"role": "assistant", "content": None, "reasoning": "Seven.", "tool_calls": [call]}
    assert "<|channel|>analysis<|message|>Seven.<|end|>" in chat.render([user, reply, tool], TOOLS)
    # Beside content the template refuses it.
    assert "Seven." not in chat.render([user, reply | {"content": "I compute."}, tool], TOOLS)


def test_without_a_template_everything_is_content() -> None:
    assert read(None, ["<think>", CALL]) == Delta(content=f"<think>{CALL}")
    assert read(qwen3_template, [CALL], tools=None) == Delta(content=CALL)


def test_what_cannot_be_rendered_is_said(model_folder: Path) -> None:
    user = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    chat = ChatFormat(AutoTokenizer.from_pretrained(model_folder / "base"), None)
    with pytest.raises(PromptError, match="image_url"):
        chat.render([user])
    with pytest.raises(PromptError, match="chat template"):
        ChatFormat(NoTokenizer(), None).render([{"role": "user", "content": "hi"}])
