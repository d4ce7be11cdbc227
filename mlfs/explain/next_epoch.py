"""Finds the hypothesis by which a job goes on with an epoch, by those that explained the epochs before.

In: hypotheses, and an epoch's first reads. Out: the one that the epoch goes on with. Called by `mlfs.explain.inference`
in a worker thread.

Several hypotheses explain a first epoch, and differ in the second one. So the first reads of the second one choose
(`chosen`). If none of them fits, the script has drawn something in between from the generator that draws the epochs: a
validation loader's seed, random crops in the main process. Then the epoch begins soon after the one before it, and a
look at so few words takes tenths of a second (`goes_on`).

It is done at an epoch's start, when every read counts: so the reads of all processes are evidence together, and only
the head of an order is made where that is possible. Ten reads in all are enough if few processes made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.chance import NEXT_EPOCH_BITS
from mlfs.explain.confirm import order_head
from mlfs.explain.fields import Fields, proposed
from mlfs.explain.question import DataSet
from mlfs.explain.screen import EpochPlaces, screen
from mlfs.explain.search_stages import SAMPLER_SEED_WORD, Draw, WordsAsked
from mlfs.explain.word_search import place_nearby
from mlfs.explain.words import ONWARD
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.job import JobSpec
from mlfs.orders.generators import BASE_SEED_WORDS
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import Indices, build_order


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
    return goes_on(drawings, last, data_set)


# -- one of those that explained the epoch before

# Wide enough for 16 workers with batches of 256.
_HEAD = 4096


def chosen(specs: Iterable[JobSpec], data_set: DataSet, epochs: Sequence[int]) -> tuple[int, int] | None:
    """The one whose order, in the first of these epochs, explains most of how the processes' reads begin, the first of
    those that explain as much: its number, and the epoch.

    The order that goes on comes before one that begins again: what repeats an epoch in each epoch does both. The end of
    the epoch before may be among the reads, which such an order explains too.
    """
    specs, read = list(specs), np.fromiter(data_set.read, dtype=np.int64)
    processes = np.repeat(np.arange(len(data_set.heads)), [len(head) for head in data_set.heads])
    for epoch in dict.fromkeys(epochs):
        best, most = -1, NEXT_EPOCH_BITS
        for number, spec in enumerate(specs):
            try:
                places = EpochPlaces.of(_streams(spec, data_set.n, epoch), data_set.n)
            except JobError:
                continue  # an order that mlfs cannot make for so many samples
            hits = screen(places._replace(samples=data_set.n), read, processes)
            if hits.bits > most or (hits.bits == most and best < 0):
                best, most = number, hits.bits
                if hits.explains_all:
                    break
        if best >= 0:
            return best, epoch
    return None


def _streams(spec: JobSpec, n: int, epoch: int) -> list[Indices]:
    """The stream of each rank, or worker that takes single samples: its beginning at least."""
    default = spec.sampler == "torch-random" and spec.generator == "default"
    if default or (spec.sampler == "torch-distributed" and spec.world_size == 1):
        seed = _drawn(spec, epoch) if default else spec.seed + (epoch if spec.set_epoch else 0)
        return [np.array(order_head(n, seed, 0, _HEAD), dtype=np.int64)]
    order, turns = build_order(spec, n), (spec.num_workers or 1) if spec.worker_dealing == "samples" else 1
    streams, step = [order.rank_stream(epoch, rank) for rank in spec.ranks], spec.batch_size * turns
    if spec.endless and epoch:  # the batch before may have the end of one pass and the beginning of the next
        ends, later = [order.rank_stream(epoch - 1, rank)[-step:] for rank in spec.ranks], np.array(streams)[:, :-step]
        streams = list(np.hstack([np.where(np.isin(ends, later), -1, ends), later]))  # of one pass alone
    return [stream[turn::turns] for stream in streams for turn in range(turns)]


def _drawn(spec: JobSpec, epoch: int) -> int:
    words = TorchWords(spec.seed)
    words.skip(passed_before(spec, epoch) + BASE_SEED_WORDS)
    return words.random_int64_seed()


# -- further on in the same generator

# A validation loader, or the random crops of some thousand images: looked at in an instant.
NEAR = 1 << 16
# Each takes that long: as many as one search finds at once when it is not known which generator is right.
MOST_GENERATORS = 16
SEED_WORDS = 2  # what a sampler's seed takes from the default generator, beside what its loader's iterator does


def goes_on(drawings: Sequence[JobSpec], last: int, data_set: DataSet) -> NextEpoch | None:
    """The job that goes on with the epoch that the reads begin; None if that is nowhere near.

    It has the earlier epochs too, where as many words lie between these: so it is registered for the next run. Else it
    begins with this one.

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
            if found is not None and going_on:
                given = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude={"words_once"})
                from_here = given | going_on[0]
                from_start = from_here | {"words_before": spec.words_before or 0}
                for hypothesis in proposed([from_start, from_here], Origin.EPOCH_BEFORE):
                    for epoch in (last + 1, 0):
                        if passed_before(hypothesis.spec, epoch) == found.words:
                            return NextEpoch(hypothesis, epoch, False)
    return None


def continued(drawings: Sequence[JobSpec], last: int, draws: Sequence[Draw]) -> list[Fields]:
    """The fields that say what a script draws between two epochs whose seeds one generator may have drawn.

    Args:
        drawings: explain the epochs up to `last`, by torch's default generator.
        draws: that may have given the seed of the epoch after it.

    Returns:
        fields to replace those of the hypothesis with; none if both epochs have no generator in common.
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
