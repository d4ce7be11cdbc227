"""Programs for tests, at a fraction of their processor time: forks of a process that has imported them already.

In: a program (`mlfs`, a slow source of scripts/, or tests/cli/tiny_fs.py), its words and environment, files for what it
prints. Out: a `Running`. `ForkServer` starts support/fork_server.py, which forks a process for each that is to run, and
there a command forks its daemon. All is as users have it, from the command line to the last line of the log, but for
what Python does as it starts and what is imported when. That is for the tests that start it: those of the commands, and
those that use the fixture `own_interpreter`. `MLFS_TEST_FORKS=off` gives each process an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ClassVar

from support import spent
from support.fork_server import Request

PROGRAM = Path(__file__).with_name("fork_server.py")
MARK = "MLFS_TEST_MOUNT"
"""A variable in the environment of all processes of one mount, with a value of as many letters as this one."""
NO_MARK = {MARK: "-" * 32}
# Python and the C library read these before a program's first line runs: a fork has those of its server.
READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_")


class ForkServer:
    """A program that forks. It begins with the first that is to run, and ends when the tests do.

    Args:
        program: its file, and further words. environment: what it has besides that of the first that is to run.
    """

    started: ClassVar[list[ForkServer]] = []

    def __init__(
        self,
        enabled: bool = True,
        program: Sequence[str] = (str(PROGRAM), MARK, "mountd"),  # mountd: what daemons are known by
        environment: Mapping[str, str] = NO_MARK,
    ) -> None:
        self._enabled = enabled
        self._words, self._environment = program, environment
        self._lock = threading.Lock()
        self._program: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._begins_with = _read_at_start(os.environ)

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Whether a fork behaves as a fresh interpreter would in this environment."""
        return self._enabled and _read_at_start(environment) == self._begins_with

    @contextmanager
    def off(self) -> Iterator[None]:
        """Meanwhile it can run nothing: all that starts has an interpreter of its own."""
        enabled, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = enabled

    def start(
        self, program: str, words: Sequence[str], environment: Mapping[str, str], out: IO[Any], err: IO[Any]
    ) -> Running:
        """Run `mlfs WORDS...`, or another program by the name of its module."""
        request = Request(program, list(words), NO_MARK | dict(environment), os.getcwd())
        with open(os.devnull) as nothing:
            return self.ask(request, [nothing.fileno(), out.fileno(), err.fileno()])

    def ask(self, request: Request, files: Sequence[int]) -> Running:
        """Have a process that has these files as standard input, output and error."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            requests = self._requests or self._start(request.environment)
            socket.send_fds(requests, [json.dumps(request).encode("ascii")], [*files, theirs.fileno()])
        return Running(mine)

    def run(
        self, program: str, words: Sequence[str], environment: Mapping[str, str], out: IO[Any], err: IO[Any],
        timeout_s: float,
    ) -> int:  # fmt: skip
        """Start it, and wait for it. Returns the exit code; kills it before it raises subprocess.TimeoutExpired."""
        process = self.start(program, words, environment, out, err)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    def _start(self, environment: Mapping[str, str]) -> socket.socket:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            file, *words = self._words
            # -P: nothing that lies beside this file is imported.
            self._program = subprocess.Popen(
                [sys.executable, "-P", file, str(theirs.fileno()), *words], pass_fds=[theirs.fileno()],
                env={**environment, **self._environment}, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.started.append(self)
        return self._requests

    def end(self) -> None:
        """End the program. What it has forked goes on."""
        with self._lock:
            if self._program is not None and self._requests is not None:
                self._requests.close()
                before_s = spent.now_s()
                self._program.wait()
                spent.add(before_s - spent.now_s())  # it brings what its processes took, and each of them has told that
            self._program = self._requests = None


class Running:
    """A process that the program has forked, as subprocess.Popen would show it."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.pid = int(answers.recv(64))
        self.returncode: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired, unless it may take any time."""
        if self.returncode is None:
            self._answers.settimeout(timeout_s)
            try:
                said = json.loads(self._answers.recv(64))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s or 0) from None
            self._answers.close()
            self.returncode, cpu_s = said
            spent.add(cpu_s)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM to it, if it still runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to it, if it still runs."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it, if it still runs."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


forks = ForkServer(enabled=os.environ.get("MLFS_TEST_FORKS") != "off")
"""The one of this session."""
