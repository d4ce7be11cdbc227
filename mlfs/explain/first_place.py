"""Where in its generator's words a sampler begins its first epoch, and how far it is from there to the next one.

In: a job whose sampler is one of torch's less usual ones: a part of the data set, weighted draws, torchdata's loader,
accelerate with a generator of the script's own. Out: a `FirstPlace`. Called by `mlfs.explain.words`, which knows the
usual samplers itself.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.job import JobSpec
from mlfs.orders.accelerate import words_of_generator
from mlfs.orders.permutation import words_of_randperm
from mlfs.orders.torch_generator import BASE_SEED_WORDS
from mlfs.orders.torch_stateful import words_of_loader
from mlfs.orders.torch_weighted import WORDS_A_DRAW


class FirstPlace(NamedTuple):
    """See the module.

    Attributes:
        seeded: whether a word there seeds a permutation; else the words there make the order themselves.
        ahead: words between those counted by `words_before` and that place.
        an_epoch: words from one epoch to the next, `words_between` left out; 0 where no later epoch hangs on them.
    """

    seeded: bool
    ahead: int
    an_epoch: int


def first_place(spec: JobSpec, n_samples: int) -> FirstPlace | None:
    """See the module; None for a sampler whose order does not begin at such a place."""
    if spec.sampler == "torch-subset":
        return _of_words(spec, words_of_randperm(n_samples))
    if spec.sampler in ("accelerate", "hf-trainer") and spec.shuffle and not spec.use_seedable_sampler:
        return FirstPlace(False, 0, words_of_generator(spec, n_samples)) if spec.generator == "own" else None
    if spec.sampler == "torch-weighted":
        return _of_words(spec, WORDS_A_DRAW * (spec.num_samples or n_samples))
    if spec.sampler == "torch-stateful" and not spec.replacement:
        loader = words_of_loader(spec, n_samples)
        if spec.generator != "default":
            return FirstPlace(False, loader.lead, loader.an_epoch)
        # The loader seeds one generator for all epochs. With workers a permutation that nobody reads comes first.
        return FirstPlace(True, 1, 0) if not loader.lead else None
    return None


def _of_words(spec: JobSpec, words: int) -> FirstPlace:
    """A sampler that takes so many words of the job's generator in an epoch, after the loader's base_seed."""
    ahead = 0 if spec.generator == "own" else BASE_SEED_WORDS
    return FirstPlace(False, ahead, words + (0 if spec.persistent_workers else ahead))
