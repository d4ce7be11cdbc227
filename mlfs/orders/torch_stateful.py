"""The sampler "torch-stateful": shuffling in torchdata's StatefulDataLoader, bit for bit.

In: a job's seed, generator, words_before, words_between, num_workers, persistent_workers, replacement and num_samples.
Out: the dataset indices, the same for every rank. Made by `mlfs.orders.registry`.
Source: torchdata/stateful_dataloader/sampler.py and stateful_dataloader.py (torchdata 0.11),
torch/utils/data/dataloader.py (torch 2.13).

Its RandomSampler shuffles when an iterator is made, not when the first index is asked for: so before base_seed, and
never once more at the end. With worker processes two iterators are made an epoch, one on each side of base_seed, and
the second is read; persistent workers make two in the first epoch and one in each later one.

- generator "default": a generator of the sampler's own for all epochs, seeded with 2 words of the default generator
  when the loader is made (words_before: what was drawn until then).
- "shared": StatefulDataLoader(generator=g): permutations and base_seed from g.
- "own": torchdata's RandomSampler(generator=g) given to a loader without: permutations only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.one_stream import OneStream
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.permutation import words_of_randperm
from mlfs.orders.torch_generator import BASE_SEED_WORDS, Tape, check_length
from mlfs.orders.torch_random import draw_permutations, draw_with_replacement

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_CHUNK: Final = 32  # randint is called for so many at a time


class StatefulOrder(OneStream):
    """Permutations, or draws with replacement, of one generator that goes on from epoch to epoch.

    Raises:
        JobError: too many samples for torch's 32-bit rule; words_between where it changes nothing.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        check_length(n_samples)
        super().__init__(spec.num_samples or n_samples)
        self._n = n_samples
        self._replacement = bool(spec.replacement)
        self._workers = bool(spec.num_workers)
        self._persistent = self._workers and bool(spec.persistent_workers)
        self._between = spec.words_between or 0
        self._before = spec.words_before or 0
        self._base_words = BASE_SEED_WORDS if spec.generator == "shared" else 0
        seed = spec.seed
        if spec.generator == "default" and self._between:
            message = f'job field "words_between" is {self._between}, must be left out: it changes nothing for this job'
            raise JobError(message, "the default generator only seeds, when the loader is made", "words_between")
        if spec.generator == "default":
            words = TorchWords(seed)
            words.skip(self._before)
            seed, self._before, self._between = words.random_int64_seed(), 0, 0
        self._tape = Tape(seed)

    def _place(self, epoch: int) -> int:
        """Where the words of the epoch's iterator that is read begin."""
        chunk = _CHUNK if self._replacement else words_of_randperm(self._n)
        chunks = -(-self._length // (_CHUNK if self._replacement else self._n))
        # Words from the first iterator of an epoch to the one that is read, and from there to the next epoch.
        lead = chunk + self._base_words if self._workers else 0
        rest = chunk * chunks + self._between + (0 if self._workers else self._base_words)
        leads = 1 if self._persistent else epoch + 1
        return self._before + leads * lead + epoch * rest

    def _draw_epoch(self, epoch: int) -> Indices:
        words = self._tape.at(self._place(epoch))
        # Without workers base_seed comes between the first permutation, or the first draws, and the others.
        pause = 0 if self._workers else self._base_words
        if self._replacement:
            first = draw_with_replacement(self._n, _CHUNK, words)
            words.skip(pause)
            rest = draw_with_replacement(self._n, max(self._length - _CHUNK, 0), words)
            return np.concatenate([first, rest])[: self._length]
        return draw_permutations(self._n, self._length, words, pause)
