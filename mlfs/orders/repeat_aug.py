"""The samplers "ra-sampler" and "timm-repeat-aug": each sample several times, for different ranks.

In: a job's seed, shuffle, repeats, selected_round, selected_ratio, set_epoch, world_size. Out: each rank's dataset
indices. Made by `mlfs.orders.registry`. Sources: RASampler in torchvision's references/classification/sampler.py;
RepeatAugSampler in timm/data/distributed_sampler.py (timm 1.0.31).

randperm(n), each entry repeated in place, padded from its own start, dealt round-robin; a rank stops early, so that an
epoch is about n samples in all. RASampler is seeded with seed + epoch, timm with the epoch alone; without set_epoch
every epoch has the order of the first.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.permutation import randperm
from mlfs.orders.shuffle import Permutation
from mlfs.orders.torch_generator import check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec

REPEATS = 3
ROUND = 256


class RASamplerOrder:
    """torchvision's reference sampler.

    Raises:
        JobError: more samples than torch's 32-bit rule shuffles, or repeats that are no whole number.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.shuffle:
            check_length(n_samples, "shuffle")
        self._spec = spec
        self._n_samples = n_samples
        self._repeats = float(REPEATS) if spec.repeats is None else spec.repeats
        self._permutation = lru_cache(maxsize=EPOCHS_KEPT)(self._permute)
        self._check()

    def stream_length(self, epoch: int) -> int:
        """Samples per rank, the same in every epoch."""
        return self._n_samples // ROUND * ROUND // self._spec.world_size

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order, shape (stream_length(epoch),)."""
        if not self._n_samples:
            return np.empty(0, dtype=np.int64)
        world = self._spec.world_size
        places = np.arange(rank, rank + world * self.stream_length(epoch), world, dtype=np.int64)
        places %= math.ceil(self._n_samples * self._repeats)
        if self._repeats.is_integer():
            places //= int(self._repeats)
        else:
            places = np.floor_divide(places, self._repeats).astype(np.int64)
        if not self._spec.shuffle:
            return places
        return self._permutation(epoch if self._spec.set_epoch else 0)[places].astype(np.int64)

    def _check(self) -> None:
        if not self._repeats.is_integer():
            message = f'job field "repeats" is {self._repeats:g}, must be a whole number for "{self._spec.sampler}"'
            raise JobError(message, "timm-repeat-aug takes any number", "repeats")

    def _permute(self, epoch: int) -> Permutation:
        return randperm(self._n_samples, self._spec.seed + epoch)


class TimmRepeatAugOrder(RASamplerOrder):
    """timm's sampler: repeats may be any number, and the length of an epoch is told by selected_round and _ratio."""

    def stream_length(self, epoch: int) -> int:
        """Samples per rank, the same in every epoch; in floating point, as timm has it."""
        n, world = self._n_samples, self._spec.world_size
        multiple = ROUND if self._spec.selected_round is None else self._spec.selected_round
        ratio = self._spec.selected_ratio or world
        whole = multiple and n >= multiple
        most = math.ceil(n * self._repeats / world)
        selected = (n // multiple * multiple if whole else n) / ratio
        if selected >= most:  # it may be infinite
            return most
        return math.floor(selected) if whole else math.ceil(selected)

    def _check(self) -> None:
        pass

    def _permute(self, epoch: int) -> Permutation:
        return randperm(self._n_samples, epoch)
