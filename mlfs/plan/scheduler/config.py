"""The node as the scheduler knows it from the start: its places, and its limits.

Pure. In: what the daemon's configuration or the simulator's scenario says. Out: frozen records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mlfs.plan.place_kind import PlaceKind

SOURCE: Final = 0
"""The number of the source among a node's places."""

SAME_TIME_S: Final = 1e-6
"""A driver's clock may round the time at which it was asked to wake the scheduler, so this much too early is in time.
It is far below any waiting time, and above the error of rounding seconds in floating point."""


LARGEST_KEPT_BYTES: Final = 64 << 20
"""A larger sample is never held whole in memory, so no place of a node keeps it."""


@dataclass(frozen=True, slots=True)
class PlaceInfo:
    """A place, as decisions see it. Places are numbered: the source is 0, then come the node's tiers, then its peers.

    Attributes:
        lanes: the most prefetch threads (NoPFS, Section 4: p_j). All peers share those of the first peer.
        capacity_bytes, used_bytes: for a tier, its budget and what it holds at the start.
        largest_bytes: the largest sample that a tier takes, 0 for no limit.
        footprint_bytes: gives what a sample of some size would occupy there.
        node: for a peer, its number in the placement.
    """

    kind: PlaceKind
    name: str
    lanes: int
    capacity_bytes: int = 0
    used_bytes: int = 0
    largest_bytes: int = 0
    footprint_bytes: Callable[[int], int] = int
    node: int = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets and patience of a node.

    Attributes:
        window_bytes: the size of the staging window.
        source_lanes_at_first: with how many lanes the source begins, 0 when nothing was measured.
        hedge_s: how long a reader waits for a fetch before the place is asked once more.
        timeout_s: how long that second try may take before the reader gets an error.
        largest_whole_bytes: a reader who waits for a larger sample reads it by ranges instead.
    """

    window_bytes: int
    source_lanes_at_first: int = 0
    hedge_s: float = 10.0
    timeout_s: float = 30.0
    largest_whole_bytes: int = 4 << 20
