"""The sampler "keras-pydataset": a keras.utils.PyDataset (keras.utils.Sequence) that model.fit shuffles.

In: a job's seed, shuffle, batch_size, words_before, passes_before. Out: the dataset indices. Made by
`mlfs.orders.registry`. Source: keras/src/trainers/data_adapters/py_dataset_adapter.py (PyDatasetAdapter,
OrderedEnqueuer; Keras 3.15).

The data set hands out whole batches: number b has the samples b * batch_size and those that follow, by its own
`__getitem__`. fit(shuffle=True), the default, has Python's random.shuffle reorder the numbers of the batches before
each epoch, however many workers there are, threads or processes. The seed is that of random.seed, or of
keras.utils.set_random_seed; each layer with random weights that is made after it draws a word or two (words_before).
evaluate, predict and validation_data are in order: "shuffle": false. A data set that shuffles its samples itself, in
`on_epoch_end` mostly, is another order. The data set knows no ranks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.draws import Draws, drawing_of
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.passes import pass_number
from mlfs.orders.python_mt import PythonGenerator

if TYPE_CHECKING:
    from mlfs.job import JobSpec

# A pass takes some tens of microseconds, and nobody reads before it has come to the one that he reads.
_MOST_PASSES: Final = 10_000


class PyDatasetOrder:
    """The batches, shuffled anew in each epoch by one generator that goes on.

    Raises:
        JobError: ranks, or so many passes before the first epoch that they would take seconds.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.world_size > 1:
            hint = "every process reads everything: register world_size 1"
            raise JobError("a PyDataset shards nothing", hint, "world_size")
        if (spec.passes_before or 0) > _MOST_PASSES:
            hint = "each pass is shuffled after the one before it"
            message = f'job field "passes_before" is {spec.passes_before}, must be 0 to {_MOST_PASSES} for a PyDataset'
            raise JobError(message, hint, "passes_before")
        self._spec = spec
        self._n_samples = n_samples
        batches, generator = -(-n_samples // spec.batch_size), PythonGenerator(spec.seed)
        generator.skip(spec.words_before or 0)
        drawing = drawing_of("permutation", batches)
        self._batches = Draws(drawing, generator, lambda before, epoch: (before, before), goes_on=True)
        self._epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._make)

    def stream_length(self, epoch: int) -> int:
        """All samples, in every epoch."""
        return self._n_samples

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The dataset indices in read order, shape (stream_length(epoch),)."""
        return self._epoch(epoch)

    def _make(self, epoch: int) -> Indices:
        if not self._spec.shuffle:
            return np.arange(self._n_samples, dtype=np.int64)
        size = self._spec.batch_size
        batches = self._batches.epoch(pass_number(self._spec, epoch)).astype(np.int64)
        samples = (batches[:, None] * size + np.arange(size)).reshape(-1)
        return samples[samples < self._n_samples]
