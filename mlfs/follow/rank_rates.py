"""How many samples a second each local rank reads, for the status.

Pure; times are passed in. In: the ranks' frontiers, now and then. Out: rates of the last seconds. Used by
`mlfs.follow.job`.
"""

from __future__ import annotations

from collections.abc import Sequence

RATE_SECONDS = 2.0
"""A rate is taken over at least so long: a loader reads batch by batch, so over less it would jump up and down."""


class RankRates:
    """See the module.

    Attributes:
        by_rank: samples a second by local rank index; empty before anything can be said.
    """

    def __init__(self) -> None:
        self.by_rank: dict[int, float] = {}
        self._frontiers: Sequence[int] = ()
        self._since_s = 0.0

    def update(self, frontiers: Sequence[int], now_s: float) -> None:
        """Something was read, and the ranks are here by now."""
        passed_s = now_s - self._since_s
        if self._frontiers and passed_s < RATE_SECONDS:
            return
        if self._frontiers:
            both = zip(self._frontiers, frontiers, strict=True)
            self.by_rank = {rank: (new - old) / passed_s for rank, (old, new) in enumerate(both)}
        self._frontiers, self._since_s = frontiers, now_s
