"""Failures drawn from seeds, under a simulated clock: whatever comes, what must hold of every node's scheduler holds.

A failure here prints its seed and what is left of its case when all that it does not need is taken away;
`scripts/soak --seed N` runs that seed alone, `scripts/soak --hours H` more of them.
"""

from __future__ import annotations

import pytest
from support.failures.drawing import AT_A_TIME, OF_A_GET, PAGE, Case, Fault, Habits, JobCase, draw
from support.failures.run import Trial, fails, shrunk
from support.failures.steady import steady

from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.routing import Routing
from mlfs.plan.scheduler.waiting import Waiting
from mlfs.plan.scheduler.window import Window

SEEDS = 400  # and of `scripts/soak` 10,000
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_drawn_what_must_hold_holds(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        case = draw(seed)
        error = fails(case)
        if error is not None:
            pytest.fail(
                f"seed {seed}: {error!r}\nscripts/soak --seed {seed}\nas small as it gets: {shrunk(case, error)}"
            )


# Cases that have found faults, as small as they got: what a seed draws may change, these do not.
FOUND = {
    "the refill of a round that was not looked at within a batch": Case(
        725, 1, (0, 0, 17870, 18077, 22031, 10972, 13388, 3844, 788, 133636, 16763, 20211, 133876), 311296, (), 1, 0.5,
        0.1, False, (JobCase("job0", 381168810, 4, 9, 1, 4, 2, 0.0, Habits(think_s=0.001)),), (), (),
    ),
    "outdated between a sample's landing and its batch's end": Case(
        15715, 2, (11800, 2707, 10442, 3765, 2440, 17921, 135089, 6469, 4557, 19044, 6969, 19011), 28672, (120107,), 2,
        0.5, 1.0, True,
        (JobCase("job0", 1005234751, 4, 7, 2, 1, 1, 0.05, Habits(starts_again=True, seeks=True, think_s=0.0)),), (),
        (Fault("resized", 0, at_s=0.054528582752359035, which=62344, lasts_s=2.0), Fault("fail", 1, get=2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_once_failed_holds(name: str) -> None:
    Trial(FOUND[name]).run()


def test_the_seeds_draw_all_that_can_be_drawn() -> None:
    cases = [draw(seed) for seed in range(SEEDS)]
    kinds = {fault.kind for case in cases for fault in case.faults}
    assert kinds == {*OF_A_GET, *AT_A_TIME}
    assert {case.nodes for case in cases} == {1, 2, 3, 4, 8}
    assert {len(case.jobs) for case in cases} == {1, 2, 3}
    assert any(not case.faults for case in cases)
    assert any(0 < len(case.small) < case.nodes and case.planned for case in cases)
    assert any(0 in case.sizes for case in cases)
    assert any(max(case.sizes) > case.window_bytes for case in cases)


def test_a_failure_drawn_from_a_seed_is_replayed_by_that_seed() -> None:
    for seed in range(0, 60, 3):
        assert Trial(draw(seed)).run() == Trial(draw(seed)).run()
    assert Trial(draw(1)).run().trace != Trial(draw(2)).run().trace


def test_a_disk_that_becomes_slow_is_left_and_taken_back() -> None:
    """All lies on a disk that is 30 times slower for 20 seconds; the source is not."""
    job = JobCase("job", 1, 0, 40, 160, 4, 1, 0.0, Habits(think_s=0.01))
    slow = Fault("slow", 0, at_s=5.0, which=2, lasts_s=20.0)
    sizes = tuple(8000 + number for number in range(40))
    case = Case(1, 1, sizes, 40 * PAGE, (0, 400_000), 2, 5.0, 5.0, True, (job,), (), (slow,))
    trial = Trial(case)
    left: list[tuple[float, bool]] = []

    def look() -> None:
        left.append((trial.heap.now_s, any(trial.world.nodes[0].scheduler.statistics().routing.passed_over)))

    for second in range(60):
        trial.heap.at(float(second), look)
    outcome = trial.run()
    assert outcome.reads == 40 * 160
    assert not any(is_left for at_s, is_left in left if at_s < 10)
    assert any(is_left for at_s, is_left in left if 15 < at_s < 30), left
    assert not left[-1][1], left


# Bugs that the invariants have to notice: a method of the scheduler that does nothing, or not all.
BUGS = {
    "a promise is never released": (Keeping, "release_promise", lambda self, fetch, sample: None),
    "a lane that hangs counts twice": (Fetching, "forget", lambda self, fetch, sample: None),
    "what is over is not dropped": (Window, "retire", lambda self, sample: None),
    "readers are not told": (Waiting, "landed", lambda self, sample, now_s: self._flights.pop(sample, None)),
    "a node asks on for another": (Routing, "is_elsewhere", lambda self, owner: False),
    "what is outdated stays": (Window, "has_changed", lambda self, sample: None),
}


# Seeds that notice a bug which few do. They come first, which saves a hundred cases; all come after them.
NOTICED_BY = {"a node asks on for another": 138, "what is outdated stays": 97}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found_and_shrinks(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, does = BUGS[bug]
    monkeypatch.setattr(owner, name, does)
    seeds = (NOTICED_BY.get(bug, 0), *range(SEEDS))
    found = next((case for case in map(draw, seeds) if fails(case) is not None), None)
    assert found is not None, "no seed notices"
    error = fails(found)
    assert error is not None
    small = shrunk(found, error)
    assert type(fails(small)) is type(error)
    assert len(small.faults) <= len(found.faults)
    assert len(small.jobs) <= len(found.jobs)


STEADY_HOURS = 12  # and of `scripts/soak --simulated-hours` 24, with 1,000 epochs


def test_simulated_hours_of_hundreds_of_epochs_leave_nothing_behind() -> None:
    growth = steady(STEADY_HOURS)
    assert growth.hours >= STEADY_HOURS
    assert growth.epochs >= 500
    assert growth.bounded, growth


def test_growth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that forgets to forget: each fetch for a reader leaves an entry behind."""
    real = Waiting.landed

    def leaks(self: Waiting, sample: int, now_s: float) -> None:
        real(self, sample, now_s)
        self._lane_due_s[len(self._lane_due_s) + 10_000] = now_s

    monkeypatch.setattr(Waiting, "landed", leaks)
    assert not steady(STEADY_HOURS, epochs=60).bounded
