"""What each rank's loader does with its time, learned from its reads alone: it waits, it preprocesses, it is idle.

Pure; times are passed in. In: reads that were matched to a position, and how long each had to wait. Out: frozen figures
of each rank and of the job: `mlfs.plan.loader_load` has the arithmetic. Used by `mlfs.plan.scheduler.rank_waits`.

What reads can tell. A loader's process (a worker, or the training process where there is none) reads the files of a
batch one after the other. So the time of a process has three parts that can be told apart:

- *waiting*: from a read's beginning until its bytes are there. mlfs itself knows that.
- *preprocessing*: between two reads of the same batch the process copies the first one's bytes and preprocesses them
  (decodes, augments), and nothing else. A batch takes as many such gaps as it has files.
- *after*: from the last file of a batch on, less that file's preprocessing, until the process begins its next batch. It
  puts the batch together and hands it over; then it waits until the training loop takes a batch, unless it has been
  given another one to load already. When an epoch begins each worker is given several at once (torch's prefetch_factor,
  2 by default), so behind its first one it surely does not wait; nor does the first worker behind its second one, as
  the training loop takes the epoch's first batch at once. The mean of these times is taken for the first part, the rest
  is *idle*. Where workers are given one batch at a time, the epoch's first batch alone tells it.

Where the training process reads by itself, what it does after a batch is a training step, and waiting for other ranks.

Nothing tells how long a training step computes while loaders are never idle: it is no longer than the steps take then.
Where they are idle, steps take as long as the training loop does, on average. A process whose threads read several
batches at a time has no such gaps: of its rank nothing is told.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mlfs.follow.job import JobRun
from mlfs.plan.loader_load import KEPT_BATCHES, KEPT_OF_A_WORKER, MOST_KEPT_BATCHES, JobLoad, job_load
from mlfs.plan.rank_load import BatchTimes

# Processes whose batch is under way, of a job. A loader without persistent workers has new ones in each epoch: those
# that have not read for longest are forgotten.
MOST_PROCESSES = 4096
# Jobs of which it is remembered how fast how many workers were: the names of a user's scripts are few.
MOST_NAMES = 64
# A batch of which a smaller share was seen is not told of: a process with threads jumps between batches.
WHOLE = 0.5


class Reader(NamedTuple):
    """Who reads: the job's name, the index of the rank, the process."""

    job: str
    rank: int
    process: int


@dataclass(slots=True)
class _Open:
    """The batch that a process reads: positions `low` to `high`, of which `at` was read last, at `last_s`.

    Attributes:
        base: where its epoch begins. first: the position that was read first. began_s: when that read began.
        waited_s: its reads and READs waited so long. gaps_s: between its reads, without the waiting.
        waited_open_s: how long READs of the file that was opened last have waited: in the gap behind it.
        leads: whether the process surely has another batch at hand when it has read this one, provided that each worker
            is given several batches when an epoch begins.
    """

    rank: int
    base: int
    low: int
    high: int
    first: int
    at: int
    began_s: float
    last_s: float
    size_bytes: int
    waited_s: float
    leads: bool
    gaps_s: float = 0.0
    waited_open_s: float = 0.0
    reads: int = 1
    in_turn: bool = True


@dataclass(slots=True)
class _Job:
    """What is noted of one job.

    Attributes:
        batch_files: samples of a rank's batch, as far as reads had told when this was begun.
        open: by process. batches: by index of the rank, the last ones.
        begun: by rank, where the epoch begins of which the first batch was seen last.
        leading: by rank, the last batches that lead (see `_Open`) in epochs of which the beginning was seen.
        last_s: when the job has read last.
        processes: by rank, an epoch's base and the processes that have read a batch of it: the epoch read last.
    """

    job: JobRun
    batch_files: int
    open: OrderedDict[int, _Open] = field(default_factory=OrderedDict)
    batches: dict[int, deque[BatchTimes]] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    leading: dict[int, deque[BatchTimes]] = field(default_factory=dict)
    processes: dict[int, tuple[int, set[int]]] = field(default_factory=dict)
    last_s: float = -math.inf

    def note(self, rank: int, times: BatchTimes) -> None:
        """A batch was read. As many are kept as show each of the rank's processes."""
        base, processes = self.processes.get(rank, (times.epoch, set[int]()))
        if base != times.epoch:
            processes = set()
        processes.add(times.process)
        self.processes[rank] = times.epoch, processes
        most = max(KEPT_BATCHES, min(MOST_KEPT_BATCHES, KEPT_OF_A_WORKER * len(processes)))
        kept = self.batches.setdefault(rank, deque(maxlen=most))
        if (kept.maxlen or 0) < most:
            kept = self.batches[rank] = deque(kept, maxlen=most)
        kept.append(times)

    def load(self, coming_bytes: Mapping[int, int], pace: Mapping[int, float], now_s: float = -math.inf) -> JobLoad:
        """The figures. Args: as of `mlfs.plan.loader_load.job_load`, and what time it is."""
        loader = self.job.loader
        hands_ahead = loader.hands_ahead
        handing_s = {
            rank: [batch.after_s for batch in leading if hands_ahead or batch.at == batch.epoch]
            for rank, leading in self.leading.items()
        }
        return job_load(self.batches, handing_s, coming_bytes, pace, loader.reader_trains, now_s - self.last_s)


class RankLoads:
    """See the module."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        # By job, and by number of processes on the node: seconds a byte of each of them. A job that is begun anew with
        # another number of workers adds to it, so it outlives the job.
        self._pace: OrderedDict[str, dict[int, float]] = OrderedDict()

    def begin(self, job: JobRun) -> None:
        """The job has read nothing yet. If there was one of its name, how fast its workers were stays known."""
        before = self._jobs.pop(job.name, None)
        if before is not None and before.batches:
            pace = self._pace.setdefault(job.name, {})
            pace.update(before.load(dict.fromkeys(before.batches, 0), {}).pace)
            self._pace.move_to_end(job.name)
            if len(self._pace) > MOST_NAMES:
                self._pace.popitem(last=False)
        self._jobs[job.name] = _Job(job, job.loader.batch_files)

    def forget(self, name: str) -> None:
        """The job has ended. What is registered by its name later may be another script."""
        self._jobs.pop(name, None)
        self._pace.pop(name, None)

    def read(
        self, reader: Reader, position: int, base: int, at_s: float, waited_s: float, size_bytes: int
    ) -> None:  # fmt: skip
        """A process has read for a rank.

        Args:
            position: linear, as of `Match`. base: the linear position at which its epoch begins.
            at_s: when the sample was open. waited_s: how much of the time before that was waiting.
        """
        name, rank, process = reader
        job = self._jobs.get(name)
        if job is None:
            return
        job.last_s = at_s
        batch = job.open.get(process)
        if batch is not None and batch.low <= position < batch.high and batch.rank == rank:
            batch.in_turn = batch.in_turn and position > batch.at
            batch.gaps_s += max(0.0, at_s - batch.last_s - waited_s - batch.waited_open_s)
            batch.waited_s += waited_s
            batch.waited_open_s = 0.0
            batch.at, batch.last_s = position, at_s
            batch.size_bytes += size_bytes
            batch.reads += 1
            return
        if (batch_files := job.job.loader.batch_files) != job.batch_files:
            # Reads have told that batches are others than was thought: what was noted is of no use.
            self._jobs[name], batch = _Job(job.job, batch_files), None
            job = self._jobs[name]
            job.last_s = at_s
        began_s = at_s - waited_s
        went_on = batch is not None and batch.base == base and batch.rank == rank
        leads = not went_on
        if batch is not None and went_on:
            leads = batch.low == base
            self._over(job, process, batch, began_s)
        low = base + (position - base) // job.batch_files * job.batch_files
        if low == base:
            job.begun[rank] = base
        job.open[process] = _Open(
            rank, base, low, low + job.batch_files, position, position, began_s, at_s, size_bytes, waited_s, leads
        )
        job.open.move_to_end(process)
        if len(job.open) > MOST_PROCESSES:
            job.open.popitem(last=False)

    def waited(self, name: str, process: int, seconds: float) -> None:
        """A process has waited for bytes of a file that it had opened."""
        job = self._jobs.get(name)
        batch = job.open.get(process) if job is not None else None
        if batch is not None:
            batch.waited_s += seconds
            batch.waited_open_s += seconds

    def _over(self, job: _Job, process: int, batch: _Open, next_s: float) -> None:
        """A process has begun another batch of the same epoch at `next_s`."""
        gaps = batch.at - batch.first
        if not batch.in_turn or gaps < 1 or batch.reads < WHOLE * job.batch_files:
            return
        a_file_s = batch.gaps_s / gaps
        preprocess_s = a_file_s * (gaps + 1)
        after_s = next_s - batch.last_s - batch.waited_open_s - a_file_s  # the last file's READs wait behind its open
        times = BatchTimes(batch.low, batch.base, process, batch.size_bytes, batch.waited_s, preprocess_s, after_s)
        job.note(batch.rank, times)
        if batch.leads and job.begun.get(batch.rank) == batch.base:
            job.leading.setdefault(batch.rank, deque(maxlen=KEPT_BATCHES)).append(times)

    def statistics(
        self, coming_bytes: Callable[[str, int], int], now_s: float = -math.inf
    ) -> Mapping[str, JobLoad]:  # fmt: skip
        """Figures by the name of the job; a job of which no batch was read to its end is missing.

        Args:
            coming_bytes: given a job and the index of a rank, the bytes of its next batch, 0 where they are not known.
            now_s: what time it is; without it jobs are taken to go on reading.
        """
        return {
            name: job.load({rank: coming_bytes(name, rank) for rank in job.batches}, self._pace.get(name, {}), now_s)
            for name, job in self._jobs.items()
            if job.batches
        }
