"""One epoch's predicted streams, and where in them an entry occurs.

Pure. In: the local ranks' streams of an epoch. Out: entry -> positions, position -> entry. An index is made in a worker
thread (it takes seconds for millions of samples), and read by `mlfs.follow.matching`, by the look-ahead of the
prefetching and by the search for variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.served.refill import Refill

Ids = npt.NDArray[np.int64]


class Match(NamedTuple):
    """A position of a stream: local rank index, linear position (the epoch's base plus the index in the stream)."""

    rank_index: int
    position: int


class EpochIndex:
    """Inverse of one epoch's streams: entry id -> (rank index, index in the stream). It never changes.

    Attributes:
        base: linear position of the epoch's first sample.
        begin: index in the stream at which reading begins: more than 0 in the first epoch of a resumed run.
        length: samples per rank.
        code: int32 array by entry id: rank_index * length + index, -1 where no local rank reads the entry.
        more: further codes of entries read more than once in the epoch (padding, linked files).
        ids: each local rank's stream, entry ids (-1: nothing of the mount is read there).
        refill: what is fetched in the order of the tree; None for an order that mlfs does not serve in rounds.
    """

    def __init__(
        self,
        epoch: int,
        base: int,
        streams: list[Ids],
        n_entries: int,
        begin: int = 0,
        refill: Refill | None = None,
    ) -> None:
        self.epoch: Final = epoch
        self.base: Final = base
        self.begin: Final = begin
        self.length: Final = len(streams[0]) if streams else 0
        self.ids: Final = tuple(np.maximum(stream, -1).astype(np.int32) for stream in streams)
        self.refill: Final = refill
        dtype = np.int32 if self.length * max(1, len(streams)) < 2**31 else np.int64
        self.code: Final = np.full(n_entries, -1, dtype=dtype)
        more: dict[int, tuple[int, ...]] = {}
        if self.length:
            flat = np.concatenate(streams)
            codes = np.arange(len(flat), dtype=dtype)
            inside = flat >= 0
            flat, codes = flat[inside], codes[inside]
            self.code[flat[::-1]] = codes[::-1]  # of several codes of an entry the first stays: it is written last
            repeated = self.code[flat] != codes
            for entry, code in zip(flat[repeated].tolist(), codes[repeated].tolist(), strict=True):
                more[entry] = (*more.get(entry, ()), code)
        self.more: Final[Mapping[int, tuple[int, ...]]] = MappingProxyType(more)
        for array in (self.code, *self.ids):
            array.flags.writeable = False

    def contains(self, position: int) -> bool:
        """Whether a linear position lies in this epoch."""
        return self.base <= position < self.base + self.length

    def codes(self, entry: int) -> list[int]:
        """All positions of an entry in this epoch, as rank_index * length + index."""
        code = int(self.code.item(entry))
        if code < 0:
            return []
        return [code, *self.more.get(entry, ())] if self.more else [code]
