"""Where blocking work runs: threads under named limiters, one name a storage class (NoPFS, Section 4: p_j threads).

In: a pool's name and a blocking call. Out: its result, on the loop. Engine tests pass a runner without threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

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
        self._limiters = {name: trio.CapacityLimiter(threads) for name, threads in pools.items()}
        self._default_threads = default_threads
        self._notify = notify

    async def run(self, pool: str, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """See Runner."""
        limiter = self._limiters.setdefault(pool, trio.CapacityLimiter(self._default_threads))

        def call_and_notify() -> T:
            try:
                return call(*args)
            finally:
                self._notify()

        return await trio.to_thread.run_sync(call_and_notify, limiter=limiter, abandon_on_cancel=True)

    def on_loop(self, call: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """See Runner."""
        self._notify()
        return trio.from_thread.run_sync(call, *args, trio_token=self._token)

    def post(self, call: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """See Runner."""
        self._token.run_sync_soon(call, *args)
        self._notify()
