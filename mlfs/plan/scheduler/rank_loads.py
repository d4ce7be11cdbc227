"""Learns from a rank's reads alone how its loader spends its time: it waits, it preprocesses, it is idle.

Pure; times are passed in. In: a job's reads that were matched to a position, and how long each had to wait. Out: frozen
figures of each rank and of the job: `mlfs.plan.loader_load` has the arithmetic. Each job's record has its own.

Reads tell this much. A loader's process (a worker, or the training process where there is none) reads the files of a
batch one after the other. So the time of a process has three parts that can be told apart:

- *waiting*: from a read's beginning until its bytes are there. mlfs itself knows that.
- *preprocessing*: between two reads of the same batch the process copies the first one's bytes and preprocesses them
  (decodes, augments), and nothing else. A batch takes as many such gaps as it has files.
- *after*: from the last file of a batch on, less that file's preprocessing, until the process begins its next batch. It
  puts the batch together and hands it over; then it waits until the training loop takes a batch, unless it has been
  given another one to load already. When an epoch begins each worker is given several at once (torch's prefetch_factor,
  2 by default), so behind its first one it surely does not wait; nor does the first worker behind its second one, as
  the training loop takes the epoch's first batch at once. The mean of these times is taken for the first part, the rest
  is *idle*. With workers that are given one batch at a time, the epoch's first batch alone tells it.

A training process that reads by itself does a training step after a batch, and waits for other ranks.

Nothing tells how long a training step computes while loaders are never idle: it is no longer than the steps take then.
While they are idle, steps take as long as the training loop does, on average. A process whose threads read several
batches at a time has no such gaps: of its rank nothing is told.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlfs.follow.job import JobRun
from mlfs.plan.loader_load import KEPT_BATCHES, KEPT_OF_A_WORKER, MOST_KEPT_BATCHES, JobLoad, job_load
from mlfs.plan.rank_load import BatchTimes

# Processes whose batch is under way, of a job. A loader without persistent workers has new ones in each epoch: those
# that have not read for longest are forgotten.
MOST_PROCESSES = 4096
# A batch of which a smaller share was seen is not told of: a process with threads jumps between batches.
WHOLE = 0.5


@dataclass(slots=True)
class _Batch:
    """The batch that a process reads: positions `low` to `high`, of which `at` was read last, at `last_s`.

    Attributes:
        base: where its epoch begins. first: the position that was read first.
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
    last_s: float
    size_bytes: int
    waited_s: float
    leads: bool
    gaps_s: float = 0.0
    waited_open_s: float = 0.0
    reads: int = 1
    in_turn: bool = True

    def goes_on(
        self, positions: Sequence[int], times: Sequence[float], waits_s: Sequence[float], sizes: Sequence[int]
    ) -> None:
        """So much more of it was read."""
        self.in_turn = self.in_turn and positions[0] > self.at
        before_s, idle_s = self.last_s, self.waited_open_s
        if any(waits_s):
            for at_s, waited_s in zip(times, waits_s, strict=True):
                self.gaps_s += max(0.0, at_s - before_s - waited_s - idle_s)
                before_s, idle_s = at_s, 0.0
        else:
            self.gaps_s += max(0.0, times[0] - before_s - idle_s) + times[-1] - times[0]
        self.waited_s += sum(waits_s)
        self.waited_open_s = 0.0
        self.at, self.last_s = positions[-1], times[-1]
        self.size_bytes += sum(sizes)
        self.reads += len(positions)


class RankLoads:
    """The batches that the loaders of one job have read.

    Args:
        before: what was noted of the job of that name that this one comes in place of. How fast its workers were stays
            known: a job that is begun anew with another number of workers adds to that.
    """

    def __init__(self, run: JobRun, before: RankLoads | None = None) -> None:
        self._run = run
        self._pace: Mapping[int, float] = {} if before is None else before.pace()
        self._begin()

    def _begin(self) -> None:
        """Begin to note batches. Those that were noted under another size of a batch are of no use."""
        self._batch_files = self._run.loader.batch_files
        self._open: OrderedDict[int, _Batch] = OrderedDict()  # by process, the batch under way
        self._batches: dict[int, deque[BatchTimes]] = {}  # by index of the rank, the last ones
        self._begun: dict[int, int] = {}  # by rank, where the epoch begins of which the first batch was seen last
        # By rank, the last batches that lead (see `_Batch`) in epochs of which the beginning was seen.
        self._leading: dict[int, deque[BatchTimes]] = {}
        # By rank, an epoch's base and the processes that have read a batch of it: the epoch that was read last.
        self._processes: dict[int, tuple[int, set[int]]] = {}
        self._last_s = -math.inf  # when the job has read last

    @property
    def ranks(self) -> Iterable[int]:
        """The ranks of which a batch was read to its end."""
        return self._batches.keys()

    def pace(self) -> Mapping[int, float]:
        """By number of processes on the node, the seconds that each of them works for a byte, as far as was seen."""
        return self.load(dict.fromkeys(self._batches, 0)).pace if self._batches else self._pace

    def load(self, coming_bytes: Mapping[int, int], now_s: float = -math.inf) -> JobLoad:
        """The figures, which say something where a batch was read.

        Args:
            coming_bytes: by rank, those of its next batch, 0 where they are not known.
            now_s: what time it is; without it the job is taken to go on reading.
        """
        loader = self._run.loader
        hands_ahead = loader.hands_ahead
        handing_s = {
            rank: [batch.after_s for batch in leading if hands_ahead or batch.at == batch.epoch]
            for rank, leading in self._leading.items()
        }
        quiet_s = now_s - self._last_s
        return job_load(self._batches, handing_s, coming_bytes, self._pace, loader.reader_trains, quiet_s)

    def read(
        self,
        rank: int,
        process: int,
        base: int,
        positions: Sequence[int],
        times: Sequence[float],
        waits_s: Sequence[float],
        sizes: Sequence[int],
    ) -> None:
        """A process has read for a rank, in the order of the positions where these are several.

        Args:
            base: the linear position at which the epoch begins in which the positions lie.
            times: when each sample was open. waits_s: how much of the time before that was waiting.
            sizes: bytes of each sample.
        """
        self._last_s, at = times[-1], 0
        if self._batch_files == 1 == self._run.loader.batch_files:
            return  # no time passes within a batch: nothing can be told of it
        while at < len(positions):
            batch = self._open.get(process)
            if batch is None or batch.rank != rank or not batch.low <= positions[at] < batch.high:
                self._begin_batch(rank, process, positions[at], base, times[at], waits_s[at], sizes[at])
                at += 1
                continue
            stop = bisect_left(positions, batch.high, at)
            batch.goes_on(positions[at:stop], times[at:stop], waits_s[at:stop], sizes[at:stop])
            at = stop

    def _begin_batch(
        self, rank: int, process: int, position: int, base: int, at_s: float, waited_s: float, size_bytes: int
    ) -> None:  # fmt: skip
        """A process has read the first sample of what is another batch than the one before."""
        batch = self._open.get(process)
        if self._run.loader.batch_files != self._batch_files:  # reads have told that batches are others
            last_s = self._last_s
            self._begin()
            self._last_s, batch = last_s, None
        went_on = batch is not None and batch.base == base and batch.rank == rank
        leads = not went_on
        if batch is not None and went_on:
            leads = batch.low == base
            self._over(process, batch, at_s - waited_s)
        low = base + (position - base) // self._batch_files * self._batch_files
        if low == base:
            self._begun[rank] = base
        high = low + self._batch_files
        self._open[process] = _Batch(rank, base, low, high, position, position, at_s, size_bytes, waited_s, leads)
        self._open.move_to_end(process)
        if len(self._open) > MOST_PROCESSES:
            self._open.popitem(last=False)

    def waited(self, process: int, seconds: float) -> None:
        """A process has waited for bytes of a file that it had opened."""
        batch = self._open.get(process)
        if batch is not None:
            batch.waited_s += seconds
            batch.waited_open_s += seconds

    def _over(self, process: int, batch: _Batch, next_s: float) -> None:
        """A process has begun another batch of the same epoch at `next_s`."""
        gaps = batch.at - batch.first
        if not batch.in_turn or gaps < 1 or batch.reads < WHOLE * self._batch_files:
            return
        a_file_s = batch.gaps_s / gaps
        preprocess_s = a_file_s * (gaps + 1)
        after_s = next_s - batch.last_s - batch.waited_open_s - a_file_s  # the last file's READs wait behind its open
        times = BatchTimes(batch.low, batch.base, process, batch.size_bytes, batch.waited_s, preprocess_s, after_s)
        self._note(batch.rank, times)
        if batch.leads and self._begun.get(batch.rank) == batch.base:
            self._leading.setdefault(batch.rank, deque(maxlen=KEPT_BATCHES)).append(times)

    def _note(self, rank: int, times: BatchTimes) -> None:
        """A batch was read. As many are kept as show each of the rank's processes."""
        base, processes = self._processes.get(rank, (times.epoch, set[int]()))
        if base != times.epoch:
            processes = set()
        processes.add(times.process)
        self._processes[rank] = times.epoch, processes
        most = max(KEPT_BATCHES, min(MOST_KEPT_BATCHES, KEPT_OF_A_WORKER * len(processes)))
        kept = self._batches.setdefault(rank, deque(maxlen=most))
        if (kept.maxlen or 0) < most:
            kept = self._batches[rank] = deque(kept, maxlen=most)
        kept.append(times)
