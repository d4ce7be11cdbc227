"""Says which node keeps each sample where several jobs have served orders, and how many samples have no room.

Pure. In: for each job, which node its order expects to keep each sample (`mlfs.served.partition`); the nodes' rooms.
Out: the same for all jobs together; how many samples have no room. Called by `mlfs.engine.shared_plan` for a cluster,
by `mlfs.engine.planner` for a node alone.

Each order is made as if its job had all the room of the nodes. Orders that rest on the same nodes expect a sample on
the same node, so several jobs go well together while there is room for all, such as a data set for validation beside
the one for training. The orders stay as they are where there is no room for all. Samples that have no room are then
read of the source in each epoch; a warning says so, and no job is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.served.partition import NOBODY, fill, footprints

NodeNumbers = npt.NDArray[np.int16]


def kept_by_all(kept_at: Mapping[str, NodeNumbers]) -> NodeNumbers | None:
    """By sample, the node that keeps it for all jobs, -1 for none; None without jobs.

    The job whose name comes first counts where two orders rest on different nodes: that is the same one on all nodes,
    in whatever order they heard of the jobs.
    """
    together: NodeNumbers | None = None
    for name in sorted(kept_at):
        together = kept_at[name] if together is None else np.where(together < 0, kept_at[name], together)
    return together


def without_room(kept: NodeNumbers, sizes_bytes: npt.NDArray[Any], rooms_bytes: Mapping[int, int]) -> int:
    """How many of the samples that these nodes are to keep have no room there, as nodes fill it (`Members.plan`)."""
    taken = footprints(sizes_bytes)
    missing = 0
    for node, room in rooms_bytes.items():
        missing += int((fill(taken[(kept == node) & (taken > 0)], [room]) == NOBODY).sum())
    return missing


def warning(kept_at: Mapping[str, NodeNumbers], sizes_bytes: npt.NDArray[Any], rooms_bytes: Mapping[int, int]) -> str:
    """A sentence on the jobs together that a user should know; "" for nothing."""
    kept = kept_by_all(kept_at)
    if kept is None or len(kept_at) < 2:
        return ""
    if not (missing := without_room(kept, sizes_bytes, rooms_bytes)):
        return ""
    jobs, samples = ", ".join(sorted(kept_at)), np.count_nonzero(kept >= 0)
    return (
        f"jobs {jobs}: there is no room for {missing:,} of the {samples:,} samples that their served orders take to be"
        " kept: they are read once more in each epoch; give the mounts more --ram or --ssd, or register only the larger"
        " job with --serve"
    )
