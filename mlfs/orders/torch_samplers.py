"""torch's samplers, bit for bit, and what is built around them, as compositions.

In: a job's seed, generator, words_before, words_between, words_once, persistent_workers, trailing_permutation,
replacement, num_samples, weights_file; for DistributedSampler shuffle, drop_last, set_epoch and world_size. Out: the
dataset indices of each rank; but for DistributedSampler and accelerate the same for every rank (each has a generator of
its own, seeded alike). Made by `mlfs.orders.registry`; `mlfs.orders.composed` does the work. Sources:
torch/utils/data/sampler.py, dataloader.py and distributed.py (torch 2.13); accelerate/data_loader.py (1.15).

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
order of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlfs.errors import JobError
from mlfs.orders.columns import weights_for
from mlfs.orders.composed import Composition, Parts, check_weighted
from mlfs.orders.draws import Column, Kind
from mlfs.orders.order import Resolve
from mlfs.orders.permutation import words_of_randperm
from mlfs.orders.seeding import Seeding
from mlfs.orders.torch_generator import check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_GOES_ON: Final = Seeding("goes-on")
_RESEEDED: Final = Seeding("linear", seed=1, epoch=1)


def random_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """RandomSampler: as many permutations as num_samples needs, or num_samples draws with replacement, an epoch.

    Raises:
        JobError: too many samples for torch's 32-bit rule; trailing_permutation where it changes nothing.
    """
    check_length(n_samples)
    if spec.trailing_permutation is not None and (spec.generator == "default" or spec.replacement):
        hint = 'the default generator only seeds; with "replacement" there are no permutations'
        message = 'job field "trailing_permutation" must be left out: it changes nothing for this job'
        raise JobError(message, hint, "trailing_permutation")
    draw: Kind = "with-replacement" if spec.replacement else "sample"
    return _one_stream(spec, n_samples, Parts(spec.generator or "default", _GOES_ON, draw))


def subset_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """SubsetRandomSampler over the data set or a part of it. Raises JobError: too many samples."""
    check_length(n_samples)
    return _one_stream(spec, n_samples, Parts(_itself(spec), _GOES_ON, "permutation"))


def weighted_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """WeightedRandomSampler with replacement: num_samples draws an epoch.

    Draws without replacement follow another rule (vectorised exponentials): they need the sampler "explicit".

    Raises:
        JobError: the file cannot be used, or torch would not draw by this rule.
    """
    if spec.replacement is False:
        message = 'job field "replacement" is false: that order is not known'
        raise JobError(message, 'write it down and use "sampler": "explicit"', "replacement")
    check_weighted(spec.num_samples or n_samples)
    parts = Parts(_itself(spec), _GOES_ON, "weighted")
    return _one_stream(spec, n_samples, parts, weights_for(spec, n_samples))


def distributed_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """DistributedSampler. Raises JobError: more samples than torch's 32-bit rule shuffles (214,748,363)."""
    if spec.shuffle:
        check_length(n_samples, "shuffle")
    seeding = _RESEEDED if spec.set_epoch else Seeding("same")
    draw: Kind = "permutation" if spec.shuffle else "none"
    return Composition(Parts("torch", seeding, draw, "padded", drop_last=spec.drop_last), spec, n_samples)


def _itself(spec: JobSpec) -> str:
    """The generator of a sampler that seeds no other: the loader's, or its own."""
    return "torch" if spec.generator == "own" else "loader"


def _one_stream(spec: JobSpec, n_samples: int, parts: Parts, column: Column | None = None) -> Composition:
    """An order that is the same for every rank."""
    parts = parts._replace(
        dealing="alike", drawn=spec.num_samples or n_samples, words_before=spec.words_before or 0,
        words_between=spec.words_between or 0, words_once=spec.words_once or 0,
    )  # fmt: skip
    return Composition(parts, spec, n_samples, column)


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
    if spec.shuffle:
        check_length(n_samples, "shuffle")
    if spec.generator == "shared":
        message = 'job field "generator" is "shared", must be "own" or left out: that order is not known'
        raise JobError(message, '"own" is for a RandomSampler that was given a generator', "generator")
    before, between = spec.words_before or 0, spec.words_between or 0
    if not spec.shuffle:
        parts = Parts("torch", _GOES_ON, "none")
    elif spec.use_seedable_sampler:
        parts = Parts("torch", _RESEEDED)
        spec = spec if spec.data_seed is None else spec.model_copy(update={"seed": spec.data_seed})
    elif spec.generator == "own":
        parts = Parts("own", _GOES_ON, words_before=before, words_between=between)
    elif spec.world_size == 1 or spec.dispatch_batches:
        once = spec.words_once or 0
        parts = Parts("default", _GOES_ON, words_before=before, words_between=between, words_once=once)
    else:
        parts = Parts("own", _GOES_ON, words_before=before, seed_drawn_by="torch")
    dealing = "first" if spec.dispatch_batches else "batches" if spec.even_batches is False else "even-batches"
    parts = parts._replace(dealing=dealing, drop_last=spec.drop_last or spec.loader_drop_last)
    return Composition(parts, spec, n_samples)


def words_of_generator(spec: JobSpec, n_samples: int) -> int:
    """Words that an epoch takes from the generator that all ranks of accelerate share."""
    return (1 if spec.trailing_permutation is False else 2) * words_of_randperm(n_samples)
