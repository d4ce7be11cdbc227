"""Chooses from several explanations of the epochs before the one that gives the reads of this epoch.

In: explanations, the first reads of an epoch by process, as dataset indices. Out: the explanation and the epoch. Called
by `mlfs.explain.inferred_jobs` in a worker thread.

It is called at an epoch's start, when every read counts: so the reads of all processes are evidence together, and only
the head of an order is made where that is possible. Ten reads in all are enough if few processes made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import log2

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.confirm import order_head
from mlfs.explain.fields import Fields
from mlfs.explain.question import DataSet
from mlfs.explain.recipes import OF_THREADS
from mlfs.explain.threads import bits_near_the_start
from mlfs.job import JobSpec, parse_job
from mlfs.orders.registry import build_order
from mlfs.orders.torch_generator import EpochWords

# Some hundred explanations and epochs are tried: 7 bits. Of the 33 that are left 20 would do for chance alone; but a
# wrong choice costs an epoch, and the other 13 cost one or two reads.
FEWEST_BITS = 40
# Workers begin with each epoch, so the first reads should all be in its order; one in five may be of something else.
_LEAST_SHARE = 0.8
# Wide enough for 16 workers with batches of 256.
_HEAD = 4096
_WORDS_OF_A_SEED = 2  # a number of 64 bits


def chosen(explanations: Iterable[Fields], data_set: DataSet, epochs: Sequence[int]) -> tuple[Fields, int] | None:
    """The first explanation whose order, in one of the epochs, begins as the processes' reads do."""
    for fields in explanations:
        spec = parse_job(fields)
        for epoch in dict.fromkeys(epochs):
            try:
                positions = list(_positions(spec, data_set, epoch))
                bits = _bits(positions, data_set)
                if spec.sampler in OF_THREADS:
                    bits = max(bits, *(_bits_of_threads(position_of, data_set) for position_of in positions))
                if bits >= FEWEST_BITS:
                    return fields, epoch
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
    wanted = np.unique(np.fromiter((value for head in data_set.heads for value in head), dtype=np.int64))
    order = build_order(spec, n)
    for rank in spec.ranks:
        stream = order.rank_stream(epoch, rank)
        at = np.flatnonzero(np.isin(stream, wanted))
        yield dict(zip(stream[at][::-1].tolist(), at[::-1].tolist(), strict=True))


def _drawn(spec: JobSpec, epoch: int) -> int:
    return EpochWords(spec, _WORDS_OF_A_SEED).at(epoch).random_int64_seed()


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
