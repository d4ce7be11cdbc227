"""The parts of a simulated cluster that its nodes share, and how long bytes take to move: PFS, storage classes, links.

In: items of fetches. Out: their ends, on the event heap. Each resource is a pipe that serves in order; bytes that pass
several pipes do so at once and are there when the slowest is through (docs/simulator.md, "The detailed simulator").
All readers of the PFS together get t(gamma) of it, gamma nodes reading at that moment: the conserving rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.job import JobRun
from mlfs.lab.sim.detailed.heap import Heap
from mlfs.lab.sim.detailed.node import IN_PLACE, Lane, Node
from mlfs.plan.model import PerformanceModel
from mlfs.plan.node_reads import Nodes, Readers
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo
from mlfs.plan.scheduler.events import Landed, Released
from mlfs.plan.scheduler.keeping import Plan

# Dropping a sample's pages takes so long: 46,000 a second were measured with posix_fadvise on a file of the own mount.
DROP_S = 1 / 46_000


class Pipe:
    """A resource that serves in order at one rate.

    Attributes:
        free_at_s: when it has served all that was asked of it.
    """

    __slots__ = ("_s_per_byte", "free_at_s")

    def __init__(self, bytes_per_s: float) -> None:
        self._s_per_byte = 1.0 / bytes_per_s
        self.free_at_s = 0.0

    def through_at(self, now_s: float, size_bytes: int) -> float:
        """Have it serve some bytes more; returns when they are through."""
        begin = self.free_at_s if self.free_at_s > now_s else now_s
        self.free_at_s = end = begin + size_bytes * self._s_per_byte
        return end


class SharedPfs:
    """The PFS: one pipe of all nodes, whose rate follows how many of them read; each node has a limit of its own."""

    def __init__(self, model: PerformanceModel) -> None:
        self._s_per_byte = [1.0 / float(model.pfs.at(max(1, gamma))) for gamma in range(model.nodes + 1)]
        self._own = [Pipe(model.node_pfs_bytes_per_s) for _ in range(model.nodes)]
        self._under_way = [0] * model.nodes
        self._gamma = 0
        self._free_at_s = 0.0

    def begin(self, node: int, now_s: float, size_bytes: int) -> float:
        """A node reads some bytes; returns when they are there."""
        if not self._under_way[node]:
            self._gamma += 1
        self._under_way[node] += 1
        begin = self._free_at_s if self._free_at_s > now_s else now_s
        self._free_at_s = end = begin + size_bytes * self._s_per_byte[self._gamma]
        own = self._own[node].through_at(now_s, size_bytes)
        return own if own > end else end

    def end(self, node: int) -> None:
        self._under_way[node] -= 1
        if not self._under_way[node]:
            self._gamma -= 1


class SimulatedCluster:
    """The world of nodes that never fail.

    Args:
        places: of each node. plans: what each node keeps. landed: told of each sample that has landed: on which
            node, which sample, and from which node it came, or `FROM_PFS`.

    Attributes:
        nodes: filled by whoever builds the cluster. pfs_bytes: read from it so far. fetched_bytes: by node
            and place.
    """

    def __init__(
        self,
        heap: Heap,
        model: PerformanceModel,
        places: Sequence[Sequence[PlaceInfo]],
        plans: Sequence[Plan],
        landed: Callable[[int, int, int], None],
    ) -> None:
        self.nodes: list[Node] = []
        self.pfs_bytes = 0
        self.fetched_bytes = [[0] * len(of_node) for of_node in places]
        self._heap, self._plans, self._landed = heap, plans, landed
        self._node_at = [[info.node for info in of_node] for of_node in places]
        self._pfs = SharedPfs(model)
        nodes = range(model.nodes)
        self._classes = [[Pipe(float(kind.read.at(kind.threads))) for kind in model.classes] for _ in nodes]
        self._send = [Pipe(model.network_bytes_per_s) for _ in nodes]
        self._receive = [Pipe(model.network_bytes_per_s) for _ in nodes]

    # -- see World

    def get(self, node: Node, lane: Lane) -> None:
        """Get an item from the PFS, a class of this node, or the node that owns it."""
        sample, place = lane.item.sample, node.came_from(lane.item)
        now_s, size = self._heap.now_s, node.sizes[sample]
        if place == SOURCE:
            self.pfs_bytes += size
            self._heap.at(self._pfs.begin(node.number, now_s, size), self._read_from_pfs, node, lane)
        elif (owner := self._node_at[node.number][place]) >= 0:
            self.nodes[owner].asked(sample, lambda how: self._answered(self.nodes[owner], node, lane, how))
        else:
            self._heap.at(self._classes[node.number][place - 1].through_at(now_s, size), self._got, node, lane, place)

    def _read_from_pfs(self, node: Node, lane: Lane) -> None:
        self._pfs.end(node.number)
        self._got(node, lane, SOURCE)

    def _answered(self, owner: Node, node: Node, lane: Lane, how: int) -> None:
        """The owner has the sample: in its window, or in a class that it is read from."""
        assert how == IN_PLACE, "in a cluster without failures nobody is refused"
        sample, now_s = lane.item.sample, self._heap.now_s
        size, held_by = node.sizes[sample], owner.held_by(sample)
        sent = self._send[owner.number].through_at(now_s, size)
        end = max(sent, self._receive[node.number].through_at(now_s, size))
        if held_by and not owner.has_pages(sample):
            end = max(end, self._classes[owner.number][held_by - 1].through_at(now_s, size))
        self._heap.at(end, self._handed_on, owner, node, lane)

    def _handed_on(self, owner: Node, node: Node, lane: Lane) -> None:
        owner.soon(Released(lane.item.sample))
        self._got(node, lane, lane.item.place)

    def _got(self, node: Node, lane: Lane, place: int) -> None:
        item = lane.item
        size = node.sizes[item.sample]
        self.fetched_bytes[node.number][place] += size
        landed = Landed(lane.fetch.fetch, item.sample, place, size, True)
        origin = FROM_PFS if place == SOURCE else self._node_at[node.number][place]
        self._landed(node.number, item.sample, node.number if origin < 0 and place != SOURCE else origin)
        node.got(lane, landed, node.to_keep(item, place))

    def drop(self, node: Node, samples: Sequence[int]) -> None:
        self._heap.at(self._heap.now_s + len(samples) * DROP_S, node.dropped, samples)

    def evict(self, node: Node, place: int, samples: Sequence[int]) -> None:
        """Give up copies."""
        self._heap.at(self._heap.now_s + len(samples) * DROP_S, node.evicted, place, samples)

    def load_epoch(self, node: Node, job: JobRun, epoch: int) -> EpochIndex | None:
        """The order of an epoch: takes no time."""
        return job.load_epoch(epoch)

    def plan(self, node: Node) -> Plan | None:
        """The samples that the node keeps."""
        return self._plans[node.number]

    def begins_anew(self, node: Node, job: JobRun) -> None:
        """Readers that follow their order never do."""
        raise AssertionError(f"node {node.number}: job {job.name} was taken to have started again")


# -- who read what from the PFS and who gave what to others, epoch by epoch
#
# In: each sample that has landed on a node, and where it came from. Out: bytes by epoch, and by epoch and node. A fetch
# runs ahead of its reader, often across the end of an epoch, so the clock does not tell which epoch it is for: the
# order does. A node's first fetch of a sample is for the first epoch in which it reads the sample, its second for the
# next. (A read that finds the pages of the epoch before needs no fetch; the fetch after it then counts for an epoch too
# early.)

FROM_PFS = -1
"""Stands for the PFS where a node's number says where bytes came from."""


class SimulatedLedger:
    """The bytes that nodes read from the PFS and gave to others, by epoch.

    Args:
        sizes: bytes by sample. owner: the node that owns each sample, below 0 for none. readers: shape (E, F), the node
            that reads the sample in each epoch.

    Attributes:
        pfs_bytes: by epoch. given_bytes: by epoch and node, what it gave to other nodes.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], owner: Nodes, readers: Readers, nodes: int) -> None:
        self.pfs_bytes = [0] * len(readers)
        self.given_bytes = np.zeros((len(readers), nodes), dtype=np.int64)
        self._sizes, self._owner = sizes, owner
        self._readers_of = np.ascontiguousarray(readers.T)  # by sample
        self._nobody = int(np.iinfo(readers.dtype).max)
        self._fetched: defaultdict[tuple[int, int], int] = defaultdict(int)

    def landed(self, node: int, sample: int, origin: int) -> None:
        """A sample has landed on a node; it came from that node, or `FROM_PFS`."""
        if origin == node:
            return
        if origin == FROM_PFS and self._owner[sample] == node:
            # The owner fetches for whoever reads the sample first.
            self.pfs_bytes[self._epoch_of_fetch(sample, self._owner[sample], anybody=True)] += int(self._sizes[sample])
            return
        epoch = self._epoch_of_fetch(sample, node)
        if origin == FROM_PFS:
            self.pfs_bytes[epoch] += int(self._sizes[sample])
        else:
            self.given_bytes[epoch, origin] += int(self._sizes[sample])

    def _epoch_of_fetch(self, sample: int, node: int, anybody: bool = False) -> int:
        """The epoch that this fetch of a node is for: the earliest that no fetch before it was for."""
        readers = self._readers_of[sample].tolist()  # of some epochs: too few for numpy
        epochs = [at for at, who in enumerate(readers) if (who != self._nobody if anybody else who == node)]
        done = self._fetched[node, sample]
        self._fetched[node, sample] += 1
        return epochs[min(done, len(epochs) - 1)] if epochs else 0

    def load(self, epoch: int) -> float:
        """The busiest node's bytes given in an epoch, over the mean of all nodes that own anything; 0 if none gave."""
        owners = np.bincount(self._owner[self._owner >= 0], minlength=self.given_bytes.shape[1]) > 0
        given = self.given_bytes[epoch][owners]
        return float(given.max() / given.mean()) if len(given) and given.any() else 0.0
