"""The sampler "keras": keras.utils.image_dataset_from_directory(..., seed=...), with format="tf".

In: a job's seed, shuffle, validation_split, subset, batch_size, global_seed, passes_before, passes_between. Out: the
dataset indices. Made by `mlfs.orders.registry`. Source: keras/src/utils/dataset_utils.py (index_directory,
get_training_or_validation_split), image_dataset_utils.py (_paths_and_labels_to_dataset_tf; Keras 3.15).

The names are shuffled once by numpy, cut into training and validation part, and the part that is read is shuffled in
each pass by tf.data with a buffer of eight batches. model.fit begins more passes than it reads (`mlfs.orders.passes`).
Both parts of subset="both" are jobs of their own here: "training" and "validation"; in that case alone Keras does not
shuffle the validation part again (give "shuffle_validation": false). The data set knows no ranks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.passes import pass_number
from mlfs.orders.tf_data import op_seeds, pass_seeds, shuffle_pass

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_BUFFERED_BATCHES = 8
_SEEDS = 1 << 32


class KerasOrder:
    """The part's names, shuffled anew in each epoch.

    Raises:
        JobError: a seed that numpy refuses, a split without a subset or the other way round, an empty part, ranks.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.world_size > 1:
            hint = "every process reads everything: register world_size 1"
            raise JobError("image_dataset_from_directory shards nothing", hint, "world_size")
        if spec.shuffle and not 0 <= spec.seed < _SEEDS:
            raise JobError(f'job field "seed" is {spec.seed}, must be from 0 to {_SEEDS - 1} for numpy', "", "seed")
        if (spec.validation_split is None) != (spec.subset is None):
            raise JobError("validation_split and subset go together", "give both or none", "subset")
        self._spec = spec
        self._names = self._part(n_samples)
        if not len(self._names):
            raise JobError(f"the {spec.subset} part of {n_samples} samples is empty", "", "validation_split")
        self._seeds = op_seeds(spec.seed, spec.global_seed)
        self._epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._make)

    def stream_length(self, epoch: int) -> int:
        """Samples of the part, the same in every epoch."""
        return len(self._names)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The dataset indices in read order, shape (stream_length(epoch),)."""
        return self._epoch(epoch)

    def _part(self, n_samples: int) -> Indices:
        names = np.arange(n_samples, dtype=np.int64)
        if self._spec.shuffle:
            np.random.RandomState(self._spec.seed).shuffle(names)
        validation = int((self._spec.validation_split or 0) * n_samples)
        if self._spec.subset == "training":
            return names[:-validation]  # nothing, for a split so small that no sample is for validation: as Keras
        return names[-validation:] if self._spec.subset == "validation" else names

    def _make(self, epoch: int) -> Indices:
        if not self._spec.shuffle or self._spec.shuffle_validation is False:
            return self._names
        buffer_size = _BUFFERED_BATCHES * self._spec.batch_size
        seeds = pass_seeds(self._seeds, pass_number(self._spec, epoch), True)
        return self._names[shuffle_pass(len(self._names), buffer_size, seeds)]
