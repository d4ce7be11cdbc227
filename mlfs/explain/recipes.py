"""Tries the samplers that are not torch's, each with the seeds that people choose.

In: what was read first, as dataset indices. Out: a `Recipe`, fields of a job, when one explains the reads. Called by
`mlfs.explain.search` after the common seeds of torch. Each try makes a whole epoch's order, so there are few of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.confirm import pattern_of
from mlfs.explain.evidence import NEARLY_BITS, SEED_BITS, bits_near_the_start, bits_of_distinct
from mlfs.explain.fields import EPOCHS, JOB_NAME, Fields
from mlfs.explain.popular import POPULAR_SEEDS, WHOLE_ORDERS
from mlfs.explain.question import DataSet
from mlfs.job import parse_job
from mlfs.orders.order import Indices
from mlfs.orders.registry import build_order

# The buffer that Keras' data set draws from is eight batches long. 32 is its default.
BATCHES_OF_KERAS = (32, 16, 64)
# Of shuffle() in scripts that follow the tutorials, beside one for all names. list_files(seed=...) shuffles like that.
_BUFFERS = (1000, 1024, 10_000)
# Their threads read in nearly the order that they are given.
OF_THREADS = ("keras", "tf-data")
# torchdata's loader with workers reads the second permutation of its generator, which makes it another order than all
# that the search for a seed tries. Its generators: see `mlfs.orders.torch_stateful`.
STATEFUL, _OF_STATEFUL = "torch-stateful", ("default", "shared", "own")
# DLIO's TensorFlow loader shuffles its list of files by its own seed, 123, plus the epoch's number, from 1.
DLIO_SEEDS = (124,)
_WORLDS = (1, 2, 4, 8)
# Of a sampler that repeats its samples three times. One rank stands for two as well, and multiples of three are left
# out: see `mlfs.explain.explanations`. The largest first: a rank of eight reads what one of four might in batches of
# one.
_WORLDS_THAT_REPEAT = (64, 32, 16, 8, 7, 5, 4, 1)
# Ranks of one node, and the first ones of others: each rank's stream is compared with each head.
_MOST_RANKS = 16
# Where its workers begin tells which ranks are here, and their batch size. Processes of other ranks read some of a
# rank's samples too, but not three in a row.
_FEWEST_TELLING, _TELLING_READS = 3, 4
# Python's shuffle is a loop: a second for a million samples.
_MOST_FOR_PYTHON = 200_000


class Recipe(NamedTuple):
    """An explanation.

    Attributes:
        data_set: its number among those that were asked about. fields: those of a job, without those of the data set.
    """

    data_set: int
    fields: Fields


def recipes(n: int, hints: Sequence[int] = ()) -> Iterator[Fields]:
    """The fields that are tried, the likeliest first. `hints`: seeds that are likelier than popular ones."""
    for seed in DLIO_SEEDS:
        yield {"sampler": "numpy", "seed": seed, "legacy": True}
    for seed in dict.fromkeys((*hints, *POPULAR_SEEDS[:WHOLE_ORDERS])):
        yield {"sampler": "hf-datasets", "seed": seed}
        yield {"sampler": "numpy", "seed": seed, "legacy": True}
        yield {"sampler": "numpy", "seed": seed, "legacy": False}
        yield {"sampler": "grain", "seed": seed}
        yield from (
            {"sampler": STATEFUL, "seed": seed, "generator": generator, "num_workers": 1} for generator in _OF_STATEFUL
        )
        if n <= _MOST_FOR_PYTHON:
            yield {"sampler": "python-random", "seed": seed}
            yield from ({"sampler": "keras", "seed": seed, "batch_size": batch} for batch in BATCHES_OF_KERAS)
            yield from (
                {"sampler": "tf-data", "seed": seed, "buffer_size": size} for size in (n, *_BUFFERS) if size <= n
            )
    for world in _WORLDS:
        yield {"sampler": "dali", "shuffle": True, "world_size": world}
        yield {"sampler": "dali", "shuffle_after_epoch": True, "world_size": world}
        yield {"sampler": "paddle", "world_size": world}
    for world in _WORLDS_THAT_REPEAT:
        for seed in dict.fromkeys((0, *hints)):  # timm's sampler with its own defaults is the one with seed 0
            yield {"sampler": "ra-sampler", "seed": seed, "world_size": world}


def repeats_samples(fields: Fields) -> bool:
    """Whether repeated opens have yet to show how many ranks there are (`mlfs.explain.explanations`)."""
    return fields["sampler"] == "ra-sampler" and fields["world_size"] == 1


def same_first_epoch(fields: Fields) -> list[Fields]:
    """The recipes that give the same first epoch as this one.

    They differ in the second: the generator goes on, or begins again, or what is shuffled already is shuffled again.
    """
    sampler = fields["sampler"]
    if sampler in OF_THREADS:  # model.fit on TensorFlow, then any loop
        return [fields | {"passes_between": 1}, fields]
    if sampler == "ra-sampler":
        return [fields, fields | {"set_epoch": False}]
    if sampler == STATEFUL:
        return [fields, fields | {"persistent_workers": True}]
    if sampler not in ("hf-datasets", "numpy", "python-random"):
        return []
    numpy = sampler == "hf-datasets" or (sampler == "numpy" and not fields["legacy"])
    plain = {key: value for key, value in fields.items() if key not in ("sampler", "legacy")}
    both: list[Fields] = [{"sampler": "hf-datasets"}, {"sampler": "numpy", "legacy": False}]
    same = both if numpy else [{key: fields[key] for key in ("sampler", "legacy") if key in fields}]
    # The last of these is DLIO's file_shuffle: seeded anew each epoch, what the epoch before left is shuffled.
    others: tuple[Fields, ...] = ({}, {"reseed": True}, {"in_place": True}, {"reseed": True, "in_place": True})
    return [plain | one | other for other in others for one in same]


def explaining(data_sets: Sequence[DataSet], hints: Sequence[int] = ()) -> Iterator[Recipe | None]:
    """Try all recipes: a None for each that does not explain the reads; the recipe that does comes last."""
    for index, data_set in enumerate(data_sets):
        for fields in recipes(data_set.n, hints):
            explained = tried(fields, data_set)
            yield None if explained is None else Recipe(index, explained)
            if explained is not None:
                return


def tried(fields: Fields, data_set: DataSet) -> Fields | None:
    """The fields, with batch size and ranks as far as they show, if some process reads a rank's first epoch."""
    try:
        spec = parse_job({"name": JOB_NAME, "epochs": EPOCHS, **fields})
        order = build_order(spec, data_set.n)
        streams = [order.rank_stream(0, rank) for rank in range(min(spec.world_size, _MOST_RANKS))]
    except JobError:
        return None  # of a version of mlfs without it, or not for so many samples
    threads = fields["sampler"] in OF_THREADS
    readers = [_Readers(_without_repeats(stream), data_set, threads) for stream in streams]
    if not any(reader.proved for reader in readers):
        return None
    found: Fields = {"epochs": EPOCHS, "world_size": 1} | fields
    ranks = [rank for rank, reader in enumerate(readers) if reader.here]
    if (
        not threads and 2 * len(ranks) < spec.world_size
    ):  # else the others are taken to be here, and not to have begun yet
        found["ranks"] = ranks
    if fields["sampler"] == STATEFUL:
        found["num_workers"] = readers[0].processes
    batch = 0 if threads else max(reader.batch for reader in readers)
    return found | ({"batch_size": batch} if batch and not repeats_samples(found) else {})


def _without_repeats(stream: Indices) -> Indices:
    """A stream without samples that are read again at once, as the first reads have it."""
    return stream[np.flatnonzero(np.diff(stream, prepend=-1))]


class _Readers:
    """The reads of processes in one rank's stream.

    Attributes:
        proved: whether one reads it from its start, so far that it is no chance. here: whether one seems to.
        processes: how many do.
        batch: the rank's batch size, 0 where nothing shows it.
    """

    def __init__(self, stream: Indices, data_set: DataSet, threads: bool) -> None:
        wanted = np.unique(np.fromiter((value for head in data_set.heads for value in head), dtype=np.int64))
        at = np.flatnonzero(np.isin(stream, wanted))
        position_of = dict(zip(stream[at][::-1].tolist(), at[::-1].tolist(), strict=True))
        heads = [[position_of.get(value, -1) for value in head] for head in data_set.heads]
        patterns = [pattern for places in heads if (pattern := pattern_of(places, 0, 1)) is not None]
        proving = [one for one in patterns if bits_of_distinct(data_set.n, one.matched) >= SEED_BITS]
        beginnings = [places[0] for places in heads if _in_a_row(places[:_TELLING_READS])]
        following = sum(map(_in_steps_of_one, heads)) if any(0 in places[:1] for places in heads) else 0
        self.proved = bool(proving) or bits_of_distinct(data_set.n, following) >= SEED_BITS
        if threads:
            bits = max((bits_near_the_start(places, data_set.n) for places in heads), default=0.0)
            self.proved = bits >= NEARLY_BITS
        self.processes, self.here = len(beginnings), bool(beginnings)
        self.batch = next((one.batch for one in proving if one.batch), gcd(*beginnings))


def _in_steps_of_one(places: list[int]) -> int:
    """How many reads a process makes right behind the one before, if it goes forward only.

    Batches whose samples are repeated are not of one length, when each sample is counted once.
    """
    steps = [after - before for before, after in pairwise(places[:-1])]
    return steps.count(1) if steps and places[0] >= 0 and min(steps) >= 1 else 0


def _in_a_row(places: list[int]) -> bool:
    """Whether a process begins at some place of the stream and goes on from there."""
    return (
        len(places) >= _FEWEST_TELLING and places == list(range(places[0], places[0] + len(places))) and places[0] >= 0
    )


# -- Keras' image_dataset_from_directory without a seed

# Keras draws one of a million itself, so all of them are tried (keras/src/utils/image_dataset_utils.py: seed =
# np.random.randint(1e6); Keras 3.15). Most are refuted by numpy's shuffle of the names alone: what is read first stands
# among the first names, as far as the buffer of eight batches reaches that tf.data draws from.

KERAS_SEEDS = 1_000_000
# A shuffle takes some 30 ns a name: beyond so many names a million of them take longer than an epoch.
MOST_SAMPLES_OF_KERAS = 20_000
# Batches of image classifiers that are told by the names alone; a larger buffer lets too many seeds pass.
_WIDEST_OF_KERAS = 8 * max(BATCHES_OF_KERAS)
_SLICE_OF_KERAS = 1000
# So many first reads are compared: they tell 50 bits in a data set of 1,500 files.
_READS_OF_KERAS = 24


def keras_seeds(data_sets: list[DataSet], low: int, high: int) -> Iterator[int | Recipe]:
    """Try the seeds low .. high - 1: the number of those tried from time to time, and last a recipe if there is one."""
    for index, data_set in enumerate(data_sets):
        n, head = data_set.n, np.array(max(data_set.heads, key=len, default=()), dtype=np.int64)[:_READS_OF_KERAS]
        if n > MOST_SAMPLES_OF_KERAS or len(head) < 2 or n // 2 < _WIDEST_OF_KERAS + _READS_OF_KERAS:
            continue
        names, place = np.arange(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        for seed in range(low, high):
            shuffled = names.copy()
            np.random.RandomState(seed).shuffle(shuffled)
            place[shuffled] = names
            if np.count_nonzero(place[head] < _WIDEST_OF_KERAS + _READS_OF_KERAS) >= len(head) - 1:
                for batch in BATCHES_OF_KERAS:
                    found = tried({"sampler": "keras", "seed": seed, "batch_size": batch}, data_set)
                    if found is not None:
                        yield Recipe(index, found)
                        return
            if seed % _SLICE_OF_KERAS == 0:
                yield seed - low
