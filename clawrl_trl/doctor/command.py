"""`clawrl doctor`: the checks, their order, and the engine that they examine.

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

from rich.console import Console

from clawrl_trl.config.flags import read_flags
from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.doctor import adapters, calibration, logprobs, machine, mismatch, sampling, template, tokens
from clawrl_trl.doctor.finding import Finding, Skip, exit_code
from clawrl_trl.doctor.report import ReportPage, format_json
from clawrl_trl.doctor.target import Target
from clawrl_trl.engines.client import EngineClient, EngineError, locate
from clawrl_trl.engines.launch import model_path
from clawrl_trl.errors import UserError
from clawrl_trl.model_classes import import_model_classes
from clawrl_trl.run import RunFolder
from clawrl_trl.serving.serve import engine_only

TIMEOUT_S = 300.0
"""Longest wait for the engine's next byte."""
UPGRADE = "look into the engine's log; clawrl needs vLLM 0.31 or newer, or --engine transformers"

Findings = Finding | list[Finding]


@dataclass(frozen=True)
class Check:
    """One check: its heading, the name of its finding where it can't be made, and the function that makes it."""

    group: str
    name: str
    run: Callable[[Target], Awaitable[Findings]]


MACHINE_CHECKS = (
    Check("Machine", "versions", machine.check_versions),
    Check("Machine", "memory", machine.check_memory),
    Check("Machine", "disk", machine.check_disk),
    Check("Machine", "port", machine.check_port),
    Check("Machine", "keys", machine.check_keys),
)
"""Made before an engine is started."""

ENGINE_CHECKS = (
    Check("Engine", "answers", Target.connect),
    Check("Engine", "context length", sampling.check_context_length),
    Check("Engine", "room for agents", sampling.check_room_for_agents),
    Check("Engine", "token ids", tokens.check_text_ids),
    Check("Engine", "token ids, tool call", tokens.check_tool_call_ids),
    Check("Engine", "text of the ids", tokens.check_decoded_text),
    Check("Engine", "sampling defaults", sampling.check_defaults),
    Check("Engine", "log-prob mode", logprobs.check_mode),
    Check("Engine", "log-probs at T=1", logprobs.check_at_temperature_1),
    Check("Engine", "log-probs at T=0.5", logprobs.check_at_temperature_half),
    Check("Engine", "prompt log-probs", logprobs.check_prompt_logprobs),
    Check("Engine", "adapters", adapters.check_adapters),
    Check("Engine", mismatch.NAME, mismatch.check_run_logprobs),
    Check("Model", "generation config", sampling.check_generation_config),
    Check("Model", "prefix, plain", template.check_plain_text),
    Check("Model", "prefix, tool calls", template.check_tool_calls),
    Check("Model", "prefix, thinking", template.check_thinking),
    Check("Model", "prefix, as served", template.check_as_served),
    Check("Judge", "rules judge", calibration.check_rules_judge),
    Check("Judge", "llm judge", calibration.check_llm_judge),
    Check("Judge", "judge's exam", calibration.check_judge_exam),
)
"""Made with the engine at hand."""


def run_doctor(argv: Sequence[str]) -> int:
    """Run all checks, print the findings, and return the exit code.

    Returns:
        `int`: 0 when nothing failed, 1 when something did.

    Raises:
        UserError: If a flag is wrong, or the run folder or the model does not exist.
    """
    settings, to_json = parse_arguments(argv)
    target = Target(settings)
    # A path that does not exist ends the command here, not check by check.
    if not target.is_remote or settings.model_name_or_path:
        model_path(settings)
    console = Console(stderr=to_json)  # standard output is the JSON alone
    page = None if to_json else ReportPage(console)
    started = time.monotonic()
    findings = Examination(target, console, page).run()
    if page is None:
        print(format_json(findings))
    else:
        page.close(findings, time.monotonic() - started)
    return exit_code(findings)


def parse_arguments(argv: Sequence[str]) -> tuple[ServeSettings, bool]:
    """Parse the settings to examine, and whether to print JSON.

    A run folder's own settings are the defaults where there are any.

    Raises:
        UserError: If `--run` names a folder that holds no run.
    """
    from transformers import HfArgumentParser

    # The run's own settings are the defaults of the flags, so its folder is needed before they are parsed.
    run_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    run_parser.add_argument("--run")
    run = run_parser.parse_known_args(argv)[0].run
    parser = HfArgumentParser(ServeSettings, prog="clawrl doctor", description="Check engine, model and machine.")
    parser.add_argument("--json", action="store_true", help="Print a JSON list.")
    folder = run or ServeSettings().run
    if (stored := ServeSettings.find(folder)) is not None:
        parser.set_defaults(**asdict(stored))
    elif run is not None:
        raise UserError(f"{run} holds no run: leave --run out, or start one with 'clawrl serve --run {run}'.")
    settings, rest = read_flags(parser, argv)
    return settings, bool(rest.json)


class Examination:
    """All checks on one target, in order.

    Args:
        target: The engine, model and settings to examine.
        console: Shows which check is under way.
        page: Prints each finding as soon as it is there; `None` prints none.
    """

    def __init__(self, target: Target, console: Console, page: ReportPage | None) -> None:
        self.findings: list[Finding] = []
        self._target, self._console, self._page = target, console, page

    def run(self) -> list[Finding]:
        """Make all checks; returns the findings."""
        with self._console.status("Loading the libraries") if self._page else nullcontext():
            import_model_classes()
        asyncio.run(self._run_checks(MACHINE_CHECKS))
        try:
            with serving_engine(self._target) as settings:
                asyncio.run(self._check_engine(settings))
        except UserError as error:
            fix = "correct the setting it names, or use --engine transformers"
            self._add([Finding("answers", "fail", f"the engine does not start: {error}", fix, "Engine")])
            # The first one is whether the engine answers; those that need it come out as skipped, with the reason.
            asyncio.run(self._run_checks(ENGINE_CHECKS[1:]))
        return self.findings

    async def _check_engine(self, settings: ServeSettings) -> None:
        run = RunFolder(settings.run)
        async with EngineClient(lambda: locate(run, settings), timeout=TIMEOUT_S) as client:
            self._target.client = client
            await self._run_checks(ENGINE_CHECKS)

    async def _run_checks(self, checks: Sequence[Check]) -> None:
        for check in checks:
            with self._console.status(f"Looking at {check.name}") if self._page else nullcontext():
                findings = await run_check(check, self._target)
            self._add(findings)

    def _add(self, findings: Sequence[Finding]) -> None:
        self.findings += findings
        if self._page is not None:
            for finding in findings:
                self._page.show(finding)


@contextmanager
def serving_engine(target: Target) -> Iterator[ServeSettings]:
    """Keep an engine to examine up while the block lasts; yields the settings under which it is found."""
    settings = target.settings
    if target.is_remote or target.run.read_announced("engine") is not None:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="clawrl-doctor-") as folder:
        temporary = replace(settings, run=folder)
        with engine_only(RunFolder(folder).make(), temporary):
            yield temporary


async def run_check(check: Check, target: Target) -> list[Finding]:
    """Make one check; what keeps it from being made is a finding too, so that the next one can be made."""
    try:
        findings = await check.run(target)
    except Skip as skip:
        findings = Finding(check.name, "skipped", skip.reason)
    except UserError as error:
        findings = Finding(check.name, "fail", str(error))
    except EngineError as error:
        findings = Finding(check.name, "fail", f"the engine answered {error.status}: {error.message[:200]}", UPGRADE)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        # Checks index an engine's JSON without testing its form first.
        detail = f"the engine's answer is not of vLLM's form ({type(error).__name__}: {error})"
        findings = Finding(check.name, "fail", detail, UPGRADE)
    listed = findings if isinstance(findings, list) else [findings]
    return [replace(finding, group=check.group) for finding in listed]
