"""Makes an explicit order of recorded opens: tells which process reads which stream, and where epochs end.

In: opens in the order of time. Out: paths by epoch and stream. Called by `mlfs.cli.replay`, for loaders whose order
nobody can compute, but which read in the same order when they are run again.

A stream is what one process reads, as only that has an order. Workers that read side by side are streams beside each
other; a process that begins when another has ended goes on with its stream, as a loader's workers live for an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Path = bytes
Streams = list[list[Path]]
# A new epoch has begun if half of the next 32 opens are of files that were read before; padding repeats fewer.
_LOOK_AHEAD = 32
# A last epoch that has less than this share of the one before was cut short.
_WHOLE_SHARE = 0.9


class Opened(NamedTuple):
    """One recorded open: when, by whom, what."""

    time_s: float
    pid: int
    path: Path


def epochs_of(opens: Iterable[Opened]) -> list[Streams]:
    """The streams of each epoch. A last epoch that was cut short is left out, unless it is the only one."""
    passes = _passes(_without_repeats(opens))
    if len(passes) > 1 and len(passes[-1]) < _WHOLE_SHARE * len(passes[-2]):
        passes.pop()
    epochs = [_streams(one) for one in passes if one]
    most = max(map(len, epochs), default=0)
    for streams in epochs:  # an order has as many streams in each epoch: one that has nothing to do reads one file
        streams += [[streams[0][0]] for _ in range(most - len(streams))]
    return epochs


def _without_repeats(opens: Iterable[Opened]) -> list[Opened]:
    """Without files that a process opened twice in a row."""
    last: dict[int, Path] = {}
    kept = []
    for opened in opens:
        if last.get(opened.pid) != opened.path:
            kept.append(opened)
        last[opened.pid] = opened.path
    return kept


def _passes(opens: list[Opened]) -> list[list[Opened]]:
    """Cut where files that were read in this pass come again, and go on doing so: padding repeats a few only."""
    passes: list[list[Opened]] = [[]]
    seen: set[Path] = set()
    for at, opened in enumerate(opens):
        if opened.path in seen:
            ahead = opens[at : at + _LOOK_AHEAD]
            if 2 * sum(other.path in seen for other in ahead) > _LOOK_AHEAD:
                passes.append([])
                seen = set()
        seen.add(opened.path)
        passes[-1].append(opened)
    return passes


def _streams(opens: list[Opened]) -> Streams:
    """One pass by stream, in the order in which streams begin."""
    # By place, not by time: the clock of a record may stand still between two opens.
    by_process: dict[int, list[tuple[int, Opened]]] = {}
    for at, opened in enumerate(opens):
        by_process.setdefault(opened.pid, []).append((at, opened))
    streams: list[list[tuple[int, Opened]]] = []
    for reads in by_process.values():
        free = next((stream for stream in streams if stream[-1][0] < reads[0][0]), None)
        if free is None:
            streams.append(reads)
        else:
            free += reads
    return [[opened.path for _, opened in stream] for stream in streams]
