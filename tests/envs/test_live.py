"""Persona, gateway, engine and ledger together: what was said is what is on record, also after a kill."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.envs.chat.evaluation import evaluate
from clawrl_trl.envs.chat.user_model import ATTEMPTS
from clawrl_trl.envs.runs.persona_options import PersonaOptions
from clawrl_trl.envs.runs.persona_worker import play
from clawrl_trl.envs.runs.worker import find_gateway
from clawrl_trl.ledger import Ledger, turns
from clawrl_trl.ledger.schema import Session
from clawrl_trl.process import end_with_parent
from clawrl_trl.run import RunFolder

pytestmark = pytest.mark.xdist_group("live")


class Run:
    """An engine and a gateway on a run folder, as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ServeSettings(run=str(folder), port=0).save()
        self.engine = self._start("clawrl_trl.engines.embedded")
        self.gateway = self._start("clawrl_trl.gateway")

    def restart_gateway(self) -> None:
        self.gateway.kill()
        self.gateway.wait()
        self.gateway = self._start("clawrl_trl.gateway")

    def end(self) -> None:
        for process in (self.gateway, self.engine):
            process.terminate()
            process.wait()

    def _start(self, module: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, "--run", str(self.folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, env=environment, preexec_fn=end_with_parent)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("served"))
    yield run
    run.end()


@pytest.mark.slow
def test_chats_survive_a_killed_gateway_and_reach_the_ledger(served: Run) -> None:
    def kill_once(row: Mapping[str, Any]) -> None:
        if row["index"] == 0:
            served.restart_gateway()

    options = PersonaOptions(interactions=3, think_time=0.0, patience=120, sampling={"max_tokens": 48})
    rows = play(served.folder, options, progress=kill_once)
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert sum(row["failed"] for row in rows) >= 1
    assert all(row["first_score"] is not None and row["policy_version"] == 0 for row in rows)

    ledger = Ledger.open(served.folder / "ledger.db")
    with ledger.reader() as reader:
        session_ids = {session.external_id: session.id for session in reader.scalars(select(Session))}
        for row in rows:
            main_turns = [
                turn for turn in turns.of_session(reader, session_ids[row["session_id"]]) if turn.kind == "main"
            ]
            assert len(main_turns) >= row["turns"]
            assert sum(turn.next_state is not None for turn in main_turns) >= row["turns"] - 1
            assert {turn.policy_version for turn in main_turns} == {0}
    ledger.close()


@pytest.mark.slow
def test_thumbs_are_stored_as_feedback_and_bring_the_turns_to_the_judge(served: Run, tmp_path: Path) -> None:
    options = PersonaOptions(persona="thumbs", interactions=3, think_time=0.0, sampling={"max_tokens": 48})
    rows = play(tmp_path, options, base_url=find_gateway(served.folder, 60)())
    assert [row["turns"] for row in rows] == [1, 1, 1]
    assert [row["thumbs"] for row in rows] == [[1 if row["first_score"] else -1] for row in rows]
    assert sum(row["failed"] for row in rows) == 0

    ledger = Ledger.open(served.folder / "ledger.db")
    with ledger.reader() as reader:
        session_ids = {session.external_id: session.id for session in reader.scalars(select(Session))}
        for row in rows:
            (turn,) = turns.of_session(reader, session_ids[row["session_id"]])
            assert (turn.kind, turn.state, turn.next_state) == ("main", "judging", None)
            feedback = [(item.kind, item.value, item.text) for item in turns.feedback_of(reader, turn.id)]
            assert feedback == [("thumbs", float(row["thumbs"][0]), None)]
    ledger.close()


@pytest.mark.slow
def test_a_user_whom_the_bundled_model_can_not_play_leaves_and_nothing_is_scored(served: Run, tmp_path: Path) -> None:
    base_url = find_gateway(served.folder, 120.0)()
    file = tmp_path / "mia.yaml"
    file.write_text(f"name: mia\ngoal: A name for a bakery.\nmodel: clawrl\nbase_url: {base_url}\n")
    ledger = Ledger.open(served.folder / "ledger.db")
    with ledger.reader() as reader:
        before = turns.counts(reader)
    options = PersonaOptions(
        persona=str(file), interactions=2, think_time=0.0, patience=120, sampling={"max_tokens": 48}
    )
    rows = play(tmp_path, options, base_url=base_url)
    assert len(rows) == 2
    for row in rows:
        assert row["dropped"] == "the user's model did not answer with JSON of text, mood and satisfied"
        assert row["first_score"] is None and row["scores"] == [] and row["requests"] == 0
    with ledger.reader() as reader:
        after = turns.counts(reader)
    ledger.close()
    assert after["captured"] == before["captured"] + 2 * ATTEMPTS, "the user's words are on the side"
    assert {state: count for state, count in after.items() if state != "captured"} == {
        state: count for state, count in before.items() if state != "captured"
    }


def test_evaluation_is_repeatable_and_on_the_side(served: Run) -> None:
    play(served.folder, PersonaOptions(interactions=1, patience=120, sampling={"max_tokens": 48}))
    base_url = RunFolder(served.folder).read_announced("gateway")["base_url"]
    first = evaluate(base_url, None, "teacher", problems=4, seed=1, max_tokens=48)
    again = evaluate(base_url, None, "teacher", problems=4, seed=1, max_tokens=48)
    assert (first.n, first.failed) == (4, 0)
    assert [row["reply"] for row in first.rows] == [row["reply"] for row in again.rows]

    ledger = Ledger.open(served.folder / "ledger.db")
    with ledger.reader() as reader:
        evaluated = select(Session).where(Session.external_id.startswith("evaluation-"))
        recorded_turns = [
            turn for session in reader.scalars(evaluated) for turn in turns.of_session(reader, session.id)
        ]
    assert len(recorded_turns) == 8
    assert {turn.kind for turn in recorded_turns} == {"side"}
    ledger.close()
