"""What this node shall keep, and where: the plan of its jobs at work.

In: registered jobs, samples about to be kept. Out: the class for each. A job all of whose ranks read through this mount
reads every sample equally often: then what comes first is kept, and nothing is to be planned. A job of which this node
runs some ranks reads some samples more often: how often is counted epoch by epoch in a thread of its own, from the
first read on, and the plan takes effect when it is there. The decisions are mlfs.plan.placement's.

`choose` and `kept` run in worker threads, `Counting.add`, `adopt` and `plan` in the planning thread, the others on the
loop.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.engine.table import PAGE_BYTES
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams
from mlfs.plan.placement import NOWHERE, ClassRoom, choose_class, keep_most_read, spare

MOST_READS = np.iinfo(np.uint16).max


class Counting(NamedTuple):
    """A job whose reads are being counted: by entry, and the epoch that is counted next."""

    spec: JobSpec
    streams: JobStreams
    reads: npt.NDArray[np.uint16]

    def add(self, epoch: int) -> None:
        """Add an epoch's reads by the ranks of this node."""
        for rank in self.spec.ranks:
            ids = self.streams.epoch_ids(epoch, rank)
            counts = np.bincount(ids[ids >= 0], minlength=len(self.reads))
            np.minimum(self.reads + counts, MOST_READS, out=self.reads, casting="unsafe")


class Placing:
    """See the module.

    Attributes:
        classes: planned class by entry, None while what comes first is kept.
        reserved_bytes: what entries planned for each class still need. Invariant: the sum of footprints of planned
            entries that are not kept; sizes that change and copies that are lost count from the next epoch on.
        slower: by tier, how many groups of its kind are clearly faster (`placement.slower_groups`).
        planned: what the plan is about, for `status`.
    """

    def __init__(self, sizes: memoryview, n_tiers: int = 0) -> None:
        self.sizes = sizes
        self.slower: tuple[int, ...] = (0,) * n_tiers
        self.classes: npt.NDArray[np.int8] | None = None
        self.reserved_bytes = [0, 0]
        self.planned: dict[str, int] = {}
        self._counted: dict[str, npt.NDArray[np.uint16]] = {}
        self._changes = 0  # of `_counted`
        self._lock = threading.Lock()

    def needs_counting(self, spec: JobSpec) -> bool:
        """Whether this node reads some samples of the job more often than others."""
        return len(spec.ranks) < spec.world_size and spec.epochs - spec.start_epoch > 1

    def begin(self, spec: JobSpec, streams: JobStreams) -> Counting:
        """Nothing is counted yet."""
        return Counting(spec, streams, np.zeros(len(self.sizes), dtype=np.uint16))

    def adopt(self, counting: Counting, held_by: bytearray, capacities_bytes: Sequence[int]) -> None:
        """All epochs of a job are counted: plan with them. In the planning thread."""
        with self._lock:
            self._counted[counting.spec.name] = counting.reads
            self._changes += 1
        self.plan(held_by, capacities_bytes)

    def forget(self, name: str) -> bool:
        """A job has ended; whether there is to be another plan, for the jobs that are left."""
        with self._lock:
            if self._counted.pop(name, None) is None:
                return False
            self._changes += 1
            if not self._counted:
                self.classes, self.reserved_bytes, self.planned = None, [0, 0], {}
            return bool(self._counted)

    def plan(self, held_by: bytearray, capacities_bytes: Sequence[int]) -> None:
        """Plan for the jobs that are counted now; again if another one came or went meanwhile."""
        while not self._plan(held_by, capacities_bytes):
            pass

    def _plan(self, held_by: bytearray, capacities_bytes: Sequence[int]) -> bool:
        with self._lock:
            counted, changes = list(self._counted.values()), self._changes
        if not counted:
            return True
        reads = np.zeros(len(self.sizes), dtype=np.uint32)
        for counts in counted:
            reads += counts
        footprints = np.asarray(self.sizes).astype(np.int64)
        footprints += -footprints % PAGE_BYTES
        classes = keep_most_read(footprints, reads, capacities_bytes)
        with self._lock:
            if self._changes != changes:
                return False
            missing = np.frombuffer(held_by, dtype=np.uint8) == 0
            levels = range(len(capacities_bytes))
            self.reserved_bytes = [int(footprints[missing & (classes == level)].sum()) for level in levels]
            self.planned = {
                "samples": int(np.count_nonzero(classes != NOWHERE)),
                "bytes": int(footprints[classes != NOWHERE].sum()),
                "reads_kept": int(reads[classes != NOWHERE].sum()),
                "reads": int(reads.sum()),
            }
            self.classes = classes
            return True

    def choose(self, entry: int, size_bytes: int, rooms: Sequence[ClassRoom]) -> int:
        """The index in `rooms` of the class that shall keep the entry, or NOWHERE."""
        if self.classes is None:
            return choose_class(size_bytes, rooms)
        with self._lock:
            wanted = NOWHERE if self.classes is None else int(self.classes[entry])
            return choose_class(size_bytes, spare(rooms, wanted, self.reserved_bytes), wanted)

    def kept(self, entry: int) -> None:
        """The entry is kept now: nothing is reserved for it any more."""
        if self.classes is None:
            return
        with self._lock:
            if self.classes is not None and (planned := int(self.classes[entry])) != NOWHERE:
                size = self.sizes[entry] + -self.sizes[entry] % PAGE_BYTES
                self.reserved_bytes[planned] = max(0, self.reserved_bytes[planned] - size)
