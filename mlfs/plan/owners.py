"""Chooses the node and class that own each sample, and what else a node copies: the placement of policy `mlfs`.

Pure: numpy in, numpy out. In: sizes, who reads what in which epoch, the capacities of each node's classes. Out: a
`Placement`. Called by the policy `mlfs`, and for a running cluster by `mlfs.plan.members`.

If no sample is read twice within an epoch, the hits of an epoch are at most the bytes that all nodes together can keep:
N * D where each has room for D (docs/model.md has the bound). Any N * D bytes that stay kept reach that. So the choice
that is left is which node keeps which sample. If jobs read some samples more often than others, owners are found first
for what all nodes together read most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.plan.model import Floats
from mlfs.plan.node_reads import PFS, Ids, Nodes, Readers, Storages, counts_by_node
from mlfs.plan.placement import NOWHERE, keep_most_read
from mlfs.plan.scheduler.keeping import Plan
from mlfs.served.partition import footprints

Samples = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

# How often samples that found their favourite node full ask another one. Most are placed in the first round; each round
# costs a pass over all readers of what is left, and what is left after the last one is dealt into any room.
ROUNDS = 4
# How many samples are tried in one gap. The largest that fits leaves less than the next smaller one, so few tries do.
GAP_TRIES = 8
# Samples that are looked at together, so that the arrays by reader stay within a processor's cache.
CHUNK = 1 << 17


class Copies(NamedTuple):
    """The samples of other nodes that a node copies when it first reads them: ids, ascending, and the class of each."""

    ids: Ids
    storage: Storages


class Placement(NamedTuple):
    """The owner and the class of each sample, shape (F,), `PFS` for those that nobody owns; the copies of each node."""

    owner: Nodes
    storage: Storages
    copies: list[Copies]


def place(
    sizes_bytes: Floats, readers: Readers, nodes: int, capacities_bytes: Floats, copies: bool = True
) -> Placement:
    """Choose owners, classes and copies.

    Args:
        sizes_bytes: (F,).
        readers: (E, F), the node that reads the sample in the epoch; the dtype's largest value stands for nobody.
        nodes: N.
        capacities_bytes: (N, J), what each class of each node can hold, fastest class first; (J,) where all nodes have
            the same.
        copies: whether copies are wanted. In a cluster each node counts for itself what it copies.

    Returns:
        No class holds more than its capacity. A sample without an owner would not fit into what is left of any class,
        or is empty. No node owns more than its part (`_quotas`) and one sample where all samples fit, with the largest
        sample's size to spare in each class.
    """
    left = np.array(np.broadcast_to(capacities_bytes, (nodes, np.shape(capacities_bytes)[-1])), dtype=np.float64)
    later = readers[1:] if len(readers) > 1 else readers
    owner, count = _owners(sizes_bytes, later, readers[0], _quotas(sizes_bytes, left), _reads(readers))
    storage = np.full(len(sizes_bytes), PFS, dtype=np.int8)
    for node, owned in enumerate(_groups(owner, nodes)):
        storage[owned] = keep_most_read(sizes_bytes[owned], count[owned], left[node], at_least=0)
        _take(left[node], sizes_bytes[owned], storage[owned])
    owner[storage == PFS] = PFS
    _fill_gaps(sizes_bytes, owner, storage, left)
    _deal_into_classes(sizes_bytes, owner, storage, left)
    return Placement(owner, storage, _copies(sizes_bytes, readers, owner, left) if copies else [])


def node_plan(placement: Placement, node: int, levels: Sequence[int]) -> Plan:
    """The part of a placement that one node's scheduler has to know: what it keeps itself, and who owns the rest.

    Args:
        levels: by class of the placement, how the scheduler numbers it: MEMORY, DISK, a slower disk's
            (mlfs.plan.placement).
    """
    numbered = np.array([*levels, NOWHERE], dtype=np.int8)  # PFS, the last index, is kept nowhere
    classes = np.where(placement.owner == node, numbered[placement.storage], np.int8(NOWHERE))
    copies = placement.copies[node]
    classes[copies.ids] = numbered[copies.storage]
    return Plan(classes, placement.owner)


def plan_alone(
    sizes_bytes: npt.NDArray[Any], reads: npt.NDArray[np.integer[Any]], capacities_bytes: Sequence[int]
) -> Plan:
    """The plan of a node that has no peers: `place` with one node, from counts instead of each epoch's readers.

    Samples that are read but once are not named: a copy of one saves nothing, and it is kept as long as there is room
    anyway.

    Args:
        sizes_bytes: shape (F,). reads: how often this node reads each sample, shape (F,). capacities_bytes: of memory,
            of the disks, and of those that are clearly slower.
    """
    room = footprints(sizes_bytes)
    classes = keep_most_read(room, reads, capacities_bytes)
    kept = classes != NOWHERE
    about = {
        "samples": int(np.count_nonzero(kept)),
        "bytes": int(room[kept].sum()),
        "reads_kept": int(reads[kept].sum()),
        "reads": int(reads.sum()),
    }
    return Plan(classes, None, about)


def _groups(owner: Nodes, nodes: int) -> list[Samples]:
    """Samples of each node, ascending."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(nodes + 1))
    return [order[a:b] for a, b in pairwise(bounds)]


def _quotas(sizes: Floats, capacities: Floats) -> Floats:
    """How many bytes each node may own, shape (N,): its part of all samples and one sample, as far as it has room."""
    part = parts_bytes(float(sizes.sum()), capacities)
    return np.asarray(np.minimum(capacities.sum(axis=1), part + sizes.max(initial=0.0)))


def parts_bytes(total: float, capacities: Floats) -> Floats:
    """The part of each node of so many bytes, shape (N,). Args: capacities: of each node's classes, (N, J).

    The classes are filled fastest first, each at all nodes in the same proportion; a node's part is what it then holds.
    So nodes of equal capacities have equal parts, one of twice the capacities has twice the part, and no disk is used
    while another node's memory has room.
    """
    whole = capacities.sum(axis=0)
    filled = np.minimum(whole, np.maximum(total - (np.cumsum(whole) - whole), 0.0))
    part = (capacities * (filled / np.where(whole > 0, whole, 1.0))).sum(axis=1)
    # Divided by the largest before they are added up: equal parts are then exactly 1 and their sum exactly N.
    part /= part.max(initial=0.0) or 1.0
    return np.asarray(total * part / (part.sum() or 1.0))


def _reads(readers: Readers) -> npt.NDArray[np.int32]:
    """How often all nodes together read each sample: alike for one job, not for several that read other samples."""
    reads = np.zeros(readers.shape[1], dtype=np.int32)
    for row in readers:
        reads += row != np.iinfo(row.dtype).max
    return reads


def _owners(
    sizes: Floats, later: Readers, first: npt.NDArray[np.unsignedinteger[Any]], quotas: Floats,
    reads: npt.NDArray[np.int32],
) -> tuple[Nodes, Counts]:  # fmt: skip
    """The owner of each sample, and how often the owner reads it.

    Samples that all nodes together read most come first where not all samples fit. In each round every one of these
    asks the node that reads it most among those that have room, and a node that cannot take all that ask keeps those
    that it reads most. The rest after `ROUNDS` is dealt into the room that is left.

    Args:
        reads: of each sample, by all nodes.
    """
    owner, count = np.full(len(sizes), PFS, dtype=np.int16), np.zeros(len(sizes), dtype=np.uint8)
    nodes, free = len(quotas), quotas.copy()
    rest = later_on = np.arange(len(sizes))
    if len(reads) and reads.min() != reads.max():
        most_read = np.argsort(-reads, kind="stable")
        fit = int(np.searchsorted(np.cumsum(sizes[most_read]), free.sum(), side="right"))
        rest, later_on = np.sort(most_read[:fit]), most_read
    smallest = float(sizes.min(initial=0.0))
    for _ in range(ROUNDS):
        # The last entry stands for "nobody" among the readers, who can own nothing.
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
    _deal(sizes, owner, later_on[owner[later_on] == PFS], free)
    return owner, count


def _favourite(
    later: Readers, first: npt.NDArray[np.unsignedinteger[Any]], rest: Samples, nodes: int, may: Flags
) -> tuple[Nodes, Counts]:
    """For each sample of `rest`, the node that reads it most of those that `may` own more, and how often it does.

    The first reader counts among nodes that read it equally often; `PFS` where none of its readers may.
    """
    parts = [
        _favourite_of_few(later[:, few], first[few], few, nodes, may)
        for few in (rest[start : start + CHUNK] for start in range(0, len(rest), CHUNK))
    ]
    return np.concatenate([best for best, _ in parts]), np.concatenate([most for _, most in parts])


def _favourite_of_few(
    rows: Readers, start: npt.NDArray[np.unsignedinteger[Any]], few: Samples, nodes: int, may: Flags
) -> tuple[Nodes, Counts]:
    """As `_favourite`, of so few samples that an array of all their readers is small."""
    best, score = np.full(len(start), PFS, dtype=np.int16), np.zeros(len(start), dtype=np.uint16)
    # A candidate is a node, or where there are more nodes than epochs, the readers of an epoch.
    # Most samples have many readers of whom each reads them once. Their turn begins with another epoch for each sample:
    # else the readers of one epoch would own nearly all, and nobody would have to give anything to anybody in that
    # epoch, and all the more in the others.
    turns = ((epoch + few) % len(rows) for epoch in range(len(rows)))
    candidates: Iterable[Any] = (
        np.flatnonzero(may) if nodes <= len(rows) else (rows[turn, np.arange(len(few))] for turn in turns)
    )
    for candidate in candidates:
        mine = 2 * (rows == candidate).sum(axis=0, dtype=np.uint16) + (start == candidate)
        better = (mine > score) & may[np.minimum(candidate, nodes)]
        best[better] = candidate[better] if np.ndim(candidate) else candidate
        score[better] = mine[better]
    return best, np.minimum(score >> 1, 255).astype(np.uint8)


def _deal(sizes: Floats, owner: Nodes, rest: Samples, free: Floats) -> None:
    """Deal out the samples that no favourite had room for. Nodes are filled one after the other, the emptiest first."""
    order = np.argsort(-free, kind="stable")
    stops = _stops(sizes[rest], free[order])
    owner[rest[: stops[-1]]] = np.repeat(order, np.diff(stops, prepend=0))


def _stops(sizes: Floats, rooms: Floats) -> list[int]:
    """Fill rooms one after the other with the samples that come next. Returns where the samples of each room end."""
    filled, stops, start = np.cumsum(sizes), [], 0
    for room in rooms.tolist():
        before = filled[start - 1] if start else 0.0
        start = max(start, int(np.searchsorted(filled, before + room, side="right")))
        stops.append(start)
    return stops


def _take(left: Floats, sizes: Floats, storage: Storages) -> None:
    """Subtract the sizes of what was placed from what is left of a node's classes, shape (J,)."""
    kept = storage != PFS
    left -= np.bincount(storage[kept], sizes[kept], minlength=len(left))


def _fill_gaps(sizes: Floats, owner: Nodes, storage: Storages, left: Floats) -> None:
    """Give samples without an owner to any class that still has room for them, the largest that fits first."""
    orphans = np.flatnonzero(owner == PFS)
    orphans = orphans[np.argsort(sizes[orphans], kind="stable")]
    ascending = sizes[orphans]
    # nearest[i + 1] leads from orphan i to the nearest one at or below it that has no owner yet; 0 stands for none.
    nearest = np.arange(len(orphans) + 1)
    for node, j in np.ndindex(*left.shape):
        for _ in range(GAP_TRIES):
            at = int(np.searchsorted(ascending, left[node, j], side="right"))
            while nearest[at] != at:
                nearest[at] = nearest[nearest[at]]
                at = int(nearest[at])
            if not at:
                break
            sample = orphans[at - 1]
            owner[sample], storage[sample] = node, j
            left[node, j] -= sizes[sample]
            nearest[at] = at - 1


def _deal_into_classes(sizes: Floats, owner: Nodes, storage: Storages, left: Floats) -> None:
    """Deal samples that still have no owner into whatever class has room, the faster classes and emptier nodes first.

    The rest by then is little and small, but where nodes are small and sizes differ it can be many samples. Each round
    places one at least, for the largest that fits anywhere comes first, and mostly all but a few.
    """
    while True:
        rest = np.flatnonzero((owner == PFS) & (sizes > 0) & (sizes <= left.max(initial=0.0)))
        if not len(rest):
            return
        rest = rest[np.argsort(-sizes[rest], kind="stable")]
        node, j = np.divmod(np.arange(left.size), left.shape[1])
        order = np.lexsort((-left.ravel(), j))
        stops = _stops(sizes[rest], left.ravel()[order])
        rest, where = rest[: stops[-1]], np.repeat(order, np.diff(stops, prepend=0))
        owner[rest], storage[rest] = node[where], j[where]
        left -= np.bincount(where, sizes[rest], minlength=left.size).reshape(left.shape)


def _copies(sizes: Floats, readers: Readers, owner: Nodes, left: Floats) -> list[Copies]:
    """The copies of each node in the room that its own samples leave: what it reads most, and twice at least."""
    none = Copies(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int8))
    result = [none] * len(left)
    if (owner == PFS).any() or left.sum(axis=1).max(initial=0.0) < sizes.min(initial=np.inf):
        return result
    for node, read, counts in counts_by_node(readers, len(left)):
        ids = read[owner[read] != node]
        storage = keep_most_read(sizes[ids], counts[owner[read] != node], left[node])
        result[node] = Copies(ids[storage != PFS], storage[storage != PFS])
    return result
