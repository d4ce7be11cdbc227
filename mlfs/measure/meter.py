"""Measures a rate: some threads do the same work at once, until the time or the bytes of a budget are used up.

In: work as a generator of byte counts, a budget. Out: bytes a second of all threads together. Called by
mlfs.measure.trials. A measurement ends within one piece of work of its budget, so pieces are small.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

# The most that one piece of work moves: large enough that counting it costs nothing, small enough to stop soon.
PIECE_BYTES = 1 << 20
# How long a stop waits for threads whose reads hang; they are daemons and end with the process.
_JOIN_S = 0.8
# How often the waiting thread wakes up, for a signal is handled between two waits only.
_WAIT_S = 0.1

# Given the number of a thread, yields the bytes of each piece of work when it is done. It ends when there is no more.
Work = Callable[[int], Iterator[int]]


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one measurement may take: seconds of wall time, and bytes of all threads together."""

    seconds: float
    bytes: int


class Rate(NamedTuple):
    """The result of a measurement.

    Attributes:
        bytes: how many all threads together moved.
        operations: in how many pieces.
        seconds: how long that took.
    """

    bytes: int
    operations: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """The rate of all threads together; 0 when nothing was done."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Meter:
    """Runs measurements, one after the other. A signal handler or another thread ends them with `stop`.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.stopped = threading.Event()

    def stop(self) -> None:
        """End the measurement that runs, and let no other begin."""
        self.stopped.set()

    def measure(self, work: Work, threads: int, budget: Budget) -> Rate:
        """Have `threads` threads work, each with its own number, and count.

        Raises:
            OSError: the first failure of a thread.
            KeyboardInterrupt: `stop` was called. It is raised here and not in a signal's handler, where it could come
                in the middle of anything.
        """
        run = _Run(self, work, threads, budget)
        workers = [threading.Thread(target=run.work_as, args=(index,), daemon=True) for index in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive() and not self.stopped.is_set():
                worker.join(_WAIT_S)
        if self.stopped.is_set():
            last = self.clock() + _JOIN_S  # a read that hangs does not hold up the end
            while any(worker.is_alive() for worker in workers) and self.clock() < last:
                workers[0].join(_WAIT_S) if workers[0].is_alive() else workers.pop(0)
            raise KeyboardInterrupt
        if run.error is not None:
            raise run.error
        return Rate(run.bytes, run.operations, run.ended - run.began)


class _Run:
    """One measurement. All threads begin at the same time, and stop when the budget is used up."""

    def __init__(self, meter: Meter, work: Work, threads: int, budget: Budget) -> None:
        self.meter = meter
        self.work = work
        self.budget = budget
        self.bytes = self.operations = 0
        self.began = self.ended = 0.0
        self.error: OSError | None = None
        self._lock = threading.Lock()
        self._ready = threading.Barrier(threads, action=self._begin)

    def _begin(self) -> None:
        self.began = self.ended = self.meter.clock()

    def work_as(self, index: int) -> None:
        """Do the work of thread number `index`."""
        pieces = self.work(index)
        self._ready.wait()
        try:
            for done in pieces:
                if not self._count(done):
                    break
        except OSError as error:
            with self._lock:
                self.error = self.error or error
        finally:
            close = getattr(pieces, "close", None)
            if close is not None:
                close()

    def _count(self, done: int) -> bool:
        now = self.meter.clock()
        with self._lock:
            self.bytes += done
            self.operations += 1
            self.ended = max(self.ended, now)
            spent = self.bytes >= self.budget.bytes or now - self.began >= self.budget.seconds
            return not (spent or self.error or self.meter.stopped.is_set())
