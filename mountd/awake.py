"""Waiting for the next request of the kernel without falling asleep too soon.

In: the FUSE descriptor, from pyfuse3's session tasks, and interrupts from workers that finished something for the
loop. Out: the moment there is something to do. Replaces trio's wait_readable inside pyfuse3 (channel_pyfuse3).

Three stages, each dearer to leave than the one before:
1. After a request that was answered at once, and while requests come fast, the descriptor is polled without sleeping,
   for at most AWAKE_S: to be woken from sleep costs 50 us and more, several times what a staged open takes.
2. Then a moment in the kernel, LINGER_S, without entering trio's scheduler, which costs more than a request does.
3. Then trio's own wait, where everything else gets its turn; after REQUESTS_A_TURN requests in any case.

A request that waits for a worker is followed by another task's wait: that never polls, so the worker has the
interpreter. An idle mount sleeps in stage 3. Numbers: docs/decisions/channel.md.
"""

from __future__ import annotations

import os
import select
import time

import trio

REQUESTS_A_TURN = 64
LINGER_S = 0.0003
AWAKE_S = 0.0002
FAST_REQUESTS = 4  # so many in a row, none of which had to be waited for longer than AWAKE_S, before polling begins


class Awake:
    """See the module. Called with the descriptor; returns when it is readable, or sometimes before.

    Args:
        awake_s: 0 never polls.
    """

    def __init__(self, awake_s: float = AWAKE_S) -> None:
        self.awake_s = awake_s
        self._served = 0
        self._fast = 0
        self._task: trio.lowlevel.Task | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._fd = -1

    async def __call__(self, fd: int) -> None:
        self._served += 1
        task = trio.lowlevel.current_task()
        at_once, self._task = task is self._task, task
        if self._served % REQUESTS_A_TURN:
            if fd != self._fd:
                self._fd = fd
                self._poll.register(fd, select.POLLIN)
            began = time.perf_counter()
            if (at_once and self._fast >= FAST_REQUESTS and self._polled(began)) or self._lingered():
                self._fast = self._fast + 1 if time.perf_counter() - began < self.awake_s else 0
                return
            self._fast = 0
        await trio.lowlevel.wait_readable(fd)

    def _polled(self, began: float) -> bool:
        """Whether a request came while we stayed awake."""
        poll, clock, end = self._poll.poll, time.perf_counter, began + self.awake_s
        while True:
            ready = poll(0)
            if ready:
                return self._is_request(ready)
            if clock() > end:
                return False

    def _lingered(self) -> bool:
        """Whether a request came within a moment."""
        ready = select.select((self._fd, self._wake), (), (), LINGER_S)[0]  # poll(2) counts whole milliseconds
        return bool(ready) and self._is_request([(fd, 0) for fd in ready])

    def _is_request(self, ready: list[tuple[int, int]]) -> bool:
        if ready[0][0] != self._wake and len(ready) == 1:
            return True
        os.eventfd_read(self._wake)  # something waits for the loop: let trio run
        return False

    def interrupt(self) -> None:
        """From any thread: something waits for the loop."""
        os.eventfd_write(self._wake, 1)
