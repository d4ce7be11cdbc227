"""Waits for the kernel's next request: awake at first, then asleep, each stage cheaper for the machine.

In: the FUSE descriptor, from the tasks of mountd.requests; interrupts from workers that finished something for the
loop. Out: the call returns when there is something to do.

The loop goes through three stages. To leave a later one takes longer:
1. It polls the descriptor without sleeping, for at most AWAKE_S (`arrived`). Being woken from sleep takes 50 us and
   more, several times what a staged open takes. It does so only after a request that was answered at once, while
   requests come fast, and where trials show that it pays (`Worth`).
2. It sleeps in select(2) for LINGER_S, without entering trio's scheduler, which costs more than a request does. While
   workers are busy and trio has nothing to run it sleeps for up to BUSY_LINGER_S, and serves timers in between. A
   worker whose result somebody waits for interrupts this sleep, and the task that waited goes on after one pass of the
   scheduler; by trio's own way it would take three. A result that nobody waits for comes after the next request.
3. It waits as trio does, so that every other task gets its turn. After REQUESTS_A_TURN requests it does so in any case.

A READ that waits for a worker sleeps in its own task as in stage 2 (`in_place`), and goes on without any pass of the
scheduler unless something else comes meanwhile. After a request that gave a worker something to do nobody polls
(`calm`): the worker needs the interpreter, and perhaps this core. An idle mount sleeps in stage 3.
docs/decisions/channel.md has the measurements that the constants below come from.
"""

from __future__ import annotations

import os
import resource
import select
import time
from collections.abc import Callable

import trio

from mlfs.engine.runner import Calls

# Five milliseconds of staged opens and closes: no other task waits longer for its turn. A pass of trio's scheduler
# takes a hundred microseconds and more once requests have pushed its memory out of the processor's caches: every 64
# requests it was a tenth of what a staged read takes.
REQUESTS_A_TURN = 256
# The work of a reader between two opens is mostly over by then; longer only delays the other tasks.
LINGER_S = 0.0003
# Most demand reads are over by then. trio's timers are served that often while workers are busy.
BUSY_LINGER_S = 0.01
# A few times what waking up takes: a request that has not come by then will probably not come soon.
AWAKE_S = 0.0002
# A longer pause for each request says that nobody was reading, or that the loop did something else, and nothing about
# how we wait: many times what waking up takes. One pause of ten milliseconds in a trial of fast readers would decide.
LONGEST_GAP_S = 0.001
# A trial has enough requests for its mean to be steady, and lasts less than a second while readers read fast.
TRIAL_REQUESTS = 512
# The outcome of a trial holds for so many requests: trials cost at most a few percent of the time.
KEPT_REQUESTS = 32 * TRIAL_REQUESTS
# Polling takes a core. It must win clearly: by more than two trials differ by chance.
GAIN = 1.05
# Polling begins after so many requests in a row none of which was waited for longer than AWAKE_S.
FAST_REQUESTS = 4
# While the loop polls it is preempted so often a request where it has a core together with a reader: about every second
# request then, and hardly ever otherwise.
SHARED_CORE = 1 / 8


class Worth:
    """Judges whether polling pays. Both ways are tried in turn, and the faster one is kept for a while.

    Polling pays where waking up takes long and cores are free. It harms readers who want the core that it keeps busy.
    The kernel wakes the loop on the core of the reader who asks, and leaves it there, as each of the two sleeps while
    the other runs. Polling on that core gains nothing. So where a trial with polling shows that the core is shared, the
    loop leaves the core, and the trial is made again.

    Args:
        preempted: how often the kernel has taken the core from the calling thread so far.
        leave_core: has the calling thread go on upon another core.

    Attributes:
        on: whether to poll now.
    """

    def __init__(self, preempted: Callable[[], int], leave_core: Callable[[], None]) -> None:
        self.on = False
        self._preempted_so_far = preempted
        self._leave_core = leave_core
        self._preempted = 0  # when the trial began
        self._has_left = False  # the core, for this trial
        self._trial = 0  # 0: without polling, 1: with it, 2: the faster of the two
        self._means = [0.0, 0.0]
        self._sum_s = self._last_s = 0.0
        self._count = 0

    def request(self, now_s: float, count: int = 1) -> None:
        """Count the requests that came since the last call."""
        gap_s = now_s - self._last_s
        self._last_s = now_s
        if gap_s > LONGEST_GAP_S * max(1, count):
            return
        self._sum_s += gap_s
        self._count += count
        if self._count >= (TRIAL_REQUESTS if self._trial < 2 else KEPT_REQUESTS):
            self._next()

    def _next(self) -> None:
        preempted = self._preempted_so_far()
        shared = preempted - self._preempted > SHARED_CORE * self._count
        if self._trial == 1 and shared and not self._has_left:
            self._leave_core()
            self._has_left = True
        else:
            if self._trial < 2:
                self._means[self._trial] = self._sum_s / self._count
            self._trial = (self._trial + 1) % 3
            self.on = (False, True, self._means[1] * GAIN < self._means[0])[self._trial]
            self._has_left = False
        self._preempted = preempted
        self._sum_s, self._count = 0.0, 0


def preempted() -> int:
    """How often the kernel has taken the core from the calling thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def leave_core() -> None:
    """Have the calling thread go on upon another one of the cores that it may use, where there is one."""
    allowed = os.sched_getaffinity(0)
    with open("/proc/thread-self/stat", "rb") as stat:
        core = int(stat.read().rpartition(b")")[2].split()[36])  # field 39: proc_pid_stat(5)
    others = allowed - {core}
    if others:
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, allowed)


class PollWait:
    """Waits for the kernel's next request, in stages. Called with the descriptor; returns when it is readable.

    Attributes:
        lingers: whether the loop sleeps where `interrupt` wakes it without trio's help. Workers read it.
        is_awake: whether a task waits here, and not in stage 3, or comes back at once. Workers read it.
        calls: what workers are at, and have finished; of the runner that is made with this wait.

    Args:
        awake_s: how long to poll at most; 0 never polls.
    """

    def __init__(self, awake_s: float = AWAKE_S) -> None:
        self.awake_s = awake_s
        self.lingers = self.is_awake = False
        self.calls = Calls()
        self._next_woken = False
        self._turn = 0
        self._worth = Worth(preempted, leave_core)
        self._fast = 0
        self._interrupted = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fd = -1
        self.ready: Callable[[int], object] = lambda _: False

    def wakes_next(self) -> bool:
        """The lock before this wait may wake a task that shall wait here; False while one that was woken has not run:
        one is enough."""
        woken, self._next_woken = self._next_woken, True
        return not woken

    def next_runs(self) -> None:
        """The task that was woken runs."""
        self._next_woken = False

    def arrived(self) -> bool:
        """Whether another request is there, now or within the time for which polling pays."""
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
        """A worker was given something to do: do not poll, so that it gets the interpreter."""
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
        began, calls = time.perf_counter(), self.calls
        self._worth.request(began, served)
        self.is_awake = True
        while self._turn < REQUESTS_A_TURN:
            if calls.resuming:
                await trio.lowlevel.checkpoint()  # tasks whose work is done run before the next request is read
                continue
            if not self._interrupted:
                self.lingers = True
                came = self._came()
                self.lingers = False
                if came:
                    return
            interrupted, self._interrupted = self._interrupted, False
            calls.collect()
            if calls.resuming:
                continue
            if not calls.busy or time.perf_counter() - began > BUSY_LINGER_S:
                break
            if not interrupted and self._limit_s() > 0:
                continue  # no timer is due: this was for what nobody waits for (`owing`)
            await trio.lowlevel.checkpoint()  # a timer is due
            await trio.lowlevel.checkpoint()  # trio runs woken tasks in any order; after this pass all have run
        self._turn = 0
        self.stops()
        await trio.lowlevel.wait_readable(fd)

    def stops(self) -> None:
        """No task comes back here for now: workers wake the loop for what they finish."""
        self.is_awake = False
        self.calls.collect()  # nobody else may be left to do it

    def idle_s(self) -> float:
        """For how long trio has nothing to run, at most BUSY_LINGER_S. Asked by a task that may wait `in_place`."""
        if self._fd < 0:
            return 0.0
        now = trio.lowlevel.current_statistics()
        return 0.0 if now.tasks_runnable > self._next_woken else min(BUSY_LINGER_S, now.seconds_to_next_deadline)

    def in_place(self, limit_s: float) -> None:
        """Sleep in the task that waits for a worker, until a worker interrupts or a request comes; not at all where a
        call is done."""
        self.lingers = True
        if not self.calls.owing and self._wake in select.select((self._fd, self._wake), (), (), limit_s)[0]:
            os.eventfd_read(self._wake)
        self.lingers = False

    def _came(self) -> bool:
        """Sleep a moment; whether a request came. A request goes before what a worker interrupted for."""
        began = time.perf_counter()
        # Not poll(2), which counts whole milliseconds.
        limit_s = self._limit_s() if self.calls.busy else LINGER_S
        ready = select.select((self._fd, self._wake), (), (), limit_s)[0]
        if not ready or time.perf_counter() - began > self.awake_s:
            self._fast = 0
        if self._wake in ready:
            os.eventfd_read(self._wake)
            self._interrupted = True
        return self._fd in ready

    def _limit_s(self) -> float:
        """How long the loop may sleep here while workers are busy: longer than else, since they interrupt it.

        With a finished call that nobody waits for still to be dealt with (`owing`) it sleeps for LINGER_S only: long
        enough for a worker that was woken a moment ago, perhaps on this core, to begin.
        """
        now = trio.lowlevel.current_statistics()
        limit_s = LINGER_S if self.calls.owing else BUSY_LINGER_S
        return 0.0 if now.tasks_runnable else max(0.0, min(limit_s, now.seconds_to_next_deadline))

    def interrupt(self) -> None:
        """From any thread: something waits for the loop."""
        os.eventfd_write(self._wake, 1)
