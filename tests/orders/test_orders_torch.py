"""Permutations and the distributed sampler against the installed torch: equal in every bit, or wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orders_support import assert_same_order, job
from support.drawn import cases
from torch.utils.data import DataLoader, DistributedSampler

from mlfs.errors import JobError
from mlfs.orders.mt19937 import TORCH_32BIT_LIMIT, randperm
from mlfs.orders.order import build_order

# What manual_seed takes.
SEEDS = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.integers(-3, 3), st.sampled_from([2**31, 2**32 - 1, 2**32, -(2**31), 2**63])
)


def torch_randperm(n: int, seed: int) -> np.ndarray:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


@given(n=st.integers(0, 3000), seed=SEEDS)
@settings(max_examples=cases(100), deadline=None)
def test_a_permutation_is_torchs(n: int, seed: int) -> None:
    assert np.array_equal(randperm(n, seed), torch_randperm(n, seed))


@pytest.mark.parametrize("n", [*range(12), 65_536, 65_537, 65_538, 1_281_167])
def test_a_permutation_is_torchs_at_the_edges_of_chunks_and_at_the_size_of_imagenet(n: int) -> None:
    for seed in (0, 1, -1):
        assert np.array_equal(randperm(n, seed), torch_randperm(n, seed))


@pytest.mark.parametrize("n", [-1, TORCH_32BIT_LIMIT])
def test_what_torch_shuffles_by_another_rule_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="cannot permute"):
        randperm(n, 0)


def test_the_sampler_refuses_too_many_samples_with_a_remedy() -> None:
    with pytest.raises(JobError, match="cannot be shuffled") as caught:
        build_order(job(), TORCH_32BIT_LIMIT)
    assert '"shuffle": false' in caught.value.hint
    assert build_order(job(shuffle=False), TORCH_32BIT_LIMIT).stream_length(0) == TORCH_32BIT_LIMIT


@given(
    n=st.integers(1, 400),
    world=st.integers(1, 17),
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, 200),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
@example(n=1, world=16, seed=0, epoch=0, shuffle=True, drop_last=False)  # each rank reads the only sample
@example(n=3, world=7, seed=5, epoch=2, shuffle=True, drop_last=False)  # padded twice round
@example(n=3, world=7, seed=5, epoch=2, shuffle=True, drop_last=True)  # nothing is left
@example(n=7, world=7, seed=5, epoch=2, shuffle=True, drop_last=True)
@settings(max_examples=cases(100), deadline=None)
def test_every_rank_reads_what_torchs_sampler_gives_it(
    n: int, world: int, seed: int, epoch: int, shuffle: bool, drop_last: bool
) -> None:
    spec = job(epochs=201, world_size=world, seed=seed, shuffle=shuffle, drop_last=drop_last)
    order = build_order(spec, n)
    for rank in range(world):
        sampler = DistributedSampler(range(n), world, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        stream = order.rank_stream(epoch, rank)
        assert stream.dtype == np.int64
        assert stream.tolist() == list(sampler)
        assert order.stream_length(epoch) == len(sampler) == len(stream)


@given(n=st.integers(1, 200), world=st.integers(1, 9), drop_last=st.booleans())
@settings(max_examples=cases(50), deadline=None)
def test_sequential_is_the_unshuffled_sampler(n: int, world: int, drop_last: bool) -> None:
    order = build_order(job(sampler="sequential", world_size=world, drop_last=drop_last), n)
    for rank in range(world):
        sampler = DistributedSampler(range(n), world, rank, shuffle=False, drop_last=drop_last)
        assert order.rank_stream(0, rank).tolist() == list(sampler)
        assert order.stream_length(0) == len(sampler)


@given(n=st.integers(1, 200), world=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_sequential_in_pieces_gives_each_sample_to_one_rank(n: int, world: int) -> None:
    order = build_order(job(sampler="sequential", world_size=world, contiguous=True), n)
    pieces = [order.rank_stream(0, rank).tolist() for rank in range(world)]
    assert [index for piece in pieces for index in piece] == list(range(n))
    assert max(map(len, pieces)) == len(pieces[0]) == order.stream_length(0)
    cut = build_order(job(sampler="sequential", world_size=world, contiguous=True, drop_last=True), n)
    assert {len(cut.rank_stream(0, rank)) for rank in range(world)} == {n // world}


def test_sequential_on_one_rank_is_the_data_set_in_order() -> None:
    assert build_order(job(sampler="sequential"), 5).rank_stream(0, 0).tolist() == [0, 1, 2, 3, 4]


def test_set_epoch_forgotten_is_the_first_epochs_order_every_time() -> None:
    sampler = DistributedSampler(range(50), 2, 1, seed=4)
    fields = {"ranks": [1], "world_size": 2, "seed": 4, "epochs": 3}
    assert_same_order(50, lambda epoch, rank: list(sampler), set_epoch=False, **fields)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_hands_out_the_streams_in_order(workers: int) -> None:
    order = build_order(job(epochs=3, world_size=2, seed=11), 53)
    sampler = DistributedSampler(range(53), 2, 1, seed=11)
    loader = DataLoader(range(53), batch_size=4, sampler=sampler, num_workers=workers)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen = torch.cat(list(loader)).tolist()
        assert seen == order.rank_stream(epoch, 1).tolist()


def test_epochs_asked_for_in_any_order_are_the_same() -> None:
    order = build_order(job(epochs=5, seed=1), 100)
    first = [order.rank_stream(epoch, 0).tolist() for epoch in range(5)]
    again = [order.rank_stream(epoch, 0).tolist() for epoch in (4, 0, 3, 1, 2)]
    assert again == [first[epoch] for epoch in (4, 0, 3, 1, 2)]
    assert len({tuple(stream) for stream in first}) == 5


def test_changing_a_stream_does_not_change_the_next_ranks_or_epochs_answer() -> None:
    order = build_order(job(world_size=2, seed=1), 100)
    stream = order.rank_stream(0, 0)
    expected = stream.tolist()
    stream[:] = 0
    assert order.rank_stream(0, 0).tolist() == expected
