"""One epoch's predicted streams, and where in them a sample occurs.

Pure. In: the local ranks' streams of an epoch. Out: sample -> positions, position -> sample. An index is made in a
worker thread (it takes seconds for millions of samples), and read by `mlfs.follow.matching`, by the look-ahead of the
prefetching and by the search for variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.served.refill import Refill

Ids = npt.NDArray[np.int64]


class Match(NamedTuple):
    """A position of a stream: local rank index, linear position (the epoch's base plus the index in the stream)."""

    rank_index: int
    position: int


def first_codes(flat: Ids, n_entries: int) -> npt.NDArray[np.signedinteger[Any]]:
    """By sample the first place at which it stands in all streams, one after another; -1 for one that is not read."""
    dtype = np.int32 if len(flat) < 2**31 else np.int64
    first: npt.NDArray[np.signedinteger[Any]] = np.full(n_entries, -1, dtype=dtype)
    inside = np.flatnonzero(flat >= 0)[::-1]
    first[flat[inside]] = inside  # of several places of a sample the first stays: it is written last
    return first


class EpochIndex:
    """Inverse of one epoch's streams: sample id -> (rank index, index in the stream). It never changes.

    Attributes:
        base: linear position of the epoch's first sample.
        begin: index in the stream at which reading begins: more than 0 in the first epoch of a resumed run.
        length: samples per rank.
        code: int32 array by sample id: rank_index * length + index, -1 where no local rank reads the sample.
        more: further codes of samples read more than once in the epoch (padding, linked files).
        ids: each local rank's stream, sample ids (-1: nothing of the mount is read there).
        refill: what is fetched in the order of the tree; None for an order that mlfs does not serve in rounds.
    """

    def __init__(
        self,
        epoch: int,
        base: int,
        streams: Sequence[Ids] | Ids,
        n_entries: int,
        begin: int = 0,
        refill: Refill | None = None,
    ) -> None:
        self.epoch: Final = epoch
        self.base: Final = base
        self.begin: Final = begin
        self.length: Final = len(streams[0]) if len(streams) else 0
        flat = np.concatenate(streams) if self.length else np.empty(0, dtype=np.int64)
        ids = np.maximum(flat, -1).astype(np.int32).reshape(len(streams), self.length)
        ids.flags.writeable = False
        self.ids: Final = tuple(ids)
        self.refill: Final = refill
        self.code: Final = first_codes(flat, n_entries)
        self.code.flags.writeable = False
        more: dict[int, tuple[int, ...]] = {}
        inside = np.flatnonzero(flat >= 0)
        repeated = inside[self.code[flat[inside]] != inside]
        for sample, code in zip(flat[repeated].tolist(), repeated.tolist(), strict=True):
            more[sample] = (*more.get(sample, ()), code)
        self.more: Final[Mapping[int, tuple[int, ...]]] = MappingProxyType(more)

    def contains(self, position: int) -> bool:
        """Whether a linear position lies in this epoch."""
        return self.base <= position < self.base + self.length

    def codes(self, sample: int) -> list[int]:
        """All positions of a sample in this epoch, as rank_index * length + index."""
        code = int(self.code.item(sample))
        if code < 0:
            return []
        return [code, *self.more.get(sample, ())] if self.more else [code]


# -- where a sample occurs in the loaded epochs


class Occurrence(NamedTuple):
    """One reading of a sample that an order foresees: a rank, an epoch, and the index in the rank's stream of it."""

    rank_index: int
    epoch: EpochIndex
    offset: int

    @property
    def position(self) -> int:
        return self.epoch.base + self.offset

    @property
    def x(self) -> int:
        """Places between the beginning of the epoch's reading and this; negative before it (resumed runs)."""
        return self.offset - self.epoch.begin


def occurrences(epochs: Mapping[int, EpochIndex], sample: int) -> list[Occurrence]:
    """All occurrences of a sample, in the order in which the epochs were loaded."""
    found = []
    for index in epochs.values():
        for code in index.codes(sample):
            rank_index, offset = divmod(code, index.length)
            found.append(Occurrence(rank_index, index, offset))
    return found
