"""What `clawrl` prints of a run: data is never markup nor a terminal's command, and it fits 80 columns."""

import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl import __version__
from clawrl_trl.cli.main import _command
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.schema import Feedback, Sample, Turn, Verdict
from clawrl_trl.run import RunFolder
from clawrl_trl.visible_text import encode_json, make_visible

TITLE, CLEAR, CLIPBOARD = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b]52;c;ZXZpbA==\x07"
C1, OVERRIDE = "\x9b31m", "\u202egnp.exe\u2066"
HOSTILE = f"[/bold]{TITLE}{CLEAR}{CLIPBOARD}{C1}{OVERRIDE}[red]x"
RUNTIME = "Runtime: agent=main | session=agent:main:main | sessionId=1b4e28ba-2fa1-11d2-883f-0016d3cca427 | model=x"
INTERNAL = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nqueue is empty\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
SAID = "Shorten it, please. " * 8


@pytest.fixture
def run(tmp_path: Path) -> Iterator[str]:
    """A run with a hostile session, one of OpenClaw's, and one that its client did not name."""
    with closing(Ledger.open(RunFolder(tmp_path).ledger)) as ledger, ledger.transaction() as tx:
        hostile = session(tx, HOSTILE)
        tool = {"role": HOSTILE, "content": HOSTILE}
        turns.add(tx, turn(hostile, "h1", messages=[tool], response={"role": "assistant", "content": HOSTILE}))
        openclaw = session(tx, "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "message:openclaw")
        messages = [{"role": "user", "content": f"{SAID}\n{RUNTIME}"}, {"role": "user", "content": INTERNAL}]
        first = turns.add(tx, turn(openclaw, "o1", messages=messages, finish_reason="length"))
        second = turns.add(
            tx, turn(openclaw, "o2", trainable=False, untrainable_reason="sampled with a top_k of 5", prompt_ids=None)
        )
        turns.add_feedback(tx, Feedback(turn_id=first.id, kind="text", value=-1.0, text="far too long"))
        turns.set_next_state(tx, first.id, [{"role": "user", "content": "Shorter!"}], ["owner"], second.id, 2.0)
        verdict = Verdict(turn_id=first.id, judge="rules", score=-1.0, hint="Be brief.")
        turns.record_verdict(tx, verdict, Sample(turn_id=first.id, score=-1.0, policy_version=0))
        turns.add(tx, turn(session(tx, None, "inferred"), "i1"))
    yield str(tmp_path)


def session(tx: Any, name: str | None, source: str = "header:x-session-id") -> str:
    session = turns.get_or_create_session(tx, owner="local", external_id=name, identity_source=source, now=1.0)
    return session.id


def turn(session_id: str, completion_id: str, **fields: Any) -> Turn:
    defaults: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hello"}],
        "response": {"role": "assistant", "content": "Good morning."},
        "prompt_ids": [1, 2],
        "completion_ids": [3],
        "logprobs": [-0.5],
        "trainable": True,
        "policy_version": 0,
        "kind_reason": "extends the conversation that it repeats word for word, as its client usually does",
    }
    return Turn(session_id=session_id, completion_id=completion_id, **(defaults | fields))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert _command(list(words)) == 0
    return capsys.readouterr().out


def on_a_terminal(*words: str) -> list[str]:
    """The lines that a person sees on a terminal of 80 columns, without the colours that are ours."""
    command = ["-m", "clawrl_trl.cli.main", *words]
    child = pexpect.spawn(sys.executable, command, encoding="utf-8", dimensions=(60, 80), timeout=120)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in str(child.before).split("\r\n")]


@pytest.mark.parametrize("words", [("sessions",), ("inspect", HOSTILE), ("explain", HOSTILE), ("policies",)])
@pytest.mark.parametrize("json_flag", [(), ("--json",)], ids=["words", "json"])
def test_no_control_character_of_a_client_is_printed(
    run: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], json_flag: tuple[str, ...]
) -> None:
    text = printed(capsys, *words, "--run", run, *json_flag)
    assert not [char for char in text if char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf", "Cs")]
    if json_flag and words[0] == "inspect":
        assert json.loads(text)["turns"][0]["response"]["content"] == HOSTILE, "programs get it unchanged"
    if not json_flag and words[0] != "policies":
        assert "[/bold]" in text and "\\x1b]0;owned" in text and "\\u202e" in text


def test_a_hostile_name_can_be_forgotten(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "owned" in printed(capsys, "forget", HOSTILE, "--run", run)
    assert "owned" not in printed(capsys, "sessions", "--run", run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("sessions",), ("explain", "1b4e28ba"), ("inspect", "1b4e28ba"), ("policies",)], ids=" ".join
)
def test_lines_fit_a_terminal_and_nothing_is_cut(run: str, words: tuple[str, ...]) -> None:
    lines = on_a_terminal(*words, "--run", run)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


@pytest.mark.slow
def test_a_short_id_from_the_table_is_found_again(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in on_a_terminal("sessions", "--run", run) if line]
    assert rows[0] == ["session", "turns", "main", "side", "started", "last"]
    short = [row[0] for row in rows[1:] if re.fullmatch(r"[0-9a-f-]{8,20}", row[0])]
    assert len(short) == 2
    for name in short:
        assert json.loads(printed(capsys, "inspect", name, "--run", run, "--json"))["turns"]


def test_a_pipe_gets_full_values(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = printed(capsys, "sessions", "--run", run).splitlines()
    assert header.split("\t") == ["session_id", "turns", "main", "side", "started_at", "last_at"]
    names = {row.split("\t")[0] for row in rows}
    assert "1b4e28ba-2fa1-11d2-883f-0016d3cca427" in names
    assert any(re.fullmatch(r"session_[0-9a-f]{28}", name) for name in names)


def test_inspect_shows_the_persons_words_and_what_came_of_the_reply(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "inspect", "1b4e28ba", "--run", run)
    assert SAID.strip() in text
    assert "queue is empty" not in text and "Runtime:" not in text
    assert "finished by length" in text
    assert re.search(r"next state: user, in turn [0-9a-f]{10,}", text) and "Shorter!" in text
    assert "feedback (text -1)" in text and "far too long" in text and "Be brief." in text


def test_explain_says_why_a_turn_is_not_trainable_and_how_its_session_was_recognised(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "explain", "1b4e28ba", "--run", run)
    assert "recognised by the id that openclaw writes into its messages" in text
    assert "not trainable: sampled with a top_k of 5" in text
    assert "recognised by the header x-session-id" in printed(capsys, "explain", HOSTILE, "--run", run)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _command(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"clawrl {__version__}\n"


def test_a_reader_that_leaves_ends_it_quietly(run: str) -> None:
    command = f"{sys.executable} -m clawrl_trl.cli.main inspect 1b4e28ba --run {run} --json | true"
    done = subprocess.run(["bash", "-c", command + '; exit "${PIPESTATUS[0]}"'], capture_output=True, text=True)
    assert done.returncode in (0, 141) and done.stderr == ""


@given(st.text())
def test_visible_text_holds_no_control_character(text: str) -> None:
    visible = make_visible(text)
    assert not [char for char in visible if char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cs")]
    assert make_visible(visible) == visible
    if text.isprintable():
        assert visible == text
    assert json.loads(encode_json({text: [text]})) == {text: [text]}
