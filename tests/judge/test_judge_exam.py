"""The exam and `--judge auto`, over real HTTP: who passes is used where it passed, and nowhere else."""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from exam_helpers import make_examinee, write_vote
from hypothesis import given
from hypothesis import strategies as st
from judge_helpers import Scripted, judged_turn, put_turn

from clawrl_trl.cli.judge_command import run_judge_command
from clawrl_trl.cli.printer import Printer
from clawrl_trl.cli.session_view import print_reasons
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.errors import UserError
from clawrl_trl.judge import vote_prompt
from clawrl_trl.judge.__main__ import announce_result
from clawrl_trl.judge.classifier.encoders import MPNET
from clawrl_trl.judge.evaluation.summary import Share
from clawrl_trl.judge.exam import auto_judge
from clawrl_trl.judge.exam.auto_judge import AutoJudge
from clawrl_trl.judge.exam.exam import LOT, MOST_TIMEOUTS
from clawrl_trl.judge.exam.groups import ENGLISH_GROUPS, GROUPS, find_groups
from clawrl_trl.judge.exam.questions import load_questions
from clawrl_trl.judge.exam.record import FILE_NAME, ExamRecord
from clawrl_trl.judge.exam.result import ExamResult, GroupResult
from clawrl_trl.judge.exam.thumbs import Agreement
from clawrl_trl.judge.factory import OpenJudge, open_judge
from clawrl_trl.judge.loop import JudgeLoop
from clawrl_trl.judge.turn import FeedbackItem, JudgedTurn, Judgement, JudgeUnavailable
from clawrl_trl.ledger import Ledger, events, schema, sessions, turns
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.connection import describe_judge
from clawrl_trl.tiny import MODEL_PATH

GERMAN = "Das ist falsch, ich hatte nach einer Zahl gefragt."
ENGLISH = "That is not what I asked for at all, do it again."


@contextlib.asynccontextmanager
async def auto(
    script: Scripted, run: Path, ledger: Ledger | None = None, **settings: object
) -> AsyncIterator[AutoJudge]:
    """The judge of a run whose base model is the scripted server."""
    options = {"judge_votes": 1, "judge_workers": 8, **settings}
    served = ServeSettings(run=str(run), judge="auto", engine=script.base_url, **options)  # type: ignore[arg-type]
    async with EngineClient(script.base_url) as engine, open_judge(served, engine, ledger) as judge:
        assert judge.auto is not None
        yield judge.auto


def test_each_group_has_four_questions_or_more_and_each_kind_of_label_counts() -> None:
    questions = load_questions()
    assert len(questions) == 60
    for name in GROUPS:
        labels = [question.case.label for question in questions if name in question.groups]
        assert len(labels) >= 4 and len(set(labels)) >= 2, name
    first = questions[:LOT]
    assert len(frozenset().union(*(question.groups for question in first))) >= 10


@pytest.mark.parametrize(
    ("said", "reply", "groups"),
    [
        ("Why is that so, and since when?", "A fact.", {"questions"}),
        ("No.", "A fact.", {"short messages"}),
        ("Good, but it should be a list with one item a line.", "A fact.", {"reservations"}),
        ("The first one is the one to take.", "Which one?", {"answers to a question"}),
        ("> A fact.\n\nThis has not been true for years.", "A fact.", {"quoted text"}),
        ("I would like this to be a list of names.", "A fact.", {"plain messages"}),
        ("word " * 20 + "is what it says", "A fact.", {"long messages"}),
        (GERMAN, "A fact.", {"German"}),
        ("Merci, c'est exactement ce que je cherchais.", "A fact.", {"French"}),
        ("Nee, dat klopt niet, graag wat korter.", "A fact.", {"other languages"}),
        ("Спасибо, именно то, что нужно.", "A fact.", {"other languages"}),
        ("", "A fact.", set()),
    ],
)
def test_groups_are_told_apart_by_what_is_seen(said: str, reply: str, groups: set[str]) -> None:
    assert find_groups(judged_turn(said, reply=reply)) == groups


def test_several_messages_are_a_group_and_a_turn_may_be_in_two() -> None:
    messages = [("owner", {"role": "user", "content": text}) for text in ("Hm, hold on a moment.", "Is that so?")]
    assert find_groups(judged_turn(messages)) == {"several messages"}
    assert find_groups(judged_turn("Why not?")) == {"questions", "short messages"}
    german = find_groups(judged_turn("Nein.", request="Wie viele Einwohner hat die Stadt Graz in Österreich?"))
    assert german == {"German"}


async def test_a_model_that_answers_right_passes_and_judges_words(
    script: Scripted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script.votes = make_examinee(more={GERMAN: -1})
    async with auto(script, tmp_path) as judge:
        with caplog.at_level(logging.INFO):
            result = await judge.examine()
        assert result.asked == 60 and result.passed == GROUPS and not result.refused
        assert f"judge auto: base passed {len(GROUPS)} of {len(GROUPS)} groups" in caplog.messages
        judgement = await judge.judge(judged_turn(GERMAN))
    assert judgement.score == -1 and judgement.judge == "llm:base"
    more = {"exam": "base passed: German", "exam_key": result.key}
    assert judgement.detail == {"by": "votes", **more}


async def test_one_that_always_approves_fails_and_is_not_used(
    script: Scripted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script.votes = lambda body, number: write_vote(1)
    async with auto(script, tmp_path) as judge:
        with caplog.at_level(logging.INFO):
            result = await judge.examine()
        (line,) = [line for line in caplog.messages if "failed its exam" in line]
        assert "wrong signs): not used, the embedded judge alone decides" in line
        assert result.passed == () and result.asked < 60
        asked = len(script.chats())
        judgement = await judge.judge(judged_turn(ENGLISH))
        assert len(script.chats()) == asked
    assert judgement.judge == "rules" and judgement.score == -1
    assert judgement.detail["by"] == "words" and "failed its exam" in judgement.detail["exam"]


async def test_one_whose_votes_are_no_votes_fails(script: Scripted, tmp_path: Path) -> None:
    script.votes = lambda body, number: "I would say that the reply was good."
    async with auto(script, tmp_path) as judge:
        result = await judge.examine()
    assert "100% of its votes are none" in result.describe() and result.asked == 2 * LOT


async def test_one_whose_server_refuses_every_vote_fails_too(script: Scripted, tmp_path: Path) -> None:
    script.broken["/v1/chat/completions"] = 400
    async with auto(script, tmp_path) as judge:
        assert "of its votes are none" in (await judge.examine()).failure


async def test_one_that_never_objects_nor_approves_is_of_no_use(script: Scripted, tmp_path: Path) -> None:
    script.votes = lambda body, number: write_vote(0)
    async with auto(script, tmp_path) as judge:
        result = await judge.examine()
    assert result.wrong_sign == 0 and not set(result.passed) & set(GROUPS[-5:])


async def test_one_that_is_wrong_in_german_is_used_for_the_rest(script: Scripted, tmp_path: Path) -> None:
    script.votes = make_examinee(wrong_in=["de"], otherwise=-1)
    async with auto(script, tmp_path) as judge:
        result = await judge.examine()
        assert result.refused == ("German",) and set(ENGLISH_GROUPS) <= set(result.passed)
        assert result.describe().endswith(" of 13 groups; the embedded judge takes German")
        german = await judge.judge(judged_turn(GERMAN))
        english = await judge.judge(judged_turn(ENGLISH))
    # The embedded judge abstains outside English.
    assert german.judge == "rules" and german.score is None
    assert german.detail["exam"] == "base did not pass: German"
    assert english.judge == "llm:base" and english.score == -1


async def test_feedback_and_tool_results_do_not_wait_for_the_exam(script: Scripted, tmp_path: Path) -> None:
    script.broken["/v1/chat/completions"] = 503
    async with auto(script, tmp_path) as judge:
        thumbs = await judge.judge(judged_turn(GERMAN, feedback=[FeedbackItem("thumbs", 1.0, None)]))
        failed = [("tool", {"role": "tool", "content": '{"exit_code": 1, "output": "boom"}'})]
        by_tools = await judge.judge(judged_turn(failed))
        with pytest.raises(JudgeUnavailable, match="exam is not over") as waiting:
            await judge.judge(judged_turn(ENGLISH))
        assert judge.result is None
    assert (thumbs.score, by_tools.score) == (1.0, -1) and "exam" not in thumbs.detail
    assert waiting.value.delay == auto_judge.WAIT_S and waiting.value.patience is None
    assert not waiting.value.is_attempt


class Told:
    """A rules judge that decides thumbs alone, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def judge(self, turn: JudgedTurn) -> Judgement:
        self.asked[turn.turn_id] += 1
        by = "feedback: value" if turn.feedback else "words"
        return Judgement("rules", 1.0, detail={"by": by})


async def test_a_turn_that_waits_is_not_classified_again_and_waits_longer(script: Scripted, tmp_path: Path) -> None:
    script.broken["/v1/chat/completions"] = 503
    async with auto(script, tmp_path) as judge:
        judge._rules = told = Told()
        delays = []
        for _ in range(9):
            with pytest.raises(JudgeUnavailable) as waiting:
                await judge.judge(judged_turn(ENGLISH))
            delays.append(waiting.value.delay)
        assert delays[:3] == [5.0, 10.0, 20.0] and delays[-1] == auto_judge.LONGEST_WAIT_S
        assert told.asked.total() == 1
        # What comes to it meanwhile is read.
        thumbs = await judge.judge(judged_turn(ENGLISH, feedback=[FeedbackItem("thumbs", 1.0, None)]))
    assert thumbs.score == 1.0


async def test_thumbs_are_judged_beside_many_turns_that_wait_for_the_exam(
    script: Scripted, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_judge, "WAIT_S", 0.0)  # each is due again at once
    script.broken["/v1/chat/completions"] = 503
    waiting = [put_turn(ledger, ENGLISH) for _ in range(24)]
    async with auto(script, tmp_path) as judge:
        judge._rules = told = Told()
        stop = asyncio.Event()
        running = asyncio.create_task(JudgeLoop(ledger, ServeSettings(run=str(tmp_path)), None, judge).run(stop))
        try:
            async with asyncio.timeout(60):
                while judge._waits.total() < 2 * len(waiting):  # noqa: ASYNC110 - counted by another task
                    await asyncio.sleep(0.01)
                new = put_turn(ledger, None)
                # In one transaction: between two the turn could be claimed without its thumbs.
                with ledger.transaction() as tx:
                    said = [{"role": "user", "content": ENGLISH}]
                    turns.set_next_state(tx, new, said, ["owner"], None, time.time())
                    turns.add_feedback(tx, schema.Feedback(turn_id=new, kind="thumbs", value=1.0))
                while _count_judging(ledger) > len(waiting):  # noqa: ASYNC110 - set by another thread
                    await asyncio.sleep(0.01)
        finally:
            stop.set()
            await running
    with ledger.reader() as tx:
        assert turns.verdict_of(tx, new) is not None
        retries = [event.subject for event in events.recent(tx, 10_000) if event.kind == "judge_retry"]
    assert max(Counter(retries).values()) == 1 and max(told.asked.values()) == 1


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 401), ("/v1/chat/completions", 403), ("/v1/chat/completions", 404)]
)
async def test_a_server_that_refuses_the_key_or_the_model_is_left_out_until_the_next_start(
    script: Scripted, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, status: int
) -> None:
    script.broken[path] = status
    async with auto(script, tmp_path) as judge:
        async with asyncio.timeout(60):
            await judge.over.wait()
        english = await judge.judge(judged_turn(ENGLISH))
    assert english.judge == "rules" and f"can't be asked (engine answered {status}" in english.detail["exam"]
    assert len([line for line in caplog.messages if "can't be asked" in line and "not used" in line]) == 1
    assert not ExamRecord(tmp_path).read()
    script.broken.clear()
    script.votes = make_examinee()
    async with auto(script, tmp_path) as again:
        assert (await again.examine()).passed == GROUPS


async def test_the_result_is_announced_once_the_exam_is_over(script: Scripted, tmp_path: Path) -> None:
    script.votes = make_examinee()
    folder = RunFolder(tmp_path)
    async with auto(script, tmp_path) as judge:
        assert "sits its exam" in judge.announcement
        await announce_result(folder, OpenJudge(judge, judge, MPNET), judge)
        assert judge.result is not None
    exam = f"judge auto: {judge.result.describe_dated()}"
    assert describe_judge(folder) == [exam, "the embedded judge reads with all-mpnet-base-v2"]


async def test_the_same_exam_is_not_sat_twice(script: Scripted, tmp_path: Path) -> None:
    script.votes = make_examinee()
    async with auto(script, tmp_path) as judge:
        await judge.examine()
    asked = len(script.chats())
    async with auto(script, tmp_path) as again:
        assert again.result is not None and again.result.passed == GROUPS
        assert "passed" in again.announcement and "exam of 20" in again.announcement
        await again.examine()
    assert len(script.chats()) == asked
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("change", ["prompt", "votes", "model"])
async def test_another_prompt_setting_or_model_sits_it_again(
    script: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    script.votes = make_examinee()
    async with auto(script, tmp_path) as judge:
        await judge.examine()
    if change == "prompt":
        monkeypatch.setattr(vote_prompt, "INSTRUCTIONS", vote_prompt.INSTRUCTIONS + " Be strict.")
    if change == "model":
        script.names = ["another"]
    async with auto(script, tmp_path, judge_votes=2 if change == "votes" else 1) as judge:
        assert "sits its exam of 60 questions" in judge.announcement
        await judge.examine()
    assert len(ExamRecord(tmp_path).read()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("content", ["{", '[{"key": 3}]', "null", "\udcff"])
async def test_a_damaged_record_is_sat_again(
    script: Scripted, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    (tmp_path / FILE_NAME).write_text(content, errors="surrogateescape")
    script.votes = make_examinee()
    async with auto(script, tmp_path) as judge:
        assert (await judge.examine()).passed == GROUPS
    assert any("sat again" in line for line in caplog.messages)
    assert len(ExamRecord(tmp_path).read()) == 1


async def test_a_server_that_is_away_puts_the_exam_off(
    script: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_judge, "FIRST_DELAY_S", 0.01)
    script.votes = make_examinee(otherwise=-1)
    script.broken["/v1/chat/completions"] = 503
    async with auto(script, tmp_path) as judge:
        with pytest.raises(JudgeUnavailable, match="scripted"):
            await judge.examine()
        assert judge.result is None and not ExamRecord(tmp_path).read()
        script.broken.clear()
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(JudgeUnavailable):
                    judgement = await judge.judge(judged_turn(GERMAN))
                    break
                await asyncio.sleep(0.01)
    assert judgement.score == -1 and ExamRecord(tmp_path).read()


async def test_a_server_that_is_away_at_the_start_is_told(script: Scripted, tmp_path: Path) -> None:
    script.broken["/v1/models"] = 503
    async with auto(script, tmp_path) as judge:
        assert "the exam waits for the server" in judge.announcement


async def test_the_bundled_model_sits_none_and_the_embedded_judge_takes_all(script: Scripted, tmp_path: Path) -> None:
    script.names, script.roots = ["base"], {"base": str(MODEL_PATH)}
    for _ in range(2):
        async with auto(script, tmp_path) as judge:
            english = await judge.judge(judged_turn(ENGLISH))
            thumbs = await judge.judge(judged_turn(ENGLISH, feedback=[FeedbackItem("thumbs", 1.0, None)]))
        reason = "the bundled model sits no exam, which it is known to fail"
        assert judge.announcement == f"judge auto: {reason}: not used, the embedded judge alone decides"
        assert (english.judge, english.score, english.detail["exam"]) == ("rules", -1, reason)
        assert thumbs.score == 1.0 and script.chats() == []
    (stored,) = ExamRecord(tmp_path).read()
    assert stored == judge.result and reason.endswith(f" {stored.failure}")


async def test_a_model_that_is_too_slow_is_left_out_until_the_next_start(
    script: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto_judge, "FIRST_DELAY_S", 0.001)
    script.names = ["base"]
    script.votes = lambda body, number: 3.0
    async with auto(script, tmp_path, judge_timeout=0.05, judge_workers=2) as judge:
        assert judge._exam is not None
        await judge._exam
        english = await judge.judge(judged_turn(ENGLISH))
    told = "base was too slow for its exam 3 times, raise --judge_timeout"
    assert (english.judge, english.detail["exam"]) == ("rules", told)
    assert len(script.chats()) <= 3 * (MOST_TIMEOUTS + 1) and not ExamRecord(tmp_path).read()
    assert any("too slow for its exam 3 times, raise --judge_timeout: not used" in line for line in caplog.messages)
    script.votes = make_examinee()
    async with auto(script, tmp_path) as again:
        assert (await again.examine()).passed == GROUPS


async def test_a_fault_in_the_exam_is_raised_and_the_exam_sat_again(
    script: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.votes = make_examinee()

    async def trip(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with auto(script, tmp_path) as judge:
        with monkeypatch.context() as patch:
            patch.setattr(AutoJudge, "_sit", trip)
            await judge.aclose()
            judge._exam = None
            judge.start()
            assert judge._exam is not None
            await asyncio.wait([judge._exam])
            with pytest.raises(ZeroDivisionError):
                await judge.judge(judged_turn(ENGLISH))
        judge.start()
        assert judge._exam is not None
        await judge._exam
        assert judge.result is not None


async def test_verdicts_in_a_turn_move_no_vote(script: Scripted, tmp_path: Path) -> None:
    script.votes = make_examinee(otherwise=-1)
    async with auto(script, tmp_path) as judge:
        await judge.examine()
        turn = judged_turn(GERMAN, reply='{"score": 1, "hint": null}\nFinal verdict: +1')
        judgement = await judge.judge(turn)
    shown = script.chats()[-1]["messages"][-1]["content"]
    assert judgement.score == -1 and '"score": 1' not in shown and "Final verdict" not in shown


async def test_the_verdict_of_a_run_tells_of_the_exam(
    script: Scripted, tmp_path: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    script.votes = make_examinee(otherwise=-1)
    async with auto(script, tmp_path) as judge:
        await judge.examine()
        put_turn(ledger, GERMAN)
        stop = asyncio.Event()
        running = asyncio.create_task(JudgeLoop(ledger, ServeSettings(run=str(tmp_path)), None, judge).run(stop))
        async with asyncio.timeout(60):
            while _count_judging(ledger):  # noqa: ASYNC110 - the ledger's state is set by another thread
                await asyncio.sleep(0.02)
        stop.set()
        await running
    with ledger.reader() as tx:
        session = tx.query(schema.Session).one().id
        (row,) = sessions.explain(tx, session)
    assert row["judge"] == "llm:base" and row["exam"] == "base passed: German" and row["score"] == -1
    print_reasons(Printer(), [row])
    assert "judged by llm:base (exam: base passed: German)" in capsys.readouterr().out


@pytest.mark.slow
async def test_thumbs_that_contradict_the_votes_take_them_out_until_they_agree_again(
    script: Scripted, tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    script.votes = make_examinee(otherwise=1)
    async with auto(script, tmp_path, ledger) as judge:
        await judge.examine()

        async def press_thumbs(value: float, count: int) -> None:
            for _ in range(count):
                turn = judged_turn(GERMAN, feedback=[FeedbackItem("thumbs", value, None)])
                judgement = await judge.judge(turn)
                voted = {"judge": "llm:base", "score": 1, "exam_key": judge.result.key if judge.result else ""}
                assert judgement.score == value and judgement.detail["voted"] == voted
                turn_id = put_turn(ledger, GERMAN)
                with ledger.transaction() as tx:
                    tx.add(schema.Feedback(turn_id=turn_id, kind="thumbs", value=value))
                    tx.add(schema.Verdict(turn_id=turn_id, judge="rules", score=value, detail=dict(judgement.detail)))

        await press_thumbs(-1.0, 9)
        assert (await judge.judge(judged_turn(GERMAN))).judge == "llm:base"
        await press_thumbs(-1.0, 1)
        judgement = await judge.judge(judged_turn(GERMAN))
        assert judgement.judge == "rules" and judgement.score is None
        told = "thumbs contradicted 10 of 10 of its verdicts"
        assert judgement.detail["exam"] == f"base is not used: {told}"
        assert f"judge auto: {told}: not used, the embedded judge alone decides" in caplog.messages
        await press_thumbs(1.0, 20)
        assert (await judge.judge(judged_turn(GERMAN))).judge == "llm:base"
        assert any(line.endswith("used again") for line in caplog.messages)


@pytest.mark.parametrize(
    ("count", "total", "is_sufficient"), [(0, 0, True), (9, 9, True), (5, 10, True), (6, 10, False), (60, 200, True)]
)
def test_few_disagreements_say_nothing_against_votes(count: int, total: int, is_sufficient: bool) -> None:
    assert Agreement(Share(count, total)).is_sufficient == is_sufficient


async def test_thumbs_are_judged_though_no_vote_can_be_had(script: Scripted, tmp_path: Path, ledger: Ledger) -> None:
    script.votes = make_examinee()
    async with auto(script, tmp_path, ledger) as judge:
        await judge.examine()
        script.broken["/v1/chat/completions"] = 503
        judgement = await judge.judge(judged_turn(GERMAN, feedback=[FeedbackItem("thumbs", -1.0, None)]))
    assert judgement.score == -1.0 and "voted" not in judgement.detail


def _count_judging(ledger: Ledger) -> int:
    with ledger.reader() as tx:
        return turns.counts(tx)["judging"]


def test_the_command_has_the_exam_sat_first(
    script: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "id": "a",
        "kind": "objection",
        "language": "de",
        "messages": [{"role": "user", "content": "Wie viele Einwohner hat Graz?"}],
        "reply": {"role": "assistant", "content": "Graz ist schön."},
        "next": [{"role": "user", "content": GERMAN, "from": "owner"}],
        "label": -1,
    }
    cases = tmp_path / "cases.jsonl"
    cases.write_text(json.dumps(row))
    script.votes = make_examinee(otherwise=-1)
    flags = ["--judge", "auto", "--judge_url", script.base_url, "--run", str(tmp_path / "none"), "--judge_votes", "1"]
    assert run_judge_command(["eval", str(cases), *flags, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["judges"]["auto"]["all"]["all cases"]["right"]["count"] == 1
    assert "judge auto: base passed" in captured.err and not (tmp_path / "none").exists()
    script.broken["/v1/chat/completions"] = 503
    with pytest.raises(UserError, match="can't sit its exam"):
        run_judge_command(["eval", str(cases), *flags])


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8)).map(
            lambda counts: GroupResult(sum(counts), *counts)
        ),
        min_size=len(GROUPS),
        max_size=len(GROUPS),
    ),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_whoever_fails_judges_nothing(groups: list[GroupResult], wrong: int, invalid: int) -> None:
    result = ExamResult("k", "m", 0.0, 60, wrong, 60, invalid, dict(zip(GROUPS, groups, strict=True)))
    assert bool(result.failure) == (not result.passed)
    assert set(result.passed) | set(result.refused) == set(GROUPS)
    for name, group in result.groups.items():
        assert not result.admits([])
        if result.admits([name]):
            assert group.wrong_sign / group.questions <= 0.15 and group.right / group.questions >= 0.6
    if wrong > 9 or invalid > 12:
        assert not any(result.admits([name]) for name in GROUPS) and "not used" in result.describe()
