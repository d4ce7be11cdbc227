"""Which node owns each sample, in which class, and what else a node copies: the placement of policy `mlfs`.

Pure: numpy in, numpy out. In: sizes, who reads what in which epoch, the capacities of a node's classes. Out: a
`Placement`, the same on every node. Called by the policy `mlfs` and by the daemon's planner.

Why so: within an epoch no sample is read twice, so whatever the policy, hits of an epoch are at most N * D bytes
(docs/model.md, "The bound"), and any N * D bytes that stay kept reach it. What is left to choose is who keeps what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.plan.model import Floats
from mlfs.plan.placement import NOWHERE, keep_most_read
from mlfs.plan.policies.holdings import counts_by_node
from mlfs.plan.policies.policy import PFS, Ids, Nodes, Readers, Storages
from mlfs.plan.scheduler.keeping import Plan

Samples = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

ROUNDS = 4
GAP_TRIES = 8
CHUNK = 1 << 17


class Copies(NamedTuple):
    """What a node copies of others' samples when it first reads them: ids ascending, their class."""

    ids: Ids
    storage: Storages


class Placement(NamedTuple):
    """Owner and class of each sample, shape (F,), PFS for none; copies of each node."""

    owner: Nodes
    storage: Storages
    copies: list[Copies]


def place(
    sizes_bytes: Floats, readers: Readers, nodes: int, capacities_bytes: Floats, copies_of: int | None = None
) -> Placement:
    """Choose owners, classes and copies.

    Args:
        sizes_bytes: (F,). readers: (E, F), the dtype's largest value for nobody. nodes: N.
        capacities_bytes: (J,) of a node, fastest class first.
        copies_of: the only node whose copies are wanted: a node needs to know no others. None for all of them.

    Returns:
        No class holds more than its capacity. What has no owner would not fit into what is left of any class, or is
        empty. Where all fits, and a largest sample more into each class, no node owns more than its part and a sample.
    """
    total, room = float(sizes_bytes.sum()), float(capacities_bytes.sum())
    largest = float(sizes_bytes.max(initial=0.0))
    quota = min(room, total / nodes + largest)
    later = readers[1:] if len(readers) > 1 else readers
    owner, count = _owners(sizes_bytes, later, readers[0], nodes, quota)
    storage = np.full(len(sizes_bytes), PFS, dtype=np.int8)
    left = np.tile(capacities_bytes, (nodes, 1)).astype(np.float64)
    for node, owned in enumerate(_groups(owner, nodes)):
        storage[owned] = keep_most_read(sizes_bytes[owned], count[owned], left[node], at_least=0)
        _take(left[node], sizes_bytes[owned], storage[owned])
    owner[storage == PFS] = PFS
    _fill_gaps(sizes_bytes, owner, storage, left)
    return Placement(owner, storage, _copies(sizes_bytes, readers, owner, left, copies_of))


def node_plan(placement: Placement, node: int, levels: Sequence[int]) -> Plan:
    """What one node's scheduler has to know of a placement: what it keeps itself, and who owns the rest.

    Args:
        levels: by class of the placement, how the scheduler numbers it: MEMORY, DISK, a slower disk's
            (mlfs.plan.placement).
    """
    numbered = np.array([*levels, NOWHERE], dtype=np.int8)  # PFS, the last index, is kept nowhere
    classes = np.where(placement.owner == node, numbered[placement.storage], np.int8(NOWHERE))
    copies = placement.copies[node]
    classes[copies.ids] = numbered[copies.storage]
    return Plan(classes, placement.owner)


def _groups(owner: Nodes, nodes: int) -> list[Samples]:
    """Samples of each node, ascending."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(nodes + 1))
    return [order[a:b] for a, b in pairwise(bounds)]


def _owners(
    sizes: Floats, later: Readers, first: npt.NDArray[np.unsignedinteger[Any]], nodes: int, quota: float
) -> tuple[Nodes, Counts]:
    """Owner by most reads within the quotas, and how often the owner reads the sample.

    Rounds: everyone goes to the node that reads it most among those with room; full nodes keep what they read most.
    What is left after some rounds is dealt into the room that is left.
    """
    owner, count = np.full(len(sizes), PFS, dtype=np.int16), np.zeros(len(sizes), dtype=np.uint8)
    free = np.full(nodes, quota)
    rest = np.arange(len(sizes))
    smallest = float(sizes.min(initial=0.0))
    for _ in range(ROUNDS):
        # The last entry stands for nobody, who may not.
        may = np.append((free >= smallest) & (free > 0), False)
        if not len(rest) or not may.any():
            break
        best, most = _favourite(later, first, rest, nodes, may)
        for node, wanting in enumerate(_groups(best, nodes)):
            mine = wanting[np.argsort(~most[wanting], kind="stable")]
            taken = mine[np.cumsum(sizes[rest[mine]]) <= free[node]]
            owner[rest[taken]], count[rest[taken]] = node, most[taken]
            free[node] -= float(sizes[rest[taken]].sum())
        rest = rest[owner[rest] == PFS]
    _deal(sizes, owner, rest, free)
    return owner, count


def _favourite(
    later: Readers, first: npt.NDArray[np.unsignedinteger[Any]], rest: Samples, nodes: int, may: Flags
) -> tuple[Nodes, Counts]:
    """Who of the nodes that `may` reads each sample of `rest` most, and how often; ties go to its first reader.

    PFS where none of its readers may.
    """
    parts = [
        _favourite_of_few(later[:, few], first[few], nodes, may)
        for few in (rest[start : start + CHUNK] for start in range(0, len(rest), CHUNK))
    ]
    return np.concatenate([best for best, _ in parts]), np.concatenate([most for _, most in parts])


def _favourite_of_few(
    rows: Readers, start: npt.NDArray[np.unsignedinteger[Any]], nodes: int, may: Flags
) -> tuple[Nodes, Counts]:
    """See above: of so few samples that all their readers may be copied."""
    best, score = np.full(len(start), PFS, dtype=np.int16), np.zeros(len(start), dtype=np.uint16)
    # By candidate nodes where they are few, else by the epochs' own readers.
    candidates: Iterable[Any] = np.flatnonzero(may) if nodes <= len(rows) else rows
    for candidate in candidates:
        mine = 2 * (rows == candidate).sum(axis=0, dtype=np.uint16) + (start == candidate)
        better = (mine > score) & may[np.minimum(candidate, nodes)]
        best[better] = candidate[better] if np.ndim(candidate) else candidate
        score[better] = mine[better]
    return best, np.minimum(score >> 1, 255).astype(np.uint8)


def _deal(sizes: Floats, owner: Nodes, rest: Samples, free: Floats) -> None:
    """Deal what no favourite had room for: into one node's room after the other's, the emptiest first."""
    start = 0
    for node in np.argsort(-free, kind="stable"):
        filled = np.cumsum(sizes[rest[start:]])
        stop = start + int(np.searchsorted(filled, free[node], side="right"))
        owner[rest[start:stop]] = node
        start = stop


def _take(left: Floats, sizes: Floats, storage: Storages) -> None:
    """Take what was placed from what is left of a node's classes, (J,)."""
    kept = storage != PFS
    left -= np.bincount(storage[kept], sizes[kept], minlength=len(left))


def _fill_gaps(sizes: Floats, owner: Nodes, storage: Storages, left: Floats) -> None:
    """Give what no one owns to whatever gap holds it, largest first: what is left over is less than a sample."""
    orphans = np.flatnonzero(owner == PFS)
    orphans = orphans[np.argsort(sizes[orphans], kind="stable")]
    for node, j in np.ndindex(*left.shape):
        for _ in range(GAP_TRIES):
            at = int(np.searchsorted(sizes[orphans], left[node, j], side="right")) - 1
            if at < 0:
                break
            sample = orphans[at]
            owner[sample], storage[sample] = node, j
            left[node, j] -= sizes[sample]
            orphans = np.delete(orphans, at)


def _copies(sizes: Floats, readers: Readers, owner: Nodes, left: Floats, copies_of: int | None) -> list[Copies]:
    """What each node copies into the room that owning leaves: what it reads most, twice at least."""
    none = Copies(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int8))
    result = [none] * len(left)
    if (owner == PFS).any() or left.sum(axis=1).max(initial=0.0) < sizes.min(initial=np.inf):
        return result
    counted = counts_by_node(readers, len(left)) if copies_of is None else iter([_counts_of(readers, copies_of)])
    for node, read, counts in counted:
        ids = read[owner[read] != node]
        storage = keep_most_read(sizes[ids], counts[owner[read] != node], left[node])
        result[node] = Copies(ids[storage != PFS], storage[storage != PFS])
    return result


def _counts_of(readers: Readers, node: int) -> tuple[int, Ids, npt.NDArray[np.int64]]:
    """As `counts_by_node`, for one node."""
    counts = np.zeros(readers.shape[1], dtype=np.uint16)
    for row in readers:
        counts += row == node
    read = np.flatnonzero(counts)
    return node, read.astype(np.int32), counts[read].astype(np.int64)
