"""The lock of an index: of many nodes that start at once one scans the source, and the others wait for what it saves.

In: the path of the index, which may lie on a file system that all nodes share. Out: who scans; words for those who
wait. Called by `mlfs.tree.index`. The lock is a file beside the index, made with O_EXCL, which is atomic on NFS and
Lustre too. It names its owner, who moves its time stamp every few seconds as a sign of life. A lock whose stamp stands
still, or whose owner ran on this machine and is gone, is taken over. Stamps are compared with each other only, never
with a clock: those of two machines differ. Two owners at once would do no harm: the index is replaced in one step, and
what is lost is a scan.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from mlfs.ours import make_parent
from mlfs.processes import begun_ticks, machine

# So often an owner moves its lock's time stamp. A stamp that has not moved for several of these is a dead owner's; NFS
# may show it some seconds late, and a server that fails over stands still for some more.
HEARTBEAT_S = 2.0
STALE_S = 20.0
# Between two looks those who wait sleep for an eighth of the time that they have waited, within these bounds: a short
# scan is not waited for much longer than it takes, and a thousand nodes are no load on the metadata server.
SHORTEST_NAP_S = 0.05
LONGEST_NAP_S = 2.0
# How often somebody who sleeps looks whether to stop.
STOP_POLL_S = 0.1

Stamp = tuple[int, int] | None
"""The inode and the modification time of a file, None for no file."""


class Holder(NamedTuple):
    """The process that holds a lock.

    Attributes:
        token: differs with each lock. machine: where it runs (the kernel's boot and the namespace of process numbers).
        started: ticks since the boot at which the process began. since: seconds since 1970, by its own clock.
    """

    token: str = ""
    host: str = "another node"
    pid: int = 0
    machine: str = ""
    started: int = 0
    since: float = 0.0

    def in_words(self) -> str:
        """For a line of progress."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.host} scans (process {self.pid}, since {clock})" if self.pid else f"{self.host} scans"


Waits = Callable[[Holder], None]


def stamp_of(path: Path) -> Stamp:
    """The stamp of a file. It is opened, because only that makes a client of NFS ask the server."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
    except PermissionError:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class ScanLock:
    """A lock file beside an index. It is held from `take` to `release`.

    Args:
        index: the file that is locked. heartbeat_s, stale_s: see above; tests are less patient.

    Attributes:
        refused: why no lock can be made there, for people; "" where it can. Then everybody scans alone.
    """

    def __init__(self, index: Path, heartbeat_s: float = HEARTBEAT_S, stale_s: float = STALE_S) -> None:
        self._path: Final = index.with_name(index.name + ".lock")
        self._index = index
        self._heartbeat_s, self._stale_s = heartbeat_s, stale_s
        self._me = Holder(
            uuid.uuid4().hex, socket.gethostname(), os.getpid(), machine(), begun_ticks(os.getpid()), time.time()
        )
        self._end: threading.Event | None = None  # while it is held
        self.refused = ""

    def take(self, enough: Callable[[Stamp], bool], waits: Waits | None, stop: Callable[[], None]) -> Holder | None:
        """Take the lock, or wait until whoever holds it is done.

        Args:
            enough: whether the index with this stamp will do, saved or found right by another meanwhile.
            waits: told now and then for whom this waits. stop: called often; it stops the waiting by raising.

        Returns: whose index will do; None where this one is to make it, alone where `refused`.
        """
        began_s = time.monotonic()
        other, seen, moved_s = Holder(), None, began_s
        waited = False
        while True:
            if self._create(self._path):
                self._hold()
                if not (waited and enough(stamp_of(self._index))):
                    return None
                self.release()
                return other
            if self.refused:
                return None
            found = stamp_of(self._path)
            waited = True
            if found is None:  # released just now
                self._sleep(SHORTEST_NAP_S, stop)
                continue
            if found != seen:
                other, seen, moved_s = self._holder() or other, found, time.monotonic()
            elif enough(stamp_of(self._index)):
                return other
            still_s = time.monotonic() - moved_s
            if (_is_gone(other) or still_s > self._stale_s) and self._take_over(found, still_s):
                return None
            if waits is not None:
                waits(other)
            self._sleep(min(LONGEST_NAP_S, max(SHORTEST_NAP_S, (time.monotonic() - began_s) / 8)), stop)

    @staticmethod
    def _sleep(seconds: float, stop: Callable[[], None]) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            stop()
            time.sleep(min(STOP_POLL_S, left_s))

    def _create(self, path: Path) -> bool:
        """Make the lock file and write its owner into it. Returns whether it could be made."""
        try:
            make_parent(str(path))
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            self.refused = "" if os.fspath(error.filename) == str(path) else str(error.strerror)
            return False
        except OSError as error:
            self.refused = error.strerror or str(error)
            return False
        with contextlib.suppress(OSError), os.fdopen(fd, "w") as file:
            file.write(json.dumps(self._me._asdict()))
        return True

    def _hold(self) -> None:
        self._end = threading.Event()
        threading.Thread(target=self._live, args=(self._end,), name="mlfs-scan-lock", daemon=True).start()

    def _live(self, end: threading.Event) -> None:
        while not end.wait(self._heartbeat_s):
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def _holder(self) -> Holder | None:
        """The process that made the lock; None where it does not say so, or not yet."""
        try:
            return Holder(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _take_over(self, dead: tuple[int, int], still_s: float) -> bool:
        """Put a lock of one's own in the place of a dead owner's. One of those who try at once may: it makes the claim.

        Args:
            dead: the stamp of the lock that stands still. still_s: for how long it does.
        """
        claim = self._path.with_name(f"{self._path.name}.{dead[0]}-{dead[1]}")
        if not self._create(claim):
            if still_s > 3 * self._stale_s:  # whoever claimed it has died as well
                claim.unlink(missing_ok=True)
            return False
        if stamp_of(self._path) != dead:  # somebody has taken it over already
            claim.unlink(missing_ok=True)
            return False
        try:
            os.replace(claim, self._path)
        except OSError:
            return False
        self._hold()
        return True

    def release(self) -> None:
        """Let another one have it. Nothing happens where this one does not hold it."""
        if self._end is None:
            return
        self._end.set()
        self._end = None
        holder = self._holder()
        if holder is None or holder.token == self._me.token:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _is_gone(holder: Holder) -> bool:
    """Whether the owner was a process of this machine that has ended."""
    return bool(holder.machine) and holder.machine == machine() and begun_ticks(holder.pid) != holder.started
