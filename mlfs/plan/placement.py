"""Chooses the storage class of this node that keeps a sample: RAM first, then LMDB for small samples or SSD.

Pure. In: a sample's size and how much each class has left; how often the node reads each sample. Out: the index of the
class, or NOWHERE. Called by `mlfs.plan.scheduler.keeping` when a sample is fetched from the PFS, and before, to plan.
A placed sample stays where no sample is read twice within an epoch: then evicting one for another never saves a read of
the PFS (docs/model.md: hits of an epoch are at most the capacity, whatever the policy). `mlfs.plan.scheduler.evicting`
makes room where the plan finds that evicting wins, or no job reads a copy any more.

A node that reads all samples equally often keeps what comes first. One that reads some of them more often than others
(a rank of many) keeps those: `keep_most_read` says which and where. Samples that it does not name are kept as well, as
long as there is room that the named ones will not need (`spare`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

NOWHERE = -1
# Classes as plans number them; where some disks are clearly slower than others, these are DISK + 1, and so on.
MEMORY, DISK = 0, 1
# A disk is clearly slower than one that gives so many times as much. Disks of one make, measured while other work runs,
# differ by less.
CLEARLY_SLOWER = 2.0


class ClassRoom(NamedTuple):
    """A storage class as placement sees it.

    Attributes:
        kind: `ram`, `lmdb` or `ssd`.
        free_bytes: the capacity without what is held and promised.
        footprint_bytes: what this sample would occupy there.
        largest_bytes: the largest sample the class takes, 0 for no limit.
        slower: how many groups of classes of its kind are clearly faster (see `slower_groups`).
    """

    kind: str
    free_bytes: int
    footprint_bytes: int
    largest_bytes: int = 0
    slower: int = 0

    @property
    def level(self) -> int:
        """The class as plans number it: MEMORY, DISK, or a slower disk's."""
        return MEMORY if self.kind == "ram" else DISK + self.slower


_PREFERENCE = {"ram": 0, "lmdb": 1, "ssd": 2}
_DISKS_FIRST = {"lmdb": 0, "ssd": 1, "ram": 2}


def keep_most_read(
    sizes_bytes: npt.NDArray[Any],
    reads: npt.NDArray[np.integer[Any]],
    capacities_bytes: Sequence[float] | npt.NDArray[Any],
    at_least: int = 2,
) -> npt.NDArray[np.int8]:
    """Which samples a node shall keep, and in which class: those it reads most, the fastest class first.

    Args:
        sizes_bytes: what each sample occupies, shape (F,).
        reads: how often the node reads each sample, shape (F,).
        capacities_bytes: of each class, fastest first.
        at_least: what is read less often is not kept. A copy of a sample that is read once saves nothing.

    Returns:
        Shape (F,): class index, NOWHERE for what is read too seldom or does not fit. The lower index counts among equal
        counts. No class gets more than its capacity.

    Source: NoPFS (SC'21), Section 5.1: samples with the largest r_k to the fastest storage class, and so on.
    """
    order = np.argsort(-reads.astype(np.int32), kind="stable")
    order = order[: np.count_nonzero(reads >= at_least)]
    result = np.full(len(sizes_bytes), NOWHERE, dtype=np.int8)
    result[order] = in_classes(sizes_bytes[order], capacities_bytes)
    return result


def in_classes(
    sizes_bytes: npt.NDArray[Any], capacities_bytes: Sequence[float] | npt.NDArray[Any]
) -> npt.NDArray[np.int8]:
    """Fill classes in the given order: the first as far as it reaches, then the next; NOWHERE for what fits in none.

    Args:
        sizes_bytes: shape (n,), in order of preference. capacities_bytes: shape (J,).

    Returns:
        Shape (n,): class index or NOWHERE. No class holds more than its capacity.
    """
    result = np.full(len(sizes_bytes), NOWHERE, dtype=np.int8)
    start = 0
    for index, capacity in enumerate(capacities_bytes):
        filled = np.cumsum(sizes_bytes[start:])
        stop = start + int(np.searchsorted(filled, capacity, side="right"))
        result[start:stop] = index
        start = stop
    return result


def slower_groups(kinds: Sequence[str], bytes_per_s: Sequence[float]) -> tuple[int, ...]:
    """How many groups of its kind are clearly faster than each class: 0 where nothing is known, or all are alike.

    Args:
        kinds: of each class. bytes_per_s: what each gives, 0 for not known.

    Classes are of a group when none of it gives twice what another gives.
    """
    result = [0] * len(kinds)
    for kind in set(kinds) - {"ram"}:
        known = sorted((-rate, index) for index, rate in enumerate(bytes_per_s) if kinds[index] == kind and rate > 0)
        fastest, group = known[0][0] if known else 0.0, 0
        for rate, index in known:
            if fastest < CLEARLY_SLOWER * rate:  # both are below 0
                fastest, group = rate, group + 1
            result[index] = group
    return tuple(result)


def spare(rooms: Sequence[ClassRoom], wanted: int, reserved_bytes: Sequence[int]) -> list[ClassRoom]:
    """The rooms as a sample that is planned for class `wanted` may use them: without what others will need.

    Args:
        wanted: MEMORY, DISK or a slower disk's, or NOWHERE.
        reserved_bytes: what the samples planned for each class still need.
    """
    free = [0] * max([len(reserved_bytes), *(room.level + 1 for room in rooms)])
    for room in rooms:
        free[room.level] += room.free_bytes
    result = []
    for room in rooms:
        index = room.level
        if index != wanted and index < len(reserved_bytes) and free[index]:
            # Disks share what is reserved for them as they share what is free.
            taken = -(-reserved_bytes[index] * room.free_bytes // free[index])
            result.append(room._replace(free_bytes=room.free_bytes - taken))
        else:
            result.append(room)
    return result


def preferred(size_bytes: int, rooms: Sequence[ClassRoom], wanted: int = MEMORY) -> list[int]:
    """The indices in `rooms` of the classes that can keep a sample of `size_bytes`, the best first.

    RAM before disks; LMDB before SSD because its own limit (`largest_bytes`) already restricts it to the samples it is
    better at; the faster disks of a kind before clearly slower ones; among equals the one with most room, so that
    several disks fill evenly. Samples that are planned for a disk go to RAM last.
    """
    preference = _DISKS_FIRST if wanted >= DISK else _PREFERENCE
    ranked = [
        ((wanted >= DISK and room.level != wanted, preference[room.kind], room.slower, -room.free_bytes), index)
        for index, room in enumerate(rooms)
        if room.footprint_bytes <= room.free_bytes and not (room.largest_bytes and size_bytes > room.largest_bytes)
    ]
    return [index for _, index in sorted(ranked)]


def pfs_bound_bytes(stream_bytes: int, capacity_bytes: int, nodes: int = 1) -> int:
    """Least bytes that an epoch after the first must read from the PFS: max(0, S - N * D) (docs/model.md)."""
    return max(0, stream_bytes - nodes * capacity_bytes)
