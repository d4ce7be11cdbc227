"""Finds where in a known order the readers are.

In: a job's streams, the last reads. Out: an epoch and a step. Called by `mlfs.explain.inferred_jobs` in a worker
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mlfs.explain.first_reads import Read
from mlfs.orders.streams import JobStreams

# How many epochs before the one that the number of reads suggests are tried: files read twice, and other reads, make
# that number too large.
_EPOCHS_BEFORE = 3


class Begin(NamedTuple):
    """Where a job begins to be followed."""

    epoch: int
    step: int


def where(streams: JobStreams, epoch: int, recent: Sequence[Read], totals: tuple[int, int]) -> Begin:
    """Find the oldest of the recent reads in the streams. It is the epoch's beginning if no reads came before them.

    Args:
        epoch: the one whose beginning was explained.
        totals: how many reads there were since, where a file that is opened again at once counts once, and where each
            open counts: a sampler may repeat its samples, and a script may open each file twice.
    """
    if max(totals) <= len(recent):
        return Begin(epoch, 0)
    a_pass = max(1, streams.length(epoch) * len(streams.ranks))
    guesses = [epoch + total // a_pass for total in totals]
    likely = {tried for guess in guesses for tried in range(max(epoch, guess - _EPOCHS_BEFORE), guess + 2)}
    best, best_share = Begin(epoch, 0), -1.0
    for tried in sorted(likely):
        share, lowest = _following(streams, tried, recent)
        if share > best_share:
            best, best_share = Begin(tried, lowest // max(1, streams.batch_size)), share
    return best


def _following(streams: JobStreams, epoch: int, recent: Sequence[Read]) -> tuple[float, int]:
    """The share of reads that come right behind the last one of their process, and the lowest position of those."""
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


def _positions(streams: JobStreams, epoch: int, rank: int, entries: set[int]) -> dict[int, int]:
    ids = streams.epoch_ids(epoch, rank)
    at = np.flatnonzero(np.isin(ids, np.fromiter(entries, dtype=np.int64)))
    return dict(zip(ids[at][::-1].tolist(), at[::-1].tolist(), strict=True))
