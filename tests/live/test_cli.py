"""The `clawrl` command beside a live run."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_run import LiveRun, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("live"), pytest.mark.timeout(300)]


def _clawrl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clawrl_trl.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def _json(*words: str | Path) -> Any:
    done = _clawrl(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _chat(live: LiveRun, session: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Tom has 5 apples. He buys 7 more. How many now?"}]
    with live.client(default_headers={"X-Session-Id": session}) as client:
        reply = client.chat.completions.create(model="clawrl", messages=messages, max_tokens=120)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
        messages.append({"role": "user", "content": "Thanks, that is just right!"})
        client.chat.completions.create(model="clawrl", messages=messages, max_tokens=40)


def test_a_session_is_listed_inspected_explained_and_forgotten(live: LiveRun) -> None:
    run = ("--run", live.folder.path)
    _chat(live, "cli-session")
    (row,) = [row for row in _json("sessions", *run) if row["session_id"] == "cli-session"]
    assert (row["turns"], row["main"], row["side"]) == (2, 2, 0)
    assert set(row) >= {"session_id", "turns", "main", "side", "started_at", "last_at"}

    inspected = _json("inspect", "cli-session", *run)
    first, last = inspected["turns"]
    assert inspected["session_id"] == "cli-session"
    assert set(first) >= {
        "turn_id", "kind", "kind_reason", "state", "messages", "response", "next_state", "votes", "score", "hint",
        "policy_version", "prompt_tokens", "completion_tokens",
    }  # fmt: skip
    assert [message["content"] for message in first["next_state"]] == ["Thanks, that is just right!"]
    assert last["next_state"] is None
    for command in ("inspect", "explain"):
        assert _clawrl(command, "cli-session", *run).returncode == 0

    assert _json("forget", "cli-session", *run)["turns"] == 2
    missing = _clawrl("inspect", "cli-session", *run)
    assert missing.returncode == 2 and "clawrl sessions" in missing.stderr


def test_hand_written_conversations_are_imported_once(live: LiveRun, tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    turn = {"type": "main", "prompt": "What is 2 + 2?", "response": "2 + 2 = 4.", "next_state": "Great, thanks!"}
    side = {"type": "side", "prompt": "Title?", "response": "Sums", "next_state": None, "trainable": False}
    file.write_text(json.dumps({"session_id": "by-hand", "turns": [turn, side]}))
    run = ("--run", live.folder.path)
    assert _json("import", file, *run) == {"sessions": 1, "turns": 2, "trainable": 1}
    assert _json("import", file, *run) == {"sessions": 0, "turns": 0, "trainable": 0}
    rows = _json("inspect", "by-hand", *run)["turns"]
    assert [row["kind"] for row in rows] == ["main", "side"]


def test_the_pages_example_chats_are_imported_with_what_followed_each_reply(live: LiveRun, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text()
    (lines,) = re.findall(r"```jsonl\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "chats.jsonl"
    file.write_text(lines)
    run = ("--run", live.folder.path)
    assert _json("import", file, *run) == {"sessions": 2, "turns": 3, "trainable": 3}
    assert _json("import", file, *run) == {"sessions": 0, "turns": 0, "trainable": 0}
    first, last = _json("inspect", "garden", *run)["turns"]
    assert [message["content"] for message in first["next_state"]] == ["Thanks, that helps!"]
    assert last["next_state"] is None and last["response"]["content"] == "You are welcome."
    (named,) = [row["session_id"] for row in _json("sessions", *run) if row["session_id"].startswith("chat-")]
    (turn,) = _json("inspect", named, *run)["turns"]
    assert [message["content"] for message in turn["next_state"]] == ["No bold type, please."]


def test_the_gateway_says_what_it_is(live: LiveRun) -> None:
    answer = httpx.get(live.base_url.removesuffix("/v1") + "/").json()
    assert answer["name"] == "clawrl-trl gateway" and answer["routes"]["chat"] == "/v1/chat/completions"


def test_the_start_names_model_and_context(live: LiveRun) -> None:
    log = live.folder.logs / "serve.log"
    wait_for(lambda: "the bundled model is for the tour" in log.read_text(), 60, "the lines of the start")
    assert f"Serving the bundled model at {live.base_url}\n" in log.read_text()


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "not JSON"), ("[]x", "not JSON"), ('{"turns": []}', "session_id"), ('[{"session_id": "a"}]', "turns")],
)
def test_a_broken_file_is_named(live: LiveRun, tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "broken.json"
    file.write_text(content)
    done = _clawrl("import", file, "--run", live.folder.path)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_policies_and_a_rollback_to_nowhere(live: LiveRun) -> None:
    run = ("--run", live.folder.path)
    assert _json("policies", *run)[0]["version"] == 0
    done = _clawrl("rollback", "--to", "99", *run)
    assert done.returncode == 2 and "99" in done.stderr


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    done = _clawrl("sessions", "--run", tmp_path / "nothing")
    assert done.returncode == 2 and "clawrl serve" in done.stderr and "Traceback" not in done.stderr


def test_a_run_is_served_once(live: LiveRun) -> None:
    done = _clawrl("serve", "--run", live.folder.path, "--port", "0")
    assert done.returncode == 2 and "served already" in done.stderr
