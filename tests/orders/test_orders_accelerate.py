"""accelerate's prepared DataLoaders, the installed ones, against the orders computed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import PartialState
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import set_seed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orders_support import assert_same_order, job
from support.drawn import cases
from torch.utils.data import DataLoader, RandomSampler

from mlfs.errors import JobError
from mlfs.orders.mt19937 import TORCH_32BIT_LIMIT
from mlfs.orders.order import build_order

PartialState(cpu=True)
SEEDS = st.integers(0, 2**32 - 1)


def prepared(n: int, fields: dict[str, Any], loader_batch_size: int, seed: int = 0) -> Callable[[int, int], list[int]]:
    """What each rank's prepared DataLoader hands out; loaders are made once and iterated epoch after epoch.

    The processes of a job have equal generators when they prepare, and rank 0's is broadcast at each epoch's start:
    so the ranks' loaders are made from the same state each.
    """
    loaders: dict[int, Any] = {}
    for rank in range(fields["world_size"]):
        set_seed(seed)
        torch.rand(fields.get("words_before", 0))  # a word each
        sampler = None
        if fields.get("generator") == "own":
            sampler = RandomSampler(range(n), generator=torch.Generator().manual_seed(seed))
        loader = DataLoader(
            range(n),
            loader_batch_size,
            shuffle=None if sampler else fields.get("shuffle", True),
            sampler=sampler,
            drop_last=fields.get("drop_last", fields.get("loader_drop_last", False)),
        )
        loaders[rank] = prepare_data_loader(
            loader,
            num_processes=fields["world_size"],
            process_index=rank,
            split_batches=fields.get("split_batches", False),
            even_batches=fields.get("even_batches", True),
            use_seedable_sampler=fields.get("use_seedable_sampler", False),
            data_seed=fields.get("data_seed"),
        )
    return lambda epoch, rank: [int(index) for batch in loaders[rank] for index in batch]


@st.composite
def deals(draw: st.DrawFn) -> dict[str, Any]:
    """How batches are dealt."""
    return {
        "world_size": draw(st.integers(1, 7)),
        "batch_size": draw(st.integers(1, 9)),
        "drop_last": draw(st.booleans()),
        "even_batches": draw(st.booleans()),
        "split_batches": draw(st.booleans()),
        "shuffle": draw(st.sampled_from([True, True, True, False])),
    }


@given(n=st.integers(1, 150), deal=deals(), seed=SEEDS, data_seed=st.none() | st.integers(-5, 2**40))
@example(n=3, deal={"world_size": 4, "batch_size": 5}, seed=1, data_seed=None)  # filled up several times round
@example(n=40, deal={"world_size": 4, "batch_size": 5, "even_batches": False}, seed=1, data_seed=None)
@settings(max_examples=cases(40), deadline=None)
def test_the_seedable_sampler(n: int, deal: dict[str, Any], seed: int, data_seed: int | None) -> None:
    size = deal["batch_size"] * (deal["world_size"] if deal.get("split_batches") else 1)
    fields = deal | {"use_seedable_sampler": True} | ({} if data_seed is None else {"data_seed": data_seed})
    if deal["batch_size"] > 1 and "drop_last" in deal:  # either name
        assert_same_order(n, prepared(n, fields, size, seed), epochs=2, sampler="accelerate", seed=seed, **fields)
        fields["loader_drop_last"] = fields.pop("drop_last")
    library = prepared(n, fields, size, seed)
    assert_same_order(n, library, epochs=3, sampler="accelerate", seed=seed, **fields)


@given(n=st.integers(1, 150), deal=deals(), seed=SEEDS, words=st.integers(0, 700))
@settings(max_examples=cases(40), deadline=None)
def test_the_default_sampler_on_several_ranks(n: int, deal: dict[str, Any], seed: int, words: int) -> None:
    fields = deal | {"world_size": deal["world_size"] + 1, "words_before": words}
    size = deal["batch_size"] * (fields["world_size"] if deal.get("split_batches") else 1)
    library = prepared(n, fields, size, seed)
    assert_same_order(n, library, epochs=4, sampler="accelerate", seed=seed, **fields)


@given(n=st.integers(1, 100), batch=st.integers(1, 9), seed=SEEDS, words=st.integers(0, 700), drop_last=st.booleans())
@settings(max_examples=cases(30), deadline=None)
def test_the_default_sampler_on_one_rank(n: int, batch: int, seed: int, words: int, drop_last: bool) -> None:
    fields = {"world_size": 1, "batch_size": batch, "drop_last": drop_last, "words_before": words}
    assert_same_order(n, prepared(n, fields, batch, seed), epochs=4, sampler="accelerate", seed=seed, **fields)


@given(n=st.integers(1, 100), deal=deals(), seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_a_sampler_that_was_given_a_generator_keeps_it(n: int, deal: dict[str, Any], seed: int) -> None:
    fields = deal | {"generator": "own", "shuffle": True}
    if fields["world_size"] == 1:
        fields |= {"even_batches": True, "split_batches": False}
    size = deal["batch_size"] * (deal["world_size"] if fields["split_batches"] else 1)
    library = prepared(n, fields, size, seed)
    assert_same_order(n, library, epochs=4, sampler="accelerate", seed=seed, **fields)


def test_a_generator_that_the_loader_draws_from_too_is_refused() -> None:
    with pytest.raises(JobError, match="that order is not known"):
        build_order(job(sampler="accelerate", generator="shared"), 10)


def test_a_validation_pass_between_the_epochs_draws_from_the_default_generator() -> None:
    fields = {"world_size": 1, "batch_size": 4}
    train = prepared(50, fields, 4, seed=9)
    validation = DataLoader(range(20), batch_size=4)

    def library(epoch: int, rank: int) -> list[int]:
        read = train(epoch, rank)
        assert len(list(validation)) == 5
        return read

    assert_same_order(50, library, epochs=3, sampler="accelerate", seed=9, words_between=2, **fields)


def test_an_epoch_that_is_left_early_makes_no_permutation_for_nobody() -> None:
    """DataLoaders without workers ask the sampler for no more than they hand out, and one batch ahead."""
    fields = {"world_size": 2, "batch_size": 4}
    library = prepared(64, fields, 4, seed=3)
    loader = library.__closure__[0].cell_contents[0]  # type: ignore[index]
    order = build_order(job(epochs=3, sampler="accelerate", seed=3, trailing_permutation=False, **fields), 64)
    for epoch in range(3):
        read = [int(index) for batch, _ in zip(loader, range(4), strict=False) for index in batch]
        assert read == order.rank_stream(epoch, 0)[:16].tolist()


def test_too_many_samples_are_refused_with_a_remedy() -> None:
    with pytest.raises(JobError, match="cannot be shuffled") as caught:
        build_order(job(sampler="accelerate"), TORCH_32BIT_LIMIT)
    assert "root" in caught.value.hint
    assert (
        build_order(job(sampler="accelerate", shuffle=False), TORCH_32BIT_LIMIT).stream_length(0) == TORCH_32BIT_LIMIT
    )


@pytest.mark.parametrize("seedable", [False, True])
def test_rank_0_reads_what_is_dispatched(seedable: bool) -> None:
    """Accelerator(dispatch_batches=True): prepare() seeds no generator, and the other ranks read nothing."""
    torch.manual_seed(7)
    loader = DataLoader(torch.arange(41), batch_size=4, shuffle=True)

    def read(epoch: int, rank: int) -> list[int]:
        if rank:
            return []
        if seedable:
            return torch.randperm(41, generator=torch.Generator().manual_seed(7 + epoch)).tolist()
        return torch.cat(list(loader)).tolist()

    fields = {"sampler": "accelerate", "seed": 7, "dispatch_batches": True, "use_seedable_sampler": seedable}
    assert_same_order(41, read, epochs=3, world_size=3, batch_size=4, **fields)
