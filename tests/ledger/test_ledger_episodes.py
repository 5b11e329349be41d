"""Rollouts of a task: they wait for their outcome, and are measured by their whole group."""

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_rows import follow, judge, turn
from sqlalchemy import select
from sqlalchemy.orm import Session as Transaction

from clawrl_trl.credit import binary
from clawrl_trl.credit.ledger_source import training_sample
from clawrl_trl.ledger import Ledger, batches, episodes, turns
from clawrl_trl.ledger.episodes import CONSTANT, INCOMPARABLE, EpisodeOutcome
from clawrl_trl.ledger.schema import Event, Sample, Session, Turn


def rollout(tx: Transaction, name: str, steps: int, group: str | None = "g", owner: str = "local") -> list[Turn]:
    """A session of so many turns; all but the last have a next state."""
    session = turns.get_or_create_session(
        tx, owner=owner, external_id=name, identity_source="header", now=1.0, group=group
    )
    talk = [{"role": "user", "content": "do it"}]
    made = []
    for _ in range(steps):
        made.append(turns.add(tx, turn(session.id, messages=list(talk))))
        talk += [{"role": "assistant", "content": "ls"}, {"role": "tool", "content": "a.txt"}]
    for one in made[:-1]:
        assert follow(tx, one.id, "tool result")
    return made


def samples(tx: Transaction, made: Sequence[Turn]) -> list[Sample]:
    return [tx.scalars(select(Sample).where(Sample.turn_id == one.id)).one() for one in made]


def test_turns_of_an_episode_wait_for_the_outcome(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        waiting, chat = rollout(tx, "a", 2), rollout(tx, "chat", 2, group=None)
        assert [one.state for one in waiting] == ["awaiting_next_state"] * 2
        assert chat[0].state == "judging"
        assert waiting[0].next_state is not None
        assert turns.claim_judging(tx, 9, 5.0, 60.0) == [chat[0].id]


def test_a_group_is_measured_as_a_whole(ledger: Ledger) -> None:
    outcomes = {"a": 1.0, "b": -1.0, "c": 0.5}
    with ledger.transaction() as tx:
        made = {name: rollout(tx, name, 2) for name in outcomes}
        settled = episodes.settle(tx, "g", [EpisodeOutcome(name, value) for name, value in outcomes.items()])
        assert (settled.samples, settled.constant, settled.dropped_episodes, settled.unknown) == (6, 0, 0, [])
        for name, value in outcomes.items():
            for one, sample in zip(made[name], samples(tx, made[name]), strict=True):
                assert one.state == "judged" and sample.state == "ready"
                assert (sample.score, sample.group) == (value, "g")
                assert sample.baseline == pytest.approx(0.5 / 3)
                assert sample.scale == pytest.approx(statistics.stdev([1.0, -1.0, 0.5]))


def test_a_part_of_a_group_in_a_batch_keeps_the_group_s_measure(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        for name in "abcd":
            rollout(tx, name, 1)
        values = {"a": 1.0, "b": 1.0, "c": 1.0, "d": -1.0}
        episodes.settle(tx, "g", [EpisodeOutcome(name, value) for name, value in values.items()])
        batch = batches.lease(tx, size=2, needs=("score",), max_staleness=4, current_version=0)
        assert batch is not None
        found = [training_sample(*pair) for pair in batches.samples_of(tx, batch)]
    whole, _ = binary(list(values.values()), ["g"] * 4)
    part, constant = binary([one.score for one in found], [one.group for one in found], [one.measure for one in found])
    assert part == pytest.approx(whole[:2]) and not constant.any()


def test_steps_are_compared_with_steps(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        long, short = rollout(tx, "a", 2), rollout(tx, "b", 1)
        given = [
            EpisodeOutcome("a", 1.0, signals={long[0].id: 0.5, long[1].id: -1.0}),
            EpisodeOutcome("b", -1.0, signals={short[0].id: 1.0}),
        ]
        episodes.settle(tx, "g", given, signal_weight=0.1, stepwise=True)
        first, alone = samples(tx, long)
        other = samples(tx, short)[0]
    assert [first.score, alone.score, other.score] == pytest.approx([1.05, 0.9, -0.9])
    assert first.baseline == other.baseline == pytest.approx((1.05 - 0.9) / 2)
    assert (alone.baseline, alone.group) == (None, None), "a turn alone at its step keeps its raw reward"


def test_signals_are_compared_over_all_turns_of_the_group(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = {name: rollout(tx, name, steps) for name, steps in (("a", 3), ("b", 1), ("c", 2))}
        outcomes = {"a": 1.0, "b": 1.0, "c": -1.0}
        told = {"a": [1.0, -0.5, None], "b": [0.25], "c": [None, -1.0]}
        given = [
            EpisodeOutcome(
                name,
                outcomes[name],
                signals={t.id: s for t, s in zip(made[name], told[name], strict=True) if s is not None},
            )
            for name in made
        ]
        settled = episodes.settle(tx, "g", given, signal_weight=0.5)
        assert (settled.samples, settled.constant) == (6, 0)
        found = [one for name in made for one in samples(tx, made[name])]
    silent = (1.0 - 0.5 + 0.25 - 1.0) / 4  # who has no signal takes the mean of those who have one
    expected = [1.5, 0.75, 1 + silent / 2, 1.125, -1 + silent / 2, -1.5]
    assert [one.score for one in found] == pytest.approx(expected)
    mean = sum(expected) / 6
    deviation = (sum((one - mean) ** 2 for one in expected) / 5) ** 0.5
    assert [one.baseline for one in found] == pytest.approx([mean] * 6)
    assert [one.scale for one in found] == pytest.approx([deviation] * 6)


def test_signals_tell_rollouts_of_the_same_outcome_apart(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = rollout(tx, "a", 1) + rollout(tx, "b", 1)
        given = [
            EpisodeOutcome("a", -1.0, signals={made[0].id: 1.0}),
            EpisodeOutcome("b", -1.0, signals={made[1].id: -1.0}),
        ]
        assert episodes.settle(tx, "g", given, signal_weight=0.5).samples == 2
        better, worse = samples(tx, made)
        assert (better.score, worse.score, better.baseline) == (-0.5, -1.5, -1.0)
        verdict = turns.verdict_of(tx, made[0].id)
        assert verdict is not None and (verdict.detail["outcome"], verdict.detail["signal"]) == (-1.0, 1.0)


@pytest.mark.parametrize("stepwise", [False, True])
def test_signals_without_weight_or_difference_change_nothing(ledger: Ledger, stepwise: bool) -> None:
    for group, weight, signal in (("idle", 0.0, -1.0), ("alike", 0.5, 0.1)):
        with ledger.transaction() as tx:
            made = rollout(tx, f"{group}-a", 2, group) + rollout(tx, f"{group}-b", 2, group)
            given = [
                EpisodeOutcome(f"{group}-a", 1.0, signals={made[0].id: 0.1, made[1].id: 0.1}),
                EpisodeOutcome(f"{group}-b", 1.0, signals={made[2].id: signal}),
            ]
            settled = episodes.settle(tx, group, given, signal_weight=weight, stepwise=stepwise)
            assert (settled.samples, settled.constant) == (0, 4)


def test_a_step_is_told_by_the_replies_before_it(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = rollout(tx, "a", 3)
        assert [episodes.step_of(one) for one in made] == [0, 1, 2]
        again = turns.add(tx, turn(made[0].session_id, messages=made[1].messages))
        other = rollout(tx, "b", 2)
        episodes.settle(tx, "g", [EpisodeOutcome("a", 1.0), EpisodeOutcome("b", -1.0)], stepwise=True)
        assert again.state == "judged", "a reply that never arrived, asked for again, is at the same step"
        assert samples(tx, [other[1]])[0].baseline == pytest.approx(1 / 3)


def test_a_constant_group_is_dropped_and_counted(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = rollout(tx, "a", 1) + rollout(tx, "b", 1)
        settled = episodes.settle(tx, "g", [EpisodeOutcome("a", 1.0), EpisodeOutcome("b", 1.0)])
        assert (settled.samples, settled.constant) == (0, 2)
        assert [(one.state, one.reason) for one in samples(tx, made)] == [("dropped", CONSTANT)] * 2


def test_a_group_of_one_keeps_its_raw_reward(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = rollout(tx, "a", 1)
        assert episodes.settle(tx, "g", [EpisodeOutcome("a", -0.5)]).samples == 1
        assert (samples(tx, made)[0].score, samples(tx, made)[0].baseline) == (-0.5, None)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_raw_reward_is_the_advantage_in_every_batch(ledger: Ledger, size: int) -> None:
    """Two long rollouts alone in their groups: no batch, however it is cut, compares a reward with itself."""
    with ledger.transaction() as tx:
        for group, reward in (("g", -0.5), ("h", 1.0)):
            rollout(tx, group, 2, group)
            assert episodes.settle(tx, group, [EpisodeOutcome(group, reward)]).samples == 2
        found: list[float] = []
        held_ids: list[str] = []
        while len(found) < 4:
            batch = batches.lease(
                tx, size=size, needs=("score",), max_staleness=4, current_version=0, held_ids=held_ids
            )
            assert batch is not None
            held_ids.append(batch.id)
            part = [training_sample(*pair) for pair in batches.samples_of(tx, batch)]
            values, _ = binary([one.score for one in part], [one.group for one in part], [one.measure for one in part])
            found.extend(values)
    assert sorted(found) == [-0.5, -0.5, 1.0, 1.0]


def test_a_dropped_episode_never_gets_a_reward(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        broken = rollout(tx, "a", 2)
        rollout(tx, "b", 1)
        rollout(tx, "c", 1)
        ended = [EpisodeOutcome("a", None, "the browser died"), EpisodeOutcome("b", 1.0), EpisodeOutcome("c", -1.0)]
        settled = episodes.settle(tx, "g", ended)
        assert (settled.samples, settled.dropped_episodes) == (2, 1)
        assert tx.scalars(select(Sample).where(Sample.turn_id.in_([one.id for one in broken]))).all() == []
        event = tx.scalars(select(Event).where(Event.kind == "episode_dropped")).one()
        assert event.data == {"group": "g", "reason": "the browser died"}


@pytest.mark.parametrize("stepwise", [False, True])
def test_the_last_rollout_of_a_group_has_nothing_to_be_compared_with(ledger: Ledger, stepwise: bool) -> None:
    """Its raw reward would push harder than any advantage of a whole group, and say less."""
    with ledger.transaction() as tx:
        rollout(tx, "a", 2)
        left = rollout(tx, "b", 2)
        ended = [
            EpisodeOutcome("a", None, "the browser died"),
            EpisodeOutcome("nobody", 1.0),
            EpisodeOutcome("b", 1.0),
        ]
        settled = episodes.settle(tx, "g", ended, stepwise=stepwise)
        assert (settled.samples, settled.incomparable, settled.dropped_episodes) == (0, 2, 1)
        assert [(one.state, one.reason) for one in samples(tx, left)] == [("dropped", INCOMPARABLE)] * 2
        assert [one.state for one in left] == ["judged"] * 2


def test_settling_again_adds_nothing(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        rollout(tx, "a", 2)
        rollout(tx, "b", 2)
        ended = [EpisodeOutcome("a", 1.0), EpisodeOutcome("b", 0.0)]
        assert episodes.settle(tx, "g", ended).samples == 4
        assert episodes.settle(tx, "g", ended).samples == 0
        assert len(tx.scalars(select(Sample)).all()) == 4


def test_an_expired_turn_still_gets_its_outcome(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = rollout(tx, "a", 2)
        assert turns.expire(tx, silent_since=100.0) == 2
        assert episodes.settle(tx, "g", [EpisodeOutcome("a", 1.0)]).samples == 2
        assert {one.state for one in made} == {"judged"}


def test_who_may_settle_what(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        rollout(tx, "a", 1, owner="alice")
        rollout(tx, "chat", 1, group=None)
        for group, name in (("other", "a"), ("g", "chat")):
            with pytest.raises(KeyError, match="no rollout of group"):
                episodes.settle(tx, group, [EpisodeOutcome(name, 1.0)])
        assert episodes.settle(tx, "g", [EpisodeOutcome("a", 1.0)], owner="bob").unknown == ["a"]
        assert episodes.settle(tx, "g", [EpisodeOutcome("nobody", 1.0)]).unknown == ["nobody"]
        with pytest.raises(ValueError, match="session a has no turn elsewhere"):
            episodes.settle(tx, "g", [EpisodeOutcome("a", 1.0, signals={"elsewhere": 1.0})])


@pytest.mark.parametrize("owner", ["alice", None])
def test_owners_may_use_the_same_names(ledger: Ledger, owner: str | None) -> None:
    with ledger.transaction() as tx:
        rollout(tx, "task-0", 1, owner="alice")
        (others,) = rollout(tx, "task-0", 1, group="other", owner="bob")
        others_session = tx.get_one(Session, others.session_id)
        others_session.started_at = 2.0
        tx.flush()
        assert episodes.settle(tx, "g", [EpisodeOutcome("task-0", 1.0)], owner=owner).samples == 1
        assert others.state == "awaiting_next_state" and not others_session.done
        (shared,) = rollout(tx, "task-1", 1, group="other", owner="bob")
        assert episodes.settle(tx, "g", [EpisodeOutcome("task-1", 1.0)], owner="alice").unknown == ["task-1"]
        assert shared.state == "awaiting_next_state"


def test_a_baseline_is_part_of_what_a_batch_promises(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = rollout(tx, "a", 1) + rollout(tx, "b", 1)
        episodes.settle(tx, "g", [EpisodeOutcome("a", 1.0), EpisodeOutcome("b", 0.0)])
        sample = samples(tx, made)[0]
        before = sample.content(made[0])
        sample.baseline = 0.75
        assert sample.content(made[0]) != before


def test_a_reply_in_an_episode_is_not_judged_twice(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = rollout(tx, "a", 2)
        assert not judge(tx, made[0].id), "no judge holds it"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.floats(-1, 1).map(lambda value: round(value, 3)), min_size=2, max_size=6))
def test_advantages_are_those_of_the_group(ledger: Ledger, values: list[float]) -> None:
    with ledger.transaction() as tx:
        group = f"group-{tx.scalar(select(Turn.seq).order_by(Turn.seq.desc()).limit(1)) or 0}"
        names = [f"{group}-{index}" for index in range(len(values))]
        made = [rollout(tx, name, 1, group=group)[0] for name in names]
        episodes.settle(tx, group, [EpisodeOutcome(*pair) for pair in zip(names, values, strict=True)])
        found = samples(tx, made)
        measures = [None if one.baseline is None or one.scale is None else (one.baseline, one.scale) for one in found]
        expected, constant = binary(values, [group] * len(values))
        assert [one.state == "dropped" for one in found] == list(constant)
        assert binary(values, None, measures)[0] == pytest.approx(expected, abs=1e-9)


def hinted(tx: Transaction, outcomes: dict[str, float]) -> dict[str, Turn]:
    """Rollouts of a turn each, settled with a hint for those below 1."""
    made = {name: rollout(tx, name, 1)[0] for name in outcomes}
    hints = {name: {made[name].id: ["x is 1, not 6."]} for name, value in outcomes.items() if value < 1}
    ended = [EpisodeOutcome(name, value, hints=hints.get(name, {})) for name, value in outcomes.items()]
    settled = episodes.settle(tx, "g", ended)
    assert settled.hinted == len(hints)
    return made


def test_a_turn_with_a_hint_waits_for_its_teacher(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        made = hinted(tx, {"a": 1.0, "b": -1.0})
        assert [made[name].state for name in "ab"] == ["judged", "judging"]
        assert samples(tx, [made["a"]])[0].state == "ready"
        assert tx.scalar(select(Sample).where(Sample.turn_id == made["b"].id)) is None
        verdict = turns.verdict_of(tx, made["b"].id)
        assert verdict is not None and verdict.score == -1.0 and episodes.awaits_teacher(verdict)
        assert not episodes.awaits_teacher(turns.verdict_of(tx, made["a"].id))
        assert turns.claim_judging(tx, 9, 5.0, 60.0) == [made["b"].id]
        again = episodes.settle(tx, "g", [EpisodeOutcome("b", -1.0, hints={made["b"].id: ["other"]})])
        assert (again.hinted, again.samples) == (0, 0), "settled once"


@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize("outcomes", [{"a": 1.0, "b": -1.0}, {"a": -1.0, "b": -1.0}], ids=str)
def test_the_sample_of_a_turn_that_waited(ledger: Ledger, outcomes: dict[str, float], taught: bool) -> None:
    with ledger.transaction() as tx:
        turn = hinted(tx, outcomes)["b"]
        verdict = turns.verdict_of(tx, turn.id)
        assert verdict is not None
        teacher = {"teacher_logprobs": [-1.0, -2.0], "plain_logprobs": [-0.5, -0.5]} if taught else {}
        sample = episodes.make_sample(turn, verdict.score, verdict.detail["waiting"], **teacher)
        constant = len(set(outcomes.values())) == 1
        assert (sample.state, sample.reason) == (("dropped", CONSTANT) if constant and not taught else ("ready", None))
        if constant and taught:
            assert (sample.score, sample.group) == (None, None), "the teacher's word alone counts"
        else:
            assert (sample.score, sample.group, sample.baseline) == (-1.0, "g", statistics.fmean(outcomes.values()))
        assert (sample.teacher_logprobs is not None) == taught


def test_a_hint_for_another_s_turn_is_refused(ledger: Ledger) -> None:
    with ledger.transaction() as tx:
        rollout(tx, "a", 1)
        other = rollout(tx, "b", 1)[0]
        with pytest.raises(ValueError, match=f"no turn {other.id}, for which there is a hint"):
            episodes.settle(tx, "g", [EpisodeOutcome("a", -1.0, hints={other.id: ["x"]})])
