"""What the status says of what loaders do, how unevenly ranks load, and how many workers they should have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_up import job

from mlfs.follow.job_statistics import REGISTERED, UNKNOWN, JobState, Known, LoaderStatistics
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.rank_load import Imbalance, RankLoad, StepLimit
from mountd.headline import preprocessing_words
from mountd.status import load_status

USUAL = RankLoad(0, 2, 16, 1e6, 0.02, 0.1, 0.0, 0.3, 0.2, 0.06)


def uneven(share: float = 0.5, **other: Any) -> JobLoad:
    """Two ranks, of which the second differs from the usual one in something."""
    return JobLoad((USUAL, replace(USUAL, rank=1, **other)), Imbalance(0.6, share), 16, -1, {})


def test_how_uneven_one_rank_is_or_ranks_of_no_common_step_are_is_not_known() -> None:
    two = uneven(preprocess_s=0.3)
    for load in (replace(two, ranks=two.ranks[:1]), replace(two, imbalance=Imbalance(), steps=0)):
        told = load_status(job(), load, 4)
        assert (told["imbalance"], told["imbalanced_steps"]) == (None, None)
        assert told["ranks"]


BUSY = replace(USUAL, idle_s=0.0, waiting_s=0.0, step_s=0.05, limit=StepLimit.PREPROCESSING)
TOLD = replace(job().loader, num_workers=Known(0, REGISTERED))


def one(busy: RankLoad = BUSY, loader: LoaderStatistics | None = None, processors: int = 8) -> tuple[Any, str]:
    """What the status says of a job of one rank, as JSON and in words."""
    of = job(ranks=job().ranks[:1], **({"loader": loader} if loader is not None else {}))
    load = JobLoad((busy,), Imbalance(), 0, -1, {})
    return load_status(of, load, processors)["advice"], preprocessing_words(load, of, "/data/x", processors)


def test_the_status_says_how_many_workers_a_rank_should_have_and_what_that_gains() -> None:
    advice, said = one()
    assert advice == {"workers": {"0": 8}, "gain": 4.0}
    assert said == (
        "reads do not wait, but the loader does: each of the 2 workers works all the time, 100 ms for a"
        " batch; num_workers 8 (now 2) would make steps up to 4.0 times as fast;"
        " mlfs advise workers --from-mount /data/x says more"
    )
    advice, said = one(processors=1)
    assert advice == {"workers": {"0": 2}, "gain": 1.0}
    assert "; more workers would gain nothing on 1 processor;" in said


def test_a_training_process_that_loads_by_itself_is_told_what_workers_beside_it_gain() -> None:
    """100 ms of loading and 50 ms of training one after the other; two workers take no longer than training."""
    alone = replace(BUSY, workers=1, handing_s=0.05, step_s=0.15, reader_trains=True)
    advice, said = one(alone, TOLD)
    assert advice == {"workers": {"0": 2}, "gain": 3.0}
    assert said.startswith(
        "reads do not wait, but training does: the training process loads by itself, 100 ms for a batch; num_workers 2"
        " beside it would make steps 3.0 times as fast;"
    )


@pytest.mark.parametrize(
    "busy",
    [
        replace(BUSY, limit=StepLimit.TRAINING),
        replace(BUSY, limit=StepLimit.READS),
        replace(BUSY, limit=StepLimit.OTHER_RANKS),
        replace(BUSY, preprocess_s=0.005),
    ],
)
def test_where_preprocessing_is_not_the_limit_nothing_is_advised(busy: RankLoad) -> None:
    assert one(busy) == (None, "")


def test_of_one_process_that_nobody_called_a_worker_nothing_is_said() -> None:
    unknown = replace(job().loader, num_workers=Known(None, UNKNOWN))
    assert one(replace(BUSY, workers=1), unknown) == (None, "")


def test_of_a_job_that_reads_no_more_no_words_say_that_its_loader_works() -> None:
    load = JobLoad((BUSY,), Imbalance(), 0, -1, {})
    of = job(ranks=job().ranks[:1])
    assert preprocessing_words(load, of, "/data/x", 8)
    assert not preprocessing_words(replace(load, reads_now=False), of, "/data/x", 8)


def test_no_rank_of_a_finished_job_will_be_late() -> None:
    load = replace(uneven(preprocess_s=0.3), straggler=1)
    assert load_status(job(), load, 4)["straggler"] == 1
    assert load_status(job(state=JobState.FINISHED), load, 4)["straggler"] is None
