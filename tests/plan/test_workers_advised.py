"""Advice on loader workers: by hand, and against drawn loaders that then have that many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlfs.errors import ConfigError
from mlfs.lab.commands.advise_workers import answer
from mlfs.plan.loader_workers import Loader, advise
from mlfs.plan.rank_load import RankLoad, StepLimit


def told(limit: str = "preprocessing", **changed: float) -> dict[str, Any]:
    """What a mount tells of one rank's loader."""
    times = {"waiting_s": 0.0, "preprocess_s": 0.2, "handing_s": 0.0, "idle_s": 0.0, "step_s": 0.2}
    return {"limit": limit, "workers": 1, "batches": 64, "batch_bytes": 1000, "next_s": 0.2} | times | changed


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


@pytest.mark.parametrize(
    ("work_s", "train_s", "by_itself", "workers"),
    [(0.2, 0.155, False, 2), (0.4, 0.17, False, 3), (0.1, 0.08, True, 2), (0.2, 0.195, False, 1)],
)
def test_workers_are_never_too_few_to_keep_up_with_the_training_step(
    work_s: float, train_s: float, by_itself: bool, workers: int
) -> None:
    """The number whose time is nearest to that of training may be too small. 200 ms keep up with 195."""
    now = (
        Loader(0, 0, work_s, 0.0, work_s + train_s, train_s)
        if by_itself
        else Loader(0, 1, work_s, 0.0, work_s, train_s)
    )
    advice = advise([now], 16, {})
    assert advice.workers == (workers,)
    assert advice.step_s == pytest.approx(train_s, rel=0.05)
    assert advice.keeps_up
    numbers, lines = answer(status(told(preprocess_s=0.2, step_s=0.2)), None, 16, 0.155)
    assert numbers["workers"] == {"0": 2}
    assert "a step then takes 155 ms instead of 200 ms: 1.3 times as fast" in lines


def test_ranks_that_are_many_all_keep_up_with_the_training_step() -> None:
    advice = advise([Loader(rank, 1, 0.2, 0.0, 0.2, 0.155) for rank in range(64)], 256, {})
    assert advice.workers == (2,) * 64
    assert advice.keeps_up


def test_where_processors_do_not_suffice_training_is_not_called_the_limit() -> None:
    """200 ms of work on one processor, for steps of 155 ms."""
    numbers, lines = answer(status(told()), None, 1, 0.155)
    assert numbers["workers"] == {"0": 1}
    assert lines[-1] == "more workers are not expected to gain anything on 1 processor"


def test_workers_that_gain_nothing_more_are_not_advised_to_keep_up() -> None:
    """Eight workers were seen to do no more than four, and four take 100 ms for a batch: too long for 50 ms."""
    advice = advise([Loader(0, 4, 0.4, 0.0, 0.1, 0.05)], 16, {2: 1.0, 4: 1.0, 8: 2.0})
    assert advice.workers == (4,)
    assert not advice.keeps_up


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


def test_fewer_workers_are_advised_only_where_they_were_seen_to_do_as_much() -> None:
    """Eight workers on four processors: they may crowd one another, or wait for something else than a processor."""
    eight = Loader(0, 8, 0.4, 0.0, 0.05)
    for pace in ({}, {8: 2.0}, {4: 2.0, 8: 2.0}):
        assert advise([eight], 4, pace).workers == (8,)
    fewer = advise([eight], 4, {4: 1.0, 8: 2.5})
    assert fewer.workers == (4,)
    assert fewer.gain == pytest.approx(1.25)
    # Four that do as much are no reason to start the script again, but enough for a training step that is known.
    assert advise([eight], 4, {4: 1.0, 8: 2.0}).workers == (8,)
    step = Loader(0, 8, 0.4, 0.0, 0.05, 0.05)
    assert advise([step], 4, {4: 1.0, 8: 2.0}).workers == (4,)
    assert advise([step], 4, {}).workers == (8,)


def test_what_was_seen_of_more_workers_than_processors_comes_before_processors() -> None:
    """Preprocessing that waits for something else: 16 workers on two processors were seen to be no slower each."""
    pace = {2: 1.0, 16: 1.1}
    assert advise([Loader(0, 16, 0.44, 0.0, 0.0275)], 2, pace).workers == (16,)
    more = advise([Loader(0, 2, 0.4, 0.0, 0.2)], 2, pace)
    assert more.workers == (16,)
    assert more.gain == pytest.approx(16 / 2 / 1.1)
    assert advise([Loader(0, 2, 0.4, 0.0, 0.2, 0.06)], 2, pace).workers == (7,)


def test_beyond_what_was_seen_workers_count_up_to_the_processors_while_no_peak_was_seen() -> None:
    growing = {count: 1.0 for count in (1, 2, 3, 4)}
    advice = advise([Loader(0, 4, 0.4, 0.0, 0.1)], 8, growing)
    assert (advice.workers, advice.gain) == ((8,), pytest.approx(2))
    peak = growing | {6: 2.0}
    assert advise([Loader(0, 4, 0.4, 0.0, 0.1)], 8, peak).workers == (4,)


def test_what_another_script_of_the_same_name_was_seen_to_do_counts_for_nothing() -> None:
    """A worker that is a hundred times as fast beside others, or as slow alone, does something else."""
    loader = Loader(0, 2, 0.1, 0.0, 0.05)
    assert advise([loader], 4, {1: 100.0, 2: 1.0, 4: 0.01}).gain == pytest.approx(2)
    assert advise([loader], 4, {1: 0.001, 2: 1.0, 4: 2.0}).workers == (2,)


def test_ranks_share_what_all_their_workers_get_done() -> None:
    """Four workers were seen to do no more than two: two for each rank don't make it twice as fast."""
    loaders = [Loader(rank, 1, 0.1, 0.0, 0.1, 0.05) for rank in range(2)]
    assert advise(loaders, 4, {2: 1.0, 4: 2.0}).gain == pytest.approx(1)


def test_ranks_whose_training_steps_differ_wait_for_one_another() -> None:
    """The one that never waits takes 50 ms: 200 ms of work are 4 workers."""
    loaders = [Loader(rank, 0, 0.2, 0.0, 0.25 + wait, 0.05 + wait) for rank, wait in enumerate((0.0, 0.1))]
    assert advise(loaders, 8, {}).workers == (4, 4)


def test_what_a_status_tells_of_a_rank_and_what_it_is_made_from_give_the_same_loader() -> None:
    known = RankLoad(3, 2, 64, 1000, 0.01, 0.2, 0.02, 0.4, 0.315, 0.1, limit=StepLimit.TRAINING)
    assert Loader.of(known) == Loader(3, 2, pytest.approx(0.22), 0.01, 0.315, 0.315)
    assert Loader.of(known, 0.05).train_s == 0.05
    alone = replace(known, workers=1, reader_trains=True, limit=StepLimit.READS)
    assert Loader.of(alone) == Loader(3, 0, 0.2, 0.01, 0.315, 0.02, waits=True)


def test_words_where_preprocessing_is_the_limit() -> None:
    numbers, lines = answer(status(told()), None, 4, None)
    assert numbers["workers"] == {"0": 4}
    assert "workers by Algorithm 1: rank 0: 4 (now 1)" in lines
    assert lines[0] == "job train, 4 processors:"
    assert "rank 0: 1 process loads; each preprocesses" in lines[1]
    assert "a step then takes 50 ms instead of 200 ms: 4.0 times as fast" in lines
    assert "--step TIME tells it" in lines[-1]
    numbers, lines = answer(status(told()), "train", 16, 0.1)
    assert (numbers["workers"], numbers["gain"]) == ({"0": 2}, pytest.approx(2))


def test_words_where_something_else_is_the_limit() -> None:
    _, lines = answer(status(told("training", idle_s=0.2, step_s=0.4)), None, 4, None)
    assert lines[-1].startswith("training is the limit")
    numbers, lines = answer(status(told("reads", waiting_s=0.4)), None, 4, None)
    assert "more workers are no cure" in lines[-1]
    assert (numbers["workers"], numbers["gain"]) == ({"0": 1}, 1.0)
    _, lines = answer(status(told()), None, 1, None)
    assert lines[-1] == "more workers are not expected to gain anything on 1 processor"


def test_a_rank_that_waits_for_reads_does_not_silence_the_advice_for_others() -> None:
    numbers, lines = answer(status(told("reads", waiting_s=0.4), told(), workers=1), None, 4, None)
    assert numbers["workers"] == {"0": 1, "1": 4}
    assert "workers by Algorithm 1: rank 1: 4 (now 1)" in lines
    assert lines[-2].startswith("workers of rank 0 wait for reads more than they work")


def test_a_rank_that_waits_for_others_does_not_make_the_training_step_known() -> None:
    """Rank 0 is idle, but because of rank 1: three of four workers go to that."""
    fast, slow = told("other ranks", preprocess_s=0.1, idle_s=0.2, step_s=0.3), told(preprocess_s=0.3, step_s=0.3)
    numbers, _ = answer(status(fast, slow), None, 4, None)
    assert (numbers["train_s"], numbers["workers"]) == (None, {"0": 1, "1": 3})
    assert numbers["gain"] == pytest.approx(3)


def test_a_training_process_that_loads_by_itself_gains_by_workers_beside_it() -> None:
    """200 ms of preprocessing and 100 ms of training one after the other; two workers take no longer than training."""
    numbers, lines = answer(status(told(handing_s=0.1, step_s=0.3, reader_trains=True), workers=0), None, 8, None)
    assert (numbers["workers_now"], numbers["workers"], numbers["gain"]) == ({"0": 0}, {"0": 2}, pytest.approx(3))
    assert "the training process loads by itself" in lines[1]
    assert "trains for 100 ms" in lines[1]


def test_several_processes_of_a_rank_are_workers_whatever_was_registered() -> None:
    numbers, _ = answer(status(told() | {"workers": 2}, workers=None), None, 4, None)
    assert numbers["workers"] == {"0": 4}


def batches_of(size: int | None) -> dict[str, Any]:
    """The status of a mount of whose job no batch was read to its end."""
    of = status()
    of["jobs"][0]["loader"]["batch_size"] = {"value": size}
    return of


@pytest.mark.parametrize(
    ("of", "hint"),
    [
        ({"jobs": []}, "mlfs status"),
        (status(told("not known yet")), "--batch-size"),
        (status(told(), told(), workers=None), "--num-workers 0 if the training process loads by itself"),
        (batches_of(None), "is not known: register it with --batch-size"),
        (batches_of(1), "batches of one file tell nothing"),
        (batches_of(32), "ask again while it trains"),
    ],
)
def test_what_was_not_seen_is_not_guessed(of: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        answer(of, None, 4, None)
