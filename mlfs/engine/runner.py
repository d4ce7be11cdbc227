"""Where blocking work runs: threads in named pools, one name a storage class (NoPFS, Section 4: its p_j threads).

In: a pool's name and a blocking call. Out: its result, on the loop. Engine tests pass a runner without threads.

Own threads instead of trio's: a sample fetched from memory takes 60 us, and a hop through trio.to_thread several times
that (a limiter, a context, a thread name each time). docs/decisions/threads.md has the numbers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Runner(Protocol):
    """Runs blocking calls beside the loop."""

    async def run(self, pool: str, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run `call` in a thread of `pool` and return its result. Cancelled, it leaves the thread to finish alone."""

    def on_loop(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """From a worker: run `call` on the loop, wait for it and return its result."""

    def post(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """From a worker: run `call` on the loop soon, without waiting."""


class _Job:
    """A call, who waits for it (None: nobody any more), and what became of it."""

    __slots__ = ("args", "call", "error", "result", "task")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], task: trio.lowlevel.Task) -> None:
        self.call = call
        self.args = args
        self.task: trio.lowlevel.Task | None = task
        self.result: Any = None
        self.error: BaseException | None = None


class _Pool:
    """Up to `threads` threads, started when they are first needed; they end with the process."""

    def __init__(self, name: str, threads: int, finished: Callable[[_Job], None]) -> None:
        self.name = name
        self.threads = threads
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self._finished = finished
        self._started = 0
        self._unfinished = 0

    def submit(self, job: _Job) -> None:
        """On the loop."""
        self._unfinished += 1
        if self._started < min(self.threads, self._unfinished):
            self._started += 1
            threading.Thread(target=self._work, name=f"{self.name}-{self._started}", daemon=True).start()
        self.jobs.put(job)

    def settle(self) -> None:
        """On the loop: a job is finished."""
        self._unfinished -= 1

    def _work(self) -> None:
        while True:
            job = self.jobs.get()
            try:
                if job.task is not None:  # else given up before it began
                    job.result = job.call(*job.args)
            except BaseException as error:  # handed to the task that waits
                job.error = error
            self._finished(job)
            del job


class ThreadRunner:
    """The daemon's runner. Made on the loop.

    Args:
        pools: threads by pool name; a pool that is not named has `default_threads`.
        notify: called in the worker when a call is done, for a loop that lingers outside of trio's own wait.
    """

    def __init__(
        self, pools: Mapping[str, int], default_threads: int = 2, notify: Callable[[], None] = lambda: None
    ) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._threads = dict(pools)
        self._pools: dict[str, _Pool] = {}
        self._default_threads = default_threads
        self._notify = notify
        self._finished: deque[tuple[_Pool, _Job]] = deque()

    async def run(self, pool: str, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """See Runner."""
        await trio.lowlevel.checkpoint_if_cancelled()
        job = _Job(call, args, trio.lowlevel.current_task())
        (self._pools.get(pool) or self._make(pool)).submit(job)

        def abandon(_: object) -> trio.lowlevel.Abort:
            job.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abandon)
        if job.error is not None:
            raise job.error
        return cast(T, job.result)

    def on_loop(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """See Runner."""
        self._notify()
        return trio.from_thread.run_sync(call, *args, trio_token=self._token)

    def post(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """See Runner."""
        self._token.run_sync_soon(call, *args)
        self._notify()

    def _make(self, name: str) -> _Pool:
        def finished(job: _Job) -> None:
            self._finished.append((pool, job))
            try:
                self._token.run_sync_soon(self._wake_waiters, idempotent=True)
            except trio.RunFinishedError:
                return  # the mount is gone
            self._notify()

        pool = self._pools[name] = _Pool(name, self._threads.get(name, self._default_threads), finished)
        return pool

    def _wake_waiters(self) -> None:
        while self._finished:
            pool, job = self._finished.popleft()
            pool.settle()
            if job.task is not None:
                trio.lowlevel.reschedule(job.task)
