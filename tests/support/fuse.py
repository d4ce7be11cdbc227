"""Mounts of this machine as tests see them: is FUSE there, what is mounted where, how to take a mount away.

In: paths. Out: facts from /proc. Knows nothing of mlfs' own code on purpose: it is what that code is checked against.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

PATIENCE_S = 60.0
"""How long tests wait for what must happen: far longer than any machine needs, so that running out means a fault."""
REPORTERS: list[Callable[[], str]] = []
"""Called when a wait ran out: each tells the state of a mount, for the message. MlfsMount adds and removes its own."""
TOKEN = "MLFS_TEST_TOKEN"
"""A variable in the environment of all that a test session starts: it tells two sessions' processes apart."""


class Mounted(NamedTuple):
    """One line of /proc/self/mountinfo."""

    path: str
    fstype: str


def require_fuse() -> None:
    """Fail the test where FUSE is missing. It is not skipped: without FUSE nothing of mlfs would be tested."""
    if not os.path.exists("/dev/fuse"):
        pytest.fail("/dev/fuse is missing: load the fuse module (modprobe fuse), or give the container that device")
    if shutil.which("fusermount3") is None:
        pytest.fail("fusermount3 is missing: install the package fuse3 (scripts/setup does)")


def fuse_mounts() -> list[Mounted]:
    """All FUSE mounts, in the order in which they were mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
        before, after = line.split(b" - ", 1)
        path = re.sub(rb"\\(\d{3})", lambda octal: bytes([int(octal[1], 8)]), before.split(b" ")[4])
        found.append(Mounted(os.fsdecode(path), os.fsdecode(after.split(b" ")[0])))
    return [mounted for mounted in found if mounted.fstype.startswith("fuse.")]


def mounts_at(path: Path, fstype: str) -> int:
    """How many mounts of that type lie on each other at exactly this path."""
    return fuse_mounts().count(Mounted(str(path), fstype))


def detach(path: Path, fstype: str) -> None:
    """Take away every mount of that type at this path, whatever state it is in."""
    for _ in range(mounts_at(path, fstype)):
        subprocess.run(["fusermount3", "-uz", path], check=False, capture_output=True)


def processes_with(name: str, value: str, among: Iterable[int] | None = None) -> dict[int, list[str]]:
    """Processes that were started with this variable in their environment: pid and command line.

    To look at all of a machine's takes 2 ms and more, and each mount of a test looks several times: `among` are those
    that matter, where it is known.
    """
    wanted = f"{name}={value}".encode()
    found = {}
    for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()] if among is None else among:
        try:
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
                environment = file.read()
            if wanted in environment and wanted in environment.split(b"\0"):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                found[pid] = [os.fsdecode(word) for word in argv]
        except OSError:
            continue  # it has just ended, or is another user's
    found.pop(os.getpid(), None)
    return {pid: argv for pid, argv in found.items() if argv}


def kill(pid: int) -> None:
    """Kill the process, if it still lives. 0, which stands for one that is gone, would be the tests' own group."""
    try:
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def happened(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """Whether the condition became true in time.

    The longer it was waited for, the less often it is asked: a status takes a server 4 ms, and was a sixth of what a
    mount that is waited for computes.
    """
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            return False
        time.sleep(min(0.1, 0.01 + waited_s / 5))
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """True as soon as the condition is; fails the test when it does not come, and says what was waited for."""
    __tracebackhide__ = True
    if happened(condition, timeout_s):
        return True
    said = "\n".join(reporter() for reporter in list(REPORTERS))
    pytest.fail(f"waited {timeout_s:g} s for\n{_source_of(condition)}\n{said}")


def _source_of(condition: Callable[[], bool]) -> str:
    try:
        return inspect.getsource(condition)
    except (OSError, TypeError):
        return repr(condition)
