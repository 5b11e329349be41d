"""A real engine, and one that stands before it and breaks a single thing."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor.command import Check, run_check
from clawrl_trl.doctor.finding import Finding
from clawrl_trl.doctor.reference import Reference
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.run import RunFolder
from clawrl_trl.tiny import MODEL_PATH

KEY = "doctor-test-key"
Json = dict[str, Any]


def keep_reply(path: str, body: Json, reply: Json) -> Json:
    return reply


@dataclass(frozen=True)
class Fault:
    """Changes that a broken engine makes to requests and replies (each event, when streamed) of its paths.

    Args:
        ask: Changes a request; `None` in its place leaves it.
        answer: Changes a reply or an event, given the path and the request as the client sent it.
        refuse: Paths that do not exist.
    """

    ask: Callable[[str, Json], Json] = lambda path, body: body
    answer: Callable[[str, Json, Json], Json] = keep_reply
    refuse: tuple[str, ...] = ()


def start_engine(run: Path, **settings: Any) -> tuple["subprocess.Popen[bytes]", str]:
    """The embedded engine in a process of its own; returns it and its URL."""
    ServeSettings(run=str(run), **settings).save()
    with (run / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "clawrl_trl.engines.embedded", "--run", str(run)],
            env={**os.environ, "CLAWRL_ENGINE_KEY": KEY, "OMP_NUM_THREADS": "1"},
            stderr=log,
        )
    while (announced := RunFolder(run).read_announced("engine")) is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            raise RuntimeError((run / "engine.log").read_text())
    return process, str(announced["base_url"])


class BrokenEngine:
    """A server that forwards everything to a real engine, but for one fault."""

    def __init__(self, engine: str, fault: Fault) -> None:
        self._fault = fault
        self._http = httpx.AsyncClient(base_url=engine, timeout=120, trust_env=False)
        route = Route("/{path:path}", self._forward, methods=["GET", "POST"])
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=[route]), log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> "BrokenEngine":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()

    async def _forward(self, request: Request) -> Response:
        path, raw = request.url.path, await request.body()
        if path in self._fault.refuse:
            return JSONResponse({"detail": "Not Found"}, 404)
        body = json.loads(raw) if raw else {}
        content = json.dumps(self._fault.ask(path, dict(body))).encode() if raw else b""
        headers = {"authorization": request.headers.get("authorization", ""), "content-type": "application/json"}
        if body.get("stream"):
            return StreamingResponse(self._events(path, body, content, headers), media_type="text/event-stream")
        answer = await self._http.request(request.method, path, content=content, headers=headers)
        if not answer.is_success or "json" not in answer.headers.get("content-type", ""):
            return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
        return JSONResponse(self._fault.answer(path, body, answer.json()))

    async def _events(self, path: str, body: Json, content: bytes, headers: dict[str, str]) -> AsyncIterator[bytes]:
        async with self._http.stream("POST", path, content=content, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = self._fault.answer(path, body, json.loads(line[6:]))
                    yield b"data: " + json.dumps(event).encode() + b"\n\n"
                elif line:
                    yield line.encode() + b"\n\n"


@contextlib.contextmanager
def serve_broken_engine(engine: str, fault: Fault) -> Iterator[str]:
    """The URL of an engine with a fault."""
    with BrokenEngine(engine, fault) as server:
        yield server.url


async def run_one_check(
    check: Check, engine: str | None, reference: Reference | None = None, **settings: Any
) -> list[Finding]:
    """Run one check on the engine at a URL, which serves the bundled model."""
    values = {"model_name_or_path": str(MODEL_PATH), "engine": engine or "transformers"} | settings
    target = Target(ServeSettings(**values))
    if reference is not None:
        target.reference = reference  # type: ignore[misc]
    if engine is None:
        return await run_check(check, target)
    async with EngineClient(engine, KEY, timeout=120) as client:
        target.client = client
        await target.connect()
        return await run_check(check, target)
