"""Sources of one's own: what a trainer asks of them, and how little they have to define."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from made_up import make_samples

from clawrl_trl.credit import LedgerSource, ListSource, SampleBatch, Source, SourceOptions, as_source
from clawrl_trl.ledger import Ledger
from clawrl_trl.trainers import AsyncGRPOConfig, AsyncGRPOTrainer

OPTIONS = SourceOptions(batch_size=3, max_staleness=2)


class Bare:
    """Four samples in batches of two, with the two methods that a source can't do without."""

    def __init__(self) -> None:
        self.batches = [SampleBatch(make_samples(2, seed)) for seed in (1, 2)]

    def take(self, wait_s: float) -> SampleBatch | None:
        return self.batches.pop(0) if self.batches else None

    def ended(self) -> bool:
        return not self.batches


class Complete(Bare, Source):
    """The same as a `Source` that notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[object] = []

    def bind(self, options: SourceOptions) -> None:
        self.events.append(options)

    def drop(self, batch: SampleBatch, reason: str, reasons: Mapping[str, str] | None = None) -> None:
        self.events.append((len(batch.samples), reason))


def train(tiny: Path, folder: Path, source: object) -> AsyncGRPOTrainer:
    args = AsyncGRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=2, max_staleness=2, use_cpu=True, disable_tqdm=True
    )
    trainer = AsyncGRPOTrainer(model=str(tiny), args=args, source=source)  # type: ignore[arg-type]
    trainer.train()
    return trainer


def test_two_methods_are_enough(tiny: Path, tmp_path: Path) -> None:
    assert train(tiny, tmp_path, Bare()).state.global_step == 2


def test_a_source_hears_what_is_asked_and_what_is_dropped(tiny: Path, tmp_path: Path) -> None:
    source = Complete()
    source.batches.insert(1, SampleBatch(make_samples(3, score=None)))
    trainer = train(tiny, tmp_path, source)
    assert trainer.source is source and trainer.state.global_step == 2
    (options, dropped) = source.events
    assert isinstance(options, SourceOptions) and (options.batch_size, options.max_staleness) == (2, 2)
    assert options.needs == ("score",) and dropped == (3, "nothing to train")


def test_part_of_the_other_methods_is_refused_in_one_line() -> None:
    class Half(Bare):
        def follow(self, version: int) -> None: ...

    with pytest.raises(TypeError, match=r"^Half has follow: let it subclass clawrl_trl\.credit\.Source$"):
        as_source(Half(), OPTIONS)
    with pytest.raises(TypeError, match="not int"):
        as_source(7, OPTIONS)


def test_lists_can_be_repeated_and_iterators_can_not() -> None:
    rows = make_samples(5)
    whole, once = as_source(rows, OPTIONS), as_source(iter(rows), OPTIONS)
    assert isinstance(whole, ListSource) and whole.batch_sizes() == [3, 2] and once.batch_sizes() is None
    for source, epochs in ((whole, 2), (once, 1)):
        sizes = []
        for _ in range(2):
            source.restart()
            while (batch := source.take(0.0)) is not None:
                sizes.append(len(batch.samples))
            assert source.ended()
        assert sizes == [3, 2] * epochs


def test_a_ledger_source_keeps_what_its_constructor_was_given(ledger: Ledger) -> None:
    source = as_source(LedgerSource(ledger, batch_size=7, timeout_s=0.0), OPTIONS)
    assert isinstance(source, LedgerSource) and not source.repeatable
    assert source.options == SourceOptions(batch_size=7, max_staleness=2, timeout_s=0.0)
