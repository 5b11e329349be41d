"""Sources of samples: the protocol by which a trainer draws its batches, and a source over samples that exist already.

A trainer asks `take(wait_s)` for the next batch and is never kept longer than `wait_s`, so that it can look after
its other processes and notice that it should stop. A source of one's own subclasses [`Source`] and defines `take` and
`ended`; the other methods have defaults. Nothing here knows torch.
"""

import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from clawrl_trl.credit.sample import TrainingSample
from clawrl_trl.errors import UserError
from clawrl_trl.json_lines import split_lines
from clawrl_trl.ledger import Ledger, samples

logger = logging.getLogger(__name__)

Row = Mapping[str, object]
"""A sample as a JSON object with [`TrainingSample`]'s field names."""


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Samples that are trained together.

    Args:
        samples: At least one.
        batch_id: The ledger's batch; `None` when the samples come from elsewhere.
        dropped: Samples that were given up since the batch before, by reason.
    """

    samples: list[TrainingSample]
    batch_id: str | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of the batches that a trainer asks of its source.

    Args:
        batch_size: Samples per batch.
        needs: Ingredients of which a sample needs at least one: `"score"`, `"teacher"`.
        max_staleness: Samples of policies more than this many updates behind are not to be trained.
        timeout_s: Seconds the oldest sample waits for a full batch.
        baseline_window: Scores of samples without a group are compared with those of the last so many trained ones,
            where these are above 0 on average and one of them had a teacher; a window of 0 leaves them as they are.
        max_sample_tokens: Longest prompt and reply together that is trained; 0: any.
    """

    batch_size: int
    needs: tuple[str, ...] = samples.NEEDS
    max_staleness: int = 4
    timeout_s: float = 30.0
    baseline_window: int = 0
    max_sample_tokens: int = 0


def find_excess(tokens: int, limit: int) -> str | None:
    """The reason to drop a sample of so many tokens, or `None` if it is not too long; a limit of 0 is none."""
    if not 0 < limit < tokens:
        return None
    return f"too long: {tokens} tokens, at most {limit} are trained (--max_sample_tokens)"


@runtime_checkable
class Source(Protocol):
    """Base class and protocol of a trainer's source of samples.

    Of several processes the main one alone calls `take`, `ended` and `drop`.
    """

    ledger: Ledger | None = None
    """The ledger whose batches it hands out, where a trainer commits its policy versions; `None` without one."""

    repeatable: bool = False
    """True if it begins with its first batch again when a program starts anew: resumed training skips what it had."""

    @abstractmethod
    def take(self, wait_s: float) -> SampleBatch | None:
        """The next batch, or `None` when there is none after `wait_s` seconds."""

    @abstractmethod
    def ended(self) -> bool:
        """Return whether no batch will come any more."""

    def bind(self, options: SourceOptions) -> None:
        """Take over what a trainer asks for, before its first batch; a user's own choices come first."""
        return None

    def batch_sizes(self) -> Sequence[int] | None:
        """Sizes of the batches of an epoch, for a source that can be trained for several; `None` for any other."""
        return None

    def restart(self) -> None:
        """Begin an epoch; nothing happens where batches come once."""
        return None

    def follow(self, version: int) -> None:
        """Note the policy version that the trainer holds from now on."""
        return None

    def drop(self, batch: SampleBatch, reason: str, reasons: Mapping[str, str] | None = None) -> None:
        """Give up a batch that is not trained; `reasons` has those of single samples that differ, by id."""
        logger.warning("a batch of %d samples is skipped: %s", len(batch.samples), reason)

    def excuse(self, batch: SampleBatch) -> None:
        """Note that a batch is not to blame if the process ends now: a person stops it, or its passes have ended."""
        return None


@runtime_checkable
class BareSource(Protocol):
    """A source of another class, with the two methods that none can do without."""

    def take(self, wait_s: float) -> SampleBatch | None: ...

    def ended(self) -> bool: ...


class AdaptedSource(Source):
    """A [`BareSource`] with the defaults of [`Source`] for all else.

    Args:
        source: The source.
    """

    def __init__(self, source: BareSource) -> None:
        # One of the other methods without the rest would be left uncalled, and nobody would see it.
        extra = [
            name for name in ("bind", "batch_sizes", "restart", "follow", "drop", "excuse") if hasattr(source, name)
        ]
        if extra:
            raise TypeError(f"{type(source).__name__} has {extra[0]}: let it subclass clawrl_trl.credit.Source")
        self.source = source

    def take(self, wait_s: float) -> SampleBatch | None:
        return self.source.take(wait_s)

    def ended(self) -> bool:
        return self.source.ended()


class ListSource(Source):
    """A source over samples that exist already.

    Args:
        items: Samples, or JSON rows with `TrainingSample`'s field names. With a length it can be trained for
            several epochs; a bare iterator is read once, while it is trained.
        batch_size: Samples per batch. The last batch may be smaller.
    """

    repeatable = True

    def __init__(self, items: Iterable[TrainingSample | Row], *, batch_size: int) -> None:
        # A copy, so that epochs stay alike; an endless iterator can't be copied.
        self.items = list(items) if isinstance(items, Sized) else items
        self.batch_size = batch_size
        self._iterator: Iterator[TrainingSample | Row] | None = None
        self._ended = False

    def __len__(self) -> int:
        """Batches per epoch.

        Raises:
            TypeError: If the items have no length.
        """
        sizes = self.batch_sizes()
        if sizes is None:
            raise TypeError("this source has no length")
        return len(sizes)

    def batch_sizes(self) -> list[int] | None:
        if not isinstance(self.items, list):
            return None
        count = len(self.items)
        return [min(self.batch_size, count - start) for start in range(0, count, self.batch_size)]

    def restart(self) -> None:
        """Begin another epoch, where the items allow it."""
        if isinstance(self.items, list):
            self._iterator, self._ended = None, False

    def take(self, wait_s: float = 0.0) -> SampleBatch | None:
        """The next batch, or `None` at the end."""
        if self._iterator is None:
            self._iterator = iter(self.items)
        batch: list[TrainingSample] = []
        for row in self._iterator:
            batch.append(TrainingSample.from_row(row))
            if len(batch) == self.batch_size:
                return SampleBatch(batch)
        self._ended = True
        return SampleBatch(batch) if batch else None

    def ended(self) -> bool:
        return self._ended

    def __iter__(self) -> Iterator[SampleBatch]:
        """One epoch of batches."""
        self.restart()
        while (batch := self.take()) is not None:
            yield batch


def as_source(source: object, options: SourceOptions) -> Source:
    """Return a source, bound to a trainer's options, from what a user passed.

    Args:
        source: A [`Source`], any object with `take` and `ended`, a path to JSON lines, or an iterable of samples or
            rows.
        options: What the trainer asks for.

    Raises:
        TypeError: If it is none of these, or has a part of what [`Source`] has without being one.
        UserError: If the file can't be read.
    """
    bound = _converted(source, options.batch_size)
    bound.bind(options)
    return bound


def _converted(source: object, batch_size: int) -> Source:
    # Sources may be iterable too, so they come before iterables.
    if isinstance(source, Source):
        return source
    # By its methods: a class of the user's need not import anything of ours.
    if isinstance(source, BareSource):
        return AdaptedSource(source)
    # A text is iterable too: read as samples it would be one letter each.
    if isinstance(source, str | Path):
        try:
            lines = split_lines(Path(source).read_text())
        except OSError as error:
            raise UserError(f"{source} can't be read ({error.strerror}): name a file of JSON lines.") from None
        return ListSource([json.loads(line) for line in lines if line.strip()], batch_size=batch_size)
    if isinstance(source, Iterable):
        return ListSource(source, batch_size=batch_size)
    raise TypeError(f"a source is a Source, a path or an iterable of samples, not {type(source).__name__}")
