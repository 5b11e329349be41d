"""What fails in the decoding thread ends the requests it was about, and no others; the thread goes on."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clawrl_trl.config.serving import ServeSettings
from clawrl_trl.engines.embedded import lanes
from clawrl_trl.engines.embedded import scheduler as scheduling
from clawrl_trl.engines.embedded.batch import DecodeBatch, Prefill
from clawrl_trl.engines.embedded.engine import Engine
from clawrl_trl.engines.embedded.generation import Generation, Update
from clawrl_trl.engines.embedded.protocol import SamplingBody
from clawrl_trl.engines.embedded.scheduler import Scheduler
from clawrl_trl.errors import UserError

PATIENCE_S = 60


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> Engine:
    return Engine.load(ServeSettings(run="unused", max_model_len=512), str(model_folder / "base"))


class Asked:
    """Requests of one token to many, and the updates that each gets."""

    def __init__(self, engine: Engine, lengths: list[int]) -> None:
        self.updates: dict[Generation, list[Update]] = {}
        self.ended = asyncio.Event()
        self.generations = [self._make(engine, tokens) for tokens in lengths]

    def _make(self, engine: Engine, tokens: int) -> Generation:
        made = engine.make_generation(
            engine.policies.base,
            [5, 6, 7],
            SamplingBody(seed=1, ignore_eos=True),
            max_tokens=tokens,
            top_logprobs=None,
            deliver=self._take,
            chat=False,
        )
        self.updates[made] = []
        return made

    def _take(self, update: Update) -> None:
        self.updates[update.generation].append(update)
        if all(told and told[-1].finish_reason for told in self.updates.values()):
            self.ended.set()

    async def by(self, scheduler: Scheduler) -> list[str | None]:
        """How each of them ended."""
        scheduler.submit(self.generations)
        await asyncio.wait_for(self.ended.wait(), PATIENCE_S)
        reasons = [[one.finish_reason for one in self.updates[made]] for made in self.generations]
        assert all(reason is None for told in reasons for reason in told[:-1])
        return [told[-1] for told in reasons]


def scheduled(engine: Engine, *lengths: list[int], asked: type[Asked] = Asked) -> list[list[str | None]]:
    """How requests of these lengths end that are asked one after the other."""

    async def main() -> list[list[str | None]]:
        scheduler = Scheduler(8, 8)
        scheduler.start(asyncio.get_running_loop())
        try:
            return [await asked(engine, each).by(scheduler) for each in lengths]
        finally:
            await asyncio.to_thread(scheduler.close)

    return asyncio.run(main())


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, failing the first time."""
    failed = False

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            raise RuntimeError("out of memory")
        return function(*args, **kwargs)

    return called


def test_a_batch_that_cannot_be_made_smaller(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeBatch, "keep", once(DecodeBatch.keep))
    assert scheduled(engine, [3, 5, 7], [3, 5]) == [["length", "error", "error"], ["length", "length"]]


def test_a_prefill_that_cannot_begin(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "Prefill", once(Prefill))
    assert scheduled(engine, [3, 5], [3, 5]) == [["error", "error"], ["length", "length"]]


def test_rows_that_cannot_join(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "PREFILL_ROWS", 1)
    monkeypatch.setattr(DecodeBatch, "join", once(DecodeBatch.join))
    assert scheduled(engine, [50, 50], [3, 5]) == [["error", "error"], ["length", "length"]]


def test_whatever_else_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_advance_prefill", once(Scheduler._advance_prefill))
    assert scheduled(engine, [3, 5], [3, 5]) == [["error", "error"], ["length", "length"]]


def test_a_cancelled_row_beside_one_that_goes_on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    step = DecodeBatch.step

    def stepped(batch: DecodeBatch) -> list[Update]:
        batch.rows[0].generation.cancelled = len(batch.rows) > 1
        return step(batch)

    class OneLeaves(Asked):
        def __init__(self, engine: Engine, lengths: list[int]) -> None:
            super().__init__(engine, lengths)
            self.generations[0].deliver = lambda update: None
            self.updates[self.generations[0]].append(
                Update(generation=self.generations[0], index=0, finish_reason="x")
            )

    monkeypatch.setattr(DecodeBatch, "step", stepped)
    monkeypatch.setattr(DecodeBatch, "keep", once(DecodeBatch.keep))
    assert scheduled(engine, [9, 9], [9, 9], asked=OneLeaves) == [["x", "error"], ["x", "length"]]


@pytest.mark.parametrize("max_waiting", [0, 8])
def test_a_warm_up_ends_well_or_says_why_not(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, max_waiting: int
) -> None:
    async def main() -> None:
        fresh = replace(engine, scheduler=Scheduler(1, max_waiting))
        fresh.scheduler.start(asyncio.get_running_loop())
        try:
            await fresh.warm_up()
            monkeypatch.setattr(scheduling, "Prefill", once(Prefill))
            with pytest.raises(UserError, match="can't be served: RuntimeError: out of memory"):
                await fresh.warm_up()
        finally:
            await asyncio.to_thread(fresh.scheduler.close)

    asyncio.run(main())
