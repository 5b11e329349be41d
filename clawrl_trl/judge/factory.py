"""Construction of the judge that a run's settings ask for, with the HTTP client it needs."""

import contextlib
import os
from collections.abc import AsyncIterator

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineAddress, EngineClient
from clawrl_trl.errors import UserError
from clawrl_trl.judge.custom import CustomJudge
from clawrl_trl.judge.llm_judge import LLMJudge
from clawrl_trl.judge.rules import RulesJudge
from clawrl_trl.judge.turn import Judge
from clawrl_trl.plugins import JUDGES, load_plugin
from clawrl_trl.run import RunFolder

JUDGE_KEY = "CLAWRL_JUDGE_KEY"
"""Environment variable with the bearer key of `judge_url`."""


def make_judge(settings: ServeSettings, engine: EngineClient, own: EngineClient | None) -> Judge:
    """The judge that the settings ask for.

    Args:
        settings: The run's settings.
        engine: The run's engine.
        own: Client of `settings.judge_url`, if there is one.

    Raises:
        UserError: If a custom reward, or a judge that another package adds, can't be loaded.
    """
    if settings.custom_rm_path:
        return CustomJudge(settings.custom_rm_path, settings.judge_timeout)
    if settings.judge == "llm":
        return LLMJudge(
            own or engine,
            model=settings.judge_model,
            votes=settings.judge_votes,
            majority=settings.judge_majority,
            temperature=settings.judge_temperature,
            max_tokens=settings.judge_max_tokens,
            timeout=settings.judge_timeout,
            any_score=settings.hint_any_score,
        )
    if settings.judge == "rules":
        return RulesJudge(any_score=settings.hint_any_score)
    make = load_plugin(JUDGES, settings.judge)
    if make is None:
        raise UserError(f"--judge {settings.judge!r} is not installed any more: install its package, or name another.")
    judge: Judge = make(settings)
    return judge


@contextlib.asynccontextmanager
async def open_judge(settings: ServeSettings, engine: EngineClient) -> AsyncIterator[Judge]:
    """The judge that the settings ask for, with what it needs, for as long as the context lasts.

    Raises:
        UserError: If a custom reward can't be loaded.
    """
    if not settings.judge_url:
        yield make_judge(settings, engine, None)
        return
    url = settings.judge_url

    def locate() -> EngineAddress:
        # The key of the run's own judge engine goes to that engine, and to no other server.
        own_engine = RunFolder(settings.run).read_announced("judge_engine") or {}
        key = own_engine.get("key") if own_engine.get("base_url") == url else None
        return EngineAddress.of(url, os.environ.get(JUDGE_KEY) or key)

    async with EngineClient(locate, timeout=settings.judge_timeout) as own:
        yield make_judge(settings, engine, own)
