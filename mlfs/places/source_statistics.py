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
    since_s: float = field(default=0.0, metadata={"digits": 3})
    opened_again: int = 0
    opened_s: float = field(default=0.0, metadata={"key": None})
    covered: bool = field(default=False, metadata={"key": None})


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """The state of the source.

    Attributes:
        hanging: how many calls on it have been going on for longer than two seconds. hanging_s: for how long the first
            of them has. hanging_path: its file's, relative to the source, with surrogate escapes for bytes that are no
            text.
        times: which of its times prove something.
        unsized_files: those whose size was found not to be the number of their bytes. first_unsized: the first one's
            path.
    """

    root: RootStatistics = field(default_factory=RootStatistics, metadata={"key": None})
    hanging: int = 0
    hanging_s: float = field(default=0.0, metadata={"digits": 3})
    hanging_path: str = ""
    times: TimesStatistics = field(default_factory=TimesStatistics, metadata={"key": None})
    unsized_files: int = 0
    first_unsized: str = field(default="", metadata={"key": None})
