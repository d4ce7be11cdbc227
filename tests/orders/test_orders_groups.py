"""Draws by weights and of groups, and batches of samples that are alike: by the libraries' own lines."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from orders_support import assert_same_order, job, make_file, manifest_of
from torch.utils.data import DataLoader, Sampler, SubsetRandomSampler, WeightedRandomSampler

from mlfs.errors import JobError
from mlfs.orders.streams import build_streams

EPOCHS = 4


@pytest.fixture
def column(tmp_path: Path) -> Any:
    """A function that writes numbers to a file, and returns its path."""

    def written(numbers: Any) -> str:
        path = tmp_path / "column.npy"
        np.save(path, np.asarray(numbers, dtype=np.float64))
        return str(path)

    return written


def epochs_of(sampler: Sampler[int] | Any, seed: int) -> dict[tuple[int, int], list[int]]:
    """The indices that a DataLoader around a sampler reads in each epoch."""
    torch.manual_seed(seed)
    loader: Any = DataLoader(range(10_000), batch_size=5, sampler=sampler)  # type: ignore[arg-type]
    return {(epoch, 0): torch.cat(list(loader)).tolist() for epoch in range(EPOCHS)}


# -- transformers/trainer_pt_utils.py (transformers 5.13)


def get_length_grouped_indices(lengths: list[int], batch_size: int) -> list[int]:
    mega_batch_mult = min(len(lengths) // (batch_size * 4), 50)
    if mega_batch_mult == 0:
        mega_batch_mult = 1
    indices = torch.randperm(len(lengths))
    megabatch_size = mega_batch_mult * batch_size
    megabatches = [indices[i : i + megabatch_size].tolist() for i in range(0, len(lengths), megabatch_size)]
    megabatches = [sorted(megabatch, key=lambda i: lengths[i], reverse=True) for megabatch in megabatches]
    megabatch_maximums = [lengths[megabatch[0]] for megabatch in megabatches]
    max_idx = int(torch.argmax(torch.tensor(megabatch_maximums)).item())
    megabatches[0][0], megabatches[max_idx][0] = megabatches[max_idx][0], megabatches[0][0]
    return [i for megabatch in megabatches for i in megabatch]


class LengthGroupedSampler(Sampler[int]):
    def __init__(self, batch_size: int, lengths: list[int]) -> None:
        self.batch_size, self.lengths = batch_size, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(get_length_grouped_indices(self.lengths, self.batch_size))


@pytest.mark.parametrize(("n", "batch"), [(93, 8), (1200, 4), (7, 4), (64, 1)])
def test_hf_trainer_groups_by_length(n: int, batch: int, column: Any) -> None:
    lengths = np.random.RandomState(n).randint(1, 60, n).tolist()
    reads = epochs_of(LengthGroupedSampler(batch, lengths), 42)
    fields = {"generator": "loader", "grouping": "by-length", "column_file": column(lengths), "seed": 42}
    assert_same_order(n, lambda e, r: reads[e, r], epochs=EPOCHS, batch_size=batch, **fields)
    assert_same_order(n, lambda e, r: reads[e, r], epochs=EPOCHS, batch_size=2, group_batch=batch, **fields)


# -- torchvision references/detection/group_by_aspect_ratio.py (commit 775e7604)


def _repeat_to_at_least(iterable: list[int], n: int) -> list[int]:
    repeat_times = -(-n // len(iterable))
    return list(chain.from_iterable(repeat(iterable, repeat_times)))


class GroupedBatchSampler:
    def __init__(self, sampler: Iterable[int], group_ids: list[int], batch_size: int) -> None:
        self.sampler, self.group_ids, self.batch_size = sampler, group_ids, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        buffer_per_group: dict[int, list[int]] = defaultdict(list)
        samples_per_group: dict[int, list[int]] = defaultdict(list)
        num_batches = 0
        for idx in self.sampler:
            group_id = self.group_ids[idx]
            buffer_per_group[group_id].append(idx)
            samples_per_group[group_id].append(idx)
            if len(buffer_per_group[group_id]) == self.batch_size:
                yield buffer_per_group[group_id]
                num_batches += 1
                del buffer_per_group[group_id]
        expected_num_batches = len(self.group_ids) // self.batch_size
        num_remaining = expected_num_batches - num_batches
        if num_remaining > 0:
            for group_id, _ in sorted(buffer_per_group.items(), key=lambda x: len(x[1]), reverse=True):
                remaining = self.batch_size - len(buffer_per_group[group_id])
                samples_from_group_id = _repeat_to_at_least(samples_per_group[group_id], remaining)
                buffer_per_group[group_id].extend(samples_from_group_id[:remaining])
                yield buffer_per_group[group_id]
                num_remaining -= 1
                if num_remaining == 0:
                    break


@pytest.mark.parametrize(("n", "batch", "groups"), [(93, 8, 4), (1200, 4, 7), (9, 4, 5), (64, 1, 3), (50, 16, 2)])
def test_torchvisions_detection_reference_batches_of_one_aspect_ratio(
    n: int, batch: int, groups: int, column: Any
) -> None:
    # create_aspect_ratio_groups: the bin of each image's ratio.
    bins = (2 ** np.linspace(-1, 1, groups)).tolist()
    ids = [bisect(bins, ratio) for ratio in np.random.RandomState(n).uniform(0.3, 3, n).tolist()]

    def read(epoch: int, rank: int) -> list[int]:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        return [index for one in GroupedBatchSampler(order, ids, batch) for index in one]

    fields = {"seeding": "seed+epoch", "seed": 3, "grouping": "batches", "column_file": column(ids)}
    assert_same_order(n, read, epochs=EPOCHS, batch_size=batch, **fields)


# -- torchvision/datasets/samplers/clip_sampler.py


class RandomClipSampler(Sampler[int]):
    def __init__(self, clips: list[int], max_clips_per_video: int) -> None:
        self.clips, self.max_clips_per_video = clips, max_clips_per_video

    def __len__(self) -> int:
        return sum(min(length, self.max_clips_per_video) for length in self.clips)

    def __iter__(self) -> Iterator[int]:
        idxs = []
        s = 0
        for length in self.clips:
            size = min(length, self.max_clips_per_video)
            sampled = torch.randperm(length)[:size] + s
            s += length
            idxs.append(sampled)
        idxs_ = torch.cat(idxs)
        perm = torch.randperm(len(idxs_))
        return iter(idxs_[perm].tolist())


def test_torchvision_samples_clips_of_each_video(column: Any) -> None:
    clips = np.random.RandomState(1).randint(1, 9, 30).tolist()
    reads = epochs_of(RandomClipSampler(clips, 3), 5)
    fields = {"draw": "clips", "generator": "loader", "per_group": 3, "seed": 5}
    of_video = column(np.repeat(np.arange(30), clips))
    assert_same_order(sum(clips), lambda e, r: reads[e, r], epochs=EPOCHS, column_file=of_video, **fields)


# -- pytorch_metric_learning/samplers/m_per_class_sampler.py (2.9)


class MPerClassSampler:
    def __init__(self, labels: list[int], m: int, batch_size: int | None, length_before_new_iter: int) -> None:
        self.m_per_class, self.batch_size, self.list_size = m, batch_size, length_before_new_iter
        self.labels_to_indices: dict[int, Any] = defaultdict(list)
        for i, label in enumerate(labels):
            self.labels_to_indices[label].append(i)
        self.labels = list(self.labels_to_indices)
        self.length_of_single_pass = m * len(self.labels)
        if batch_size is None:
            if self.length_of_single_pass < self.list_size:
                self.list_size -= self.list_size % self.length_of_single_pass
        else:
            self.list_size -= self.list_size % batch_size

    def __iter__(self) -> Iterator[int]:
        idx_list = [0] * self.list_size
        i = 0
        divisor = self.length_of_single_pass if self.batch_size is None else self.batch_size
        for _ in range(self.list_size // divisor if divisor < self.list_size else 1):
            np.random.shuffle(self.labels)
            chosen = self.labels if self.batch_size is None else self.labels[: self.batch_size // self.m_per_class]
            for label in chosen:
                t = self.labels_to_indices[label]
                replace = len(t) < self.m_per_class
                idx_list[i : i + self.m_per_class] = np.random.choice(t, size=self.m_per_class, replace=replace)
                i += self.m_per_class
        return iter(idx_list)


@pytest.mark.parametrize(
    ("m", "batch", "length"), [(2, 4, None), (3, None, None), (4, 8, 40), (2, None, 500), (5, None, 9)]
)
def test_m_per_class(m: int, batch: int | None, length: int | None, column: Any) -> None:
    labels = np.random.RandomState(4).randint(0, 7, 61).tolist()
    sampler = MPerClassSampler(labels, m, batch, length or len(labels))
    np.random.seed(42)
    reads = {(epoch, 0): list(map(int, sampler)) for epoch in range(EPOCHS)}
    fields: dict[str, Any] = {"draw": "per-group", "generator": "numpy-legacy", "per_group": m, "seed": 42}
    fields |= ({"groups_at_once": batch // m} if batch else {}) | ({"num_samples": length} if length else {})
    assert_same_order(61, lambda e, r: reads[e, r], epochs=EPOCHS, column_file=column(labels), **fields)


# -- detectron2/data/samplers/distributed_sampler.py


def repeat_factor_indices(factors: torch.Tensor, seed: int) -> Iterator[int]:
    int_part = torch.trunc(factors)
    frac_part = factors - int_part
    g = torch.Generator()
    g.manual_seed(seed)
    while True:
        rands = torch.rand(len(frac_part), generator=g)
        rep_factors = int_part + (rands < frac_part).float()
        indices: list[int] = []
        for dataset_index, rep_factor in enumerate(rep_factors):
            indices.extend([dataset_index] * int(rep_factor.item()))
        permuted = torch.tensor(indices, dtype=torch.int64)[torch.randperm(len(indices), generator=g)]
        yield from permuted.tolist()


@pytest.mark.parametrize("world", [1, 3])
def test_detectron2_repeats_samples_by_their_factors(world: int, column: Any) -> None:
    factors = np.random.RandomState(6).choice([1.0, 1.3, 2.5, 3.0], 60).tolist()
    streams = [islice(repeat_factor_indices(torch.tensor(factors), 7), rank, None, world) for rank in range(world)]
    fields: dict[str, Any] = {"endless": True, "draw": "repeat-factors", "weights_file": column(factors), "seed": 7}
    fields |= {"batch_size": 8, "world_size": world, "epoch_steps": 9}
    assert_same_order(60, lambda epoch, rank: islice(streams[rank], 72), epochs=EPOCHS, **fields)


# -- draws by weights


@pytest.mark.parametrize("generator", ["numpy", "numpy-legacy", "python", "torch", "loader"])
def test_weights(generator: str, column: Any) -> None:
    import random

    weights = np.random.RandomState(8).random(50)
    rng: Any = {"numpy": np.random.default_rng, "numpy-legacy": np.random.RandomState, "python": random.Random}.get(
        generator, lambda seed: torch.Generator().manual_seed(seed)
    )(9)
    if generator == "loader":
        reads = epochs_of(WeightedRandomSampler(weights.tolist(), 30), 9)
    else:
        draw = {
            "python": lambda: rng.choices(range(50), weights.tolist(), k=30),
            "torch": lambda: torch.multinomial(torch.as_tensor(weights), 30, replacement=True, generator=rng).tolist(),
        }.get(generator, lambda: rng.choice(50, 30, p=weights / weights.sum()).tolist())
        reads = {(epoch, 0): draw() for epoch in range(EPOCHS)}
    fields = {"draw": "weighted", "generator": generator, "weights_file": column(weights), "num_samples": 30}
    assert_same_order(50, lambda e, r: reads[e, r], epochs=EPOCHS, seed=9, **fields)


def test_a_loader_that_a_sampler_draws_from_itself() -> None:
    reads = epochs_of(SubsetRandomSampler(range(40)), 11)
    assert_same_order(40, lambda e, r: reads[e, r], epochs=EPOCHS, seed=11, draw="permutation", generator="loader")


# -- columns of the tree


def test_groups_are_directories_or_sizes_of_the_tree(tmp_path: Path, column: Any) -> None:
    for index in range(24):
        path = f"{'abc'[index % 3]}/{index:02}.jpg"
        make_file(tmp_path, path)
        (tmp_path / path).write_bytes(bytes(1 + index * 7 % 11))
    manifest = manifest_of(tmp_path)
    names = sorted(tmp_path.rglob("*.jpg"))
    sizes, places = [name.stat().st_size for name in names], [ord(name.parent.name) for name in names]
    for said, numbers, fields in (
        ("size", sizes, {"grouping": "by-length", "batch_size": 2}),
        ("directory", places, {"draw": "per-group", "per_group": 2, "generator": "numpy-legacy"}),
    ):
        told = build_streams(job(column_file=column(numbers), seed=3, **fields), manifest)
        for cached in (None, 6):  # what a script keeps in memory has its size and its directory all the same
            seen = build_streams(job(column=said, seed=3, cached_samples=cached, **fields), manifest)
            assert seen.dataset_indices(0, 0).tolist() == told.dataset_indices(0, 0).tolist()


def test_a_column_has_a_number_for_each_sample(column: Any) -> None:
    with pytest.raises(JobError, match=r"column file .* has 3 numbers for 9 samples") as caught:
        assert_same_order(9, lambda e, r: [], grouping="batches", column_file=column([1, 2, 3]))
    assert caught.value.field == "column_file"
