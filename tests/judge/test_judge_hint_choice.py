"""The choice among hints by overlap: against an independent sum, and from the engine to the turn's teacher."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_helpers import Scripted, logprob, put_turn, ranked, render

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.client import EngineClient
from clawrl_trl.errors import UserError
from clawrl_trl.judge.hints.choice import choose_by_overlap, measure_overlap
from clawrl_trl.judge.hints.template import append_hint
from clawrl_trl.judge.teacher import HintTeacher, TeacherScores
from clawrl_trl.ledger import Ledger, schema, turns

HINTS = ("One.", "Two words.", "Three words here.")


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6))
def test_the_overlap_is_the_mass_shared_on_the_policys_likeliest_tokens(seed: int, vocabulary: int, k: int) -> None:
    random = np.random.default_rng(seed)
    policy, teacher = random.dirichlet(np.ones(vocabulary), 3), random.dirichlet(np.ones(vocabulary), 3)
    expected = 0.0
    for student, hinted in zip(policy, teacher, strict=True):
        likely = np.argsort(-student, kind="stable")[:k]
        expected += np.minimum(student, hinted)[likely].sum() / student[likely].sum() / 3
    told = [[dict(enumerate(np.log(row).tolist())) for row in rows] for rows in (policy, teacher)]
    assert measure_overlap(*told, k=k) == pytest.approx(expected)
    assert measure_overlap(told[0], told[0], k=k) == pytest.approx(1.0)


def test_tokens_that_the_teacher_does_not_name_share_nothing() -> None:
    policy = [{1: math.log(0.6), 2: math.log(0.3), 3: math.log(0.1)}]
    assert measure_overlap(policy, [{7: 0.0}], k=2) == 0
    assert measure_overlap(policy, [{1: math.log(0.3)}], k=2) == pytest.approx(0.3 / 0.9)
    assert measure_overlap([], []) == 0


def test_the_largest_overlap_wins_among_those_that_teach_something() -> None:
    assert choose_by_overlap([0.5, 0.9, 0.7], [1.0, 0.0, 0.1]) == 2
    assert choose_by_overlap([0.5, 0.5], [1.0, 2.0]) == 0
    assert choose_by_overlap([0.05, 0.9], [1.0, -1.0]) is None
    assert choose_by_overlap([], []) is None


def stored(ledger: Ledger, **values: object) -> schema.Turn:
    identity = put_turn(ledger, **values)  # type: ignore[arg-type]
    with ledger.reader() as tx:
        turn = turns.get(tx, identity)
    assert turn is not None
    return turn


async def teach(script: Scripted, turn: schema.Turn, choice: str, top_k: int = 0) -> TeacherScores:
    async with EngineClient(script.base_url, timeout=10) as client:
        return await HintTeacher(client, timeout=10, top_k=top_k, choice=choice).teach(turn, HINTS)


def expected_overlap(turn: schema.Turn, hint: str) -> float:
    plain, hinted = render(turn.messages), render(append_hint(turn.messages, hint))
    completion = turn.completion_ids.tolist()  # type: ignore[union-attr]
    shares = []
    for position in range(len(completion)):
        before = completion[:position]
        named = {*ranked(hinted + before)[:32], completion[position]}
        likely = ranked(plain + before)[:4]
        masses = [math.exp(logprob(plain + before, token)) for token in likely]
        taught = [math.exp(logprob(hinted + before, token)) if token in named else 0.0 for token in likely]
        shares.append(sum(map(min, masses, taught)) / sum(masses))
    return float(np.mean(shares))


@pytest.mark.parametrize("top_k", [0, 3])
async def test_the_teacher_is_the_one_with_the_largest_overlap(script: Scripted, ledger: Ledger, top_k: int) -> None:
    turn = stored(ledger, policy_version=3)
    taught = await teach(script, turn, "overlap", top_k)
    measured = {hint["hint"]: hint["overlap"] for hint in taught.detail["candidates"]}
    assert measured == pytest.approx({hint: expected_overlap(turn, hint) for hint in HINTS}, abs=1e-5)
    assert taught.hint == max(measured, key=measured.__getitem__)
    assert (taught.topk_ids is None) == (top_k == 0)


async def test_where_the_policy_can_not_be_asked_the_sampled_tokens_decide(script: Scripted, ledger: Ledger) -> None:
    script.absent.add("policy-v3")
    taught = await teach(script, stored(ledger, policy_version=3), "overlap")
    overlaps = {hint["hint"]: hint["overlap"] for hint in taught.detail["candidates"]}
    assert taught.hint == max(overlaps, key=overlaps.__getitem__)


def test_an_unknown_choice_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="--hint_choice 'best' is unknown: use gap or overlap"):
        ServeSettings(hint_choice="best")
