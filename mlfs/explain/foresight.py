"""Tells where an epoch begins from its first few reads, by tables that were made while the epoch before was read.

In: the generators that may draw the next epoch's order, reads of the job as they come. Out: a `Place`, with the first
read that leaves no doubt. Used by both cases of `mlfs.explain`, for scripts that draw another number of words from
torch's generator in each epoch; whoever has one asks the slow way, too, which needs no table and more reads.

Any process may be the one that reads the epoch from its start, and with each of its reads it may begin. What is looked
up are the last reads of a process, whenever one of them was not predicted: a few of them, and all that came behind the
first one. A loader with workers whose batches are smaller than that shows no such run; it is left to the slow way.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np

from mlfs.explain.foreseen import LONGEST_HEAD, Foreseen, Generator, Place, reads_needed, spans
from mlfs.explain.port import Workers
from mlfs.orders.layouts.layout import SampleIds

POOL = "foresee"
# Of the generators that may be right: as many tables at most, each some megabytes.
MOST_GENERATORS = 4
# Eight ranks with eight workers each.
MOST_PROCESSES = 64


class Foresight:
    """See the module.

    Args:
        ids: files by sample.
        generators: the likeliest first.
    """

    def __init__(self, ids: SampleIds, generators: Sequence[Generator]) -> None:
        self.generators = tuple(generators[:MOST_GENERATORS])
        self._ids = ids
        self._index_of: dict[int, int] = {}
        self._tables: list[tuple[Generator, Foreseen]] = []
        self._needed = 0  # reads that tell; 0 while there is no table
        self._last: OrderedDict[int, deque[int]] = OrderedDict()  # last reads by process

    async def prepare(self, runner: Workers) -> None:
        """Make the tables, the likely places first: they are looked up as soon as they are there."""
        self._index_of = await runner.run(POOL, _inverse, self._ids)
        n, of_generators = len(self._ids), [spans(generator.places) for generator in self.generators]
        for step in range(max(map(len, of_generators), default=0)):
            for generator, found in zip(self.generators, of_generators, strict=True):
                if step < len(found):
                    table = await runner.run(POOL, Foreseen, generator, n, found[step])
                    self._tables.append((generator, table))
                    self._needed = reads_needed(n, sum(table.places for _, table in self._tables))

    def read(self, entry: int, process: int, as_predicted: bool) -> Place | None:
        """A read of the job's samples: the place of the epoch that it belongs to, if that is beyond doubt now."""
        last = self._last.get(process)
        if last is None:
            last = self._last[process] = deque(maxlen=LONGEST_HEAD)
            if len(self._last) > MOST_PROCESSES:
                self._last.popitem(last=False)
        last.append(entry)
        if as_predicted or not 0 < self._needed <= len(last):
            return None
        reads = [self._index_of.get(entry, -1) for entry in last]
        for begin in range(len(reads) - self._needed, -1, -1):
            head = reads[begin:]
            if min(head) < 0 or len(set(head)) < len(head):
                return None  # opened again, or no sample: what is longer is no head either
            found = {Place(of, place) for of, table in self._tables for place in table.places_of(head)}
            if len(found) == 1:
                return found.pop()
        return None


def _inverse(ids: SampleIds) -> dict[int, int]:
    """Samples by file. A worker thread's work."""
    return {entry: sample for sample, entry in enumerate(np.asarray(ids).tolist()) if entry >= 0}
