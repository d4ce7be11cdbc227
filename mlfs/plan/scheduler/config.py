"""What the scheduler knows of its node from the start: its places, and its limits.

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
"""A clock that was asked to wake us at a time may round it: so much earlier counts as that time."""


@dataclass(frozen=True, slots=True)
class PlaceInfo:
    """A place, as decisions see it. Places are numbered: the source is 0, then come the node's tiers, then its peers.

    Attributes:
        lanes: most prefetch threads (NoPFS, Section 4: p_j). Peers share those of the first peer.
        capacity_bytes, used_bytes: of a tier. largest_bytes: the largest sample that it takes, 0 for no limit.
        footprint_bytes: what a sample of a size would occupy there.
        node: of a peer, its number in the placement.
    """

    kind: PlaceKind
    name: str
    lanes: int
    capacity_bytes: int = 0
    used_bytes: int = 0
    largest_bytes: int = 0
    footprint_bytes: Callable[[int], int] = int
    node: int = -1

    @property
    def is_afar(self) -> bool:
        """Whether it is no place of this node: what comes from there may be kept here."""
        return self.kind in (PlaceKind.SOURCE, PlaceKind.PEER)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets and patience of a node.

    Attributes:
        window_bytes: the staging window. source_lanes_at_first: how many lanes of the source are tried with first, 0
            when nothing is known.
        hedge_s: how long a reader waits for a fetch before the place is asked once more.
        timeout_s: how long that second try may take before the reader gets an error.
        largest_whole_bytes: a reader who waits for a larger sample reads it by ranges instead.
    """

    window_bytes: int
    source_lanes_at_first: int = 0
    hedge_s: float = 10.0
    timeout_s: float = 30.0
    largest_whole_bytes: int = 4 << 20
