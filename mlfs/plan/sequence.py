"""In which order the streams of the local ranks are fetched: whichever rank's next sample is needed soonest.

Pure. In: how far each rank has read, and how far its stream was looked ahead. Out: the rank whose next batch is to be
looked at. What counts is the distance of the look-ahead to the rank's own reader, so a rank that stands still does not
hold up the others.
"""

from __future__ import annotations

from collections.abc import Sequence


def next_rank(frontiers: Sequence[int], cursors: Sequence[int], limit: int) -> int:
    """Return the index of the rank whose next sample is needed soonest, -1 when all are `limit` or more ahead.

    Args:
        frontiers: for each rank, the linear position that it reads next.
        cursors: for each rank, the linear position that is looked at next; at least its frontier.
        limit: how many samples to look ahead of a reader at most.

    Of ranks that are equally far the lowest is taken, so batches of the same step are fetched in the order of ranks.
    """
    best, least = -1, limit
    for rank, (frontier, cursor) in enumerate(zip(frontiers, cursors, strict=True)):
        ahead = cursor - frontier
        if ahead < least:
            best, least = rank, ahead
    return best
