"""`clawrl doctor`: what is looked at, in which order, and how the engine to look at is found.

The flags are those of `clawrl serve`: put one word in the place of the other to have a run examined before it is
started. The engine is the one that `--engine` names, the one that serves the run folder at the moment, or one
started for the check in a folder that is removed again.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from clawrl_trl.config.flags import read_flags
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor import adapters, calibration, logprobs, machine, sampling, template, tokens
from clawrl_trl.doctor.finding import Finding, Skip, exit_code
from clawrl_trl.doctor.report import ReportPage, as_json
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineClient, EngineError, locate
from clawrl_trl.engines.launch import model_path
from clawrl_trl.errors import UserError
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.serve import engine_only

TIMEOUT_S = 300.0
"""Longest wait for the engine's next byte."""
UPGRADE = "look into the engine's log; clawrl needs vLLM 0.31 or newer, or --engine transformers"

Findings = Finding | list[Finding]


@dataclass(frozen=True)
class Check:
    """One question: its heading, the name of its finding should it fail to be asked, and how it is asked."""

    group: str
    name: str
    run: Callable[[Target], Awaitable[Findings]]


BEFORE = (
    Check("Machine", "versions", machine.versions),
    Check("Machine", "memory", machine.memory),
    Check("Machine", "disk", machine.disk),
    Check("Machine", "port", machine.port),
    Check("Machine", "keys", machine.keys),
)
"""Asked before an engine is started."""

AFTER = (
    Check("Engine", "answers", Target.meet),
    Check("Engine", "context length", sampling.context_length),
    Check("Engine", "room for agents", sampling.agents_fit),
    Check("Engine", "token ids", tokens.text_ids),
    Check("Engine", "token ids, tool call", tokens.tool_ids),
    Check("Engine", "text of the ids", tokens.decoded_text),
    Check("Engine", "sampling defaults", sampling.defaults),
    Check("Engine", "log-prob mode", logprobs.mode),
    Check("Engine", "log-probs at T=1", logprobs.warm),
    Check("Engine", "log-probs at T=0.5", logprobs.cool),
    Check("Engine", "prompt log-probs", logprobs.prompt_scores),
    Check("Engine", "adapters", adapters.swap),
    Check("Model", "generation config", sampling.generation_config),
    Check("Model", "prefix, plain", template.plain),
    Check("Model", "prefix, tool calls", template.tool_calls),
    Check("Model", "prefix, thinking", template.thinking),
    Check("Model", "prefix, as served", template.as_served),
    Check("Judge", "rules judge", calibration.rules),
    Check("Judge", "llm judge", calibration.language_model),
)
"""Asked with the engine at hand."""


def doctor(argv: Sequence[str]) -> int:
    """Examine, print, and say by the exit code whether training may begin.

    Returns:
        `int`: 0 when nothing failed, 1 when something did.

    Raises:
        UserError: If a flag is wrong, or the run folder or the model does not exist.
    """
    settings, to_json = parse(argv)
    target = Target(settings)
    if not target.remote or settings.model_name_or_path:
        model_path(settings)
    console = Console(stderr=to_json)
    page = None if to_json else ReportPage(console)
    started = time.monotonic()
    findings = Examination(target, console, page).run()
    if page is None:
        print(as_json(findings))
    else:
        page.close(findings, time.monotonic() - started)
    return exit_code(findings)


def parse(argv: Sequence[str]) -> tuple[ServeSettings, bool]:
    """The settings to examine, and whether JSON is wanted.

    A run folder's own settings are the defaults where there are any.

    Raises:
        UserError: If `--run` names a folder that holds no run.
    """
    from transformers import HfArgumentParser

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--run")
    given = first.parse_known_args(argv)[0].run
    parser = HfArgumentParser(ServeSettings, prog="clawrl doctor", description="Check engine, model and machine.")
    parser.add_argument("--json", action="store_true", help="Print a JSON list.")
    folder = given or ServeSettings().run
    if (stored := ServeSettings.find(folder)) is not None:
        parser.set_defaults(**asdict(stored))
    elif given is not None:
        raise UserError(f"{given} holds no run: leave --run out, or start one with 'clawrl serve --run {given}'.")
    settings, rest = read_flags(parser, argv)
    return settings, bool(rest.json)


class Examination:
    """All checks on one target, in order.

    Args:
        target: Whom.
        console: For what is under way.
        page: Where findings are shown as soon as they are there; `None` for nowhere.
    """

    def __init__(self, target: Target, console: Console, page: ReportPage | None) -> None:
        self.findings: list[Finding] = []
        self._patient, self._console, self._page = target, console, page

    def run(self) -> list[Finding]:
        """Ask everything; returns the findings."""
        asyncio.run(self._ask(BEFORE))
        try:
            with engine_of(self._patient) as settings:
                asyncio.run(self._ask_engine(settings))
        except UserError as error:
            fix = "correct the setting it names, or use --engine transformers"
            self._add([Finding("answers", "fail", f"the engine does not start: {error}", fix, "Engine")])
            asyncio.run(self._ask(AFTER[1:]))
        return self.findings

    async def _ask_engine(self, settings: ServeSettings) -> None:
        where = RunFolder(settings.run)
        async with EngineClient(lambda: locate(where, settings), timeout=TIMEOUT_S) as client:
            self._patient.client = client
            await self._ask(AFTER)

    async def _ask(self, checks: Sequence[Check]) -> None:
        for check in checks:
            with self._console.status(f"Looking at {check.name}") if self._page else nullcontext():
                found = await asked(check, self._patient)
            self._add(found)

    def _add(self, found: Sequence[Finding]) -> None:
        self.findings += found
        if self._page is not None:
            for one in found:
                self._page.show(one)


@contextmanager
def engine_of(target: Target) -> Iterator[ServeSettings]:
    """The settings under which the engine to examine is found, while the block lasts."""
    settings = target.settings
    if target.remote or target.run.announced("engine") is not None:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="clawrl-doctor-") as place:
        for_now = replace(settings, run=place)
        with engine_only(RunFolder(place).make(), for_now):
            yield for_now


async def asked(check: Check, target: Target) -> list[Finding]:
    """The findings of one check; what keeps it from being made is a finding too, and the next one is asked."""
    try:
        found: Any = await check.run(target)
    except Skip as skip:
        found = Finding(check.name, "skipped", skip.reason)
    except UserError as error:
        found = Finding(check.name, "fail", str(error))
    except EngineError as error:
        found = Finding(check.name, "fail", f"the engine answered {error.status}: {error.message[:200]}", UPGRADE)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        detail = f"the engine's answer is not of vLLM's form ({type(error).__name__}: {error})"
        found = Finding(check.name, "fail", detail, UPGRADE)
    return [replace(one, group=check.group) for one in (found if isinstance(found, list) else [found])]
