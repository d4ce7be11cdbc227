"""Whether a part of scripts/bench has measured what it says: by the mount's own counters, over what was measured.

In: what a mount says of itself, before and after. Out: how many reads came from where meanwhile, and what was fetched;
SystemExit where that is not what the part is about, with both. So a change that makes the reads of a part others than
it was written for (they are learned and fetched ahead, pages are taken back, a job is not followed) is no better or
worse figure: it is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

PAGE_CACHE, PFS = "page_cache", "pfs"
# A rank may be late by a read now and then: more is another thing than measured.
NEARLY_ALL = 0.99
# The same of pages, which the kernel takes back as it likes, of small data sets more than a hundredth.
MOST = 0.95
# Of a small data set: so many reads at the edges of epochs may be taken for those of another one, or come once more.
AT_EDGES = 4
SETTLED_WITHIN_S = 60.0

Status = dict[str, Any]


class Counted(NamedTuple):
    """What a mount has counted while something was measured.

    Attributes:
        reads: by where their bytes came from: `page_cache` means that they were there before the reader.
        fetches: samples that came from each place, ahead of readers or for one who waits.
        requests: of the kernel, by kind.
        stalls: reads that had to wait.
    """

    reads: dict[str, int]
    fetches: dict[str, int]
    requests: dict[str, int]
    stalls: int

    def by(self, route: str) -> int:
        """Reads that it answered."""
        return self.reads.get(route, 0)

    @property
    def all_reads(self) -> int:
        return sum(self.reads.values())

    def fetched(self, route: str) -> int:
        """Samples that came from there."""
        return self.fetches.get(route, 0)


class Since:
    """Counts from now on."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._first = _counted(settled(status))

    def now(self) -> Counted:
        """What was counted meanwhile, once all of it is."""
        now = _counted(settled(self._status))
        return Counted(*map(_less, now[:3], self._first[:3]), now.stalls - self._first.stalls)


def settled(status: Callable[[], Status]) -> Status:
    """What the mount says once it has counted all reads and nothing is under way any more."""
    ends = time.monotonic() + SETTLED_WITHIN_S
    while any((now := status())["under_way"].values()):
        if time.monotonic() > ends:
            raise SystemExit(f"the mount does not come to rest: {now['under_way']}")
        time.sleep(0.05)
    return now


def must_be(what: str, is_so: bool, counted: object) -> None:
    """End the benchmark unless it has measured that."""
    if not is_so:
        raise SystemExit(f"not a benchmark of {what}: {counted}")


def must_be_followed(status: Status, reads: int) -> None:
    """The mount's job has so many reads, and they came as predicted."""
    must_be("one job", len(status["jobs"]) == 1, f"{len(status['jobs'])} of them")
    (job,) = status["jobs"]
    told = {name: job[name] for name in ("state", "agreed_opens", "observed_opens", "agreement_by_epoch")}
    must_be(
        f"a job that is followed over {reads} reads",
        min(NEARLY_ALL * reads, reads - AT_EDGES) <= job["agreed_opens"] and job["observed_opens"] <= reads + AT_EDGES,
        told,
    )


def _counted(status: Status) -> Counted:
    return Counted(
        {route: tally["reads"] for route, tally in status["reads"]["all"].items()},
        {route: tally["count"] for route, tally in status["fetches"].items()},
        dict(status["requests"]),
        status["stalls"]["count"],
    )


def _less(now: dict[str, int], first: dict[str, int]) -> dict[str, int]:
    return {name: value - first.get(name, 0) for name, value in now.items()}
