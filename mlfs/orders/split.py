"""The samples that a job reads of its data set: a part of a split, of a list, or all but those that a script keeps.

In: a job's split, part, without_part, split_seed, split_by, split_rounding, split_order, stratified, subset_file; the
data set's length. Out: which dataset indices are read, in the part's own order, so that every sampler then works on
0 .. n_part - 1. Called by `mlfs.orders.streams`. Sources: torch/utils/data/dataset.py, random_split (torch 2.13): one
randperm(n) is cut; fractions are rounded down, and what is left is dealt one each from the first part on. Without
split_seed 0 .. n-1 is cut instead, unshuffled. sklearn/model_selection/_split.py (sklearn 1.9): the same by numpy's
RandomState; train_test_split cuts the test part off first, KFold and StratifiedKFold sort both parts.
datasets/arrow_dataset.py, train_test_split (datasets 5.2): the same by default_rng. fastai/data/transforms.py,
RandomSplitter: the first part is rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.job.spec import are_fractions
from mlfs.orders.draws import places_of
from mlfs.orders.generators import LIBRARIES, Generator, check_seed
from mlfs.orders.order import Indices
from mlfs.orders.order_file import read_weights
from mlfs.orders.shuffle import Permutation

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_GENERATOR_OF: Final[Mapping[str, str]] = {
    "torch": "torch", "numpy": "numpy-legacy", "default_rng": "numpy", "python": "python",
}  # fmt: skip
Labels = Callable[[], npt.NDArray[np.int64]]


def part_lengths(lengths: Sequence[float], n: int, down: bool = False) -> list[int]:
    """How many samples each part has.

    Args:
        down: whether the last part has all that is left by fractions that are rounded down.

    Raises:
        JobError: whole numbers that don't add up to n.
    """
    if are_fractions(lengths):
        whole = [math.floor(n * fraction) for fraction in lengths]
        for index in range(n - sum(whole)):
            whole[-1 if down else index % len(whole)] += 1
        return whole
    whole = [int(length) for length in lengths]
    if sum(whole) != n:
        hint = "random_split wants lengths that add up to the number of samples, or fractions that add up to 1"
        message = f'job field "split" adds up to {sum(whole)}, but layout and root give {n} samples'
        raise JobError(message, hint, "split")
    return whole


def part_indices(spec: JobSpec, n: int, labels: Labels | None = None) -> Indices | None:
    """The dataset indices of the job's part, shape (length of the part,); None when the job reads the whole data set.

    Args:
        labels: gives a number for the label of each sample, by dataset index.

    Raises:
        JobError: the lengths don't add up, the part is empty, or the list has other numbers than indices.
    """
    if spec.subset_file is not None:
        return _listed(spec.subset_file, n)
    if spec.split is None:
        return None
    lengths = part_lengths(spec.split, n, spec.split_rounding == "down")
    without = spec.without_part is not None
    part = spec.without_part if spec.without_part is not None else spec.part or 0
    if not (n - lengths[part] if without else lengths[part]):
        field = "without_part" if without else "part"
        raise JobError(f'job field "{field}" is {part}, which has no samples', f"the parts have {lengths}", field)
    if spec.stratified and labels is not None:
        seed, is_sorted = spec.split_seed or 0, spec.split_order == "sorted"
        if is_sorted and len(set(spec.split)) == 1:
            return np.flatnonzero((_folds(labels(), len(lengths), seed) == part) != without)
        of_labels = _of_each_label(labels(), lengths, seed)[part].astype(np.int64)
        return np.sort(of_labels) if is_sorted else of_labels
    end = list(accumulate(lengths))[part]
    begin = end - lengths[part]
    drawn = np.arange(n) if spec.split_seed is None else shuffled(n, spec.split_seed, spec.split_by or "torch")
    mine = np.delete(drawn, slice(begin, end)) if without else drawn[begin:end]
    return (np.sort(mine) if spec.split_order == "sorted" else mine).astype(np.int64)


def _listed(path: str, n: int) -> Indices:
    read = read_weights(path, "subset_file")
    bad = np.flatnonzero(~((read >= 0) & (read < n) & (read == np.floor(read))))
    if len(bad):
        message = f"the subset file {path!r}: number {bad[0]} (from 0) is {read[bad[0]]:g}"
        raise JobError(message, f"dataset indices are 0 to {n - 1}", "subset_file")
    return read.astype(np.int64)


def shuffled(n: int, seed: int, by: str) -> Indices | Permutation:
    """0 .. n-1 in the order that is cut, by a name that `split_by` may have.

    Raises:
        JobError: the generator takes no such seed.
    """
    check_seed(_GENERATOR_OF[by], seed, "split_seed", by)
    generator: Generator = LIBRARIES[_GENERATOR_OF[by]].make(seed)
    return generator.permutation(n)


def _of_each_label(labels: npt.NDArray[np.int64], lengths: Sequence[int], seed: int) -> list[Indices]:
    """The two parts of sklearn's StratifiedShuffleSplit, the test part first: train_test_split(stratify=labels)."""
    test, train = lengths
    of_label = places_of(np.unique(labels, return_inverse=True)[1])
    counts = np.array([len(places) for places in of_label])
    rng = np.random.RandomState(seed)
    trained = _near_shares(counts, train, rng)
    tested = _near_shares(counts - trained, test, rng)
    parts: tuple[list[Indices], list[Indices]] = ([], [])
    for indices, in_train, in_test in zip(of_label, trained.tolist(), tested.tolist(), strict=True):
        drawn = indices[rng.permutation(len(indices))]
        parts[1].append(drawn[:in_train])
        parts[0].append(drawn[in_train : in_train + in_test])
    second = rng.permutation(np.concatenate(parts[1]))
    return [rng.permutation(np.concatenate(parts[0])), second]


def _folds(labels: npt.NDArray[np.int64], count: int, seed: int) -> npt.NDArray[np.int64]:
    """The number of the fold whose test part has each sample, by sklearn's StratifiedKFold(count, shuffle=True)."""
    _, first, by_value = np.unique(labels, return_index=True, return_inverse=True)
    label = np.argsort(np.argsort(first))[by_value]  # labels are numbered as they come up
    in_order, kinds = np.sort(label), len(first)
    shares = np.array([np.bincount(in_order[fold::count], minlength=kinds) for fold in range(count)])
    folds, rng = np.empty(len(labels), dtype=np.int64), np.random.RandomState(seed)
    for number in range(kinds):
        of_label = np.arange(count).repeat(shares[:, number])
        rng.shuffle(of_label)
        folds[label == number] = of_label
    return folds


def _near_shares(counts: npt.NDArray[np.int64], drawn: int, rng: np.random.RandomState) -> npt.NDArray[np.int64]:
    """Whole numbers near to each label's share of what is drawn; ties by chance. sklearn's _approximate_mode."""
    shares = counts / counts.sum() * drawn
    whole = np.floor(shares)
    missing = int(drawn - whole.sum())
    rest = shares - whole
    for value in np.unique(rest)[::-1]:
        if not missing:
            break
        (tied,) = np.where(rest == value)
        more = rng.choice(tied, size=min(len(tied), missing), replace=False)
        whole[more] += 1
        missing -= len(more)
    numbers: npt.NDArray[np.int64] = whole.astype(np.int64)
    return numbers
