"""Says which node keeps each sample where nothing but sizes and rooms is known: weighted rendezvous hashing.

Pure. In: samples and their sizes, nodes and their rooms. Out: for each sample a node and a class. Called by
`mlfs.plan.owners` for nodes that have no job, and by `mlfs.orders.served`, whose order deals reads to these nodes.

Each sample has a score at each node, by a hash of both and by the node's room, and belongs to the node with the
highest. So a node that comes or goes moves its own part of the samples, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# A sample that is kept takes whole pages (the page cache's, and those of the files of the RAM class).
PAGE_BYTES = 4096
NOBODY = -1
# Samples that are hashed together, so that the arrays stay within a processor's cache.
CHUNK = 1 << 15

Numbers = npt.NDArray[np.integer[Any]]


class Partition(NamedTuple):
    """By sample, the number of the node that keeps it, and in which of its classes; -1 where nobody does."""

    node: npt.NDArray[np.int16]
    level: npt.NDArray[np.int8]


def footprints(sizes_bytes: Numbers) -> npt.NDArray[np.int64]:
    """The room that samples of these sizes take: whole pages."""
    whole = sizes_bytes.astype(np.int64)
    whole += -whole % PAGE_BYTES
    return whole


def partition_by_hash(
    sizes_bytes: Numbers, nodes: Sequence[int], capacities_bytes: Sequence[Sequence[int]], ids: Numbers | None = None
) -> Partition:
    """Share samples among nodes. Samples with the lowest scores are nobody's where those of a node need more than its
    room.

    Args:
        sizes_bytes: shape (F,); what has no bytes is nobody's.
        nodes: their numbers. capacities_bytes: of each node, of memory and disks, the fastest class first.
        ids: by which samples are hashed, shape (F,); 0 .. F - 1 by default.
    """
    room = footprints(sizes_bytes)
    salted = np.arange(len(room), dtype=np.uint64) if ids is None else ids.astype(np.uint64)
    node = np.full(len(room), NOBODY, dtype=np.int16)
    best = np.full(len(room), -np.inf)
    for start in range(0, len(room), CHUNK):
        few = slice(start, start + CHUNK)
        node[few], best[few] = _highest(salted[few], nodes, [sum(capacities) for capacities in capacities_bytes])
    level = np.full(len(room), NOBODY, dtype=np.int8)
    for number, capacities in zip(nodes, capacities_bytes, strict=True):
        own = np.flatnonzero((node == number) & (room > 0))
        own = own[np.argsort(-best[own], kind="stable")]
        level[own] = fill(room[own], capacities)
        node[own[level[own] == NOBODY]] = NOBODY
    return Partition(node, level)


def fill(taken_bytes: Numbers, capacities_bytes: Sequence[int]) -> npt.NDArray[np.int8]:
    """Fill a node's classes, the fastest first, with what comes first.

    A sample that is larger than a whole class is passed over there, so that it keeps nothing else out.

    Args:
        taken_bytes: shape (n,), what each sample takes of a room. capacities_bytes: of the classes.

    Returns:
        Shape (n,): the class of each sample, -1 for what has no room.
    """
    level = np.full(len(taken_bytes), NOBODY, dtype=np.int8)
    rest = np.arange(len(taken_bytes))
    for number, capacity in enumerate(capacities_bytes):
        fits = taken_bytes[rest] <= capacity
        chosen = fits & (np.cumsum(np.where(fits, taken_bytes[rest], 0)) <= capacity)
        level[rest[chosen]] = number
        rest = rest[~chosen]
    return level


def _highest(
    ids: npt.NDArray[np.uint64], nodes: Sequence[int], rooms: Sequence[int]
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.float64]]:
    """The node at which each sample has its highest score, and that score."""
    node, best = np.full(len(ids), NOBODY, dtype=np.int16), np.full(len(ids), -np.inf)
    for number, room in zip(nodes, rooms, strict=True):
        if not room:
            continue
        score = room / -np.log(_hashed(ids, number))
        better = score > best
        node[better], best[better] = number, score[better]
    return node, best


def _hashed(ids: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.float64]:
    """Numbers between 0 and 1, one for each sample: the finalizer of SplitMix64 over the sample's number and a salt."""
    z = ids + np.uint64((salt + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) / float(1 << 53)
