"""The judge's calibration: what it counts, and what it says of a bad judge."""

from dataclasses import replace
from pathlib import Path

import pytest
from doctor_rig import run_one_check

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor import calibration
from clawrl_trl.doctor.calibration import find_best_margins
from clawrl_trl.doctor.command import ENGINE_CHECKS, run_check
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.judge.classifier.encoders import ENCODERS, MPNET
from clawrl_trl.judge.exam.auto_judge import AutoJudge
from clawrl_trl.judge.exam.record import ExamRecord
from clawrl_trl.judge.exam.result import ExamResult, GroupResult
from clawrl_trl.judge.factory import make_judge
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.turn import JudgedTurn, Judgement
from clawrl_trl.tiny import MODEL_PATH

CHECKS = {check.name: check for check in ENGINE_CHECKS}


async def test_the_shipped_rules_pass() -> None:
    (finding,) = await run_one_check(CHECKS["rules judge"], None)
    assert finding.status == "ok" and "threshold 0.5" in finding.detail


async def test_an_encoder_that_is_not_here_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise AssertionError("nobody asked for a download")

    mpnet = replace(ENCODERS[MPNET], look=lambda: None, fetch=refuse)
    monkeypatch.setitem(ENCODERS, MPNET, mpnet)
    (finding,) = await run_check(CHECKS["rules judge"], Target(ServeSettings(judge_encoder=MPNET)))
    assert finding.status == "skipped" and "all-mpnet-base-v2 is not here yet" in finding.detail


async def test_a_judge_with_the_signs_swapped_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = RulesJudge.decide

    def swapped(self: RulesJudge, turn: JudgedTurn) -> Judgement:
        finding = decide(self, turn)
        return Judgement(finding.judge, None if finding.score is None else -finding.score, detail=finding.detail)

    monkeypatch.setattr(RulesJudge, "decide", swapped)
    (finding,) = await run_one_check(CHECKS["rules judge"], None)
    assert finding.status == "fail" and "wrong sign" in finding.detail and finding.fix


async def test_a_judge_that_never_decides_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RulesJudge, "decide", lambda self, turn: Judgement("rules", None))
    (finding,) = await run_one_check(CHECKS["rules judge"], None)
    assert finding.status == "warn" and "100% abstained" in finding.detail


async def test_the_llm_judge_is_not_asked_unless_set() -> None:
    (finding,) = await run_one_check(CHECKS["llm judge"], None)
    assert finding.status == "skipped" and "--judge auto" in finding.detail


class Server(EngineClient):
    """A client of a server that has one model."""

    def __init__(self, root: str) -> None:
        super().__init__("http://127.0.0.1:1")
        self._root = root

    async def find_base_name(self) -> str:
        return "base"

    async def roots(self) -> dict[str, str | None]:
        return {"base": self._root}


async def make_exam_target(run: Path, root: str = "/models/Qwen3-4B") -> tuple[Target, str]:
    """A target that has a model, and the key of its exam."""
    settings = ServeSettings(run=str(run), judge="auto")
    client = Server(root)
    judge = make_judge(settings, client, None)
    assert isinstance(judge, AutoJudge)
    return Target(settings, client), (await judge._identify())[0]


@pytest.mark.parametrize(("wrong", "status"), [(0, "ok"), (20, "warn")])
async def test_the_stored_exam_is_shown_and_not_sat(tmp_path: Path, wrong: int, status: str) -> None:
    target, key = await make_exam_target(tmp_path)
    (finding,) = await run_check(CHECKS["judge's exam"], target)
    assert finding.status == "skipped" and "not sat yet" in finding.detail
    groups = {"German": GroupResult(5, 5, 0, 0), "questions": GroupResult(5, 1, 4, 0)}
    ExamRecord(tmp_path).store(ExamResult(key, "Qwen3-4B", 0.0, 60, wrong, 180, 0, groups))
    (finding,) = await run_check(CHECKS["judge's exam"], target)
    assert finding.status == status and "exam of 1970-01-01" in finding.detail
    told = "passed 1 of 2 groups; the embedded judge takes questions" if status == "ok" else "not used"
    assert told in finding.detail and bool(finding.fix) == (status == "warn")


async def test_another_models_exam_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    target, key = await make_exam_target(tmp_path)
    groups = {"German": GroupResult(5, 5, 0, 0)}
    ExamRecord(tmp_path).store(ExamResult(key, "Qwen3-4B", 1.0, 60, 0, 180, 0, groups))
    other, _ = await make_exam_target(tmp_path, "/models/Qwen3-0.6B")
    (finding,) = await run_check(CHECKS["judge's exam"], other)
    assert finding.status == "skipped" and "not sat yet (there are 1 of another model or prompt)" in finding.detail
    ExamRecord(tmp_path).store(ExamResult("other", "Qwen3-0.6B", 2.0, 60, 60, 180, 0, groups))
    (finding,) = await run_check(CHECKS["judge's exam"], target)
    assert finding.status == "ok" and "Qwen3-4B" in finding.detail


async def test_a_model_that_sat_none_is_no_reason_to_warn(tmp_path: Path) -> None:
    target, key = await make_exam_target(tmp_path, str(MODEL_PATH))
    ExamRecord(tmp_path).store(ExamResult.without_exam(key, "the bundled model", "sits no exam"))
    (finding,) = await run_check(CHECKS["judge's exam"], target)
    assert finding.status == "ok"
    assert finding.detail == "the bundled model sits no exam: not used, the embedded judge alone decides"


async def test_no_exam_is_looked_for_with_another_judge(tmp_path: Path) -> None:
    target = Target(ServeSettings(run=str(tmp_path), judge="rules"))
    (finding,) = await run_check(CHECKS["judge's exam"], target)
    assert finding.status == "skipped" and "--judge rules" in finding.detail


def test_the_best_threshold_lies_between_the_wrong_and_the_right() -> None:
    case = calibration.load_cases()[0]

    def make_judgement(gap: float) -> Judgement:
        plus = (1 + gap) / 2
        return Judgement("test", 1, detail={"probabilities": [[1 - plus, 0.0, plus]]})

    cases = [replace(case, label=label) for label in (1, 1, -1)]
    low, high = find_best_margins(cases, [make_judgement(0.8), make_judgement(0.6), make_judgement(0.25)])
    assert low == pytest.approx(0.26) and high == pytest.approx(0.6)


def test_the_set_is_balanced() -> None:
    labels = [case.label for case in calibration.load_cases()]
    assert len(labels) >= 20 and abs(sum(labels)) <= 2
