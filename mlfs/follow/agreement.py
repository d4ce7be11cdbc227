"""The agreement of a job, by epoch and rank: as numbers for the status, and as a line for the log.

Pure. In: opens as they were counted (`mlfs.follow.score`). Out: frozen numbers and words. Called by `mlfs.follow.job`,
by the engine at each epoch's end, and by the mount's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mlfs.follow.score import Cell

SHOWN_RANKS = 4
"""Ranks that a line of the log names: those with the least agreement."""
NO_RANK = -1
"""Stands for the rank of opens that could be of no rank."""


class Share(NamedTuple):
    """How many of some opens were predicted."""

    agreed: int
    opens: int

    @property
    def share(self) -> float:
        """Agreed opens among all, 0.0 when there were none, with six digits: status and log say the same number."""
        return round(self.agreed / self.opens, 6) if self.opens else 0.0


SharesByRank = Mapping[int, Share]


def by_epoch(cells: Mapping[tuple[int, int], Cell], ranks: Sequence[int]) -> dict[int, SharesByRank]:
    """For each epoch that was read, in ascending order, the share of each rank, `NO_RANK` among them.

    Args:
        cells: counts by epoch and local rank index.
        ranks: the job's number of each local rank.
    """
    shares: dict[int, dict[int, Share]] = {}
    for (epoch, index), cell in sorted(cells.items()):
        if cell.observed:
            rank = ranks[index] if index >= 0 else NO_RANK
            shares.setdefault(epoch, {})[rank] = Share(cell.agreed, cell.observed)
    return dict(shares)


def whole(shares: Iterable[Share]) -> Share:
    agreed = opens = 0
    for share in shares:
        agreed, opens = agreed + share.agreed, opens + share.opens
    return Share(agreed, opens)


def of_rank(epochs: Mapping[int, SharesByRank], rank: int) -> Share:
    return whole(shares[rank] for shares in epochs.values() if rank in shares)


def epoch_line(epoch: int, shares: SharesByRank, pfs_bytes: int) -> str:
    """The line of the log for an epoch that all ranks have left."""
    return f"epoch {epoch} ended, {agreement_in_words(shares)}, {pfs_bytes} bytes from the PFS"


def agreement_in_words(shares: SharesByRank) -> str:
    """The agreement of an epoch, over how many opens, and of its ranks."""
    if not shares:
        return "agreement unknown: no open was counted"
    together = whole(shares.values())
    said = f"agreement {together.share} ({together.agreed} of {together.opens} opens"
    ranks = sorted((share.share, rank) for rank, share in shares.items() if rank != NO_RANK)
    if len(ranks) > 1:
        said += "; " + ", ".join(f"rank {rank} {share}" for share, rank in ranks[:SHOWN_RANKS])
        said += ", others more" if len(ranks) > SHOWN_RANKS else ""
    return said + ")"
