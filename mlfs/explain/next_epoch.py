"""Explains an epoch by what is known of the epochs before it.

In: hypotheses of the epochs before, the first reads of an epoch by process, as dataset indices. Out: the job that it
goes on as. Called by `mlfs.explain.inference` in a worker thread.

Several hypotheses explain a first epoch, and differ in the second one. So the first reads of the second one choose
(`chosen`). If none of them fits, the script has drawn something in between from the generator that draws the epochs:
a validation loader's seed, random crops in the main process. Then the epoch begins soon after the one before it, and a
look at so few words takes tenths of a second (`goes_on`).

It is done at an epoch's start, when every read counts: so the reads of all processes are evidence together, and only
the head of an order is made where that is possible. Ten reads in all are enough if few processes made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import log2
from typing import NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.confirm import order_head
from mlfs.explain.evidence import NEXT_EPOCH_BITS, bits_near_the_start
from mlfs.explain.fields import Fields, proposed
from mlfs.explain.question import DataSet, places_of
from mlfs.explain.recipes import OF_THREADS
from mlfs.explain.search_stages import SAMPLER_SEED_WORD, Draw, WordsAsked
from mlfs.explain.word_search import place_nearby
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.job import JobSpec
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import build_order


class NextEpoch(NamedTuple):
    """A job that goes on with an epoch.

    Attributes:
        epoch: of the job, the one that has begun. was_chosen: whether it is one of those that explained the epoch
            before.
    """

    hypothesis: Hypothesis
    epoch: int
    was_chosen: bool


def next_epoch(
    ranked: Sequence[Hypothesis], drawings: Sequence[JobSpec], last: int, data_set: DataSet
) -> NextEpoch | None:
    """The job that goes on with an epoch by what explained those before it; None if its reads are nothing of that.

    Reading in the order of the files is left to those who look where it begins: each part of it goes on like it.

    Args:
        ranked: explain the epochs up to `last`. drawings: those of them that torch's default generator drew.
    """
    others = [hypothesis for hypothesis in ranked if hypothesis.spec.sampler != "sequential"]
    found = chosen([hypothesis.spec for hypothesis in others], data_set, (last + 1, last, 0))
    if found is not None:
        return NextEpoch(others[found[0]], found[1], True)
    going_on = goes_on(drawings, last, data_set)
    return None if going_on is None else NextEpoch(going_on, 0, False)


# -- one of those that explained the epoch before

# Workers begin with each epoch, so the first reads should all be in its order; one in five may be of something else.
_LEAST_SHARE = 0.8
# Wide enough for 16 workers with batches of 256.
_HEAD = 4096


def chosen(specs: Iterable[JobSpec], data_set: DataSet, epochs: Sequence[int]) -> tuple[int, int] | None:
    """The first one whose order, in the first of these epochs, begins as the processes' reads do: its number, and the
    epoch.

    The order that goes on comes before one that begins again: what repeats an epoch in each epoch does both.
    """
    specs = list(specs)
    for epoch in dict.fromkeys(epochs):
        for number, spec in enumerate(specs):
            try:
                positions = list(_positions(spec, data_set, epoch))
                bits = _bits(positions, data_set)
                if spec.sampler in OF_THREADS:
                    bits = max(bits, *(_bits_of_threads(position_of, data_set) for position_of in positions))
                if bits >= NEXT_EPOCH_BITS:
                    return number, epoch
            except JobError:
                continue  # an order that mlfs cannot make for so many samples
    return None


def _positions(spec: JobSpec, data_set: DataSet, epoch: int) -> Iterable[Mapping[int, int]]:
    """For each rank, where dataset indices stand in its stream: all those that were read, and perhaps others."""
    n, default = data_set.n, spec.sampler == "torch-random" and spec.generator == "default"
    if default or (spec.sampler == "torch-distributed" and spec.world_size == 1):
        seed = _drawn(spec, epoch) if default else spec.seed + (epoch if spec.set_epoch else 0)
        yield {value: at for at, value in enumerate(order_head(n, seed, 0, _HEAD))}
        return
    order = build_order(spec, n)
    for rank in spec.ranks:
        stream = order.rank_stream(epoch, rank)
        if spec.endless and epoch:  # the batch before may have the end of one pass and the beginning of the next
            stream = np.concatenate([order.rank_stream(epoch - 1, rank)[-spec.batch_size :], stream])
        yield places_of(stream, data_set.read)


def _drawn(spec: JobSpec, epoch: int) -> int:
    words = TorchWords(spec.seed)
    words.skip(passed_before(spec, epoch) + BASE_SEED_WORDS)
    return words.random_int64_seed()


def _bits(ranks: list[Mapping[int, int]], data_set: DataSet) -> float:
    """How much evidence the reads are: each counts that comes right behind the last one of its process.

    0 if too many of the reads are not in the streams at all.
    """
    inside = following = total = 0
    for head in data_set.heads:
        following_here, inside_here = max(_fitting(position_of, head) for position_of in ranks)
        total, inside, following = total + len(head), inside + inside_here, following + following_here
    return following * log2(max(2, data_set.n)) if inside >= _LEAST_SHARE * total else 0.0


def _bits_of_threads(position_of: Mapping[int, int], data_set: DataSet) -> float:
    """The same where threads read, which don't read right behind each other."""
    heads = ([position_of.get(value, -1) for value in head] for head in data_set.heads)
    return max((bits_near_the_start(places, data_set.n) for places in heads), default=0.0)


def _fitting(position_of: Mapping[int, int], head: Sequence[int]) -> tuple[int, int]:
    """How many of a process' reads come right behind the one before, and how many are in the stream."""
    places = [position_of.get(value, -2) for value in head]
    return sum(after == place + 1 for place, after in pairwise(places)), sum(place >= 0 for place in places)


# -- further on in the same generator

# A validation loader, or the random crops of some thousand images: looked at in an instant.
NEAR = 1 << 16
# Random crops of a hundred thousand images: some tenths of a second.
ONWARD = 1 << 20
# Each takes that long: as many as one search finds at once when it is not known which generator is right.
MOST_GENERATORS = 16
BASE_SEED_WORDS = SEED_WORDS = 2
"""What a loader's iterator and its sampler's seed take from the default generator."""


def goes_on(drawings: Sequence[JobSpec], last: int, data_set: DataSet) -> Hypothesis | None:
    """The job that begins with the epoch that the reads begin; None if it is nowhere near.

    Args:
        drawings: explain the epochs up to `last`, by torch's default generator.
    """
    known: dict[tuple[int, int], JobSpec] = {}
    for spec in drawings:
        known.setdefault((spec.seed, passed_before(spec, last)), spec)
    for low, high in ((0, NEAR), (NEAR, ONWARD)):
        for (seed, passed), spec in list(known.items())[:MOST_GENERATORS]:
            spans = ((passed + low, passed + high),)
            found = place_nearby(data_set, WordsAsked(seed, True, SAMPLER_SEED_WORD, spans))
            going_on = continued([spec], last, (Draw(seed, found.words),)) if found is not None else []
            if going_on:
                given = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude={"words_once"})
                return next(iter(proposed([given | going_on[0]], Origin.EPOCH_BEFORE)), None)
    return None


def continued(drawings: Sequence[JobSpec], last: int, draws: Sequence[Draw]) -> list[Fields]:
    """The fields that say what a script draws between two epochs whose seeds one generator may have drawn.

    Args:
        drawings: explain the epochs up to `last`, by torch's default generator.
        draws: that may have given the seed of the epoch after it.

    Returns:
        fields to replace those of the explanation with; none if both epochs have no generator in common.
    """
    found: list[Fields] = []
    for spec in drawings:
        for seed, words in draws:
            passed = words - passed_before(spec, last)
            if seed == spec.seed and passed >= SEED_WORDS:
                found.append({"seed": seed, "words_before": words} | _step(passed))
    return [fields for at, fields in enumerate(found) if fields not in found[:at]]


def passed_before(spec: JobSpec, epoch: int) -> int:
    """Words that the default generator has given before an epoch: its `words_before` if it were the first."""
    step = (spec.words_between or 0) + SEED_WORDS + (0 if spec.persistent_workers else BASE_SEED_WORDS)
    return (spec.words_before or 0) + epoch * step + ((spec.words_once or 0) if epoch else 0)


def _step(words: int) -> Fields:
    """Fields of a job whose epoch takes so many words of its generator."""
    if words >= BASE_SEED_WORDS + SEED_WORDS:
        return {"words_between": words - BASE_SEED_WORDS - SEED_WORDS}
    return {"words_between": words - SEED_WORDS, "persistent_workers": True}
