"""`clawrl doctor` on a real vLLM server that serves a run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from engine_server import Server

from clawrl_trl.doctor.finding import Finding

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("vllm server")]

ALWAYS = {
    "answers",
    "context length",
    "token ids",
    "token ids, tool call",
    "text of the ids",
    "sampling defaults",
    "log-prob mode",
    "log-probs at T=1",
    "log-probs at T=0.5",
    "prompt log-probs",
    "adapters",
    "adapter unloading",
    "generation config",
}
"""What must be sound, whatever the model; the rest is said about the model and the machine."""


def _models(server: Server) -> set[str]:
    with server.http() as http:
        reply = http.get("/v1/models")
    assert reply.status_code == httpx.codes.OK
    return {one["id"] for one in reply.json()["data"]}


def test_a_real_server_passes_and_is_left_as_it_was(server: Server, vllm_run: Path) -> None:
    before = _models(server)
    done = subprocess.run(
        [sys.executable, "-m", "clawrl_trl.cli.main", "doctor", "--run", str(vllm_run), "--port", "0", "--json"],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
        env={**os.environ, "CLAWRL_ENGINE_KEY": server.key},
    )
    assert done.stdout, done.stderr
    findings = {one["name"]: Finding(**one) for one in json.loads(done.stdout)}
    statuses = {name: findings[name].status for name in ALWAYS}
    called = statuses.pop("token ids, tool call")
    assert set(statuses.values()) == {"ok"}, done.stdout
    assert called in ("ok", "skipped"), done.stdout
    assert {findings[name].status for name in ("prefix, plain", "prefix, as served")} <= {"ok", "warn"}
    assert done.returncode == 0, done.stdout
    assert _models(server) == before
