"""`clawrl doctor` as a person and a program call it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doctor_rig import KEY, Fault, Json, serve_broken_engine
from rich.console import Console

from clawrl_trl.doctor.command import run_doctor
from clawrl_trl.doctor.finding import Finding, exit_code
from clawrl_trl.doctor.report import ReportPage

pytestmark = [pytest.mark.xdist_group("doctor"), pytest.mark.timeout(300), pytest.mark.slow]

GROUPS = {"Machine", "Engine", "Model", "Judge"}


def _doctor(*words: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clawrl_trl.cli.main", "doctor", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_bundled_model_on_its_own_engine_is_sound(tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    process = _doctor("--json", "--port", "0", CLAWRL_RUN=str(tmp_path / "run"))
    findings = [Finding(**finding) for finding in json.loads(process.stdout)]
    assert process.returncode == 0, process.stdout
    assert {finding.group for finding in findings} == GROUPS
    statuses = {finding.name: finding.status for finding in findings}
    (room,) = [finding for finding in findings if finding.name == "room for agents"]
    assert "8,192 tokens" in room.detail and "OpenClaw" in room.detail and "tour" in str(room.fix)
    assert statuses.pop("room for agents") == "warn"
    assert statuses.pop("llm judge") == "skipped"
    assert statuses.pop("judge's exam") == "skipped"
    assert set(statuses.values()) == {"ok"}, statuses
    assert set(tmp_path.iterdir()) == before


def test_a_broken_engine_gives_exit_code_one(engine: str) -> None:
    def without_ids(path: str, body: Json, reply: Json) -> Json:
        for choice in reply.get("choices") or () if body.get("stream") else ():
            choice.pop("token_ids", None)
        return reply

    with serve_broken_engine(engine, Fault(answer=without_ids)) as url:
        process = _doctor("--engine", url, "--port", "0", CLAWRL_ENGINE_KEY=KEY)
    assert process.returncode == 1, process.stdout
    (line,) = [line for line in process.stdout.splitlines() if "engine: token ids:" in line]
    assert line.startswith("fail") and "return_token_ids" in line
    assert "2 failed" in process.stdout.splitlines()[-1]


def test_an_engine_that_does_not_answer_is_one_failure(capsys: pytest.CaptureFixture[str]) -> None:
    status = run_doctor(["--engine", "http://127.0.0.1:9", "--port", "0", "--json"])
    findings = [Finding(**finding) for finding in json.loads(capsys.readouterr().out)]
    assert status == 1
    assert [finding.name for finding in findings if finding.status == "fail"] == ["answers"]
    skipped = [finding for finding in findings if finding.group == "Engine" and finding.name != "answers"]
    assert skipped and all((finding.status, finding.detail) == ("skipped", "no engine answers") for finding in skipped)


def test_a_wrong_key_is_told(engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CLAWRL_ENGINE_KEY", "wrong")
    assert run_doctor(["--engine", engine, "--port", "0"]) == 1
    assert "CLAWRL_ENGINE_KEY" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--run", "/nowhere/run"), "holds no run"),
        (("--model_name_or_path", "/nowhere/model"), "--model_name_or_path"),
        (("--engine", "nonsense"), "--engine"),
    ],
)
def test_a_mistake_of_the_user_gives_exit_code_two(words: tuple[str, ...], says: str) -> None:
    process = _doctor(*words)
    assert process.returncode == 2 and says in process.stderr and "Traceback" not in process.stderr


FINDINGS = [
    Finding("versions", "ok", "torch 2.13.0", "not shown", "Machine"),
    Finding("disk", "warn", "3.1 GiB free", "free some space", "Machine"),
    Finding("token ids", "fail", "streamed: no [ids]", "use vLLM 0.31", "Engine"),
    Finding("llm judge", "skipped", "not asked for", None, "Judge"),
]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_page(terminal: bool) -> None:
    out = io.StringIO()
    page = ReportPage(Console(file=out, force_terminal=terminal, width=80, color_system=None, legacy_windows=False))
    for finding in FINDINGS:
        page.show(finding)
    page.close(FINDINGS, 3.4)
    printed = out.getvalue()
    assert exit_code(FINDINGS) == 1 and exit_code(FINDINGS[:2]) == 0
    assert "not shown" not in printed and "free some space" in printed and "no [ids]" in printed
    assert printed.splitlines()[-1] == "1 ok, 1 warned, 1 failed, 1 skipped in 3 s"
    assert all(len(line) <= 80 for line in printed.splitlines()) or not terminal
    if terminal:
        assert "✗" in printed and "Machine" in printed.splitlines()
    else:
        assert [line.split()[0] for line in printed.splitlines()[:4]] == ["ok", "warn", "fail", "skipped"]
