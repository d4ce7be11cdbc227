"""The clock of a simulation: what is to happen when, in order.

In: times and calls. Out: the calls, made in the order of their times; those of one time in the order in which they were
asked for, so that a run is the same whenever it is repeated.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any

# A simulation makes tuples by the million and hardly a cycle: looking for cycles as often as Python does by itself took
# a fifth of the time.
COLLECT_AFTER = 500_000


class Heap:
    """Events by time, and the time now.

    Attributes:
        now_s: the simulated time. happened: how many calls were made.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened = 0
        self._asked = 0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def at(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        """Have something happen at a time; at once, after what was asked for before, if that time has passed."""
        self._asked += 1
        heappush(self._calls, (max(at_s, self.now_s), self._asked, call, args))

    def step(self) -> bool:
        """Let the next thing happen; False when there is none."""
        if not self._calls:
            return False
        self.now_s, _, call, args = heappop(self._calls)
        self.happened += 1
        call(*args)
        return True

    def run(self) -> None:
        """Let all happen."""
        while self.step():
            pass


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Have Python look for cycles of objects seldom, while a simulation runs."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
