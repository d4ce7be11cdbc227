"""Orders a node's fetches of what no node keeps: by its place in the tree, a round ahead of the readers.

Pure. In: what a node's ranks read in an epoch, where each of it lies in the tree, where rounds begin. Out: `Refill`.
Called by `mlfs.orders.streams`; `mlfs.plan.scheduler.look_ahead` goes by it.

This is DeepIO's pipeline of two buffers (2018, III): one half of the staging window is read from, in an order that is
random within the round, while the other half is refilled with the next round's pieces, each from its first file to its
last. So a refill is spread over the round before its own. A round may need more than its half of the window (a high
level of randomness allows no more rounds); then a part that fits is refilled at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.integer[Any]]

# The most that a part may take, as a share of a buffer. Pieces are dealt to nodes one by one, so that a node may have
# somewhat more than its share of a round; to cut the round for that would cost half of the neighbours.
PART_SHARE = 1.25


class Refill(NamedTuple):
    """A node's fetches in the order of the tree in one epoch; three columns, in the order in which it is fetched.

    Attributes:
        rank, position: which of the node's ranks reads it, and where in that rank's stream of the epoch.
        due: it is fetched when the look-ahead has come so far in the streams; ascending. A negative number stands for
            the end of the epoch before.
        begins: the position at which each part begins to be read, ascending from 0.
        firsts: where in the columns each part begins; at last their length.
        room_bytes: what the largest part takes of the staging window.
    """

    rank: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    due: npt.NDArray[np.int32]
    begins: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]
    room_bytes: int


class _Taken(NamedTuple):
    """Samples that the node's ranks read and no node keeps; columns.

    Attributes:
        rank, position: as in `Refill`. place: where it lies in the tree. room_bytes: of the staging window.
    """

    rank: npt.NDArray[np.int32]
    position: npt.NDArray[np.int32]
    place: Numbers
    room_bytes: Numbers


def refill_of(places: Sequence[Numbers], room_bytes: Sequence[Numbers], rounds: Numbers, buffer_bytes: int) -> Refill:
    """The refill of an epoch.

    Args:
        places: for each rank of the node, by position, where in the tree lies what it reads; below 0 where nothing is
            read, or what some node keeps. room_bytes: likewise, what it takes of the staging window.
        rounds: the position at which each round begins, ascending from 0; those beyond the streams' end don't count.
        buffer_bytes: half of the node's staging window.
    """
    length = max(map(len, places))
    taken = _taken(places, room_bytes)
    begins = _begins(taken, rounds[(rounds == 0) | (rounds < length)], length, buffer_bytes)

    part = np.searchsorted(begins, taken.position, side="right") - 1
    order = np.lexsort((taken.place, part))
    part = part[order]
    firsts = np.searchsorted(part, np.arange(len(begins) + 1)).astype(np.int64)
    largest_bytes = int(np.bincount(part, taken.room_bytes[order], len(begins)).max(initial=0))
    due = _due(part, begins, firsts, length)
    return Refill(taken.rank[order], taken.position[order], due, begins, firsts, largest_bytes)


def _taken(places: Sequence[Numbers], room_bytes: Sequence[Numbers]) -> _Taken:
    """All ranks together, one rank after the other."""
    rank = np.repeat(np.arange(len(places), dtype=np.int32), [len(of_rank) for of_rank in places])
    position = np.concatenate([np.arange(len(of_rank), dtype=np.int32) for of_rank in places])
    place, room = np.concatenate(places), np.concatenate(room_bytes)
    taken = np.flatnonzero(place >= 0)
    return _Taken(rank[taken], position[taken], place[taken], room[taken])


def _begins(taken: _Taken, rounds: Numbers, length: int, buffer_bytes: int) -> npt.NDArray[np.int64]:
    """At which position each part begins: a round is one part, or is cut into as many as fit into a buffer each.

    Parts of a round have about as many positions as each other, and at least one.
    """
    of_round = np.bincount(np.searchsorted(rounds, taken.position, side="right") - 1, taken.room_bytes, len(rounds))
    ends = np.append(rounds[1:], length)
    parts = np.ceil(of_round / (PART_SHARE * max(1, buffer_bytes))).astype(np.int64)
    parts = np.clip(parts, 1, np.maximum(1, ends - rounds))
    cuts = [
        begin + np.arange(count) * (end - begin) // count
        for begin, end, count in zip(rounds.tolist(), ends.tolist(), parts.tolist(), strict=True)
    ]
    return np.unique(np.concatenate(cuts)).astype(np.int64)


def _due(part: Numbers, begins: Numbers, firsts: Numbers, length: int) -> npt.NDArray[np.int32]:
    """When each sample is fetched: a part is spread evenly over the part before it.

    The first part is spread over the end of the epoch before, over as many positions as it has itself.

    Args:
        part: of each sample, ascending. begins, firsts: as in `Refill`. length: of the streams.
    """
    of_first = int(np.append(begins, length)[1])
    before = np.diff(begins, prepend=-of_first)  # how many positions the part before has
    count = np.maximum(1, np.diff(firsts))
    number = np.arange(len(part)) - firsts[part]  # within its part
    due: npt.NDArray[np.int64] = begins[part] - before[part] + number * before[part] // count[part]
    return due.astype(np.int32)
