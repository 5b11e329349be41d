"""The exchange of a model inside vLLM's server, without vLLM: its order, its refusals, and what it tells clients.

A stand-in plays the part of vLLM's engine client, so that a load can fail half-way and a request can be anywhere. What
real workers do is tested in `tests/vllm`.
"""

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from transformers import Qwen3Config

from clawrl_trl.engines.vllm.compat import ApiServer
from clawrl_trl.engines.vllm.policy import ModelHolder, PolicyInPlace, Refusal
from clawrl_trl.engines.vllm.version_notes import RunningRequests


def model_folder(path: Path, **changes: Any) -> Path:
    Qwen3Config(vocab_size=48, hidden_size=32, num_hidden_layers=2, **changes).save_pretrained(path)
    save_file({"weight": torch.zeros(2, 2)}, path / "model.safetensors")
    return path


def request(name: str = "chatcmpl-x", *, index: int = 0, n: int = 1, lora: str | None = None, tokens: int = 0) -> Any:
    """What vLLM's output processor keeps of a request."""
    parent = SimpleNamespace(sampling_params=SimpleNamespace(n=n)) if n > 1 else None
    detokenizer = SimpleNamespace(num_output_tokens=lambda: tokens)
    return SimpleNamespace(
        external_req_id=name, request_index=index, parent_req=parent, lora_name=lora, detokenizer=detokenizer
    )


class FakeProcessor:
    """vLLM's output processor, as far as `ModelHolder` looks at it."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, asked: Any) -> None:
        self.request_states[asked.request_id] = asked.state


class FakeEngine:
    """vLLM's engine client: it writes down what it is told, and fails to load what it is told to fail at."""

    def __init__(self, folder: Path) -> None:
        config = Qwen3Config.from_pretrained(folder)
        self.model_config = SimpleNamespace(model=str(folder), revision=None, hf_config=config)
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(_api_process_count=1))
        self.output_processor = FakeProcessor()
        self.engine_core = SimpleNamespace(outputs_queue=asyncio.Queue())
        self.told: list[str] = []
        self.broken: set[str] = set()

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert mode == "keep" and clear_cache
        self.told.append("pause")
        if "pause" in self.broken:
            raise RuntimeError("the cache could not be cleared")

    async def resume_generation(self) -> None:
        self.told.append("resume")

    async def collective_rpc(self, method: str, args: tuple[str, ...]) -> list[None]:
        assert method == "load_policy"
        self.told.append(Path(args[0]).name)
        if Path(args[0]).name in self.broken:
            raise RuntimeError("a tensor does not fit")
        return [None]

    def generate(self) -> None:
        raise AssertionError("nothing is generated here")


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine(model_folder(tmp_path / "first"))


def state_of(engine: FakeEngine) -> Any:
    paths = [SimpleNamespace(name="base", model_path="first")]
    models = SimpleNamespace(base_model_paths=paths, lora_requests={"policy-v9": object()})
    return SimpleNamespace(engine_client=engine, openai_serving_models=models)


def holder_of(engine: FakeEngine) -> ModelHolder:
    return ModelHolder(ApiServer(state_of(engine)))


async def test_freeze_load_go_on(engine: FakeEngine, tmp_path: Path) -> None:
    state = state_of(engine)
    holder = ModelHolder(ApiServer(state))
    names = state.openai_serving_models.base_model_paths
    two = model_folder(tmp_path / "two")
    await holder.load("policy-v2", two)
    await holder.load("policy-v2", two)
    assert engine.told == ["pause", "two", "resume"]
    assert [one.name for one in names] == ["base", "policy-v2", "policy"]
    assert state.openai_serving_models.lora_requests == {}
    await holder.load("base", None)
    assert engine.told[3:] == ["pause", "first", "resume"] and [one.name for one in names] == ["base"]


async def test_another_runs_policy_of_the_same_name_is_exchanged(engine: FakeEngine, tmp_path: Path) -> None:
    holder = holder_of(engine)
    for run in ("theirs", "ours"):
        await holder.load("policy-v1", model_folder(tmp_path / run))
    assert engine.told == ["pause", "theirs", "resume", "pause", "ours", "resume"]


async def test_what_fails_half_way_is_undone(engine: FakeEngine, tmp_path: Path) -> None:
    holder = holder_of(engine)
    await holder.load("policy-v1", model_folder(tmp_path / "one"))
    engine.broken = {"two"}
    with pytest.raises(Refusal, match="a tensor does not fit"):
        await holder.load("policy-v2", model_folder(tmp_path / "two"))
    assert engine.told[3:] == ["pause", "two", "one", "resume"] and holder.name == "policy-v1"


async def test_a_pause_that_fails_freezes_nothing(engine: FakeEngine, tmp_path: Path) -> None:
    holder, folder = holder_of(engine), model_folder(tmp_path / "one")
    engine.broken = {"pause"}
    with pytest.raises(RuntimeError, match="the cache could not be cleared"):
        await holder.load("policy-v1", folder)
    assert engine.told == ["pause", "resume"] and holder.name == "base"
    engine.broken = set()
    await holder.load("policy-v1", folder)
    assert engine.told[2:] == ["pause", "one", "resume"] and holder.name == "policy-v1"


async def test_what_cannot_be_undone_ends_the_server(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", ended.append)
    engine.broken = {"first", "one"}
    with pytest.raises(RuntimeError, match="a tensor does not fit"):
        await holder_of(engine).load("policy-v1", model_folder(tmp_path / "one"))
    assert ended == [signal.SIGTERM] and "resume" not in engine.told


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("policy-v1", {"vocab_size": 50}, "vocab_size is 50, the model's is 48"),
        ("policy-v1", {"tie_word_embeddings": True}, "tie_word_embeddings is True, the model's is False"),
        ("policy", {}, "no name of a policy"),
    ],
)
async def test_refused_before_anything_is_frozen(
    engine: FakeEngine, tmp_path: Path, name: str, changes: dict[str, Any], reason: str
) -> None:
    folder = tmp_path / "one"
    Qwen3Config(**{"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, **changes}).save_pretrained(folder)
    save_file({"weight": torch.zeros(2, 2)}, folder / "model.safetensors")
    with pytest.raises(Refusal, match=reason):
        await holder_of(engine).load(name, folder)
    for missing in (None, tmp_path / "nowhere"):
        with pytest.raises(Refusal):
            await holder_of(engine).load("policy-v1", missing)
    assert engine.told == []


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"weight": torch.zeros(2, 3)}, "weight has shape"),
        ({"lm_head.weight": torch.zeros(2, 2)}, None),
        ({}, "lacks 1 tensors"),
        (None, "can't be read"),
    ],
)
async def test_weights_are_looked_at_before_anything_is_frozen(
    engine: FakeEngine, tmp_path: Path, weights: dict[str, torch.Tensor] | None, reason: str | None
) -> None:
    folder = model_folder(tmp_path / "one")
    path = folder / "model.safetensors"
    if weights is None:
        path.write_bytes(path.read_bytes()[:-4])
    else:
        save_file(weights, path)
    holder = holder_of(engine)
    if reason is None:  # another name for what the first model has: vLLM knows best
        await holder.load("policy-v1", folder)
        return
    with pytest.raises(Refusal, match=reason):
        await holder.load("policy-v1", folder)
    assert engine.told == []


async def test_each_request_is_told_where_the_new_version_begins(engine: FakeEngine, tmp_path: Path) -> None:
    holder = holder_of(engine)
    running = holder.running
    chat, several, adapted, nobody = (running.begin() for _ in range(4))
    asked = {
        "chat": request(f"chatcmpl-{chat}", tokens=7),
        "first of the second prompt": request(f"cmpl-{several}-1", index=0, n=2, tokens=3),
        "second of the second prompt": request(f"cmpl-{several}-1", index=1, n=2, tokens=4),
        "adapted": request(f"chatcmpl-{adapted}", lora="policy-v9", tokens=5),
        "somebody's": request("resp_0123"),
        "named by its client": request("chatcmpl-my-own-id-1"),
    }
    for name, state in asked.items():
        engine.output_processor.add_request(SimpleNamespace(request_id=name, state=state))
    await holder.load("policy-v1", model_folder(tmp_path / "one"))
    assert running.take(chat) == [(0, 0, 0), (0, 7, 1)]
    assert running.take(several) == [(2, 0, 0), (3, 0, 0), (2, 3, 1), (3, 4, 1)]
    assert running.take(adapted) == [(0, 0, 9), (0, 5, -1)]
    assert running.take(nobody) == []
    late = running.begin()
    engine.output_processor.add_request(SimpleNamespace(request_id="late", state=request(f"chatcmpl-{late}")))
    assert running.take(late) == [(0, 0, 1)]


async def test_a_request_under_a_grammar_is_told(engine: FakeEngine) -> None:
    running = holder_of(engine).running
    strict, free = running.begin(), running.begin()
    for request_id, grammar in ((strict, object()), (free, None)):
        asked = SimpleNamespace(
            request_id=request_id,
            state=request(f"chatcmpl-{request_id}"),
            sampling_params=SimpleNamespace(structured_outputs=grammar),
        )
        engine.output_processor.add_request(asked)
    assert running.is_constrained(strict) and not running.is_constrained(free)
    running.end(strict)
    assert not running.is_constrained(strict)


async def test_what_was_sampled_before_the_freeze_is_counted_first(engine: FakeEngine, tmp_path: Path) -> None:
    """Outputs may still be on their way through the server's own queue when the scheduler stands still."""
    holder = holder_of(engine)
    request_id = holder.running.begin()
    counted = [2]
    state = request(f"chatcmpl-{request_id}")
    state.detokenizer = SimpleNamespace(num_output_tokens=lambda: counted[0])
    engine.output_processor.add_request(SimpleNamespace(request_id="one", state=state))
    queue: asyncio.Queue[int] = engine.engine_core.outputs_queue
    for output in (3, 4):
        queue.put_nowait(output)

    async def count() -> None:
        while True:
            output = await queue.get()
            for _ in range(20):
                await asyncio.sleep(0)
            counted[0] = output

    counting = asyncio.create_task(count())
    await holder.load("policy-v1", model_folder(tmp_path / "one"))
    counting.cancel()
    assert holder.running.take(request_id)[-1] == (0, 4, 1)


def served(reply: Callable[[Request, RunningRequests], Awaitable[Response]], engine: FakeEngine) -> TestClient:
    """The middleware around a route that adds notes as the server would."""

    async def route(asked: Request) -> Response:
        return await reply(asked, running())

    app: Any = Starlette(routes=[Route("/v1/chat/completions", route, methods=["POST"])])
    app.state = state_of(engine)
    app.add_api_route = lambda *args, **kwargs: None
    app.add_middleware(PolicyInPlace)

    def running() -> RunningRequests:
        layer = app.middleware_stack
        while not isinstance(layer, PolicyInPlace):
            layer = layer.app
        assert layer._holder is not None
        return layer._holder.running

    return TestClient(app)


def test_a_stream_has_notes_as_events_and_a_whole_reply_as_a_header(engine: FakeEngine) -> None:
    async def reply(asked: Request, running: RunningRequests) -> Response:
        state = request(f"chatcmpl-{asked.headers['x-request-id']}")
        running.note(state, 0, 4)
        if not (await asked.json()).get("stream"):
            return JSONResponse({"choices": []})

        async def events() -> Any:
            yield b"data: 1\n\n"
            running.note(state, 1, 5)
            yield b"data: 2\n\n"
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    with served(reply, engine) as http:
        wanted = {"x-policy-versions": "1", "x-request-id": "the-clients-own"}
        whole = http.post("/v1/chat/completions", json={}, headers=wanted)
        assert json.loads(whole.headers["x-policy-versions"]) == [[0, 0, 4]]
        text = http.post("/v1/chat/completions", json={"stream": True}, headers=wanted).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert [json.loads(line) for line in lines[:-1]] == [
        {"policy_versions": [[0, 0, 4]], "constrained": False, "choices": []},
        1,
        {"policy_versions": [[0, 1, 5]], "constrained": False, "choices": []},
        2,
    ]
    assert lines[-1] == "[DONE]"


def test_who_does_not_ask_hears_nothing_of_versions(engine: FakeEngine) -> None:
    async def reply(asked: Request, running: RunningRequests) -> Response:
        return JSONResponse({"id": asked.headers["x-request-id"]})

    with served(reply, engine) as http:
        answer = http.post("/v1/chat/completions", json={}, headers={"x-request-id": "mine"})
    assert answer.json() == {"id": "mine"} and "x-policy-versions" not in answer.headers
