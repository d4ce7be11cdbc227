"""Measures a rate: so many threads do the same work until the time or the bytes are used up.

In: work as a generator of byte counts, a budget. Out: bytes a second of all threads together. Called by
mlfs.measure.trials. Bounded in time and bytes: a piece of work is at most PIECE_BYTES.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

PIECE_BYTES = 1 << 20
_JOIN_S = 5.0
_WAIT_S = 0.1

# Bytes done since the last time asked; ends when there is nothing more to do.
Work = Callable[[int], Iterator[int]]


@dataclass(frozen=True, slots=True)
class Budget:
    """What one measurement may take.

    Attributes:
        seconds: of wall time. bytes: of all threads together.
    """

    seconds: float
    bytes: int


class Rate(NamedTuple):
    """What came out.

    Attributes:
        bytes: done by all threads together. operations: how many pieces were counted. seconds: it took.
    """

    bytes: int
    operations: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """Of all threads together; 0 when nothing was done."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Meter:
    """Runs measurements one after the other; `stop` ends them from a signal handler or another thread.

    Args:
        clock: seconds, monotone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.stopped = threading.Event()

    def stop(self) -> None:
        """End what runs, and measure nothing more."""
        self.stopped.set()

    def measure(self, work: Work, threads: int, budget: Budget) -> Rate:
        """Have `threads` threads work, each with its own number, and count.

        Raises:
            OSError: the first failure of a thread.
            KeyboardInterrupt: told to stop. Not raised by a signal's handler: that could come anywhere.
        """
        run = _Run(self, work, threads, budget)
        workers = [threading.Thread(target=run.work_as, args=(index,), daemon=True) for index in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive() and not self.stopped.is_set():
                worker.join(_WAIT_S)  # short: a signal is handled between two waits
        if self.stopped.is_set():
            last = self.clock() + _JOIN_S  # a read that hangs does not hold up the end
            while any(worker.is_alive() for worker in workers) and self.clock() < last:
                workers[0].join(_WAIT_S) if workers[0].is_alive() else workers.pop(0)
            raise KeyboardInterrupt
        if run.error is not None:
            raise run.error
        return Rate(run.bytes, run.operations, run.ended - run.began)


class _Run:
    """One measurement: all threads begin together and stop when the budget is used up."""

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
        """One thread's part."""
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
