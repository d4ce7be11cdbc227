"""Scripts that shuffle with numpy or Python's random, run here, against the orders computed for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_support import assert_same_order, job

from mlfs.errors import JobError
from mlfs.orders.draws import Checkpoints
from mlfs.orders.order import build_order
from mlfs.orders.python_mt import PythonGenerator

SIZES = st.integers(0, 200)
WORLDS = st.integers(1, 6)
EPOCHS = 4


def dealt(n: int, world: int, drop_last: bool, orders: list[list[int]]) -> Callable[[int, int], list[int]]:
    """order[rank::world], as scripts write it."""
    length = n // world if drop_last else n
    return lambda epoch, rank: orders[epoch][rank::world][:length]


@given(n=SIZES, world=WORLDS, drop_last=st.booleans(), legacy=st.booleans(), reseed=st.booleans(), seed=SIZES)
@settings(max_examples=100, deadline=None)
def test_numpys_permutation_each_epoch(
    n: int, world: int, drop_last: bool, legacy: bool, reseed: bool, seed: int
) -> None:
    make = np.random.RandomState if legacy else np.random.default_rng
    rng = make(seed)
    orders = []
    for epoch in range(EPOCHS):
        rng = make(seed + epoch) if reseed else rng
        orders.append(rng.permutation(n).tolist())
    fields = {"legacy": legacy, "reseed": reseed, "drop_last": drop_last, "world_size": world}
    assert_same_order(n, dealt(n, world, drop_last, orders), epochs=EPOCHS, sampler="numpy", seed=seed, **fields)


@given(n=SIZES, legacy=st.booleans(), reseed=st.booleans(), seed=st.integers(0, 2**32 - EPOCHS))
@settings(max_examples=60, deadline=None)
def test_numpys_shuffle_of_what_the_epoch_before_left(n: int, legacy: bool, reseed: bool, seed: int) -> None:
    make = np.random.RandomState if legacy else np.random.default_rng
    rng, indices, orders = make(seed), np.arange(n), []
    for epoch in range(EPOCHS):
        rng = make(seed + epoch) if reseed else rng
        rng.shuffle(indices)
        orders.append(indices.tolist())
    fields = {"legacy": legacy, "reseed": reseed, "in_place": True}
    assert_same_order(n, dealt(n, 1, False, orders), epochs=EPOCHS, sampler="numpy", seed=seed, **fields)


def test_numpys_seed_sets_the_legacy_generator() -> None:
    np.random.seed(77)
    orders = [np.random.permutation(90).tolist() for _ in range(3)]
    assert_same_order(90, dealt(90, 1, False, orders), epochs=3, sampler="numpy", seed=77, legacy=True)


@given(n=SIZES, world=WORLDS, in_place=st.booleans(), reseed=st.booleans(), seed=st.integers(-(2**70), 2**70))
@settings(max_examples=100, deadline=None)
def test_pythons_shuffle(n: int, world: int, in_place: bool, reseed: bool, seed: int) -> None:
    rng, indices, orders = random.Random(seed), list(range(n)), []
    for epoch in range(EPOCHS):
        if reseed:
            rng.seed(seed + epoch)
        indices = indices if in_place else list(range(n))
        rng.shuffle(indices)
        orders.append(list(indices))
    fields = {"reseed": reseed, "world_size": world} | ({} if in_place else {"in_place": False})
    assert_same_order(n, dealt(n, world, False, orders), epochs=EPOCHS, sampler="python-random", seed=seed, **fields)


@pytest.mark.parametrize("n", [*range(9), 255, 256, 257, 32_767, 32_768, 65_536, 131_071, 300_000])
def test_pythons_shuffle_where_draws_get_another_bit_and_over_many_chunks(n: int) -> None:
    rng, ours = random.Random(5), PythonGenerator(5)
    for _ in range(2):  # the second goes on where the first stopped
        expected, values = list(range(n)), np.arange(n, dtype=np.int32)
        rng.shuffle(expected)
        ours.shuffle(values)
        assert values.tolist() == expected


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"sampler": "numpy", "seed": -1}, "0 or more"),
        ({"sampler": "hf-datasets", "seed": -1}, "0 or more"),
        ({"sampler": "numpy", "seed": 2**32, "legacy": True}, "0 to 4294967295"),
    ],
)
def test_seeds_that_numpy_does_not_take_are_refused(fields: dict[str, object], allowed: str) -> None:
    with pytest.raises(JobError, match=allowed) as caught:
        build_order(job(**fields), 5)
    assert caught.value.field == "seed"


@given(asked=st.lists(st.integers(-1, 90), max_size=30), most=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_checkpoints_give_any_epoch_in_any_order(asked: list[int], most: int) -> None:
    @cache
    def state(epoch: int) -> tuple[int, ...]:
        return () if epoch < 0 else (*state(epoch - 1), epoch)

    checkpoints = Checkpoints[tuple[int, ...]]((), lambda before, epoch: (*before, epoch), most)
    for epoch in asked:
        assert checkpoints.after(epoch) == state(epoch)


def test_going_on_makes_each_epoch_once_and_going_back_does_not_begin_anew() -> None:
    made: list[int] = []

    def advance(before: int, epoch: int) -> int:
        made.append(epoch)
        return before + 1

    checkpoints = Checkpoints(0, advance, most=2)
    for epoch in range(40):
        for _ in range(3):
            checkpoints.after(epoch)
    assert made == list(range(40))
    assert checkpoints.after(20) == 21
    assert made[40:] == [17, 18, 19, 20]
