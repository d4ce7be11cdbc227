"""Shortages of the mount while it ran: threads, descriptors, memory, room on a disk; and which limit that was.

In: errors, as calls raise them that lack something; from any thread. Out: frozen figures for the status: how often, the
limit's figure, and what to set. A shortage costs the piece of work that met it, and that is all it costs: whoever calls
here goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mlfs.limits import Limit, Resource, lacking, limit_of

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")

# A call that a reader waits for is made again for so long: what others have open or in memory comes free soon.
PATIENCE_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that the process was short of, how often, which limit it met, and what to set."""

    resource: str
    times: int
    what: str
    way_out: str


class Shortages:
    """Counts what the process was short of, and says so once.

    Args:
        limit: tells the limit of a resource; asked once a resource, when it is first met.
    """

    def __init__(self, limit: Callable[[Resource], Limit] = limit_of) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._met: dict[Resource, Shortage] = {}

    def noticed(self, error: BaseException | int | None) -> bool:
        """Whether the error says that something is lacking; then it is counted. An error number will do."""
        what = lacking(error)
        if what is not None:
            self.met(what)
        return what is not None

    def met(self, what: Resource) -> None:
        """The limit of a resource was met. The first time is logged."""
        with self._lock:
            known = self._met.get(what)
            limit = Limit(known.what, known.way_out) if known is not None else self._limit(what)
            self._met[what] = Shortage(str(what), 1 + (known.times if known is not None else 0), *limit)
        if known is None:
            log.warning("short of %s: %s (%s); what comes after is counted", what, limit.what, limit.way_out)

    def statistics(self) -> tuple[Shortage, ...]:
        with self._lock:
            return tuple(self._met.values())


def patiently(shortages: Shortages, call: Callable[..., T], *args: object) -> T:
    """In a worker: what the call returns. While that is an error, or has one, that says that the process lacks
    something, the call is made again, for a while."""
    end_s, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
    while True:
        result = call(*args)
        error = result if isinstance(result, OSError) else getattr(result, "error", None)
        if not shortages.noticed(error) or time.monotonic() > end_s:
            return result
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
