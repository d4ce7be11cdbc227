"""Keras' image_dataset_from_directory without a seed: Keras draws one of a million itself, so all of them are tried.

In: first reads as dataset indices, a range of seeds. Out: how many seeds were tried, and a `Recipe` if one explains the
reads. Called by `mlfs.explain.search`. Source: keras/src/utils/image_dataset_utils.py (seed = np.random.randint(1e6);
Keras 3.15).

Most seeds are told by numpy's shuffle of the names alone: what is read first stands among the first names, as far as
the buffer of eight batches reaches that tf.data draws from.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlfs.explain.question import DataSet
from mlfs.explain.recipes import BATCHES_OF_KERAS, Recipe, tried

SEEDS = 1_000_000
# A shuffle takes some 30 ns a name: beyond so many names a million of them take longer than an epoch.
MOST_SAMPLES = 20_000
# Batches of image classifiers that are told by the names alone; a larger buffer lets too many seeds pass.
_WIDEST = 8 * max(BATCHES_OF_KERAS)
_SLICE = 1000
# So many first reads are compared: they tell 50 bits in a data set of 1,500 files.
_READS = 24


def keras_seeds(data_sets: list[DataSet], low: int, high: int) -> Iterator[int | Recipe]:
    """Try the seeds low .. high - 1: the number of those tried from time to time, and last a recipe if there is one."""
    for index, data_set in enumerate(data_sets):
        n, head = data_set.n, np.array(max(data_set.heads, key=len, default=()), dtype=np.int64)[:_READS]
        if n > MOST_SAMPLES or len(head) < 2 or n // 2 < _WIDEST + _READS:
            continue
        names, place = np.arange(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        for seed in range(low, high):
            shuffled = names.copy()
            np.random.RandomState(seed).shuffle(shuffled)
            place[shuffled] = names
            if np.count_nonzero(place[head] < _WIDEST + _READS) >= len(head) - 1:
                for batch in BATCHES_OF_KERAS:
                    found = tried({"sampler": "keras", "seed": seed, "batch_size": batch}, data_set)
                    if found is not None:
                        yield Recipe(index, found)
                        return
            if seed % _SLICE == 0:
                yield seed - low
