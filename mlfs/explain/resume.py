"""Finds where in a known order the readers are.

In: a job's streams, the last reads. Out: an epoch and a step. Called by `mlfs.explain.inferred_jobs` in a worker
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mlfs.explain.first_reads import Read

_TRIED = 3


class Streams(Protocol):
    """What is asked of a job's streams."""

    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def batch_size(self) -> int: ...
    def length(self, epoch: int) -> int: ...
    def epoch_ids(self, epoch: int, rank: int) -> npt.NDArray[np.int64]: ...


class Begin(NamedTuple):
    """Where to begin to follow."""

    epoch: int
    step: int


def where(streams: Streams, epoch: int, recent: Sequence[Read], total: int) -> Begin:
    """Where the oldest of the recent reads is: the beginning of the epoch if all reads are among them.

    Args:
        epoch: the one that was found. total: reads since its beginning.
    """
    if total <= len(recent):
        return Begin(epoch, 0)
    a_pass = max(1, streams.length(epoch) * len(streams.ranks))
    guess = epoch + total // a_pass
    best, best_share = Begin(epoch, 0), -1.0
    for tried in range(max(epoch, guess - _TRIED), guess + 2):
        share, lowest = _following(streams, tried, recent)
        if share > best_share:
            best, best_share = Begin(tried, lowest // max(1, streams.batch_size)), share
    return best


def _following(streams: Streams, epoch: int, recent: Sequence[Read]) -> tuple[float, int]:
    """Share of reads that come right behind the one before of the same process, and the lowest position of those."""
    entries = {read.entry for read in recent}
    following, lowest = 0, streams.length(epoch)
    last: dict[tuple[int, int], int] = {}
    positions = [_positions(streams, epoch, rank, entries) for rank in streams.ranks]
    for entry, pid, _ in recent:
        for rank, position_of in enumerate(positions):
            at = position_of.get(entry)
            if at is None:
                continue
            if last.get((pid, rank), -2) == at - 1:
                following += 1
                lowest = min(lowest, at - 1)
            last[pid, rank] = at
    return following / len(recent), lowest


def _positions(streams: Streams, epoch: int, rank: int, entries: set[int]) -> dict[int, int]:
    ids = streams.epoch_ids(epoch, rank)
    at = np.flatnonzero(np.isin(ids, np.fromiter(entries, dtype=np.int64)))
    return dict(zip(ids[at][::-1].tolist(), at[::-1].tolist(), strict=True))
