"""The judge of `--judge auto`: who judges a turn follows from what it says and from the base model's exam.

Explicit feedback, thumbs and tool results go to the rules judge. Words go to the base model's votes if it passed its
exam in every group that the turn belongs to, and the owner's thumbs agree with it, else to the embedded judge, which
abstains outside its language. The exam is sat in the background; until it is over turns with words wait, and nothing
else does. A server that can't be reached puts the exam off and never fails it; one that is too slow for it, or refuses
the key or the model, is left out until the next start. The bundled model, which fails, sits none.
"""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from clawrl_trl.engines.client import EngineClient, EngineError
from clawrl_trl.judge.classifier.encoders import MINILM
from clawrl_trl.judge.exam.exam import find_refusal, sit_exam
from clawrl_trl.judge.exam.groups import find_groups
from clawrl_trl.judge.exam.questions import find_key, load_questions
from clawrl_trl.judge.exam.record import ExamRecord
from clawrl_trl.judge.exam.result import ExamResult
from clawrl_trl.judge.exam.thumbs import EXAM_KEY, NO_COMPARISON, VOTED, Agreement, has_thumbs, read_agreement
from clawrl_trl.judge.hints.fitness import drop_unfit_hints
from clawrl_trl.judge.llm_judge import LLMJudge
from clawrl_trl.judge.turn import Judge, JudgedTurn, Judgement, JudgeTimedOut, JudgeUnavailable
from clawrl_trl.ledger import Ledger
from clawrl_trl.tiny import MODEL_PATH

logger = logging.getLogger(__name__)

WAIT_S, LONGEST_WAIT_S = 5.0, 300.0
"""Seconds after which a turn that waits for the exam is looked at again, doubled with each look."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 300.0
"""Delay before the exam is tried again, doubled with each attempt."""
MOST_SLOW_SITTINGS = 3
"""Sittings that end by time-outs before the model is left out."""
BUNDLED = "the bundled model"


class AutoJudge:
    """Judges by rules, by the base model's votes where it passed its exam, and else by the embedded judge.

    Args:
        rules: The rules judge, which is the embedded judge for words.
        voter: The judge that asks the base model.
        client: Client of the server that `voter` asks.
        folder: The run folder, where results of exams are kept.
        workers: Questions of the exam that are put to the server at once.
        ledger: The run's ledger, for the comparison with thumbs; `None` compares nothing.
        encoder: The encoder that corrections are read with before a hint is made of one.

    Attributes:
        result: The exam's result, `None` until it is over.
        over: Set once there is a result.
        announcement: The line that is shown at the start, and again when the exam is over.
    """

    def __init__(
        self,
        rules: Judge,
        voter: LLMJudge,
        client: EngineClient,
        folder: Path,
        *,
        workers: int = 4,
        ledger: Ledger | None = None,
        encoder: str = MINILM,
    ) -> None:
        self._rules, self._voter, self._client, self._encoder = rules, voter, client, encoder
        self._ledger = ledger
        self._agrees = True
        self._record = ExamRecord(folder)
        self._workers = workers
        self._exam: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._model = "the judge's model"
        # How often each turn was told to wait. What has come to a turn since is part of its key.
        self._waits: Counter[tuple[str, int, int]] = Counter()
        self.over = asyncio.Event()
        self.result: ExamResult | None = None
        self.announcement = ""

    async def judge(self, turn: JudgedTurn) -> Judgement:
        """The judgement of one turn.

        Raises:
            JudgeUnavailable: While the exam is under way, for a turn with words alone; if a vote can't be had.
        """
        key = (turn.turn_id, len(turn.feedback), len(turn.next_state))
        if self.result is None and key in self._waits:
            self._wait(key)
        by_rules = await self._rules.judge(turn)
        if by_rules.detail.get("by") != "words":
            return await self._compare(turn, by_rules) if has_thumbs(turn) else by_rules
        result = self.result
        if result is None:
            self._wait(key)
        if result.failure:
            return replace(by_rules, detail={**by_rules.detail, "exam": result.explain(())})
        groups = await asyncio.to_thread(find_groups, turn)
        if not result.admits(groups):
            return replace(by_rules, detail={**by_rules.detail, "exam": result.explain(groups)})
        agreement = await self._read_agreement(result.key)
        if not agreement.is_sufficient:
            reason = f"{result.model} is not used: {agreement.describe()}"
            return replace(by_rules, detail={**by_rules.detail, "exam": reason})
        judgement = await asyncio.to_thread(drop_unfit_hints, turn, await self._voter.judge(turn), self._encoder)
        more = {"exam": result.explain(groups), EXAM_KEY: result.key}
        return replace(judgement, detail={**judgement.detail, **more})

    def _wait(self, key: tuple[str, int, int]) -> NoReturn:
        """Put off a turn with words; it was classified before, and isn't again until the exam is over."""
        self.start()
        delay = min(LONGEST_WAIT_S, WAIT_S * 2.0 ** min(self._waits[key], 16))
        self._waits[key] += 1
        raise JudgeUnavailable("the base model's exam is not over", delay=delay, is_attempt=False)

    async def _compare(self, turn: JudgedTurn, by_thumbs: Judgement) -> Judgement:
        """The thumbs' judgement, with what the votes would have been in its detail where they would have counted."""
        if self._ledger is None or self.result is None or self.result.failure:
            return by_thumbs
        if not self.result.admits(await asyncio.to_thread(find_groups, turn)):
            return by_thumbs
        try:
            votes = await self._voter.judge(replace(turn, feedback=()))
        except JudgeUnavailable as failure:
            logger.info("%s: thumbs not compared with votes: %s", turn.turn_id, failure.reason)
            return by_thumbs
        voted = {"judge": votes.judge, "score": votes.score, EXAM_KEY: self.result.key}
        return replace(by_thumbs, detail={**by_thumbs.detail, VOTED: voted})

    async def _read_agreement(self, key: str) -> Agreement:
        if self._ledger is None:
            return NO_COMPARISON
        agreement = await asyncio.to_thread(self._query_agreement, self._ledger, key)
        if agreement.is_sufficient != self._agrees:
            self._agrees = agreement.is_sufficient
            state = "used again" if self._agrees else "not used, the embedded judge alone decides"
            logger.warning("judge auto: %s: %s", agreement.describe(), state)
        return agreement

    @staticmethod
    def _query_agreement(ledger: Ledger, key: str) -> Agreement:
        with ledger.reader() as tx:
            return read_agreement(tx, key)

    def start(self) -> None:
        """Start the exam in the background, unless it is under way or over; a fault that ended it is raised."""
        if self._exam is not None and self._exam.done():
            ended, self._exam = self._exam, None
            ended.result()
        if self.result is None and self._exam is None:
            self._exam = asyncio.create_task(self._sit_until_over())

    async def aclose(self) -> None:
        """End an exam that is under way; its answers are lost."""
        if self._exam is not None:
            self._exam.cancel()
            (ending,) = await asyncio.gather(self._exam, return_exceptions=True)
            if isinstance(ending, Exception):
                logger.error("judge auto: the exam ended by a fault", exc_info=ending)

    async def recall(self) -> str:
        """Take the stored result of this exam, if there is one; returns the line that is shown at the start."""
        try:
            key, model = await self._identify()
        except JudgeUnavailable as failure:
            return f"judge auto: the exam waits for the server ({failure.reason})"
        result = await asyncio.to_thread(self._find_result, key, model)
        if result is None:
            count = len(await asyncio.to_thread(load_questions))
            return f"judge auto: {model} sits its exam of {count} questions; words wait until it is over"
        self._take(result)
        return self.announcement

    async def find_stored(self) -> ExamResult | None:
        """The stored result of the exam of this model and prompt, which is not sat here; `None` if there is none.

        Raises:
            JudgeUnavailable: If the server can't be reached.
        """
        key, _ = await self._identify()
        return await asyncio.to_thread(self._record.find, key)

    def _take(self, result: ExamResult) -> None:
        self.result = result
        self.announcement = f"judge auto: {result.describe_dated()}"
        self._waits.clear()
        self.over.set()

    async def examine(self) -> ExamResult:
        """The stored result of the exam, or that of sitting it now.

        Raises:
            JudgeUnavailable: If the server can't be reached, or not to the end.
        """
        async with self._one_at_a_time:
            if self.result is None:
                key, model = await self._identify()
                stored = await asyncio.to_thread(self._find_result, key, model)
                self._take(stored or await self._sit(key, model))
            assert self.result is not None
            return self.result

    def _find_result(self, key: str, model: str) -> ExamResult | None:
        """The result that needs no sitting: one of the record, or that of the bundled model."""
        result = self._record.find(key)
        if result is None and model == BUNDLED:
            result = ExamResult.without_exam(key, model, "sits no exam, which it is known to fail")
            self._record.store(result)
        return result

    async def _sit(self, key: str, model: str) -> ExamResult:
        result = await sit_exam(self._voter, key, model, votes=self._voter.votes, workers=self._workers)
        await asyncio.to_thread(self._record.store, result)
        logger.info("judge auto: %s", result.describe())
        return result

    async def _sit_until_over(self) -> None:
        delay, slow = FIRST_DELAY_S, 0
        while True:
            try:
                await self.examine()
                return
            except JudgeTimedOut as failure:
                reason, slow = failure.reason, slow + 1
                if slow == MOST_SLOW_SITTINGS:
                    self._leave_out(f"was too slow for its exam {slow} times, raise --judge_timeout")
                    return
            except JudgeUnavailable as failure:
                reason = failure.reason
                if (refusal := find_refusal(failure)) is not None:
                    self._leave_out(f"can't be asked ({refusal})")
                    return
            logger.warning("judge auto: the exam is tried again in %.0f s: %s", delay, reason)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, LONGEST_DELAY_S)

    def _leave_out(self, reason: str) -> None:
        """Go on without the model until the next start: nothing is stored."""
        self._take(ExamResult.without_exam("", self._model, reason))
        logger.warning("%s", self.announcement)

    async def _identify(self) -> tuple[str, str]:
        """The key of the exam, and the name of the model for people."""
        name = await self._voter.find_model()
        try:
            root = (await self._client.roots()).get(name)
        except EngineError as error:
            # Some OpenAI-compatible servers list no models.
            if error.status not in (404, 405):
                raise JudgeUnavailable(f"the server does not list its models: {error}"[:300]) from error
            root = None
        if root is not None and Path(root) == MODEL_PATH:
            self._model = BUNDLED
            return BUNDLED, BUNDLED
        self._model = Path(root or name).name
        settings = self._voter.describe_settings()
        key = await asyncio.to_thread(find_key, f"{name} {root or ''}", settings)
        return key, self._model


@contextlib.asynccontextmanager
async def examining(judge: AutoJudge) -> AsyncIterator[AutoJudge]:
    """Keep a judge's exam under way for as long as the context lasts, if its result isn't stored."""
    judge.announcement = await judge.recall()
    logger.info("%s", judge.announcement)
    judge.start()
    try:
        yield judge
    finally:
        await judge.aclose()
