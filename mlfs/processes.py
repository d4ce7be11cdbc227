"""Reads what the kernel tells of a process, and sets what it and the C library go by for this one.

In: a process's number. Out: its state and counts, as proc(5) names them; prctl(2), mallopt(3). It imports next to
nothing, as small processes use it.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

# The name of a process that stands by and has loaded what a server needs.
LOADED = "mlfs-standby"
# The holder of a mount has no step, its server one, the agent of `mlfs peers` two. A process that computes or moves
# bytes for a server, and is started by it, has these besides: what a mover had is fetched again. The one that only
# stands by is killed before anything else: in a container of little memory a server that serves is larger than it by
# more than some steps.
OF_SERVER, OF_AGENT, OF_HELPER, OF_MOVER, OF_STAND_BY = 1, 2, 2, 49, 95
# In thousandths of the memory: more than processes of mlfs differ by, and less than a training takes.
STEP = 10
# malloc keeps freed blocks of up to this size: most samples, and not so much that memory is held for nothing.
REUSED_BYTES = 16 << 20

# linux/prctl.h; malloc.h.
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

_libc = ctypes.CDLL(None)


def machine() -> str:
    """Tells this kernel and namespace of process numbers from others; "" where that is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; none where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold spaces and parentheses itself: count from the last one.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def begun_ticks(pid: int) -> int:
    """When a process began, in clock ticks since the machine did; 0 where there is none."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else 0


def children(pid: int) -> list[int]:
    """The children of a process's first thread; none where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def be_killed_sooner(steps: int) -> int:
    """Have the kernel, when memory is short, kill this process before those that have fewer steps. Returns what it had
    before, for `be_killed_again_as`: more than 1,000 thousandths are not counted, so steps cannot be taken off."""
    before = 0
    with suppress(OSError), open("/proc/self/oom_score_adj", encoding="ascii") as file:
        before = int(file.read())
        be_killed_again_as(min(1000, before + STEP * steps))
    return before


def be_killed_again_as(thousandths: int) -> None:
    """Have the kernel take this process for one that has so many. One without rights may not have fewer than it began
    with."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(thousandths))


def name_of(pid: int) -> str:
    """The name that a process has for the kernel; "" where there is none."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def name_this(name: str) -> None:
    """Give this process another name."""
    _libc.prctl(_PR_SET_NAME, name.encode())


def end_with_parent(number: int, parent: int) -> None:
    """Have this process get a signal once the thread that has started it is gone.

    Args:
        parent: the process of that thread. It may have died before this is called, of which the kernel says nothing.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def outlive_parent() -> None:
    """Take back what `end_with_parent` has asked for."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0)


def reuse_memory(arenas: int = 0) -> None:
    """Have malloc reuse the buffers of fetches instead of giving each back to the kernel.

    To fault the pages of a new buffer in, and to flush them from all cores' TLBs at the end, costs more than the fetch.

    Args:
        arenas: of malloc at most, which threads share; 0: as many as it likes.
    """
    mallopt = getattr(_libc, "mallopt", None)  # glibc only
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * REUSED_BYTES)
        if arenas:
            mallopt(_M_ARENA_MAX, arenas)
