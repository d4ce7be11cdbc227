"""The sampler "torch-subset": torch.utils.data.SubsetRandomSampler over the data set or a part of it, bit for bit.

In: a job's seed, generator, words_before, words_between, persistent_workers, and through `split` the indices. Out: the
dataset indices, the same for every rank. Made by `mlfs.orders.registry`.
Source: torch/utils/data/sampler.py (torch 2.13): one randperm an epoch from the sampler's generator, or from the
default one itself; unlike RandomSampler it neither seeds another nor shuffles once more at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlfs.orders.one_stream import OneStream
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.permutation import next_randperm, words_of_randperm
from mlfs.orders.torch_generator import EpochWords, check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec


class SubsetOrder(OneStream):
    """A permutation of the part an epoch."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        check_length(n_samples)
        super().__init__(n_samples)
        self._words = EpochWords(spec, words_of_randperm(n_samples))

    def _draw_epoch(self, epoch: int) -> Indices:
        return next_randperm(self._length, self._words.at(epoch)).astype(np.int64)
