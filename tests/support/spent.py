"""What tests cost in processor time, by part: wall-clock time says little where everything runs beside something else.

In: what the hooks of tests/conftest.py and `MlfsMount` tell. Out: seconds by directory of tests. A daemon is nobody's
child, so its mount tells what it has used; what other processes without a parent use is not counted.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

by_part: Counter[str] = Counter()
_others_s = 0.0


def now_s() -> float:
    """The processor time of this process, of its children that have ended, and of daemons that were told of."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + _others_s


def add(seconds: float) -> None:
    """Count a process that is nobody's child here."""
    global _others_s
    _others_s += seconds


def add_daemon(pid: int) -> None:
    """Count a daemon that is about to end."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        add((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))  # utime and stime


def part_of(node_id: str) -> str:
    """The directory of a test's file, two levels at most."""
    return "/".join(node_id.split("::", maxsplit=1)[0].split("/")[1:-1][:2]) or "tests"


def in_words() -> str:
    """One line: the dearest parts first."""
    parts = ", ".join(f"{part} {seconds:.0f}" for part, seconds in by_part.most_common() if seconds >= 1)
    return f"processor time: {by_part.total():.0f} s ({parts})"
