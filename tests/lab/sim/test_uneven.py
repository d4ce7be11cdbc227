"""Why many more steps are uneven than the simulator expects: what it does not know of is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlfs.lab.sim.expected import uneven_words
from mlfs.plan.rank_load import Imbalance, RankLoad

USUAL = RankLoad(0, 2, 16, 1e6, 0.02, 0.1, 0.0, 0.3, 0.2, 0.06)
EVEN, HALF = Imbalance(0.05, 0.0), Imbalance(0.6, 0.5)


def two(**other: Any) -> list[RankLoad]:
    """Two ranks, of which the second differs from the usual one in something."""
    return [USUAL, replace(USUAL, rank=1, **other)]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            {"preprocess_s": 0.3},
            "a worker of rank 1 works 300 ms for a batch, that of rank 0 100 ms; its preprocessing",
        ),
        ({"workers": 1}, "rank 1 has fewer workers than rank 0: 1 and 2"),
        ({"workers": 1, "preprocess_s": 0.3}, "a worker of rank 1 works 300 ms"),
        ({"waiting_s": 0.4, "preprocess_s": 0.15}, "reads of rank 1 wait 400 ms for a batch, those of rank 0 20 ms"),
        ({"preprocess_s": 0.11}, "no rank is slower than others for long"),
        ({"waiting_s": 0.4}, "reads of rank 1 wait 400 ms for a batch, those of rank 0 20 ms"),
    ],
)
def test_what_the_simulator_does_not_know_is_named(other: dict[str, Any], why: str) -> None:
    assert why in uneven_words(two(**other), HALF, EVEN)


def test_where_they_agree_or_nothing_is_preprocessed_nothing_is_said() -> None:
    slower = {"preprocess_s": 0.3}
    assert not uneven_words(two(**slower), Imbalance(0.6, 0.1), EVEN)
    assert not uneven_words(two(**slower), HALF, Imbalance(0.4, 0.4))
    reads = [replace(USUAL, rank=rank, waiting_s=0.0, preprocess_s=0.001 * (1 + rank)) for rank in range(2)]
    assert not uneven_words(reads, HALF, EVEN)


@pytest.mark.parametrize("preprocess_s", [0.1, 0.2])
def test_where_all_workers_wait_for_reads_neither_cores_nor_augmentation_are_blamed(preprocess_s: float) -> None:
    said = uneven_words([replace(of, waiting_s=0.3) for of in two(preprocess_s=preprocess_s)], HALF, EVEN)
    assert said.endswith(
        "the workers of all ranks wait for reads longer than they work, and longer in some steps than in others"
    )
