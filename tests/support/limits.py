"""Limits around a mount, drawn as operators draw them: cgroups of either version, and a shell's ulimit.

In: figures. Out: words that go before a command, which then runs within these limits; all its children do, too.
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.fuse import happened, kill

# (where the hierarchy lies, the file that a limit is written to) by version.
FILES = {
    "threads": [("/sys/fs/cgroup", "pids.max"), ("/sys/fs/cgroup/pids", "pids.max")],
    "memory": [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")],
}


def shell(line: str) -> list[str]:
    """A shell that runs a line and then becomes the command."""
    return ["sh", "-c", f'{line} && exec "$@"', "sh"]


def ulimit(flag: str, value: int) -> list[str]:
    """`ulimit FLAG VALUE`, soft and hard."""
    return shell(f"ulimit {flag} {value}")


@contextmanager
def cgroup(kind: str, value: int) -> Iterator[tuple[list[str], Path]]:
    """A cgroup with a limit of threads or of memory: the words to run a command in it, and its directory."""
    for root, name in FILES[kind]:
        directory = Path(root) / f"mlfs-test-{uuid.uuid4().hex[:8]}"
        try:
            directory.mkdir()
        except OSError:
            continue
        try:
            with open(directory / name, "r+") as limit:  # made by the kernel, where this version has this controller
                limit.write(str(value))
        except OSError:
            directory.rmdir()
            continue
        try:
            yield shell(f"echo 0 > {shlex.quote(str(directory))}/cgroup.procs"), directory
        finally:
            for pid in (directory / "cgroup.procs").read_text().split():
                kill(int(pid))
            assert happened(lambda at=directory: not (at / "cgroup.procs").read_text().strip())  # type: ignore[misc]
            os.rmdir(directory)
        return
    pytest.fail(f"no cgroup can be made to limit {kind}: this test needs root, and the controller below /sys/fs/cgroup")
