"""Check of the judge against turns labelled by people.

A small set of turns labelled by hand, made for this check and for no training: praise, corrections, polite requests
for change, moving on, tool results, and next messages that tell nothing. Reported are accuracy, abstentions and
wrong signs (the costly ones: they train the opposite), and where the judge's threshold lies on this set.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from clawrl_trl.doctor.finding import Finding, Skip
from clawrl_trl.doctor.target import Target
from clawrl_trl.judge.evaluation.cases import JudgeCase, read_cases
from clawrl_trl.judge.evaluation.outcomes import make_outcome
from clawrl_trl.judge.evaluation.summary import summarise
from clawrl_trl.judge.exam.record import ExamRecord
from clawrl_trl.judge.factory import find_exam
from clawrl_trl.judge.llm_judge import LLMJudge
from clawrl_trl.judge.turn import Judge, Judgement, JudgeUnavailable

CASES = Path(__file__).with_name("cases.jsonl")
VOTED = 8
"""Cases put to a language model, every third of the set: a vote takes seconds on a processor."""
GOOD, TOLERABLE = 0.8, 0.1
"""Least share right of the decided, and largest share of wrong signs, of a judge to rely on."""
OTHER_JUDGES = "use --judge rules, a larger --judge_model, or an own reward (--custom_rm_path)"


async def check_rules_judge(target: Target) -> Finding:
    """Check the rules judge, offline; it also decides explicit feedback for the other judges."""
    from clawrl_trl.judge.classifier.choice import choose_encoder
    from clawrl_trl.judge.classifier.encoders import ENCODERS, MINILM, list_up_to
    from clawrl_trl.judge.classifier.model import MARGINS
    from clawrl_trl.judge.rules import RulesJudge

    encoder = ENCODERS[choose_encoder(target.settings)]
    missing = [name for name in list_up_to(encoder.name) if name != MINILM and ENCODERS[name].look() is None]
    if missing:
        raise Skip(f"its encoder {missing[0]} is not here yet: 'clawrl serve' fetches it at its next start")
    cases = load_cases()
    judgements = await _judge_all(RulesJudge(encoder=encoder.name), cases)
    low, high = find_best_margins(cases, judgements)
    threshold = f"threshold {MARGINS[encoder.name].approval:g}, best on this set {low:.2f} to {high:.2f}"
    return _make_finding("rules judge", cases, judgements, threshold)


async def check_llm_judge(target: Target) -> Finding:
    """Check the llm judge, with the run's own settings."""
    settings = target.settings
    if settings.custom_rm_path:
        raise Skip("an own reward is set (--custom_rm_path)")
    if settings.judge != "llm":
        raise Skip(f"not asked for (--judge {settings.judge})")
    if settings.judge_url:
        raise Skip("the judge is another server (--judge_url): point --engine at it to look at that")
    judge = LLMJudge(
        target.engine,
        model=settings.judge_model or target.base,
        votes=settings.judge_votes,
        majority=settings.judge_majority,
        temperature=settings.judge_temperature,
        max_tokens=settings.judge_max_tokens,
        timeout=settings.judge_timeout,
    )
    cases = load_cases()[::3][:VOTED]
    try:
        judgements = await _judge_all(judge, cases)
    except JudgeUnavailable as error:
        return Finding("llm judge", "fail", error.reason, "raise --judge_timeout, or use --judge rules")
    votes = [vote for judgement in judgements for vote in judgement.votes]
    valid = sum(vote["score"] is not None for vote in votes)
    return _make_finding("llm judge", cases, judgements, f"{valid} of {len(votes)} votes valid")


async def check_judge_exam(target: Target) -> Finding:
    """Check what the exam of the run's model and prompt says (`--judge auto`); the exam itself is not sat here."""
    if target.settings.custom_rm_path:
        raise Skip("an own reward is set (--custom_rm_path)")
    if target.settings.judge != "auto":
        raise Skip(f"not asked for (--judge {target.settings.judge})")
    try:
        result = await find_exam(target.settings, target.engine)
    except JudgeUnavailable as failure:
        raise Skip(f"its model is not known: {failure.reason}") from None
    if result is None:
        others = ExamRecord(target.run.path).read()
        more = f" (there are {len(others)} of another model or prompt)" if others else ""
        raise Skip(f"not sat yet{more}: 'clawrl serve' sits it at its next start")
    detail = result.describe_dated()
    if result.failure and not result.no_exam:
        return Finding("judge's exam", "warn", detail, "use a larger --judge_model, or --judge rules")
    return Finding("judge's exam", "ok", detail)


async def _judge_all(judge: Judge, cases: Sequence[JudgeCase]) -> list[Judgement]:
    return [await judge.judge(case.turn) for case in cases]


def _make_finding(name: str, cases: Sequence[JudgeCase], judgements: Sequence[Judgement], more: str) -> Finding:
    pairs = zip(cases, judgements, strict=True)
    summary = summarise((case, make_outcome(case, judgement)) for case, judgement in pairs)
    right, wrong, abstained = (share.value or 0.0 for share in (summary.right, summary.wrong_sign, summary.abstained))
    shares = f"{right:.0%} of the decided right, {abstained:.0%} abstained, {wrong:.0%} wrong sign"
    detail = f"{shares} on {len(cases)} labelled turns; {more}"
    if right >= GOOD and wrong <= TOLERABLE:
        return Finding(name, "ok", detail)
    # More wrong signs than right scores train the opposite of what people ask for.
    is_opposite = summary.wrong_sign.count > summary.right.count
    return Finding(name, "fail" if is_opposite else "warn", detail, OTHER_JUDGES)


def find_best_margins(cases: Sequence[JudgeCase], judgements: Sequence[Judgement]) -> tuple[float, float]:
    """Find the range of margins between P(+1) and P(-1) that would do best on these cases.

    A right sign counts 1, a wrong one -1, an abstention 0. Only turns decided by words have a margin.

    Returns:
        Lowest and highest best margin, in [0, 1].
    """
    pairs = zip(cases, judgements, strict=True)
    margins = [(case.label, margin) for case, judgement in pairs if (margin := _margin(judgement)) is not None]
    steps = [step / 100 for step in range(101)]
    values = [sum(_value(label, margin) for label, margin in margins if abs(margin) >= step) for step in steps]
    best = [step for step, value in zip(steps, values, strict=True) if value == max(values)]
    return best[0], best[-1]


def _value(label: int, margin: float) -> int:
    return 1 if label * margin > 0 else -1


def _margin(judgement: Judgement) -> float | None:
    rows = judgement.detail.get("probabilities")
    if not rows:
        return None
    # One row for each message that the judge read; the most critical one decides.
    minus, zero, plus = min(rows, key=lambda row: row[2] - row[0])
    return float(plus - minus) if max(minus, plus) > zero else None


@lru_cache(maxsize=1)
def load_cases() -> tuple[JudgeCase, ...]:
    """Load the labelled set."""
    return tuple(read_cases([CASES]))
