"""Evicting by next use against copies that stay: how many reads the source answers, and which rule a plan takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from mlfs.plan import next_use
from mlfs.plan.next_use import LOOKED_AT, MOST_READS, Gathering, Reads, is_looked_at, missed
from mlfs.plan.owners import plan_alone
from mlfs.plan.placement import NOWHERE
from mlfs.served.partition import PAGE_BYTES

Ids = npt.NDArray[np.int64]
Epochs = list[list[Ids]]
N = 2000


def gathered(epochs: Epochs) -> Reads:
    """What a job reads of the samples that are looked at."""
    gathering = Gathering(len(np.unique(np.concatenate([ids for ranks in epochs for ids in ranks]))))
    for ranks in epochs:
        gathering.add(ranks)
    return gathering.gathered()


def of(jobs: list[Epochs], room: int, sizes: Ids) -> next_use.Missed:
    """Both rules."""
    ids = np.concatenate([ids for epochs in jobs for ranks in epochs for ids in ranks])
    reads = np.bincount(ids, minlength=len(sizes))
    kept = plan_alone(sizes, reads, [room, 0]).classes != NOWHERE
    return missed([gathered(epochs) for epochs in jobs], sizes, room, kept, reads > 0)


def one_of_four(rng: np.random.Generator, samples: int) -> list[Epochs]:
    return [[[rng.permutation(samples)[::4]] for _ in range(12)]]


def halves(rng: np.random.Generator, samples: int) -> list[Epochs]:
    parts = [rng.permutation(samples)[: samples // 2] for _ in range(3)]
    return [[[rng.permutation(part)] for _ in range(12)] for part in parts]


def draws(rng: np.random.Generator, samples: int) -> list[Epochs]:
    return [[[rng.choice(samples, samples)] for _ in range(12)]]


def whole(rng: np.random.Generator, samples: int) -> list[Epochs]:
    return [[[rng.permutation(samples)] for _ in range(12)]]


# The columns counts and as built of docs/decisions/reuse-distance.md, and other shares of room.
@pytest.mark.parametrize(
    ("jobs", "share", "keeping", "evicting"),
    [
        (one_of_four, 0.25, 0.672, 0.586),
        (one_of_four, 0.75, 0.352, 0.340),
        (halves, 0.25, 0.597, 0.460),
        (halves, 0.75, 0.122, 0.131),
        (draws, 0.5, 0.425, 0.242),
        (whole, 0.5, 0.542, 0.551),
    ],
)
def test_the_better_rule_is_taken_and_looking_at_some_samples_is_nearly_as_good_as_looking_at_all(
    jobs: Callable[[np.random.Generator, int], list[Epochs]], share: float, keeping: float, evicting: float
) -> None:
    rng = np.random.default_rng(1)
    for samples in (N, 20 * N):
        sizes = rng.integers(1, 4, samples) * PAGE_BYTES if samples > N else np.full(samples, PAGE_BYTES)
        found = of(jobs(rng, samples), int(share * sizes.sum()), sizes)
        assert found.kept / found.reads == pytest.approx(keeping, abs=0.02)
        assert found.evicting / found.reads == pytest.approx(evicting, abs=0.02)
        assert found.evicting_wins == (evicting < keeping)


@pytest.mark.parametrize("draw", range(6))
def test_a_small_job_over_a_large_data_set_is_judged_as_well(draw: int) -> None:
    """One rank of eight of a job that reads one sample in fifty, beside another job of another size."""
    rng, samples = np.random.default_rng(draw), 50 * N
    sizes = np.full(samples, PAGE_BYTES)
    mine = rng.permutation(samples)[: 2 * N]
    small: Epochs = [[rng.permutation(mine)[::8]] for _ in range(24)]
    alone = of([small], int(0.4 * 2 * N * PAGE_BYTES), sizes)
    assert alone.evicting_wins
    other: Epochs = [[rng.permutation(8 * N)] for _ in range(2)]
    assert len({gathered(small).one_in, gathered(other).one_in}) == 2
    both, full = of([small, other], 4 * N * PAGE_BYTES, sizes), 2 * 8 * N + 24 * N // 4
    assert both.reads == pytest.approx(full / gathered(other).one_in, rel=0.1)


def test_what_is_looked_at_is_spread_over_the_data_set_and_ends_after_enough_reads() -> None:
    samples = 100 * LOOKED_AT
    chosen = is_looked_at(np.arange(samples), 100)
    assert chosen.sum() == pytest.approx(LOOKED_AT, rel=0.1)
    by_part = chosen.reshape(20, -1).sum(axis=1)
    assert by_part.min() > 0.6 * by_part.mean()
    gathering, rng = Gathering(samples), np.random.default_rng(2)
    while not gathering.enough:
        gathering.add([rng.permutation(samples)])
    found = gathering.gathered()
    assert MOST_READS <= found.ends[-1] == len(found.ids) < MOST_READS + 1.2 * LOOKED_AT
    gathering.add([np.arange(samples)])
    assert len(gathering.gathered().ids) == len(found.ids)


def test_the_reads_of_many_jobs_together_are_as_few() -> None:
    rng, samples = np.random.default_rng(3), 2 * N
    jobs: list[Epochs] = [[[rng.choice(samples, samples)] for _ in range(6)] for _ in range(8)]
    found = of(jobs, samples // 2 * PAGE_BYTES, np.full(samples, PAGE_BYTES))
    assert MOST_READS / 3 < found.reads < 1.2 * MOST_READS
    assert found.evicting_wins


def test_ranks_read_in_turn_and_places_without_a_sample_count_as_time() -> None:
    gathering = Gathering(10)
    gathering.add([np.array([1, -1, 3]), np.array([4, 5, 6])])
    gathering.add([np.array([7]), np.array([8])])
    found = gathering.gathered()
    assert found.ids.tolist() == [1, 4, 5, 3, 6, 7, 8]
    assert found.at.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert list(found.ends) == [5, 7]


@pytest.mark.parametrize("times", [0.3, 1.5])
def test_a_sample_that_no_eviction_makes_room_for_costs_no_other_its_place(times: float) -> None:
    """The scheduler evicts for none that takes more than a quarter of the room (`mlfs.plan.scheduler.keeping`)."""
    rng, room = np.random.default_rng(1), N // 2 * PAGE_BYTES
    sizes = np.full(N, PAGE_BYTES)
    jobs = draws(rng, N)
    without = of(jobs, room, sizes)
    sizes[:5] = int(times * room)
    found = of(jobs, room, sizes)
    assert found.evicting_wins
    assert found.evicting == pytest.approx(without.evicting, rel=0.05)
