"""The generators and shuffles under the orders of DALI, Grain, tf.data and Keras: known answers, loops as the oracle.

The orders themselves are compared with what the libraries gave (test_orders_recorded.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders_support import job
from support.drawn import cases

from mlfs.errors import JobError
from mlfs.orders.counters import op_seeds, philox_words, shuffle_pass
from mlfs.orders.cpp_random import Mt64Words, index_shuffle, seed_sequence
from mlfs.orders.generators import LIBRARIES
from mlfs.orders.mt19937 import PythonGenerator, TorchWords
from mlfs.orders.order import build_order

SEEDS = st.integers(0, 2**32 - 1)


def test_mt19937_64_gives_the_word_that_the_cpp_standard_names() -> None:
    words = Mt64Words(5489)
    words.take(9_000)
    assert int(words.take(1_000)[-1]) == 9981545732273789042


@given(parts=st.lists(st.integers(0, 700), max_size=6), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=30, deadline=None)
def test_words_do_not_depend_on_how_many_are_taken_at_once(parts: list[int], seed: int) -> None:
    words = Mt64Words(seed)
    assert np.concatenate([words.take(part) for part in [*parts, 5]]).tolist() == (
        Mt64Words(seed).take(sum(parts) + 5).tolist()
    )


def test_philox_gives_the_known_answers_of_its_authors() -> None:
    assert philox_words(0, 0, 0, 4).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    full = 2**64 - 1
    ones = philox_words(full, full, 0, 9)
    assert ones.tolist()[5:] == philox_words(-1, -1, 5, 4).tolist()


@given(start=st.integers(0, 20_000), count=st.integers(0, 40))
@settings(max_examples=30, deadline=None)
def test_philox_words_can_be_taken_from_anywhere(start: int, count: int) -> None:
    assert philox_words(7, 9, start, count).tolist() == philox_words(7, 9, 0, 20_040)[start : start + count].tolist()


def lemire(word: Callable[[], int], bits: int, bound: int) -> int:
    """A number below a bound, as libstdc++ draws it."""
    product = word() * bound
    while product % (1 << bits) < (1 << bits) % bound:
        product = word() * bound
    return product >> bits


def std_shuffle(n: int, word: Callable[[], int], bits: int) -> list[int]:
    """std::shuffle of libstdc++, step by step."""
    values = list(range(n))
    at = 1
    if n > 1 and ((1 << bits) - 1) // n < n:
        swaps = [lemire(word, bits, i + 1) for i in range(1, n)]
    else:
        swaps = [lemire(word, bits, 2)] if n > 1 and n % 2 == 0 else []
        for i in range(1 + len(swaps), n, 2):
            swaps += divmod(lemire(word, bits, (i + 1) * (i + 2)), i + 2)
    for other in swaps:
        values[at], values[other] = values[other], values[at]
        at += 1
    return values


def one_by_one(words: TorchWords | Mt64Words) -> Callable[[], int]:
    ready = iter([])  # type: ignore[var-annotated]

    def word() -> int:
        nonlocal ready
        for value in ready:
            return int(value)
        ready = iter(words.take(5000).tolist())
        return int(next(ready))

    return word


@given(n=st.integers(0, 300), seed=SEEDS)
@settings(max_examples=cases(30), deadline=None)
def test_short_std_shuffles_are_libstdcxxs(n: int, seed: int) -> None:
    assert LIBRARIES["cpp"].make(seed).permutation(n).tolist() == std_shuffle(n, one_by_one(TorchWords(seed)), 32)
    wide = seed << 32 | seed
    assert LIBRARIES["cpp-64"].make(wide).permutation(n).tolist() == std_shuffle(n, one_by_one(Mt64Words(wide)), 64)


@pytest.mark.parametrize("n", [65_535, 65_536, 65_537, 300_001])
def test_long_std_shuffles_draw_words_again_where_libstdcxx_does(n: int) -> None:
    assert LIBRARIES["cpp"].make(524287).permutation(n).tolist() == std_shuffle(n, one_by_one(TorchWords(524287)), 32)


def test_a_seed_sequence_is_the_cpp_standards() -> None:
    # std::seed_seq{seed} filling four words, by GCC 12.
    assert seed_sequence(0) == [2963817213, 69796629, 1973464570, 532167439]
    assert seed_sequence(42) == [735521182, 3707395978, 3290902861, 980519533]
    assert seed_sequence(2**32 - 1) == [3258260622, 2976084991, 227751652, 537413182]


@given(n=st.integers(1, 70_000), seed=SEEDS)
@settings(max_examples=15, deadline=None)
def test_index_shuffle_is_a_permutation_but_for_one_length(n: int, seed: int) -> None:
    shuffled = index_shuffle(n, seed)
    if n == 65_537:
        assert shuffled[0] == shuffled[-1]
    else:
        assert np.array_equal(np.sort(shuffled), np.arange(n))


def test_index_shuffle_with_one_more_than_a_power_of_two_repeats_a_sample_as_grain_does() -> None:
    shuffled = index_shuffle(65_537, 1)
    assert shuffled[65_536] == shuffled[0]


def test_a_shuffle_of_tf_data_hands_out_what_is_in_its_buffer() -> None:
    buffer, values = [], iter(range(500))
    expected = []
    for word in philox_words(3, 4, 0, 500).tolist():
        while len(buffer) < 7 and (value := next(values, None)) is not None:
            buffer.append(value)
        at = word % len(buffer)
        expected.append(buffer[at])
        buffer[at] = buffer[0]
        del buffer[0]
    assert shuffle_pass(500, 7, (3, 4)).tolist() == expected


def test_seeds_of_operations() -> None:
    assert op_seeds(5, None) == (87654321, 5)
    assert op_seeds(-1, 3) == (3, 2**31 - 2)
    assert op_seeds(0, 0) == (0, 2**31 - 1)
    assert op_seeds(None, 42) == op_seeds(None, 42) != op_seeds(None, 43)


def test_tf_datas_seed_is_the_shuffles_own_also_beside_a_global_one() -> None:
    def order(**fields: object) -> list[int]:
        return build_order(job(sampler="tf-data", buffer_size=9, **fields), 20).rank_stream(0, 0).tolist()

    assert order(seed=7, global_seed=3) == order(op_seed=7, global_seed=3)
    assert order(seed=7) == order(op_seed=7) != order(seed=7, global_seed=3)
    assert order(global_seed=3) not in (order(global_seed=3, seed=0), order(global_seed=4))


def test_dali_up_to_2_1_shuffled_by_other_words() -> None:
    # Recorded with DALI 2.1.0 and 2.2.0: 15 files, two shards, shuffle_after_epoch.
    fields = {"sampler": "dali", "shuffle_after_epoch": True, "world_size": 2, "epochs": 3}
    old = build_order(job(**fields, dali_version="2.1"), 15)
    assert old.rank_stream(2, 0).tolist() == [9, 5, 1, 8, 6, 2, 14]
    assert old.rank_stream(0, 1).tolist() == [14, 10, 8, 9, 5, 0, 7, 6]
    for version in ({}, {"dali_version": "2.2.0"}, {"dali_version": "10"}):
        new = build_order(job(**fields, **version), 15)
        assert new.rank_stream(0, 0).tolist() == [8, 13, 7, 14, 3, 5, 9]
        assert new.rank_stream(2, 1).tolist() == [5, 4, 8, 11, 14, 10, 13, 9]


@pytest.mark.parametrize(
    ("fields", "n", "field"),
    [
        ({"sampler": "dali", "shuffle": True, "shuffle_after_epoch": True}, 9, "shuffle_after_epoch"),
        ({"sampler": "dali", "stick_to_shard": True, "shuffle_after_epoch": True}, 9, "stick_to_shard"),
        ({"sampler": "dali", "world_size": 3}, 2, "world_size"),
        ({"sampler": "dali", "list_seed": 3}, 9, "list_seed"),
        ({"sampler": "dali", "layout": "tar", "shuffle": True}, 9, "shuffle"),
        ({"sampler": "grain", "seed": -1}, 9, "seed"),
        ({"sampler": "grain", "world_size": 3}, 2, "world_size"),
        ({"sampler": "keras", "seed": 1 << 32}, 9, "seed"),
        ({"sampler": "keras", "subset": "training"}, 9, "subset"),
        ({"sampler": "keras", "world_size": 2}, 9, "world_size"),
        ({"sampler": "keras", "subset": "training", "validation_split": 0.1}, 9, "validation_split"),
    ],
)
def test_what_the_framework_refuses_is_refused(fields: dict[str, object], n: int, field: str) -> None:
    with pytest.raises(JobError) as caught:
        build_order(job(**fields), n)
    assert caught.value.field == field


@pytest.mark.parametrize("sampler", ["keras", "tf-data"])
@given(before=st.integers(0, 5), between=st.integers(0, 3), epoch=st.integers(0, 4))
@settings(max_examples=20, deadline=None)
def test_a_pass_that_is_begun_and_not_read_shifts_those_that_are(
    sampler: str, before: int, between: int, epoch: int
) -> None:
    every = build_order(job(sampler=sampler, seed=3, batch_size=4, epochs=100), 50)
    some = build_order(
        job(sampler=sampler, seed=3, batch_size=4, epochs=9, passes_before=before, passes_between=between), 50
    )
    expected = every.rank_stream(before + epoch * (1 + between), 0)
    assert some.rank_stream(epoch, 0).tolist() == expected.tolist()


def test_model_fit_is_told_by_its_preset() -> None:
    spec = job(preset="keras-fit", epochs=3, seed=1)
    assert (spec.sampler, spec.layout, spec.batch_size, spec.passes_between) == ("keras", "keras", 32, 1)
    assert (
        build_order(spec, 90).rank_stream(1, 0).tolist()
        != build_order(job(sampler="keras", batch_size=32, seed=1, epochs=3), 90).rank_stream(1, 0).tolist()
    )


@given(n=st.integers(1, 90), batch=st.integers(1, 9), seed=SEEDS, words=st.integers(0, 700), shuffle=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_pydatasets_batches_are_shuffled_by_pythons_generator(
    n: int, batch: int, seed: int, words: int, shuffle: bool
) -> None:
    fields = {"sampler": "keras-pydataset", "batch_size": batch, "seed": seed, "words_before": words, "epochs": 3}
    order = build_order(job(**fields, shuffle=shuffle), n)
    python = random.Random(seed)
    for _ in range(words):
        python.getrandbits(32)
    for epoch in range(3):
        batches = list(range(-(-n // batch)))
        if shuffle:
            python.shuffle(batches)
        expected = [index for number in batches for index in range(n)[number * batch :][:batch]]
        assert order.rank_stream(epoch, 0).tolist() == expected
    generator = PythonGenerator(seed)
    generator.skip(words)
    numbers = np.arange(n, dtype=np.int32)
    generator.shuffle(numbers)
    python = random.Random(seed)
    for _ in range(words):
        python.getrandbits(32)
    others = list(range(n))
    python.shuffle(others)
    assert numbers.tolist() == others


def test_a_pydataset_knows_no_ranks() -> None:
    with pytest.raises(JobError, match="PyDataset shards nothing"):
        build_order(job(sampler="keras-pydataset", world_size=2), 20)
