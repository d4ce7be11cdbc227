"""One generator draws in each epoch: a permutation, a shuffle of the last one, or a sample.

In: how the generator of an epoch is made, and what is drawn with it. Out: each epoch's indices. Called by
`mlfs.orders.composed` and the samplers that are such compositions. An epoch's draws may depend on all epochs before:
states of some of them are kept, which spares drawing from the first epoch on when a job goes back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np

from mlfs.orders.checkpoints import Checkpoints
from mlfs.orders.generators import Generator
from mlfs.orders.order import EPOCHS_KEPT, Indices
from mlfs.orders.shuffle import Permutation

# The memory for states of old epochs.
_KEPT_BYTES: Final = 64 << 20
_STATE_BYTES: Final = 64 << 10  # what a generator and its object take at most

Kind = Literal["permutation", "shuffle", "sample", "with-replacement", "none"]
"""The kinds of draws; with "none" nothing is drawn, and no `Draws` is made."""


class _State(NamedTuple):
    """After an epoch: the generator, and what was drawn."""

    generator: Generator
    values: Permutation | Indices


class Draws:
    """The draws of one generator, of 0 .. n-1 in each epoch.

    Args:
        n: how many there are.
        kind: "permutation": of 0 .. n-1; "shuffle": of what the epoch before left, in place; "sample": without
            replacement, by the library's own function for that; "with-replacement".
        count: how many are read; of a permutation and a shuffle the first ones.
        first: the generator before the first epoch.
        generator: makes the generator of an epoch from the one that the epoch before left, and says which one of both
            the next epoch goes on with.
        goes_on: whether that of the epoch before counts.
        words_between: words that others draw from the generator in each epoch, after this draw.
    """

    def __init__(
        self,
        n: int,
        kind: Kind,
        count: int,
        first: Generator,
        generator: Callable[[Generator, int], tuple[Generator, Generator]],
        goes_on: bool,
        words_between: int = 0,
    ) -> None:
        self._n, self._kind, self._count = n, kind, count
        self._generator = generator
        self._words_between = words_between
        self._depends = goes_on or kind == "shuffle"
        begin = _State(first, self._sorted())
        most = _KEPT_BYTES // max(begin.values.nbytes, _STATE_BYTES)
        self._states = Checkpoints(begin, self._advance, most=most)
        self._alone = lru_cache(maxsize=EPOCHS_KEPT)(lambda epoch: self._advance(begin, epoch).values)

    def epoch(self, epoch: int) -> Permutation | Indices:
        """The indices that the epoch reads, shape (count,), read-only."""
        values = self._states.after(epoch).values if self._depends else self._alone(epoch)
        return values[: self._count]

    def _sorted(self) -> Permutation:
        return np.arange(self._n, dtype=np.int32)

    def _advance(self, before: _State, epoch: int) -> _State:
        generator = copy.deepcopy(before.generator) if self._depends else before.generator
        drawing, left = self._generator(generator, epoch)
        values = self._draw(drawing, before.values)
        if self._words_between:
            drawing.skip(self._words_between)
        values.flags.writeable = False
        return _State(left, values)

    def _draw(self, generator: Generator, last: Permutation | Indices) -> Permutation | Indices:
        if self._kind == "permutation":
            return generator.permutation(self._n)
        if self._kind == "shuffle":
            values = last.astype(np.int32)
            generator.shuffle(values)
            return values
        if self._kind == "sample":
            return generator.sample(self._n, self._count)
        return generator.choices(self._n, self._count)
