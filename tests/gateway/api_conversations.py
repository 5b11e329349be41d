"""Conversations in the other APIs over a real engine, the same for every engine.

Whoever runs them gives two fixtures: `live`, a gateway over the engine with the engine tests' model, and `models`,
the folder of that model.
"""

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from api_clients import PARAMETERS, anthropic_of, openai_of
from engine_models import BY_HEART, CALL, SECOND_CALL
from gateway_rig import Rig
from transformers import AutoTokenizer

__all__ = [
    "test_a_client_that_leaves_cancels_in_the_engine",
    "test_a_prompt_that_is_too_long",
    "test_a_stop_sequence_is_named",
    "test_messages_with_tools",
    "test_responses_continued_by_id",
    "test_responses_with_tools",
    "test_thinking_is_a_block_of_its_own",
    "test_tokens_are_counted_as_they_are_sampled_from",
]

FUNCTION: Any = {"type": "function", "name": "calculator", "description": "Compute.", "parameters": PARAMETERS}
TOOL: Any = {"name": "calculator", "description": "Compute.", "input_schema": PARAMETERS}


NEARLY_BY_HEART = {"seed": 0, "temperature": 0.3}
"""What the model knows by heart it then says, while its tokens can still be trained on."""


def decoded(models: Path, ids: Any) -> str:
    return str(AutoTokenizer.from_pretrained(models / "base").decode(ids))


@pytest.mark.parametrize("stream", [False, True])
def test_responses_with_tools(live: Rig, models: Path, stream: bool) -> None:
    """A thought and a call by heart, its result, and what follows: one session, every token as it was sampled."""
    client = openai_of(live)
    items: Any = [{"role": "user", "content": "plan"}]
    options: Any = {"model": "clawrl", "tools": [FUNCTION], "max_output_tokens": 60, "extra_body": NEARLY_BY_HEART}
    options |= {"reasoning": {"effort": "low"}, "metadata": {"who": "me"}, "instructions": None}
    if stream:
        with client.responses.stream(input=items, **options) as events:
            first: Any = events.until_done().get_final_response()
    else:
        first = client.responses.create(input=items, **options)
    thought, call = first.output
    assert thought.type == "reasoning" and thought.content[0].text.strip() == "I need a tool."
    assert call.type == "function_call" and json.loads(call.arguments) == {"expression": "2+3"}
    items += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": "5"}]
    second = client.responses.create(input=items, **options)
    one, two = live.turns()
    assert one.trainable and two.trainable, (one.untrainable_reason, two.untrainable_reason)
    assert one.session_id == two.session_id and two.parent_id == one.id
    assert one.next_state == [{"role": "tool", "tool_call_id": call.call_id, "content": "5"}]
    assert one.next_state_provenance == ["tool"] and one.next_turn_id == two.id and one.state == "judging"
    assert CALL in decoded(models, one.completion_ids)
    assert second.output_text.strip() in decoded(models, two.completion_ids)
    assert one.completion_ids is not None and first.usage.output_tokens == len(one.completion_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_responses_continued_by_id(live: Rig, models: Path, stream: bool) -> None:
    client = openai_of(live)
    options: Any = {"model": "clawrl", "max_output_tokens": 40, "extra_body": NEARLY_BY_HEART}
    options["reasoning"] = {"effort": "none"}
    first = client.responses.create(input="hello", **options)
    if stream:
        *_, last = client.responses.create(input="and?", previous_response_id=first.id, stream=True, **options)
        second = last.response  # type: ignore[union-attr]
    else:
        second = client.responses.create(input="and?", previous_response_id=first.id, **options)
    assert first.output_text == BY_HEART["hello"][0]
    assert client.responses.retrieve(first.id).output_text == first.output_text
    one, two = live.turns()
    assert one.session_id == two.session_id and two.parent_id == one.id and one.trainable and two.trainable
    assert [message["role"] for message in two.messages] == ["user", "assistant", "user"]
    assert first.output_text in decoded(models, one.completion_ids)
    assert first.output_text in decoded(models, two.prompt_ids)
    assert second.output_text.strip() in decoded(models, two.completion_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_messages_with_tools(live: Rig, models: Path, stream: bool) -> None:
    """Two calls by heart, their results, and what follows: one session, every token as it was sampled."""
    client = anthropic_of(live)
    messages: Any = [{"role": "user", "content": "twice"}]
    options: Any = {"model": "clawrl", "tools": [TOOL], "max_tokens": 80, "extra_body": NEARLY_BY_HEART}
    options |= {"thinking": {"type": "disabled"}, "metadata": {"user_id": "somebody"}}
    if stream:
        with client.messages.stream(messages=messages, **options) as events:
            first: Any = events.get_final_message()
    else:
        first = client.messages.create(messages=messages, **options)
    assert [block.input for block in first.content] == [{"expression": "2+3"}, {"expression": "4*5"}]
    assert first.stop_reason == "tool_use"
    found = [{"type": "tool_result", "tool_use_id": block.id, "content": "5"} for block in first.content]
    messages += [first.to_param(), {"role": "user", "content": found}]
    second = client.messages.create(messages=messages, **options)
    one, two = live.turns()
    assert one.trainable and two.trainable, (one.untrainable_reason, two.untrainable_reason)
    assert one.session_id == two.session_id and two.parent_id == one.id
    assert one.next_state_provenance == ["tool", "tool"] and one.next_turn_id == two.id and one.state == "judging"
    assert [said["tool_call_id"] for said in one.next_state or ()] == [block.id for block in first.content]
    assert SECOND_CALL in decoded(models, one.completion_ids)
    assert one.completion_ids is not None and first.usage.output_tokens == len(one.completion_ids)
    for block in second.content:
        assert block.type != "text" or block.text.strip() in decoded(models, two.completion_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_block_of_its_own(live: Rig, models: Path, stream: bool) -> None:
    options: Any = {"model": "clawrl", "max_tokens": 60, "extra_body": NEARLY_BY_HEART}
    options["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    options["messages"] = [{"role": "user", "content": "think"}]
    if stream:
        with anthropic_of(live).messages.stream(**options) as events:
            message: Any = events.get_final_message()
    else:
        message = anthropic_of(live).messages.create(**options)
    thought, text = message.content
    assert thought.type == "thinking" and thought.thinking.strip() == "First this, then that."
    assert text.type == "text" and text.text.strip() == "The answer is 5." and message.stop_reason == "end_turn"
    assert live.turn().trainable
    assert "First this, then that." in decoded(models, live.turn().completion_ids)


def test_a_stop_sequence_is_named(live: Rig) -> None:
    lines: Any = [{"role": "user", "content": "lines"}]
    options: Any = {"model": "clawrl", "messages": lines, "max_tokens": 60, "extra_body": NEARLY_BY_HEART}
    options["thinking"] = {"type": "disabled"}
    stopped = anthropic_of(live).messages.create(stop_sequences=["three"], **options)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "three")


def test_tokens_are_counted_as_they_are_sampled_from(live: Rig) -> None:
    client = anthropic_of(live)
    asked: Any = {"model": "clawrl", "messages": [{"role": "user", "content": "add"}], "tools": [TOOL]}
    asked |= {"system": "Be brief.", "thinking": {"type": "disabled"}}
    counted = client.messages.count_tokens(**asked)
    message = client.messages.create(max_tokens=5, **asked)
    turn = live.turn()
    assert turn.prompt_ids is not None
    assert counted.input_tokens == message.usage.input_tokens == len(turn.prompt_ids)


def test_a_prompt_that_is_too_long(live: Rig) -> None:
    long = "word " * 2000
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError):
            openai_of(live).responses.create(model="clawrl", input=long, stream=stream)
        with pytest.raises(anthropic.BadRequestError) as caught:
            said: Any = [{"role": "user", "content": long}]
            anthropic_of(live).messages.create(model="clawrl", max_tokens=9, messages=said, stream=stream)
        body: Any = caught.value.body
        assert body["error"]["type"] == "invalid_request_error"
    assert live.turns() == []


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_a_client_that_leaves_cancels_in_the_engine(live: Rig, api: str) -> None:
    endless: Any = {"model": "clawrl", "stream": True, "extra_body": {"ignore_eos": True}}

    def leave() -> None:
        if api == "responses":
            stream: Any = openai_of(live).responses.create(input="tell me something", max_output_tokens=450, **endless)
        else:
            said: Any = [{"role": "user", "content": "tell me something"}]
            stream = anthropic_of(live).messages.create(messages=said, max_tokens=450, **endless)
        with stream as events:
            for _ in range(8):
                next(events)

    turn = live.turn_that_was_left(leave)
    assert turn.trainable, turn.untrainable_reason
    assert turn.completion_ids is not None and 0 < len(turn.completion_ids) < 450
