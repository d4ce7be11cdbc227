"""Learns what a source's times prove: whether other times mean a change, and the same times mean none.

In: what looks at the source have found (`mlfs.tree.learn_times`, `mlfs.places.doubts`). Out: which times count in a
comparison. A manifest has one of these, so whoever compares asks there.

A file system is taken at its word until it is caught. Some make times up: the time of the look, one that alternates
between servers, one that each read moves. Two looks at a file with no read in between, of which one shows another time
and nothing else that differs, prove that this time proves nothing; as somebody may write into a file just then, two
files have to show it at once, and half of those that are looked at, or the only one. Then that time is left out of all
comparisons for as long as the mount lives.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mlfs.tree.attributes import FileAttributes

Looks = Sequence[tuple[FileAttributes, FileAttributes]]
"""Pairs of looks at one file."""

# So many files have to be caught with a time that moves by itself. One may be a file that somebody writes.
FILES_CAUGHT: Final = 2

# Why the times of directories prove nothing.
ALIKE: Final = "they are all alike"
MOVED_BY_LISTINGS: Final = "listing a directory moves them"
NEVER_MOVE: Final = "they stay when an entry comes or goes"


@dataclass(frozen=True, slots=True)
class TimesStatistics:
    """Which times prove something. `directories`: why those of directories prove nothing; empty where they do."""

    mtime: bool = field(default=True, metadata={"key": "mtime_proves"})
    ctime: bool = field(default=True, metadata={"key": "ctime_proves"})
    directories: str = field(default="", metadata={"key": None})


class Times:
    """Says which times of this source count in a comparison.

    Thread-safe: what is written is one flag at a time, which never goes back.

    Attributes:
        mtime, ctime: whether this time of a file proves something. both: whether both do.
        directories: why the times of directories prove nothing, for people; empty where they do.
    """

    def __init__(self, mtime: bool = True, ctime: bool = True, directories: str = "") -> None:
        self.mtime = mtime
        self.ctime = ctime
        self.both = mtime and ctime
        self.directories = directories
        self._lock = threading.Lock()
        # If no time tells two contents apart, a copy of another mount or node can never be vouched for: so this, which
        # no other mount has, stands in the place of the change time.
        self._only_here = uuid.uuid4().int >> 66

    def statistics(self) -> TimesStatistics:
        return TimesStatistics(self.mtime, self.ctime, self.directories)

    def proved(self, mtime_ns: int, ctime_ns: int) -> tuple[int, int]:
        """The two times, 0 in the place of one that proves nothing."""
        return mtime_ns if self.mtime else 0, ctime_ns if self.ctime else 0

    def version(self, mtime_ns: int, ctime_ns: int) -> tuple[int, int]:
        """The two times as they tell a copy of this content from one of another, in this mount and in others."""
        if self.both:
            return mtime_ns, ctime_ns
        return self.proved(mtime_ns, ctime_ns) if self.mtime or self.ctime else (0, self._only_here)

    def same(self, one: FileAttributes, other: FileAttributes) -> bool:
        """Whether two looks have met the same content, as far as that can be told."""
        if one == other or self.both:
            return one == other
        return self._without(one) == self._without(other)

    def _without(self, attributes: FileAttributes) -> FileAttributes:
        mtime_ns, ctime_ns = self.proved(attributes.mtime_ns, attributes.ctime_ns)
        return attributes._replace(mtime_ns=mtime_ns, ctime_ns=ctime_ns)

    def learn(self, files: Sequence[Looks], alone: bool) -> list[str]:
        """Some files were looked at, each twice or more often, and none of them can have changed between two looks.

        Args:
            files: for each the pairs of looks. alone: whether the source has no other file.

        Returns: the names of the times that were proved to prove nothing just now.
        """
        enough = max(1 if alone else FILES_CAUGHT, (len(files) + 1) // 2)
        moved = [_moved(looks) for looks in files]
        with self._lock:
            mtime = self.mtime and sum(one[0] for one in moved) >= enough
            ctime = self.ctime and sum(one[1] for one in moved) >= enough
            self.mtime, self.ctime = self.mtime and not mtime, self.ctime and not ctime
            self.both = self.mtime and self.ctime
        return [name for name, learned in (("mtime", mtime), ("ctime", ctime)) if learned]

    def distrust_directories(self, why: str) -> None:
        """The times of directories prove nothing, and why."""
        self.directories = self.directories or why


def _moved(looks: Looks) -> tuple[bool, bool]:
    """Whether mtime, and whether ctime, moved between two looks that agree in all else."""
    alike = [(one, other) for one, other in looks if one[:1] + one[3:] == other[:1] + other[3:]]
    return any(a.mtime_ns != b.mtime_ns for a, b in alike), any(a.ctime_ns != b.ctime_ns for a, b in alike)
