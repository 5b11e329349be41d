"""`/v1/responses` through the official client: said as OpenAI says it, captured as chat completions are."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from api_clients import PARAMETERS, call_delta, more_arguments, named_events, openai_of, says_all
from gateway_rig import (
    PROMPT_IDS,
    Rig,
    chunk,
    data,
    endless,
    fails,
    hangs_up,
    pauses,
    running,
    says,
    streams,
    usage,
    wait_until,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_engine import RealEngine
from test_gateway_input import values
from transformers import AutoTokenizer

from clawrl_trl.gateway.auth import Keys
from clawrl_trl.ledger import schema, turns
from clawrl_trl.tiny import MODEL_PATH

Json = dict[str, Any]

PATH = "/v1/responses"
CALCULATOR: Any = {
    "type": "function",
    "name": "calculator",
    "description": "Compute.",
    "parameters": PARAMETERS,
    "strict": True,
}
QUESTION = "Tom has 5 apples. He buys 7 more apples. How many apples does Tom have now?"
SUMS = call_delta(0, "call_1", "add", '{"a"'), more_arguments(0, ": 1}"), call_delta(1, "call_2", "sub", "{}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("shared")) as rig:
        yield rig


@pytest.fixture(scope="module")
def http(shared: Rig) -> Iterator[httpx.Client]:
    with shared.client() as client:
        yield client


def session_of(rig: Rig, turn: schema.Turn) -> schema.Session:
    with rig.ledger.reader() as tx:
        session = tx.get(schema.Session, turn.session_id)
        assert session is not None
        return session


# What is asked of the engine


def test_the_engine_is_asked_for_a_chat_completion(rig: Rig) -> None:
    response = openai_of(rig).responses.create(
        model="clawrl",
        instructions="Be brief.",
        input="hello",
        max_output_tokens=50,
        temperature=0.7,
        top_p=1.0,
        metadata={"who": "me"},
        prompt_cache_key="key",
        reasoning={"effort": "low"},
        tools=[CALCULATOR],
        tool_choice="auto",
        parallel_tool_calls=False,
        extra_body={"seed": 3, "top_k": 0},
    )
    asked = rig.engine.requests[0]
    assert asked["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert (asked["max_completion_tokens"], asked["temperature"], asked["seed"]) == (50, 0.7, 3)
    function = {"name": "calculator", "description": "Compute.", "parameters": PARAMETERS}
    assert asked["tools"] == [{"type": "function", "function": function}]
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("auto", False)
    assert asked["chat_template_kwargs"] == {"enable_thinking": True}
    assert asked["return_token_ids"] is True and asked["logprobs"] is True
    assert response.instructions == "Be brief." and response.metadata == {"who": "me"}
    assert response.max_output_tokens == 50 and response.temperature == 0.7
    assert response.parallel_tool_calls is False and response.tools[0].to_dict()["strict"] is False
    turn = rig.turn()
    assert turn.trainable and turn.provenance == ["system", "owner"]
    assert session_of(rig, turn).identity_source == "body:prompt_cache_key"


def test_items_become_messages(rig: Rig) -> None:
    image = "data:image/png;base64,AAAA"
    items: Any = [
        {"role": "developer", "content": "Rules."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": image}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "see", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": image}],
        },
        {"role": "assistant", "content": "It is 2."},
        {"role": "assistant", "content": "Or so."},
        {"role": "user", "content": "thanks"},
    ]
    openai_of(rig).responses.create(model="clawrl", instructions="Be brief.", input=items)
    part = {"type": "image_url", "image_url": {"url": image}}
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "see", "arguments": "{}"}},
    ]
    assert rig.engine.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief.\n\nRules."},
        {"role": "user", "content": [{"type": "text", "text": "look"}, part]},
        {"role": "assistant", "content": "Let me see.", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "seen"},
        {"role": "user", "content": [{"type": "text", "text": "Attached image(s) from tool result:"}, part]},
        {"role": "assistant", "content": "It is 2."},
        {"role": "assistant", "content": "Or so."},
        {"role": "user", "content": "thanks"},
    ]
    sources = ["system", "owner", "assistant", "tool", "tool", "tool", "assistant", "assistant", "owner"]
    assert rig.turn().provenance == sources


def test_a_format_is_passed_on_and_the_turn_marked(rig: Rig) -> None:
    schema_of_it = {"type": "object", "properties": {}}
    form: Any = {"type": "json_schema", "name": "it", "schema": schema_of_it, "strict": True}
    openai_of(rig).responses.create(model="clawrl", input="hello", text={"format": form})
    wanted = {"name": "it", "schema": schema_of_it, "strict": True}
    assert rig.engine.requests[0]["response_format"] == {"type": "json_schema", "json_schema": wanted}
    assert rig.turn().untrainable_reason == "constrained: response_format json_schema"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [CALCULATOR, {"type": "mcp", "server_label": "x"}]}, "tools.1.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools.0.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CALCULATOR], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input.0.content.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text"),
        ({"input": [{"role": "user", "content": 5}]}, "input.0.content"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x", "summary": []}]}, "input.0.encrypted_content"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"n": 2}, "n"),
        ({"surprise": 1}, "surprise"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_what_can_not_be_translated_is_named(http: httpx.Client, shared: Rig, change: Json, param: str) -> None:
    before = len(shared.engine.requests)
    answer = http.post(PATH, json={"model": "clawrl", "input": "hello", **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert len(shared.engine.requests) == before


def test_what_changes_no_reply_is_accepted(http: httpx.Client) -> None:
    idle = {
        "include": ["reasoning.encrypted_content"],
        "service_tier": "auto",
        "truncation": "disabled",
        "background": False,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "text": {"verbosity": "medium"},
        "stream_options": {"include_obfuscation": False},
        "conversation": None,
    }
    assert http.post(PATH, json={"input": "hello", **idle}).status_code == 200


items = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"]) | values,
        "role": st.sampled_from(["user", "assistant", "system", "developer"]) | values,
        "content": st.text(max_size=9)
        | st.lists(
            st.fixed_dictionaries(
                {}, optional={"type": st.sampled_from(["input_text", "output_text", "input_image"]), "text": values}
            ),
            max_size=2,
        )
        | values,
        **dict.fromkeys(("call_id", "name", "arguments", "output", "summary"), values),
    },
)
bodies = st.fixed_dictionaries(
    {"input": st.text(max_size=9) | st.lists(items | values, max_size=4) | values},
    optional={
        **dict.fromkeys(("model", "instructions", "stream", "tools", "tool_choice", "text", "reasoning"), values),
        **dict.fromkeys(("include", "metadata", "max_output_tokens", "previous_response_id", "store"), values),
        **dict.fromkeys(("session_id", "chat_template_kwargs", "user"), values),
    },
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
def test_no_body_is_a_fault_of_ours(http: httpx.Client, body: Json) -> None:
    answer = http.post(PATH, content=json.dumps(body))
    assert answer.status_code in (200, 400, 404), (answer.status_code, answer.text)
    if answer.status_code != 200:
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


# What the client is told


def test_a_plain_response(rig: Rig) -> None:
    rig.engine.script.append(
        says_all({"reasoning_content": "hm"}, {"content": "\n\n"}, *SUMS, finish_reason="tool_calls")
    )
    raw = openai_of(rig).responses.with_raw_response.create(model="clawrl", input="hello", tools=[CALCULATOR])
    response, turn = raw.parse(), rig.turn()
    assert response.id == turn.completion_id == f"resp_{turn.id}" and raw.headers["x-clawrl-turn-id"] == turn.id
    thought, add, sub = response.output
    assert thought.type == "reasoning" and thought.content is not None and thought.content[0].text == "hm"
    assert add.type == "function_call" and (add.call_id, add.name, add.arguments) == ("call_1", "add", '{"a": 1}')
    assert sub.type == "function_call" and (sub.call_id, sub.name, sub.arguments) == ("call_2", "sub", "{}")
    assert response.status == "completed" and response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (3, 5, 8)
    assert turn.trainable and turn.finish_reason == "tool_calls"
    assert turn.prompt_ids is not None and turn.prompt_ids.tolist() == PROMPT_IDS


def test_a_note_on_versions_before_the_reply_is_no_part_of_it(rig: Rig) -> None:
    """vLLM with a whole model in place says under which version a reply is sampled, before its first event."""
    events = [chunk({"model": "base"}, ("one", " two"), position) for position in range(2)]
    note = {"policy_versions": [[0, 0, 0]], "choices": []}
    rig.engine.script.append(streams(*map(data, (note, *events, usage(2))), b"data: [DONE]\n\n"))
    assert openai_of(rig).responses.create(model="clawrl", input="hello").output_text == "one two"
    assert rig.turn().trainable


def test_a_streamed_response_event_by_event(rig: Rig) -> None:
    deltas = {"reasoning_content": "hm"}, {"content": "So"}, {"content": "."}, *SUMS
    rig.engine.script.append(says_all(*deltas, finish_reason="tool_calls"))
    with rig.client() as http:
        events = named_events(http.post(PATH, json={"input": "hello", "stream": True}))
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert [name.removeprefix("response.") for name, _ in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert rig.turn().response["reasoning_content"] == "hm"
    assert rig.turn().response["content"] == "So."


def test_the_sdk_puts_a_stream_together(rig: Rig) -> None:
    rig.engine.script.append(says_all({"content": "So"}, *SUMS, finish_reason="tool_calls"))
    tools = [{**CALCULATOR, "name": name} for name in ("add", "sub")]
    with openai_of(rig).responses.stream(model="clawrl", input="hello", tools=tools) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == "So"
    calls = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    assert calls == [("add", '{"a": 1}'), ("sub", "{}")]
    assert final.usage is not None and final.usage.output_tokens == 4


def test_the_last_event_waits_for_the_commit(rig: Rig) -> None:
    rig.engine.script.append(pauses(("one", " two"), (" three",)))
    seen = []
    for event in openai_of(rig).responses.create(model="clawrl", input="hello", stream=True):
        if event.type == "response.output_text.delta":
            seen.append(event.delta)
            assert len(seen) == 3 or rig.turns() == []
            if len(seen) == 2:
                rig.engine.go_on.set()
        elif event.type == "response.completed":
            assert rig.turn().finish_reason == "stop"
    assert seen == ["one", " two", " three"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_cut_by_its_length_is_incomplete(rig: Rig, stream: bool) -> None:
    rig.engine.script.append(says_all({"content": "one"}, finish_reason="length"))
    client = openai_of(rig)
    if stream:
        *_, last = client.responses.create(model="clawrl", input="hello", max_output_tokens=1, stream=True)
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = client.responses.create(model="clawrl", input="hello", max_output_tokens=1)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    message = response.output[0]
    assert message.type == "message" and message.status == "incomplete"


def test_errors_have_openais_shape(rig: Rig) -> None:
    client = openai_of(rig)
    rig.engine.script.append(fails(400, "This model's maximum context length is 10 tokens."))
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.responses.create(model="clawrl", input="hello")
    rig.engine.script.append(fails(429, "too many"))
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="clawrl", input="hello", stream=True)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.responses.create(model="gpt-9", input="hello")
    assert rig.turns() == []


def test_a_stream_that_breaks_off_says_so(rig: Rig) -> None:
    rig.engine.script.append(hangs_up("one", " two"))
    with rig.client() as http:
        events = named_events(http.post(PATH, json={"input": "hello", "stream": True}))
    (_, error), (_, failed) = events[-2:]
    assert error["type"] == "error" and error["code"] == "engine_unavailable" and error["message"]
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert rig.turn().finish_reason == "abort" and rig.turn().response["content"] == "one two"


def test_a_client_that_leaves_cancels_and_what_was_sampled_is_kept(rig: Rig) -> None:
    rig.engine.script.append(endless("one", " two"))
    with openai_of(rig).responses.create(model="clawrl", input="hello", stream=True) as stream:
        deltas = (event for event in stream if event.type == "response.output_text.delta")
        assert [next(deltas).delta, next(deltas).delta] == ["one", " two"]
    assert rig.engine.hung_up.wait(10)
    wait_until(lambda: rig.gateway.in_flight == 0 and len(rig.turns()) > 0)
    turn = rig.turn()
    assert turn.finish_reason == "abort" and turn.trainable and turn.completion_ids is not None
    assert turn.completion_ids.tolist() == [100, 101]


# Conversations


def test_a_response_is_continued_by_its_id(rig: Rig) -> None:
    client = openai_of(rig)
    first = client.responses.create(model="clawrl", instructions="Be brief.", input="hello")
    client.responses.create(model="clawrl", input="hello")  # looks alike, and is another conversation
    rig.engine.script.append(says_all(*SUMS, finish_reason="tool_calls"))
    second = client.responses.create(
        model="clawrl", instructions="Be kind.", input="sum up", previous_response_id=first.id, tools=[CALCULATOR]
    )
    results: Any = [{"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (1, 2)]
    client.responses.create(model="clawrl", input=results, previous_response_id=second.id)
    messages = rig.engine.requests[-1]["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user", "assistant", "tool", "tool"]
    assert rig.engine.requests[-2]["messages"][0] == {"role": "system", "content": "Be kind."}
    one, other, two, three = rig.turns()
    assert one.session_id == two.session_id == three.session_id != other.session_id
    assert two.parent_id == one.id and three.parent_id == two.id
    assert one.next_state == [{"role": "user", "content": "sum up"}] and one.state == "judging"
    assert two.next_state_provenance == ["tool", "tool"]
    assert other.next_state is None


def test_a_conversation_sent_in_full_is_one_session(rig: Rig) -> None:
    client = openai_of(rig)
    rig.engine.script += [says_all({"reasoning_content": "hm"}, *SUMS, finish_reason="tool_calls"), says("three")]
    items: Any = [{"role": "user", "content": "sum up"}]
    first = client.responses.create(model="clawrl", input=items, tools=[CALCULATOR], store=False)
    items += [item.to_dict() for item in first.output]
    items += [{"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (1, 2)]
    second = client.responses.create(model="clawrl", input=items, tools=[CALCULATOR], store=False)
    items += [*second.output, {"role": "user", "content": "thanks"}]
    client.responses.create(model="clawrl", input=items, tools=[CALCULATOR], store=False)
    one, two, three = rig.turns()
    assert one.session_id == two.session_id == three.session_id
    assert one.next_state_provenance == ["tool", "tool"] and two.next_state_provenance == ["owner"]
    assert (two.parent_id, three.parent_id) == (one.id, two.id)
    assert all(turn.trainable and turn.kind == "main" for turn in (one, two, three))


def test_ids_of_sessions_are_those_of_chat(rig: Rig) -> None:
    client = openai_of(rig)
    client.responses.create(model="clawrl", input="a", extra_headers={"X-Session-Id": "by-header"})
    client.responses.create(model="clawrl", input="b", extra_body={"session_id": "by-body", "session_done": True})
    client.responses.create(model="clawrl", input="c", extra_body={"turn_type": "side"})
    with rig.client() as http:
        assert http.post("/s/by-url/v1/responses", json={"input": "d"}).status_code == 200
    with rig.ledger.reader() as tx:
        found = {name: turns.find_session(tx, name) for name in ("by-header", "by-body", "by-url")}
    assert all(found.values()) and found["by-body"] is not None and found["by-body"].done
    assert [turn.kind for turn in rig.turns()] == ["main", "main", "side", "main"]
    assert not {"session_id", "session_done", "turn_type"} & rig.engine.requests[1].keys()


def test_a_response_is_its_owners(tmp_path: Path) -> None:
    with running(tmp_path, keys=Keys(chat=("alice-key", "bob-key"))) as rig:
        alice, bob = openai_of(rig, "alice-key"), openai_of(rig, "bob-key")
        secret = alice.responses.create(model="clawrl", input="my secret")
        with pytest.raises(openai.BadRequestError) as caught:
            bob.responses.create(model="clawrl", input="tell me", previous_response_id=secret.id)
        assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"
        for forbidden in (bob.responses.retrieve, bob.responses.delete):
            with pytest.raises(openai.NotFoundError):
                forbidden(secret.id)
        with pytest.raises(openai.AuthenticationError):
            openai_of(rig, "wrong").responses.create(model="clawrl", input="x")
        assert alice.responses.retrieve(secret.id).output_text == "one two three"
        assert len(rig.turns()) == 1


def test_a_response_is_fetched_as_it_was_made_and_deleted(rig: Rig) -> None:
    client = openai_of(rig)
    rig.engine.script.append(
        says_all({"reasoning_content": "hm"}, {"content": "So."}, *SUMS, finish_reason="tool_calls")
    )
    options: Any = {"instructions": "Be brief.", "metadata": {"a": "b"}, "tools": [CALCULATOR], "temperature": 0.5}
    made = client.responses.create(model="clawrl", input=[{"role": "system", "content": "Rules."}], **options)
    again = client.responses.retrieve(made.id)
    assert again.to_dict() | {"completed_at": 0} == made.to_dict() | {"completed_at": 0}
    client.responses.delete(made.id)
    for gone in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            gone(made.id)
    assert rig.turns() == []


def test_a_deleted_response_leaves_the_disk(rig: Rig) -> None:
    client = openai_of(rig)
    made = client.responses.create(model="clawrl", input="hello")
    folder = Path(rig.ledger.where).parent

    def on_disk() -> bool:
        """Whether its row is there; text is compressed, an id is not."""
        return any(made.id.encode() in file.read_bytes() for file in folder.glob("ledger.db*"))

    assert on_disk()
    client.responses.delete(made.id)
    assert not on_disk()


def test_a_response_that_is_not_stored_is_captured_and_hidden(rig: Rig) -> None:
    client = openai_of(rig)
    hidden = client.responses.create(model="clawrl", input="hello", store=False)
    chat = client.chat.completions.create(model="clawrl", messages=[{"role": "user", "content": "hello"}])
    assert len(rig.turns()) == 2 and all(turn.trainable for turn in rig.turns())
    for name in (hidden.id, chat.id, "resp_nothing"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="clawrl", input="x", previous_response_id=name)


def test_nothing_below_goes_to_the_engine(http: httpx.Client, shared: Rig) -> None:
    assert http.get(PATH).status_code == 405
    assert http.post(f"{PATH}/resp_1/cancel").status_code == 404
    assert http.get(f"{PATH}/resp_1/input_items").status_code == 404
    assert not [path for _, path, _ in shared.engine.others if path.startswith(PATH)]


# With the bundled model


@pytest.mark.xdist_group("bundled model")
@pytest.mark.parametrize("stream", [False, True])
def test_two_turns_with_the_bundled_model(tiny: RealEngine, tmp_path: Path, stream: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
    with running(tmp_path, engine_url=tiny.url, max_model_len=512) as rig:
        client = openai_of(rig)
        said: list[Any] = []
        for words in (QUESTION, "Thanks, that is just right!"):
            options: Any = {"model": "clawrl", "input": words, "max_output_tokens": 120, "extra_body": {"seed": 0}}
            options["previous_response_id"] = said[-1].id if said else None
            if stream:
                *_, last = client.responses.create(stream=True, **options)
                said.append(last.response)  # type: ignore[union-attr]
            else:
                said.append(client.responses.create(**options))
        one, two = rig.turns()
        assert one.session_id == two.session_id and two.parent_id == one.id
        assert one.state == "judging" and one.next_state == [
            {"role": "user", "content": "Thanks, that is just right!"}
        ]
        assert one.next_state_provenance == ["owner"]
        for turn, response in zip((one, two), said, strict=True):
            assert turn.trainable and turn.completion_ids is not None
            assert tokenizer.decode(turn.completion_ids, skip_special_tokens=True) == response.output_text != ""
