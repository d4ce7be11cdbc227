"""What is known of a read only when its reader goes on: what the source gave, and that an epoch is over."""

from __future__ import annotations

from mlfs.plan.scheduler.following import Matched, Opening
from mlfs.plan.scheduler.rank_waits import RankReader

SAMPLE, PROCESS = 7, 100


def read(job: int, epoch: int) -> Matched:
    return Matched(RankReader(job, 0, PROCESS), epoch * 10, epoch * 10, ((job, epoch),))


def test_each_wait_has_its_own_end() -> None:
    opening = Opening()
    opening.waits(SAMPLE, PROCESS, read(1, 0))
    opening.waits(SAMPLE, PROCESS, read(1, 1))
    opening.waits(SAMPLE, PROCESS + 1, read(2, 0))
    assert opening.is_awaited(1, 0)
    assert opening.over(SAMPLE, PROCESS) == read(1, 0)
    assert not opening.is_awaited(1, 0)
    assert opening.over(SAMPLE, PROCESS) == read(1, 1)
    assert opening.over(SAMPLE, PROCESS) == Matched()
    assert opening.is_awaited(2, 0)
