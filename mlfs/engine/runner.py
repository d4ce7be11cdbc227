"""Runs blocking work: threads in named pools, one name a storage class (NoPFS, Section 4: its p_j threads).

In: a pool's name and a blocking call. Out: its result, on the loop. Engine tests pass a runner without threads.

Own threads instead of trio's: a sample fetched from memory takes 60 us, and a hop through trio.to_thread several times
that (a limiter, a context, a thread name each time). docs/decisions/threads.md has the numbers.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast

import trio

from mlfs.engine.shortages import Shortages
from mlfs.limits import Resource

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Then = Callable[[T | None, BaseException | None], None]
"""Told of a call's end: what it returned, or what it raised."""

# The pool whose threads serve all pools that have no thread of their own.
SPARE = "spare"
# After a thread could not be started, none is tried for so long: to try costs as much as a sample.
TRY_AGAIN_S = 1.0
# A thread may have so many descriptors open at a time: its eventfd, a file of the source, a copy on a disk.
DESCRIPTORS_A_THREAD = 3


def start(runner: Runner, pool: str, call: Callable[..., Any], *args: object, then: Then[Any]) -> Call | None:
    """Start a call; where no thread is to be had it ends at once with that error."""
    try:
        return runner.start(pool, call, *args, then=then)
    except Exception as error:
        then(None, error)
        return None


class LoopWait(Protocol):
    """A wait of the loop outside of trio. It is mountd.poll_wait's, and the engine does not know the daemon."""

    @property
    def calls(self) -> Calls:
        """The calls that it waits for: those of the runner that is made with it."""

    @property
    def lingers(self) -> bool:
        """Whether the loop sleeps where `interrupt` wakes it. Workers read it."""

    @property
    def is_awake(self) -> bool:
        """Whether the loop comes to `lingers` soon, and then deals with what is owed. Workers read it."""

    def idle_s(self) -> float:
        """How long the loop has nothing to do, as far as it knows; at most some milliseconds."""

    def in_place(self, limit_s: float) -> None:
        """Sleep where a task waits, until a worker interrupts or a request comes; not at all where a call is done."""

    def interrupt(self) -> None:
        """From a worker: end the wait."""


class Call:
    """A call, who is told of its end (None: nobody any more), and what became of it."""

    __slots__ = ("args", "call", "done", "error", "in_place", "result", "then")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], then: Callable[[Call], None]) -> None:
        self.call = call
        self.args = args
        self.then: Callable[[Call], None] | None = then
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False  # as far as the loop knows
        self.in_place = False  # the task is not suspended: the loop itself waits where it is

    def give_up(self) -> None:
        """On the loop: forget it. It is not made if no thread has begun it, and `then` is told nothing."""
        self.then = None

    def outcome(self) -> Any:
        """The call's result, or its error raised."""
        if self.error is not None:
            raise self.error
        return self.result


class Calls:
    """The calls that workers have not finished, and those whose end the loop has not dealt with.

    The runner changes it; the loop's wait asks it, twice a request. All on the loop, but for `finished`.

    Attributes:
        busy: how many calls workers are at that the loop waits for.
        resuming: how many tasks have not gone on yet though their calls are done.
        owing: what `collect` has to deal with.
    """

    def __init__(self) -> None:
        self.owing: deque[Call] = deque()
        self.busy = 0
        self.resuming = 0

    def begun(self) -> None:
        """A worker was given a call."""
        self.busy += 1

    def finished(self, job: Call) -> None:
        """From a worker: a call is over."""
        self.owing.append(job)

    def reschedules(self) -> None:
        """A task was woken whose call is done."""
        self.resuming += 1

    def resumed(self) -> None:
        """Let a task go on that waits for a call."""
        self.resuming -= 1

    def collect(self) -> None:
        """Those whose calls are done go on at the loop's next pass; what was started is told at once."""
        while self.owing:
            job = self.owing.popleft()
            self.busy -= 1
            job.done = True
            if job.then is not None and not job.in_place:
                job.then(job)


class _Worker:
    """A thread of a pool: the job it was given while it slept, and what wakes it.

    An eventfd, since writing to it lets go of the interpreter. A thread that releases a lock of Python's keeps it, so
    the thread that wakes up on the same core waits for it at once: the two change places several times, 60 us, before
    it begins.
    """

    __slots__ = ("job", "wake")

    def __init__(self, first: Call | None) -> None:
        self.job: Call | None = first
        self.wake = os.eventfd(0, os.EFD_CLOEXEC)

    def take(self) -> Call:
        """The job, which is not held here any longer."""
        job, self.job = self.job, None
        return cast(Call, job)

    def sleep(self) -> Call:
        """Sleep until there is a job."""
        os.read(self.wake, 8)
        return self.take()


class _Starter:
    """Starts the threads of all pools, as far as the process may have more.

    Attributes:
        most: threads at most, which leaves each of them descriptors enough; None: as many as the pools want.
    """

    def __init__(self, most: int | None, shortages: Shortages) -> None:
        self.most = most
        self._shortages = shortages
        self._started = 0
        self._not_before_s = 0.0

    def start(self, work: Callable[[_Worker, bool], None], first: Call | None, name: str) -> _Worker | None:
        """Start a thread that begins with a job, or asleep without one; None where no further one is to be had."""
        if first is not None and time.monotonic() < self._not_before_s:
            return None
        worker = None
        try:
            if self.most is not None and self._started >= self.most:
                raise OSError(errno.EMFILE, "descriptors are left for no further thread")
            worker = _Worker(first)
            threading.Thread(target=work, args=(worker, first is None), name=name, daemon=True).start()
        except (OSError, RuntimeError, MemoryError) as error:
            if worker is not None:
                os.close(worker.wake)
            if not self._shortages.noticed(error):
                self._shortages.met(Resource.THREADS)
            self._not_before_s = time.monotonic() + TRY_AGAIN_S
            return None
        self._started += 1
        return worker


class _Pool:
    """Up to `threads` threads, started when they are first needed; they end with the process.

    A call waits for one of its pool's threads where no further one can be started. If the pool has none at all, a
    thread of `spare` makes the call.
    """

    def __init__(
        self, name: str, threads: int, finished: Callable[[Call], None], starter: _Starter, spare: _Pool | None
    ) -> None:
        self.name = name
        self.threads = threads
        self._finished = finished
        self._starter = starter
        self._spare = spare
        self._started = 0
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()  # no thread was idle
        self._idle: list[_Worker] = []

    def take(self, threads: int) -> bool:
        """Start so many threads now; whether all could be started."""
        while self._started < threads:
            if not self._start(None):
                return False
        return True

    def submit(self, job: Call) -> None:
        """On the loop. The thread that was busy last is the first: what it needs is still in the processor's caches."""
        worker = self._idle_or_wait(job, wait=self._started >= self.threads)
        if worker is None:
            if self._started >= self.threads or self._start(job):
                return
            if not self._started:
                if self._spare is None:
                    raise RuntimeError(f"no thread of {self.name} could be started")
                self._spare.submit(job)
                return
            worker = self._idle_or_wait(job, wait=True)
            if worker is None:
                return
        worker.job = job
        os.eventfd_write(worker.wake, 1)

    def _idle_or_wait(self, job: Call, wait: bool) -> _Worker | None:
        """An idle thread; where there is none the job waits for one, if it shall."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if wait:
                self._waiting.append(job)
            return None

    def _start(self, first: Call | None) -> bool:
        worker = self._starter.start(self._work, first, f"{self.name}-{self._started + 1}")
        if worker is None:
            return False
        self._started += 1
        if first is None:
            with self._lock:
                self._idle.append(worker)
        return True

    def _work(self, worker: _Worker, asleep: bool) -> None:
        job = worker.sleep() if asleep else worker.take()
        while True:
            try:
                if job.then is not None:  # else given up before it began
                    job.result = job.call(*job.args)
            except BaseException as error:  # handed to the task that waits
                job.error = error
            with self._lock:
                following = self._waiting.popleft() if self._waiting else None
                if following is None:
                    self._idle.append(worker)
            self._finished(job)
            del job  # what a call returned may hold memory, or a file
            if following is None:
                following = worker.sleep()
            job = following
            del following


class Runner:
    """Runs blocking calls beside the loop. It is made on the loop.

    Args:
        pools: threads by pool name; a pool that is not named has `default_threads`.
        wait: how the loop waits outside of trio, if it does.
        shortages: hears of threads that could not be started.
        most_threads: in all; None: as many as the pools have.
    """

    def __init__(
        self,
        pools: Mapping[str, int],
        default_threads: int = 2,
        wait: LoopWait | None = None,
        shortages: Shortages | None = None,
        most_threads: int | None = None,
    ) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._threads = dict(pools)
        self._pools: dict[str, _Pool] = {}
        self._default_threads = default_threads
        self._wait = wait
        self._calls = Calls() if wait is None else wait.calls
        self._own = threading.local()
        self._starter = _Starter(most_threads, shortages or Shortages())

    def take(self, threads: Mapping[str, int]) -> bool:
        """Start threads now, by pool: those without which nothing can be served; whether all could be started.

        With one of the pool SPARE no call fails for want of a thread.
        """
        return all((self._pools.get(pool) or self._make(pool)).take(number) for pool, number in threads.items())

    async def run(self, pool: str, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run `call` in a thread of `pool` and return its result. Cancelled, it leaves the thread to finish alone."""
        await trio.lowlevel.checkpoint_if_cancelled()
        job = self._submit_task(pool, call, args)
        await self._resumed(job)
        return cast(T, job.outcome())

    async def run_within(self, limit_s: float, pool: str, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """The same for a reader who waits. Raises: trio.TooSlowError when it takes longer than that.

        While the loop has nothing else to do it sleeps right here: nothing is dearer than trio's passes, and its
        timers, when a reader waits.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        job = self._submit_task(pool, call, args)
        idle_s = min(limit_s, self._wait.idle_s()) if self._wait is not None else 0.0  # while the worker wakes up
        if idle_s <= 0 or not self._done_in_place(job, idle_s):
            with trio.fail_after(limit_s):
                await self._resumed(job)
        return cast(T, job.outcome())

    def start(self, pool: str, call: Callable[[Unpack[Ts]], T], *args: *Ts, then: Then[T]) -> Call:
        """On the loop: have a thread of `pool` run `call`. `then` hears of its end there, behind the next request."""

        def at_its_end(job: Call) -> None:
            try:
                then(job.result, job.error)
            except Exception:  # a bug: it costs what was started, never the mount
                log.exception("the end of a call could not be dealt with")

        return self._submit(pool, call, args, at_its_end)

    def unhurried(self) -> None:
        """From a worker, in a call that was started: its result may wait until the loop wakes up anyway."""
        self._own.unhurried = True

    def _submit_task(self, pool: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Call:
        """Submit for the current task, which goes on when the call is done."""
        task = trio.lowlevel.current_task()

        def resume(_: Call) -> None:
            self._calls.reschedules()
            trio.lowlevel.reschedule(task)

        return self._submit(pool, call, args, resume)

    def _submit(self, pool: str, call: Callable[..., Any], args: tuple[Any, ...], then: Callable[[Call], None]) -> Call:
        job = Call(call, args, then)
        (self._pools.get(pool) or self._make(pool)).submit(job)
        self._calls.begun()
        return job

    async def _resumed(self, job: Call) -> None:
        def abandon(_: object) -> trio.lowlevel.Abort:
            job.give_up()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abandon)
        self._calls.resumed()

    def _done_in_place(self, job: Call, limit_s: float) -> bool:
        """Whether the job got done while the loop slept here."""
        job.in_place = True
        cast(LoopWait, self._wait).in_place(limit_s)
        self._calls.collect()
        job.in_place = False
        return job.done

    def on_loop(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """From a worker: run `call` on the loop, wait for it and return its result."""
        if self._wait is not None:
            self._wait.interrupt()
        return trio.from_thread.run_sync(call, *args, trio_token=self._token)

    def post(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """From a worker: run `call` on the loop soon, without waiting."""

        def shielded() -> None:
            try:
                call(*args)
            except Exception:  # a bug: it costs what was posted, never the loop
                log.exception("what a worker has posted failed")

        self._token.run_sync_soon(shielded)
        if self._wait is not None:
            self._wait.interrupt()

    def _make(self, name: str) -> _Pool:
        def finished(job: Call) -> None:
            hurried = not getattr(self._own, "unhurried", False)
            self._own.unhurried = False
            self._calls.finished(job)
            # In this order: a loop that stops lingering, or falls asleep, asks `Calls.owing` after it has said so.
            if self._wait is not None and self._wait.lingers:
                if hurried:
                    self._wait.interrupt()
                return
            if self._wait is not None and self._wait.is_awake and not hurried:
                return
            with contextlib.suppress(trio.RunFinishedError):  # the mount is gone
                self._token.run_sync_soon(self._calls.collect, idempotent=True)

        threads = self._threads.get(name, self._default_threads)
        pool = self._pools[name] = _Pool(name, threads, finished, self._starter, self._pools.get(SPARE))
        return pool
