"""Replies that JSON or UTF-8 can't hold as they are: kept, so answered, for a repetition would double the turn."""

import json
from itertools import product
from typing import Any

import pytest
from api_clients import call_delta
from gateway_rig import Rig, ScriptedEngine, chunk, data, stream_of, usage, whole
from starlette.responses import Response

from clawrl_trl.gateway.translate.anthropic_reply import UNREADABLE

Json = dict[str, Any]

HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, Json] = {
    "/v1/messages": {"model": "clawrl", "max_tokens": 50, "messages": HELLO},
    "/v1/responses": {"model": "clawrl", "input": "hello"},
    "/v1/chat/completions": {"model": "clawrl", "messages": HELLO},
}


def script(rig: Rig, message: Json) -> None:
    """Let the engine say this, in JSON whose every character is of ASCII."""

    async def reply(engine: ScriptedEngine, body: Json) -> Response:
        if body.get("stream"):
            event = chunk(body, ("x",), 0)
            event["choices"][0]["delta"] = message
            return stream_of(data(event), data(usage(1)), b"data: [DONE]\n\n")
        completion = whole(body, ("x",))
        completion["choices"][0]["message"] = {"role": "assistant", **message}
        return Response(json.dumps(completion), media_type="application/json")

    rig.engine.script.append(reply)


@pytest.mark.parametrize("path", BODIES)
def test_arguments_that_are_no_json_are_answered(rig: Rig, path: str) -> None:
    values = ["Infinity", "NaN", "1e999", r'"\ud83d"']
    with rig.client() as http:
        for value, stream in product(values, (False, True)):
            arguments = f'{{"t": {value}}}'
            script(rig, {"content": None, **call_delta(0, "call_1", "add", arguments)})
            answer = http.post(path, json={**BODIES[path], "stream": stream})
            assert answer.status_code == 200, answer.text
            assert json.dumps(arguments)[1:-1] in answer.text
            if path == "/v1/messages" and not stream:
                assert answer.json()["content"][0]["input"] == {UNREADABLE: arguments}
    assert len(rig.turns()) == 2 * len(values)


@pytest.mark.parametrize("path", BODIES)
def test_half_a_character_is_answered(rig: Rig, path: str) -> None:
    with rig.client() as http:
        for stream in (False, True):
            script(rig, {"content": "half \ud83d of it"})
            answer = http.post(path, json={**BODIES[path], "stream": stream})
            assert answer.status_code == 200, answer.text
            assert "half ? of it" in answer.text
            if path == "/v1/responses" and not stream:
                assert " of it" in http.get(f"{path}/{answer.json()['id']}").text
    assert len(rig.turns()) == 2
