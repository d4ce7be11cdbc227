"""What is known of a read only when its reader goes on: what the source gave, and that an epoch is over."""

from __future__ import annotations

from mlfs.plan.scheduler.following import Matched, Opening
from mlfs.plan.scheduler.rank_loads import Reader

SAMPLE, PROCESS = 7, 100


def read(name: str, epoch: int) -> Matched:
    return Matched(Reader(name, 0, PROCESS), epoch * 10, epoch * 10, ((name, epoch),))


def test_each_wait_has_its_own_end() -> None:
    opening = Opening()
    opening.waits(SAMPLE, PROCESS, read("train", 0))
    opening.waits(SAMPLE, PROCESS, read("train", 1))
    opening.waits(SAMPLE, PROCESS + 1, read("other", 0))
    assert opening.is_awaited("train", 0)
    assert opening.over(SAMPLE, PROCESS) == read("train", 0)
    assert not opening.is_awaited("train", 0)
    assert opening.over(SAMPLE, PROCESS) == read("train", 1)
    assert opening.over(SAMPLE, PROCESS) == Matched()
    assert opening.is_awaited("other", 0)


def test_nothing_is_counted_for_a_job_that_has_ended() -> None:
    opening = Opening()
    opening.waits(SAMPLE, PROCESS, read("train", 0)._replace(counted=(("train", 0), ("other", 2))))
    opening.forget("train")
    assert not opening.is_awaited("train", 0)
    ended = opening.over(SAMPLE, PROCESS)
    assert (ended.reader, ended.counted) == (None, (("other", 2),))
