"""Packed scores: what is packed is read, and nothing else; an engine without the route is asked plainly."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.engines.client import EngineClient
from clawrl_trl.engines.errors import EngineError
from clawrl_trl.engines.scores import SCORES_PATH, make_packed_call, pack_scores, read_packed
from clawrl_trl.engines.sync_client import SyncEngineClient
from clawrl_trl.messages import Json

CONTEXT, SCORED = [1, 2, 3], [7, 8]


def pack(rows: int, k: int, seed: int) -> tuple[Json, Any, Any, Any]:
    numbers = np.random.default_rng(seed)
    logprobs = -numbers.random(rows, dtype=np.float32)
    ids = np.argsort(numbers.random((rows, 200)), axis=1)[:, :k].astype(np.int32)
    values = -numbers.random((rows, k), dtype=np.float32)
    return json.loads(json.dumps(pack_scores(logprobs, ids, values))), logprobs, ids, values


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_what_is_packed_is_read(rows: int, k: int, seed: int) -> None:
    reply, logprobs, ids, values = pack(rows, k, seed)
    scores = read_packed(reply, range(rows), k)
    assert scores.logprobs == [float(value) for value in logprobs]
    for row in range(rows):
        assert scores.top[row] == {int(ids[row, slot]): float(values[row, slot]) for slot in range(k)}
        assert list(scores.top[row]) == list(map(int, ids[row])), "the likeliest first"


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: reply.pop("top_ids"),
        lambda reply: reply.update(logprobs="?"),
        lambda reply: reply.update(logprobs=None),
        lambda reply: reply.update(logprobs=reply["logprobs"][:-4]),
        lambda reply: reply.update(pack(3, 4, 0)[0]),
        lambda reply: reply.update(pack(2, 3, 0)[0]),
        lambda reply: reply.update(
            pack_scores(np.float32([-1, np.nan]), np.zeros((2, 4), "i4"), np.ones((2, 4), "f4"))
        ),
    ],
)
def test_what_does_not_cover_the_question_is_an_error(change: Any) -> None:
    reply = pack(2, 4, 1)[0]
    read_packed(reply, SCORED, 4)
    change(reply)
    with pytest.raises(EngineError) as caught:
        read_packed(reply, SCORED, 4)
    assert caught.value.status == 502


@pytest.mark.parametrize(("context", "scored", "k"), [([], [1], 0), ([1], [], 0), ([1], [2], -1)])
def test_what_can_not_be_scored_is_no_call(context: list[int], scored: list[int], k: int) -> None:
    with pytest.raises(ValueError):
        make_packed_call(context, scored, "base", k)


class Engine:
    """An engine that scores packed, or in vLLM's dialect alone, and knows one model."""

    def __init__(self, *, packed: bool) -> None:
        self._packed = packed
        self.paths: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.paths.append(request.url.path)
        if request.url.path == SCORES_PATH and not self._packed:
            return httpx.Response(404, json={"detail": "Not Found"})
        if body["model"] != "base":
            return httpx.Response(404, json={"error": {"message": "no such model", "param": "model"}})
        if request.url.path == SCORES_PATH:
            return httpx.Response(200, json=pack(len(body["prompt"]) - body["start"], body["top_k"], 1)[0])
        entries = [None, *({str(token): {"logprob": -1.0, "rank": 1}} for token in body["prompt"][1:])]
        return httpx.Response(200, json={"choices": [{"prompt_logprobs": entries}]})


@contextmanager
def asked(engine: Engine, kind: str) -> Iterator[Any]:
    """A function that asks an engine for scores through a client of this kind."""
    transport = httpx.MockTransport(engine)
    if kind == "synchronous":
        with SyncEngineClient("http://engine") as client:
            client._http = httpx.Client(transport=transport)
            yield lambda model: client.prompt_logprobs(CONTEXT, SCORED, model=model, top_k=2)
        return
    with asyncio.Runner() as runner:
        other = EngineClient("http://engine")
        other._http = httpx.AsyncClient(transport=transport)
        yield lambda model: runner.run(other.prompt_logprobs(CONTEXT, SCORED, model=model, top_k=2))
        runner.run(other.aclose())


@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
def test_an_engine_without_the_route_is_asked_plainly_from_then_on(kind: str) -> None:
    plain = Engine(packed=False)
    with asked(plain, kind) as ask:
        with pytest.raises(EngineError, match="404"):
            ask("policy-v1")
        assert ask("base").logprobs == ask("base").logprobs == [-1.0, -1.0]
    assert plain.paths == [*([SCORES_PATH, "/v1/completions"] * 2), "/v1/completions"]


@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
def test_an_engine_with_the_route_is_asked_there_alone(kind: str) -> None:
    ours = Engine(packed=True)
    with asked(ours, kind) as ask:
        with pytest.raises(EngineError, match="no such model"):
            ask("policy-v1")
        assert len(ask("base").top[0]) == 2
    assert ours.paths == [SCORES_PATH, SCORES_PATH]
