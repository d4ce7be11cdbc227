"""The place in a torch generator's words at which each epoch of a sampler begins, and a reader of them from there.

In: a job's seed, generator, words_before, words_between, words_once and persistent_workers; how many words the sampler
takes in an epoch. Out: `TorchWords` at an epoch's start, without computing the epochs before it. Called by the torch
samplers that go on with one generator from epoch to epoch.
Source: torch/utils/data/dataloader.py (torch 2.13): each iterator of a DataLoader draws base_seed, 2 words, from the
loader's generator, or from the default one if it has none, before the sampler draws anything; with persistent workers
there is one iterator for all epochs.

Epochs count from the moment at which the generator was seeded. A script that seeds again when it is resumed, and does
not restore the generator's state, begins with epoch 0's order again.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from threading import Lock
from typing import TYPE_CHECKING, Final

from mlfs.errors import JobError
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.permutation import TORCH_32BIT_LIMIT

if TYPE_CHECKING:
    from mlfs.job import JobSpec

BASE_SEED_WORDS: Final = 2
# 2.5 kB each.
_CHECKPOINTS_KEPT: Final = 256


class Tape:
    """The words of one seeded generator, readable from any place; any thread may ask.

    The generator's state is kept at the places asked for, so that going on from one costs only what lies between.
    """

    def __init__(self, seed: int) -> None:
        self._lock = Lock()
        self._states: dict[int, TorchWords] = {0: TorchWords(seed)}
        self._places = [0]

    def at(self, place: int) -> TorchWords:
        """A reader that hands out the words from number `place` (from 0) on."""
        with self._lock:
            if place not in self._states:
                before = self._places[bisect_right(self._places, place) - 1]
                words = self._states[before].copy()
                words.skip(place - before)
                self._keep(place, words)
            return self._states[place].copy()

    def _keep(self, place: int, words: TorchWords) -> None:
        self._states[place] = words
        insort(self._places, place)
        if len(self._places) > _CHECKPOINTS_KEPT:  # every other one goes; the first stays
            for gone in self._places[1::2]:
                del self._states[gone]
            del self._places[1::2]


class EpochWords:
    """A generator's words from each epoch's first own word on.

    Args:
        spec: the job. Its generator is "own" (nothing but the sampler draws from it), "shared" (the DataLoader draws
            base_seed from it) or "default" (the same, seeded by torch.manual_seed).
        sampler_words: words that the sampler takes from it in one epoch.
    """

    def __init__(self, spec: JobSpec, sampler_words: int) -> None:
        self._tape = Tape(spec.seed)
        self._before = spec.words_before or 0
        self._step = sampler_words + (spec.words_between or 0)
        self._base_words = 0 if spec.generator == "own" else BASE_SEED_WORDS
        self._persistent = bool(spec.persistent_workers)
        self._once = spec.words_once or 0

    @property
    def an_epoch(self) -> int:
        """Words from one epoch's first to the next one's."""
        return self._step + (0 if self._persistent else self._base_words)

    def at(self, epoch: int) -> TorchWords:
        """The words from the sampler's first of the epoch on."""
        iterators = 1 if self._persistent else epoch + 1
        once = self._once if epoch else 0
        return self._tape.at(self._before + epoch * self._step + iterators * self._base_words + once)


def check_length(n_samples: int, field: str = "sampler") -> None:
    """Refuse more samples than torch shuffles by the rule that is known here (214,748,363).

    Args:
        field: what to change instead: "sampler", or "shuffle" where the sampler reads that.

    Raises:
        JobError: there are more.
    """
    if n_samples >= TORCH_32BIT_LIMIT:
        message = f"{n_samples} samples cannot be shuffled: the limit is {TORCH_32BIT_LIMIT - 1}"
        way_out = 'set "shuffle": false' if field == "shuffle" else 'use "sampler": "sequential"'
        raise JobError(message, f'narrow "root", or {way_out}', field)
