"""The part of a data set that a job reads: torch's random_split, numpy's and Python's shuffles, plain cuts."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_support import job
from torch.utils.data import random_split

from mlfs.errors import JobError
from mlfs.job import parse_job
from mlfs.orders.split import part_indices, part_lengths

PARTS = st.lists(st.integers(1, 100), min_size=1, max_size=5)


def parts(n: int, lengths: list[float], **fields: object) -> list[list[int]]:
    """All parts of a data set; an empty one must be refused."""
    found = []
    for part, length in enumerate(part_lengths(lengths, n)):
        spec = job(split=lengths, part=part, **fields)
        if not length:
            with pytest.raises(JobError, match="no samples"):
                part_indices(spec, n)
        indices = part_indices(spec, n) if length else np.empty(0, dtype=np.int64)
        assert indices is not None
        found.append(indices.tolist())
    return found


@given(shares=PARTS, n=st.integers(1, 500), seed=st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=100, deadline=None)
@pytest.mark.filterwarnings("ignore:Length of split")
def test_fractions_are_random_splits(shares: list[int], n: int, seed: int) -> None:
    fractions = [share / sum(shares) for share in shares]
    if sum(fractions) > 1:  # torch refuses it, too
        return
    expected = [part.indices for part in random_split(range(n), fractions, torch.Generator().manual_seed(seed))]
    assert parts(n, fractions, split_seed=seed) == expected


@given(lengths=st.lists(st.integers(0, 100), min_size=2, max_size=5).filter(lambda x: sum(x) > 1), seed=st.integers(0))
@settings(max_examples=100, deadline=None)
@pytest.mark.filterwarnings("ignore:Length of split")
def test_lengths_are_random_splits_numpys_pythons_and_plain_cuts(lengths: list[int], seed: int) -> None:
    n, seed = sum(lengths), seed % 2**32
    ends = np.cumsum([0, *lengths])

    def cut(indices: list[int]) -> list[list[int]]:
        return [indices[start:end] for start, end in itertools.pairwise(ends)]

    split = random_split(range(n), lengths, torch.Generator().manual_seed(seed))
    assert parts(n, [*lengths], split_seed=seed) == [list(part.indices) for part in split]
    indices = list(range(n))
    np.random.RandomState(seed).shuffle(indices)  # what np.random.seed and np.random.shuffle are
    assert parts(n, [*lengths], split_seed=seed, split_by="numpy") == cut(indices)
    indices = list(range(n))
    random.Random(seed).shuffle(indices)
    assert parts(n, [*lengths], split_seed=seed, split_by="python") == cut(indices)
    assert parts(n, [*lengths]) == cut(list(range(n)))


def test_the_whole_data_set_is_no_part() -> None:
    assert part_indices(job(), 10) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"split_by": "numpy"}, "split_by"),
        ({"split": [1, 2], "split_by": "numpy"}, "split_by"),
        ({"split": [1, 2], "split_by": "nump", "split_seed": 1}, "split_by"),
        ({"split": [1, 2], "part": 2}, "part"),
        ({"split": []}, "split"),
        ({"split": [-1, 2]}, "split"),
        ({"split": ["a"]}, "split"),
        ({"split": [True]}, "split"),
        ({"split": [0.5, 0.6]}, "split"),
        ({"split": [0.5, 7]}, "split"),
        ({"split": 0.5}, "split"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_job({"epochs": 1, **fields})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"split": [4, 7]}, "split"),
        ({"split": [10, 0], "part": 1}, "part"),
        ({"split": [4, 6], "split_by": "numpy", "split_seed": -1}, "split_seed"),
        ({"split": [4, 6], "split_by": "numpy", "split_seed": 2**32}, "split_seed"),
    ],
)
def test_what_does_not_fit_the_data_set_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(JobError) as caught:
        part_indices(job(**fields), 10)
    assert caught.value.field == field
    assert caught.value.hint
