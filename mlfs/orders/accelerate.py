"""The samplers "accelerate" and "hf-trainer": DataLoaders that went through Accelerator.prepare, bit for bit.

In: a job's seed, data_seed, generator, shuffle, use_seedable_sampler, even_batches, loader_drop_last (or drop_last,
which is the same here), batch_size (a rank's), world_size, words_before, words_between, persistent_workers,
trailing_permutation. Out: each rank's dataset indices. Made by `mlfs.orders.registry`.
Source: accelerate/data_loader.py (prepare_data_loader, SeedableRandomSampler, BatchSamplerShard; accelerate 1.15);
transformers/trainer.py (_get_train_sampler; transformers 5.23), which is accelerate with the seedable sampler.

- use_seedable_sampler: randperm(n) seeded with (data_seed, else the seed of set_seed or torch.manual_seed) + epoch.
- Without, several ranks: prepare() seeds one generator from the default one (rank 0's counts, it is broadcast), and
  RandomSampler draws one permutation an epoch from it, and another one that nobody reads when it comes to its end.
- The same where the script gave its RandomSampler a generator (generator "own", seeded with the job's seed): prepare()
  leaves that in its place.
- Without, one rank: nothing is changed. Each epoch the DataLoader draws a base seed from the default generator (with
  persistent workers in the first epoch only), and then RandomSampler the seed of a generator of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.deal import batch_positions, batch_total
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.permutation import next_randperm, randperm, words_of_randperm
from mlfs.orders.shuffle import Permutation
from mlfs.orders.torch_generator import EpochWords, Tape, check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_SEED_WORDS = 2


class AccelerateOrder:
    """One epoch's order, batches dealt to the ranks as cards are.

    Raises:
        JobError: more samples than torch's 32-bit rule shuffles, or a generator that the loader draws from too.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.shuffle:
            check_length(n_samples, "shuffle")
        if spec.generator == "shared":
            message = 'job field "generator" is "shared", must be "own" or left out: that order is not known'
            raise JobError(message, '"own" is for a RandomSampler that was given a generator', "generator")
        self._spec = spec
        self._n_samples = n_samples
        self._even = spec.even_batches is not False and spec.world_size > 1
        self._drop_last = spec.drop_last or spec.loader_drop_last
        self._permutation = lru_cache(maxsize=EPOCHS_KEPT)(self._permute)
        # prepare() seeds the generator that all ranks share with a number drawn from the default one.
        self._default = EpochWords(spec, _SEED_WORDS)
        self._own = spec.generator == "own"
        before = spec.words_before or 0
        self._first_word = before if self._own else 0
        self._shared = Tape(spec.seed if self._own else Tape(spec.seed).at(before).random_int64_seed())

    def stream_length(self, epoch: int) -> int:
        """Samples of rank 0, which has most, the same in every epoch."""
        spec = self._spec
        total = batch_total(self._n_samples, spec.world_size, spec.batch_size, self._even, self._drop_last)
        rounds, rest = divmod(total, spec.world_size * spec.batch_size)
        return rounds * spec.batch_size + min(rest, spec.batch_size)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order."""
        spec = self._spec
        positions = batch_positions(
            self._n_samples, rank, spec.world_size, spec.batch_size, self._even, self._drop_last
        )
        return self._permutation(epoch)[positions].astype(np.int64) if spec.shuffle else positions

    def _permute(self, epoch: int) -> Permutation:
        n = self._n_samples
        if self._spec.use_seedable_sampler:
            seed = self._spec.seed if self._spec.data_seed is None else self._spec.data_seed
            return randperm(n, seed + epoch)
        if self._spec.world_size == 1 and not self._own:
            return randperm(n, self._default.at(epoch).random_int64_seed())
        an_epoch = words_of_generator(self._spec, n) + (self._spec.words_between or 0 if self._own else 0)
        return next_randperm(n, self._shared.at(self._first_word + epoch * an_epoch))


def words_of_generator(spec: JobSpec, n_samples: int) -> int:
    """Words that an epoch takes from the generator that all ranks share."""
    return (1 if spec.trailing_permutation is False else 2) * words_of_randperm(n_samples)
