"""The part of a data set that a job reads: random_split, numpy's and Python's shuffles, folds, plain cuts, lists."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_support import job, make_file, manifest_of
from support.drawn import cases
from torch.utils.data import random_split

from mlfs.errors import JobError
from mlfs.job import parse_job
from mlfs.orders.layouts.layout import NOTHING
from mlfs.orders.split import part_indices, part_lengths
from mlfs.orders.streams import build_streams

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
@settings(max_examples=cases(50), deadline=None)
@pytest.mark.filterwarnings("ignore:Length of split")
def test_fractions_are_random_splits(shares: list[int], n: int, seed: int) -> None:
    fractions = [share / sum(shares) for share in shares]
    if sum(fractions) > 1:  # torch refuses it, too
        return
    expected = [part.indices for part in random_split(range(n), fractions, torch.Generator().manual_seed(seed))]
    assert parts(n, fractions, split_seed=seed) == expected


@given(lengths=st.lists(st.integers(0, 100), min_size=2, max_size=5).filter(lambda x: sum(x) > 1), seed=st.integers(0))
@settings(max_examples=cases(50), deadline=None)
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


def read_of(n: int, **fields: object) -> list[int]:
    """The indices that a job reads of n samples."""
    indices = part_indices(job(**fields), n)
    assert indices is not None
    return indices.tolist()


@pytest.mark.parametrize(("n", "folds"), [(68, 5), (23, 4), (10, 10)])
def test_folds_are_sklearns(n: int, folds: int) -> None:
    # sklearn/model_selection/_split.py: KFold._iter_test_indices, BaseCrossValidator.split.
    indices = np.arange(n)
    np.random.RandomState(42).shuffle(indices)
    fold_sizes = np.full(folds, n // folds, dtype=int)
    fold_sizes[: n % folds] += 1
    fields = {"split": [1 / folds] * folds, "split_seed": 42, "split_by": "numpy", "split_order": "sorted"}
    for fold, stop in enumerate(np.cumsum(fold_sizes)):
        test_mask = np.zeros(n, dtype=bool)
        test_mask[indices[stop - fold_sizes[fold] : stop]] = True
        assert read_of(n, part=fold, **fields) == np.flatnonzero(test_mask).tolist()
        assert read_of(n, without_part=fold, **fields) == np.flatnonzero(~test_mask).tolist()


def test_a_split_that_has_as_much_of_each_label() -> None:
    # train_test_split(np.arange(29), test_size=0.25, random_state=42, stratify=labels) of sklearn 1.9.1
    labels = np.array([index % 3 if index < 20 else 1 for index in range(29)])
    train = [17, 3, 1, 0, 16, 28, 12, 10, 4, 6, 23, 2, 15, 14, 8, 27, 20, 26, 21, 7, 24]
    test = [22, 25, 11, 13, 18, 5, 9, 19]
    fields = {"split": [0.25, 0.75], "split_seed": 42, "split_by": "numpy", "stratified": True}
    found = [part_indices(job(part=part, **fields), 29, lambda: labels) for part in (1, 0)]
    assert [part.tolist() for part in found if part is not None] == [train, test]


def test_folds_that_have_as_much_of_each_label() -> None:
    # StratifiedKFold(4, shuffle=True, random_state=42).split(labels, labels) of sklearn 1.9.1
    labels = np.repeat([0, 1, 2], [7, 12, 5])
    tests = [[0, 1, 7, 8, 15, 19], [3, 5, 9, 10, 18, 22], [2, 4, 12, 13, 17, 20], [6, 11, 14, 16, 21, 23]]
    fields = {"split": [0.25] * 4, "split_seed": 42, "split_by": "numpy", "split_order": "sorted", "stratified": True}
    for fold, test in enumerate(tests):
        found = part_indices(job(part=fold, **fields), 24, lambda: labels)
        others = part_indices(job(without_part=fold, **fields), 24, lambda: labels)
        assert found is not None
        assert others is not None
        assert (found.tolist(), others.tolist()) == (test, sorted(set(range(24)) - set(test)))


def test_what_was_sampled_and_the_rest_of_a_data_frame() -> None:
    drawn = np.random.RandomState(7).choice(50, 40, replace=False)  # df.sample(frac=0.8, random_state=7)
    fields = {"split": [0.8, 0.2], "split_seed": 7, "split_by": "numpy"}
    assert read_of(50, part=0, **fields) == drawn.tolist()
    assert read_of(50, part=1, split_order="sorted", **fields) == sorted(set(range(50)) - set(drawn.tolist()))


def test_hf_datasets_train_test_split() -> None:
    permutation = np.random.default_rng(42).permutation(51)  # datasets/arrow_dataset.py
    fields = {"split": [0.2, 0.8], "split_seed": 42, "split_by": "default_rng"}
    assert [read_of(51, part=part, **fields) for part in (0, 1)] == [
        permutation[:11].tolist(),
        permutation[11:].tolist(),
    ]


def test_fastai_rounds_the_validation_part_down() -> None:
    drawn = torch.randperm(54, generator=torch.Generator().manual_seed(42)).tolist()
    cut = int(0.2 * 54)  # fastai/data/transforms.py: RandomSplitter
    fields = {"split": [0.2, 0.8], "split_seed": 42, "split_rounding": "down"}
    assert [read_of(54, part=part, **fields) for part in (0, 1)] == [drawn[:cut], drawn[cut:]]


def test_a_list_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "subset.txt"
    path.write_text("5\n3\n11\n")
    assert read_of(12, subset_file=str(path)) == [5, 3, 11]
    with pytest.raises(JobError, match=r"number 2 .* is 11"):
        read_of(11, subset_file=str(path))


def test_samples_that_the_script_keeps_are_not_read(tmp_path: Path) -> None:
    for index in range(12):
        make_file(tmp_path, f"a/{index:02}.jpg")
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3)).tolist()
    streams = build_streams(job(draw="permutation", seed=3, cached_samples=6), manifest_of(tmp_path))
    assert streams.dataset_indices(0, 0).tolist() == order
    read = [streams.sample_ids[index] if index >= 6 else NOTHING for index in order]
    assert streams.epoch_ids(0, 0).tolist() == read
