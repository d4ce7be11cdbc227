"""A followed job, read by read: epochs at hand, reads that wait, silent ranks, a script that is started again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlfs.follow.agreement import Share, agreement_in_words, epoch_line, whole
from mlfs.follow.epoch_index import EpochIndex, Match
from mlfs.follow.epochs_at_hand import MOST_EPOCHS_AHEAD
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.follow.job import JobRun
from mlfs.follow.job_statistics import JobState
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams
from mlfs.tree.growing import FEWEST_ROOM

N, BATCH = 4096, 8


def job_of(n: int = N, said: str = "", **fields: Any) -> JobRun:
    """A registered job; or one in place of another, of which is said what it does otherwise."""
    spec = parse_job({"epochs": 6, "batch_size": BATCH, "seed": 3} | fields)
    streams, found = JobStreams(spec, np.arange(n), build_order(spec, n)), Hypothesis(spec, Origin.VARIANT, None, said)
    return JobRun(spec, streams, np.full(n, 10, dtype=np.int64), found if said else None)


def load(job: JobRun) -> list[int]:
    """Compute what is wanted, one epoch after the other. Returns their numbers."""
    assert isinstance(job, JobRun)
    loaded = []
    while wanted := job.wanted_epochs():
        job.add_epoch(job.load_epoch(wanted[0]))
        loaded += wanted
    return loaded


def read(job: JobRun, epoch: int, rank: int = 0, process: int = 100, stop: int | None = None) -> list[Match | None]:
    """One rank reads an epoch's first samples. Returns what its reads were matched to."""
    entries = job.streams.epoch_ids(epoch, rank)[:stop].tolist()
    return [job.observe(entry, process + rank, 7 + rank).match for entry in entries]


def test_the_room_for_a_refresh_makes_no_small_tree_a_large_one() -> None:
    """A mount has places for entries that may come; a data set of ten files is small all the same."""
    n, places = 10, 10 + FEWEST_ROOM
    spec = parse_job({"epochs": 40, "batch_size": 4, "seed": 3})
    job = JobRun(spec, JobStreams(spec, np.arange(n), build_order(spec, n)), np.full(places, 10, dtype=np.int64))
    assert job.missing_epochs() == list(range(MOST_EPOCHS_AHEAD))


def test_epochs_are_wanted_one_after_the_other_and_let_go_when_all_ranks_have_left_them() -> None:
    job = job_of()
    assert job.missing_epochs() == [0, 1]
    assert job.wanted_epochs() == [0]
    job.epochs.asked(0)
    assert job.wanted_epochs() == []
    assert job.missing_epochs() == [1]
    job.add_epoch(job.load_epoch(0))
    assert load(job) == [1]
    left = []
    for epoch in range(4):
        assert None not in read(job, epoch)
        for wanted in job.wanted_epochs():
            left += job.add_epoch(job.load_epoch(wanted))
    assert left == [1, 2]  # the first one stays: the script may be started again
    assert list(job.epochs.at_hand) == [0, 3, 4, 5]


def test_short_epochs_are_at_hand_further_ahead() -> None:
    assert load(job_of(n=1000, epochs=9)) == [0, 1, 2]
    assert load(job_of(n=8, epochs=99)) == list(range(32))


def test_an_epoch_whose_order_cannot_be_computed_is_not_asked_for_again() -> None:
    job = job_of()
    job.add_epoch(job.load_epoch(0))
    job.epochs.asked(1)
    job.epochs.failed(1)
    assert job.missing_epochs() == []
    assert None not in read(job, 0)
    assert read(job, 1, stop=4) == [None] * 4  # they don't wait: nothing comes
    assert not job.held.reads


def test_a_read_of_an_epoch_that_is_being_computed_is_no_evaluations() -> None:
    """A worker begins it while others still read the last batches of the epoch before."""
    job = job_of()
    job.add_epoch(job.load_epoch(0))
    job.epochs.asked(1)
    read(job, 0, stop=N - 100)
    assert job.observe(int(job.streams.epoch_ids(1, 0)[0]), 101, 7).match is None
    assert len(job.held.reads) == 1
    assert not job.evaluation.may_come


def test_reads_of_an_epoch_that_is_being_computed_wait_and_are_matched_in_their_order() -> None:
    job = job_of()
    job.add_epoch(job.load_epoch(0))
    job.epochs.asked(1)
    read(job, 0)
    assert read(job, 1, stop=20) == [None] * 20
    assert len(job.held.reads) == 20
    assert job.observed == N
    job.add_epoch(job.load_epoch(1))
    assert [seen.match for seen in job.release_held()] == [Match(0, N + at) for at in range(20)]
    assert not job.held.reads
    assert job.score.agreed == job.observed == N + 20


@pytest.mark.parametrize("told", [False, True])
def test_a_rank_that_nobody_reads_here_is_silent_until_it_begins(told: bool) -> None:
    job = job_of(world_size=2, epochs=1, **({"ranks": [0, 1]} if told else {}))
    load(job)
    read(job, 0, rank=0)
    assert job.ranks.newly_silent() == ([] if told else [1])
    assert job.ranks.newly_silent() == []
    read(job, 0, rank=0, stop=1)
    assert set(job.ranks.silent) == (set() if told else {1})
    read(job, 0, rank=1, process=200, stop=N // 2 - 1)
    assert (set(job.ranks.silent), job.finished) == (set(), False)
    assert job.ranks.epochs_ended() == range(0)
    last = int(job.streams.epoch_ids(0, 1)[-1])
    job.observe(last, 201, 8)
    assert job.finished
    assert job.ranks.epochs_ended() == range(1)
    assert job.state == JobState.FINISHED


@pytest.mark.parametrize("parent", [7, 9])
def test_a_script_that_is_started_again_is_followed_from_its_first_epoch(parent: int) -> None:
    job = job_of()
    load(job)
    read(job, 0)
    load(job)
    read(job, 1, stop=100)
    assert job.ranks.epochs_begun() == range(1, 2)
    again = job.streams.epoch_ids(0, 0).tolist()
    restarted = [job.observe(entry, 300, parent).another_leads for entry in again[:64]]
    assert restarted.index(True) >= 31  # several batches: it is no chance
    assert job.rivals.from_start is not None
    assert not job.rivals.from_start.by_run_under_way  # a worker begins where an epoch has ended
    before = job.ranks
    assert job.follow_leading() is job
    assert job.ranks is not before
    assert job.ranks.progress[0].frontier == 64
    assert job.rivals.from_start is None
    assert [job.observe(entry, 300, parent).match for entry in again[64:70]] == [Match(0, p) for p in range(64, 70)]
    assert job.ranks.epochs_begun() == range(1, 1)
    assert None not in read(job, 1, process=300, stop=20)[1:]  # the epochs at hand are its own too


def test_the_figures_of_a_script_that_is_started_again_are_of_its_second_run() -> None:
    """So is what waits: a read of an epoch that was let go, and is not at hand again yet."""
    job = job_of(epochs=9)
    load(job)
    for epoch in range(5):
        assert None not in read(job, epoch)
        load(job)
    job.late.comes_into_force(0.0, job.score.cells)
    for epoch in range(5):
        job.bytes_read.count_pfs(epoch, 1000)
    job.judge(1.0)
    read(job, 5, stop=100)
    job.judge(9.0)
    again = job.streams.epoch_ids(0, 0).tolist()
    for entry in again:
        if job.observe(entry, 300, 9).another_leads:
            job.follow_leading()
    job.bytes_read.count_pfs(0, 10)
    job.judge(12.0)
    figures = job.statistics()
    assert (figures.pfs_bytes_by_epoch, figures.late_opens) == ({0: 10}, {})
    assert figures.ranks[0].samples_per_s >= 0
    assert sorted(job.epochs.at_hand) == [0, 4, 5, 6]
    assert read(job, 1, process=300, stop=20) == [None] * 20
    assert load(job) == [1, 2]
    assert [seen.match for seen in job.release_held()] == [Match(0, N + at) for at in range(20)]
    assert job.score.agreed == job.observed


def test_what_seemed_to_be_a_second_run_is_forgotten() -> None:
    job = job_of()
    load(job)
    read(job, 0, stop=500)
    for entry in np.random.default_rng(0).integers(0, N, 40).tolist():
        assert not job.observe(entry, 300, 9).another_leads
    read(job, 0, process=400, stop=5)
    assert job.rivals.from_start is not None
    job.rivals.withdraw(job.rivals.from_start)
    assert job.rivals.from_start is None


def test_nothing_of_an_index_can_be_changed() -> None:
    index = EpochIndex(0, 0, [np.array([2, 1, 2, -1])], 3)
    assert index.codes(2) == [0, 2]
    for array in (index.code, *index.ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for held in (index.ids, index.more, index.more[2]):
        with pytest.raises(TypeError):
            held[0] = 1  # type: ignore[index]


def test_learned_is_what_the_opens_told_and_not_what_was_taken_for_granted() -> None:
    def origins(job: JobRun) -> list[tuple[int | None, str]]:
        loader = job.statistics().loader
        return [(known.value, known.origin) for known in (loader.batch_size, loader.num_workers)]

    told = job_of(num_workers=4)
    assert origins(told) == [(BATCH, "registered"), (4, "registered")]
    load(told)
    read(told, 0, stop=9)
    assert origins(told) == [(BATCH, "registered"), (4, "registered")]
    wrong = job_of(num_workers=4)
    load(wrong)
    ids = wrong.streams.epoch_ids(0, 0).tolist()
    batches = [ids[at : at + BATCH] for at in range(0, 600, BATCH)]
    for first in range(0, 72, 3):  # three workers, sample by sample
        for row in zip(*batches[first : first + 3], strict=True):
            for worker, entry in enumerate(row):
                wrong.observe(entry, 500 + worker, 7)
    assert origins(wrong) == [(BATCH, "registered"), (3, "learned")]
    assert (wrong.loader.batch_files, wrong.loader.reader_trains) == (BATCH, False)
    assert wrong.statistics().share.agreed == wrong.observed


def test_who_reads_and_how_far_ahead_is_as_registered_until_reads_tell_something_else() -> None:
    alone = job_of(num_workers=0)
    load(alone)
    read(alone, 0, stop=99)
    assert alone.loader.reader_trains
    assert not job_of().loader.reader_trains
    assert [job_of(**told).loader.hands_ahead for told in ({}, {"prefetch_factor": 1}, {"prefetch_factor": 4})] == [
        True, False, True,
    ]  # fmt: skip
    wrong = job_of(num_workers=0, batch_size=2 * BATCH)
    load(wrong)
    ids = wrong.streams.epoch_ids(0, 0).tolist()
    for first in range(0, 64 * BATCH, 2 * BATCH):  # two workers, batch by batch
        for place in range(first, first + 2 * BATCH):
            wrong.observe(ids[place], 500 + place // BATCH % 2, 7)
    assert (wrong.loader.batch_files, wrong.loader.reader_trains) == (BATCH, False)
    assert wrong.statistics().batch_files == BATCH


def test_status_and_log_say_the_same_of_an_epoch() -> None:
    job = job_of()
    load(job)
    ids = job.streams.epoch_ids(0, 0).tolist()
    for entry in [*ids[:1999], ids[3000], *ids[1999:2000]]:
        job.observe(entry, 100, 7)
    shares = job.statistics().shares[0]
    assert whole(shares.values()) == Share(2000, 2001)
    line = epoch_line(0, shares, 5)
    assert line == "epoch 0 ended, agreement 0.9995 (2000 of 2001 opens), 5 bytes from the PFS"
    assert agreement_in_words({}) == "agreement unknown: no open was counted"


def test_reads_that_came_before_a_job_was_in_force_are_late_though_they_count_as_predicted() -> None:
    """Those that it was shown, and those that still waited to be counted when it came into force."""
    job = job_of()
    load(job)
    entries = job.streams.epoch_ids(0, 0)[:20].tolist()
    for entry in entries[:8]:
        job.observe(entry, 100, 7)
    job.late.comes_into_force(5.0, job.score.cells)
    for at, entry in enumerate(entries[8:]):
        job.observe(entry, 100, 7, at_s=4.0 + at / 4)
    assert job.score.agreed == 20
    assert job.statistics().late_opens == {0: 8 + 4}


def test_a_job_in_place_of_another_goes_on_with_its_late_reads() -> None:
    before, job = job_of(), job_of(said="the script does something else", start_epoch=1)
    for one, epoch in ((before, 0), (job, 1)):
        load(one)
        read(one, epoch, stop=8)
        one.late.comes_into_force(1.0, one.score.cells)
    job.take_counts(before, [])
    assert job.statistics().late_opens == {0: 8, 1: 8}
