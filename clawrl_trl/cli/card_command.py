"""`clawrl doctor --gpu_memory_gb N FLAGS`: who would take what of a card, for the flags of the training script.

Needs no card, no engine and no weights. The exit code is 0 where the run fits, with warnings or without, and else 1.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table

from clawrl_trl.doctor.card import CardPlan
from clawrl_trl.doctor.finding import exit_code
from clawrl_trl.doctor.memory import GIB
from clawrl_trl.doctor.report import ReportPage
from clawrl_trl.errors import UserError

FLAG = "--gpu_memory_gb"


def run_card_command(argv: Sequence[str]) -> int:
    """Print the plan of a run on a card of so many GB.

    Raises:
        UserError: If a flag is wrong, or the model's config can't be read.
    """
    parser = argparse.ArgumentParser("clawrl doctor", allow_abbrev=False, add_help=False)
    parser.add_argument(FLAG, type=float, required=True)
    parser.add_argument("--json", action="store_true")
    own, rest = parser.parse_known_args(argv)
    if not 0 < own.gpu_memory_gb < math.inf:
        raise UserError(f"{FLAG} {own.gpu_memory_gb:g} is no size of a card: give the GB that it has, such as 24.")

    from clawrl_trl.script import parse
    from clawrl_trl.script.memory import plan_on_card

    _, config, model, settings = parse(rest, on_card=True)
    plan = plan_on_card(config, model, settings, own.gpu_memory_gb * GIB)
    findings = [replace(finding, group="Card") for finding in plan.judge()]
    if own.json:
        parts = [dict(zip(("who", "what", "when", "bytes"), part, strict=True)) for part in plan.list_parts()]
        print(json.dumps({"parts": parts, "findings": [asdict(finding) for finding in findings]}, indent=1))
        return exit_code(findings)
    console = Console()
    console.print(make_table(plan))
    page = ReportPage(console)
    for finding in findings:
        page.show(finding)
    return exit_code(findings)


def make_table(plan: CardPlan) -> Table:
    """Make the table of who takes what, and when."""
    place = "a card each" if plan.apart else "together"
    table = Table(title=f"{plan.card / GIB:g} GB, engine and trainer {place}: GiB by arithmetic", title_justify="left")
    for heading in ("who", "what", "when"):
        table.add_column(heading)
    table.add_column("GiB", justify="right")
    before = ""
    for who, what, when, size in plan.list_parts():
        table.add_row("" if who == before else who, what, when, f"{size / GIB:.2f}")
        before = who
    return table
