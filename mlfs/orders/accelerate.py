"""The samplers "accelerate" and "hf-trainer": DataLoaders that went through Accelerator.prepare, bit for bit.

In: a job's seed, data_seed, shuffle, use_seedable_sampler, even_batches, drop_last (the loader's), batch_size (a
rank's), world_size, words_before, words_between, persistent_workers, trailing_permutation. Out: each rank's dataset
indices. Made by `mlfs.orders.registry`.
Source: accelerate/data_loader.py (prepare_data_loader, SeedableRandomSampler, BatchSamplerShard; accelerate 1.15);
transformers/trainer.py (_get_train_sampler; transformers 5.23), which is accelerate with the seedable sampler.

- use_seedable_sampler: randperm(n) seeded with (data_seed, else the seed of set_seed or torch.manual_seed) + epoch.
- Without, several ranks: prepare() seeds one generator from the default one (rank 0's counts, it is broadcast), and
  RandomSampler draws one permutation an epoch from it, and another one that nobody reads when it comes to its end.
- Without, one rank: nothing is changed. Each epoch the DataLoader draws a base seed from the default generator (with
  persistent workers in the first epoch only), and then RandomSampler the seed of a generator of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.checkpoints import Checkpoints
from mlfs.orders.contract import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.deal import batch_positions, batch_total
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.permutation import TORCH_32BIT_LIMIT, next_randperm, randperm, words_of_randperm
from mlfs.orders.shuffle import Permutation

if TYPE_CHECKING:
    from mlfs.job import JobSpec


class AccelerateOrder:
    """One epoch's order, batches dealt to the ranks as cards are.

    Raises:
        JobError: more samples than torch's 32-bit rule shuffles.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        if spec.shuffle and n_samples >= TORCH_32BIT_LIMIT:
            message = f"{n_samples} samples cannot be shuffled: the limit is {TORCH_32BIT_LIMIT - 1}"
            raise JobError(message, 'narrow "root", or set "shuffle": false', "shuffle")
        self._spec = spec
        self._n_samples = n_samples
        self._even = spec.even_batches is not False and spec.world_size > 1
        self._permutation = lru_cache(maxsize=EPOCHS_KEPT)(self._permute)
        self._generators = Checkpoints(self._prepared(), self._after_epoch)

    def stream_length(self, epoch: int) -> int:
        """Samples of rank 0, which has most, the same in every epoch."""
        spec = self._spec
        total = batch_total(self._n_samples, spec.world_size, spec.batch_size, self._even, spec.drop_last)
        rounds, rest = divmod(total, spec.world_size * spec.batch_size)
        return rounds * spec.batch_size + min(rest, spec.batch_size)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order."""
        spec = self._spec
        drop_last = spec.drop_last
        positions = batch_positions(self._n_samples, rank, spec.world_size, spec.batch_size, self._even, drop_last)
        return self._permutation(epoch)[positions].astype(np.int64) if spec.shuffle else positions

    def _permute(self, epoch: int) -> Permutation:
        if self._spec.use_seedable_sampler:
            seed = self._spec.seed if self._spec.data_seed is None else self._spec.data_seed
            return randperm(self._n_samples, seed + epoch)
        if self._spec.world_size == 1:
            return randperm(self._n_samples, self._drawn_seed(epoch))
        return next_randperm(self._n_samples, self._generators.after(epoch - 1).copy())

    def _prepared(self) -> TorchWords:
        """The generator as prepare() seeds it: with a 64-bit number of which the lower word, drawn last, counts."""
        default = TorchWords(self._spec.seed)
        default.skip(self._spec.words_before or 0)
        return TorchWords(int(default.take(2)[1]))

    def _drawn_seed(self, epoch: int) -> int:
        """What RandomSampler seeds its generator with, one rank: of each 64-bit number the last word counts."""
        base_seeds = 1 if self._spec.persistent_workers else epoch + 1
        default = TorchWords(self._spec.seed)
        default.skip((self._spec.words_before or 0) + epoch * (2 + (self._spec.words_between or 0)) + 2 * base_seeds)
        return int(default.take(2)[1])

    def _after_epoch(self, before: TorchWords, epoch: int) -> TorchWords:
        permutations = 1 if self._spec.trailing_permutation is False else 2
        after = before.copy()
        after.skip(permutations * words_of_randperm(self._n_samples))
        return after
