"""The simulator's expectation of a job that really runs: how unevenly its ranks on one node load.

Pure. In: the node as it was measured, the sizes of what its ranks read and where it lies, how long their loaders work.
Out: the imbalance, to be held beside the measured one. Called by `mlfs.lab.commands.simulate`. The arithmetic is
that of the simulated run (mlfs.lab.sim.run) for the policy that mounts have.

The simulator takes all ranks of a node to be alike: each has workers of its own, which preprocess a byte as fast as all
do on average. So it expects what follows from files' sizes, from where they lie and from how fast places are, which
ranks share. Unevenness beyond that has other causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.lab.policies.clairvoyant import POLICY
from mlfs.lab.policies.policy import EpochReads
from mlfs.lab.sim.clock import Loading, Sharing
from mlfs.lab.sim.gpu_queues import GpuNode
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.tally import tally
from mlfs.plan.loader_load import step_compute_s
from mlfs.plan.model import Curve, Floats, PerformanceModel, StorageClass
from mlfs.plan.node_reads import PFS
from mlfs.plan.rank_load import NOTABLE_WORK_S, Imbalance, RankLoad, imbalance
from mlfs.units import format_duration

# A loader takes so long for a batch at least: the time of one that only reads may be measured as nothing.
LEAST_WORK_S = 1e-9


class Loaders(NamedTuple):
    """How the loaders of a node's ranks work, as means of their last batches.

    Attributes:
        batch_bytes: of a rank's batch. work_s: how long all processes of a rank together work for one.
        compute_s: what a rank must not load longer than, lest the step waits for it.
    """

    batch_bytes: float
    work_s: float
    compute_s: float

    @classmethod
    def of(cls, ranks: Sequence[RankLoad]) -> Loaders | None:
        """As they were measured; None where there are not two ranks that have read something."""
        if len(ranks) < 2 or not all(rank.batch_bytes for rank in ranks):
            return None
        return cls(
            float(np.mean([rank.batch_bytes for rank in ranks])),
            float(np.mean([rank.own_s for rank in ranks])),
            step_compute_s(ranks),
        )


def expected_imbalance(
    node: PerformanceModel, sizes_bytes: Floats, storage: npt.NDArray[np.int8], loaders: Loaders
) -> Imbalance:
    """Simulates the steps of such a job, and says how unevenly its ranks load.

    Args:
        node: what the places of the node give; nothing else of it counts.
        sizes_bytes: of the samples that are read, shape (steps, ranks, batch), 0 where a batch is short.
        storage: the class of `node` from which each of them comes, PFS for the source; same shape.
    """
    steps, ranks, batch = sizes_bytes.shape
    model = node.changed(
        nodes=1,
        global_batch=ranks * batch,
        preprocess_bytes_per_s=ranks * loaders.batch_bytes / max(loaders.work_s, LEAST_WORK_S),
    )
    # The samples are numbered in the order of these reads. A GPU takes every M-th of its node's batch.
    numbers = np.arange(sizes_bytes.size, dtype=np.int32).reshape(sizes_bytes.shape)
    ids = numbers.transpose(0, 2, 1).reshape(steps, 1, -1)
    kept_in = storage.transpose(0, 2, 1).reshape(steps, 1, -1)
    reads = EpochReads(ids, np.where(kept_in == PFS, PFS, 0).astype(np.int16), kept_in, np.zeros(1))
    counted = tally(reads, np.append(sizes_bytes.ravel(), 0.0), model, ranks)
    loading = Loading(model, POLICY.traits, Sharing.CONSERVING, GpuNode(ranks))
    return imbalance(loading.lanes(counted).max(axis=1), loaders.compute_s)


def expected_of_run(simulation: Simulation, loaders: Loaders, peers_bytes_per_s: float) -> Imbalance:
    """How unevenly the GPUs of the first node load in the last epoch of a run under the policy that mounts have.

    A simulated GPU computes in proportion to bytes; here a step computes as long as was measured, whatever it holds.

    Args:
        peers_bytes_per_s: what the node gets from all others together.
    """
    model, order, gpus = simulation.model, simulation.order, simulation.scenario.node.gpus
    run = POLICY.begin(simulation.view(Sharing.CONSERVING))
    for epoch in range(model.epochs):
        reads = run.epoch(epoch, order.epoch(epoch))

    def by_gpu(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values[:, 0, :].reshape(len(values), -1, gpus).transpose(0, 2, 1)

    ids, node, storage = by_gpu(reads.ids), by_gpu(reads.node), by_gpu(reads.storage)
    rate = Curve.flat(peers_bytes_per_s)
    with_peers = model.changed(
        nodes=1, capacities_by_node=(), classes=(*model.classes, StorageClass("peers", 0, rate, rate, 1))
    )
    places = np.where((node != 0) & (storage != PFS), np.int8(len(model.classes)), storage)
    sizes = np.append(simulation.sizes, 0.0)[ids]
    return expected_imbalance(with_peers, sizes, places, loaders)


# -- why many more steps are uneven than that: what the simulator does not know of, in words
#
# In: what each rank's loader was seen to do, how unevenly they load, and what is expected of that. Out: a sentence.

# So much larger a share of uneven steps than is expected is worth a sentence: over some tens of steps chance makes a
# difference of a tenth.
FAR_SHARE = 0.2
# Ranks whose loading times differ less are alike: what is late then is another one from step to step.
SLOWER = 1.25

UNEVEN = "more steps are uneven than the sizes of files and the places where they lie explain: {why}"
ALL_WAIT = "the workers of all ranks wait for reads longer than they work, and longer in some steps than in others"
WAITS = "reads of {slow} wait {long} for a batch, those of {fast} {short}"
SLOW_WORKERS = (
    "{who} of {slow} works {long} for a batch, that of {fast} {short}; its preprocessing may have more to do, or"
    " something else takes its cores"
)
FEWER_WORKERS = "{slow} has fewer workers than {fast}: {few} and {more}"
SCATTER = (
    "no rank is slower than others for long; the time of a batch changes with something else, such as what augmentation"
    " does to it, or other processes on the cores"
)


def uneven_words(ranks: Sequence[RankLoad], measured: Imbalance, expected: Imbalance) -> str:
    """The reason why more steps are uneven than simulated; empty where they agree, or where nothing is preprocessed.

    Args:
        ranks: `rank` being the rank's number.
    """
    if measured.steps - expected.steps < FAR_SHARE:
        return ""
    slow, fast = max(ranks, key=lambda rank: rank.load_s), min(ranks, key=lambda rank: rank.load_s)
    if slow.load_s < NOTABLE_WORK_S:
        return ""
    return UNEVEN.format(why=_why_slower(slow, fast, all(of.waiting_s > of.work_s for of in ranks)))


def _why_slower(slow: RankLoad, fast: RankLoad, all_wait: bool) -> str:
    """Why one rank loads for longer than another, in words: what makes most of the difference."""
    names = {"slow": f"rank {slow.rank}", "fast": f"rank {fast.rank}"}
    slower, works_longer_s = slow.load_s >= SLOWER * fast.load_s, slow.own_s - fast.own_s
    if slower and slow.load_s - fast.load_s > 2 * works_longer_s:
        return WAITS.format(**names, long=format_duration(slow.waiting_s), short=format_duration(fast.waiting_s))
    if all_wait:
        return ALL_WAIT
    if not slower:
        return SCATTER
    long_s, short_s = slow.work_s, fast.work_s
    if slow.workers < fast.workers and long_s < SLOWER * short_s:
        return FEWER_WORKERS.format(**names, few=slow.workers, more=fast.workers)
    who = "the training process" if slow.reader_trains else "a worker"
    return SLOW_WORKERS.format(**names, who=who, long=format_duration(long_s), short=format_duration(short_s))
