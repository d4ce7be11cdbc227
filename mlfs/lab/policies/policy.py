"""The one interface behind which every way of caching and fetching stands.

Pure: numpy in, numpy out. In: a `View` of the run (performance model, sizes, who reads what in which epoch). Out:
for each epoch the `EpochReads`: who reads which sample from where. Called by the simulator.

A policy's module defines `POLICY`. `POLICY.begin(view)` returns a `Run`, which is asked for each epoch once, in order:
what it keeps between epochs is the caches' contents, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mlfs.plan.model import Floats, PerformanceModel
from mlfs.plan.node_reads import PFS, Ids, Nodes, Readers, Storages
from mlfs.plan.placement import in_classes
from mlfs.served.partition import Partition


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a policy may know; the seed tells the future, so that is all.

    Attributes:
        model: the cluster and the job's shape.
        sizes_bytes: shape (F,).
        readers: shape (E, F): the node that reads the sample in that epoch; the dtype's largest value for none.
        pfs_thread_bytes_per_s: what one prefetch thread gets from the PFS while all nodes read.
        generator: for policies that shuffle by themselves.
        kept: which node keeps what, where that is settled by an order that mlfs serves.
    """

    model: PerformanceModel
    sizes_bytes: Floats
    readers: Readers
    pfs_thread_bytes_per_s: float
    generator: np.random.Generator
    kept: Partition | None = None


class EpochReads(NamedTuple):
    """An epoch's reads, each array of shape (steps, nodes, samples of a node's batch).

    Attributes:
        ids: the sample; -1 where the last batch is short.
        node: where it comes from: the reader itself, a peer, or PFS. With `storage` PFS and a node: that node
            fetches it from the PFS, keeps it and hands it on.
        storage: index of the storage class there, PFS for none.
        background_bytes: shape (N,): what the classes' own prefetch threads draw from the PFS beside these reads.
    """

    ids: Ids
    node: Nodes
    storage: Storages
    background_bytes: Floats


class Overlap(Enum):
    """How loading and computing overlap."""

    NONE = "none"  # load a batch, then compute it
    BATCH = "batch"  # load the next batch while this one is computed
    WINDOW = "window"  # load ahead as far as the staging buffer reaches


class Writing(Enum):
    """How write_i(k), preprocessing and storing into the staging buffer, enters the time to load."""

    ASIDE = "aside"  # pipelined behind the fetching threads
    POOL = "pool"  # after the fetch, by all staging threads together
    THREAD = "thread"  # by the thread that fetched: read = fetch + write


class Queues(Enum):
    """Whom a node's loading threads serve, where the node has several GPUs."""

    EVEN = "even"  # each GPU's own loader has as many threads as any other's
    ASSIGNED = "assigned"  # Lobster: moved between the GPUs' queues, and between loading and preprocessing
    POOLED = "pooled"  # all threads serve all GPUs, what is needed first


@dataclass(frozen=True, slots=True)
class Traits:
    """How a policy moves data, as far as time depends on it.

    Attributes:
        overlap, writing, queues: see the enums.
        one_thread: one thread loads batches, instead of the p_0 threads of the staging buffer.
        own_lanes: the PFS, the peers and each class have threads of their own, which work side by side for all GPUs.
        true_order: every sample of the data set is read in the sampler's own order.
        free: reads cost nothing and come from nowhere: the lower bound.
    """

    overlap: Overlap = Overlap.WINDOW
    writing: Writing = Writing.ASIDE
    one_thread: bool = False
    own_lanes: bool = False
    true_order: bool = True
    queues: Queues = Queues.EVEN
    free: bool = False


class Preload(NamedTuple):
    """Bytes that are fetched before the first step, for each class at each node, and how many nodes read at once.

    With one reader the data go to all nodes (a broadcast); else each node fetches its own.
    """

    class_bytes: Floats
    readers: int


class Run(Protocol):
    """A policy at work on one run."""

    @property
    def preload(self) -> Preload | None:
        """The bytes that are fetched before the first step."""

    def epoch(self, epoch: int, ids: Ids) -> EpochReads:
        """Say where the epoch's reads come from; `ids` as the sampler deals them, shape (steps, nodes, batch)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy.

    Attributes:
        name: the name that users write.
        summary: one line with the source.
        traits: how data move.
        begin: starts a run; raises `Unfit` for a cluster that the policy cannot serve.
    """

    name: str
    summary: str
    traits: Traits
    begin: Callable[[View], Run]


class Unfit(ValueError):
    """The policy cannot run there, as LBANN's store cannot with less memory than data."""


@dataclass(slots=True)
class SingleCopies:
    """At most one copy of each sample: which node keeps it, and in which class. Entry F, where id -1 points, stays PFS.

    Attributes:
        node, storage: shape (F + 1,).
    """

    node: Nodes
    storage: Storages

    @classmethod
    def none(cls, n_samples: int) -> SingleCopies:
        """A `SingleCopies` of which no sample is kept anywhere."""
        return cls(np.full(n_samples + 1, PFS, dtype=np.int16), np.full(n_samples + 1, PFS, dtype=np.int8))

    def reads(self, ids: Ids) -> EpochReads:
        """Each sample from where it is kept, else from the PFS by the reader itself."""
        return EpochReads(ids, self.node[ids], self.storage[ids], np.zeros(ids.shape[1]))


def partition(view: View, capacities_bytes: Floats) -> SingleCopies:
    """Deal the samples to the nodes at random and evenly; each keeps of its own what fits in its classes."""
    kept = SingleCopies.none(len(view.sizes_bytes))
    order = view.generator.permutation(len(view.sizes_bytes)).astype(np.int32)
    for node in range(view.model.nodes):
        mine = order[node :: view.model.nodes]
        storage = in_classes(view.sizes_bytes[mine], capacities_bytes)
        mine, storage = mine[storage != PFS], storage[storage != PFS]
        kept.node[mine] = node
        kept.storage[mine] = storage
    return kept


def capacities(view: View, classes: int | None = None) -> Floats:
    """Capacity in bytes of each storage class of every node, or of the first `classes` only.

    Raises:
        Unfit: nodes differ. A policy that can do with that asks the model for `node_capacities_bytes`.
    """
    rooms = view.model.node_capacities_bytes()[:, :classes]
    if (rooms != rooms[0]).any():
        raise Unfit("the policy is defined for nodes of equal capacities, and here they differ")
    return np.asarray(rooms[0])


def preload_of(view: View, kept: SingleCopies) -> Preload:
    """The preload that fills `kept`: the fullest node's bytes by class, all nodes reading at once."""
    n_classes = len(view.model.classes)
    here = kept.node[:-1] != PFS
    slot = kept.node[:-1][here].astype(np.int64) * n_classes + kept.storage[:-1][here]
    total = np.bincount(slot, view.sizes_bytes[here], minlength=view.model.nodes * n_classes)
    return Preload(total.reshape(view.model.nodes, n_classes).max(axis=0), view.model.nodes)


# -- for policies of which several nodes may keep a copy of one sample


class Finder:
    """Finds a node's own copies among many samples: a scratch array by sample, cleaned after each use."""

    def __init__(self, n_samples: int) -> None:
        self._slot = np.full(n_samples + 1, -1, dtype=np.int32)

    def slots(self, held: Ids, wanted: Ids) -> npt.NDArray[np.int32]:
        """Index into `held` of each wanted sample, -1 where it is not held; any shape. Id -1 is never held."""
        self._slot[held] = np.arange(len(held), dtype=np.int32)
        found: npt.NDArray[np.int32] = self._slot[wanted]
        self._slot[held] = -1
        return found


def first_of_each(values: Ids) -> npt.NDArray[np.bool_]:
    """Which of the values (any shape) stand where their value comes first: all of them in a permutation."""
    flat = values.ravel()
    ordered = np.sort(flat)
    if (ordered[1:] != ordered[:-1]).all():
        return np.ones(values.shape, dtype=bool)
    mask = np.zeros(len(flat), dtype=bool)
    mask[np.unique(flat, return_index=True)[1]] = True
    return mask.reshape(values.shape)
