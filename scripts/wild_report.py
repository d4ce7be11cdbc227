"""What `scripts/wild` makes of a run: losses, true agreement by epoch, when the order was found, the table.

Pure. In: a client's output, statuses of the mount as they were seen one after another, the recorded opens. Out: the
row of a run, the table of all runs, and what is wrong with a run. Called by scripts/wild.py.

What mlfs says of a job that its reads told counts those as predicted, too. Here an open counts only if it came while a
job that predicted it was in force: the mount tells how many came before (`late_opens`). An inferred job has epochs of
its own, and one may follow another; which epoch of the client they were read in follows from the recorded opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

TRAIN = "train"


class Opened(NamedTuple):
    """A recorded open: the process, its parent, and the path below the data set."""

    pid: int
    parent: int
    path: str


@dataclass
class Row:
    """One run of a client over a mount, as the table shows it."""

    client: str
    mode: str
    stranger: str
    agreement: list[float] = field(default_factory=list)
    """By epoch: the share of the client's opens that were predicted when they came."""
    said: dict[str, float] = field(default_factory=dict)
    """By epoch: what the status says at the end."""
    found_after: int | None = None
    """Reads of the client before the first job that follows them was there; 0 for a registered one."""
    staged: float = 0.0
    """Share of all reads that the page cache answered."""
    losses: str = "none"
    """equal, DIFFER, or not compared: a script without a seed trains another model in each run."""
    spec: str = ""
    """The job in force at the end, in the words of mlfs."""
    messages: list[str] = field(default_factory=list)
    least: float = 1.0
    """Agreement that a registered run must have in each epoch."""
    problem: str = ""
    """Why there is no more to tell: the client failed."""

    def wrong(self) -> str:
        """What makes the whole run end with an error; empty if nothing."""
        if self.problem:
            return self.problem
        if self.losses == "DIFFER":
            return "the losses differ from those of a direct run"
        if self.mode == "registered" and (not self.agreement or min(self.agreement) < self.least):
            return "registered, and not predicted as it should be"
        return ""


def losses(output: str, pattern: str) -> list[str]:
    """All that the pattern's group matches, in order, as it was printed."""
    return re.findall(pattern, output, re.MULTILINE)


def opens_of_client(opened: Iterable[Opened], strangers: Iterable[int]) -> list[bool]:
    """For each open, whether it is a training file that the client opened: no stranger, and no child of one."""
    kin = set(strangers)
    mine = []
    for pid, parent, path in opened:
        if parent in kin:
            kin.add(pid)
        mine.append(pid not in kin and path.split("/", 1)[0] == TRAIN)
    return mine


def reads(status: dict[str, Any]) -> int:
    """Opens that the mount has answered so far."""
    return sum(route["reads"] for route in status["reads"]["all"].values())


def training_jobs(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs that may be the client's training: about training files, or about all, in an order that is shuffled.

    All clients shuffle: who reads in the order of the files validates, or is a stranger.
    """
    return [
        job
        for job in status["jobs"]
        if job["spec"].get("root", "").split("/", 1)[0] in ("", TRAIN) and job["spec"].get("sampler") != "sequential"
    ]


def true_agreement(statuses: Sequence[dict[str, Any]], mine: Sequence[bool], epochs: int) -> list[float]:
    """See the module: by epoch, the share of the client's opens that were predicted when they came."""
    so_far = [0]
    for is_mine in mine:
        so_far.append(so_far[-1] + is_mine)
    total = so_far[-1]
    if not total:
        return []
    ends = [total * (epoch + 1) // epochs for epoch in range(epochs)]
    sizes = [end - begin for begin, end in pairwise([0, *ends])]
    predicted = [0] * epochs
    for counted in _counted(statuses):
        first, last = (so_far[min(at, len(mine))] for at in (counted.first, counted.last))
        epoch = sum(end <= (first + last) // 2 for end in ends[:-1])
        predicted[epoch] += counted.predicted
    return [min(1.0, count / size) if size else 0.0 for count, size in zip(predicted, sizes, strict=True)]


class _Counted(NamedTuple):
    """What one job has counted in one of its epochs: how many of the mount's opens there were just before that began,
    and when it ended, and how many were predicted when they came."""

    first: int
    last: int
    predicted: int


def _counted(statuses: Sequence[dict[str, Any]]) -> list[_Counted]:
    """One for each job and each of its epochs. A job that has predicted less than before is another one of its name."""
    over: list[_Counted] = []
    current: dict[str, dict[str, _Counted]] = {}
    before = 0
    for status in statuses:
        now = reads(status)
        for job in training_jobs(status):
            known = current.setdefault(job["name"], {})
            told = job["agreement_by_epoch"]
            if any(counted.predicted > _predicted(told.get(epoch)) for epoch, counted in known.items()):
                over += known.values()
                known.clear()
            for epoch in told:
                counted = known.get(epoch, _Counted(before, before, 0))
                if _predicted(told[epoch]) > counted.predicted:
                    known[epoch] = _Counted(counted.first, now, _predicted(told[epoch]))
        before = now
    return [*over, *(counted for known in current.values() for counted in known.values())]


def _predicted(told: dict[str, Any] | None) -> int:
    """Opens that were predicted when they came."""
    return int(told["agreed_opens"] - told["late_opens"]) if told else 0


def said_agreement(status: dict[str, Any]) -> dict[str, float]:
    """What the status says of each epoch of the training jobs."""
    said = {}
    for job in training_jobs(status):
        said |= {epoch: share["agreement"] for epoch, share in job["agreement_by_epoch"].items()}
    return said


def registered_agreement(status: dict[str, Any], expected: int, epochs: int) -> list[float]:
    """The same for a registered job, held against the number of opens that the client made in all.

    A registered job counts from the first open on, and goes on with its counts where it is corrected. So what it says
    is what is true, but for opens that it missed, and those that told its order (late ones). Opens that it took for its
    own and that were a stranger's count against it.
    """
    agreed, observed = [0.0] * epochs, [0] * epochs
    for job in training_jobs(status):
        for epoch, share in job["agreement_by_epoch"].items():
            if 0 <= int(epoch) < epochs:
                agreed[int(epoch)] += share["agreed_opens"] - share["late_opens"]
                observed[int(epoch)] += share["observed_opens"]
    size = expected / epochs
    return [share / max(size, seen) if size else 0.0 for share, seen in zip(agreed, observed, strict=True)]


def found_after(statuses: Sequence[dict[str, Any]], mine: Sequence[bool]) -> int | None:
    """The client's training reads before a job that follows them was first seen; None if none ever was."""
    for status in statuses:
        if training_jobs(status):
            return sum(mine[: reads(status)]) if any(job.get("inferred") for job in training_jobs(status)) else 0
    return None


def share_staged(status: dict[str, Any]) -> float:
    """Share of all reads that the page cache answered."""
    total = reads(status)
    return status["reads"]["all"]["page_cache"]["reads"] / total if total else 0.0


HEADINGS = ("client", "mode", "beside", "agreement by epoch", "as said", "found after", "staged", "losses")


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table."""
    said = " ".join(f"{share:.3f}" for share in row.said.values())
    found = "" if row.found_after is None else f"{row.found_after:,}"
    if row.problem:
        return (row.client, row.mode, row.stranger, row.problem, "", "", "", "")
    by_epoch = " ".join(f"{share:.3f}" for share in row.agreement)
    return (row.client, row.mode, row.stranger, by_epoch, said, found or "never", f"{row.staged:.1%}", row.losses)


def markdown(rows: Iterable[Row]) -> str:
    """The table, in Markdown; docs/decisions/clients-measured.md has the columns that differ between clients."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
