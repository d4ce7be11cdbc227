"""The table of a family's states: a stream of reads leads through each transition, and none outside of it happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from mlfs.follow.families import TRANSITIONS, Family, FamilyCause, FamilyState
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

N, RANKS = 2000, 2
JOB, SHELL = 100, 50  # the first rank's process, and its parent
OTHER, OTHERS_PARENT = 900, 60


class Reading:
    """A job of two ranks, and somebody who reads its samples."""

    def __init__(self) -> None:
        spec = parse_job({"epochs": 3, "batch_size": 8, "seed": 3, "world_size": RANKS})
        order = build_order(spec, N)
        self.job = JobRun(spec, JobStreams(spec, np.arange(N), order), np.full(N, 10, dtype=np.int64))
        while wanted := self.job.wanted_epochs():
            self.job.add_epoch(self.job.load_epoch(wanted[0]))
        self.rng = random.Random(1)
        self.at = [0] * RANKS

    def reads(self, entries: Iterable[int], process: int, parent: int) -> None:
        for entry in entries:
            self.job.observe(entry, process, parent)

    def in_order(self, reads: int, process: int = JOB, parent: int = SHELL, rank: int = 0) -> None:
        """The next samples of a rank."""
        begin = self.at[rank]
        self.at[rank] += reads
        self.reads(self.job.streams.epoch_ids(0, rank)[begin : begin + reads].tolist(), process, parent)

    def at_random(self, reads: int, process: int = OTHER, parent: int = OTHERS_PARENT) -> None:
        """Samples of the end of an epoch, which are read by nobody yet."""
        ids = self.job.streams.epoch_ids(0, 0)[N // RANKS // 2 :].tolist()
        self.reads(self.rng.sample(ids, reads), process, parent)

    def left_out(self, process: int, parent: int) -> None:
        """The search for a hypothesis finds that a family's reads are not the job's."""
        last = self.job.score.history[-1]
        self.job.leave_out([last._replace(process=process, parent=parent)])

    def state(self, process: int, parent: int) -> FamilyState:
        return self.job.readers.family_of(process, parent).state


def proves(r: Reading) -> None:
    r.in_order(16)


def parent_proves(r: Reading) -> None:
    r.in_order(2, JOB + 1, JOB, rank=1)
    r.in_order(16)


def does_not_fit(r: Reading) -> None:
    r.in_order(16)
    r.at_random(2)


def goes_astray(r: Reading) -> None:
    r.in_order(40)
    for _ in range(20):
        r.in_order(1)
        r.at_random(1, JOB + 7, SHELL)
    r.job.judge(0.0)


def left_out_at_first(r: Reading) -> None:
    r.at_random(4)
    r.left_out(OTHER, OTHERS_PARENT)


def walks(r: Reading) -> None:
    for at in range(30):
        r.at_random(1, OTHER + 1, OTHERS_PARENT + 1)
        r.reads([at], OTHER, OTHERS_PARENT)


def walks_no_more(r: Reading) -> None:
    walks(r)
    r.at_random(30)


def proved_and_left_out(r: Reading) -> None:
    r.in_order(16)
    r.left_out(JOB, SHELL)


def kin_proves(r: Reading) -> None:
    r.in_order(16)
    r.in_order(16, JOB + 1, JOB)


def kin_is_left_out(r: Reading) -> None:
    r.in_order(16)
    r.in_order(1, JOB + 1, JOB)
    r.left_out(JOB + 1, JOB)


def inherits(r: Reading) -> None:
    r.in_order(16)
    r.at_random(40)


def those_before_an_heir_come_back(r: Reading) -> None:
    inherits(r)
    r.in_order(40)
    r.at_random(1)


def heir_proves(r: Reading) -> None:
    inherits(r)
    r.in_order(16, OTHER + 1, OTHERS_PARENT, rank=1)


def parent_of_an_heir_proves(r: Reading) -> None:
    inherits(r)
    r.in_order(16, OTHERS_PARENT, OTHERS_PARENT + 1, rank=1)


def heir_goes_astray(r: Reading) -> None:
    r.in_order(16)
    r.at_random(150, OTHER, 0)
    r.in_order(20)
    r.job.judge(0.0)


def heir_is_left_out(r: Reading) -> None:
    inherits(r)
    r.left_out(OTHER, OTHERS_PARENT)


def sibling_proves(r: Reading, reads: int = 3) -> None:
    r.in_order(16, JOB + 1, JOB)
    r.at_random(reads, JOB + 7, SHELL)
    r.in_order(16)


def sibling_of_a_stranger_proves(r: Reading) -> None:
    sibling_proves(r, 20)


def parent_of_who_is_on_trial_proves(r: Reading, reads: int = 3) -> None:
    r.in_order(16)
    r.at_random(reads)
    r.in_order(16, OTHERS_PARENT, OTHERS_PARENT + 1, rank=1)


def parent_of_a_stranger_proves(r: Reading) -> None:
    parent_of_who_is_on_trial_proves(r, 20)


def joins(r: Reading, reads: int = 1) -> None:
    r.in_order(16)
    r.at_random(reads)
    r.in_order(24, OTHER, OTHERS_PARENT, rank=1)


def stranger_joins(r: Reading) -> None:
    joins(r, 20)


def nothing_fits(r: Reading) -> None:
    r.in_order(16)
    r.at_random(16)


def left_out_while_on_trial(r: Reading) -> None:
    does_not_fit(r)
    r.left_out(OTHER, OTHERS_PARENT)


S, C = FamilyState, FamilyCause
STORIES: list[tuple[FamilyState, FamilyCause, Callable[[Reading], None]]] = [
    (S.UNKNOWN, C.PROVES, proves),
    (S.UNKNOWN, C.PARENT_PROVES, parent_proves),
    (S.UNKNOWN, C.DOES_NOT_FIT, does_not_fit),
    (S.UNKNOWN, C.GOES_ASTRAY, goes_astray),
    (S.UNKNOWN, C.WAS_NOT_THE_JOBS, left_out_at_first),
    (S.UNKNOWN, C.WALKS, walks),
    (S.PROVED, C.WAS_NOT_THE_JOBS, proved_and_left_out),
    (S.CHILDREN, C.PROVES, kin_proves),
    (S.CHILDREN, C.WAS_NOT_THE_JOBS, kin_is_left_out),
    (S.HEIR, C.PROVES, heir_proves),
    (S.HEIR, C.PARENT_PROVES, parent_of_an_heir_proves),
    (S.HEIR, C.OTHERS_COME_BACK, those_before_an_heir_come_back),
    (S.HEIR, C.GOES_ASTRAY, heir_goes_astray),
    (S.HEIR, C.WAS_NOT_THE_JOBS, heir_is_left_out),
    (S.ON_TRIAL, C.PROVES, sibling_proves),
    (S.ON_TRIAL, C.PARENT_PROVES, parent_of_who_is_on_trial_proves),
    (S.ON_TRIAL, C.JOINS, joins),
    (S.ON_TRIAL, C.NOTHING_FITS, nothing_fits),
    (S.ON_TRIAL, C.WAS_NOT_THE_JOBS, left_out_while_on_trial),
    (S.STRANGER, C.PROVES, sibling_of_a_stranger_proves),
    (S.STRANGER, C.PARENT_PROVES, parent_of_a_stranger_proves),
    (S.STRANGER, C.JOINS, stranger_joins),
    (S.STRANGER, C.INHERITS, inherits),
    (S.STRANGER, C.WALKS_NO_MORE, walks_no_more),
]


def test_each_transition_of_the_table_has_its_story() -> None:
    told = sorted((state.name, cause.name) for state, cause, _ in STORIES)
    assert told == sorted((state.name, cause.name) for state, causes in TRANSITIONS.items() for cause in causes)


@pytest.mark.parametrize(("state", "cause", "story"), STORIES, ids=[story.__name__ for _, _, story in STORIES])
def test_a_stream_of_reads_leads_to_a_transition(
    state: FamilyState, cause: FamilyCause, story: Callable[[Reading], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[tuple[FamilyState, FamilyCause]] = []
    move = Family.move

    def noted(self: Family, why: FamilyCause) -> None:
        moves.append((self.state, why))
        move(self, why)

    monkeypatch.setattr(Family, "move", noted)
    story(Reading())
    assert (state, cause) in moves


def test_whose_reads_count_for_the_job_follows_from_the_state() -> None:
    r = Reading()
    r.in_order(16)
    assert r.state(JOB, SHELL) is FamilyState.PROVED
    assert r.state(JOB + 1, JOB) is FamilyState.CHILDREN
    counted = r.job.observed
    r.at_random(16)
    assert r.state(OTHER, OTHERS_PARENT) is FamilyState.STRANGER
    assert r.job.observed == counted
    assert [stranger.process for stranger in r.job.statistics().readers.strangers] == [OTHER]
    r.at_random(20)
    assert r.state(OTHER, OTHERS_PARENT) is FamilyState.HEIR  # nobody else reads
    assert r.job.observed > counted
    assert r.job.statistics().readers.strangers == ()
