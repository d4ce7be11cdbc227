"""Orders that a script makes itself: one array of indices, shuffled before each epoch.

In: how the generator of an epoch is made. Out: each epoch's array. Called by the samplers for numpy, Python's random
and HF datasets, which differ in the generator only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from mlfs.orders.checkpoints import Checkpoints
from mlfs.orders.order import EPOCHS_KEPT
from mlfs.orders.shuffle import Permutation

# The memory for states of old epochs, which spare shuffling from the first epoch on when a job goes back.
_KEPT_BYTES = 64 << 20
_STATE_BYTES = 64 << 10  # what a generator and its object take at most


class Shuffler(Protocol):
    """A generator, such as numpy's; `copy.deepcopy` gives one that goes on from the same state."""

    def shuffle(self, x: Permutation, /) -> None:
        """Shuffle in place."""


class _State(NamedTuple):
    """After an epoch: the generator, and the array as it was read."""

    generator: Shuffler
    values: Permutation


class Reshuffled:
    """0 .. n-1, shuffled before each epoch.

    Args:
        n: how many.
        generator: makes the generator of an epoch; asked for epoch 0 only, if it `continues`.
        continues: one generator for all epochs.
        in_place: each epoch shuffles the array as the epoch before left it, and not 0 .. n-1.
    """

    def __init__(self, n: int, generator: Callable[[int], Shuffler], continues: bool, in_place: bool) -> None:
        self._n = n
        self._generator = generator
        self._continues = continues
        self._in_place = in_place
        self._depends = continues or in_place
        first = _State(generator(0), self._sorted())
        self._states = Checkpoints(first, self._advance, most=_KEPT_BYTES // max(first.values.nbytes, _STATE_BYTES))
        self._alone = lru_cache(maxsize=EPOCHS_KEPT)(lambda epoch: self._advance(first, epoch).values)

    def epoch(self, epoch: int) -> Permutation:
        """The array that the epoch reads, shape (n,), read-only."""
        return self._states.after(epoch).values if self._depends else self._alone(epoch)

    def _sorted(self) -> Permutation:
        return np.arange(self._n, dtype=np.int32)

    def _advance(self, before: _State, epoch: int) -> _State:
        generator = copy.deepcopy(before.generator) if self._continues else self._generator(epoch)
        values = before.values.copy() if self._in_place else self._sorted()
        generator.shuffle(values)
        values.flags.writeable = False
        return _State(generator, values)
