"""One start of a mount at a time on a mount point: a second one waits, and then finds the mount of the first.

In: a mount point. Out: a lock for as long as a context lasts, kept by a file in the runtime directory that is there
only meanwhile. Called through `mountd.door` by `mlfs mount`: prologs of two jobs may come to a node at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from mountd import runtime


@contextlib.contextmanager
def one_start_at_a_time(mountpoint: str, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the turn. `note` is told when somebody else has it."""
    path = os.path.join(runtime.runtime_dir(), runtime.mount_name(mountpoint) + ".lock")
    fd = _take(path, lambda: note(f"another mlfs mount of {mountpoint} is under way: waiting for it"))
    try:
        yield
    finally:
        # Before the lock ends: whoever waited for it then sees that the file is gone, and makes a new one.
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(fd)


def _take(path: str, has_to_wait: Callable[[], None]) -> int:
    """A descriptor that holds the lock on the file that lies at the path now."""
    told = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    has_to_wait()
                told = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
