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


class SharedFile:
    """An open file that several use at a time; `users` says how many."""

    __slots__ = ("entry", "looked_s", "opened", "users")

    def __init__(self, entry: int, opened: PosixFile, looked_s: float) -> None:
        self.entry = entry
        self.opened = opened
        self.looked_s = looked_s
        self.users = 1


class OpenFiles:
    """The open files of a source; thread-safe.

    Invariant: a file of `_files` is open; one that is not there any more is closed by the last of its users.
    """

    def __init__(self, source: PosixSource, most_unused: int = MOST_UNUSED) -> None:
        self._source = source
        self._most_unused = most_unused
        self._files: OrderedDict[int, SharedFile] = OrderedDict()  # the one that was used last stands last
        self._opening: dict[int, threading.Lock] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Descriptors that are shared now."""
        return len(self._files)

    @contextmanager
    def using(self, entry: int) -> Iterator[PosixFile]:
        """Use the file. A content that cannot be read any more is not shared with the next one. Raises: OSError."""
        shared = self.take(entry)
        try:
            yield shared.opened
        except OSError:
            self.discard(shared)
            raise
        finally:
            self.give_back(shared)

    def take(self, entry: int, look: bool = False) -> SharedFile:
        """Use the file until `give_back`. `look`: make sure that its name leads to it now. Raises: OSError."""
        shared = self._take_open(entry, look)
        if shared is not None:
            return shared
        with self._lock:
            lock = self._opening.setdefault(entry, threading.Lock())
        # One opens it, and the others wait for that: but not for an open that hangs.
        has_lock = lock.acquire(timeout=HANGS_S)
        try:
            return self._take_open(entry, False) or self._open(entry)
        finally:
            with self._lock:
                self._opening.pop(entry, None)
            if has_lock:
                lock.release()

    def take_open(self, entry: int) -> SharedFile | None:
        """The same of a file that is open, as it was when it was looked at last; None where it is not. Asks nothing."""
        with self._lock:
            shared = self._files.get(entry)
            if shared is not None:
                shared.users += 1
                self._files.move_to_end(entry)
            return shared

    def _open(self, entry: int) -> SharedFile:
        shared = SharedFile(entry, self._source.open(entry), self._source.now_s())
        with self._lock:
            before = self._files.pop(entry, None)
            self._files[entry] = shared
        if before is not None:
            self._close_unused(before)
        return shared

    def _take_open(self, entry: int, look: bool) -> SharedFile | None:
        """The file if it is open, and its name leads to it."""
        shared = self.take_open(entry)
        if shared is None:
            return None
        now_s = self._source.now_s()
        # The manifest may know of a later content than this one, which nobody has opened yet.
        if look or shared.opened.changed or now_s - shared.looked_s > LOOKED_S:
            try:
                is_there = shared.opened.is_at_its_name()
            except (FileNotFoundError, PermissionError):
                is_there = False
            except OSError:
                is_there = True  # a source that cannot be asked now has not said that it has another content
            if not is_there:
                self.discard(shared)
                self.give_back(shared)
                return None
            shared.looked_s = now_s
        return shared

    def give_back(self, shared: SharedFile) -> None:
        """The caller uses it no more."""
        with self._lock:
            shared.users -= 1
            unused = (
                [one for one in self._files.values() if not one.users] if len(self._files) > self._most_unused else []
            )
        self._close_unused(shared)
        for one in unused[: max(0, len(self._files) - self._most_unused)]:
            self.discard(one)

    def discard(self, shared: SharedFile) -> None:
        """Whoever uses the file from now on opens it anew."""
        with self._lock:
            if self._files.get(shared.entry) is shared:
                del self._files[shared.entry]
        self._close_unused(shared)

    def _close_unused(self, shared: SharedFile) -> None:
        with self._lock:
            is_over = not shared.users and self._files.get(shared.entry) is not shared
        if is_over:
            shared.opened.close()

    def close(self) -> None:
        """Close what nobody uses."""
        for shared in list(self._files.values()):
            self.discard(shared)
