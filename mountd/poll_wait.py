"""Waiting for the next request of the kernel without falling asleep too soon.

In: the FUSE descriptor, from the tasks of mountd.requests, and interrupts from workers that finished something for the
loop. Out: the moment there is something to do.

Three stages, each dearer to leave than the one before:
1. After a request that was answered at once, while requests come fast and where it pays (`Worth`), the descriptor is
   polled without sleeping, for at most AWAKE_S (`arrived`): to be woken from sleep costs 50 us and more, several times
   what a staged open takes.
2. Then a moment in the kernel, LINGER_S, without entering trio's scheduler, which costs more than a request does.
   While workers are busy and trio has nothing to run, up to BUSY_LINGER_S, timers served in between: a worker that is
   done, and has somebody wait for what the loop makes of it, interrupts; a task that waited for it goes on after one
   pass of the scheduler, where trio's own way takes three. What nobody waits for comes behind the next request.
3. Then trio's own wait, where everything else gets its turn; after REQUESTS_A_TURN requests in any case.

A READ that waits for a worker sleeps like stage 2 in its own place (`in_place`), and goes on without any pass of the
scheduler if nothing else comes meanwhile; else another task waits here. After a request that gave a worker something
to do nobody polls (`calm`): the worker needs the interpreter, and our core maybe. An idle mount sleeps in stage 3.
Numbers: docs/decisions/channel.md.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

import trio

REQUESTS_A_TURN = 64
LINGER_S = 0.0003
BUSY_LINGER_S = 0.01
AWAKE_S = 0.0002
LONGEST_GAP_S = 0.02
TRIAL_REQUESTS = 512
KEPT_REQUESTS = 32 * TRIAL_REQUESTS
GAIN = 1.05
FAST_REQUESTS = 4  # so many in a row, none of which had to be waited for longer than AWAKE_S, before polling begins


class Worth:
    """Whether staying awake pays: tried without and with it in turn, and the better is kept for a while.

    It does where waking up is dear and cores are free; where readers want the core that we keep busy it harms them.
    """

    def __init__(self) -> None:
        self.on = False
        self._trial = 0  # 0: without, 1: with, 2: the better of them
        self._means = [0.0, 0.0]
        self._sum_s = self._last_s = 0.0
        self._count = 0

    def request(self, now_s: float, count: int = 1) -> None:
        """So many requests came since the last call."""
        gap_s = now_s - self._last_s
        self._last_s = now_s
        if gap_s > LONGEST_GAP_S:
            return  # nobody was asking
        self._sum_s += gap_s
        self._count += count
        if self._count >= (TRIAL_REQUESTS if self._trial < 2 else KEPT_REQUESTS):
            self._next()

    def _next(self) -> None:
        if self._trial < 2:
            self._means[self._trial] = self._sum_s / self._count
        self._trial = (self._trial + 1) % 3
        self.on = (False, True, self._means[1] * GAIN < self._means[0])[self._trial]
        self._sum_s, self._count = 0.0, 0


class PollWait:
    """See the module. Called with the descriptor; returns when it is readable.

    Attributes:
        lingers: whether `interrupt` will be noticed without trio's help; workers look at it.
        busy: whether workers are at something the loop waits for. collect: has those go on whose work is done.
            resuming: whether some of those have not gone on yet. owing: whether `collect` has something to do. These
            four are the runner's.
        next_woken: whether a task has been woken to wait here and has not run yet. The lock's that stands before us.

    Args:
        awake_s: 0 never polls.
    """

    def __init__(self, awake_s: float = AWAKE_S) -> None:
        self.awake_s = awake_s
        self.lingers = False
        self.busy: Callable[[], bool] = lambda: False
        self.collect: Callable[[], None] = lambda: None
        self.resuming: Callable[[], bool] = lambda: False
        self.owing: Callable[[], bool] = lambda: False
        self.next_woken = False
        self._turn = 0
        self._worth = Worth()
        self._fast = 0
        self._interrupted = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fd = -1
        self.ready: Callable[[int], object] = lambda _: False

    def arrived(self) -> bool:
        """Whether another request is there, now or in the moment that staying awake for it pays."""
        ready = self.ready
        if ready(0):
            return True
        if not self._worth.on or self._fast < FAST_REQUESTS:
            return False
        clock = time.perf_counter
        end = clock() + self.awake_s
        while not (ready(0) or ready(0) or ready(0)):
            if clock() > end:
                return False
        return True

    def calm(self) -> None:
        """A worker was given something to do: let it."""
        self._fast = 0

    async def __call__(self, fd: int, served: int = 1) -> None:
        """Wait until a request may be there. `served` requests were dealt with at once since the last call."""
        self._turn += served
        self._fast += served
        if fd != self._fd:
            self._fd = fd
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            self.ready = poll.poll
        began = time.perf_counter()
        self._worth.request(began, served)
        while self._turn < REQUESTS_A_TURN:
            if self.resuming():
                await trio.lowlevel.checkpoint()  # those whose work is done go first
                continue
            if not self._interrupted:
                self.lingers = True
                came = self._came()
                self.lingers = False
                if came:
                    return
            self._interrupted = False
            self.collect()
            if self.resuming():
                continue
            if not self.busy() or time.perf_counter() - began > BUSY_LINGER_S:
                break
            await trio.lowlevel.checkpoint()  # a timer is due
            await trio.lowlevel.checkpoint()  # trio runs what it wakes in any order: now all have gone before us
        self._turn = 0
        self.collect()
        await trio.lowlevel.wait_readable(fd)

    def idle_s(self) -> float:
        """How long trio has nothing to run, at most BUSY_LINGER_S. For a task that wants to wait `in_place`."""
        if self._fd < 0:
            return 0.0
        now = trio.lowlevel.current_statistics()
        return 0.0 if now.tasks_runnable > self.next_woken else min(BUSY_LINGER_S, now.seconds_to_next_deadline)

    def in_place(self, limit_s: float) -> None:
        """Sleep where a task waits for a worker, until one interrupts or a request comes, with `lingers` set."""
        if self._wake in select.select((self._fd, self._wake), (), (), limit_s)[0]:
            os.eventfd_read(self._wake)

    def _came(self) -> bool:
        """Whether a request came, at once or a moment later: it goes before what a worker interrupted for."""
        began = time.perf_counter()
        # Not poll(2), which counts whole milliseconds.
        ready = select.select((self._fd, self._wake), (), (), max(0.0, self._limit_s()))[0]
        if not ready or time.perf_counter() - began > self.awake_s:
            self._fast = 0
        if self._wake in ready:
            os.eventfd_read(self._wake)
            self._interrupted = True
        return self._fd in ready

    def _limit_s(self) -> float:
        """How long the loop may sleep here. While workers are busy longer, since who is waited for will interrupt.

        What is left to do of a call that nobody waits for has to wait until a worker is under way that was woken a
        moment ago, on our core maybe.
        """
        if not self.busy():
            return LINGER_S
        now = trio.lowlevel.current_statistics()
        limit_s = LINGER_S if self.owing() else BUSY_LINGER_S
        return 0.0 if now.tasks_runnable else min(limit_s, now.seconds_to_next_deadline)

    def interrupt(self) -> None:
        """From any thread: something waits for the loop."""
        os.eventfd_write(self._wake, 1)
