"""What the simulator expects of the jobs of a mount, beside what the mount measures: how unevenly their ranks load.

In: the engine's figures. Out: an `Expected` by the job's name. Nothing is computed unless somebody reads the status or
the metrics, or reports of jobs are to be written; and then in a worker thread, for some tens of milliseconds at most
where the epoch's order is at hand. Who reads waits a moment for it. The arithmetic is mlfs.sim.expected.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import trio

from mlfs.engine import runner
from mlfs.engine.engine import Engine
from mlfs.engine.statistics import EngineStatistics
from mlfs.follow.job import JobRun
from mlfs.follow.job_statistics import JobStatistics
from mlfs.measure.speeds import PEERS
from mlfs.orders.streams import JobStreams
from mlfs.plan.imbalance import Imbalance
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.model import PerformanceModel
from mlfs.plan.node_reads import PFS
from mlfs.plan.rank_load import FEWEST_BATCHES
from mlfs.sim.expected import Loaders, expected_imbalance

log = logging.getLogger("mlfs.status")

# Whoever watches a mount asks every second or two, and a job does not change as fast.
FRESH_S = 10.0
# Who reads the status waits so long for what is computed. Later it is there when the status is read next.
PATIENCE_S = 0.5
# Reads that are looked at, of steps that lie evenly in the rest of the epoch: enough for a mean over hundreds of steps,
# and some tens of milliseconds of work.
MOST_READS = 1 << 16

# The class of what comes from peers while none of them was measured.
UNKNOWN = -2

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the simulator expects of a job.

    Attributes:
        imbalance: of the ranks of this node. epoch: of the steps that were simulated. steps: how many.
    """

    imbalance: Imbalance
    epoch: int
    steps: int


@dataclass(frozen=True, slots=True)
class _Question:
    """What is to be computed, as it was when somebody asked.

    Attributes:
        ranks: those of which batches were seen, by their numbers in the job. epoch, first: see `coming`.
        batch_files: of a rank's batch.
    """

    streams: JobStreams
    ranks: tuple[int, ...]
    batch_files: int
    epoch: int
    first: int
    node: PerformanceModel
    loaders: Loaders


class ExpectedLoads:
    """See the module. All on the loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # What is expected of each job, and when that was computed last, whether or not it could be told. The keys are
        # weak, so that what was known of a job goes with it when the engine drops it.
        self._expected: WeakKeyDictionary[JobRun, Expected] = WeakKeyDictionary()
        self._computed_s: WeakKeyDictionary[JobRun, float] = WeakKeyDictionary()
        self._under_way: set[str] = set()  # names of jobs

    def statistics(self) -> Mapping[str, Expected]:
        """By the job's name, as far as it is known."""
        jobs = self._engine.jobs.items()
        return {name: self._expected[job] for name, job in jobs if job in self._expected}

    async def refresh(self) -> None:
        """Have what is old, or not there yet, computed anew; wait a moment for that."""
        due = [job for job in self._engine.jobs.values() if len(job.spec.ranks) > 1 and self._is_due(job)]
        if not due:
            return
        figures = self._engine.statistics()
        begun = []
        for job in due:
            question = self._question(job, figures)
            if question is not None:
                begun.append(self._begin(job, question))
        with trio.move_on_after(PATIENCE_S):
            for over in begun:
                await over.wait()

    def _is_due(self, job: JobRun) -> bool:
        if job.name in self._under_way:  # who has begun it waits for it; no one else needs to
            return False
        computed_s = self._computed_s.get(job)
        if computed_s is None:
            return True
        # What was expected of the last steps of a job that has ended stays.
        return not job.finished and self._engine.clock() - computed_s >= FRESH_S

    def _question(self, job: JobRun, figures: EngineStatistics) -> _Question | None:
        """What is to be computed of a job; None where too little of it is known."""
        load, node = figures.loads.get(job.name), self._engine.performance_model()
        if load is None or node is None or load.steps < FEWEST_BATCHES:
            return None
        loaders = Loaders.of(load.ranks)
        about = next(one for one in figures.jobs if one.name == job.name)
        if loaders is None:
            return None
        epoch, first = coming(about)
        return _Question(job.streams, _numbers(about, load), about.batch_files, epoch, first, node, loaders)

    def _begin(self, job: JobRun, question: _Question) -> trio.Event:
        """Have it computed; the event comes when that is over."""
        over = trio.Event()
        self._under_way.add(job.name)

        def then(expected: Expected | None, error: BaseException | None) -> None:
            self._under_way.discard(job.name)
            self._computed_s[job] = self._engine.clock()
            if expected is not None:
                self._expected[job] = expected
            elif error is None:
                self._expected.pop(job, None)
            if error is not None:  # an order that is not wanted any more, or a file of one that is gone
                log.debug("job %s: what to expect could not be computed: %r", job.name, error)
            over.set()

        runner.start(self._engine.runner, "plan", self._compute, question, then=then)
        return over

    def _compute(self, question: _Question) -> Expected | None:
        """In a worker; None where it cannot be told."""
        streams, epoch = question.streams, question.epoch
        by_rank = [streams.epoch_ids(epoch, rank) for rank in question.ranks]
        ids = steps_of(by_rank, question.batch_files, question.first)
        if not len(ids):
            return None
        inside = ids >= 0
        places, sizes = np.zeros(ids.shape, dtype=np.int64), np.zeros(ids.shape)
        places[inside] = self._engine.nearest(ids[inside])
        sizes[inside] = np.asarray(self._engine.samples.sizes)[ids[inside]]
        storage = self._classes(question.node, int(places.max()))[places]
        if (storage == UNKNOWN).any():
            return None
        return Expected(expected_imbalance(question.node, sizes, storage, question.loaders), epoch, len(ids))

    def _classes(self, node: PerformanceModel, last: int) -> npt.NDArray[np.int8]:
        """By the number of a place, up to `last`: which class of the model it is.

        What lies in a place that is passed over comes from the source. Peers that were not measured yet are UNKNOWN.
        """
        classes = {storage.name: index for index, storage in enumerate(node.classes)}
        own = [PFS, *(classes.get(place.name, PFS) for place in self._engine.places.storing)]
        peers = [classes.get(PEERS, UNKNOWN)] * (last + 1 - len(own))
        return np.array(own + peers, dtype=np.int8)


def coming(job: JobStatistics) -> tuple[int, int]:
    """An epoch, and the first of its steps that are to come; the last epoch's first step where hardly any are left."""
    fastest = max(job.ranks, key=lambda rank: (rank.epoch, rank.position))
    step, steps = fastest.position // job.batch_files, -(-fastest.length // job.batch_files)
    if steps - step >= FEWEST_BATCHES:
        return fastest.epoch, step
    return min(fastest.epoch + 1, job.epochs - 1), 0


def steps_of(by_rank: Sequence[Ids], batch: int, first: int, most_reads: int = MOST_READS) -> Ids:
    """Samples of an epoch's steps from `first` on, shape (steps, ranks, batch), below 0 for none.

    Args:
        by_rank: each rank's stream, all of one length.
        most_reads: where there are more, steps are taken that lie evenly among them.
    """
    length = len(by_rank[0])
    steps = -(-length // batch)
    count = min(steps - first, max(1, most_reads // (len(by_rank) * batch)))
    chosen = np.linspace(first, steps, max(0, count), endpoint=False).astype(np.int64)
    positions = chosen[:, None] * batch + np.arange(batch)
    inside = positions < length
    positions[~inside] = 0
    return np.stack([np.where(inside, stream[positions], -1) for stream in by_rank], axis=1)


def _numbers(job: JobStatistics, load: JobLoad) -> tuple[int, ...]:
    """The numbers of the ranks of which batches were seen."""
    return tuple(job.ranks[of.rank].rank for of in load.ranks)
