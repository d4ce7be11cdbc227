"""torch.utils.data.random_split and its like: the part of the data set that a job reads.

In: a job's split, part, split_seed and split_by; the data set's length. Out: which dataset indices the part has, in the
part's own order, so that every sampler then works on 0 .. n_part - 1. Called by `mlfs.orders.streams`.
Source: torch/utils/data/dataset.py, random_split (torch 2.13): fractions are rounded down and what is left is dealt one
each from the first part on; one randperm(n) is cut. Without split_seed 0 .. n-1 is cut instead, unshuffled. Scripts
that shuffle the indices themselves use numpy's RandomState (sklearn's train_test_split too, and cuts the test part off
first) or Python's random.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from mlfs.errors import JobError
from mlfs.job.spec import are_fractions
from mlfs.orders.order import Indices
from mlfs.orders.permutation import randperm
from mlfs.orders.python_mt import PythonGenerator
from mlfs.orders.shuffle import Permutation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlfs.job import JobSpec


_LEGACY_SEEDS = 1 << 32


def part_lengths(lengths: Sequence[float], n: int) -> list[int]:
    """How many samples each part has.

    Raises:
        JobError: whole numbers that don't add up to n.
    """
    if are_fractions(lengths):
        whole = [math.floor(n * fraction) for fraction in lengths]
        for index in range(n - sum(whole)):
            whole[index % len(whole)] += 1
        return whole
    whole = [int(length) for length in lengths]
    if sum(whole) != n:
        hint = "random_split wants lengths that add up to the number of samples, or fractions that add up to 1"
        message = f'job field "split" adds up to {sum(whole)}, but layout and root give {n} samples'
        raise JobError(message, hint, "split")
    return whole


def part_indices(spec: JobSpec, n: int) -> Indices | None:
    """The dataset indices of the job's part, shape (length of the part,); None when the job reads the whole data set.

    Raises:
        JobError: the lengths don't add up, or the part is empty.
    """
    if spec.split is None:
        return None
    lengths = part_lengths(spec.split, n)
    part = spec.part or 0
    if not lengths[part]:
        raise JobError(f'job field "part" is {part}, which has no samples', f"the parts have {lengths}", "part")
    end = list(accumulate(lengths))[part]
    cut = slice(end - lengths[part], end)
    if spec.split_seed is None:
        return np.arange(cut.start, cut.stop, dtype=np.int64)
    return shuffled(n, spec.split_seed, spec.split_by or "torch")[cut].astype(np.int64)


def shuffled(n: int, seed: int, by: str) -> Indices | Permutation:
    """0 .. n-1 in the order that is cut, by a name that `split_by` may have.

    Raises:
        JobError: the generator takes no such seed.
    """
    if by == "numpy":
        if not 0 <= seed < _LEGACY_SEEDS:
            message = f'job field "split_seed" is {seed}, must be 0 to {_LEGACY_SEEDS - 1} for numpy'
            raise JobError(message, "numpy takes no other", "split_seed")
        return np.random.RandomState(seed).permutation(n)
    if by == "python":
        indices = np.arange(n, dtype=np.int32)
        PythonGenerator(seed).shuffle(indices)
        return indices
    return randperm(n, seed)
