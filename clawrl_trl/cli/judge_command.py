"""`clawrl judge eval`: how often a judge is right on labelled cases, by kind and language.

Texts of the cases are never printed, so that a set that is kept sealed may be scored.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clawrl_trl.cli.printer import Printer
from clawrl_trl.config.flags import read_flags
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.errors import UserError
from clawrl_trl.judge.evaluation.cases import JudgeCase, read_cases
from clawrl_trl.judge.evaluation.comparison import JudgeComparison, compare
from clawrl_trl.judge.evaluation.outcomes import CaseOutcome, judge_cases, read_outcomes, write_outcomes
from clawrl_trl.judge.evaluation.summary import Pair, Share, Summary, group, summarise
from clawrl_trl.judge.exam.auto_judge import AutoJudge
from clawrl_trl.judge.factory import open_judge
from clawrl_trl.judge.turn import JudgeUnavailable
from clawrl_trl.messages import Json
from clawrl_trl.run import RunFolder
from clawrl_trl.visible_text import encode_json

USAGE = "clawrl judge eval CASES... [--judge NAME] [--against NAME|FILE] [--save FILE] [--json]"
GROUPINGS: Mapping[str, str] = {"form": "what decides", "kind": "kind", "language": "language"}
COLUMNS = ("cases", "right", "95 %", "wrong", "abst.", "hint P", "hint R")
LEGEND = "right: of the decided; wrong: wrong sign; abst.: abstained; hint P, R: precision and recall of hints"


@dataclass(frozen=True)
class JudgedSet:
    """A judge's name, and its outcomes in the order of the cases."""

    judge: str
    outcomes: list[CaseOutcome]


def run_judge_command(argv: Sequence[str]) -> int:
    """Run `clawrl judge`.

    Returns:
        `int`: 0, or 1 when some cases could not be judged.

    Raises:
        UserError: For a wrong flag, wrong files, and a judge that can't be reached.
    """
    if not argv or argv[0] not in ("eval", "--help", "-h"):
        raise UserError(f"usage: {USAGE}")
    settings, arguments = _parse(argv[1:] if argv[0] == "eval" else argv)
    cases = read_cases(arguments.cases)
    judged = _evaluate(settings, cases)
    if arguments.save:
        write_outcomes(arguments.save, judged.judge, judged.outcomes)
    other = _find_other(arguments.against, settings, cases) if arguments.against else None
    report = {name.judge: _summarise(cases, name.outcomes) for name in (judged, other) if name is not None}
    comparison = compare(cases, judged.outcomes, other.outcomes) if other else None
    if arguments.json:
        print(encode_json(_describe(report, comparison)))
    else:
        _print_report(Printer(), report, comparison, judged, other)
    failures = {outcome.failure for outcome in judged.outcomes if outcome.failure}
    for failure in sorted(failures)[:3]:
        print(f"not judged: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _parse(argv: Sequence[str]) -> tuple[ServeSettings, argparse.Namespace]:
    from transformers import HfArgumentParser

    description = "How often a judge is right on labelled cases (docs/judge.md has the format)."
    parser = HfArgumentParser(ServeSettings, prog="clawrl judge eval", description=description)
    parser.add_argument("cases", nargs="+", type=Path, help="Files of labelled cases, one a line.")
    parser.add_argument("--against", help="A second judge (rules, llm, a plugin's), or a file that --save wrote.")
    parser.add_argument("--save", type=Path, help="Store each case's outcome, without any text, in this file.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    settings, arguments = read_flags(parser, argv)
    if settings.judge == "off":
        raise UserError("--judge off judges nothing: name a judge.")
    return settings, arguments


def _evaluate(settings: ServeSettings, cases: Sequence[JudgeCase]) -> JudgedSet:
    needs_engine = settings.judge in ("llm", "auto") and not settings.custom_rm_path
    if needs_engine and not (settings.judge_url or RunFolder(settings.run).read_announced("engine")):
        where = "name one with --judge_url, or --run the folder of a served run; --judge rules needs none"
        raise UserError(f"The {settings.judge} judge has no server: {where}.")
    name = settings.custom_rm_path or settings.judge
    return JudgedSet(name, asyncio.run(_judge(settings, cases)))


async def _judge(settings: ServeSettings, cases: Sequence[JudgeCase]) -> list[CaseOutcome]:
    engine = EngineClient.of_run(RunFolder(settings.run), settings, settings.judge_timeout)
    async with engine, open_judge(settings, engine) as judge:
        if judge.auto:
            await _examine(judge.auto)
        return await judge_cases(judge, cases, settings.judge_workers)


async def _examine(judge: AutoJudge) -> None:
    try:
        result = await judge.examine()
    except JudgeUnavailable as failure:
        raise UserError(f"The base model can't sit its exam: {failure.reason}. Is its server up?") from None
    print(f"judge auto: {result.describe()}", file=sys.stderr)


def _find_other(name: str, settings: ServeSettings, cases: Sequence[JudgeCase]) -> JudgedSet:
    """Judge the cases with a second judge, or take its stored outcomes."""
    if not Path(name).is_file():
        if name == settings.judge and not settings.custom_rm_path:
            raise UserError(f"--against {name} is the judge itself: name another, or a file that --save wrote.")
        return _evaluate(replace(settings, judge=name, custom_rm_path=None), cases)
    judge, stored = read_outcomes(Path(name))
    missing = [case.id for case in cases if case.id not in stored]
    if missing:
        raise UserError(f"{name} has no outcome of {len(missing)} of the cases, e.g. {missing[0]}.")
    return JudgedSet(f"{judge} ({Path(name).name})", [stored[case.id] for case in cases])


def _summarise(cases: Sequence[JudgeCase], outcomes: Sequence[CaseOutcome]) -> dict[str, dict[str, Summary]]:
    """Summaries by grouping and group; the grouping `all` has all cases and the English words."""
    pairs: list[Pair] = list(zip(cases, outcomes, strict=True))
    words = [pair for pair in pairs if pair[0].form == "words" and pair[0].language == "en"]
    result = {"all": {"all cases": summarise(pairs), "English words": summarise(words)}}
    for grouping in GROUPINGS:
        groups = group(pairs, lambda case: getattr(case, grouping))  # noqa: B023 - used within the iteration
        result[grouping] = {name: summarise(members) for name, members in groups.items()}
    return result


def _describe(report: Mapping[str, Mapping[str, Mapping[str, Summary]]], comparison: JudgeComparison | None) -> Json:
    judges = {
        judge: {
            grouping: {name: summary.describe() for name, summary in groups.items()}
            for grouping, groups in groupings.items()
        }
        for judge, groupings in report.items()
    }
    return {"judges": judges, **({"comparison": comparison.describe()} if comparison else {})}


def _print_report(
    printer: Printer,
    report: Mapping[str, Mapping[str, Mapping[str, Summary]]],
    comparison: JudgeComparison | None,
    judged: JudgedSet,
    other: JudgedSet | None,
) -> None:
    for judge, groupings in report.items():
        printer.print_rule(judge)
        printer.print_line(LEGEND)
        error = groupings["all"]["all cases"].calibration_error
        failed = groupings["all"]["all cases"].failed
        for grouping, groups in groupings.items():
            heading = GROUPINGS.get(grouping, "")
            printer.print_table((heading, *COLUMNS), list(_list_rows(heading, groups)), {})
            printer.print_line("")
        calibration = "no confidence given" if error is None else f"calibration error {error:.3f}"
        printer.print_line(f"{calibration}, {failed} cases not judged")
    if comparison is not None and other is not None:
        printer.print_rule(f"{judged.judge} against {other.judge}")
        for name, count in (("right", comparison.right), ("wrong sign", comparison.wrong_sign)):
            printer.print_line(
                f"{name}: {count.first} cases with the first alone, {count.second} with the second alone "
                f"(p = {count.p_value:.3g}, exact McNemar test)"
            )


def _list_rows(heading: str, groups: Mapping[str, Summary]) -> Iterator[dict[str, str]]:
    for name, summary in groups.items():
        low, high = summary.right.find_interval()
        values = (
            str(summary.cases),
            _format(summary.right),
            f"{low:.0%}-{high:.0%}" if summary.right.total else "-",
            _format(summary.wrong_sign),
            _format(summary.abstained),
            _format(summary.hint_precision),
            _format(summary.hint_recall),
        )
        yield {heading: name, **dict(zip(COLUMNS, values, strict=True))}


def _format(share: Share) -> str:
    return "-" if share.value is None else f"{share.value:.0%}"
