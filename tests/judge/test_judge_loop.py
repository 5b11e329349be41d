"""The loop on a real ledger: one verdict per turn, whatever fails, dies or arrives meanwhile."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from judge_helpers import Scripted, put_turn
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge import loop as judge_loop
from clawrl_trl.judge.classifier.model import Opinion
from clawrl_trl.judge.factory import make_judge
from clawrl_trl.judge.loop import JudgeLoop, draw_backoff
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.teacher import HintTeacher
from clawrl_trl.judge.turn import Judge, JudgedTurn, Judgement, JudgeUnavailable
from clawrl_trl.ledger import Ledger, LedgerError, episodes, events, samples, schema, turns
from clawrl_trl.run import RunFolder


@dataclass
class Told:
    """A judge that says what it is told."""

    say: Callable[[JudgedTurn], Judgement | Exception]
    seen: list[JudgedTurn] = field(default_factory=list)
    hold: asyncio.Event | None = None
    busy: int = 0
    busiest: int = 0

    async def judge(self, turn: JudgedTurn) -> Judgement:
        self.seen.append(turn)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.busy -= 1
        result = self.say(turn)
        if isinstance(result, Exception):
            raise result
        return result


def minus(turn: JudgedTurn) -> Judgement:
    return Judgement("told", -1.0, ("No bold.",), "owner message")


async def judge_until(
    ledger: Ledger,
    judge: Judge,
    done: Callable[[], bool],
    teacher: HintTeacher | None = None,
    lease_s: float | None = None,
    **settings: object,
) -> JudgeLoop:
    stop = asyncio.Event()
    looping = JudgeLoop(ledger, ServeSettings(**settings), teacher, judge)  # type: ignore[arg-type]
    looping._lease_s = lease_s or looping._lease_s
    task = asyncio.create_task(looping.run(stop))
    try:
        async with asyncio.timeout(60):
            while not done():
                if task.done():
                    await task
                await asyncio.sleep(0.02)
    finally:
        stop.set()
        await task
    return looping


def judged(ledger: Ledger, count: int) -> Callable[[], bool]:
    def done() -> bool:
        with ledger.reader() as tx:
            return turns.counts(tx)["judged"] == count

    return done


def rows(ledger: Ledger, turn_id: str) -> tuple[schema.Turn, schema.Verdict | None, schema.Sample | None]:
    with ledger.reader() as tx:
        turn = turns.get(tx, turn_id)
        assert turn is not None
        return turn, turns.verdict_of(tx, turn_id), samples.of_turn(tx, turn_id)


async def test_verdict_and_sample_with_the_teachers_scores(ledger: Ledger, script: Scripted) -> None:
    turn_id = put_turn(ledger)
    async with EngineClient(script.base_url, timeout=10) as client:
        await judge_until(ledger, Told(minus), judged(ledger, 1), HintTeacher(client))
    turn, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and sample is not None
    assert (verdict.score, verdict.hint, verdict.hint_source) == (-1.0, "No bold.", "owner message")
    assert (sample.score, sample.state, sample.policy_version, sample.group) == (-1.0, "ready", 0, None)
    assert sample.teacher_logprobs is not None and sample.plain_logprobs is not None
    assert len(sample.teacher_logprobs) == len(sample.plain_logprobs) == len(turn.completion_ids)  # type: ignore[arg-type]
    np.testing.assert_allclose(sample.plain_logprobs, turn.logprobs, atol=1e-6)


WISH = "Great, but next time without bold please."


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rules", "llm"])
@pytest.mark.parametrize("score", [1, 0, None])
@pytest.mark.parametrize("any_score", [True, False])
async def test_a_wish_beside_an_approval_reaches_the_sample_if_asked_for(
    ledger: Ledger, script: Scripted, kind: str, score: int | None, any_score: bool
) -> None:
    turn_id = put_turn(ledger, WISH)
    hint = "Next time without bold please."
    script.votes = lambda body, number: json.dumps({"score": score, "hint": hint}) if score is not None else "hm"
    settings = ServeSettings(judge=kind, hint_any_score=any_score)
    async with EngineClient(script.base_url, timeout=10) as client:
        judge = make_judge(settings, client, None)
        if isinstance(judge, RulesJudge):
            judge._classify = lambda *texts: Opinion(score, (0.0, 0.0, 0.0))
        await judge_until(ledger, judge, judged(ledger, 1), HintTeacher(client))
    turn, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and verdict.score == score
    assert verdict.hint == (hint if any_score else None)
    if not any_score:
        assert sample is None if not score else sample is not None and sample.teacher_logprobs is None
        return
    assert sample is not None and sample.score == (score or None) and verdict.hint_source is not None
    assert sample.teacher_logprobs is not None and sample.plain_logprobs is not None
    assert len(sample.teacher_logprobs) == len(turn.completion_ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("score", [0.0, None])
async def test_undecided_turns_get_a_verdict_and_no_sample(ledger: Ledger, score: float | None) -> None:
    turn_id = put_turn(ledger)
    await judge_until(ledger, Told(lambda turn: Judgement("told", score)), judged(ledger, 1))
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and verdict.score == score and sample is None


async def test_a_turn_that_cannot_be_trained_on_gets_a_verdict_and_no_sample(ledger: Ledger) -> None:
    turn_id = put_turn(ledger, trainable=False, untrainable_reason="no ids", prompt_ids=None, logprobs=None)
    await judge_until(ledger, Told(minus), judged(ledger, 1))
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and verdict.score == -1 and sample is None


async def test_a_refusing_engine_leaves_a_sample_without_teacher(ledger: Ledger, script: Scripted) -> None:
    script.broken["/v1/completions"] = 400
    turn_id = put_turn(ledger)
    async with EngineClient(script.base_url, timeout=10) as client:
        await judge_until(ledger, Told(minus), judged(ledger, 1), HintTeacher(client))
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and "refused" in verdict.detail["no_teacher"]
    assert sample is not None and sample.teacher_logprobs is None and sample.score == -1


async def test_a_teacher_that_is_always_late_does_not_withhold_the_score(
    ledger: Ledger, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_DELAY_S", 0.001)
    turn_id = put_turn(ledger)
    async with EngineClient(script.base_url) as client:
        client.tokenize = AsyncMock(side_effect=TimeoutError)  # type: ignore[method-assign]
        await judge_until(ledger, Told(minus), judged(ledger, 1), HintTeacher(client))
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and verdict.score == -1 and verdict.detail["no_teacher"] == "teacher: time-out"
    assert sample is not None and sample.score == -1 and sample.teacher_logprobs is None


async def test_hints_off_asks_no_teacher(ledger: Ledger, script: Scripted) -> None:
    turn_id = put_turn(ledger)
    async with EngineClient(script.base_url, timeout=10) as client:
        await judge_until(ledger, Told(minus), judged(ledger, 1), HintTeacher(client), hints=False)
    assert script.requests == []
    assert rows(ledger, turn_id)[1].hint is None  # type: ignore[union-attr]


async def test_a_failure_leaves_the_turn_pending_and_is_tried_again(
    ledger: Ledger, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_DELAY_S", 0.02)
    turn_id = put_turn(ledger)
    script.broken["/tokenize"] = 503
    failures = [JudgeUnavailable("away"), ValueError("a bug")]
    judge = Told(lambda turn: failures.pop(0) if failures else minus(turn))

    def repaired() -> bool:
        if len(judge.seen) >= 5:
            script.broken.clear()
        return judged(ledger, 1)()

    async with EngineClient(script.base_url, timeout=10) as client:
        await judge_until(ledger, judge, repaired, HintTeacher(client))
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and verdict.score == -1
    assert sample is not None and sample.teacher_logprobs is not None
    with ledger.reader() as tx:
        reasons = [event.data["error"] for event in events.of(tx, turn_id) if event.kind == "judge_retry"]
    # That it then waited for the engine is no attempt, and told only of a turn of which nothing else was.
    assert reasons == ["away", "ValueError in the judge"]


async def test_a_turn_the_judge_keeps_failing_on_is_abstained_with_the_reason(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_DELAY_S", 0.001)
    bad, good = put_turn(ledger, "bad"), put_turn(ledger, "good")
    judge = Told(lambda turn: KeyError("x") if turn.said_by("owner") == ["bad"] else minus(turn))
    await judge_until(ledger, judge, judged(ledger, 2))
    assert rows(ledger, good)[1].score == -1  # type: ignore[union-attr]
    _, verdict, sample = rows(ledger, bad)
    assert verdict is not None and verdict.score is None and sample is None
    assert verdict.detail["reason"] == "KeyError in the judge"


class Shape:
    """No JSON."""


@pytest.mark.parametrize(
    "judgement",
    [
        Judgement("told", np.float32(1.0)),  # type: ignore[arg-type]
        Judgement("told", 1.0, detail={"by": Shape()}),
        Judgement("told", 1.0, votes=(Shape(),)),  # type: ignore[arg-type]
        Judgement("told", "good"),  # type: ignore[arg-type]
    ],
    ids=["score", "detail", "votes", "text"],
)
async def test_a_judgement_that_cant_be_stored_is_abstained_with_the_reason(
    ledger: Ledger, judgement: Judgement, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_DELAY_S", 0.001)
    bad, good = put_turn(ledger, "bad"), put_turn(ledger, "good")
    judge = Told(lambda turn: judgement if turn.said_by("owner") == ["bad"] else minus(turn))
    await judge_until(ledger, judge, judged(ledger, 2))
    assert rows(ledger, good)[1].score == -1  # type: ignore[union-attr]
    turn, verdict, sample = rows(ledger, bad)
    assert verdict is not None and verdict.score is None and sample is None
    assert verdict.detail["reason"].endswith("Error in the verdict") and turn.judge_attempts == judge_loop.FAULTS
    assert any(record.exc_info for record in caplog.records if "can't be stored" in record.message)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("UPDATE pieces SET content = '!' WHERE id IN (SELECT id FROM pieces ORDER BY id LIMIT 1)", "damaged"),
        ("UPDATE turns SET response = X'21' WHERE id = :id", "error in the stored turn"),
    ],
    ids=["piece", "reply"],
)
async def test_a_damaged_turn_keeps_no_other_from_its_verdict(
    ledger: Ledger, damage: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = put_turn(ledger)
    with ledger.transaction() as tx:
        tx.execute(text(damage), {"id": bad})
    good = put_turn(ledger, request="What is 6 plus 8?")
    await judge_until(ledger, Told(minus), judged(ledger, 2))
    assert rows(ledger, good)[1].score == -1  # type: ignore[union-attr]
    with ledger.reader() as tx:
        verdict = turns.verdict_of(tx, bad)
    assert verdict is not None and verdict.score is None and reason in verdict.detail["reason"]
    assert any(record.exc_info for record in caplog.records if "can't be read" in record.message)


async def test_feedback_that_arrives_while_judging_is_not_lost(ledger: Ledger) -> None:
    turn_id = put_turn(ledger)
    judge = Told(lambda turn: Judgement("told", 1.0 if turn.feedback else -1.0), hold=asyncio.Event())

    def meanwhile() -> bool:
        if len(judge.seen) == 1 and judge.hold is not None and not judge.hold.is_set():
            with ledger.transaction() as tx:
                turns.add_feedback(tx, schema.Feedback(turn_id=turn_id, kind="thumbs", value=1.0))
            judge.hold.set()
        return judged(ledger, 1)()

    await judge_until(ledger, judge, meanwhile)
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and verdict.score == 1.0 and sample is not None and sample.score == 1.0


async def test_no_more_turns_at_once_than_there_are_workers(ledger: Ledger) -> None:
    for _ in range(7):
        put_turn(ledger)
    judge = Told(minus, hold=asyncio.Event())

    def release() -> bool:
        if judge.busy == 3 and judge.hold is not None:
            judge.hold.set()
        return judged(ledger, 7)()

    await judge_until(ledger, judge, release, judge_workers=3)
    assert judge.busiest == 3


@pytest.mark.parametrize("workers", [2, 3], ids=["all busy", "one idle"])
async def test_a_slow_verdict_keeps_its_claim(ledger: Ledger, workers: int) -> None:
    for _ in range(2):
        put_turn(ledger)
    judge = Told(minus, hold=asyncio.Event())
    first: list[float] = []

    def renewed() -> bool:
        with ledger.reader() as tx:
            ends = list(tx.scalars(select(schema.Turn.judge_after)))
        if len(judge.seen) == 2 and not first:
            first.append(max(ends))
        if first and judge.hold is not None and min(ends) > first[0]:
            judge.hold.set()
        return judged(ledger, 2)()

    await judge_until(ledger, judge, renewed, lease_s=6.0, judge_workers=workers)
    assert len(judge.seen) == 2


async def test_a_stopped_loop_gives_back_what_it_could_not_finish(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_loop, "GRACE_S", 0.05)
    turn_id = put_turn(ledger)
    judge = Told(minus, hold=asyncio.Event())
    await judge_until(ledger, judge, lambda: bool(judge.seen))
    turn, verdict, _ = rows(ledger, turn_id)
    assert verdict is None and turn.state == "judging" and turn.judge_after <= time.time()


@dataclass
class Faulty:
    """Another way to a ledger that raises what it is given before it reads or writes again."""

    ledger: Ledger
    faults: list[LedgerError]
    met: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    def reader(self) -> AbstractContextManager[Session]:
        self.fail()
        return self.ledger.reader()

    def writing(self) -> AbstractContextManager[None]:
        self.fail()
        return self.ledger.writing()

    def fail(self) -> None:
        if self.faults:
            self.met += 1
            raise self.faults.pop()


async def test_a_ledger_that_fails_for_a_while_is_asked_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_DELAY_S", 0.001)
    turn_id = put_turn(ledger)
    faulty = Faulty(ledger, [LedgerError("the disk is full")])
    judge = Told(minus)

    await judge_until(faulty, judge, judged(ledger, 1))  # type: ignore[arg-type]
    assert faulty.met == 1 and "the disk is full" in caplog.text
    assert rows(ledger, turn_id)[1].score == -1  # type: ignore[union-attr]

    def reads_fail_later() -> bool:
        if faulty.met == 1 and not faulty.faults and judged(ledger, 2)():
            faulty.faults += [LedgerError("the disk fails")] * 2
        return faulty.met == 3

    put_turn(ledger)
    await judge_until(faulty, judge, reads_fail_later)  # type: ignore[arg-type]


async def test_a_loop_that_waits_for_the_ledger_stops_at_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_DELAY_S", 3600.0)
    monkeypatch.setattr(judge_loop, "LONGEST_DELAY_S", 3600.0)
    faulty = Faulty(ledger, [LedgerError("the disk is full")])
    await judge_until(faulty, Told(minus), lambda: faulty.met == 1)  # type: ignore[arg-type]


def test_back_off_doubles_up_to_a_minute() -> None:
    waits = [draw_backoff(attempt) for attempt in range(1, 40)]
    assert all(0.5 * min(60, 0.5 * 2**n) <= wait <= 60 for n, wait in enumerate(waits, start=1))


def start_judge(run: RunFolder) -> subprocess.Popen[bytes]:
    log = (run.path / "judge.log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "clawrl_trl.judge", "--run", str(run.path)],
        stdout=log,
        stderr=log,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], limit_s: float = 90) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, "the judge ended"
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


@pytest.mark.kill9
def test_killed_at_any_moment_there_is_one_verdict_per_turn(tmp_path: Path, script: Scripted) -> None:
    run = RunFolder(tmp_path).make()
    ServeSettings(run=str(tmp_path), engine=script.base_url, judge="llm", judge_votes=1).save()
    script.votes = lambda body, number: '{"score": -1, "hint": null}'
    ledger = Ledger.open(run.ledger)
    ids = [put_turn(ledger) for _ in range(40)]

    def count() -> int:
        with ledger.reader() as tx:
            return tx.scalar(select(func.count()).select_from(schema.Verdict)) or 0

    for target in (1, 12, 25):
        process = start_judge(run)
        wait_for(lambda target=target: count() >= target, process)  # type: ignore[misc]
        process.kill()
        process.wait()
    process = start_judge(run)
    wait_for(lambda: count() == len(ids), process)
    assert run.read_announced("judge") is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    with ledger.reader() as tx:
        assert sorted(tx.scalars(select(schema.Verdict.turn_id))) == sorted(ids)
        assert sorted(tx.scalars(select(schema.Sample.turn_id))) == sorted(ids)
        assert turns.counts(tx)["judged"] == len(ids)
        assert tx.scalar(select(func.count()).where(schema.Sample.teacher_logprobs.is_(None))) == 0
    ledger.close()


def test_no_settings_is_one_line_for_the_user(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clawrl_trl.judge", "--run", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1


def put_outcome(ledger: Ledger, hint: str = "x is 1, not 6.") -> str:
    """A turn of an episode that ended badly, with its environment's hint."""
    turn_id = put_turn(ledger, None)
    with ledger.transaction() as tx:
        turn = turns.get(tx, turn_id)
        assert turn is not None
        session = tx.get(schema.Session, turn.session_id)
        assert session is not None
        session.group = "g"
        episodes.settle(tx, "g", [episodes.EpisodeOutcome(session.id, -1.0, hints={turn_id: [hint]})])
    return turn_id


async def test_an_outcome_with_a_hint_gets_its_teacher_and_no_other_judge(ledger: Ledger, script: Scripted) -> None:
    turn_id, judge = put_outcome(ledger), Told(lambda turn: Judgement("told", 1.0))
    async with EngineClient(script.base_url, timeout=10) as client:
        await judge_until(ledger, judge, judged(ledger, 1), HintTeacher(client))
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and sample is not None and judge.seen == []
    assert (verdict.judge, verdict.score, verdict.hint_source) == ("outcome", -1.0, "environment")
    assert verdict.hint == "x is 1, not 6." and "waiting" not in verdict.detail and sample.score == -1.0
    asked = [body["messages"][-1]["content"] for body in script.requests if body["path"] == "/tokenize"]
    assert any(text.endswith("\nx is 1, not 6.") for text in asked)
    assert not any("user's later message" in text for text in asked)
    assert ("no_teacher" in verdict.detail) == (sample.teacher_logprobs is None)


async def test_waiting_exhausts_no_patience(ledger: Ledger, script: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_loop, "FIRST_DELAY_S", 0.0)
    turn_id = put_turn(ledger)
    waits = [JudgeUnavailable("an exam is under way", is_attempt=False) for _ in range(2 * judge_loop.FAULTS)]
    refusals = [JudgeUnavailable("refused", patience=2)]
    judge = Told(lambda turn: waits.pop() if waits else refusals.pop() if refusals else minus(turn))
    await judge_until(ledger, judge, judged(ledger, 1))
    turn, verdict, _ = rows(ledger, turn_id)
    assert verdict is not None and verdict.score == -1 and turn.judge_attempts == 2


async def test_an_outcome_waits_for_an_engine_that_is_away(ledger: Ledger, script: Scripted) -> None:
    turn_id = put_outcome(ledger)
    script.broken["/tokenize"] = 503

    def retried() -> bool:
        with ledger.reader() as tx:
            return bool(tx.scalar(select(func.count()).where(schema.Event.kind == "judge_retry")))

    async with EngineClient(script.base_url, timeout=10) as client:
        await judge_until(ledger, Told(minus), retried, HintTeacher(client))
        turn, verdict, sample = rows(ledger, turn_id)
        assert turn.state == "judging" and sample is None and verdict is not None and "waiting" in verdict.detail
        script.broken.clear()
        await judge_until(ledger, Told(minus), judged(ledger, 1), HintTeacher(client))  # as after a restart
    assert rows(ledger, turn_id)[2] is not None


async def test_an_outcome_without_a_teacher_is_a_sample_all_the_same(ledger: Ledger) -> None:
    turn_id = put_outcome(ledger)
    await judge_until(ledger, Told(minus), judged(ledger, 1), None)
    _, verdict, sample = rows(ledger, turn_id)
    assert verdict is not None and sample is not None
    assert (verdict.judge, sample.score, sample.teacher_logprobs) == ("outcome", -1.0, None)
