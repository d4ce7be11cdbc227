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

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.permutation import next_randperm, words_of_randperm
from mlfs.orders.torch_generator import BASE_SEED_WORDS, Tape, check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_CHUNK: Final = 32  # randint is called for so many at a time


class LoaderWords(NamedTuple):
    """Words of the sampler's generator.

    Attributes:
        lead: from the first iterator of the first epoch to the one that is read.
        an_epoch: from the iterator that an epoch reads to the one that the next epoch reads.
    """

    lead: int
    an_epoch: int


def words_of_loader(spec: JobSpec, n_samples: int) -> LoaderWords:
    """The number of words that an epoch of the loader takes from its sampler's generator, `words_between` left out."""
    workers, length = bool(spec.num_workers), spec.num_samples or n_samples
    base_words = BASE_SEED_WORDS if spec.generator == "shared" else 0
    chunk = _CHUNK if spec.replacement else words_of_randperm(n_samples)
    chunks = -(-length // (_CHUNK if spec.replacement else max(1, n_samples)))
    lead = chunk + base_words if workers else 0
    rest = chunk * chunks + (0 if workers else base_words)
    return LoaderWords(lead, rest if workers and spec.persistent_workers else lead + rest)


class StatefulOrder:
    """Permutations, or draws with replacement, of one generator that goes on from epoch to epoch.

    Raises:
        JobError: too many samples for torch's 32-bit rule; words_between where it changes nothing.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        check_length(n_samples)
        self._n, self._length = n_samples, spec.num_samples or n_samples
        self._epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._draw_epoch)
        self._replacement = bool(spec.replacement)
        self._between = spec.words_between or 0
        self._before = spec.words_before or 0
        self._loader = words_of_loader(spec, n_samples)
        # Without workers base_seed comes between the first permutation, or the first draws, and the others.
        self._pause = BASE_SEED_WORDS if spec.generator == "shared" and not spec.num_workers else 0
        seed = spec.seed
        if spec.generator == "default" and self._between:
            message = f'job field "words_between" is {self._between}, must be left out: it changes nothing for this job'
            raise JobError(message, "the default generator only seeds, when the loader is made", "words_between")
        if spec.generator == "default":
            words = TorchWords(seed)
            words.skip(self._before)
            seed, self._before, self._between = words.random_int64_seed(), 0, 0
        self._tape = Tape(seed)

    def stream_length(self, epoch: int) -> int:
        """Samples of every rank, the same in every epoch."""
        return self._length

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The dataset indices in read order, the same for every rank."""
        return self._epoch(epoch)

    def _place(self, epoch: int) -> int:
        """The place at which the words of the epoch's iterator that is read begin."""
        return self._before + self._loader.lead + epoch * (self._loader.an_epoch + self._between)

    def _draw_epoch(self, epoch: int) -> Indices:
        words = self._tape.at(self._place(epoch))
        stream = np.empty(self._length, dtype=np.int64)
        # The pause comes once, after what is drawn first.
        starts = range(0, self._length, max(self._n, 1)) if not self._replacement else (0, min(_CHUNK, self._length))
        for number, (start, end) in enumerate(pairwise((*starts, self._length))):
            words.skip(self._pause if number == 1 else 0)
            drawn = words.take(end - start) % np.uint32(self._n) if self._replacement else next_randperm(self._n, words)
            stream[start:end] = drawn[: end - start]
        stream.flags.writeable = False
        return stream
