"""`clawrl judge eval`: what it counts is held against scipy and a count by hand; texts of cases are never told."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_helpers import Scripted
from scipy.stats import binomtest

from clawrl_trl.cli.judge_command import run_judge_command
from clawrl_trl.errors import UserError
from clawrl_trl.judge.evaluation.cases import JudgeCase, make_case, read_cases
from clawrl_trl.judge.evaluation.comparison import PairedCount, compare
from clawrl_trl.judge.evaluation.outcomes import CaseOutcome, judge_cases, read_confidence
from clawrl_trl.judge.evaluation.summary import Share, measure_calibration_error, summarise
from clawrl_trl.judge.turn import JudgedTurn, Judgement, JudgeUnavailable

SECRET = "the heron walks at dusk"


def row(number: int, label: int, **more: Any) -> dict[str, Any]:
    """A case as it stands in a file."""
    return {
        "id": f"case{number}",
        "kind": "praise" if label > 0 else "objection",
        "language": "en",
        "messages": [{"role": "user", "content": f"Name the capital of France. ({SECRET})"}],
        "reply": {"role": "assistant", "content": "Lyon." if label < 0 else "Paris."},
        "next": [{"role": "user", "content": "No, that's wrong." if label < 0 else "Thanks, great!", "from": "owner"}],
        "label": label,
        **more,
    }


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(each) for each in rows) + "\n")
    return path


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_interval_is_wilsons(count: int, others: int) -> None:
    share = Share(count, count + others)
    low, high = share.find_interval()
    if share.total:
        reference = binomtest(count, share.total).proportion_ci(0.95, method="wilson")
        assert low == pytest.approx(reference.low, abs=1e-9) and high == pytest.approx(reference.high, abs=1e-9)
    else:
        assert (low, high) == (0.0, 1.0)


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_p_value_is_that_of_the_exact_test(first: int, second: int) -> None:
    expected = binomtest(first, first + second).pvalue if first + second else 1.0
    assert PairedCount(first, second).p_value == pytest.approx(expected, rel=1e-9)


confidences = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


@given(confidences)
def test_the_calibration_error_is_the_usual_one(rows: list[tuple[float, bool]]) -> None:
    pairs = [
        (make_case(row(number, 1)), CaseOutcome(f"case{number}", 1 if is_right else -1, confidence))
        for number, (confidence, is_right) in enumerate(rows)
    ]
    values, right = np.array([value for value, _ in rows]), np.array([is_right for _, is_right in rows], dtype=float)
    bins = np.minimum((values * 10).astype(int), 9)
    expected = sum(
        (bins == number).mean() * abs(values[bins == number].mean() - right[bins == number].mean())
        for number in set(bins.tolist())
    )
    assert measure_calibration_error(pairs) == pytest.approx(expected, abs=1e-9)


def test_what_is_counted() -> None:
    cases = [
        make_case(row(0, 1)),
        make_case(row(1, -1, hint=True, hint_words=["Metric"])),
        make_case(row(2, 0, accept=[0, 1])),
        make_case(row(3, 0)),
        make_case(row(4, -1, hint=True)),
        make_case(row(5, 1)),
    ]
    outcomes = [
        CaseOutcome("case0", 1),
        CaseOutcome("case1", -1, has_hint=True, is_right_hint=cases[1].is_right_hint("Use metric units.")),
        CaseOutcome("case2", 1),
        CaseOutcome("case3", -1, has_hint=True, is_right_hint=cases[3].is_right_hint("Use metric units.")),
        CaseOutcome("case4", None),
        CaseOutcome("case5", None, failure="away"),
    ]
    summary = summarise(zip(cases, outcomes, strict=True))
    assert (summary.cases, summary.failed) == (5, 1)
    assert (summary.right, summary.wrong_sign, summary.abstained) == (Share(3, 4), Share(1, 5), Share(1, 5))
    assert (summary.hint_precision, summary.hint_recall) == (Share(1, 2), Share(1, 2))
    better = [CaseOutcome(case.id, case.label) for case in cases]
    comparison = compare(cases, outcomes, better)
    assert comparison.cases == 5  # the sixth was not judged by the first
    assert (comparison.right, comparison.wrong_sign) == (PairedCount(0, 2), PairedCount(1, 0))


def test_how_sure_a_judge_is() -> None:
    words = {"probabilities": [[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]}
    assert read_confidence(Judgement("rules", -1.0, detail=words), -1) == 0.8
    votes = tuple({"score": score} for score in (1, 1, None, -1))
    assert read_confidence(Judgement("llm", 1.0, votes=votes), 1) == pytest.approx(2 / 3)
    assert read_confidence(Judgement("own", 1.0), 1) is None
    assert read_confidence(Judgement("rules", None, detail=words), None) is None


def test_a_judge_that_is_away_is_tried_again_and_then_told_of() -> None:
    class LateJudge:
        def __init__(self, misses: int) -> None:
            self.misses = misses

        async def judge(self, turn: JudgedTurn) -> Judgement:
            self.misses -= 1
            if self.misses >= 0:
                raise JudgeUnavailable("no server")
            return Judgement("late", 0.5)

    case = make_case(row(0, 1))
    assert asyncio.run(judge_cases(LateJudge(2), [case])) == [CaseOutcome("case0", 1)]
    assert asyncio.run(judge_cases(LateJudge(9), [case])) == [CaseOutcome("case0", None, failure="no server")]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{"], "line 1 is not JSON"),
        ([json.dumps(row(0, 1)), json.dumps(row(0, 1))], "line 2: the id 'case0' stands twice"),
        ([json.dumps(row(0, 1) | {"label": 2})], "look at label"),
        ([json.dumps(row(0, 1) | {"accept": [0]})], "look at accept"),
        ([json.dumps(row(0, 1) | {"next": [{"role": "user", "content": SECRET}]})], "look at next.0.from"),
        ([""], "no cases"),
    ],
)
def test_a_wrong_file_is_told_by_its_place_alone(tmp_path: Path, lines: list[str], told: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=told) as refused:
        read_cases([path])
    assert SECRET not in str(refused.value)


def test_the_command_counts_saves_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = write(tmp_path / "cases.jsonl", [row(number, 1 if number % 2 else -1) for number in range(6)])
    saved = tmp_path / "rules.json"
    assert run_judge_command(["eval", str(cases), "--judge", "rules", "--save", str(saved)]) == 0
    table = capsys.readouterr().out
    assert "objection\t3\t100%" in table and "praise\t3\t100%" in table and SECRET not in table
    assert SECRET not in saved.read_text()
    stored = json.loads(saved.read_text())
    for outcome in stored["outcomes"][:2]:
        outcome["score"] = None
    saved.write_text(json.dumps(stored))
    assert run_judge_command(["eval", str(cases), "--judge", "rules", "--against", str(saved), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["judges"]["rules"]["all"]["all cases"]["right"]["count"] == 6
    assert report["judges"]["rules (rules.json)"]["all"]["all cases"]["abstained"]["count"] == 2
    assert report["comparison"]["right"] == {"first": 2, "second": 0, "p": 0.5}


def test_the_llm_judge_is_evaluated_over_http(
    script: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = write(tmp_path / "cases.jsonl", [row(number, 1 if number % 2 else -1) for number in range(4)])
    script.votes = lambda body, number: '{"score": 1, "hint": null}'
    flags = ["--judge", "llm", "--judge_url", script.base_url, "--judge_model", "m", "--against", "rules", "--json"]
    assert run_judge_command(["eval", str(cases), *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["judges"]["llm"]["all"]["all cases"]["wrong_sign"]["count"] == 2
    assert report["judges"]["llm"]["all"]["all cases"]["calibration_error"] == 0.5
    assert report["comparison"]["wrong_sign"]["first"] == 2


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--judge", "off"], "judges nothing"),
        (["--judge", "llm"], "--judge_url"),
        ([], "--judge rules needs none"),
        (["--judge", "rules", "--against", "nobody"], "unknown"),
        (["--judge", "rules", "--against", "rules"], "the judge itself"),
        (["--judge", "rules", "--against", __file__], "no stored outcomes"),
    ],
)
def test_wrong_flags_get_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = write(tmp_path / "cases.jsonl", [row(0, 1)])
    with pytest.raises(UserError, match=told):
        run_judge_command(["eval", str(cases), *flags])
    with pytest.raises(UserError, match="usage"):
        run_judge_command([])


def test_a_server_that_is_away_ends_in_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = write(tmp_path / "cases.jsonl", [row(0, 1)])
    flags = ["--judge", "llm", "--judge_url", "http://127.0.0.1:9", "--judge_model", "m", "--json"]
    assert run_judge_command(["eval", str(cases), *flags]) == 1
    printed = capsys.readouterr()
    assert "not judged: vote failed" in printed.err and SECRET not in printed.err + printed.out


def test_who_speaks_decides_the_form() -> None:
    def form(*sources: str) -> str:
        case: JudgeCase = make_case(
            row(0, 1, next=[{"role": "user", "content": "x", "from": each} for each in sources])
        )
        return case.form

    assert (form("tool", "owner"), form("tool", "tool"), form("other")) == ("words", "results", "others")
