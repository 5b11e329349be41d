"""The gateway as a process: starting, refusing to start, being told to end, being killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import ENGINE_KEY, ScriptedEngine, ServerThread, pauses, sse, wait_until
from sqlalchemy import select

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.ledger import Ledger, schema
from clawrl_trl.run import RunFolder

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def engine() -> Iterator[tuple[ScriptedEngine, str]]:
    scripted = ScriptedEngine()
    server = ServerThread(scripted.app()).start()
    yield scripted, f"http://127.0.0.1:{server.port}"
    scripted.go_on.set()
    server.stop()


def start(run: RunFolder, **environment: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_KEY")}
    return subprocess.Popen(
        [sys.executable, "-m", "clawrl_trl.gateway", "--run", str(run.path)],
        env={**kept, "CLAWRL_ENGINE_KEY": ENGINE_KEY, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def configured(folder: Path, **settings: Any) -> RunFolder:
    run = RunFolder(folder).make()
    ServeSettings(run=str(folder), **{"port": 0, **settings}).save()
    return run


def listening(run: RunFolder, process: subprocess.Popen[str]) -> str:
    def up() -> bool:
        assert process.poll() is None, process.communicate()[0]
        announced = run.read_announced("gateway")
        return announced is not None and announced["pid"] == process.pid

    wait_until(up, patience_s=120)
    announced = run.read_announced("gateway")
    assert announced is not None
    return str(announced["base_url"])


@contextlib.contextmanager
def serving(run: RunFolder, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = start(run, **environment)
    try:
        yield process, listening(run, process)
    finally:
        process.kill()
        process.wait()


def turns_of(run: RunFolder) -> list[schema.Turn]:
    ledger = Ledger.open(run.ledger)
    with ledger.reader() as tx:
        found = list(tx.scalars(select(schema.Turn).order_by(schema.Turn.seq)))
    ledger.close()
    return found


@pytest.mark.slow
def test_importing_the_gateway_is_cheap() -> None:
    code = "import sys, clawrl_trl.gateway.app; print(sorted({'torch', 'transformers', 'peft'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_finishes_what_is_in_flight(
    tmp_path: Path, engine: tuple[ScriptedEngine, str], number: signal.Signals
) -> None:
    scripted, url = engine
    run = configured(tmp_path, engine=url)
    with serving(run) as (process, base_url):
        assert base_url.endswith("/v1")
        assert oct((run.path / "gateway.json").stat().st_mode & 0o777) == "0o600"
        scripted.script.append(pauses(("one",), (" two",)))
        body = {"messages": HELLO, "stream": True}
        with httpx.stream("POST", f"{base_url}/chat/completions", json=body, timeout=30) as response:
            assert scripted.sent.wait(30)
            process.send_signal(number)
            scripted.go_on.set()
            text = response.read().decode()
        assert process.wait(60) == 0
        log = process.communicate()[0]
    assert "[DONE]" in text and sse(text)[-1]["choices"][0]["finish_reason"] == "stop"
    (turn,) = turns_of(run)
    assert turn.finish_reason == "stop"
    assert "Traceback" not in log and "hello" not in log
    assert "POST /v1/chat/completions 200" in log


@pytest.mark.slow
def test_killed_and_started_again_it_goes_on(tmp_path: Path, engine: tuple[ScriptedEngine, str]) -> None:
    _, url = engine
    run = configured(tmp_path, engine=url)
    with serving(run) as (process, base_url):
        first = httpx.post(f"{base_url}/chat/completions", json={"messages": HELLO}, timeout=30).json()
        process.kill()
        process.wait()
        assert run.read_announced("gateway") is None
    port = int(base_url.split(":")[-1].split("/")[0])
    configured(tmp_path, engine=url, port=port)
    answer = first["choices"][0]["message"]
    with serving(run) as (process, again):
        assert again == base_url
        more = [*HELLO, answer, {"role": "user", "content": "and then?"}]
        assert httpx.post(f"{again}/chat/completions", json={"messages": more}, timeout=30).status_code == 200
    one, two = turns_of(run)
    assert one.next_turn_id == two.id and one.session_id == two.session_id
    assert one.state == "judging"


def ends_with_a_line(process: subprocess.Popen[str], text: str) -> None:
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 2, output
    lines = output.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and text in lines[0], output


@pytest.mark.slow
def test_refusals_to_start_are_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ends_with_a_line(start(configured(tmp_path / "a", port=port)), f"127.0.0.1:{port}")
    ends_with_a_line(start(configured(tmp_path / "b", host="0.0.0.0")), "CLAWRL_API_KEY")
    ends_with_a_line(start(RunFolder(tmp_path / "c")), "settings.json")
    run = configured(tmp_path / "d")
    run.ledger.write_bytes(b"this is no database" * 100)
    ends_with_a_line(start(run), "ledger")


@pytest.mark.slow
def test_with_a_key_it_binds_everywhere(tmp_path: Path, engine: tuple[ScriptedEngine, str]) -> None:
    run = configured(tmp_path, engine=engine[1], host="0.0.0.0")
    with serving(run, CLAWRL_API_KEY="secret") as (_, base_url):
        assert base_url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{base_url}/models").status_code == 401
        assert httpx.get(f"{base_url}/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_the_engine_is_found_again_on_another_port(tmp_path: Path) -> None:
    run = configured(tmp_path)

    def announce(port: int) -> None:
        content = {"base_url": f"http://127.0.0.1:{port}", "pid": os.getpid(), "key": ENGINE_KEY}
        (run.path / "engine.json").write_text(json.dumps(content))

    with serving(run) as (_, base_url):
        root = base_url.removesuffix("/v1")
        assert httpx.get(f"{root}/readyz", timeout=30).status_code == 503
        for _ in range(2):
            server = ServerThread(ScriptedEngine().app()).start()
            announce(server.port)
            assert httpx.get(f"{root}/readyz", timeout=30).status_code == 200
            answer = httpx.post(f"{base_url}/chat/completions", json={"messages": HELLO}, timeout=30)
            assert answer.status_code == 200
            server.stop()
