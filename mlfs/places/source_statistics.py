"""The source's own words: whether its file system is there, and which calls on it hang. Frozen figures.

In: figures from `mlfs.places.posix` and `mlfs.places.source_root`. Out: what the status and the metrics are made from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mlfs.tree.times import TimesStatistics


class RootState(StrEnum):
    """The state of the source's file system."""

    THERE = "there"
    GONE = "gone"
    OTHER = "another"
    """It is gone, and something else is at its path."""


@dataclass(frozen=True, slots=True)
class RootStatistics:
    """The root of the source.

    Attributes:
        error: why it is gone, or what is at its path instead; empty while it is there.
        since_s: for how long it is gone.
        opened_again: how often it was. opened_s: how long ago the last time was.
        covered: whether the mount lies over the source's path, so that it cannot be opened again.
    """

    state: RootState = RootState.THERE
    error: str = ""
    since_s: float = 0.0
    opened_again: int = 0
    opened_s: float = 0.0
    covered: bool = False


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """How the source does.

    Attributes:
        hanging: how many calls on it have been going on for longer than two seconds. longest_s: for how long the first
            of them has. path: of its file, relative to the source, with surrogate escapes for bytes that are no text.
        times: which of its times prove something.
        unsized: files whose size was found not to be the number of their bytes. first_unsized: the first one's path.
    """

    root: RootStatistics = field(default_factory=RootStatistics)
    hanging: int = 0
    longest_s: float = 0.0
    path: str = ""
    times: TimesStatistics = field(default_factory=TimesStatistics)
    unsized: int = 0
    first_unsized: str = ""
