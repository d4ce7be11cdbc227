"""The samplers "numpy", "python-random", "hf-datasets" and "sequential": compositions by the names of what is called.

In: a job's seed, legacy, reseed, in_place, contiguous, world_size, drop_last. Out: each rank's dataset indices. Made by
`mlfs.orders.registry`; `mlfs.orders.composed` does all the work. Sources: `mlfs.orders.generators`;
datasets/arrow_dataset.py (shuffle, shard; datasets 5.2).

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

from mlfs.orders.composed import Composition, Parts
from mlfs.orders.draws import Kind
from mlfs.orders.order import Resolve
from mlfs.orders.seeding import GOES_ON, RESEEDED, SAME

if TYPE_CHECKING:
    from mlfs.job import JobSpec


def numpy_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """numpy.random.Generator, or with "legacy" the older RandomState, which numpy.random.seed sets as well."""
    return _loop(spec, n_samples, "numpy-legacy" if spec.legacy else "numpy", bool(spec.in_place))


def python_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """Python's random module; any seed will do, it takes the absolute value."""
    return _loop(spec, n_samples, "python", spec.in_place is not False)


def _loop(spec: JobSpec, n_samples: int, generator: str, in_place: bool) -> Composition:
    draw: Kind = "shuffle" if in_place else "permutation"
    parts = Parts(generator, RESEEDED if spec.reseed else GOES_ON, draw, drop_last=spec.drop_last)
    return Composition(parts, spec, n_samples)


def sequential_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """The data set in index order: torch's SequentialSampler, or DistributedSampler(shuffle=False) with several ranks.

    contiguous: rank r reads the r-th piece of n / world_size samples, rounded up; the last one has what is left (or,
    with drop_last, each has n / world_size rounded down). So does DLIO with PyTorch's loader
    (data_loader/torch_data_loader.py, dlio_sampler; argonne-lcf/dlio_benchmark 2025), whatever its file_shuffle and
    sample_shuffle say.
    """
    dealing = "pieces" if spec.contiguous else "padded"
    return Composition(Parts("torch", GOES_ON, "none", dealing, drop_last=spec.drop_last), spec, n_samples)


def hf_datasets_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """datasets.Dataset.shuffle(seed=...), and contiguous shards for several ranks."""
    draw: Kind = "shuffle" if spec.in_place else "permutation"
    return Composition(Parts("numpy", RESEEDED if spec.reseed else SAME, draw, "contiguous"), spec, n_samples)
