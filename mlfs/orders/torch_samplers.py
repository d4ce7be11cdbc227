"""torch's samplers, bit for bit, and what is built around them, as compositions.

In: a job's seed, generator, words_before, words_between, words_once, persistent_workers, trailing_permutation,
replacement, num_samples, weights_file; for those that know ranks shuffle, drop_last, set_epoch, repeats,
selected_round, selected_ratio and world_size. Out: the dataset indices of each rank; of a sampler that knows none the
same for every rank (each has a generator of its own, seeded alike). Made by `mlfs.orders.order`;
`mlfs.orders.composed` does the work. Sources: torch/utils/data/sampler.py, dataloader.py and distributed.py (torch
2.13); torchdata/stateful_dataloader (torchdata 0.11); accelerate/data_loader.py (1.15); RASampler in torchvision's
references/classification/sampler.py; RepeatAugSampler in timm/data/distributed_sampler.py (timm 1.0.31).

- generator "default" (DataLoader(shuffle=True) after torch.manual_seed(seed)): each epoch takes base_seed and 2 words
  that seed a generator of the epoch's own; everything else that draws from the default generator shifts it: before the
  first epoch (words_before) or in each (words_between: 2 for a validation loader in order, 4 for a shuffling one). A
  validation loader with persistent workers takes its base_seed once (words_once: 2), and 2 an epoch if it shuffles.
- "shared" (DataLoader(shuffle=True, generator=g)): base_seed, then the permutation, both from g.
- "own" (RandomSampler(generator=g), a DataLoader without): permutations from g only.

An iterator of RandomSampler that is read to its end shuffles once more and throws that away, except for
num_samples % n of its entries. A script that leaves each epoch early has "trailing_permutation": false.
SubsetRandomSampler and WeightedRandomSampler draw from their generator, or from the default one itself.

DistributedSampler: randperm(n) seeded with seed + epoch (or 0 .. n-1 without shuffle), padded or cut, dealt
round-robin. The script is taken to call set_epoch(epoch), counting from 0; with "set_epoch": false every epoch has the
order of the first. With repeated augmentation each entry stands several times in a row, for different ranks, and a rank
stops early, so that an epoch is about n samples in all; timm's seed is the epoch alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from mlfs.job.refusals import refuse
from mlfs.orders.composed import Composition, Parts, check
from mlfs.orders.draws import Kind
from mlfs.orders.generators import BASE_SEED_WORDS, BY_EPOCH, GOES_ON, RESEEDED, SAME, Library, Torch
from mlfs.orders.mt19937 import MOST_OF_TORCH, words_of_randperm
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.order_file import weights_for
from mlfs.orders.shuffle import Permutation

if TYPE_CHECKING:
    from mlfs.job import JobSpec

REPEATS: Final = 3
ROUND: Final = 256
_CHUNK: Final = 32  # torchdata calls randint for so many at a time
_LEFT_OUT: Final = "left out: it changes nothing for this job"


def random_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """RandomSampler: as many permutations as num_samples needs, or num_samples draws with replacement, an epoch.

    Raises:
        JobError: too many samples for torch's 32-bit rule; trailing_permutation where it changes nothing.
    """
    if spec.trailing_permutation is not None and (spec.generator == "default" or spec.replacement):
        hint = 'the default generator only seeds; with "replacement" there are no permutations'
        refuse("trailing_permutation", spec.trailing_permutation, _LEFT_OUT, hint)
    return _one_stream(spec, n_samples, Parts(spec.generator or "default", GOES_ON, _drawn(spec)))


def _drawn(spec: JobSpec) -> Kind:
    return "with-replacement" if spec.replacement else "sample"


def subset_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """SubsetRandomSampler over the data set or a part of it. Raises JobError: too many samples."""
    return _one_stream(spec, n_samples, Parts(_itself(spec), GOES_ON, "permutation"))


def weighted_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """WeightedRandomSampler with replacement: num_samples draws an epoch.

    Draws without replacement follow another rule (vectorised exponentials): they need the sampler "explicit".

    Raises:
        JobError: the file cannot be used, or torch would not draw by this rule.
    """
    if spec.replacement is False:
        refuse("replacement", False, "true: that order is not known", 'write it down and use "sampler": "explicit"')
    return _one_stream(spec, n_samples, Parts(_itself(spec), GOES_ON, "weighted"))


def _itself(spec: JobSpec) -> str:
    """The generator of a sampler that seeds no other: the loader's, or its own."""
    return "torch" if spec.generator == "own" else "loader"


def _one_stream(spec: JobSpec, n_samples: int, parts: Parts) -> Composition:
    """An order that is the same for every rank."""
    parts = parts._replace(
        dealing="alike", num_samples=spec.num_samples or n_samples, words_before=spec.words_before or 0,
        words_between=spec.words_between or 0, words_once=spec.words_once or 0,
    )  # fmt: skip
    check(parts, spec, n_samples)
    return Composition(parts, spec, n_samples, weights_for(spec, n_samples) if parts.draw == "weighted" else None)


# -- torchdata's StatefulDataLoader
#
# Its RandomSampler shuffles when an iterator is made, not when the first index is asked for: so before base_seed, and
# never once more at the end. With worker processes two iterators are made an epoch, one on each side of base_seed, and
# the second is read; persistent workers make two in the first epoch and one in each later one.
#
# - generator "default": a generator of the sampler's own for all epochs, seeded with 2 words of the default generator
#   when the loader is made (words_before: what was drawn until then).
# - "shared": StatefulDataLoader(generator=g): permutations and base_seed from g.
# - "own": torchdata's RandomSampler(generator=g) given to a loader without: permutations only.


class _Paused(Torch):
    """A generator of which others take words after the first chunk of an epoch: a permutation, or 32 draws."""

    def __init__(self, seed: int, pause: int) -> None:
        super().__init__(seed)
        self._pause = pause

    def sample(self, n: int, count: int, /) -> Indices | Permutation:
        """torch.randperm(n), and again and again."""
        first = self.permutation(n)[:count]
        self.skip(self._pause)
        return first if len(first) == count else np.concatenate([first, super().sample(n, count - len(first))])

    def choices(self, n: int, count: int, /) -> Indices:
        """torch.randint(n, (32,)), and again and again."""
        first = super().choices(n, _CHUNK)
        self.skip(self._pause)
        return np.append(first, super().choices(n, -(-max(count - _CHUNK, 0) // _CHUNK) * _CHUNK))[:count]


def stateful_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """The same for every rank: permutations, or draws with replacement, of one generator that goes on.

    Raises:
        JobError: too many samples for torch's 32-bit rule; words_between where it changes nothing.
    """
    default, between = spec.generator == "default", spec.words_between or 0
    if default and between:
        refuse("words_between", between, _LEFT_OUT, "the default generator only seeds, when the loader is made")
    workers, base_words = bool(spec.num_workers), BASE_SEED_WORDS if spec.generator == "shared" else 0
    # Words from the first iterator of the first epoch to the one that is read, and in each epoch beside those.
    lead = rest = 0
    if n_samples <= MOST_OF_TORCH:
        once, chunk = (_CHUNK, _CHUNK) if spec.replacement else (words_of_randperm(n_samples), max(1, n_samples))
        drawn = once * -(-(spec.num_samples or n_samples) // chunk)
        lead, rest = (once + base_words, drawn) if workers else (0, drawn + base_words)
    pause = 0 if workers else base_words
    library = Library(lambda seed: _Paused(seed, pause), base_words=lead, words=lambda kind, n, count: rest)
    parts = Parts("own", GOES_ON, _drawn(spec), seed_drawn_by="torch" if default else None)
    return _one_stream(spec, n_samples, parts._replace(library=library))


# -- samplers that know ranks


def distributed_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """DistributedSampler. Raises JobError: more samples than torch's 32-bit rule shuffles (214,748,363)."""
    return Composition(_of_all_ranks(spec)._replace(drop_last=spec.drop_last), spec, n_samples)


def _of_all_ranks(spec: JobSpec) -> Parts:
    return Parts("torch", RESEEDED if spec.set_epoch else SAME, "permutation" if spec.shuffle else "none", "padded")


def ra_sampler_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """torchvision's reference sampler. Raises JobError: too many samples, or repeats that are no whole number."""
    repeats = REPEATS if spec.repeats is None else spec.repeats
    if not float(repeats).is_integer():
        refuse("repeats", repeats, f'a whole number for "{spec.sampler}"', "timm-repeat-aug takes any number")
    reads = n_samples // ROUND * ROUND // spec.world_size
    return Composition(_of_all_ranks(spec)._replace(repeats=repeats, reads=reads), spec, n_samples)


def timm_repeat_aug_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """timm's sampler: repeats may be any number, and selected_round and selected_ratio tell the length of an epoch, in
    floating point, as timm has it."""
    repeats = REPEATS if spec.repeats is None else spec.repeats
    multiple = ROUND if spec.selected_round is None else spec.selected_round
    whole = multiple and n_samples >= multiple
    most = math.ceil(n_samples * repeats / spec.world_size)
    selected = (n_samples // multiple * multiple if whole else n_samples) / (spec.selected_ratio or spec.world_size)
    # It may be infinite.
    reads = most if selected >= most else math.floor(selected) if whole else math.ceil(selected)
    seeding = BY_EPOCH if spec.set_epoch else SAME
    parts = _of_all_ranks(spec)._replace(seeding=seeding, repeats=repeats, reads=reads, seed=0)
    return Composition(parts, spec, n_samples)


def accelerate_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """A DataLoader that went through Accelerator.prepare; "hf-trainer" is that with the seedable sampler.

    - use_seedable_sampler: randperm(n) seeded with (data_seed, else the seed of set_seed or torch.manual_seed) + epoch.
    - Without, several ranks: prepare() seeds one generator from the default one (rank 0's counts, it is broadcast), and
      RandomSampler draws one permutation an epoch from it, and another one that nobody reads when it comes to its end.
    - The same where the script gave its RandomSampler a generator (generator "own", seeded with the job's seed):
      prepare() leaves that in its place.
    - Without, one rank or dispatch_batches: nothing is changed, as DataLoader(shuffle=True) has it.

    Batches are dealt to the ranks as cards are; with dispatch_batches rank 0 reads all of them, and sends them on.
    loader_drop_last is the same as drop_last here.

    Raises:
        JobError: more samples than torch's 32-bit rule shuffles, or a generator that the loader draws from too.
    """
    if spec.generator == "shared":
        hint = '"own" is for a RandomSampler that was given a generator'
        refuse("generator", "shared", '"own" or left out: that order is not known', hint)
    before, between = spec.words_before or 0, spec.words_between or 0
    if not spec.shuffle:
        parts = Parts("torch", GOES_ON, "none")
    elif spec.use_seedable_sampler:
        parts = Parts("torch", RESEEDED)
        spec = spec if spec.data_seed is None else spec.model_copy(update={"seed": spec.data_seed})
    elif spec.generator == "own":
        parts = Parts("own", GOES_ON, words_before=before, words_between=between)
    elif spec.world_size == 1 or spec.dispatch_batches:
        once = spec.words_once or 0
        parts = Parts("default", GOES_ON, words_before=before, words_between=between, words_once=once)
    else:
        parts = Parts("own", GOES_ON, words_before=before, seed_drawn_by="torch")
    dealing = "first" if spec.dispatch_batches else "batches" if spec.even_batches is False else "even-batches"
    parts = parts._replace(dealing=dealing, drop_last=spec.drop_last or spec.loader_drop_last)
    return Composition(parts, spec, n_samples)
