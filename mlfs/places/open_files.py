"""Files of the source that are open, one descriptor each, shared by all who read ranges of them.

In: entries, from worker threads. Out: open files, each of one content. A file that nobody uses stays open for whoever
comes next, so that an epoch of many opens of one shard is one open at the source; the one unused longest is closed when
there are too many.

The content of a file that stays open is not forgotten when its name leads to another one: so the name is looked at now
and then (`LOOKED_S`), and whenever somebody opens the file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mlfs.places.posix import HANGS_S, PosixFile, PosixSource

# A file that is read all the time is looked at so often, as whoever opens it would.
LOOKED_S: Final = 1.0
# Descriptors that wait for the next reader, where a process may have many: more than a loader has shards open.
MOST_UNUSED: Final = 1024


class _Open:
    """An open file that several use at a time; `users` says how many."""

    __slots__ = ("entry", "looked_s", "opened", "users")

    def __init__(self, entry: int, opened: PosixFile, looked_s: float) -> None:
        self.entry = entry
        self.opened = opened
        self.looked_s = looked_s
        self.users = 1


class SharedFile:
    """A use of an open file that others use as well, until it is closed. Whoever gave up before the source answered
    never gets it: then it closes itself."""

    __slots__ = ("_files", "_one", "opened")

    def __init__(self, files: OpenFiles, one: _Open) -> None:
        self._files: OpenFiles | None = files
        self._one, self.opened = one, one.opened

    def close(self) -> None:
        """The caller uses it no more; a second call does nothing."""
        files, self._files = self._files, None
        if files is not None:
            files.give_back(self._one)

    __del__ = close


class OpenFiles:
    """The open files of a source; thread-safe.

    Invariant: a file of `_files` is open; one that is not there any more is closed by the last of its users.
    """

    def __init__(self, source: PosixSource, most_unused: int = MOST_UNUSED) -> None:
        self._source = source
        self._most_unused = most_unused
        self._files: OrderedDict[int, _Open] = OrderedDict()  # the one that was used last stands last
        self._opening: dict[int, threading.Lock] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Descriptors that are shared now."""
        return len(self._files)

    @contextmanager
    def using(self, entry: int) -> Iterator[PosixFile]:
        """Use the file. A content that cannot be read any more is not shared with the next one. Raises: OSError."""
        one = self._take(entry, False)
        try:
            yield one.opened
        except OSError:
            self._discard(one)
            raise
        finally:
            self.give_back(one)

    def take(self, entry: int, is_read: bool = True) -> SharedFile:
        """Use the file that its name leads to now, until it is closed. Raises: OSError.

        Args:
            is_read: False: most likely nothing of it is read here, so the source opens it when something is.
        """
        return SharedFile(self, self._take(entry, True, is_read))

    def take_open(self, entry: int) -> SharedFile | None:
        """The same of a file that is open, as it was when it was looked at last; None where it is not. Asks nothing."""
        one = self._use(entry)
        return SharedFile(self, one) if one is not None else None

    def _take(self, entry: int, look: bool, is_read: bool = True) -> _Open:
        """Use the file until `give_back`. `look`: make sure that its name leads to it now. Raises: OSError."""
        one = self._take_open(entry, look)
        if one is not None:
            return one
        with self._lock:
            lock = self._opening.setdefault(entry, threading.Lock())
        # One opens it, and the others wait for that: but not for an open that hangs.
        has_lock = lock.acquire(timeout=HANGS_S)
        try:
            return self._take_open(entry, False) or self._open(entry, is_read)
        finally:
            with self._lock:
                self._opening.pop(entry, None)
            if has_lock:
                lock.release()

    def _use(self, entry: int) -> _Open | None:
        with self._lock:
            one = self._files.get(entry)
            if one is not None:
                one.users += 1
                self._files.move_to_end(entry)
            return one

    def _open(self, entry: int, is_read: bool) -> _Open:
        opened = self._source.open(entry) if is_read else self._source.look_at(entry)
        one = _Open(entry, opened, self._source.now_s())
        with self._lock:
            before = self._files.pop(entry, None)
            self._files[entry] = one
        if before is not None:
            self._close_unused(before)
        return one

    def _take_open(self, entry: int, look: bool) -> _Open | None:
        """The file if it is open, and its name leads to it."""
        one = self._use(entry)
        if one is None:
            return None
        now_s = self._source.now_s()
        # The manifest may know of a later content than this one, which nobody has opened yet.
        if look or one.opened.changed or now_s - one.looked_s > LOOKED_S:
            try:
                is_there = one.opened.is_at_its_name()
            except (FileNotFoundError, PermissionError):
                is_there = False
            except OSError:
                is_there = True  # a source that cannot be asked now has not said that it has another content
            if not is_there:
                self._discard(one)
                self.give_back(one)
                return None
            one.looked_s = now_s
        return one

    def give_back(self, one: _Open) -> None:
        """A use is over."""
        with self._lock:
            one.users -= 1
            too_many = len(self._files) - self._most_unused
            unused = [other for other in list(self._files.values()) if not other.users] if too_many > 0 else []
        self._close_unused(one)
        for other in unused[: max(0, too_many)]:
            self._discard(other)

    def drop_other(self, entry: int) -> None:
        """The file is gone, or has another content by now: what is open of an old one is for its users alone."""
        with self._lock:
            one = self._files.get(entry)
        if one is not None and (one.opened.changed or self._source.manifest.is_gone(entry)):
            self._discard(one)

    def _discard(self, one: _Open) -> None:
        """Whoever uses the file from now on opens it anew."""
        with self._lock:
            if self._files.get(one.entry) is one:
                del self._files[one.entry]
        self._close_unused(one)

    def _close_unused(self, one: _Open) -> None:
        with self._lock:
            is_over = not one.users and self._files.get(one.entry) is not one
        if is_over:
            one.opened.close()

    def close(self) -> None:
        """Close what nobody uses."""
        for one in list(self._files.values()):
            self._discard(one)
