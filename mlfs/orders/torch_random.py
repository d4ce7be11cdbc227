"""The sampler "torch-random": torch.utils.data.RandomSampler, what DataLoader(shuffle=True) uses, bit for bit.

In: a job's seed, generator, words_before, words_between, words_once, persistent_workers, trailing_permutation,
replacement and num_samples. Out: the dataset indices, the same for every rank (each has a generator of its own, seeded
alike). Made by `mlfs.orders.registry`. Source: torch/utils/data/sampler.py and dataloader.py (torch 2.13).

- generator "default" (DataLoader(shuffle=True) after torch.manual_seed(seed)): each epoch takes base_seed and 2 words
  that seed a generator of the epoch's own; everything else that draws from the default generator shifts it: before the
  first epoch (words_before) or in each (words_between: 2 for a validation loader in order, 4 for a shuffling one). A
  validation loader with persistent workers takes its base_seed once (words_once: 2), and 2 an epoch if it shuffles.
- "shared" (DataLoader(shuffle=True, generator=g)): base_seed, then the permutation, both from g.
- "own" (RandomSampler(generator=g), a DataLoader without): permutations from g only.

An iterator that is read to its end shuffles once more and throws that away, except for num_samples % n of its entries.
A script that leaves each epoch early has "trailing_permutation": false.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.one_stream import OneStream
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.permutation import next_randperm, words_of_randperm
from mlfs.orders.torch_generator import EpochWords, check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_SEED_WORDS: Final = 2


class RandomOrder(OneStream):
    """As many permutations as num_samples needs, or num_samples draws with replacement, an epoch.

    Attributes:
        words_an_epoch: words of the generator from one epoch to the next.

    Raises:
        JobError: too many samples for torch's 32-bit rule; trailing_permutation where it changes nothing.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        check_length(n_samples)
        trailing = spec.trailing_permutation
        if trailing is not None and (spec.generator == "default" or spec.replacement):
            hint = 'the default generator only seeds; with "replacement" there are no permutations'
            message = 'job field "trailing_permutation" must be left out: it changes nothing for this job'
            raise JobError(message, hint, "trailing_permutation")
        super().__init__(spec.num_samples or n_samples)
        self._n = n_samples
        self._replacement = bool(spec.replacement)
        self._seeded_each_epoch = spec.generator == "default"
        self._words = EpochWords(spec, self._words_of_sampler(trailing is not False))
        self.words_an_epoch: Final = self._words.an_epoch

    def _words_of_sampler(self, to_the_end: bool) -> int:
        if self._seeded_each_epoch:
            return _SEED_WORDS
        if self._replacement:
            return self._length
        whole, rest = divmod(self._length, self._n)
        return (whole + bool(rest or to_the_end)) * words_of_randperm(self._n)

    def _draw_epoch(self, epoch: int) -> Indices:
        words = self._words.at(epoch)
        if self._seeded_each_epoch:
            words = TorchWords(words.random_int64_seed())
        if self._replacement:
            return draw_with_replacement(self._n, self._length, words)
        return draw_permutations(self._n, self._length, words)


def draw_with_replacement(n: int, count: int, words: TorchWords) -> Indices:
    """torch.randint(n, (count,), generator): a word an entry. ATen/core/DistributionsHelper.h, n < 2^28."""
    return (words.take(count) % np.uint32(n)).astype(np.int64)


def draw_permutations(n: int, count: int, words: TorchWords, pause: int = 0) -> Indices:
    """`count` entries of randperm(n), randperm(n), ... one after another, shape (count,).

    `pause` words are passed over between the first permutation and the second.
    """
    stream = np.empty(count, dtype=np.int64)
    for start in range(0, count, n):
        words.skip(pause if start == n else 0)
        stream[start : start + n] = next_randperm(n, words)[: count - start]
    return stream
