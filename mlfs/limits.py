"""Limits of a process: its threads, descriptors and memory; which limit was met, and what to set.

In: an error, as calls raise it that lack something; the limits as the kernel shows them (/proc, cgroups v1 and v2,
resource limits). Out: which resource it is, and a line for people with the limit's figure and the way out. Used by
`mlfs.engine.runner`, `mlfs.engine.shortages` and `mountd.daemon`. Nothing here raises for what cannot be read.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from mlfs.units import format_size

# Where the hierarchies of cgroups are mounted by distributions and container runtimes.
_V2_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_V1_PIDS_ROOT = "/sys/fs/cgroup/pids"
# A thread's stack, as glibc maps it: with less address space than that left, it is that limit that a thread met.
_STACK_BYTES = 8 << 20
_THREADS_ERROR = "can't start new thread"  # threading's only word for it


class Resource(StrEnum):
    """A resource that a process can be short of."""

    THREADS = "threads"
    FILES = "files"
    MEMORY = "memory"
    DISK = "disk"


class Limit(NamedTuple):
    """A limit, in words: what it is with its figure, and what to set."""

    what: str
    way_out: str


def lacking(error: BaseException | int | None) -> Resource | None:
    """The resource that the process was short of when it met this error, or this error number; None for any other
    error."""
    if isinstance(error, MemoryError):
        return Resource.MEMORY
    if isinstance(error, RuntimeError):
        return Resource.THREADS if _THREADS_ERROR in str(error) else None
    number = error.errno if isinstance(error, OSError) else error
    if number in (errno.EMFILE, errno.ENFILE):
        return Resource.FILES
    if number == errno.ENOMEM:
        return Resource.MEMORY
    if number in (errno.ENOSPC, errno.EDQUOT):
        return Resource.DISK
    return None


def limit_of(what: Resource) -> Limit:
    """The limit of this process that comes first for a resource."""
    if what is Resource.THREADS:
        return _of_threads()
    if what is Resource.FILES:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(soft, hard)
        return Limit(f"it may have {most:,} files open (ulimit -n)", "raise it, with LimitNOFILE= in a systemd unit")
    if what is Resource.MEMORY:
        return _of_memory()
    return Limit("a file system is full", "free some space")


def _of_threads() -> Limit:
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY and mapped_bytes() + 2 * _STACK_BYTES > space:
        return _of_memory()
    found = min(pids_limits(), key=lambda one: one[1] - one[2], default=None)
    if found is not None:
        path, most, _ = found
        return Limit(f"its cgroup may have {most:,} threads ({path})", "raise it, with TasksMax= in a systemd unit")
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if most != resource.RLIM_INFINITY:
        return Limit(f"its user may have {most:,} threads (ulimit -u)", "raise it, with LimitNPROC= in a systemd unit")
    return Limit("the machine starts no more threads", "see /proc/sys/kernel/threads-max and pid_max")


def _of_memory() -> Limit:
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        way_out = "ulimit -v unlimited; to bound memory, use a limit of the cgroup"
        return Limit(f"it may map {format_size(space)} of memory (ulimit -v)", way_out)
    return Limit("the kernel has no memory for it", "give it more memory, or smaller --ram and --staging")


def mapped_bytes() -> int:
    """The address space that this process takes."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def pids_limits(read: Callable[[str], str | None] | None = None) -> Iterator[tuple[str, int, int]]:
    """Limits of threads of this process's cgroups and those above them: (file, the most, those there are)."""
    reads = read or read_text
    for line in (reads("/proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        roots: tuple[str, ...] = _V2_ROOTS if hierarchy == "0" and not controllers else ()
        if "pids" in controllers.split(","):
            roots = (_V1_PIDS_ROOT,)
        for directory in ancestors(path):
            for root in roots:
                most = (reads(f"{root}{directory}/pids.max") or "").strip()
                now = (reads(f"{root}{directory}/pids.current") or "").strip()
                if most.isdigit():
                    yield f"{root}{directory}/pids.max", int(most), int(now) if now.isdigit() else 0


def ancestors(path: str) -> list[str]:
    """The directories of a cgroup and of those above it: `/a/b` -> `/a/b`, `/a`, and the root as the empty string."""
    # A cgroup outside of our namespace shows as /../x: what lies above the root cannot be read anyway.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["".join(f"/{part}" for part in parts[:depth]) for depth in range(len(parts), -1, -1)]


def read_text(path: str) -> str | None:
    """The file's text; None where it cannot be read, as a limit that cannot be seen is not looked for."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def raise_open_files() -> int:
    """Have this process use all descriptors that it may have; returns how many are not taken yet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # the limit stays as it is
    most = soft if soft >= 0 else 1 << 20
    try:
        return max(0, most - len(os.listdir("/proc/self/fd")))
    except OSError:  # not even a directory can be opened
        return 0
