"""Chats are read before what is only scored, and scoring still goes on."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.embedded import lanes as lanes_module
from clawrl_trl.engines.embedded.batch import Prefill
from clawrl_trl.engines.embedded.engine import Engine
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.lanes import CHUNKS_IN_TURN, Lanes
from clawrl_trl.engines.embedded.protocol import SamplingBody
from clawrl_trl.engines.embedded.scheduler import QueueFull, Scheduler

PATIENCE_S = 60


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> Engine:
    return Engine.load(ServeSettings(run="unused", max_model_len=512), str(model_folder / "base"))


class Finish:
    """Requests in the order in which they end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.names: list[str] = []
        self.ended = asyncio.Event()
        self.expected = 0

    def make(self, name: str, *, scored: bool, length: int, tokens: int = 1, n: int = 1) -> Generation:
        self.expected += 1
        remaining = n

        def take(update: Update) -> None:
            nonlocal remaining
            remaining -= update.finish_reason is not None
            if not remaining:
                self.names.append(name)
                if len(self.names) == self.expected:
                    self.ended.set()

        return self._engine.make_generation(
            self._engine.policies.base,
            [5 + place % 200 for place in range(length)],
            SamplingBody(seed=1, n=n, ignore_eos=True, prompt_logprobs=0 if scored else None),
            max_tokens=tokens,
            top_logprobs=None,
            deliver=take,
            chat=False,
        )


def run(finish: Finish, generations: list[Generation], places: int = 8) -> list[str]:
    """The names of requests that wait together, in the order in which they end."""

    async def main() -> list[str]:
        scheduler = Scheduler(places, 64)
        scheduler.submit(generations)  # before the start: all of them wait when the first turn begins
        scheduler.start(asyncio.get_running_loop())
        try:
            await asyncio.wait_for(finish.ended.wait(), PATIENCE_S)
            return finish.names
        finally:
            await asyncio.to_thread(scheduler.close)

    return asyncio.run(main())


def test_a_chat_passes_a_scoring_call_that_came_first(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl_trl.engines.embedded.scheduler.PREFILL_TOKENS", 16)
    finish = Finish(engine)
    scored = finish.make("scored", scored=True, length=400)
    chat = finish.make("chat", scored=False, length=100)
    assert run(finish, [scored, chat]) == ["chat", "scored"]
    assert scored.prompt_scores is not None and len(scored.prompt_scores.logprobs) == 399


def test_scoring_is_not_starved_by_chats(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clawrl_trl.engines.embedded.scheduler.PREFILL_TOKENS", 16)
    monkeypatch.setattr(lanes_module, "PREFILL_ROWS", 1)
    finish = Finish(engine)
    chats = [finish.make(f"chat {number}", scored=False, length=64) for number in range(20)]
    scored = finish.make("scored", scored=True, length=48)
    order = run(finish, [*chats, scored])
    # Three chunks of scoring are due within three rounds; a chat here has four chunks.
    assert order.index("scored") <= 3 * CHUNKS_IN_TURN // 4 + 1


def test_scoring_takes_no_place_and_needs_none(engine: Engine) -> None:
    finish = Finish(engine)
    chat = finish.make("chat", scored=False, length=10, tokens=200, n=2)
    scored = finish.make("scored", scored=True, length=20)
    assert run(finish, [chat, scored], places=2) == ["scored", "chat"]


def test_a_prompt_that_is_scored_and_continued_is_a_chat(engine: Engine) -> None:
    finish, lanes = Finish(engine), Lanes()
    assert lanes.of(finish.make("both", scored=True, length=4, tokens=2)) is lanes.chats
    assert lanes.of(finish.make("one", scored=True, length=4, tokens=1)) is lanes.scoring


def count_accepted(scheduler: Scheduler, generations: list[Generation]) -> int:
    """How many of these requests may join the queue, one after the other, before one is refused."""
    for number, generation in enumerate(generations):
        try:
            scheduler.submit([generation])
        except QueueFull:
            return number
    return len(generations)


@pytest.mark.parametrize("max_waiting", [0, 3])
def test_requests_that_find_a_place_are_not_counted_as_waiting(engine: Engine, max_waiting: int) -> None:
    finish = Finish(engine)
    chats = [finish.make("chat", scored=False, length=4) for _ in range(8)]
    assert count_accepted(Scheduler(2, max_waiting), chats) == 2 + max_waiting


def test_the_places_that_are_taken_are_not_free(engine: Engine) -> None:
    finish, scheduler = Finish(engine), Scheduler(3, 1)
    scheduler._lanes.chats.prefill = Prefill([finish.make("taken", scored=False, length=4, n=2)], 4)
    assert count_accepted(scheduler, [finish.make("chat", scored=False, length=4) for _ in range(4)]) == 2


@pytest.mark.parametrize(("max_waiting", "most"), [(0, 1), (3, 3)])
def test_neither_chats_nor_scoring_calls_keep_the_other_out(engine: Engine, max_waiting: int, most: int) -> None:
    finish, scheduler = Finish(engine), Scheduler(2, max_waiting)
    assert count_accepted(scheduler, [finish.make("scored", scored=True, length=4) for _ in range(8)]) == most
    assert (
        count_accepted(scheduler, [finish.make("chat", scored=False, length=4) for _ in range(8)]) == 2 + max_waiting
    )
    other = Scheduler(2, max_waiting)
    assert count_accepted(other, [finish.make("chat", scored=False, length=4) for _ in range(8)]) == 2 + max_waiting
    assert count_accepted(other, [finish.make("scored", scored=True, length=4) for _ in range(8)]) == most


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_each_run_of_chunks_has_one_of_scoring(states: list[tuple[bool, bool]]) -> None:
    lanes, chunks = Lanes(), 0
    for chats, scoring in states:
        lanes.chats.prefill = object() if chats else None  # type: ignore[assignment]
        lanes.scoring.prefill = object() if scoring else None  # type: ignore[assignment]
        lane = lanes.choose()
        assert lane.prefill is not None or not (chats or scoring), "a lane without work was chosen"
        chunks = chunks + 1 if scoring and lane is lanes.chats else 0 if lane is lanes.scoring else chunks
        assert chunks < CHUNKS_IN_TURN
