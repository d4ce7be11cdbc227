"""Algorithm 1 of Yang and Cong against brute force, and the published imbalance of random batches (their Fig. 6)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.served.balance import balance, balance_steps, imbalance


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
    messages = balance(have, want)
    after = np.array(have)
    for message in messages:
        assert message.samples > 0
        assert have[message.giver] > want[message.giver]
        assert have[message.taker] < want[message.taker]
        after[message.giver] -= message.samples
        after[message.taker] += message.samples
    assert after.tolist() == want
    assert len(messages) <= max(0, len(have) - 1)
    least = fewest_messages(tuple(a - b for a, b in zip(have, want, strict=True)))
    assert least <= len(messages) <= 2 * least


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_many_steps_at_once_are_the_same(learners: int, steps: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    have = generator.integers(0, 9, (steps, learners))
    want = generator.permuted(have, axis=1)
    together = balance_steps(have, want)
    for step in range(steps):
        alone = sorted((m.giver, m.taker, m.samples) for m in balance(have[step], want[step]))
        assert sorted(map(tuple, together[together[:, 0] == step, 1:].tolist())) == alone


def test_what_cannot_be_evened_out_is_refused_and_the_work_is_p_log_p() -> None:
    with pytest.raises(ValueError, match="1 samples more"):
        balance([1, 1], [1, 0])
    generator = np.random.default_rng(0)
    have = generator.integers(0, 100, 100_000)
    assert len(balance(have, generator.permutation(have))) <= 99_999  # a quadratic one would not come back


@pytest.mark.parametrize(("batch", "published"), [(32, 6.9), (64, 4.8), (128, 3.4)])
def test_imbalance_medians_as_published(batch: int, published: float) -> None:
    learners = 64
    steps = 1_281_167 // (learners * batch)
    owners = np.arange(steps * learners * batch) % learners
    batches = np.random.default_rng(0).permutation(owners).reshape(steps, -1)[:300]
    have = np.stack([np.bincount(row, minlength=learners) for row in batches])
    assert abs(100 * float(np.median(imbalance(have))) - published) <= 0.2
