"""The order of a job of which it is known where in its generator's words some of its epochs begin.

In: a job whose sampler goes on with one generator from epoch to epoch, and for some epochs how many words were drawn
before. Out: an `Order`. Made by `mlfs.explain.words`, for scripts that draw another number of words in each epoch:
random crops in the main process do, for one.

An epoch before which so many words were drawn has the order that the first epoch of a job has with these
`words_before`. Epochs that are not known are taken to go on from those before them by equal steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from mlfs.orders.order import EPOCHS_KEPT, Indices, Order, build_order

if TYPE_CHECKING:
    from mlfs.job import JobSpec


class PlacedOrder:
    """An order whose epochs begin at known places in the words of a generator.

    Args:
        drawn_before: words drawn before the beginning of an epoch, by epoch; at least one.
        step: words from one epoch to the next, while only one is known.

    Attributes:
        drawn_before: as given.
    """

    def __init__(self, spec: JobSpec, n_samples: int, drawn_before: Mapping[int, int], step: int) -> None:
        self.drawn_before = dict(sorted(drawn_before.items()))
        self._spec = spec
        self._n_samples = n_samples
        self._step = step
        self._beginning_at = lru_cache(maxsize=EPOCHS_KEPT)(self._make)
        self._length = self._make(0).stream_length(0)

    def words_before(self, epoch: int) -> int:
        """Words drawn before an epoch: known, or by equal steps from the epochs known before it."""
        known = [at for at in self.drawn_before if at <= epoch][-2:] or [min(self.drawn_before)]
        step = self._step
        if len(known) == 2:
            before, last = known
            step = (self.drawn_before[last] - self.drawn_before[before]) // (last - before)
        return max(0, self.drawn_before[known[-1]] + (epoch - known[-1]) * step)

    def stream_length(self, epoch: int) -> int:
        """Samples per rank, the same in every epoch."""
        return self._length

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The dataset indices in read order."""
        return self._beginning_at(self.words_before(epoch)).rank_stream(0, rank)

    def _make(self, words: int) -> Order:
        return build_order(self._spec.model_copy(update={"words_before": words}), self._n_samples)
