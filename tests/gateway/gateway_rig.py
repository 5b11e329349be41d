"""A real gateway on a real port, and an engine over HTTP that does what a test tells it to.

The scripted engine stands in for the real one only where a real one can't be made to fail on demand: errors, cut
streams, silence, missing ids. It records the requests it got and whether their client hung up.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.gateway import probe
from clawrl_trl.gateway.app import make_app
from clawrl_trl.gateway.auth import Keys
from clawrl_trl.gateway.service import Gateway
from clawrl_trl.http.server import listen
from clawrl_trl.ledger import Ledger, policies, schema
from clawrl_trl.run import RunFolder

Behaviour = Callable[["ScriptedEngine", dict[str, Any]], Awaitable[Response]]

ENGINE_KEY = "engine-key"
PROMPT_IDS = [11, 12, 13]


class ServerThread:
    """A uvicorn server in a thread, listening once `start` returns."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self.socket = listen("127.0.0.1", port)
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(
            app, log_level="warning", lifespan="on", timeout_keep_alive=75, timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.ready = threading.Event()

    def start(self) -> "ServerThread":
        startup = self.server.startup

        async def watched(sockets: Any = None) -> None:
            await startup(sockets)
            self.ready.set()

        self.server.startup = watched  # type: ignore[method-assign]
        self.thread.start()
        assert self.ready.wait(30)
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.socket.close()


@dataclass
class ScriptedEngine:
    """An engine of which a test says, request by request, what it does; by default it says "one two three"."""

    script: list[Behaviour] = field(default_factory=list)
    base: str = "base"
    owner: str = "somebody"
    requests: list[dict[str, Any]] = field(default_factory=list)
    others: list[tuple[str, str, bytes]] = field(default_factory=list)
    loaded: dict[str, str] = field(default_factory=dict)
    unloaded: list[str] = field(default_factory=list)
    refuse_load: bool = False
    raw_logprobs: bool = False
    healthy: bool = True
    states: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    hung_up: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    sent: threading.Event = field(default_factory=threading.Event)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
                Route("/v1/chat/completions", self._reply, methods=["POST"]),
                Route("/v1/completions", self._reply, methods=["POST"]),
                Route("/{path:path}", self._other, methods=["GET", "POST", "DELETE"]),
            ]
        )

    def names(self) -> list[str]:
        """The models that it serves."""
        return [self.base, *self.loaded]

    def root(self, name: str) -> str:
        """What a model was loaded from."""
        return self.loaded.get(name, "somewhere/model")

    async def _health(self, request: Request) -> Response:
        return JSONResponse({}, 200 if self.healthy else 503)

    async def _models(self, request: Request) -> Response:
        return JSONResponse(
            {
                "data": [
                    {"id": name, "root": self.root(name), "owned_by": self.owner, **self.states}
                    for name in self.names()
                ]
            }
        )

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        if self.refuse_load:
            return JSONResponse({"error": {"message": "no such folder", "code": 400}}, 400)
        if body["lora_name"] in self.loaded:
            return JSONResponse({"error": {"message": f"{body['lora_name']} has already been loaded"}}, 400)
        self.loaded[body["lora_name"]] = body["lora_path"]
        return Response("Success", 200)

    async def _unload(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        self.loaded.pop(name, None)
        self.unloaded.append(name)
        return Response("Success", 200)

    async def _reply(self, request: Request) -> Response:
        assert request.headers["authorization"] == f"Bearer {ENGINE_KEY}"
        body = await request.json()
        if body.get("prompt") == probe.PROMPT:
            return await self._probed(body["temperature"])
        self.requests.append(body)
        if body["model"] not in self.names():
            self.refused += 1
            return JSONResponse({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
        behaviour = self.script.pop(0) if self.script else says("one", " two", " three")
        return await behaviour(self, body)

    async def _probed(self, temperature: float) -> Response:
        """The likeliest tokens at a temperature, when the gateway finds out what log-probs these are."""
        scale = 1 if self.raw_logprobs else 1 / temperature
        top = {"a": -0.5 * scale, "b": -2.5 * scale}
        return JSONResponse({"choices": [{"text": "a", "logprobs": {"top_logprobs": [top]}}]})

    async def _other(self, request: Request) -> Response:
        content = await request.body()
        self.others.append((request.method, request.url.path, content))
        if request.url.path == "/v1/echo":
            return Response(content, 201, {"x-engine": "yes"}, "application/octet-stream")
        return JSONResponse({"detail": "Not Found"}, 404)


@dataclass
class ExchangingEngine(ScriptedEngine):
    """It says what a vLLM server of ours says, which holds one whole model at a time."""

    exchanged: list[tuple[str, str | None]] = field(default_factory=list)
    held: str = "base"
    held_folder: str | None = None
    exchange_goes_on: threading.Event | None = None

    def hold(self, name: str, folder: str | None) -> None:
        """Have a model in place; adapters, made for another one, are gone."""
        self.held, self.held_folder = name, folder
        self.loaded.clear()

    def names(self) -> list[str]:
        return [*super().names(), *(["policy", self.held] if self.held != "base" else [])]

    def root(self, name: str) -> str:
        return self.held_folder or "somewhere/model" if name in ("policy", self.held) else super().root(name)

    def app(self) -> Starlette:
        app = super().app()
        app.router.routes.insert(0, Route("/v1/policy", self._policy, methods=["GET", "POST"]))
        return app

    async def _policy(self, request: Request) -> Response:
        if request.method == "POST":
            body = await request.json()
            self.exchanged.append((body["name"], body["folder"]))
            if self.exchange_goes_on is not None:
                await asyncio.to_thread(self.exchange_goes_on.wait, 30)
            self.hold(body["name"], body["folder"])
        version = 0 if self.held == "base" else int(self.held.removeprefix("policy-v"))
        return JSONResponse({"policy": self.held, "version": version})


def chunk(body: dict[str, Any], words: tuple[str, ...], position: int, choice: int = 0) -> dict[str, Any]:
    """One event of a chat stream, as vLLM writes it."""
    last = position == len(words) - 1
    entry = {"token": words[position], "logprob": -0.5 - position, "bytes": None, "top_logprobs": []}
    event = {
        "id": "chatcmpl-engine",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": choice,
                "delta": {"content": words[position]},
                "logprobs": {"content": [entry]},
                "finish_reason": "stop" if last else None,
                "token_ids": [100 + position],
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": position + 1, "total_tokens": position + 4},
    }
    if position == 0:
        event["prompt_token_ids"] = PROMPT_IDS
    return event


def completion_chunk(index: int, words: tuple[str, ...], position: int, prompt_ids: list[int]) -> dict[str, Any]:
    """One event of a text completion's stream, as vLLM writes it."""
    logprobs = {"tokens": [words[position]], "token_logprobs": [-1.0 - position], "top_logprobs": [None]}
    choice = {
        "index": index,
        "text": words[position],
        "logprobs": logprobs | {"text_offset": [len("".join(words[:position]))]},
        "finish_reason": "length" if position == len(words) - 1 else None,
        "token_ids": [7 + position],
    }
    if position == 0:
        choice["prompt_token_ids"] = prompt_ids
    numbers = {"prompt_tokens": 2, "completion_tokens": position + 1, "total_tokens": position + 3}
    return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": numbers}


def whole(body: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """A whole chat completion, as vLLM writes it, `n` choices."""
    entries = [{"token": word, "logprob": -0.5 - i, "bytes": None, "top_logprobs": []} for i, word in enumerate(words)]
    choice = {
        "message": {"role": "assistant", "content": "".join(words)},
        "logprobs": {"content": entries},
        "finish_reason": "stop",
        "token_ids": [100 + i for i in range(len(words))],
    }
    return {
        "id": "chatcmpl-engine",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": i, **choice} for i in range(body.get("n") or 1)],
        "prompt_token_ids": PROMPT_IDS,
        "usage": {"prompt_tokens": 3, "completion_tokens": len(words) * (body.get("n") or 1), "total_tokens": 9},
    }


def data(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def usage(count: int) -> dict[str, Any]:
    numbers = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": numbers}


def says(*words: str) -> Behaviour:
    """A reply of these tokens."""

    async def reply(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
        if not body.get("stream"):
            return JSONResponse(whole(body, words))
        choices = range(body.get("n") or 1)
        events = [data(chunk(body, words, i, choice)) for i in range(len(words)) for choice in choices]
        return stream_of(*events, data(usage(len(words) * len(choices))), b"data: [DONE]\n\n")

    return reply


def stream_of(*events: bytes) -> StreamingResponse:
    async def body() -> AsyncIterator[bytes]:
        for event in events:
            yield event

    return StreamingResponse(body(), media_type="text/event-stream")


def streams(*events: bytes) -> Behaviour:
    """A stream of exactly these bytes."""

    async def reply(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
        return stream_of(*events)

    return reply


def fails(status: int, message: str, **headers: str) -> Behaviour:
    """A refusal."""

    async def reply(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
        error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
        return JSONResponse({"error": error}, status, headers=headers)

    return reply


def endless(*words: str) -> Behaviour:
    """Says the words, then nothing more, and never ends; notes when the client hangs up."""

    async def reply(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
        async def events() -> AsyncIterator[bytes]:
            try:
                for i in range(len(words)):
                    yield data(chunk(body, (*words, "never"), i))
                engine.sent.set()
                await asyncio.Event().wait()
            finally:
                engine.hung_up.set()

        async def nothing() -> AsyncIterator[bytes]:
            try:
                engine.sent.set()
                await asyncio.Event().wait()
                yield b""
            finally:
                engine.hung_up.set()

        return StreamingResponse(events() if body.get("stream") else nothing(), media_type="text/event-stream")

    return reply


def pauses(first: tuple[str, ...], then: tuple[str, ...]) -> Behaviour:
    """Says the first words, waits for `engine.go_on`, says the others."""

    async def reply(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
        async def events() -> AsyncIterator[bytes]:
            words = (*first, *then)
            for i in range(len(words)):
                if i == len(first):
                    engine.sent.set()
                    await asyncio.to_thread(engine.go_on.wait, 30)
                yield data(chunk(body, words, i))
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return reply


def hangs_up(*words: str) -> Behaviour:
    """Says the words and breaks the connection in the middle of the stream."""

    async def reply(engine: ScriptedEngine, body: dict[str, Any]) -> Response:
        async def events() -> AsyncIterator[bytes]:
            for i in range(len(words)):
                yield data(chunk(body, (*words, "never"), i))
            raise ConnectionResetError("cut on purpose")

        return StreamingResponse(events(), media_type="text/event-stream")

    return reply


@dataclass
class Rig:
    """A running gateway and what a test needs around it."""

    url: str
    run: RunFolder
    gateway: Gateway
    ledger: Ledger
    engine: ScriptedEngine
    engine_url: str

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.root, timeout=30, trust_env=False, **options)

    def turns(self) -> list[schema.Turn]:
        """All turns, in the order they were written."""
        with self.ledger.reader() as tx:
            return list(tx.scalars(select(schema.Turn).order_by(schema.Turn.seq)))

    def turn(self) -> schema.Turn:
        (only,) = self.turns()
        return only

    def turn_that_was_left(self, leave: Callable[[], None], attempts: int = 5) -> schema.Turn:
        """The turn whose client left before its end.

        Args:
            leave (`Callable`): Asks for a reply, and leaves while it is streamed.
            attempts (`int`): On a busy machine an engine may end its reply before anybody sees the client leave.
        """
        for count in range(1, attempts + 1):
            leave()
            wait_until(lambda: self.gateway.in_flight == 0 and len(self.turns()) == count)  # noqa: B023 - waited for here
            turn = self.turns()[-1]
            if turn.finish_reason == "abort":
                return turn
        raise AssertionError(f"{attempts} clients left, and the engine went on to the end")


@contextlib.contextmanager
def running(
    folder: Path,
    *,
    keys: Keys | None = None,
    engine_url: str | None = None,
    patience_s: float = 1.0,
    engine: ScriptedEngine | None = None,
    engine_client: EngineClient | None = None,
    before: Callable[[Ledger], None] | None = None,
    **settings: Any,
) -> Iterator[Rig]:
    """A gateway over a scripted engine (or the engine at `engine_url`) on a fresh run folder."""
    run = RunFolder(folder).make()
    scripted = engine or ScriptedEngine()
    served = None if engine_url else ServerThread(scripted.app()).start()
    address = engine_url or f"http://127.0.0.1:{served.port if served else 0}"
    chosen = ServeSettings(temperature=1.0, run=str(folder), engine=address, port=0, **settings)
    ledger = Ledger.open(run.ledger)
    if before:
        before(ledger)
    client = engine_client or EngineClient(address, ENGINE_KEY, timeout=chosen.engine_timeout)
    gateway = Gateway(run, chosen, keys or Keys(), Ledger.open(run.ledger), client, patience_s=patience_s)
    server = ServerThread(make_app(gateway)).start()
    try:
        yield Rig(f"http://127.0.0.1:{server.port}/v1", run, gateway, ledger, scripted, address)
    finally:
        scripted.go_on.set()
        server.stop()
        ledger.close()
        if served is not None:
            served.stop()


def publish(ledger: Ledger, version: int) -> None:
    """Put a policy version into the ledger and let it serve."""
    with ledger.transaction() as tx:
        policies.add(
            tx, schema.Policy(version=version, parent=version - 1, path=f"policies/policy-v{version}", sha256="x")
        )
        policies.promote(tx, version)


def serves(rig: Rig, version: int) -> None:
    """Wait until the gateway serves a version."""
    wait_until(lambda: rig.gateway.policies.serving.number == version)


def sse(text: str) -> list[dict[str, Any]]:
    """The events of a stream's text, without `[DONE]`."""
    payloads = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(payload) for payload in payloads if payload != "[DONE]"]


def wait_until(check: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Wait for something another thread or process does."""
    deadline = time.monotonic() + patience_s
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.005)
