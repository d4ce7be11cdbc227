"""Limits how many bytes an agent gives to the transport for one peer at a time.

Pure. In: when bytes were given to the transport, and how many of them it has not sent yet. Out: a limit in bytes.

Between two nodes a transport has one connection, in which a message waits behind all bytes that were given before it.
Over a slow link a request would so reach its owner late. Therefore an agent gives no more at a time than the link sends
within `WAIT_S`, as far as that was measured; over a fast link that is all that the peer asks for. This is congestion
control by delay, as in TCP Vegas (Brakmo and Peterson, 1995), over a queue of our own.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

# So long a message may wait behind bytes: well below what a request takes by itself over a slow link (4 samples of 400
# kB, 25 ms each at 150 Mbit/s), and far above the time between two looks at the transport, which nobody should measure.
WAIT_S = 25e-3
# The limit never lies below it: on a busy machine the other end may answer late and the link be fast all the same.
LEAST_BYTES = 256 << 10
# Bytes of which none was sent for so long are counted no more: a peer that took this node for lost may have called them
# off, and then MPI keeps them for good.
STUCK_S = 1.0
# The limit before anything was measured: 16 samples of 64 KiB.
FIRST_BYTES = 1 << 20


class _Given(NamedTuple):
    """Bytes that were given: when, how many had been given by then in all, how many of those were under way."""

    at_s: float
    total_bytes: int
    under_way_bytes: int


class Outflow:
    """The limit for one peer, and what it is computed from.

    Args:
        most_bytes: the limit never lies above it, not even where that is less than LEAST_BYTES.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._limit_bytes = min(FIRST_BYTES, most_bytes)
        self._total_bytes = 0
        self._given: deque[_Given] = deque()  # what the transport has not sent yet, oldest first
        self._unsent_bytes = self._stuck_bytes = 0
        self._sent_s = 0.0  # when that became less, or when there was none
        self._looked_s = 0.0

    def may_give(self, size_bytes: int, unsent_bytes: int, now_s: float) -> bool:
        """Whether so many more bytes may be given, while so many are unsent. A single sample always may."""
        self._look(unsent_bytes, now_s)
        under_way_bytes = unsent_bytes - self._stuck_bytes
        return not under_way_bytes or under_way_bytes + size_bytes <= self._limit_bytes

    def gives(self, size_bytes: int, unsent_bytes: int, now_s: float) -> None:
        """Note that bytes are given now, and how many are unsent after that."""
        self._look(max(0, unsent_bytes - size_bytes), now_s)
        self._unsent_bytes = unsent_bytes
        self._total_bytes += size_bytes
        self._given.append(_Given(now_s, self._total_bytes, unsent_bytes - self._stuck_bytes))

    def _look(self, unsent_bytes: int, now_s: float) -> None:
        """Find out how much has been sent since the last look, and how fast the link is by that."""
        looked_s, self._looked_s = self._looked_s, now_s
        self._see_stuck(unsent_bytes, now_s)
        sent_bytes = self._total_bytes - (unsent_bytes - self._stuck_bytes)
        last = None
        while self._given and self._given[0].total_bytes <= sent_bytes:
            last = self._given.popleft()
        if last is not None:  # the link has sent it at some time between the two looks
            self._learn(last.under_way_bytes, looked_s - last.at_s, max(now_s - last.at_s, 1e-6))

    def _see_stuck(self, unsent_bytes: int, now_s: float) -> None:
        """Count bytes as stuck when nothing was sent for `STUCK_S`; what was sent after all is not stuck."""
        if unsent_bytes < self._unsent_bytes or unsent_bytes == self._stuck_bytes:
            self._sent_s = now_s
        self._unsent_bytes = unsent_bytes
        self._stuck_bytes = min(self._stuck_bytes, unsent_bytes)
        if now_s - self._sent_s > STUCK_S:
            self._stuck_bytes, self._sent_s = unsent_bytes, now_s
            self._given.clear()

    def _learn(self, under_way_bytes: int, least_s: float, most_s: float) -> None:
        """The link has sent so many bytes, and took between `least_s` and `most_s` for it: set the limit by that.

        It is lowered where the link surely took longer than WAIT_S, and raised where it surely did not, to twice what
        was under way at most, as nothing is known of more. In between the two it stays.
        """
        if least_s > WAIT_S:
            in_time_bytes = int(under_way_bytes * WAIT_S / least_s)
            self._limit_bytes = min(self._most_bytes, max(LEAST_BYTES, in_time_bytes))
        elif most_s <= WAIT_S:
            in_time_bytes = int(under_way_bytes * WAIT_S / most_s)
            tried_bytes = min(in_time_bytes, 2 * under_way_bytes, self._most_bytes)
            self._limit_bytes = max(self._limit_bytes, tried_bytes)
