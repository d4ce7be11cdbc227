"""In which order a node fetches what no node keeps: by its place in the tree, a round ahead of the readers.

Pure. In: what a node's ranks read in an epoch, where each of it lies in the tree, where rounds begin. Out: `Refill`.
Called by `mlfs.orders.streams`; `mlfs.plan.scheduler.refilling` goes by it.

This is DeepIO's pipeline of two buffers (2018, III): one half of the staging window is read from, in an order that is
random within the round, while the other half is refilled with the next round's pieces, each from its first file to its
last. So a refill is spread over the round before its own. Of a round that needs more than its half of the window (a
high level of randomness allows no more rounds) a part that fits is refilled at a time.
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
    """What a node fetches in the order of the tree in one epoch; three columns, in the order in which it is fetched.

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


def refill_of(places: Sequence[Numbers], room_bytes: Sequence[Numbers], rounds: Numbers, buffer_bytes: int) -> Refill:
    """The refill of an epoch.

    Args:
        places: for each rank of the node, by position, where in the tree lies what it reads; below 0 where nothing is
            read, or what some node keeps. room_bytes: likewise, what it takes of the staging window.
        rounds: the position at which each round begins, ascending from 0; those beyond the streams' end don't count.
        buffer_bytes: half of the node's staging window.
    """
    length = max(map(len, places))
    rounds = rounds[(rounds == 0) | (rounds < length)]
    rank = np.repeat(np.arange(len(places), dtype=np.int32), [len(of_rank) for of_rank in places])
    position = np.concatenate([np.arange(len(of_rank), dtype=np.int32) for of_rank in places])
    place, room = np.concatenate(places), np.concatenate(room_bytes)
    taken = np.flatnonzero(place >= 0)
    rank, position, place, room = rank[taken], position[taken], place[taken], room[taken]

    of_round = np.bincount(np.searchsorted(rounds, position, side="right") - 1, room, len(rounds))
    ends = np.append(rounds[1:], length)
    parts = np.ceil(of_round / (PART_SHARE * max(1, buffer_bytes))).astype(np.int64)
    parts = np.clip(parts, 1, np.maximum(1, ends - rounds))
    begins = np.unique(
        np.concatenate(
            [
                begin + np.arange(count) * (end - begin) // count
                for begin, end, count in zip(rounds.tolist(), ends.tolist(), parts.tolist(), strict=True)
            ]
        )
    ).astype(np.int64)

    part = np.searchsorted(begins, position, side="right") - 1
    order = np.lexsort((place, part))
    rank, position, part, room = rank[order], position[order], part[order], room[order]
    firsts = np.searchsorted(part, np.arange(len(begins) + 1)).astype(np.int64)
    # A part is spread evenly over the one before it; the first one over as much of the epoch before.
    spread = np.diff(begins, prepend=-int(np.append(begins, length)[1]))
    count = np.maximum(1, np.diff(firsts))
    due = begins[part] - spread[part] + (np.arange(len(part)) - firsts[part]) * spread[part] // count[part]
    largest = np.bincount(part, room, len(begins)).max(initial=0)
    return Refill(rank, position, due.astype(np.int32), begins, firsts, int(largest))
