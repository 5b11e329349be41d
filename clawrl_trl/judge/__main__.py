"""The judge process of a run: `python -m clawrl_trl.judge --run DIR`.

Started and restarted by the supervisor. It needs nothing but the run folder: the ledger is there, and the engine is
looked up anew for every call, so either may be restarted without this process.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.errors import run_main
from clawrl_trl.judge.exam.auto_judge import AutoJudge
from clawrl_trl.judge.factory import OpenJudge, open_judge
from clawrl_trl.judge.loop import JudgeLoop
from clawrl_trl.judge.teacher import HintTeacher
from clawrl_trl.ledger import Ledger
from clawrl_trl.run import PRIVATE_UMASK, RunFolder

logger = logging.getLogger(__name__)


async def judge_run(settings: ServeSettings) -> int:
    """Judge the turns of a run until SIGTERM or SIGINT."""
    folder = RunFolder(settings.run)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ledger = Ledger.open(settings.ledger_url or folder.ledger)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(ledger.close)
        engine = await stack.enter_async_context(EngineClient.of_run(folder, settings, settings.judge_timeout))
        judge = await stack.enter_async_context(open_judge(settings, engine, ledger))
        teacher = HintTeacher(engine, settings.judge_timeout, settings.teacher_candidates, settings.hint_choice)
        loop = JudgeLoop(ledger, settings, teacher, judge)
        announce(folder, judge)
        if judge.auto is not None:
            announcing = asyncio.create_task(announce_result(folder, judge, judge.auto))
            stack.callback(announcing.cancel)
        logger.info("judging %s", folder.path)
        await loop.run(stop)
    logger.info("stopped after %d verdicts", loop.judged)
    return 0


def announce(folder: RunFolder, judge: OpenJudge) -> None:
    """Announce that the judge is ready, what its exam says, and what it reads words with."""
    folder.announce("judge", base_url="", exam=judge.announcement, encoder=judge.encoder)


async def announce_result(folder: RunFolder, judge: OpenJudge, auto: AutoJudge) -> None:
    """Announce the judge again once its exam is over."""
    await auto.over.wait()
    announce(folder, judge)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m clawrl_trl.judge", description="Judge the turns of a run.")
    parser.add_argument("--run", required=True, help="Run folder.")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    os.umask(PRIVATE_UMASK)
    return asyncio.run(judge_run(ServeSettings.load(options.run)))


if __name__ == "__main__":
    raise SystemExit(run_main(main))
