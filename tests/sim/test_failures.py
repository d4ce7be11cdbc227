"""Failures drawn from seeds, under a simulated clock: whatever comes, what must hold of every node's scheduler holds.

A failure here prints its seed and what is left of its case when all that it does not need is taken away;
`scripts/soak --seed N` runs that seed alone, `scripts/soak --hours H` more of them.
"""

from __future__ import annotations

import pytest

from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.waiting import Waiting
from mlfs.plan.scheduler.window import Window
from mlfs.sim.failures.drawing import AT_A_TIME, OF_A_GET, draw
from mlfs.sim.failures.run import Trial, fails, shrunk
from mlfs.sim.failures.steady import steady

SEEDS = 2000
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_drawn_what_must_hold_holds(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        case = draw(seed)
        error = fails(case)
        if error is not None:
            pytest.fail(
                f"seed {seed}: {error!r}\nscripts/soak --seed {seed}\nas small as it gets: {shrunk(case, error)}"
            )


def test_the_seeds_draw_all_that_can_be_drawn() -> None:
    cases = [draw(seed) for seed in range(SEEDS)]
    kinds = {fault.kind for case in cases for fault in case.faults}
    assert kinds == {*OF_A_GET, *AT_A_TIME}
    assert {case.nodes for case in cases} == {1, 2, 3, 4, 8}
    assert {len(case.jobs) for case in cases} == {1, 2, 3}
    assert any(not case.faults for case in cases)
    assert any(0 in case.sizes for case in cases)
    assert any(max(case.sizes) > case.window_bytes for case in cases)


def test_a_failure_drawn_from_a_seed_is_replayed_by_that_seed() -> None:
    for seed in range(0, 60, 3):
        assert Trial(draw(seed)).run() == Trial(draw(seed)).run()
    assert Trial(draw(1)).run().trace != Trial(draw(2)).run().trace


# Bugs that the invariants have to notice: a method of the scheduler that does nothing, or not all.
BUGS = {
    "a promise is never settled": (Keeping, "settle", lambda self, fetch, sample: None),
    "a lane that hangs counts twice": (Fetching, "forget", lambda self, fetch, sample: None),
    "what is over is not dropped": (Window, "retire", lambda self, sample: None),
    "readers are not told": (Waiting, "landed", lambda self, sample, now_s: self._flights.pop(sample, None)),
    "what is outdated stays": (Window, "outdated", lambda self, sample: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_found_and_shrinks(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, does = BUGS[bug]
    monkeypatch.setattr(owner, name, does)
    found = next((case for case in map(draw, range(400)) if fails(case) is not None), None)
    assert found is not None, "no seed notices"
    error = fails(found)
    assert error is not None
    small = shrunk(found, error)
    assert type(fails(small)) is type(error)
    assert len(small.faults) <= len(found.faults)
    assert len(small.jobs) <= len(found.jobs)


def test_24_simulated_hours_of_1000_epochs_of_nodes_leave_nothing_behind() -> None:
    growth = steady(24)
    assert growth.hours >= 24
    assert growth.epochs >= 1000
    assert growth.bounded, growth


def test_growth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that forgets to forget: each fetch for a reader leaves an entry behind."""
    real = Waiting.landed

    def leaks(self: Waiting, sample: int, now_s: float) -> None:
        real(self, sample, now_s)
        self._lane_due_s[len(self._lane_due_s) + 10_000] = now_s

    monkeypatch.setattr(Waiting, "landed", leaks)
    assert not steady(24).bounded
