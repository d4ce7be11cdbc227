"""In which order the local ranks' streams are fetched: step by step across ranks, the nearest need first.

Pure. In: how far each rank has read and how far its stream has been looked at. Out: whose next batch to look at.
Called by `mlfs.plan.scheduler.look_ahead` for each batch. A rank that stands still does not hold the others: what
counts is the distance to its own reader.
"""

from __future__ import annotations

from collections.abc import Sequence


def next_rank(frontiers: Sequence[int], cursors: Sequence[int], limit: int) -> int:
    """Return the index of the rank whose next sample is needed soonest, -1 when all are `limit` or more ahead.

    Args:
        frontiers: linear position each rank reads next.
        cursors: linear position each rank's stream is looked at next; at least its frontier.
        limit: most samples to look ahead of a reader.

    Ties go to the lower rank: at equal steps the ranks' batches are fetched in rank order.
    """
    best, least = -1, limit
    for rank, (frontier, cursor) in enumerate(zip(frontiers, cursors, strict=True)):
        ahead = cursor - frontier
        if ahead < least:
            best, least = rank, ahead
    return best
