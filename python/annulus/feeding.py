"""Reads the samples that a run gives to a member: by their numbers, or the next ones of a stream."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from .errors import AnnulusError


class Feed(Protocol):
    """The batches of one share after the other."""

    def order(self, numbers: list[int]) -> None:
        """Says that these samples will probably be the next share."""

    def batches(self, numbers: list[int], is_trial: bool) -> Iterator[tuple[int, Any]]:
        """The batches of these samples, each with its number of samples."""


def feed(dataset: Any, cut: Cut, workers: int, options: dict[str, Any]) -> Feed:
    """What reads a data set."""
    kind = _Stream if isinstance(dataset, IterableDataset) else _Numbered
    return kind(dataset, cut, workers, options)


@dataclass(frozen=True)
class Cut:
    """How a share is cut into batches."""

    #: The most samples of a batch; None for the whole share.
    size: int | None
    #: Whether a batch of one sample has it twice, since PyTorch's batch norm refuses one alone. Its mean loss is the same.
    doubles: bool

    def batches(self, numbers: list[int]) -> list[tuple[int, list[int]]]:
        """Batches of about the same size, each with the number of its samples that count."""
        count = -(-len(numbers) // (self.size or len(numbers)))
        ends = [len(numbers) * at // count for at in range(count + 1)]
        parts = [numbers[start:end] for start, end in itertools.pairwise(ends)]
        return [(len(part), part * 2 if self.doubles and len(part) == 1 else part) for part in parts]


class _Numbered:
    """Reads with the same processes for all shares.

    A `DataLoader` asks its sampler ahead of time, and the next share is known only after the round. So each share is an epoch
    of a loader whose workers stay.
    """

    def __init__(self, dataset: Dataset[Any], cut: Cut, workers: int, options: dict[str, Any]) -> None:
        self._cut = cut
        self._batches: list[tuple[int, list[int]]] = []
        self._ordered: list[int] | None = None
        self._reading: Iterator[Any] = iter(())
        # Both are read anew in each epoch.
        self._loader = DataLoader(dataset, batch_sampler=self, num_workers=workers, persistent_workers=workers > 0, **options)

    def __iter__(self) -> Iterator[list[int]]:
        return (numbers for _, numbers in self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def order(self, numbers: list[int]) -> None:
        """Starts to read these samples."""
        self._batches = self._cut.batches(numbers)
        self._reading = iter(self._loader)
        self._ordered = numbers

    def batches(self, numbers: list[int], is_trial: bool) -> Iterator[tuple[int, Any]]:
        if self._ordered != numbers:
            self.order(numbers)
        self._ordered = None
        # The next share may be ordered before the caller has come back from the last batch.
        reading = self._reading
        for count, _ in self._batches:
            yield count, next(reading)


class _Stream:
    """Takes the next samples of an iterable data set, whatever their numbers, and begins it anew at its end."""

    def __init__(self, dataset: Any, cut: Cut, workers: int, options: dict[str, Any]) -> None:
        self._cut = cut
        # Shares differ in size, so samples come one by one.
        options = {name: value for name, value in options.items() if name != "pin_memory"}
        self._collate = options.pop("collate_fn", None) or default_collate
        self._loader = DataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=_alone, **options)
        self._samples: Iterator[Any] = iter(self._loader)
        #: Samples that only tried the device out, which still are to be counted.
        self._kept: collections.deque[Any] = collections.deque()

    def order(self, numbers: list[int]) -> None:
        """Processes read ahead anyway."""

    def batches(self, numbers: list[int], is_trial: bool) -> Iterator[tuple[int, Any]]:
        for count, places in self._cut.batches(numbers):
            rows = [self._next() for _ in range(count)]
            if is_trial:
                self._kept.extend(rows)
            yield count, self._collate(rows * (len(places) // count))

    def _next(self) -> Any:
        if self._kept:
            return self._kept.popleft()
        for _ in range(2):
            for sample in self._samples:
                return sample
            self._samples = iter(self._loader)
        raise AnnulusError("the iterable data set has no sample")


def _alone(sample: Any) -> Any:
    return sample
