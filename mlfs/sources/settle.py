"""Attributes that can be relied on to tell a later change: older than one tick of the file system's clock.

In: a descriptor of a file or directory. Out: its fstat. Used by `mlfs.scan` for directories and by
`mlfs.sources.posix` for files.

A file system stamps a change with the time of its last clock tick (1 to 10 ms apart on Linux, a second on some others),
and at the beginning of the write. So a stat taken right after a change looks the same as one after a second change in
that tick, or after the end of a write that was under way. Once the stamp is older than a tick, any further change gets
another one. Nearly always it is: data sets are written before they are read, and the check costs a look at the clock.

The clock is the node's: a file system whose server is more than a tick off (either way) gets less protection, no harm.
"""

from __future__ import annotations

import os
import time
from typing import Final

TICK_NS = 20_000_000
COARSE_TICK_NS = 1_000_000_000  # where the stamp is of a whole second
ROUNDS: Final = 2  # what keeps changing is not waited for any longer; the caller's check finds that out


def _wait_ns(stamp_ns: int, now_ns: int) -> int:
    """How long until the stamp is a tick old; 0 for one that is, or that lies more than a tick ahead."""
    tick = COARSE_TICK_NS if stamp_ns % 1_000_000_000 == 0 else TICK_NS
    age = now_ns - stamp_ns
    return min(tick, tick - age) if -tick < age < tick else 0


def settled_status(fd: int) -> os.stat_result:
    """fstat, after a wait of at most `ROUNDS` ticks if the file has just been changed. Raises: OSError."""
    status = os.fstat(fd)
    for _ in range(ROUNDS):
        now = time.time_ns()
        # ctime, because nobody can set it; mtime as well, for file systems that keep no ctime of their own.
        settled = now - max(TICK_NS, COARSE_TICK_NS)
        if status.st_ctime_ns < settled and status.st_mtime_ns < settled:
            break  # nearly always, and once for each file fetched: so without the calls below
        wait = _wait_ns(status.st_ctime_ns, now) or _wait_ns(status.st_mtime_ns, now)
        if not wait:
            break
        time.sleep(wait / 1e9)
        status = os.fstat(fd)
    return status
