"""The agreement of a job, by epoch and rank: as numbers for the status, and as a line for the log.

In: a running job. Out: plain numbers and words. Called by the engine at each epoch's end, and by the mount's status.
The counts themselves are kept by `mlfs.follow.score`.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.follow.job import JobRun

SHOWN_RANKS = 4
"""Ranks that a line of the log names: those with the least agreement."""


class Share(NamedTuple):
    """How many of some opens were predicted."""

    agreed: int
    opens: int

    @property
    def share(self) -> float:
        """Agreed opens among all, 0.0 when there were none."""
        return self.agreed / self.opens if self.opens else 0.0


def by_epoch(job: JobRun) -> dict[int, dict[int, Share]]:
    """For each epoch that was read, the share of each rank. Rank -1 stands for opens that could be of no rank."""
    shares: dict[int, dict[int, Share]] = {}
    for (epoch, index), cell in job.score.cells.items():
        if cell.observed:
            rank = job.spec.ranks[index] if index >= 0 else -1
            shares.setdefault(epoch, {})[rank] = Share(cell.agreed, cell.observed)
    return shares


def of_rank(job: JobRun, index: int) -> float:
    """The share over all epochs of one local rank."""
    cells = [cell for (_, of), cell in job.score.cells.items() if of == index]
    return Share(sum(cell.agreed for cell in cells), sum(cell.observed for cell in cells)).share


def whole(shares: dict[int, Share]) -> Share:
    """The share over all ranks."""
    return Share(sum(share.agreed for share in shares.values()), sum(share.opens for share in shares.values()))


def epoch_line(job: JobRun, epoch: int) -> str:
    """The line of the log for an epoch that all ranks have left."""
    shares = by_epoch(job).get(epoch, {})
    ranks = sorted((share.share, rank) for rank, share in shares.items() if rank >= 0)
    agreement = f"{whole(shares).share:.3f}" if shares else "-"
    if len(ranks) > 1:
        agreement += " (" + ", ".join(f"rank {rank} {share:.3f}" for share, rank in ranks[:SHOWN_RANKS])
        agreement += ", others more)" if len(ranks) > SHOWN_RANKS else ")"
    return f"epoch {epoch} ended, agreement {agreement}, {job.bytes_read.pfs_by_epoch.get(epoch, 0)} bytes from the PFS"
