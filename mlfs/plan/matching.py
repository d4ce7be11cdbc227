"""Which position of the predicted streams an observed open belongs to, and how far each rank is.

Pure: no I/O, no clock. In: the local ranks' predicted streams (entry ids per epoch), then observed opens (entry, pid).
Out: matched positions, expired positions, the agreement. Called by the engine's job on the loop.

Linear position: an epoch's base (sum of the lengths of the epochs before) plus the index within the epoch.
The bounds used (shared reference: "Who opens what when"): worker w of W reads batches w, w+W, ... in order, so within a
process the next open is the next position, or the start of a batch at most `MOST_WORKERS` batches further.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

MOST_WORKERS = 64
RECENT_OPENS = 256
FEWEST_OPENS = 48
REMEMBERED_READERS = 4096


class Match(NamedTuple):
    """A position of a stream: local rank index, linear position."""

    rank_index: int
    position: int


class Evidence(IntEnum):
    """How well an open fits a position, best first. All but NONE count as agreement."""

    NEXT = 0  # the position after this reader's last
    NEXT_BATCH = 1  # the start of a later batch of this reader's rank
    FIRST_BATCH = 2  # a new reader at the start of a batch
    NEAR = 3  # close to how far the rank has read: readers that are threads, sharing batches
    NONE = 4  # within the lag, by chance for all we know


class EpochIndex:
    """Inverse of one epoch's streams: entry id -> (rank index, index in the stream).

    Attributes:
        base: linear position of the epoch's first sample.
        length: samples per rank.
        code: int32 array by entry id: rank_index * length + index, -1 where no local rank reads the entry.
        more: further codes of entries read more than once in the epoch (padding, linked files).
        ids: each local rank's stream, entry ids (-1: outside of the mount).
        looked: for each rank a byte per position: 1 where its use is counted ahead (the prefetcher saw it) and not
        over.
    """

    def __init__(self, epoch: int, base: int, streams: list[Ids], n_entries: int) -> None:
        self.epoch = epoch
        self.base = base
        self.length = len(streams[0]) if streams else 0
        self.ids = [stream.astype(np.int32) for stream in streams]
        self.looked = [bytearray(self.length) for _ in streams]
        dtype = np.int32 if self.length * max(1, len(streams)) < 2**31 else np.int64
        self.code = np.full(n_entries, -1, dtype=dtype)
        self.more: dict[int, list[int]] = {}
        if not self.length:
            return
        flat = np.concatenate(streams)
        codes = np.arange(len(flat), dtype=dtype)
        inside = flat >= 0
        flat, codes = flat[inside], codes[inside]
        self.code[flat[::-1]] = codes[::-1]  # the first position wins: written last
        repeated = self.code[flat] != codes
        for entry, code in zip(flat[repeated].tolist(), codes[repeated].tolist(), strict=True):
            self.more.setdefault(entry, []).append(code)

    def contains(self, position: int) -> bool:
        """Whether a linear position lies in this epoch."""
        return self.base <= position < self.base + self.length

    def outstanding(self) -> Ids:
        """Entries whose use is counted ahead and not over, once for each use."""
        parts = [
            ids[np.frombuffer(looked, dtype=np.uint8) != 0] for ids, looked in zip(self.ids, self.looked, strict=True)
        ]
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)

    def codes(self, entry: int) -> list[int]:
        """All positions of an entry in this epoch, as rank_index * length + index."""
        code = int(self.code.item(entry))
        if code < 0:
            return []
        return [code, *self.more.get(entry, ())] if self.more else [code]


class RankProgress:
    """How far one rank's stream has been read.

    Invariant: floor <= frontier; each position below floor is done; `done` holds the done positions at or above it.
    """

    __slots__ = ("agreed", "done", "floor", "frontier", "observed")

    def __init__(self, start: int) -> None:
        self.floor = start
        self.frontier = start
        self.done: set[int] = set()
        self.agreed = 0
        self.observed = 0

    def take(self, position: int, lag: int, advance: bool = True) -> list[int]:
        """Mark `position` as read; return the positions given up because they lie more than `lag` behind.

        Without `advance` the frontier stays: a match by chance must not carry it away.
        """
        self.done.add(position)
        if advance:
            self.frontier = max(self.frontier, position + 1)
        while self.floor in self.done:
            self.done.discard(self.floor)
            self.floor += 1
        self.frontier = max(self.frontier, self.floor)
        expired = []
        while self.floor < self.frontier - lag:
            if self.floor in self.done:
                self.done.discard(self.floor)
            else:
                expired.append(self.floor)
            self.floor += 1
        return expired

    def is_done(self, position: int) -> bool:
        """Whether the position was read or given up."""
        return position < self.floor or position in self.done


class StreamMatcher:
    """Matches opens to positions for one job.

    Args:
        n_ranks: local ranks.
        batch_size: samples of a rank's batch.
        start: linear position each rank starts at.
        stream_length: samples per rank in the first epoch (scales the tolerances).
    """

    def __init__(self, n_ranks: int, batch_size: int, start: int, stream_length: int) -> None:
        self.batch_size = batch_size
        self.ranks = [RankProgress(start) for _ in range(n_ranks)]
        self.lag = max(1, min(max(256, MOST_WORKERS * batch_size), stream_length))
        self.near = min(2 * batch_size, max(1, stream_length // 16))
        self.epochs: dict[int, EpochIndex] = {}
        self.recent: deque[bool] = deque(maxlen=RECENT_OPENS)
        self.recent_agreed = 0
        self.observed = 0
        self.agreed = 0
        self._readers: OrderedDict[int, tuple[int, Match]] = OrderedDict()
        self._ranks_below: OrderedDict[int, frozenset[int]] = OrderedDict()

    @property
    def agreement(self) -> float | None:
        """Share of the last 256 opens that were predicted; None before any open."""
        return self.recent_agreed / len(self.recent) if self.recent else None

    @property
    def drifting(self) -> bool:
        """Whether the prediction fails: under 50 % of the recent opens agreed."""
        return len(self.recent) >= FEWEST_OPENS and 2 * self.recent_agreed < len(self.recent)

    def observe(self, entry: int, pid: int, parent: int = 0) -> tuple[Match | None, list[Match]]:
        """Record an open. Returns the position it is matched to (None: not predicted) and the positions given up.

        Args:
            pid: who opened. parent: its parent process, 0 when unknown: the workers of a rank have one parent.

        A sample opened again by its last reader is no new evidence: (None, []) and nothing is counted.
        """
        last = self._readers.get(pid)
        if last is not None and last[0] == entry:
            return None, []
        match, evidence = self._find(entry, last[1] if last else None, self._ranks_below.get(parent, frozenset()))
        if match is None:
            self._count(None, False)
            return None, []
        self._count(match.rank_index, evidence < Evidence.NONE)
        self._remember(pid, entry, match)
        if evidence == Evidence.NEXT and parent:
            self._remember_family(parent, match.rank_index)
        expired = self.ranks[match.rank_index].take(match.position, self.lag, evidence < Evidence.NONE)
        return match, [Match(match.rank_index, position) for position in expired]

    def _find(self, entry: int, last: Match | None, family: frozenset[int]) -> tuple[Match | None, Evidence]:
        """The position not yet read that the open fits best, and how well; None when none lies within the lag.

        `family` holds the ranks that processes of the same parent belong to: one for a rank's workers, several below a
        launcher, which then says nothing.
        """
        best: Match | None = None
        best_key = (Evidence.NONE + 1, False, 0, 0)
        only_rank = next(iter(family)) if len(family) == 1 else -1
        for index in self.epochs.values():
            for code in index.codes(entry):
                rank_index, offset = divmod(code, index.length)
                position = index.base + offset
                progress = self.ranks[rank_index]
                distance = abs(position - progress.frontier)
                if distance > self.lag or progress.is_done(position):
                    continue
                match = Match(rank_index, position)
                # An epoch is read to its end before the next begins: of equal evidence the earlier epoch wins.
                stranger = only_rank not in (-1, rank_index)
                key = (self._evidence(match, offset, distance, last), stranger, index.epoch, distance)
                if key < best_key:
                    best, best_key = match, key
        return best, Evidence(min(best_key[0], Evidence.NONE))

    def _evidence(self, match: Match, offset: int, distance: int, last: Match | None) -> Evidence:
        if last is not None and last.rank_index == match.rank_index:
            step = match.position - last.position
            if step == 1:
                return Evidence.NEXT
            if 0 < step <= self.lag and offset % self.batch_size == 0:
                return Evidence.NEXT_BATCH
        elif last is None and offset % self.batch_size == 0:
            return Evidence.FIRST_BATCH
        return Evidence.NEAR if distance <= self.near else Evidence.NONE

    def _count(self, rank_index: int | None, agrees: bool) -> None:
        if len(self.recent) == RECENT_OPENS:
            self.recent_agreed -= self.recent[0]
        self.recent.append(agrees)
        self.recent_agreed += agrees
        self.observed += 1
        self.agreed += agrees
        if rank_index is not None:
            self.ranks[rank_index].observed += 1
            self.ranks[rank_index].agreed += agrees

    def _remember_family(self, parent: int, rank_index: int) -> None:
        known = self._ranks_below.get(parent, frozenset())
        if rank_index not in known:
            self._ranks_below[parent] = known | {rank_index}
            if len(self._ranks_below) > REMEMBERED_READERS:
                self._ranks_below.popitem(last=False)

    def _remember(self, pid: int, entry: int, match: Match) -> None:
        self._readers[pid] = (entry, match)
        self._readers.move_to_end(pid)
        if len(self._readers) > REMEMBERED_READERS:
            self._readers.popitem(last=False)
