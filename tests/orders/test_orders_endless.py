"""Streams without an end, seeds that another generator draws, what workers take in turn: by the real libraries."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_support import assert_same_order, job
from support.drawn import cases
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from mlfs.orders.order import build_order


class TrainingSampler:
    """detectron2's TrainingSampler and mmengine's InfiniteSampler, which begin with the same lines."""

    def __init__(self, size: int, seed: int, rank: int, world_size: int, shuffle: bool = True) -> None:
        self._size, self._seed, self._shuffle = size, seed, shuffle
        self._rank, self._world_size = rank, world_size

    def __iter__(self) -> Iterator[int]:
        yield from itertools.islice(self._infinite_indices(), self._rank, None, self._world_size)

    def _infinite_indices(self) -> Iterator[int]:
        g = torch.Generator()
        g.manual_seed(self._seed)
        while True:
            if self._shuffle:
                yield from torch.randperm(self._size, generator=g).tolist()
            else:
                yield from torch.arange(self._size).tolist()


@given(
    n=st.integers(1, 90),
    world=st.integers(1, 4),
    batch=st.integers(1, 20),
    steps=st.none() | st.integers(1, 9),
    shuffle=st.booleans(),
    drawn=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=cases(40), deadline=None)
def test_an_endless_stream_is_cut_into_epochs_of_whole_batches(
    n: int, world: int, batch: int, steps: int | None, shuffle: bool, drawn: bool, seed: int
) -> None:
    fields: dict[str, Any] = {"endless": True, "seed": seed, "world_size": world, "batch_size": batch, "epochs": 4}
    fields |= {"draw": "permutation" if shuffle else "none"} | ({"epoch_steps": steps} if steps else {})
    used = seed
    if drawn:  # detectron2's shared_random_seed, mmengine's sync_random_seed
        used = int(np.random.RandomState(seed).randint(2**31))
        fields["seed_drawn_by"] = "numpy-legacy"
    an_epoch = batch * (steps or -(-n // (batch * world)))
    streams = [iter(TrainingSampler(n, used, rank, world, shuffle)) for rank in range(world)]
    assert_same_order(n, lambda epoch, rank: itertools.islice(streams[rank], an_epoch), **fields)


def test_an_endless_stream_of_batches_goes_to_ranks_in_turn() -> None:
    stream = list(itertools.islice(iter(TrainingSampler(10, 3, 0, 1)), 48))
    order = build_order(job(endless=True, seed=3, dealing="batches", batch_size=2, world_size=2, epochs=4), 10)
    read = [[order.rank_stream(epoch, rank).tolist() for epoch in range(4)] for rank in range(2)]
    dealt = np.array(stream).reshape(-1, 2, 2)
    for rank in range(2):
        assert np.concatenate(read[rank]).tolist() == dealt[:, rank].reshape(-1).tolist()


@pytest.mark.parametrize("passes", [0, 1])
def test_fastai_draws_the_seed_of_each_epoch_from_the_last_ones_generator(passes: int) -> None:
    random.seed(42)
    rng = random.Random(random.randint(0, 2**32 - 1))  # fastai/data/load.py: DataLoader.__init__
    read = []
    for _ in range(5):
        rng = random.Random(rng.randint(0, 2**32 - 1))  # randomize, shuffle_fn
        read.append(rng.sample(range(55), 55))
    fields = {"draw": "sample", "generator": "python", "seeding": "drawn", "seed_drawn_by": "python", "seed": 42}
    assert_same_order(55, lambda epoch, rank: read[epoch + passes], epochs=4, passes_before=passes, **fields)


def test_ignite_draws_a_seed_below_a_thousand_million_and_seeds_each_epoch_with_its_sum() -> None:
    torch.manual_seed(42)
    seed = int(torch.randint(0, int(1e9), (1,)).item())  # ignite/engine/deterministic.py: _init_run

    def epoch_of(epoch: int, rank: int) -> list[int]:
        torch.manual_seed(seed + epoch)  # _setup_seed
        return torch.cat(list(DataLoader(torch.arange(55), batch_size=5, shuffle=True))).tolist()

    fields = {"generator": "default", "seeding": "seed+epoch", "seed_drawn_by": "torch", "seed_below": 10**9}
    assert_same_order(55, epoch_of, seed=42, epochs=4, **fields)


@pytest.mark.parametrize("below", [1, 1000, 2**28 - 1, 2**28, 10**9, 2**32, 2**40])
def test_torch_draws_large_numbers_from_two_words(below: int) -> None:
    seed = int(torch.randint(0, below, (1,), generator=torch.Generator().manual_seed(7)).item())
    expected = torch.randperm(30, generator=torch.Generator().manual_seed(seed)).tolist()
    order = build_order(job(draw="permutation", seed=7, seed_drawn_by="torch", seed_below=below), 30)
    assert order.rank_stream(0, 0).tolist() == expected


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("generator", ["default", "shared"])
@pytest.mark.parametrize("seeding", ["goes-on", "seed+epoch"])
def test_a_loop_around_a_data_loader_is_a_composition(generator: str, persistent: bool, seeding: str) -> None:
    shared = torch.Generator() if generator == "shared" else None
    seeded = torch.manual_seed if shared is None else shared.manual_seed
    seeded(5)
    workers = {"num_workers": 1, "persistent_workers": True} if persistent else {}
    loader: Any = DataLoader(torch.arange(40), batch_size=8, shuffle=True, generator=shared, **workers)

    def epoch_of(epoch: int, rank: int) -> list[int]:
        if seeding != "goes-on":
            seeded(5 + epoch)
        return torch.cat(list(loader)).tolist()

    fields = {"generator": generator, "seeding": seeding, "persistent_workers": persistent, "seed": 5}
    assert_same_order(40, epoch_of, epochs=4, draw="permutation", **fields)


class Strided(IterableDataset[int]):
    """A stream of which each worker takes every so many-th sample, as detectron2's ToIterableDataset (0.6) has it."""

    def __init__(self, indices: list[int]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(self._indices[worker.id :: worker.num_workers] if worker else self._indices)


@pytest.mark.parametrize(("n", "workers", "batch"), [(50, 2, 4), (48, 2, 4), (7, 2, 4), (9, 1, 4)])
def test_workers_that_take_samples_in_turn(n: int, workers: int, batch: int) -> None:
    indices = torch.randperm(n, generator=torch.Generator().manual_seed(9)).tolist()
    read = torch.cat(list(DataLoader(Strided(indices), batch_size=batch, num_workers=workers))).tolist()
    fields = {"draw": "permutation", "seed": 9, "batch_size": batch, "num_workers": workers}
    assert_same_order(n, lambda epoch, rank: read, worker_dealing="samples", **fields)


@pytest.mark.parametrize(("n", "world"), [(50, 3), (48, 4), (7, 4)])
def test_fastais_ranks_read_pieces_of_what_is_filled_up(n: int, world: int) -> None:
    def read(epoch: int, rank: int) -> list[int]:
        # fastai/distributed.py: DistributedDL.get_idxs
        order = torch.randperm(n, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        n_padded = -(-n // world) * world
        order += order[: n_padded - n]
        return order[rank * n_padded // world : (rank + 1) * n_padded // world]

    assert_same_order(n, read, seed=3, seeding="seed+epoch", dealing="padded-pieces", world_size=world, epochs=3)
