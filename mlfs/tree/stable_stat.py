"""Attributes that can be relied on to tell a later change: older than one tick of the file system's clock.

In: a descriptor of a file or directory. Out: its attributes. Used by `mlfs.tree.scan` for directories and by
`mlfs.places.posix` for files.

A file system stamps a change with the time of its last clock tick (1 to 10 ms apart on Linux, a second on some others),
and at the beginning of the write. So a stat taken right after a change looks the same as one after a second change in
that tick, or after the end of a write that was under way. Once the stamp is older than a tick, any further change gets
another one. Nearly always it is: data sets are written before they are read, and the check costs a look at the clock.

The clock is the node's: a file system whose server is more than a tick off (either way) gets less protection, no harm.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from mlfs.tree.content import Content, content_now

S = TypeVar("S")

TICK_NS = 20_000_000
COARSE_TICK_NS = 1_000_000_000  # where the stamp is of a whole second
ROUNDS: Final = 2  # what keeps changing is not waited for any longer; the caller's check finds that out


def _wait_ns(stamp_ns: int, now_ns: int) -> int:
    """How long until the stamp is a tick old; 0 for one that is, or that lies more than a tick ahead."""
    tick = COARSE_TICK_NS if stamp_ns % 1_000_000_000 == 0 else TICK_NS
    age = now_ns - stamp_ns
    return min(tick, tick - age) if -tick < age < tick else 0


def _left_ns(stamps: tuple[int, int]) -> int:
    """How long until the stamps of change and modification are settled."""
    now = time.time_ns()
    # ctime, because nobody can set it; mtime as well, for file systems that keep no ctime of their own.
    settled = now - max(TICK_NS, COARSE_TICK_NS)
    if stamps[0] < settled and stamps[1] < settled:
        return 0  # nearly always, and once for each file fetched: so without the calls below
    return _wait_ns(stamps[0], now) or _wait_ns(stamps[1], now)


def is_settled(ctime_ns: int, mtime_ns: int) -> bool:
    """Whether the stamps are so old that any change from now on gets others."""
    return not _left_ns((ctime_ns, mtime_ns))


def _settled(look: Callable[[int], S], fd: int, stamps: Callable[[S], tuple[int, int]]) -> S:
    """What `look` finds, after a wait of at most `ROUNDS` ticks if the file has just been changed."""
    found = look(fd)
    for _ in range(ROUNDS):
        wait_ns = _left_ns(stamps(found))
        if not wait_ns:
            break
        time.sleep(wait_ns / 1e9)
        found = look(fd)
    return found


def settled_status(fd: int) -> os.stat_result:
    """fstat, once the file's stamps are settled. Raises: OSError."""
    return _settled(os.fstat, fd, lambda status: (status.st_ctime_ns, status.st_mtime_ns))


def settled_content(fd: int) -> Content:
    """The content, once the file's stamps are settled. Raises: OSError."""
    return _settled(content_now, fd, lambda content: (content.ctime_ns, content.mtime_ns))
