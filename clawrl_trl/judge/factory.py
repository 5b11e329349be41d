"""Construction of the judge that a run's settings ask for, with the HTTP client it needs."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineAddress, EngineClient
from clawrl_trl.errors import UserError
from clawrl_trl.judge.classifier.choice import choose_encoder, obtain_encoder
from clawrl_trl.judge.custom import CustomJudge
from clawrl_trl.judge.exam.auto_judge import AutoJudge, examining
from clawrl_trl.judge.exam.result import ExamResult
from clawrl_trl.judge.llm_judge import LLMJudge
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.turn import Judge, JudgedTurn, Judgement
from clawrl_trl.ledger import Ledger
from clawrl_trl.plugins import JUDGES, load_plugin
from clawrl_trl.run import RunFolder

JUDGE_KEY = "CLAWRL_JUDGE_KEY"
"""Environment variable with the bearer key of `judge_url`."""


@dataclass(frozen=True)
class OpenJudge:
    """A judge that has all it needs.

    Attributes:
        decider: Who decides.
        auto: The same if it is the judge of `--judge auto`, else `None`.
        encoder: What the embedded judge reads with, where it may be asked; else empty.
    """

    decider: Judge
    auto: AutoJudge | None = None
    encoder: str = ""

    @property
    def announcement(self) -> str:
        """The line to show at the start; empty without an exam."""
        return self.auto.announcement if self.auto else ""

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The decider's judgement of one turn."""
        return await self.decider.judge(turn)


def make_judge(
    settings: ServeSettings, engine: EngineClient, own: EngineClient | None, ledger: Ledger | None = None
) -> Judge:
    """The judge that the settings ask for.

    Args:
        settings: The run's settings.
        engine: The run's engine.
        own: Client of `settings.judge_url`, if there is one.
        ledger: The run's ledger; `--judge auto` compares its votes with the thumbs there.

    Raises:
        UserError: If a custom reward, or a judge that another package adds, can't be loaded.
    """
    settings = replace(settings, judge_encoder=choose_encoder(settings))
    if settings.custom_rm_path:
        return CustomJudge(
            settings.custom_rm_path,
            settings.judge_timeout,
            workers=settings.judge_workers,
            encoder=settings.judge_encoder,
            any_score=settings.hint_any_score,
        )
    rules = RulesJudge(encoder=settings.judge_encoder, any_score=settings.hint_any_score)
    if settings.judge == "rules":
        return rules
    client = own or engine
    if settings.judge == "llm":
        return _make_voter(settings, client)
    if settings.judge == "auto":
        voter = _make_voter(settings, client)
        folder = RunFolder(settings.run).path
        return AutoJudge(
            rules,
            voter,
            client,
            folder,
            workers=settings.judge_workers,
            ledger=ledger,
            encoder=settings.judge_encoder,
        )
    make = load_plugin(JUDGES, settings.judge)
    if make is None:
        raise UserError(f"--judge {settings.judge!r} is not installed any more: install its package, or name another.")
    judge: Judge = make(settings)
    return judge


def _make_voter(settings: ServeSettings, client: EngineClient) -> LLMJudge:
    return LLMJudge(
        client,
        model=settings.judge_model,
        votes=settings.judge_votes,
        majority=settings.judge_majority,
        temperature=settings.judge_temperature,
        max_tokens=settings.judge_max_tokens,
        timeout=settings.judge_timeout,
        any_score=settings.hint_any_score,
    )


@contextlib.asynccontextmanager
async def open_judge(
    settings: ServeSettings, engine: EngineClient, ledger: Ledger | None = None
) -> AsyncIterator[OpenJudge]:
    """The judge that the settings ask for, with what it needs, for as long as the context lasts.

    The exam of `--judge auto` is under way in it, unless its result is stored.

    Raises:
        UserError: If a custom reward can't be loaded, or the encoder can't be had.
    """
    async with contextlib.AsyncExitStack() as stack:
        own = await stack.enter_async_context(_make_own_client(settings)) if settings.judge_url else None
        encoder = ""
        if settings.judge in ("rules", "auto") or settings.custom_rm_path:
            # The first message must not wait for a download.
            encoder = await asyncio.to_thread(obtain_encoder, settings)
            settings = replace(settings, judge_encoder=encoder)
        judge = make_judge(settings, engine, own, ledger)
        auto = await stack.enter_async_context(examining(judge)) if isinstance(judge, AutoJudge) else None
        yield OpenJudge(judge, auto, encoder)


async def find_exam(settings: ServeSettings, engine: EngineClient) -> ExamResult | None:
    """The stored exam of the model and prompt that `--judge auto` would use; `None` if none was sat.

    Raises:
        JudgeUnavailable: If the server does not say which model it has.
    """
    async with contextlib.AsyncExitStack() as stack:
        own = await stack.enter_async_context(_make_own_client(settings)) if settings.judge_url else None
        judge = make_judge(settings, engine, own)
        return await judge.find_stored() if isinstance(judge, AutoJudge) else None


def _make_own_client(settings: ServeSettings) -> EngineClient:
    """Client of the judge's own server."""
    url = settings.judge_url or ""

    def locate() -> EngineAddress:
        # The key of the run's own judge engine goes to that engine, and to no other server.
        own_engine = RunFolder(settings.run).read_announced("judge_engine") or {}
        key = own_engine.get("key") if own_engine.get("base_url") == url else None
        return EngineAddress.of(url, os.environ.get(JUDGE_KEY) or key)

    return EngineClient(locate, timeout=settings.judge_timeout)
