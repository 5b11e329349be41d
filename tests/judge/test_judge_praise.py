"""A flood of praise in one session teaches no more than its cap, and the same praise counts once."""

import asyncio
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_helpers import put_turn
from sqlalchemy import select, update

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.judge.loop import JudgeLoop
from clawrl_trl.judge.praise import DAY_S, is_near_duplicate
from clawrl_trl.judge.turn import JudgedTurn, Judgement
from clawrl_trl.ledger import Ledger, schema, turns

DIFFERENT = [
    "Lovely work on the intro",
    "that fixed my build, cheers",
    "exactly the table I wanted",
    "brilliant, my boss is happy",
    "yes! works on the phone too",
    "this recipe turned out great",
    "clear and short, good",
    "you saved my evening",
]


class Approving:
    """A judge that approves of everything, by words unless it is told otherwise."""

    def __init__(self, by: str = "words") -> None:
        self.by = by

    async def judge(self, turn: JudgedTurn) -> Judgement:
        return Judgement("approving", 1.0, detail={"by": self.by})


async def judge_all(ledger: Ledger, judge: Approving, **settings: object) -> None:
    stop = asyncio.Event()
    loop = asyncio.create_task(JudgeLoop(ledger, ServeSettings(**settings), None, judge).run(stop))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(60):
            while True:
                with ledger.reader() as tx:
                    if not turns.counts(tx).get("judging"):
                        return
                await asyncio.sleep(0.02)
    finally:
        stop.set()
        await loop


def scores(ledger: Ledger, turn_ids: Sequence[str]) -> list[float | None]:
    with ledger.reader() as tx:
        verdicts = [turns.verdict_of(tx, turn_id) for turn_id in turn_ids]
        count = len(tx.scalars(select(schema.Sample)).all())
    values = [verdict.score for verdict in verdicts if verdict is not None]
    assert len(values) == len(turn_ids) and count == sum(value is not None for value in values)
    return values


async def test_a_session_teaches_no_more_approvals_a_day_than_the_cap(ledger: Ledger) -> None:
    first = [put_turn(ledger, text) for text in DIFFERENT]
    await judge_all(ledger, Approving(), praise_cap=3)
    assert sorted(map(str, scores(ledger, first))) == ["1.0"] * 3 + ["None"] * 5
    with ledger.transaction() as tx:
        tx.execute(update(schema.Turn).values(next_state_at=time.time() - DAY_S - 1))
    next_day = put_turn(ledger, "a fine day's work")
    await judge_all(ledger, Approving(), praise_cap=3)
    with ledger.reader() as tx:
        verdict = turns.verdict_of(tx, next_day)
    assert verdict is not None and verdict.score == 1


async def test_the_day_is_that_on_which_it_was_said_and_not_judged(ledger: Ledger) -> None:
    backlog = [put_turn(ledger, text) for text in DIFFERENT]
    with ledger.transaction() as tx:
        for age, turn_id in enumerate(backlog[:6]):
            said_at = time.time() - (1 + age // 2) * 2 * DAY_S
            tx.execute(update(schema.Turn).where(schema.Turn.id == turn_id).values(next_state_at=said_at))
        tx.execute(update(schema.Turn).values(state="judging"))
    await judge_all(ledger, Approving(), praise_cap=2)
    assert scores(ledger, backlog) == [1.0] * 8


async def test_the_same_praise_counts_once_and_the_reason_is_kept(ledger: Ledger) -> None:
    same = [
        put_turn(ledger, text)
        for text in ("Great job!", "great job", "GREAT JOB!!!", "greaaaat job", "really great job")
    ]
    other = put_turn(ledger, "the map is what I needed")
    await judge_all(ledger, Approving())
    assert sorted(map(str, scores(ledger, [*same, other]))) == ["1.0"] * 2 + ["None"] * 4
    with ledger.reader() as tx:
        details = [
            verdict.detail for turn_id in same if (verdict := turns.verdict_of(tx, turn_id)) and verdict.score is None
        ]
    assert all("counts once" in detail["reason"] and detail["score_without_limit"] == 1.0 for detail in details)


@pytest.mark.parametrize("by", ["tool results", "feedback: value"])
async def test_feedback_and_tool_results_have_no_cap(ledger: Ledger, by: str) -> None:
    turn_ids = [put_turn(ledger, "thanks") for _ in range(5)]
    await judge_all(ledger, Approving(by), praise_cap=1)
    assert scores(ledger, turn_ids) == [1.0] * 5


async def test_votes_on_what_tools_said_have_none_either(ledger: Ledger) -> None:
    state = [{"role": "tool", "tool_call_id": "c", "content": "ok"}]
    turn_ids = [put_turn(ledger, state) for _ in range(4)]
    await judge_all(ledger, Approving("votes"), praise_cap=1)
    assert scores(ledger, turn_ids) == [1.0] * 4


async def test_no_cap_is_a_cap_of_zero(ledger: Ledger) -> None:
    turn_ids = [put_turn(ledger, "thanks") for _ in range(4)]
    await judge_all(ledger, Approving(), praise_cap=0)
    assert scores(ledger, turn_ids) == [1.0] * 4


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Now: Tom has 5 apples and buys 7 more. How many?", "Now: Tom has 6 apples and buys 9 more. How many?"),
        ("thanks for the table", "thanks, and the boat leaves when?"),
        ("👍", "🎉"),
        pytest.param("now this: " * 300 + "task one", "now this: " * 300 + "task two", id="long tasks"),
        ("works on linux", "works on windows and the mac too"),
    ],
)
def test_other_words_are_no_duplicates(text: str, other: str) -> None:
    assert not is_near_duplicate(text, other)


@given(st.text(max_size=80), st.text(max_size=80))
def test_likeness_is_mutual_and_a_text_is_like_itself(text: str, other: str) -> None:
    assert is_near_duplicate(text, other) == is_near_duplicate(other, text)
    assert is_near_duplicate(text, text)
