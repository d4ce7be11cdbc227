"""Ranks that read a piece of the data set each, in the order of the files, where their launcher has told who they are.

In: the first reads of each process as dataset indices, whose process each is. Out: a finding. Called by
`mlfs.explain.inference` in a worker thread. Who sees half of the ranks needs nobody to tell (`mlfs.explain.confirm`):
this is for a node that sees fewer, or none that begins at the first file, as where DLIO runs with a rank on each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from mlfs.explain.confirm import Finding
from mlfs.explain.evidence import bits_of_distinct
from mlfs.explain.question import FEWEST_BITS, DataSet
from mlfs.launchers import Whose

# Reads in a row that tell where a process begins.
_FEWEST_READS = 3


def told_pieces(data_sets: Sequence[DataSet], readers: Sequence[Whose]) -> Finding | None:
    """The largest data set of which each rank that is here reads its piece; None where the reads do not say so."""
    worlds = {reader.world for reader in readers}
    world = worlds.pop() if len(worlds) == 1 else 0
    if world < 2 or not any(reader.rank for reader in readers):
        return None  # one rank alone reads its piece as it would read the whole
    by_size = sorted(range(len(data_sets)), key=lambda index: -data_sets[index].n)
    for index in by_size:
        finding = _in(data_sets[index], readers, world)
        if finding is not None:
            return finding._replace(data_set=index)
    return None


def _in(data_set: DataSet, readers: Sequence[Whose], world: int) -> Finding | None:
    length = -(-data_set.n // world)
    behind: dict[int, list[int]] = {}
    told = 0.0
    for head, reader in zip(data_set.heads, readers, strict=True):
        if len(head) < _FEWEST_READS:
            continue
        rank, at = divmod(head[0], length)
        if rank != reader.rank or list(head[:_FEWEST_READS]) != list(range(head[0], head[0] + _FEWEST_READS)):
            return None
        behind.setdefault(rank, []).append(at)
        told += bits_of_distinct(data_set.n, len(head))
    # Of a rank's workers one begins where its piece does, and the others one or more batches behind it.
    if not max(behind, default=0) or told < FEWEST_BITS or any(min(at) for at in behind.values()):
        return None
    furthest = max(max(at) for at in behind.values())
    batch = gcd(*(place for at in behind.values() for place in at))
    workers = furthest // batch + 1 if batch else None
    return Finding(0, data_set.n, -1, 0, world, tuple(sorted(behind)), batch or None, workers, told, contiguous=True)
