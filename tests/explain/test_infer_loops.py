"""Loops of one's own that nobody registered: by other generators, dealt to several ranks, seeded anew each epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from support.explaining import FILES, explaining, simulate
from torch.utils.data import DataLoader

from mlfs.explain.hypotheses import ranked_fields
from mlfs.explain.question import DataSet
from mlfs.explain.recipes import Recipe
from mlfs.explain.search import find
from mlfs.explain.search_stages import SearchExtent, SeedFound, StageProgress
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.split import part_indices

# Of so few samples the search keeps all orders that it draws, from one test to the next.
N, EPOCHS, BATCH = 1008, 3, 8
Loop = Callable[[int, int], list[list[int]]]


def legacy_in_place(n: int, seed: int) -> list[list[int]]:
    rng, indices = np.random.RandomState(seed), np.arange(n)
    return [(rng.shuffle(indices), indices.tolist())[1] for _ in range(EPOCHS)]


def python_shuffled(n: int, seed: int) -> list[list[int]]:
    rng, indices = random.Random(seed), list(range(n))
    return [(rng.shuffle(indices), list(indices))[1] for _ in range(EPOCHS)]


def python_sampled(n: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.sample(range(n), n) for _ in range(EPOCHS)]


def by_sequence(n: int, seed: int) -> list[list[int]]:
    return [np.random.default_rng([seed, epoch]).permutation(n).tolist() for epoch in range(EPOCHS)]


def by_product(n: int, seed: int) -> list[list[int]]:
    return [np.random.default_rng(seed * 1000 + epoch).permutation(n).tolist() for epoch in range(EPOCHS)]


def in_steps(n: int, seed: int) -> list[list[int]]:
    return [np.random.RandomState(seed + 1000 * epoch).permutation(n).tolist() for epoch in range(EPOCHS)]


def by_keys(n: int, seed: int) -> list[list[int]]:
    """Compared with jax itself by tests/orders/test_orders_composed.py."""
    fields = {"name": "j", "epochs": EPOCHS, "generator": "jax", "seeding": "fold-in", "seed": seed}
    order = build_order(parse_job(fields | {"draw": "permutation"}), n)
    return [order.rank_stream(epoch, 0).tolist() for epoch in range(EPOCHS)]


LOOPS: list[tuple[Loop, int]] = [
    (legacy_in_place, 42), (python_sampled, 7), (by_sequence, 1234), (by_product, 123), (in_steps, 2024), (by_keys, 0),
]  # fmt: skip


def dealt(order: list[int], world: int, rank: int, contiguous: bool) -> list[int]:
    return np.array_split(order, world)[rank].tolist() if contiguous else order[rank::world]


@pytest.mark.parametrize(("loop", "seed"), LOOPS, ids=[loop.__name__ for loop, _ in LOOPS])
@pytest.mark.parametrize(("world", "workers", "contiguous"), [(1, 2, False), (2, 2, False), (4, 0, True)])
def test_a_loop_of_ones_own_is_found_on_all_its_ranks(
    loop: Loop, seed: int, world: int, workers: int, contiguous: bool
) -> None:
    epochs = loop(N, seed)
    streams = [dealt(epochs[0], world, rank, contiguous) for rank in range(world)]
    batches = [[stream[at : at + BATCH] for at in range(0, len(stream), BATCH)] for stream in streams]
    of_workers = [
        list(chain.from_iterable(each[worker :: max(1, workers)]))
        for each in batches
        for worker in range(max(1, workers))
    ]
    data_set = DataSet(N, tuple(tuple(reads[:24]) for reads in of_workers))
    found = list(find([data_set], SearchExtent(((0, 0),), 256, latest=1 << 12)))[-1]
    assert isinstance(found, Recipe), found
    right = []
    for fields in found.orders:
        order = build_order(parse_job({"name": "j"} | fields), N)
        assert [order.rank_stream(0, rank).tolist() for rank in range(world)] == streams
        read = [[order.rank_stream(epoch, rank).tolist() for rank in range(world)] for epoch in range(EPOCHS)]
        right += [read == [[dealt(each, world, rank, contiguous) for rank in range(world)] for each in epochs]]
    assert any(right)
    assert found.fields.get("batch_size", BATCH) == BATCH


def test_a_random_order_is_no_loop_of_ones_own() -> None:
    reads = np.random.default_rng(99_999).permutation(N)[:24].tolist()
    events = list(find([DataSet(N, (tuple(reads),))], SearchExtent(((0, 0),), 256, latest=1 << 12)))
    assert all(isinstance(event, StageProgress) for event in events)


@pytest.mark.parametrize("step", [1000, 7])
def test_a_generator_that_is_seeded_by_a_sum_is_known_from_the_second_epoch_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """for epoch in ...: generator.manual_seed(seed + step * epoch)."""
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            files, predicted = jobs.manifest.files, []
            for epoch in range(4):
                generator = torch.Generator().manual_seed(11 + step * epoch)
                agreed = 0
                for entry in files[torch.randperm(len(files), generator=generator).numpy()].tolist():
                    before = [(job, job.score.agreed) for job in jobs.running.values()]
                    await jobs.read(entry, 7)
                    agreed += any(job.score.agreed > score for job, score in before)
                predicted.append(agreed)
            assert predicted[2] >= FILES - 30, predicted
            assert predicted[3] >= FILES - 2, predicted

    simulate(body)


@pytest.mark.parametrize("seed", [7, 999, 123456789])
@pytest.mark.parametrize("shuffled", [legacy_in_place, python_shuffled, by_sequence])
def test_a_shuffled_list_is_read_whole_before_it_is_a_part_that_is_read_as_it_stands(shuffled: Loop, seed: int) -> None:
    """Both explain the first reads, also of a seed that few people choose."""
    data_set = DataSet(N, (tuple(shuffled(N, seed)[0][:48]),))
    found = list(find([data_set], SearchExtent(((0, 0),), 256, latest=1 << 12)))[-1]
    assert isinstance(found, Recipe)
    assert "split" not in found.fields


@pytest.mark.parametrize("seed", [1, 42, 1337])
def test_what_workers_leave_out_of_their_batches_is_in_memory(seed: int) -> None:
    """MONAI's CacheDataset: no worker reads four samples in a row that the order has so."""
    torch.manual_seed(seed)
    order = list(map(int, DataLoader(range(N), batch_size=None, shuffle=True)))  # type: ignore[arg-type]
    batches = [order[at : at + BATCH] for at in range(0, N, BATCH)]
    heads = [tuple(at for at in chain(*batches[worker::2]) if at >= N // 2)[:12] for worker in (0, 1)]
    found = list(find([DataSet(N, tuple(heads))], SearchExtent(((0, 0),), 256, latest=1 << 12)))[-1]
    assert isinstance(found, Recipe)
    given = {"seed": seed, "cached_samples": N // 2, "num_workers": 2, "batch_size": BATCH}
    assert given.items() <= found.fields.items()
    assert parse_job({"name": "j"} | found.fields).ranks == (0,)


def test_in_a_part_of_many_samples_torchs_orders_are_found_by_single_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfs.explain.recipes.FEW", 100)
    monkeypatch.setattr("mlfs.explain.search.FEW", 100)
    epochs = of_random_split(1234, 0.9)
    found = list(find([DataSet(N, (tuple(epochs[0][:48]),))], SearchExtent(((0, 0),), 256, latest=1 << 12)))[-1]
    assert isinstance(found, SeedFound)
    assert (found.finding.seed, found.finding.part["split_seed"]) == (1234, 1234)


def test_a_fold_by_a_seed_that_few_people_choose_is_found() -> None:
    """sklearn's KFold(5, shuffle=True, random_state=777)."""
    fold = np.sort(np.array_split(np.random.RandomState(777).permutation(N), 5)[3])
    train = np.setdiff1d(np.arange(N), fold)
    read = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(777)).numpy()]
    found = list(find([DataSet(N, (tuple(read[:48].tolist()),))], SearchExtent(((0, 0),), 256, latest=1 << 12)))[-1]
    assert isinstance(found, Recipe)
    given = {"without_part": 3, "split_seed": 777, "split_order": "sorted", "seed": 777}
    assert found.fields | given == found.fields


def of_random_split(seed: int, share: float) -> list[list[int]]:
    """random_split and DataLoader(shuffle=True), both by generators with a seed; the other part's order comes last."""
    train, rest = torch.utils.data.random_split(
        torch.arange(N), [share, 1 - share], generator=torch.Generator().manual_seed(seed)
    )
    generator = torch.Generator().manual_seed(seed)
    orders = [[train.indices[at] for at in torch.randperm(len(train), generator=generator)] for _ in range(EPOCHS)]
    return [*orders, list(rest.indices)]


def of_train_test_split(seed: int, share: float) -> list[list[int]]:
    """sklearn/model_selection/_split.py: the test part is cut off first, rounded up; rows are sampled by pandas."""
    permutation, test = np.random.RandomState(seed).permutation(N), int(np.ceil(N * (1 - share)))
    train, rng = permutation[test:], np.random.RandomState(seed)
    return [*(train[rng.permutation(len(train))].tolist() for _ in range(EPOCHS)), permutation[:test].tolist()]


def of_a_shuffled_list(seed: int, share: float) -> list[list[int]]:
    """random.seed(seed), random.shuffle(files), files[:cut]; another generator with the seed for the epochs."""
    files, cut = list(range(N)), int(share * N)
    random.Random(seed).shuffle(files)
    rng = np.random.default_rng(seed)
    return [*([files[at] for at in rng.permutation(cut)] for _ in range(EPOCHS)), files[cut:]]


def of_train_test_split_and_a_loader(seed: int, share: float) -> list[list[int]]:
    """The same split, read by DataLoader(shuffle=True) after torch.manual_seed(seed) and some words drawn before."""
    (*_, rest), train = of_train_test_split(seed, share), np.random.RandomState(seed).permutation(N)
    train = train[len(rest) :]
    torch.manual_seed(seed)
    torch.rand(100)
    loader = DataLoader(train.tolist(), batch_size=None, shuffle=True)  # type: ignore[arg-type]
    return [*(list(map(int, loader)) for _ in range(EPOCHS)), rest]


def of_a_fold(seed: int, share: float) -> list[list[int]]:
    """sklearn/model_selection/_split.py, KFold(shuffle=True): both parts are in the order of the data set."""
    permutation, folds = np.random.RandomState(seed).permutation(N), round(1 / (1 - share))
    rest = np.sort(np.array_split(permutation, folds)[1])
    train = np.setdiff1d(np.arange(N), rest)
    if share == 0.72:
        train = np.sort(permutation[: int(share * N)])
    orders = [torch.randperm(len(train), generator=torch.Generator().manual_seed(seed + e)) for e in range(EPOCHS)]
    return [*(train[order.numpy()].tolist() for order in orders), rest.tolist()]


SPLITS = [of_random_split, of_train_test_split, of_a_shuffled_list, of_train_test_split_and_a_loader, of_a_fold]


# Nobody cuts at 0.72. All that is tried is tried in vain then, whichever the split is: one by torch and one by numpy.
@pytest.mark.parametrize(
    ("split", "share"),
    [*((split, share) for split in SPLITS for share in (0.8, 0.9, 0.95)), (SPLITS[0], 0.72), (SPLITS[4], 0.72)],
)
def test_a_part_of_a_split_data_set_is_found(split: Callable[[int, float], list[list[int]]], share: float) -> None:
    if split is of_a_fold and share == 0.95:
        share = 0.75  # nobody makes twenty folds
    seed = 1234 if split is not of_train_test_split or share != 0.8 else 2023
    *epochs, rest = split(seed, share)
    batches = [epochs[0][at : at + BATCH] for at in range(0, 48 * BATCH, BATCH)]
    of_workers = [list(chain.from_iterable(batches[worker::2])) for worker in (0, 1)]
    data_set = DataSet(N, tuple(tuple(reads[:24]) for reads in of_workers))
    found = list(find([data_set], SearchExtent(((0, 0),), 256, latest=1 << 12)))[-1]
    if share == 0.72:
        assert isinstance(found, StageProgress)
        return
    assert not isinstance(found, StageProgress)
    if isinstance(found, Recipe):
        jobs = list(found.orders)
    else:
        assert isinstance(found, SeedFound)
        jobs = [dict(found.finding.part) | fields for fields in ranked_fields(found.finding, found.draws)]
    whole = np.arange(N)
    predicted = []
    for fields in jobs:
        spec = parse_job({"name": "j", "epochs": EPOCHS} | fields)
        ids = part_indices(spec, N)
        assert ids is not None
        order = build_order(spec, len(ids))
        predicted.append([whole[ids][order.rank_stream(epoch, 0)].tolist() for epoch in range(EPOCHS)])
        other = spec.without_part if spec.without_part is not None else 1 - (spec.part or 0)
        left = part_indices(spec.model_copy(update={"part": other, "without_part": None}), N)
        assert left is not None
        assert left.tolist() == rest
    assert epochs in predicted


def test_what_is_left_of_a_split_data_set_is_read_to_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and validation are one finding: the second epoch is predicted, and so is its validation."""
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            files, predicted = jobs.manifest.files, []
            generator = torch.Generator().manual_seed(42)
            train, rest = torch.utils.data.random_split(torch.arange(len(files)), [0.8, 0.2], generator=generator)
            generator = torch.Generator().manual_seed(42)
            for _ in range(3):
                shuffled = [train.indices[at] for at in torch.randperm(len(train), generator=generator)]
                for part in (shuffled, rest.indices):
                    agreed = 0
                    for entry in files[np.array(part)].tolist():
                        before = [(job, job.score.agreed) for job in jobs.running.values()]
                        await jobs.read(entry, 7)
                        agreed += any(job.score.agreed > score for job, score in before)
                    predicted.append(agreed / len(part))
            specs = sorted((job.spec.part, job.spec.sampler, job.spec.split_seed) for job in jobs.running.values())
            assert [part for part, _, _ in specs] == [0, 1]
            assert specs[1] == (1, "sequential", 42)
            assert min(predicted[2:]) >= 0.9, predicted

    simulate(body)


def test_so_many_samples_of_each_directory_are_found() -> None:
    """pytorch-metric-learning's MPerClassSampler (2.9.0), where a label is a directory."""
    groups = np.arange(N, dtype=np.int32) // 252
    rng, labels = np.random.RandomState(42), np.arange(N // 252)
    drawn: list[int] = []
    for _ in range(4):
        rng.shuffle(labels)
        drawn += [int(at) for label in labels for at in rng.choice(np.flatnonzero(groups == label), 4, replace=False)]
    events = list(find([DataSet(N, (tuple(drawn[:16]),), groups)], SearchExtent(((0, 0),), 256, latest=1 << 12)))
    (recipe,) = [event for event in events if isinstance(event, Recipe)]
    fields = {"draw": "per-group", "per_group": 4, "column": "directory", "generator": "numpy-legacy", "seed": 42}
    assert fields.items() <= recipe.fields.items()
