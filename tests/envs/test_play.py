"""Playing interactions: what is on record is never played again, whatever kills the player."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import BOLD, PLAIN

from clawrl_trl.envs.runs.interactions import Interactions
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.persona_worker import play
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder

QUICK = PersonaOptions(interactions=5, think_time=0.0)
THUMBS = PersonaOptions(persona="thumbs", interactions=1, think_time=0.0, stream_share=0.0)


def start(run: Path, base_url: str, **options: Any) -> subprocess.Popen[bytes]:
    PersonaOptions(**options).save(run)
    RunFolder(run).announce("gateway", base_url.removesuffix("/v1"))
    return subprocess.Popen(
        [sys.executable, "-m", "clawrl_trl.envs.runs.persona_worker", "--run", str(run)],
        stderr=subprocess.PIPE,
        preexec_fn=hear_interrupts,
    )


def hear_interrupts() -> None:
    """A child of a shell's background job would inherit deafness to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def list_problems(requests: list[dict]) -> list[str]:
    return [request["body"]["messages"][0]["content"] for request in requests if len(request["body"]["messages"]) == 1]


def test_rows(scripted, tmp_path: Path) -> None:
    server = scripted()
    rows = play(tmp_path, QUICK, base_url=server.base_url)
    assert [row["index"] for row in rows] == list(range(5))
    for row in rows:
        assert row["scores"] == [0.0, 1.0]
        assert (row["first_score"], row["turns"], row["approved"]) == (0.0, 3, True)
        assert (row["policy_version"], row["requests"], row["failed"]) == (3, 3, 0)
        assert len(row["total_s"]) == 3 and len(row["ttft_s"]) <= 3
    assert len({row["session_id"] for row in rows}) == 5
    assert len(set(list_problems(server.seen))) == 5
    assert [json.loads(line) for line in (tmp_path / "interactions.jsonl").read_text().splitlines()] == rows


def test_a_second_start_plays_only_what_is_missing(scripted, tmp_path: Path) -> None:
    server = scripted()
    play(tmp_path, QUICK, base_url=server.base_url)
    play(tmp_path, QUICK, base_url=server.base_url)
    assert len(server.seen) == 15
    rows = play(tmp_path, PersonaOptions(interactions=7, think_time=0.0), base_url=server.base_url)
    assert [row["index"] for row in rows] == list(range(7))
    assert len(set(list_problems(server.seen))) == 7


@pytest.mark.slow
def test_killed_player_goes_on_without_repeating(scripted, tmp_path: Path) -> None:
    server = scripted()
    for kill_at in (4, 11):
        player = start(tmp_path, server.base_url, interactions=8, think_time=0.05)
        server.wait_for(kill_at)
        player.send_signal(signal.SIGKILL)
        player.wait()
        on_record = [json.loads(line) for line in (tmp_path / "interactions.jsonl").read_bytes().splitlines()]
    player = start(tmp_path, server.base_url, interactions=8, think_time=0.0)
    assert player.wait() == 0
    rows = Interactions(tmp_path / "interactions.jsonl").rows
    assert sorted(row["index"] for row in rows) == list(range(8))
    assert rows[: len(on_record)] == on_record
    finished = {row["session_id"] for row in on_record}
    later = [request["headers"]["x-session-id"] for request in server.seen[-3 * (8 - len(on_record)) :]]
    assert not finished & set(later)


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_stops_without_a_traceback(scripted, tmp_path: Path, signal_number: int) -> None:
    server = scripted()
    player = start(tmp_path, server.base_url, interactions=50, think_time=0.3)
    server.wait_for(4)
    player.send_signal(signal_number)
    _, error = player.communicate()
    assert player.returncode == 130
    assert b"Traceback" not in error
    assert len(Interactions(tmp_path / "interactions.jsonl").rows) >= 1


def test_a_gateway_that_restarts_costs_no_interaction(scripted, tmp_path: Path) -> None:
    server = scripted()

    def stumble(messages: list, number: int) -> str | int:
        return 503 if number % 4 == 2 else PLAIN if len(messages) > 1 else BOLD

    server.script = stumble
    rows = play(tmp_path, QUICK, base_url=server.base_url)
    assert len(rows) == 5
    assert sum(row["failed"] for row in rows) >= 4
    assert all(row["first_score"] == 0.0 and row["approved"] for row in rows)


def test_gateway_found_through_the_run_folder(scripted, tmp_path: Path) -> None:
    server = scripted()
    RunFolder(tmp_path).announce("gateway", server.base_url.removesuffix("/v1"))
    assert len(play(tmp_path, PersonaOptions(persona="teacher", interactions=1, think_time=0.0))) == 1


def test_a_run_nobody_serves_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clawrl serve --run"):
        play(tmp_path, PersonaOptions(patience=0.0))
    PersonaOptions(patience=0.0).save(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "clawrl_trl.envs.runs.persona_worker", "--run", str(tmp_path)], capture_output=True
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(b"error: ")
    assert b"Traceback" not in result.stderr


def test_own_rollout(scripted, tmp_path: Path) -> None:
    server = scripted()
    calls = []

    def one_question(client, persona, interactions, seed):
        calls.append((persona.name, interactions, seed))
        for task in persona.tasks(seed, "train", interactions):
            messages = [{"role": "user", "content": task.question}]
            reply = client.chat.completions.create(model="clawrl", messages=messages).choices[0].message.content
            yield {"first_score": persona.style(task, reply).score}

    rows = play(tmp_path, QUICK, base_url=server.base_url, rollout=one_question)
    assert [row["first_score"] for row in rows] == [0.0] * 5
    more = PersonaOptions(interactions=7, think_time=0.0)
    assert len(play(tmp_path, more, base_url=server.base_url, rollout=one_question)) == 7
    assert calls[0] == ("student", 5, 0)
    assert calls[1][:2] == ("student", 2) and calls[1][2] != 0
    assert len(set(list_problems(server.seen))) == 7


@pytest.mark.parametrize("result", [None, [{}], ["done"]])
def test_own_rollout_that_yields_no_rows_is_a_clear_error(scripted, tmp_path: Path, result: object) -> None:
    with pytest.raises(UserError, match="must yield"):
        play(tmp_path, QUICK, base_url=scripted().base_url, rollout=lambda *arguments: result)


@pytest.mark.slow
def test_hooks_from_the_command_line(scripted, tmp_path: Path) -> None:
    server = scripted()
    hook = tmp_path / "own.py"
    hook.write_text(
        "def short(client, model, messages, **sampling):\n"
        "    return client.chat.completions.create(model=model, messages=messages, max_tokens=7)\n"
    )
    options = {"interactions": 1, "think_time": 0.0, "custom_generate_function_path": f"{hook}:short"}
    player = start(tmp_path, server.base_url, **options)
    assert player.wait() == 0
    assert {request["body"]["max_tokens"] for request in server.seen} == {7}
    player = start(tmp_path, server.base_url, rollout_function_path=f"{hook}:missing")
    assert player.wait() == 2


@given(cut=st.integers(0, 200))
def test_a_torn_line_is_cut_off(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("record") / "interactions.jsonl"
    record = Interactions(path)
    for index in range(4):
        record.append({"index": index, "said": "größer"})
    content = path.read_bytes()
    path.write_bytes(content[: min(cut, len(content))])
    again = Interactions(path)
    assert again.rows == record.rows[: len(again.rows)]
    assert again.find_missing(4) == list(range(len(again.rows), 4))
    again.append({"index": 9})
    assert Interactions(path).rows == again.rows
    assert path.stat().st_mode & 0o777 == 0o600


def rated(script: Any) -> Any:
    """A gateway that answers with `PLAIN`, and thumbs with `script(number)`."""
    return lambda messages, number: PLAIN if messages else script(number)


def list_thumbs(requests: list[dict]) -> list[dict]:
    return [request for request in requests if request["path"] == "/v1/feedback"]


@pytest.fixture
def feedback_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAWRL_FEEDBACK_KEY", "rate-it,another")


def test_thumbs_go_to_the_gateway_with_their_own_key(scripted, tmp_path: Path, feedback_key: None) -> None:
    server = scripted(rated(lambda number: "stored"))
    options = replace(THUMBS, interactions=2)
    rows = play(tmp_path, options, base_url=server.base_url, key="chat-key")
    sent = list_thumbs(server.seen)
    assert len(sent) == 2 and len(server.seen) == 4
    assert [request["body"]["thumbs"] for request in sent] == [1, 1]
    assert all(set(request["body"]) == {"turn_id", "thumbs"} for request in sent)
    assert {request["headers"]["authorization"] for request in sent} == {"Bearer rate-it"}
    assert [row["thumbs"] for row in rows] == [[1], [1]]
    assert [row["requests"] for row in rows] == [2, 2]


def test_a_thumb_that_comes_before_its_turn_is_sent_again(scripted, tmp_path: Path) -> None:
    server = scripted(rated(lambda number: 404 if number == 2 else "stored"))
    (row,) = play(tmp_path, THUMBS, base_url=server.base_url)
    assert len(list_thumbs(server.seen)) == 2
    assert row["failed"] == 0


def test_a_gateway_that_restarts_costs_no_thumb(scripted, tmp_path: Path) -> None:
    server = scripted(rated(lambda number: 503 if number == 2 else "stored"))
    (row,) = play(tmp_path, THUMBS, base_url=server.base_url)
    assert len(list_thumbs(server.seen)) == 2
    assert row["failed"] == 1


@pytest.mark.parametrize(("status", "says"), [(401, "CLAWRL_FEEDBACK_KEY"), (404, "takes no feedback")])
def test_a_gateway_that_takes_no_thumbs_is_a_clear_error(scripted, tmp_path: Path, status: int, says: str) -> None:
    server = scripted(rated(lambda number: status))
    with pytest.raises(UserError, match=says):
        play(tmp_path, THUMBS, base_url=server.base_url)
