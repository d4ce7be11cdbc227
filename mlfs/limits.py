"""Limits of a process: its threads, descriptors, memory and processors; which limit was met, and what to set.

In: an error, as calls raise it that lack something; the limits as the kernel shows them (/proc, cgroups v1 and v2,
resource limits). Out: which resource it is, and a line for people with the limit's figure and the way out; how much
memory and how many processors may be used. Nothing here raises for what cannot be read. The functions that go by
cgroups take the contents of files, so that tests can give them any.
"""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from mlfs.units import format_size

Read = Callable[[str], str | None]

# Distributions and container runtimes mount the hierarchies of cgroups here; `unified` is v2 beside v1.
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


def read_text(path: str) -> str | None:
    """The file's text; None where it cannot be read, as a limit that cannot be seen is not looked for."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def cgroup_directories(cgroup_text: str, controller: str, *v1_roots: str) -> Iterator[tuple[str, bool]]:
    """Each directory that may hold a limit of the process with this /proc/self/cgroup, and whether it is one of v2.

    A limit anywhere between a cgroup and the root binds. Inside a container the path may be that of the host, of which
    only the root is visible under /sys/fs/cgroup: walking up to the root finds that too.
    """
    for line in cgroup_text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = hierarchy == "0" and not controllers
        roots = _V2_ROOTS if is_v2 else v1_roots if controller in controllers.split(",") else ()
        # A cgroup outside of our namespace shows as /../x: what lies above the root cannot be read anyway.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            for root in roots:
                yield "/".join((root, *parts[:depth])), is_v2


def pids_limits(read: Read = read_text) -> Iterator[tuple[str, int, int]]:
    """Limits of threads of this process's cgroups and those above them: (file, the most, those there are)."""
    for directory, _ in cgroup_directories(read("/proc/self/cgroup") or "", "pids", _V1_PIDS_ROOT):
        most, now = ((read(f"{directory}/pids.{name}") or "").strip() for name in ("max", "current"))
        if most.isdigit():
            yield f"{directory}/pids.max", int(most), int(now) if now.isdigit() else 0


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


# -- memory: the most that this process may use, and how much of it is taken, by the machine and by its cgroups
#
# In: /proc and the files of the cgroups between the process and the root; any of these limits binds. Out: the smallest
# limit, and the one that leaves the least.

_V2_FILES = ("memory.max", "memory.high")
_V1_ROOT = "/sys/fs/cgroup/memory"
_V1_FILE = "memory.limit_in_bytes"
# A place without /proc shows neither; a modest guess there.
_UNKNOWN_BYTES = 2**30


class MemoryRoom(NamedTuple):
    """The room that the tightest limit leaves.

    Attributes:
        limit_bytes: of the smallest limit. used_bytes: what others use of the limit that leaves the least: not this
            process, which is not the one that will serve, nor pages of files that can be read again.
        where: the file of that limit, for people.
    """

    limit_bytes: int
    used_bytes: int = 0
    where: str = "/proc/meminfo"


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo by name, in bytes."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            values[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return values


def limit_files(cgroup_text: str) -> list[str]:
    """Every file that may hold a memory limit of the process with this /proc/self/cgroup."""
    found = cgroup_directories(cgroup_text, "memory", _V1_ROOT)
    return [f"{directory}/{name}" for directory, is_v2 in found for name in (_V2_FILES if is_v2 else (_V1_FILE,))]


def cgroup_limits(cgroup_text: str, read: Read = read_text) -> Iterator[tuple[str, int]]:
    """The limits that bind the process, by file."""
    for path in limit_files(cgroup_text):
        value = (read(path) or "").strip()
        # v2 says "max", v1 a number near 2**63, for no limit.
        if value.isdigit() and int(value) < 2**60:
            yield path, int(value)


def cgroup_limit_bytes(cgroup_text: str, read: Read = read_text) -> int | None:
    """The smallest memory limit that binds the process, None without any."""
    return min((limit for _, limit in cgroup_limits(cgroup_text, read)), default=None)


def memory_limit_bytes(read: Read = read_text) -> int:
    """The most memory that this process may use: the smallest cgroup limit or the machine's memory."""
    return memory_room(read).limit_bytes


def memory_room(read: Read = read_text) -> MemoryRoom:
    """The smallest limit, and what is used of the one that leaves the least."""
    machine = parse_meminfo(read("/proc/meminfo") or "")
    rooms = []
    if "MemTotal" in machine:
        total = machine["MemTotal"]
        rooms.append(MemoryRoom(total, max(0, total - machine.get("MemAvailable", total))))
    for path, limit in cgroup_limits(read("/proc/self/cgroup") or "", read):
        rooms.append(MemoryRoom(limit, _used_bytes(os.path.dirname(path), read), path))
    if not rooms:
        return MemoryRoom(_UNKNOWN_BYTES)
    smallest = min(room.limit_bytes for room in rooms)
    tightest = min(rooms, key=lambda room: room.limit_bytes - room.used_bytes)
    own_bytes = _own_bytes(read)
    # A limit above the smallest may be the one that leaves the least: what is used of it counts against the smallest.
    used_bytes = max(0, smallest - (tightest.limit_bytes - tightest.used_bytes) - own_bytes)
    return MemoryRoom(smallest, min(smallest, used_bytes), tightest.where)


def _used_bytes(directory: str, read: Read) -> int:
    """Memory that a cgroup uses and the kernel cannot take back by dropping pages of files."""
    v1 = directory.startswith(_V1_ROOT)
    used = (read(f"{directory}/{'memory.usage_in_bytes' if v1 else 'memory.current'}") or "").strip()
    pairs = (line.split() for line in (read(f"{directory}/memory.stat") or "").splitlines())
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    prefix = "total_" if v1 else ""
    files = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
    return max(0, int(used) - files - stat.get("slab_reclaimable", 0)) if used.isdigit() else 0


def _own_bytes(read: Read) -> int:
    """Memory of this process that is no file's: resident without shared pages."""
    fields = (read("/proc/self/statm") or "").split()
    if len(fields) < 3:
        return 0
    return max(0, int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


# -- processors: those that this process may run on, and what its cgroups allow
#
# In: the affinity of the process; /proc and the files of the cgroups between the process and the root, any of which
# binds. Out: a number, 1 at least.

_V1_ROOTS = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu")


def usable_processors(read: Read = read_text) -> int:
    """The processors that this process may run on, or fewer where a quota of its cgroups allows less time than theirs.

    A quota that is no whole number of processors is rounded up: so many processes can use all of it.
    """
    quotas = quotas_of(read("/proc/self/cgroup") or "", read)
    return max(1, min([len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in quotas)]))


def quotas_of(cgroup_text: str, read: Read = read_text) -> Iterator[float]:
    """Each quota that binds the process with this /proc/self/cgroup, in processors."""
    for directory, is_v2 in cgroup_directories(cgroup_text, "cpu", *_V1_ROOTS):
        names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        fields = " ".join(read(f"{directory}/{name}") or "" for name in names).split()
        # Without a quota v2 says "max", and v1 -1.
        if len(fields) == 2 and all(field.isdigit() and int(field) for field in fields):
            yield int(fields[0]) / int(fields[1])
