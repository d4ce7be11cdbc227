"""Reads what the kernel tells of a process.

In: a process's number. Out: its state and counts, as proc(5) names them.
"""

from __future__ import annotations


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
