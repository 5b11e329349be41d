"""Connections that send no complete request can't keep the others out."""

import asyncio
import contextlib
import errno
import json
import resource
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path

import httpx
import psutil
import pytest
from gateway_rig import ScriptedEngine, ServerThread, wait_until
from test_gateway_process import HELLO, configured, serving

from clawrl_trl.http.server import BoundedConfig, BoundedServer
from clawrl_trl.run import RunFolder

HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SLOW_BODY = HALF + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    server = ServerThread(ScriptedEngine().app()).start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


@contextlib.contextmanager
def serving_with_few_files(run: RunFolder) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway started under the usual limit of 1,024 open files, which it may raise."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
        try:
            process, url = stack.enter_context(serving(run))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        yield process, url


@contextlib.contextmanager
def connected(url: str, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections that sent these bytes and wait."""
    address = httpx.URL(url)
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(stack.enter_context(socket.create_connection((address.host, address.port or 0), 60)))
            with contextlib.suppress(OSError):
                sockets[-1].sendall(sent)
        yield sockets


def chat(url: str) -> int:
    return httpx.post(f"{url}/chat/completions", json={"messages": HELLO}, timeout=60).status_code


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", HALF, SLOW_BODY], ids=["nothing", "half a head", "half a body"])
def test_1200_half_open_connections_stop_nobody(tmp_path: Path, engine: str, sent: bytes) -> None:
    run = configured(tmp_path, engine=engine)
    with (
        ThreadPoolExecutor(1) as reader,
        serving_with_few_files(run) as (process, url),
        connected(url, 1200, sent),
    ):
        assert process.stdout is not None
        reading = reader.submit(process.stdout.read)  # a full pipe would stop the gateway
        assert [chat(url) for _ in range(5)] == [200] * 5
        process.kill()
        log = reading.result()
    assert len(log) < 200_000, log[:2000]


@pytest.mark.slow
def test_without_files_left_the_log_stays_short(tmp_path: Path, engine: str) -> None:
    run = configured(tmp_path, engine=engine)
    with serving(run) as (process, url):
        used = psutil.Process(process.pid).num_fds()
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        with connected(url, 60, HALF):
            log = read_until(process, "ulimit -n")
        wait_until(lambda: chat(url) == 200)
        process.kill()
        log += process.communicate()[0]
    assert len(log) < 20_000, log[:2000]


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what a process says up to a line that holds this text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    return "".join(lines)


def test_running_out_of_files_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def run_out() -> None:
        async def app(scope: object, receive: object, send: object) -> None: ...

        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = BoundedServer(BoundedConfig(app, lifespan="off"), lambda: None)
            server.config.load()
            server.lifespan = server.config.lifespan_class(server.config)
            await server.startup([listener])
            for _ in range(1000):
                fault = {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")}
                asyncio.get_running_loop().call_exception_handler(fault)
            await server.shutdown([listener])

    asyncio.run(run_out())
    assert [record.getMessage().count("ulimit -n") for record in caplog.records if record.levelname == "ERROR"] == [1]


@pytest.mark.parametrize(("requests", "connections"), [(288, 512), (1024, 1088)])
def test_there_is_a_connection_for_each_request_that_may_run_or_wait(
    monkeypatch: pytest.MonkeyPatch, requests: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (65_536, 65_536))
    assert BoundedConfig(None, requests=requests).max_connections == connections


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_head_that_never_ends_is_cut(tmp_path: Path, engine: str) -> None:
    run = configured(tmp_path, engine=engine)
    with serving(run) as (_, url), connected(url, 1, HALF) as (half,):
        half.settimeout(60)
        assert half.recv(1000) in (b"", b"HTTP/1.1 408 ")


def test_a_kept_connection_may_pause_between_requests(tmp_path: Path, engine: str) -> None:
    run = configured(tmp_path, engine=engine)
    request = json.dumps({"messages": HELLO}).encode()
    whole = HALF + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(request) + request
    with serving(run) as (_, url), connected(url, 1, whole) as (kept,):
        kept.settimeout(60)
        assert answered(kept) == 200
        with connected(url, 5, HALF):
            kept.sendall(whole)
            assert answered(kept) == 200


def answered(connection: socket.socket) -> int:
    """Read a whole answer; returns its status."""
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status
