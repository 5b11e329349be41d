"""Episodes: sessions whose turns wait for an outcome, and the groups they are compared in.

A session that names a group is one rollout of a task. Its turns get no verdict of their own while it runs; when all
rollouts of the group have ended, one transaction writes the verdicts and samples of all of them, each sample with
the statistics of its group, so that a batch may hold any part of a group and still measure it by the whole.

A turn may come with hints, in the words of the environment's own checker. Its verdict is written like all others, but
its sample waits: the turn stays `judging` until the judge has scored it under a hint (`awaits_teacher`).

A turn's signal is a process score in [-1, 1], which whoever played the episode reports with the outcome, by the turn's
id. A turn without one takes the mean of those it is compared with, so that it is neither rewarded nor punished.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from sqlalchemy import select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.ledger import events, turns
from clawrl_trl.ledger.columns import Floats, Ids
from clawrl_trl.ledger.schema import Sample, Session, Turn, Verdict
from clawrl_trl.messages import Json

JUDGE = "outcome"
HINT_SOURCE = "environment"
"""Provenance of a hint that an environment's checker wrote."""
MAX_HINT = 200
"""Longest hint of an environment, in characters."""
MAX_HINTS = 3
"""Hints of a turn: a teacher tries no more."""
CONSTANT = "constant group: every rollout got the same"
INCOMPARABLE = "incomparable: no other rollout of its group has an outcome"
SAME = 1e-9
"""Rewards that are no further apart than this are the same."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """The end of one rollout.

    Attributes:
        session (`str`): The client's name of its session, or the ledger's.
        outcome (`float`, *optional*): In [-1, 1]; `None` when the episode is dropped.
        reason (`str`): Why it is dropped.
        signals (`Mapping[str, float]`): Process signals of its turns, by their ids, in [-1, 1]; a turn may have none.
        hints (`Mapping[str, Sequence[str]]`): Words of the environment's checker on turns that fell short, by their
            ids, the best first.
    """

    session: str
    outcome: float | None
    reason: str = ""
    signals: Mapping[str, float] = field(default_factory=dict)
    hints: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass
class GroupCounts:
    """Counts of a settled group.

    Attributes:
        samples (`int`): Samples that may be trained.
        constant (`int`): Samples dropped because nothing differs within their group.
        incomparable (`int`): Samples dropped because all other rollouts of their group were lost.
        hinted (`int`): Turns whose sample waits for a teacher.
        dropped_episodes (`int`): Episodes without an outcome.
        unknown (`list[str]`): Sessions that left no turn.
    """

    samples: int = 0
    constant: int = 0
    incomparable: int = 0
    hinted: int = 0
    dropped_episodes: int = 0
    unknown: list[str] = field(default_factory=list)


class TeacherColumns(TypedDict, total=False):
    """Columns of a sample that a teacher fills: see `schema.Sample`."""

    teacher_logprobs: Floats
    plain_logprobs: Floats
    topk_ids: Ids
    topk_logprobs: Floats


class Comparison(TypedDict):
    """Rewards that a turn is compared with, summarised; kept in the verdict of a turn that waits for its teacher.

    `group`, `baseline` and `scale` are those of the sample. `useless` is the reason why the comparison says nothing.
    """

    hints: list[str]
    group: str | None
    baseline: float | None
    scale: float | None
    useless: str | None


@dataclass
class _RewardedTurn:
    """A turn of an episode, on its way to a sample."""

    turn: Turn
    outcome: float
    signal: float | None
    hints: Sequence[str] = ()
    reward: float = 0.0


def settle(
    tx: Transaction,
    group: str,
    episodes: Sequence[EpisodeOutcome],
    *,
    owner: str | None = None,
    signal_weight: float = 0.0,
    stepwise: bool = False,
) -> GroupCounts:
    """Give the turns of a group's rollouts their rewards, and make their samples.

    The reward of a turn is `outcome + signal_weight * signal`. Its advantage will be `(reward - baseline) / (scale +
    1e-6)` with the mean and the sample standard deviation of what it is compared with: the outcomes of the group's
    rollouts; where signals tell turns apart, the rewards of all turns of the group; `stepwise`, the rewards of the
    turns at the same step. A group of one keeps its raw rewards, and so does, `stepwise`, a turn alone at its step;
    their samples carry no group, so that no batch compares them with anything. What is left of a larger group with
    one outcome is dropped. Settling a group again adds nothing.

    Args:
        tx (`Session`): The open transaction.
        group (`str`): The group's name.
        episodes (`Sequence[EpisodeOutcome]`): Its rollouts.
        owner (`str`, *optional*): Whose sessions they must be; others are unknown. Default: anybody's.
        signal_weight (`float`, defaults to 0): Weight of the process signals.
        stepwise (`bool`, defaults to `False`): Compare step by step.

    Raises:
        KeyError: If a session does not belong to the group.
        ValueError: If an episode has a signal or a hint for a turn that is not its own.
    """
    settled = GroupCounts()
    compared: dict[int | None, list[_RewardedTurn]] = defaultdict(list)
    outcomes: list[float] = []
    for episode in episodes:
        session = _find_rollout(tx, group, episode.session, owner)
        # A rollout whose every request failed was never captured; the others of its group count all the same.
        if session is None:
            settled.unknown.append(episode.session)
            continue
        _check_turns(tx, session, episode)
        session.done = True
        if episode.outcome is None:
            settled.dropped_episodes += 1
            events.log(tx, "episode_dropped", session.id, group=group, reason=episode.reason)
            continue
        waiting = _list_waiting(tx, session.id)
        # A rollout with nothing left to reward was settled before, or left no main turn: nothing is compared with it.
        outcomes += [episode.outcome] * bool(waiting)
        for turn in waiting:
            step = step_of(turn) if stepwise else None
            signal, hints = episode.signals.get(turn.id), episode.hints.get(turn.id, ())
            compared[step].append(_RewardedTurn(turn, episode.outcome, signal, hints))
    lost_others = len(episodes) > 1 and len(outcomes) < 2
    for members in compared.values():
        has_signals = _assign_rewards(members, signal_weight)
        # By the outcomes alone a group with 1, 1, 1 and 0.9 would make an advantage of 20 of a signal of 1.
        by_turn = len(outcomes) > 1 and (stepwise or has_signals)
        measured = [member.reward for member in members] if by_turn else outcomes
        useless = _find_fault(measured, lost_others)
        for member in members:
            _record(tx, member, group, measured, useless, settled)
    tx.flush()
    return settled


def step_of(turn: Turn) -> int:
    """Step of a turn in its episode, from 0: the number of replies before it."""
    return sum(message.get("role") == "assistant" for message in turn.messages)


def _assign_rewards(members: Sequence[_RewardedTurn], weight: float) -> bool:
    """Set the rewards of turns that are compared; returns whether signals are in them."""
    signals = [member.signal for member in members if member.signal is not None]
    mean = statistics.fmean(signals) if signals else 0.0
    for member in members:
        member.reward = member.outcome + weight * (mean if member.signal is None else member.signal)
    # With weight 0 signals tell no turns apart, and the outcomes alone are compared.
    return bool(signals and weight)


def _find_rollout(tx: Transaction, group: str, name: str, owner: str | None) -> Session | None:
    session = turns.find_session(tx, name, owner=owner, group=group)
    if session is None:
        return None
    if session.group != group:
        raise KeyError(f"session {name} is no rollout of group {group}")
    return session


def _list_waiting(tx: Transaction, session_id: str) -> list[Turn]:
    """The main turns of a rollout that have no verdict yet, in order."""
    # The turns of a long rollout may have expired meanwhile; the outcome is theirs all the same.
    states = ("awaiting_next_state", "expired")
    waiting = select(Turn.id).where(Turn.session_id == session_id, Turn.kind == "main", Turn.state.in_(states))
    return turns.read_locked(tx, tx.scalars(waiting.order_by(Turn.seq).with_for_update()).all())


def _check_turns(tx: Transaction, session: Session, episode: EpisodeOutcome) -> None:
    mentioned = {"signal": set(episode.signals), "hint": set(episode.hints)}
    if not any(mentioned.values()):
        return
    own = set(tx.scalars(select(Turn.id).where(Turn.session_id == session.id)))
    for kind, ids in mentioned.items():
        if foreign := sorted(ids - own):
            raise ValueError(f"session {episode.session} has no turn {foreign[0]}, for which there is a {kind}")


def _find_fault(measured: Sequence[float], lost_others: bool) -> str | None:
    """Find the reason why a comparison says nothing; `None` if it does."""
    if lost_others:
        return INCOMPARABLE
    return CONSTANT if len(measured) > 1 and max(measured) - min(measured) <= SAME else None


def _record(
    tx: Transaction,
    rewarded: _RewardedTurn,
    group: str,
    measured: Sequence[float],
    useless: str | None,
    settled: GroupCounts,
) -> None:
    """Write a turn's verdict and, if it can be trained, its sample, unless that waits for a teacher."""
    turn = rewarded.turn
    # The table knows no way from waiting to judged, and a recorded verdict is refused in any other state.
    turn.state = "judging"
    detail: Json = {"by": "outcome", "group": group, "compared": len(measured), "outcome": rewarded.outcome}
    if rewarded.signal is not None:
        detail["signal"] = rewarded.signal
    verdict = Verdict(turn_id=turn.id, judge=JUDGE, score=rewarded.reward, detail=detail)
    if not turn.trainable or turn.policy_version is None:
        turns.record_verdict(tx, verdict, None)
        return
    # No group in the sample: a batch would compare the rollout with itself.
    alone = len(measured) < 2
    comparison: Comparison = {
        "hints": list(rewarded.hints),
        "group": None if alone else group,
        "baseline": None if alone else statistics.fmean(measured),
        "scale": None if alone else statistics.stdev(measured),
        "useless": useless,
    }
    if rewarded.hints:
        # Left in `judging` and due at once: the judge's loop claims it like any other turn.
        detail["waiting"] = comparison
        turn.judge_after, turn.judge_attempts = 0.0, 0
        tx.add(verdict)
        settled.hinted += 1
        return
    turns.record_verdict(tx, verdict, make_sample(turn, rewarded.reward, comparison))
    if useless is None:
        settled.samples += 1
    elif useless == CONSTANT:
        settled.constant += 1
    else:
        settled.incomparable += 1


def awaits_teacher(verdict: Verdict | None) -> bool:
    """Return whether a turn's verdict stands already, and only its sample waits for a teacher."""
    return verdict is not None and verdict.judge == JUDGE and "waiting" in verdict.detail


def make_sample(turn: Turn, score: float | None, comparison: Comparison, **teacher: Unpack[TeacherColumns]) -> Sample:
    """The sample of an episode's turn.

    Where the comparison of the rewards says nothing, the reward is left out if there is a teacher; without one the
    sample is dropped, with the reason.

    Args:
        turn (`Turn`): A trainable turn.
        score (`float`, *optional*): Its reward.
        comparison (`Comparison`): What it is compared with.
        teacher: Columns of `Sample` that a teacher fills; none without one.
    """
    assert turn.policy_version is not None
    sample = Sample(turn_id=turn.id, policy_version=turn.policy_version, **teacher)
    # The comparison told nothing, but the hint still does.
    if comparison["useless"] and teacher:
        return sample
    sample.score = score
    sample.group, sample.baseline, sample.scale = comparison["group"], comparison["baseline"], comparison["scale"]
    if comparison["useless"]:
        sample.state, sample.reason = "dropped", comparison["useless"]
    return sample
