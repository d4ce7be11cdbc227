"""Algorithm 1 of Yang and Cong against brute force, and the published imbalance of random batches (their Fig. 6)."""

from __future__ import annotations

import heapq
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.served.locality import balance_steps, imbalance


def as_published(have: npt.NDArray[np.int64], want: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Algorithm 1 as the paper has it, for one batch: (giver, taker, samples), in O(p log p)."""
    surplus = (have - want).tolist()
    givers = [(-s, index) for index, s in enumerate(surplus) if s > 0]
    takers = [(s, index) for index, s in enumerate(surplus) if s < 0]
    heapq.heapify(givers)
    heapq.heapify(takers)
    messages = []
    while givers:
        (most, giver), (least, taker) = heapq.heappop(givers), heapq.heappop(takers)
        count = min(-most, -least)
        messages.append((giver, taker, count))
        if most + count:
            heapq.heappush(givers, (most + count, giver))
        if least + count:
            heapq.heappush(takers, (least + count, taker))
    return messages


def fewest_messages(surplus: tuple[int, ...]) -> int:
    """p' less the most groups that even out among themselves, over the p' learners that are not even already."""
    left = tuple(value for value in surplus if value)

    @cache
    def groups(chosen: int) -> int:
        """Most zero-sum groups that the chosen learners can be cut into, counted as they are removed one by one."""
        if not chosen:
            return 0
        members = [index for index in range(len(left)) if chosen >> index & 1]
        best = max(groups(chosen & ~(1 << index)) for index in members)
        return best + (sum(left[index] for index in members) == 0)

    return len(left) - groups((1 << len(left)) - 1)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_each_deficit_is_filled_with_few_messages(have: list[int], random: object) -> None:
    want = list(have)
    random.shuffle(want)  # type: ignore[attr-defined]
    messages = balance_steps(np.array([have]), np.array([want])).tolist()
    after = np.array(have)
    for step, giver, taker, samples in messages:
        assert step == 0
        assert samples > 0
        assert have[giver] > want[giver]
        assert have[taker] < want[taker]
        after[giver] -= samples
        after[taker] += samples
    assert after.tolist() == want
    assert len(messages) <= max(0, len(have) - 1)
    least = fewest_messages(tuple(a - b for a, b in zip(have, want, strict=True)))
    assert least <= len(messages) <= 2 * least


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_many_batches_at_once_take_the_messages_of_the_paper(learners: int, steps: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    have = generator.integers(0, 9, (steps, learners))
    want = generator.permuted(have, axis=1)
    together = balance_steps(have, want)
    for step in range(steps):
        here = [tuple(message) for message in together[together[:, 0] == step, 1:].tolist()]
        assert sorted(here) == sorted(as_published(have[step], want[step]))


@pytest.mark.parametrize(("batch", "published"), [(32, 6.9), (64, 4.8), (128, 3.4)])
def test_imbalance_medians_as_published(batch: int, published: float) -> None:
    learners = 64
    steps = 1_281_167 // (learners * batch)
    owners = np.arange(steps * learners * batch) % learners
    batches = np.random.default_rng(0).permutation(owners).reshape(steps, -1)[:300]
    have = np.stack([np.bincount(row, minlength=learners) for row in batches])
    assert abs(100 * float(np.median(imbalance(have))) - published) <= 0.2
