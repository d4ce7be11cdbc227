"""Scripts that shuffle with numpy or Python's random, run here, against the orders computed for them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_support import assert_same_order, job
from support.drawn import cases

from mlfs.errors import JobError
from mlfs.orders.draws import Draws, EpochDraw
from mlfs.orders.mt19937 import PythonGenerator
from mlfs.orders.order import build_order

SIZES = st.integers(0, 200)
WORLDS = st.integers(1, 6)
EPOCHS = 4


def dealt(n: int, world: int, drop_last: bool, orders: list[list[int]]) -> Callable[[int, int], list[int]]:
    """order[rank::world], as scripts write it."""
    length = n // world if drop_last else n
    return lambda epoch, rank: orders[epoch][rank::world][:length]


@given(n=SIZES, world=WORLDS, drop_last=st.booleans(), legacy=st.booleans(), reseed=st.booleans(), seed=SIZES)
@settings(max_examples=cases(50), deadline=None)
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
@settings(max_examples=cases(30), deadline=None)
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
@settings(max_examples=cases(50), deadline=None)
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


def counting(made: list[int], state_bytes: int = 4) -> Draws:
    """Draws of which each is one more than the one before; `made` has those that were made.

    Args:
        state_bytes: of what an epoch's draw goes on with.
    """

    def state(number: int) -> npt.NDArray[np.int32]:
        return np.broadcast_to(np.int32(number), (state_bytes // 4,))

    def draw(generator: object, last: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        made.append(int(last[0]))
        return last[:1], state(int(last[0]) + 1)

    return Draws(EpochDraw(draw, state(0), 1), lambda: PythonGenerator(0), lambda before, epoch: (before, before), True)


@given(asked=st.lists(st.integers(0, 90), max_size=30), most=st.integers(1, 4))
@settings(max_examples=cases(30), deadline=None)
def test_any_epoch_is_drawn_in_any_order(asked: list[int], most: int) -> None:
    draws = counting([], state_bytes=(64 << 20) // most)
    for epoch in asked:
        assert draws.epoch(epoch).tolist() == [epoch]


def test_going_on_draws_each_epoch_once_and_going_back_does_not_begin_anew() -> None:
    made: list[int] = []
    draws = counting(made)
    for epoch in range(40):
        for _ in range(3):
            draws.epoch(epoch)
    assert made == list(range(40))
    assert draws.epoch(20).tolist() == [20]
    assert made[40:] == [17, 18, 19, 20]
