"""Status and metrics as texts: made beside the loop, so seldom that they cost little, and never old.

In: who asks for which text. Out: the text, which was begun to be made after it was asked for. Called by mountd.control.

All who ask at once share one text. The next one is begun only after a pause of PAUSE times what the last one cost, so
that fifty readers who ask again and again take a twentieth of a core and no more: they wait instead, for a second at
most. One who asks alone waits for nothing. The figures are put together on the loop, which owns them; the text is made
of them in a thread, as they are frozen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

import trio

from mountd.statistics import MountParts, MountStatistics

# The pause after a text is so many times as long as that took, and no longer than this.
PAUSE = 19
LONGEST_PAUSE_S = 1.0


class _ComingText:
    """A text that has been asked for, and whose making has not begun."""

    def __init__(self) -> None:
        self.made = trio.Event()
        self.text: bytes | None = None


class SharedTexts:
    """Makes the texts of status and metrics for all who ask. Args: clock: seconds, to tell what a text costs."""

    def __init__(self, source: MountParts, clock: Callable[[], float] = time.perf_counter) -> None:
        self._source = source
        self._clock = clock
        self._coming: dict[Hashable, _ComingText] = {}
        self._turn = trio.Lock()  # one is made at a time
        self._next_s = float("-inf")  # when the next one may be begun, by trio's clock
        self._threads = trio.CapacityLimiter(1)

    async def text(self, kind: Hashable, make: Callable[[MountStatistics], bytes]) -> bytes:
        """A text of the figures as they are now.

        Args:
            kind: who gives the same kind may get the same text. make: called in a thread.
        """
        while True:
            coming = self._coming.get(kind)
            if coming is None:
                return await self._make(kind, make)
            await coming.made.wait()
            if coming.text is not None:  # else whoever was to make it has gone
                return coming.text

    async def _make(self, kind: Hashable, make: Callable[[MountStatistics], bytes]) -> bytes:
        coming = self._coming[kind] = _ComingText()
        try:
            async with self._turn:
                await trio.sleep_until(self._next_s)
                del self._coming[kind]  # who asks from here on is told of what comes later
                coming.text = await self._made(make)
                return coming.text
        finally:
            if self._coming.get(kind) is coming:
                del self._coming[kind]
            coming.made.set()

    async def _made(self, make: Callable[[MountStatistics], bytes]) -> bytes:
        began = self._clock()
        now = self._source.statistics()
        on_loop_s, in_thread_s = self._clock() - began, 0.0

        def timed() -> bytes:
            nonlocal in_thread_s
            began = time.thread_time()
            text = make(now)
            in_thread_s = time.thread_time() - began
            return text

        try:
            return await trio.to_thread.run_sync(timed, limiter=self._threads)
        except RuntimeError:  # no thread is to be had
            return timed()
        finally:
            pause_s = min(PAUSE * (on_loop_s + in_thread_s), LONGEST_PAUSE_S)
            self._next_s = trio.current_time() + pause_s
