"""Looks at the entries of one directory: one thread begins, and where that takes long all others help.

In: the directory's descriptor and the names in it. Out: names, rows of attributes, and what links and device nodes
have besides, in no order. Called by `mlfs.tree.scan`.

On a local disk one thread is as fast as many, which would only take the interpreter from each other. On a network file
system each look is a round trip, and a data set may be one flat directory. So the thread that lists a directory begins
alone, and if that takes long asks for help: the names are taken in portions by whoever has time. It waits only for
portions that somebody has begun, never for help to come, so threads that are all at such directories hold up nobody.
"""

from __future__ import annotations

import array
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mlfs.tree.manifest import clamp_ns

PORTION: Final = 16
# By so many looks the thread that lists a directory learns how long one takes.
FIRST: Final = 3
# A look at an entry whose attributes are in memory takes some 3 us. One that takes longer than this has asked a disk
# or a server, and several can be asked at once.
SLOW_LOOK_S: Final = 60e-6

LendAHand = Callable[[Callable[[], None]], None]
"""Has other threads make a call, soon or when it is of no use any more."""


class Looked(NamedTuple):
    """Entries as they were seen.

    Attributes:
        rows: the attributes of `row_of`, one entry behind the other.
        special: by name the target of a symbolic link, or the st_rdev of a device node.
        linked: by name st_dev and st_ino of a file with several links.
    """

    names: list[bytes]
    rows: array.array[int]
    special: dict[bytes, bytes | int]
    linked: dict[bytes, tuple[int, int]]

    def add(self, more: Looked) -> None:
        """Take over what was seen of other entries."""
        self.names.extend(more.names)
        self.rows.extend(more.rows)
        self.special.update(more.special)
        self.linked.update(more.linked)


def _nothing() -> Looked:
    return Looked([], array.array("q"), {}, {})


def row_of(status: os.stat_result) -> tuple[int, ...]:
    """The attributes that the manifest keeps of an entry, in the order of its columns."""
    return (
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_nlink,
        status.st_size,
        clamp_ns(status.st_mtime_ns),
        clamp_ns(status.st_ctime_ns),
        status.st_blocks,
    )


class Entries:
    """The entries of one directory.

    Args:
        fd: of the directory.
        count: told how many entries were seen; stops the look by raising.
    """

    def __init__(self, fd: int, names: Sequence[bytes], count: Callable[[int], None]) -> None:
        self._fd = fd
        self._names = names
        self._count = count
        self._seen = _nothing()
        self._next = 0
        self._at_work = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def look_at_all(self, lend_a_hand: LendAHand) -> Looked:
        """Look at all of them. Raises: OSError of the first that cannot be looked at, but for one that is gone."""
        began = time.monotonic()
        self._look(FIRST)
        if len(self._names) > PORTION and time.monotonic() - began > FIRST * SLOW_LOOK_S:
            lend_a_hand(self._look)
        self._look()
        with self._changed:
            while self._at_work:
                self._changed.wait()
        if self._error is not None:
            raise self._error
        return self._seen

    def _look(self, only: int = 0) -> None:
        """Look at portions of the names until none is left; or only at so many names."""
        size, goes_on = only or PORTION, True
        while goes_on:
            goes_on = not only
            with self._changed:
                first = self._next
                if first >= len(self._names) or self._error is not None:
                    return
                self._next += size
                self._at_work += 1
            seen: Looked | None = None
            error: BaseException | None = None
            try:
                seen = self._portion(self._names[first : first + size])
            except BaseException as raised:
                error = raised
            with self._changed:
                if seen is not None:
                    self._seen.add(seen)
                self._error = self._error or error
                self._at_work -= 1
                self._changed.notify_all()

    def _portion(self, names: Sequence[bytes]) -> Looked:
        seen = _nothing()
        for name in names:
            try:
                status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                kind = stat.S_IFMT(status.st_mode)
                if kind == stat.S_IFLNK:
                    seen.special[name] = os.readlink(name, dir_fd=self._fd)
                elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                    seen.special[name] = status.st_rdev
                if status.st_nlink > 1 and kind != stat.S_IFDIR:
                    seen.linked[name] = status.st_dev, status.st_ino
            except FileNotFoundError:
                continue  # gone since it was listed: as if it had been gone before
            seen.names.append(name)
            seen.rows.extend(row_of(status))
        self._count(len(seen.names))
        return seen
