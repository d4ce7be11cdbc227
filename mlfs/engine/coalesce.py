"""Does something once, a moment after it was asked for: what is asked for in between is dealt with together.

In: `call`, on the loop, as often as you like. Out: one task goes on, a set time after the first call. A call wakes no
task, so a request that makes one is not followed by a pass of the scheduler. Used for opens and releases, and copies.
"""

from __future__ import annotations

import math

import trio


class Coalesced:
    """Wakes one task, a moment after the first of several calls. Loop only.

    Attributes:
        called: whether the task is to go on anyway.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self.called = False
        self._sleeping: trio.CancelScope | None = None

    def call(self) -> None:
        """Have the task go on, a moment later."""
        if not self.called:
            self.called = True
            if self._sleeping is not None:
                self._sleeping.deadline = trio.current_time() + self._delay_s

    def now(self) -> None:
        """Have it go on at once: what is asked for was collected before."""
        self.called = True
        if self._sleeping is not None:
            self._sleeping.deadline = -math.inf

    async def wait(self) -> None:
        """Until a moment after the first call since the last wait ended."""
        with trio.CancelScope(deadline=trio.current_time() + self._delay_s if self.called else math.inf) as scope:
            self._sleeping = scope
            await trio.sleep_forever()
        self.called, self._sleeping = False, None
