"""The memory that this process may use, and how much of it is taken: by the machine and by its cgroups, v1 and v2.

In: /proc and the files of the cgroups between the process and the root; any of these limits binds. Out: the smallest
limit, and the one that leaves the least. Used by `mlfs.config` and by `mlfs.doctor`. The functions take the contents of
files, so that tests can give them any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlfs.limits import ancestors, read_text

Read = Callable[[str], str | None]

# Where distributions and container runtimes mount the hierarchies; `unified` is v2 beside v1.
_V2_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
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
    """Every file that may hold a memory limit of the process with this /proc/self/cgroup.

    A limit anywhere between a cgroup and the root binds. Inside a container the path may be that of the host, of which
    only the root is visible under /sys/fs/cgroup: walking up to the root finds that too.
    """
    files = []
    for line in cgroup_text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for directory in ancestors(path):
            if hierarchy == "0" and not controllers:
                files += [f"{root}{directory}/{name}" for root in _V2_ROOTS for name in _V2_FILES]
            elif "memory" in controllers.split(","):
                files.append(f"{_V1_ROOT}{directory}/{_V1_FILE}")
    return files


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
