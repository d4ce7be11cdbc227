"""Repeated augmentation read by one or two ranks looks like a plain permutation: tells it by repeated opens.

In: a finding, the first opens of each process with all their repeats. Out: fields of a job, or None. Called by
`mlfs.explain.inference`, in a worker thread, when a permutation was found.

A sampler that repeats each sample three times and deals them to `world` ranks gives rank r the places r, r + world,
r + 2 world, ... of "aaabbbccc...". One rank reads each sample three times in a row; of two ranks one reads a sample
twice and the next one once, and the other the other way round. Without the repeats both read the permutation itself.
Four ranks and more leave samples out, which no plain permutation does: those are found as any other sampler is
(`mlfs.explain.recipes`). Three ranks, or a multiple of three, read what three runs side by side of a third of the ranks
would read, and those are likelier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from math import gcd
from typing import NamedTuple

from mlfs.explain.confirm import Finding, order_head
from mlfs.explain.fields import Fields
from mlfs.orders.repeat_aug import REPEATS

WORLDS = (1, 2)
# Of two opens in a row the second is the next place of the stream, but at the end of a batch: 7 of 8 in batches of 8.
# In a plain permutation it is so in 2 of 3 at most, and if each file is opened twice in 3 of 4.
_LEAST_SHARE = 0.8
# So many opens show the repeats of five samples.
_FEWEST_OPENS = 15
# Of the permutation: wide enough for the first batches of 32 workers with batches of 512.
_HEAD = 1 << 13


def repeating(ranked: list[Fields], found: Fields | None) -> list[Fields]:
    """The explanations of a permutation, led by that of a sampler that repeats its samples, where one was found."""
    if found is None or not ranked:
        return ranked
    kept = {name: value for name, value in ranked[0].items() if name in ("root", "layout", "name", "epochs")}
    return [kept | found, kept | found | {"set_epoch": False}, *ranked]


class _Reader(NamedTuple):
    """The rank that a process reads for, and the place of the rank's stream at which it begins."""

    rank: int
    start: int


def repeated(finding: Finding, opens: Sequence[Sequence[int]]) -> Fields | None:
    """The fields by which the opens are those of a sampler that repeats samples; None if they are not.

    Args:
        opens: the dataset indices that each process opened first, each as often as it was opened.
    """
    if finding.world != 1 or finding.seed < 0 or finding.words_before:
        return None
    return repeated_permutation(finding.n, finding.seed, opens)


def repeated_permutation(n: int, seed: int, opens: Sequence[Sequence[int]]) -> Fields | None:
    """The same for torch's permutation of n samples by a seed."""
    heads = [head for head in opens if len(head) >= _FEWEST_OPENS]
    order = order_head(n, seed, 0, _HEAD)
    for world in WORLDS:
        streams = [[order[at // REPEATS] for at in range(rank, len(order) * REPEATS, world)] for rank in range(world)]
        readers = [_reader(head, streams) for head in heads]
        found = [reader for reader in readers if reader is not None]
        if found and 2 * len(found) >= len(heads):
            batch = gcd(*(reader.start for reader in found))
            fields: Fields = {"sampler": "ra-sampler", "seed": seed, "world_size": world}
            return fields | ({"batch_size": batch} if batch else {})
    return None


def _reader(head: Sequence[int], streams: list[list[int]]) -> _Reader | None:
    """Whose stream a process reads: None if it is no rank's."""
    runs = [(index, len(list(run))) for index, run in groupby(head)]
    for rank, stream in enumerate(streams):
        last = {index: place for place, index in enumerate(stream)}
        places: list[int] = []
        for index, times in runs:
            end = last.get(index, -1)
            following = places[-1] + 1 if places else -1
            # Whoever begins in the middle of a sample's repeats has the last ones of them.
            begin = following if _is_at(stream, following, index) else end - times + 1
            if end < 0 or not _is_at(stream, begin, index):
                begin = stream.index(index) if end >= 0 else -2
            places += [begin + number if _is_at(stream, begin + number, index) else -2 for number in range(times)]
        hits = sum(after == place + 1 for place, after in pairwise(places))
        if hits >= _LEAST_SHARE * (len(places) - 1) and places[0] >= 0:
            return _Reader(rank, places[0])
    return None


def _is_at(stream: list[int], place: int, index: int) -> bool:
    return 0 <= place < len(stream) and stream[place] == index
