"""Passes that follow one another without an end, as samplers of iteration-based trainers give them.

In: the passes, and how many reads an epoch has. Out: each epoch's piece of the stream. Called by
`mlfs.orders.composed`. Such a stream knows no epochs: a batch may have the end of one pass and the beginning of the
next. An epoch of the job is so many steps of it, and begins with a whole batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from threading import Lock

import numpy as np
import numpy.typing as npt

from mlfs.orders.order import EPOCHS_KEPT


class Endless:
    """One stream without an end.

    Args:
        a_pass: the dataset indices of a pass, by its number; passes may differ in length.
        length: reads of an epoch.
        pass_length: of every pass, where all are alike.
    """

    def __init__(
        self, a_pass: Callable[[int], npt.NDArray[np.signedinteger]], length: int, pass_length: int | None
    ) -> None:
        self._pass, self._length, self._pass_length = a_pass, length, pass_length
        self._begins = [0]
        self._lock = Lock()
        self.epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._cut)

    def _cut(self, epoch: int) -> npt.NDArray[np.signedinteger]:
        """The reads of an epoch, shape (length,)."""
        at, stop, parts = epoch * self._length, (epoch + 1) * self._length, []
        while at < stop:
            number, begin = self._pass_at(at)
            part = self._pass(number)[at - begin : stop - begin]
            parts.append(part)
            at += len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _pass_at(self, place: int) -> tuple[int, int]:
        """The number of the pass that a place of the stream belongs to, and where that begins."""
        if self._pass_length is not None:
            number = place // self._pass_length
            return number, number * self._pass_length
        with self._lock:
            while self._begins[-1] <= place:
                self._begins.append(self._begins[-1] + len(self._pass(len(self._begins) - 1)))
            number = bisect_right(self._begins, place) - 1
            return number, self._begins[number]
