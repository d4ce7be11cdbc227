"""Attributes that tell any later change of a file: they are older than one tick of the file system's clock.

In: a descriptor of a file or directory. Out: its attributes, after a short wait if it has just been changed. Used by
`mlfs.tree.scan` for directories and by `mlfs.places.posix` for files.

A file system stamps a change with the time of its last clock tick, and a long write with the time of its beginning.
Ticks are 1 to 10 ms apart on Linux, a second on some other systems. So a look right after a change gives the same stamp
as a look after a second change in that tick, or after the end of a write that was under way. Once the stamp is older
than a tick, every further change gets another one. It nearly always is, because data sets are written long before they
are read; then the check costs one look at the clock.

The clock is the node's. A file system whose server's clock differs from it by more than a tick is protected less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from mlfs.tree.attributes import FileAttributes, attributes_now
from mlfs.tree.times import Times

S = TypeVar("S")

# The longest tick of a Linux kernel (CONFIG_HZ=100), twice.
TICK_NS = 20_000_000
# A file system whose stamp is of a whole second may keep no finer ones.
COARSE_TICK_NS = 1_000_000_000
# A file that still changes after so many waits is not waited for any longer: the look after the read will tell.
ROUNDS: Final = 2


def wait_ns(stamp_ns: int, now_ns: int) -> int:
    """How long it takes until the stamp is a tick old; 0 when it is, or when it lies more than a tick in the future."""
    tick = COARSE_TICK_NS if stamp_ns % 1_000_000_000 == 0 else TICK_NS
    age = now_ns - stamp_ns
    return min(tick, tick - age) if -tick < age < tick else 0


def _left_ns(stamps: tuple[int, int]) -> int:
    """How long it takes until both stamps, of the last change and of the last modification, are a tick old."""
    now = time.time_ns()
    # ctime, because nobody can set it; mtime as well, for file systems that keep no ctime of their own.
    settled = now - COARSE_TICK_NS
    if stamps[0] < settled and stamps[1] < settled:
        return 0  # this is nearly always so, and asked for each file that is fetched: the calls below are spared
    return wait_ns(stamps[0], now) or wait_ns(stamps[1], now)


def is_settled(ctime_ns: int, mtime_ns: int) -> bool:
    """Whether any change from now on gives the file other stamps than these."""
    return not _left_ns((ctime_ns, mtime_ns))


def _settled(look: Callable[[int], S], fd: int, stamps: Callable[[S], tuple[int, int]]) -> S:
    """The result of `look`; if the file has just been changed, that after waits of `ROUNDS` ticks at most."""
    found = look(fd)
    for _ in range(ROUNDS):
        wait_ns = _left_ns(stamps(found))
        if not wait_ns:
            break
        time.sleep(wait_ns / 1e9)
        found = look(fd)
    return found


def settled_status(fd: int) -> os.stat_result:
    """The status of fstat once the stamps are a tick old. Raises: OSError."""
    return _settled(os.fstat, fd, lambda status: (status.st_ctime_ns, status.st_mtime_ns))


def settled_attributes(fd: int, times: Times) -> FileAttributes:
    """The attributes once the stamps are a tick old, those that prove something. Raises: OSError."""
    return _settled(attributes_now, fd, lambda content: times.proved(content.mtime_ns, content.ctime_ns)[::-1])
