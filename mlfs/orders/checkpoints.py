"""The state of something that each epoch changes (a generator, an array that is shuffled again), after any epoch.

In: the state before the first epoch, and how one epoch changes it. Out: the state after any epoch. Used by the
samplers whose orders depend on all epochs before. Any thread may call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from mlfs.orders.order import EPOCHS_KEPT

State = TypeVar("State")

# One epoch in so many is kept besides the last ones, so that going back costs at most this many epochs. With a smaller
# stride the same memory would reach less far.
_STRIDE = 16


class Checkpoints(Generic[State]):
    """The states after each epoch. One that is asked for is computed from the nearest earlier one that is kept.

    The last few that were asked for are kept, and every sixteenth one, up to `most` of these.

    Args:
        first: the state before epoch 0.
        advance: gives the state after an epoch from the state before it and its number; does not change its argument.
        most: how many old states to keep; they may be large.
        leap: gives the state after the second epoch from that after the first one, however far; None: nothing can.
    """

    def __init__(
        self,
        first: State,
        advance: Callable[[State, int], State],
        most: int,
        leap: Callable[[State, int, int], State] | None = None,
    ) -> None:
        self._first = first
        self._advance = advance
        self._leap = leap
        self._most = most
        self._old: dict[int, State] = {}
        self._recent: OrderedDict[int, State] = OrderedDict()
        self._lock = threading.Lock()

    def after(self, epoch: int) -> State:
        """The state after an epoch; `first` after epoch -1."""
        with self._lock:
            known = max((e for e in (*self._recent, *self._old) if e <= epoch), default=-1)
            state = self._first if known < 0 else self._recent.get(known, self._old.get(known, self._first))
            if self._leap is not None and epoch > known + 1:
                state, known = self._leap(state, known, epoch), epoch
            for number in range(known + 1, epoch + 1):
                state = self._advance(state, number)
                if number % _STRIDE == 0 and len(self._old) < self._most:
                    self._old[number] = state
            if epoch >= 0:
                self._recent[epoch] = state
                self._recent.move_to_end(epoch)
                while len(self._recent) > EPOCHS_KEPT + 1:
                    self._recent.popitem(last=False)
            return state
