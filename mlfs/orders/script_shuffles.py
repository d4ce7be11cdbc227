"""The samplers "numpy", "python-random" and "hf-datasets": scripts that shuffle their indices themselves.

In: a job's seed, legacy, reseed, in_place, world_size, drop_last. Out: each rank's dataset indices. Made by
`mlfs.orders.registry`. Sources: numpy/random/_generator.pyx and mtrand.pyx (numpy 2.4; its own code is called, so the
order is that of the daemon's numpy: RandomState is frozen by NEP 19, Generator has not changed here since 1.17);
Lib/random.py; datasets/arrow_dataset.py (shuffle, shard; datasets 5.2).

    numpy          rng = default_rng(seed) (legacy: RandomState(seed)); rng.permutation(n) each epoch
    python-random  random.seed(seed); random.shuffle(indices) each epoch, in place
    hf-datasets    dataset.shuffle(seed=seed); the same order each epoch

reseed: the generator is made anew each epoch, from seed + epoch. in_place: each epoch shuffles what the epoch before
left (rng.shuffle(indices); dataset = dataset.shuffle(...)), and not the sorted indices. Ranks of numpy and Python
scripts take indices[rank::world_size], nothing padded; with drop_last all take equally many. HF datasets are cut into
contiguous shards (split_dataset_by_node), the first ones longer by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.python_mt import PythonGenerator
from mlfs.orders.reshuffled import Reshuffled, Shuffler
from mlfs.orders.shuffle import MOST_ELEMENTS

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_LEGACY_SEEDS = 1 << 32


class _ScriptOrder:
    """The common part of the three; the generator and the defaults are theirs."""

    in_place = False

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if n_samples > MOST_ELEMENTS:
            message = f"{n_samples} samples cannot be shuffled: the limit is {MOST_ELEMENTS}"
            raise JobError(message, 'narrow "root"', "root")
        self._spec = spec
        self._n_samples = n_samples
        in_place = self.in_place if spec.in_place is None else spec.in_place
        self._order = Reshuffled(n_samples, self._generator, self._continues(), in_place)

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank that reads most, the same in every epoch."""
        world = self._spec.world_size
        return self._n_samples // world if self._spec.drop_last else -(-self._n_samples // world)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order."""
        order = self._order.epoch(epoch)[rank :: self._spec.world_size]
        return order[: self.stream_length(epoch)].astype(np.int64)

    def _continues(self) -> bool:
        return not self._spec.reseed

    def _generator(self, epoch: int) -> Shuffler:
        raise NotImplementedError

    def _seed(self, epoch: int) -> int:
        return self._spec.seed + (epoch if self._spec.reseed else 0)


class NumpyOrder(_ScriptOrder):
    """numpy.random.Generator, or with "legacy" the older RandomState, which numpy.random.seed sets as well."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        _check_seed(spec, _LEGACY_SEEDS if spec.legacy else None)
        super().__init__(spec, n_samples, resolve)

    def _generator(self, epoch: int) -> Shuffler:
        seed = self._seed(epoch)
        return np.random.RandomState(seed % _LEGACY_SEEDS) if self._spec.legacy else np.random.default_rng(seed)


class PythonRandomOrder(_ScriptOrder):
    """Python's random module; any seed will do, it takes the absolute value."""

    in_place = True

    def _generator(self, epoch: int) -> Shuffler:
        return PythonGenerator(self._seed(epoch))


class HFDatasetsOrder(_ScriptOrder):
    """datasets.Dataset.shuffle(seed=...), and contiguous shards for several ranks."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        _check_seed(spec, None)
        super().__init__(spec, n_samples, resolve)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's contiguous piece of the epoch's order."""
        each, longer = divmod(self._n_samples, self._spec.world_size)
        start = rank * each + min(rank, longer)
        stop = start + each + (rank < longer)
        return self._order.epoch(epoch)[start:stop].astype(np.int64)

    def _continues(self) -> bool:
        return False

    def _generator(self, epoch: int) -> Shuffler:
        return np.random.default_rng(self._seed(epoch))


def _check_seed(spec: JobSpec, limit: int | None) -> None:
    if spec.seed < 0 or (limit is not None and spec.seed >= limit):
        allowed = "0 or more" if limit is None else f"0 to {limit - 1}"
        message = f'job field "seed" is {spec.seed}, must be {allowed} for the sampler "{spec.sampler}"'
        raise JobError(message, "numpy takes no other", "seed")
