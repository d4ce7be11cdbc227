"""Advice on loader workers: by hand, and against drawn loaders that then have that many."""

from __future__ import annotations

from typing import Any

import pytest

from mlfs.advise.workers import Loader, advise
from mlfs.cli.advise_workers import answer
from mlfs.errors import ConfigError


def told(limit: str = "preprocessing", **changed: float) -> dict[str, Any]:
    """What a mount tells of one rank's loader."""
    times = {"waiting_s": 0.0, "preprocess_s": 0.2, "handing_s": 0.0, "idle_s": 0.0, "step_s": 0.2}
    return {"limit": limit, "workers": 1, "batches": 64, "next_s": 0.2} | times | changed


def status(*ranks: dict[str, Any], workers: int | None = 1, pace: list[list[float]] | None = None) -> dict[str, Any]:
    """The status of a mount with one job."""
    load = {"ranks": {str(rank): of for rank, of in enumerate(ranks)}, "pace": pace or []}
    return {"jobs": [{"name": "train", "load": load, "loader": {"num_workers": {"value": workers}}}]}


def test_where_the_step_is_not_known_workers_reach_the_peak_of_preprocessing() -> None:
    advice = advise([Loader(0, 1, 0.2, 0.0, 0.2)], 4, {})
    assert (advice.workers, advice.train_s) == ((4,), None)
    assert advice.gain == pytest.approx(4)


def test_where_the_step_is_known_workers_keep_up_with_it_and_no_more() -> None:
    """Algorithm 1: 200 ms of work for steps of 50 ms are 4 workers of the 16 that there could be."""
    advice = advise([Loader(0, 1, 0.2, 0.0, 0.2, 0.05)], 16, {})
    assert advice.workers == (4,)
    assert advice.gain == pytest.approx(4)


def test_the_rank_that_has_more_to_do_gets_more_workers() -> None:
    advice = advise([Loader(0, 2, 0.1, 0.0, 0.15), Loader(1, 2, 0.3, 0.0, 0.15)], 8, {})
    assert advice.workers == (2, 6)
    assert advice.step_s == pytest.approx(0.05)


def test_ranks_that_want_more_than_there_is_end_at_the_same_time() -> None:
    advice = advise([Loader(0, 1, 0.1, 0.0, 0.3, 0.01), Loader(1, 1, 0.3, 0.0, 0.3, 0.01)], 4, {})
    assert advice.workers == (1, 3)


def test_waiting_for_reads_is_not_made_shorter() -> None:
    advice = advise([Loader(0, 1, 0.1, 0.3, 0.4)], 4, {})
    assert advice.step_s == pytest.approx(0.3 + 0.025)


def test_what_was_measured_of_several_numbers_of_workers_rules() -> None:
    """Six workers are the peak, as in the paper's Figure 6; more are slower together."""
    together = {1: 1.0, 2: 1.9, 3: 2.8, 4: 3.7, 5: 4.5, 6: 5.4, 8: 5.2, 10: 5.0}
    pace = {count: count / rate * 1e-8 for count, rate in together.items()}
    advice = advise([Loader(0, 1, 0.2, 0.0, 0.2)], 32, pace)
    assert 5 <= advice.workers[0] <= 7
    assert advice.gain == pytest.approx(5.4, rel=0.15)


def test_workers_that_crowd_the_processors_are_known_to_be_slow_because_of_that() -> None:
    """Eight workers on four processors take twice as long each; four would do as much."""
    advice = advise([Loader(0, 8, 0.4, 0.0, 0.05)], 4, {})
    assert advice.workers == (4,)
    assert advice.gain == pytest.approx(1)


def test_words_where_preprocessing_is_the_limit() -> None:
    numbers, lines = answer(status(told()), None, 4, None)
    assert numbers["workers"] == {"0": 4}
    assert "workers by Algorithm 1: rank 0: 4 (now 1)" in lines
    assert "a step then takes 50 ms instead of 200 ms: 4.0 times as fast" in lines
    assert "--step TIME tells it" in lines[-1]
    numbers, lines = answer(status(told()), "train", 16, 0.1)
    assert (numbers["workers"], numbers["gain"]) == ({"0": 2}, pytest.approx(2))


def test_words_where_something_else_is_the_limit() -> None:
    _, lines = answer(status(told("training", idle_s=0.2, step_s=0.4)), None, 4, None)
    assert lines[-1].startswith("training is the limit")
    _, lines = answer(status(told("reads", waiting_s=0.4)), None, 4, None)
    assert "more workers are no cure" in lines[-1]


def test_a_training_process_that_loads_by_itself_gains_by_workers_beside_it() -> None:
    """200 ms of preprocessing and 100 ms of training one after the other; two workers take no longer than training."""
    numbers, _ = answer(status(told(handing_s=0.1, step_s=0.3), workers=0), None, 8, None)
    assert (numbers["workers_now"], numbers["workers"], numbers["gain"]) == ({"0": 0}, {"0": 2}, pytest.approx(3))


@pytest.mark.parametrize("of", [{"jobs": []}, status(), status(told("not known yet"))])
def test_what_was_not_seen_is_not_guessed(of: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        answer(of, None, 4, None)
