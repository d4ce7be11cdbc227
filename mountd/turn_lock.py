"""Whose turn it is to read the kernel's next request: a lock that tasks of the loop hand over when they have to wait.

In: tasks that want to go on reading. Out: one of them at a time. Called by mountd.requests.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType

import trio

from mountd.poll_wait import PollWait


class TurnLock:
    """A lock that is not fair: who releases it may take it again before the task that waits, which then waits on.

    A fair one would change tasks after each request. When it is released it wakes one task, and that one tries again.
    """

    def __init__(self, wait: PollWait) -> None:
        self._wait = wait
        self._held = False
        self._waiting: deque[trio.lowlevel.Task] = deque()

    async def __aenter__(self) -> None:
        while self._held:
            task = trio.lowlevel.current_task()
            self._waiting.append(task)

            def abort(_: object, task: trio.lowlevel.Task = task) -> trio.lowlevel.Abort:
                self._waiting.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
            self._wait.next_runs()
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        if self._waiting and self._wait.wakes_next():
            trio.lowlevel.reschedule(self._waiting.popleft())
