"""The judge's loop: claim a turn, judge it, teach it, record verdict and sample in one transaction.

Nobody waits for it and it waits for nobody: turns come out of the ledger and verdicts go into it. A failure on the
way (a server that is away, a time-out) gives the turn back to be judged later and never becomes a score; killed at
any moment, the loop leaves claims that come back when it starts again. A verdict is only written by the claim that
is still the newest, so a turn has one verdict however often it was tried.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass, replace

from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.judge.praise import limit_praise
from clawrl_trl.judge.teacher import HintTeacher, NoTeacher, TeacherScores
from clawrl_trl.judge.turn import Judge, JudgedTurn, Judgement, JudgeUnavailable
from clawrl_trl.ledger import Ledger, LedgerError, LedgerWriter, episodes, schema, turns

logger = logging.getLogger(__name__)

POLL_S = 0.2
GRACE_S = 5.0
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 60.0
FAULTS = 8
"""Attempts after which a turn on which the judge itself fails (a bug) is given up as abstained."""


@dataclass
class Claim:
    """A turn that this loop holds, as it was when it was claimed, until it is given back.

    `outcome` is the verdict of an episode's turn, which stands; such a turn only waits for its teacher.
    """

    turn: schema.Turn
    judged_turn: JudgedTurn
    attempt: int
    outcome: schema.Verdict | None = None
    is_held: bool = True


class JudgeLoop:
    """Judges the turns of one ledger.

    Args:
        ledger: The ledger.
        settings: `judge_workers`, `judge_timeout`, `hints` and `praise_cap` are used.
        teacher: Scores turns under hints; `None` for no teacher.
        judge: Who decides.
    """

    def __init__(self, ledger: Ledger, settings: ServeSettings, teacher: HintTeacher | None, judge: Judge) -> None:
        self._ledger = ledger
        self._judge = judge
        self._teacher = teacher if settings.hints else None
        self._hints = settings.hints
        self._praise_cap = settings.praise_cap
        self._workers = max(1, settings.judge_workers)
        self._lease_s = 4 * settings.judge_timeout + 30
        self._running: dict[asyncio.Task[None], Claim] = {}
        self._released = False
        self._failures = 0
        self._waits: Counter[str] = Counter()
        self.judged = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Judge until `stop` is set, then finish what is under way or give it back."""
        self._writer = LedgerWriter(self._ledger)
        self._renew_at = time.monotonic() + self._lease_s / 3
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                claimed = await self._claim(self._workers - len(self._running))
                for claim in claimed:
                    self._running[asyncio.create_task(self._handle(claim))] = claim
                if not claimed:
                    waiting = {stopped, *self._running}
                    await asyncio.wait(waiting, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED)
                self._reap()
                await self._renew()
        finally:
            stopped.cancel()
            await self._give_back()
            await asyncio.to_thread(self._writer.close)

    async def _claim(self, limit: int) -> list[Claim]:
        if limit < 1:
            return []
        try:
            if not self._released:
                await self._writer.run(release_claims)
                self._released = True
            # Claiming takes the write lock, so an idle judge only reads.
            due = await asyncio.to_thread(self._any_due)
            claimed = await self._writer.run(lambda tx: claim_turns(tx, limit, self._lease_s)) if due else []
        except LedgerError as error:
            logger.warning("can't claim turns: %s", error)
            self._failures += 1
            return []
        self._failures = 0
        return claimed

    def _pause(self) -> float:
        """Longest wait before something is to be done in the ledger, seconds."""
        renewal = max(0.0, self._renew_at - time.monotonic())
        if len(self._running) >= self._workers:
            return renewal
        return min(renewal, draw_backoff(self._failures) if self._failures else POLL_S)

    async def _renew(self) -> None:
        """Renew the claims under way: a verdict that comes after its lease is refused."""
        if time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + self._lease_s / 3
        attempts = {claim.turn.id: claim.attempt for claim in self._running.values() if claim.is_held}
        if not attempts:
            return
        try:
            await self._writer.run(lambda tx: turns.renew_claims(tx, attempts, time.time() + self._lease_s))
        except LedgerError as error:
            logger.warning("claims not renewed: %s", error)

    def _any_due(self) -> bool:
        due = select(schema.Turn.id).where(schema.Turn.state == "judging", schema.Turn.judge_after <= time.time())
        with self._ledger.reader() as tx:
            return tx.scalars(due.limit(1)).first() is not None

    def _reap(self) -> None:
        """Forget finished tasks; a fault of the loop itself ends the process, which the supervisor starts again."""
        for task in [task for task in self._running if task.done()]:
            del self._running[task]
            task.result()

    async def _give_back(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=GRACE_S)
        unfinished = [(task, claim) for task, claim in self._running.items() if not task.done()]
        for task, _ in unfinished:
            task.cancel()
        await asyncio.gather(*(task for task, _ in unfinished), return_exceptions=True)
        for _, claim in unfinished:
            await self._retry(claim, "the judge was stopped", delay=0.0)

    async def _handle(self, claim: Claim) -> None:
        """One turn from claim to verdict, or back."""
        try:
            judgement = judge_outcome(claim.outcome) if claim.outcome else await self._judge.judge(claim.judged_turn)
            judgement, scores = await self._ask_teacher(claim, judgement)
        except JudgeUnavailable as failure:
            if failure.patience is None or claim.attempt < failure.patience:
                await self._retry(claim, failure.reason, failure.delay, is_attempt=failure.is_attempt)
                return
            judgement, scores = abstain(failure.reason, claim), None
        except Exception as error:  # one turn that trips a bug must not stop the judging of all others
            logger.exception("judging %s failed", claim.turn.id)
            reason = f"{type(error).__name__} in the judge"
            if claim.attempt < FAULTS:
                await self._retry(claim, reason)
                return
            judgement, scores = abstain(reason, claim), None
        try:
            await self._record(claim, judgement, scores)
        except Exception as error:  # a judgement that can't be stored, such as one of another package's judge
            logger.exception("the verdict on %s can't be stored", claim.turn.id)
            reason = f"{type(error).__name__} in the verdict"
            if claim.attempt < FAULTS:
                await self._retry(claim, reason)
                return
            await self._record(claim, abstain(reason, claim), None)

    async def _ask_teacher(self, claim: Claim, judgement: Judgement) -> tuple[Judgement, TeacherScores | None]:
        """The teacher's scores, if the judgement has hints and the turn can be trained on."""
        if not judgement.hints or self._teacher is None or not claim.turn.trainable:
            return judgement, None
        try:
            # A hint of an environment is on an action that fell short, whatever the episode's reward.
            score = -1.0 if claim.outcome else judgement.score
            scores = await self._teacher.teach(claim.turn, judgement.hints, score, judgement.hint_source)
        except NoTeacher as reason:
            return replace(judgement, detail={**judgement.detail, "no_teacher": str(reason)}), None
        except JudgeUnavailable as failure:
            if failure.patience is None or claim.attempt < failure.patience:
                raise
            # The verdict is worth keeping: a teacher that is always late must not withhold it for ever.
            return replace(judgement, detail={**judgement.detail, "no_teacher": failure.reason}), None
        return replace(judgement, detail={**judgement.detail, "teacher": scores.detail}), scores

    async def _record(self, claim: Claim, judgement: Judgement, scores: TeacherScores | None) -> None:
        def write(tx: Transaction) -> bool:
            # In the same transaction: turns of one session are judged side by side, and each must see the others.
            limited = limit_praise(tx, claim.judged_turn, judgement, self._praise_cap)
            teacher = scores if limited is judgement else None
            verdict = make_verdict(claim, limited, teacher, hints=self._hints)
            sample = make_sample(claim, limited, teacher)
            return turns.record_verdict(tx, verdict, sample, attempt=claim.attempt)

        try:
            recorded = await self._writer.run(write)
        except LedgerError as error:
            logger.warning("verdict on %s not written, to be judged again: %s", claim.turn.id, error)
            await self._retry(claim, "the verdict could not be written")
            return
        self.judged += recorded
        self._waits.pop(claim.turn.id, None)
        logger.info(
            "%s: %s by %s%s%s",
            claim.turn.id,
            "abstained" if judgement.score is None else f"score {judgement.score:+g}",
            judgement.judge,
            ", with a teacher" if scores else "",
            "" if recorded else " (out of date, not recorded)",
        )

    async def _retry(self, claim: Claim, reason: str, delay: float | None = None, *, is_attempt: bool = True) -> None:
        # What was no attempt makes the next wait longer all the same.
        wait_s = draw_backoff(claim.attempt + self._waits[claim.turn.id]) if delay is None else delay
        level = logging.WARNING
        if not is_attempt:
            level = logging.DEBUG if self._waits[claim.turn.id] else logging.INFO
            self._waits[claim.turn.id] += 1
        # No longer renewed, for a renewal would put off the next attempt.
        claim.is_held = False

        def give_back(tx: Transaction) -> None:
            turn = turns.get(tx, claim.turn.id)
            # Since then another judge may have claimed it, whose claim this is not to end.
            if turn is not None and turn.judge_attempts == claim.attempt:
                turns.retry_later(tx, turn.id, wait_s, reason, is_attempt=is_attempt)

        logger.log(level, "%s stays pending for %.1f s: %s", claim.turn.id, wait_s, reason)
        try:
            await self._writer.run(give_back)
        except LedgerError as error:
            logger.warning("%s could not be given back, its claim runs out: %s", claim.turn.id, error)


def claim_turns(tx: Transaction, limit: int, lease_s: float) -> list[Claim]:
    """Claim due turns, each with the feedback there is at this moment; on one that can't be read, abstain."""
    claimed = []
    for turn_id in turns.claim_judging(tx, limit, time.time(), lease_s):
        try:
            claimed.append(_read_claim(tx, turn_id))
        except DBAPIError:
            raise  # of the database, and not of this turn
        except Exception as error:  # a damaged turn would be the first that is due for ever
            logger.exception("%s can't be read", turn_id)
            reason = str(error) if isinstance(error, LedgerError) else f"{type(error).__name__} in the stored turn"
            verdict = schema.Verdict(turn_id=turn_id, judge="none", detail={"by": "nothing", "reason": reason})
            turns.record_unread(tx, verdict)
    return claimed


def _read_claim(tx: Transaction, turn_id: str) -> Claim:
    (turn,) = turns.read_locked(tx, [turn_id])
    verdict = turns.verdict_of(tx, turn.id)
    outcome = verdict if episodes.awaits_teacher(verdict) else None
    judged_turn = JudgedTurn.of(turn, turns.feedback_of(tx, turn.id))
    return Claim(turn, judged_turn, turn.judge_attempts, outcome)


def release_claims(tx: Transaction) -> None:
    """Make every pending turn due: the claims of a judge that was killed should not have to run out.

    Due since now, so that turns which were never put off come before those that waited.

    One judge works on a ledger at a time. If two ever do, a turn may be judged twice, and recorded once.
    """
    now = time.time()
    pending = schema.Turn.state == "judging", schema.Turn.judge_after > now
    tx.execute(update(schema.Turn).where(*pending).values(judge_after=now))


def draw_backoff(attempt: int) -> float:
    """Seconds until the next attempt: doubling from half a second to a minute, the last half at random."""
    longest: float = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt, 16))
    return longest * random.uniform(0.5, 1.0)


def judge_outcome(verdict: schema.Verdict) -> Judgement:
    """The judgement that an episode's outcome made, with the hints of its environment."""
    detail = {name: value for name, value in verdict.detail.items() if name != "waiting"}
    hints = tuple(verdict.detail["waiting"]["hints"])
    return Judgement(verdict.judge, verdict.score, hints, episodes.HINT_SOURCE, detail=detail)


def abstain(reason: str, claim: Claim) -> Judgement:
    """Abstain on a turn that can't be judged; the outcome of an episode stands, without a teacher."""
    if claim.outcome is not None:
        outcome = judge_outcome(claim.outcome)
        return replace(outcome, detail={**outcome.detail, "no_teacher": reason})
    return Judgement("none", None, detail={"by": "nothing", "reason": reason, "attempts": claim.attempt})


def make_verdict(claim: Claim, judgement: Judgement, scores: TeacherScores | None, *, hints: bool) -> schema.Verdict:
    """The ledger's row for a judgement."""
    hint = scores.hint if scores else next(iter(judgement.hints), None)
    return schema.Verdict(
        turn_id=claim.turn.id,
        judge=judgement.judge,
        votes=list(judgement.votes)
        or [{"score": judgement.score, "raw": str(judgement.detail.get("by", "")), "hint": hint}],
        score=judgement.score,
        hint=hint if hints else None,
        hint_source=judgement.hint_source if hint and hints else None,
        detail=dict(judgement.detail),
    )


def make_sample(claim: Claim, judgement: Judgement, scores: TeacherScores | None) -> schema.Sample | None:
    """The training sample of a judgement, or `None` when it teaches nothing or the turn can't be trained on."""
    turn = claim.turn
    if claim.outcome is not None:
        comparison = claim.outcome.detail["waiting"]
        return episodes.make_sample(turn, judgement.score, comparison, **_make_teacher_columns(scores))
    # A score of 0 has no gradient: it teaches as little as none.
    score = judgement.score or None
    if not turn.trainable or turn.policy_version is None or (score is None and scores is None):
        return None
    return schema.Sample(
        turn_id=turn.id,
        score=score,
        policy_version=turn.policy_version,
        **_make_teacher_columns(scores),
    )


def _make_teacher_columns(scores: TeacherScores | None) -> episodes.TeacherColumns:
    """The columns of a sample that a teacher fills; none without one."""
    if scores is None:
        return {}
    columns: episodes.TeacherColumns = {"teacher_logprobs": scores.teacher, "plain_logprobs": scores.plain}
    if scores.topk_ids is not None and scores.topk_logprobs is not None:
        columns["topk_ids"], columns["topk_logprobs"] = scores.topk_ids.ravel(), scores.topk_logprobs.ravel()
    return columns
