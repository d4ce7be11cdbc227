"""Which storage class of this node keeps a sample: RAM first, then LMDB for small samples or SSD for the rest.

Pure. In: a sample's size and how much each class has left. Out: the index of the class, or NOWHERE. Called by the
engine when a sample is about to be fetched from the PFS. What is placed stays: within an epoch no sample is read
twice, so evicting one for another never saves a PFS read (docs/DESIGN: hits per epoch <= capacity, whatever the
policy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NOWHERE = -1


class ClassRoom(NamedTuple):
    """A storage class as placement sees it.

    Attributes:
        kind: `ram`, `lmdb` or `ssd`.
        free_bytes: capacity less what is held and promised.
        footprint_bytes: what this sample would occupy there.
        largest_bytes: the largest sample the class takes, 0 for no limit.
    """

    kind: str
    free_bytes: int
    footprint_bytes: int
    largest_bytes: int = 0


_PREFERENCE = {"ram": 0, "lmdb": 1, "ssd": 2}


def choose_class(size_bytes: int, rooms: Sequence[ClassRoom]) -> int:
    """Return the index in `rooms` of the class that shall keep a sample of `size_bytes`, or NOWHERE.

    RAM before disks; LMDB before SSD because its own limit (`largest_bytes`) already restricts it to the samples it is
    better at; among equals the one with most room, so that several disks fill evenly.
    """
    best, best_rank = NOWHERE, (99, 0)
    for index, room in enumerate(rooms):
        if room.footprint_bytes > room.free_bytes:
            continue
        if room.largest_bytes and size_bytes > room.largest_bytes:
            continue
        rank = (_PREFERENCE[room.kind], -room.free_bytes)
        if rank < best_rank:
            best, best_rank = index, rank
    return best


def pfs_bound_bytes(stream_bytes: int, capacity_bytes: int, nodes: int = 1) -> int:
    """Least bytes that an epoch after the first must read from the PFS: max(0, S - N * D) (DESIGN.md, section 5)."""
    return max(0, stream_bytes - nodes * capacity_bytes)
