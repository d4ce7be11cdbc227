"""Reads that failed for readers: how many, and what the last one was about.

In: errors that requests for the data set's files are answered with, from `mountd.handlers`. Out: frozen figures for the
status and the metrics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReadFailureStatistics:
    """Reads that failed.

    Attributes:
        error, path, ago_s: of the last one: what its reader was told, about which file, how long ago.
    """

    count: int = field(default=0, metadata={"key": None})
    error: str = ""
    path: str = ""
    ago_s: float = field(default=0.0, metadata={"digits": 3})


class ReadFailures:
    """Counts them, and remembers the last one. Loop only.

    Args:
        path: the path of an entry, relative to the source.
    """

    def __init__(self, path: Callable[[int], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._count = 0
        self._last = ("", "", 0.0)

    def note(self, entry: int, error: Exception) -> None:
        """A reader gets this error for a file."""
        number = error.errno if isinstance(error, OSError) else None
        text = os.strerror(number) if number else f"an internal error: {error!r}"
        self._count += 1
        self._last = text, os.fsdecode(self._path(entry)), self._clock()

    def statistics(self) -> ReadFailureStatistics:
        """Frozen figures."""
        text, path, at_s = self._last
        return ReadFailureStatistics(self._count, text, path, self._clock() - at_s if self._count else 0.0)
