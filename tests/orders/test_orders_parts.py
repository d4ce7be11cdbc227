"""Buffers, blocks, repetition and the streams of workers: by the libraries' own classes, or by the loop as written."""

from __future__ import annotations

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
from torch.utils.data.datapipes.iter import IterableWrapper

from mlfs.errors import JobError
from mlfs.orders.deal import DEALINGS
from mlfs.orders.order import build_order

EPOCHS = 3


# -- buffers


@given(n=st.integers(0, 60), size=st.integers(1, 70), seed=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_a_datapipe_shuffles_by_a_buffer_whose_seed_is_told(n: int, size: int, seed: int) -> None:
    pipe: Any = IterableWrapper(range(n)).shuffle(buffer_size=size)

    def read(epoch: int, rank: int) -> list[int]:
        return list(pipe.set_seed(seed + epoch))

    fields = {"draw": "buffer", "generator": "python", "buffer_size": size, "seeding": "seed+epoch", "seed": seed}
    assert_same_order(n, read, epochs=EPOCHS, **fields)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("between", [0, 3])
def test_a_loader_seeds_the_shuffle_of_its_datapipe(workers: int, between: int) -> None:
    pipe: Any = IterableWrapper(range(57)).shuffle(buffer_size=10).sharding_filter()
    torch.manual_seed(42)
    loader = DataLoader(pipe, batch_size=4, num_workers=workers)

    def read(epoch: int, rank: int) -> list[int]:
        reads = torch.cat(list(loader)).tolist()
        torch.randint(100, (between,))
        return reads

    fields: dict[str, Any] = {"draw": "buffer", "generator": "datapipe", "buffer_size": 10, "words_between": between}
    fields |= {"worker_dealing": "samples", "num_workers": workers} if workers else {}
    assert_same_order(57, read, epochs=EPOCHS, seed=42, batch_size=4, **fields)


def webdatasets(n: int, size: int, initial: int, rng: random.Random) -> Iterator[int]:
    """_shuffle and pick of webdataset/filters.py (webdataset 1.0)."""
    data, held = iter(range(n)), list[int]()

    def pick() -> int:
        place = rng.randint(0, len(held) - 1)
        sample = held[place]
        held[place] = held[-1]
        held.pop()
        return sample

    for sample in data:
        held.append(sample)
        if len(held) < size:
            held += [following for following in [next(data, None)] if following is not None]
        if len(held) >= min(initial, size):
            yield pick()
    while held:
        yield pick()


@given(n=st.integers(0, 60), size=st.integers(1, 40), initial=st.integers(1, 50), seed=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_webdataset_hands_out_while_its_buffer_fills(n: int, size: int, initial: int, seed: int) -> None:
    fields: dict[str, Any] = {"draw": "filling-buffer", "generator": "python", "buffer_size": size, "seed": seed}
    fields |= {"seeding": "seed+epoch", "buffer_first": initial}
    assert_same_order(
        n, lambda e, r: list(webdatasets(n, size, initial, random.Random(seed + e))), epochs=EPOCHS, **fields
    )


def of_hf(n: int, size: int, rng: np.random.Generator) -> Iterator[int]:
    """BufferShuffledExamplesIterable of datasets/iterable_dataset.py (datasets 5.2)."""
    held: list[int] = []
    for sample in range(n):
        held.append(sample)
        if len(held) >= size:
            order = rng.permutation(len(held)).tolist()
            out = len(held) - size // 2
            yield from [held[at] for at in order[:out]]
            held = [held[at] for at in order[out:]]
    if held:
        yield from [held[at] for at in rng.permutation(len(held)).tolist()]


@given(n=st.integers(0, 60), size=st.integers(1, 70), seed=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_hf_hands_out_half_of_a_full_buffer(n: int, size: int, seed: int) -> None:
    fields = {"draw": "buffer", "generator": "numpy", "buffer_size": size, "seeding": "same", "seed": seed}
    reads = list(of_hf(n, size, np.random.default_rng(seed)))
    assert_same_order(n, lambda epoch, rank: reads, epochs=EPOCHS, **fields)


# -- blocks


@pytest.mark.parametrize("n", [0, 1, 10, 57])
def test_blocks_are_shuffled(n: int) -> None:
    rng = np.random.default_rng(3)

    def read(epoch: int, rank: int) -> list[int]:
        blocks = [np.arange(start, min(n, start + 10)) for start in range(0, n, 10)]
        order = [blocks[number] for number in rng.permutation(len(blocks))]
        return np.concatenate([*order, np.empty(0, dtype=np.int64)]).tolist()

    fields = {"draw": "blocks", "generator": "numpy", "block_size": 10, "seed": 3}
    assert_same_order(n, read, epochs=EPOCHS, **fields)


# -- repetition


@pytest.mark.parametrize("world", [1, 3])
def test_a_data_set_that_stands_several_times_in_a_row(world: int) -> None:
    def read(epoch: int, rank: int) -> list[int]:
        order = torch.randperm(20 * 3, generator=torch.Generator().manual_seed(5 + epoch)).tolist()
        order += order[: -len(order) % world]
        return [index % 20 for index in order[rank::world]]  # mmcv's RepeatDataset

    fields = {"copies": 3, "seeding": "seed+epoch", "dealing": "padded", "seed": 5, "world_size": world}
    assert_same_order(20, read, epochs=EPOCHS, **fields)


def test_each_sample_several_times_for_other_ranks() -> None:
    def read(epoch: int, rank: int) -> list[int]:
        order = np.random.default_rng(5 + epoch).permutation(20)
        return np.repeat(order, 4)[rank::3].tolist()

    fields = {"repeats": 4, "generator": "numpy", "seeding": "seed+epoch", "seed": 5, "world_size": 3}
    assert_same_order(20, read, epochs=EPOCHS, **fields)


# -- streams of workers


class Apart(IterableDataset[int]):
    """Each worker shuffles a part of its own."""

    def __init__(self, n: int, rank: int, world: int) -> None:
        self.n, self.rank, self.world, self.epoch = n, rank, world, 0

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        number, of = (0, 1) if worker is None else (worker.id, worker.num_workers)
        mine = list(range(self.n))[self.rank :: self.world][number::of]
        random.Random(7 + self.epoch + number).shuffle(mine)
        return iter(mine)


@pytest.mark.parametrize(("n", "world", "workers", "batch"), [(57, 1, 2, 4), (40, 2, 2, 5), (3, 2, 2, 2), (9, 2, 1, 2)])
def test_workers_that_shuffle_apart(n: int, world: int, workers: int, batch: int) -> None:
    def read(epoch: int, rank: int) -> list[int]:
        data = Apart(n, rank, world)
        data.epoch = epoch
        return torch.cat(list(DataLoader(data, batch_size=batch, num_workers=workers))).tolist()

    fields: dict[str, Any] = {"draw": "shuffle", "generator": "python", "seeding": "seed+epoch+worker", "seed": 7}
    fields |= {"worker_dealing": "parts", "num_workers": workers, "world_size": world, "batch_size": batch}
    assert_same_order(n, read, epochs=1, **fields)
    # In each epoch the script shuffles the sorted part anew.
    assert_same_order(n, read, epochs=EPOCHS, **(fields | {"draw": "permutation"}))


@pytest.mark.parametrize("dealing", ["strided", "contiguous", "pieces"])
def test_parts_of_one_length_leave_samples_out(dealing: str) -> None:
    given = {"dealing": dealing, "worker_dealing": "parts", "num_workers": 3, "generator": "numpy", "batch_size": 2}
    order = build_order(job(draw="permutation", seeding="same", drop_last=True, **given), 10)
    assert len(order.rank_stream(0, 0)) == order.stream_length(0) == 9


@pytest.mark.parametrize("dealing", DEALINGS)
@given(n=st.integers(1, 40), world=st.integers(1, 7), batch=st.integers(1, 9), drop_last=st.booleans())
@settings(deadline=None, max_examples=cases(30))
def test_a_stream_is_as_long_as_is_said(dealing: str, n: int, world: int, batch: int, drop_last: bool) -> None:
    spec = job(draw="none", dealing=dealing, world_size=world, batch_size=batch, drop_last=drop_last)
    order = build_order(spec, n)
    streams = [order.rank_stream(0, rank).tolist() for rank in range(world)]
    assert max(map(len, streams)) == order.stream_length(0)
    if dealing == "batches-and-pieces":
        assert len({len(stream) for stream in streams}) == 1
        assert drop_last or set().union(*streams) == set(range(n))


@pytest.mark.parametrize(
    ("fields", "field", "way_out"),
    [
        ({"draw": "buffer", "generator": "python"}, "buffer_size", "needs it"),
        ({"draw": "buffer", "buffer_size": 9}, "generator", "python, numpy"),
        ({"draw": "permutation", "buffer_size": 9}, "buffer_size", "buffer, filling-buffer"),
        ({"draw": "blocks"}, "block_size", "needs it"),
        ({"draw": "sample", "generator": "cpp", "seeding": "same"}, "generator", "cpp draws permutation, shuffle"),
        ({"draw": "permutation", "generator": "cpp"}, "seeding", "seed+epoch"),
        ({"seeding": "split", "generator": "tensorflow"}, "seeding", "fold-in"),
        ({"worker_dealing": "parts"}, "num_workers", "dealt to workers"),
        ({"seeding": "seed+worker"}, "worker_dealing", "parts"),
        ({"worker_dealing": "parts", "num_workers": 2, "dealing": "padded"}, "dealing", "strided"),
        ({"worker_dealing": "parts", "num_workers": 2, "num_samples": 2}, "num_samples", "all of its part"),
        ({"repeats": 2, "endless": True}, "repeats", "endless"),
        ({"repeats": 2, "shard_first": True, "draw": "permutation"}, "repeats", "shard_first"),
        ({"passes_before": 20_000, "draw": "shuffle", "generator": "python"}, "passes_before", "10000"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_with_those_that_do(
    fields: dict[str, object], field: str, way_out: str
) -> None:
    with pytest.raises(JobError) as caught:
        build_order(job(sampler="composed", **fields), 9)
    assert caught.value.field == field
    assert way_out in str(caught.value)
