"""What the status says of how unevenly ranks load: measured, expected by the simulator, and why they are far apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_up import job

from mlfs.plan.imbalance import Imbalance
from mlfs.plan.loader_load import JobLoad, RankLoad
from mountd.expected_loads import Expected
from mountd.load_words import load_status, uneven_words

USUAL = RankLoad(0, 2, 16, 1e6, 0.02, 0.1, 0.0, 0.3, 0.2, 0.06)
EVEN = Expected(Imbalance(0.05, 0.0), 1, 12)


def uneven(share: float = 0.5, **other: Any) -> JobLoad:
    """Two ranks, of which the second differs from the usual one in something."""
    return JobLoad((USUAL, replace(USUAL, rank=1, **other)), Imbalance(0.6, share), 16, -1, {})


def test_both_stand_side_by_side() -> None:
    told = load_status(job(), uneven(preprocess_s=0.3), EVEN)
    assert (told["imbalance"], told["imbalanced_steps"], told["steps"]) == (0.6, 0.5, 16)
    assert told["simulated"] == {"imbalance": 0.05, "imbalanced_steps": 0.0, "epoch": 1, "steps": 12}
    assert str(told["uneven_because"]).startswith("more steps are uneven than")


def test_what_cannot_be_simulated_is_null_and_nothing_is_said() -> None:
    told = load_status(job(), uneven(preprocess_s=0.3), None)
    assert (told["simulated"], told["uneven_because"]) == (None, "")
    assert load_status(job(), None, EVEN) == {}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"preprocess_s": 0.3}, "a worker of rank 1 works 300 ms for a batch, one of rank 0 100 ms; its preprocessing"),
        ({"workers": 1}, "rank 1 has fewer workers than rank 0: 1 and 2"),
        ({"workers": 1, "preprocess_s": 0.3}, "a worker of rank 1 works 300 ms"),
        ({"waiting_s": 0.4, "preprocess_s": 0.15}, "reads of rank 1 wait 400 ms for a batch, those of rank 0 20 ms"),
        ({"preprocess_s": 0.11}, "no rank is slower than others for long"),
    ],
)
def test_what_the_simulator_does_not_know_is_named(other: dict[str, Any], why: str) -> None:
    assert why in uneven_words(job(), uneven(**other), EVEN)


def test_where_they_agree_or_nothing_is_preprocessed_nothing_is_said() -> None:
    slower = {"preprocess_s": 0.3}
    assert not uneven_words(job(), uneven(0.1, **slower), EVEN)
    assert not uneven_words(job(), uneven(**slower), replace(EVEN, imbalance=Imbalance(0.4, 0.4)))
    reads = [replace(USUAL, rank=rank, waiting_s=0.0, preprocess_s=0.001 * (1 + rank)) for rank in range(2)]
    assert not uneven_words(job(), replace(uneven(), ranks=tuple(reads)), EVEN)
