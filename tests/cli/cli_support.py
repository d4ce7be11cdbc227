"""What the tests of the commands use: real FUSE mounts to kill, stop and hold open; a process without rights."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.forks import Running, forks

from mountd import mounts

TINY_FS = str(Path(__file__).parent / "tiny_fs.py")
NOBODY = 65534


def exit_code(words: list[str]) -> int:
    """What `mlfs WORDS` exits with, whether the parser or the command itself refuses it."""
    from mlfs.cli.commands import main

    try:
        return main(words)
    except SystemExit as error:
        return int(error.code or 0)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Fail unless the condition comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Mounts:
    """Starts tiny file systems and ends what is left of them."""

    def __init__(self) -> None:
        self.processes: list[Running] = []

    def start(self, path: Path | str) -> Running:
        """Mount at `path`; returns when it is there."""
        place = os.fspath(path)

        def here() -> int:
            # By path and count: other tests mount and unmount at the same time, and mount ids are given out again.
            return sum(entry.mountpoint == place for entry in mounts.mount_table())

        before = here()
        process = forks.start("tiny_fs", [place], os.environ, sys.__stdout__, sys.__stderr__)
        self.processes.append(process)
        wait_for(lambda: here() > before)
        return process

    def start_stacked(self, path: Path | str) -> list[Running]:
        """Two mounts on one path; for users one, because fusermount3 may not look into a user's mount."""
        return [self.start(path) for _ in range(2 if os.geteuid() == 0 else 1)]

    def kill(self, process: Running) -> None:
        """kill -9, as a crash."""
        process.kill()
        process.wait()

    def end(self) -> None:
        """End all of them."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            self.kill(process)


def as_nobody(function: Callable[[], object]) -> object:
    """What `function` returns or raises in a process without root's rights."""
    if os.geteuid() != 0:
        return function()
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                result = (True, function())
            except Exception as error:
                result = (False, error)
            os.write(write_fd, pickle.dumps((result[0], result[1], getattr(result[1], "__dict__", {}))))
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as file:
        good, value, attributes = pickle.loads(file.read())
    os.waitpid(pid, 0)
    if good:
        return value
    value.__dict__.update(attributes)
    raise value
