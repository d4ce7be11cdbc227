"""The program of support/forks.py: it imports what mlfs, its daemon and the slow sources are made of, and forks.

In: requests, each with the descriptors that the process is to have, on a socket whose number is its first word; the
name of the mark. Out: a process for each; its id, then its exit code and seconds of processor by the third descriptor.
In a process of `mlfs mount` the daemon is one more fork, where `mountd.launch` would start Python.

/proc shows the words and the environment with which a program began, and forks have those of this one: so `mountd` is
among its words, and the mark, by which tests find the processes of a mount, is written over in what /proc shows.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import json
import logging
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NamedTuple, NoReturn

SCRIPTS, CLI_TESTS = Path(__file__).parents[2] / "scripts", Path(__file__).parents[1] / "cli"
LARGEST_REQUEST = 1 << 17
MOST_DESCRIPTORS = 1 << 20


class Request(NamedTuple):
    """What a process is to run."""

    program: str
    words: list[str]
    environment: dict[str, str]
    directory: str


def serve(channel: socket.socket) -> tuple[Request, list[int]]:
    """Fork a process for each request; returns in those, with the descriptors that each is to have at 0, 1 and 2.

    The program itself ends when nobody can ask any more.
    """
    ready, running = select.poll(), dict[int, tuple[int, int]]()
    ready.register(channel, select.POLLIN)
    while True:
        for fd, _ in ready.poll():
            if fd != channel.fileno():
                pid, answers = running.pop(fd)
                ready.unregister(fd)
                os.close(fd)
                _, status, usage = os.wait4(pid, 0)
                with suppress(BrokenPipeError):  # nobody waits for it any more
                    ended = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
                    os.write(answers, json.dumps(ended).encode("ascii"))
                os.close(answers)
                continue
            message, files, _, _ = socket.recv_fds(channel, LARGEST_REQUEST, 4)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                channel.detach()
                return Request(*json.loads(message)), files[:3]
            *own, answers = files
            for file in own:
                os.close(file)
            os.write(answers, b"%d" % pid)
            process = os.pidfd_open(pid)
            running[process] = pid, answers
            ready.register(process, select.POLLIN)


def be_at(out: int, err: int, kept: set[int]) -> None:
    """Print to these descriptors, and close all but the kept ones."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    following = [*sorted(kept), MOST_DESCRIPTORS]
    for fd, after in itertools.pairwise(following):
        os.closerange(fd + 1, after)


def show_environment(environment: Mapping[str, str], mark: str) -> None:
    """Make an environment this process' own, and the mark's value what /proc shows."""
    begin, end = (int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    os.environ.clear()
    os.environ.update(environment)
    shown = (ctypes.c_char * (end - begin)).from_address(begin)
    at = bytes(shown).index(os.fsencode(f"{mark}="))
    value = os.fsencode(f"{mark}={environment[mark]}")
    shown[at : at + len(value)] = value


def run(request: Request, files: list[int], mark: str) -> NoReturn:
    """Run it as Python runs a program, to the end of the process."""
    os.dup2(files[0], 0)
    be_at(*files[1:], {0, 1, 2})
    show_environment(request.environment, mark)
    os.chdir(request.directory)
    sys.argv = [request.program, *request.words]
    end_with(MAINS[request.program])


def end_with(main: Any) -> NoReturn:
    """Call it and end the process with what it returns, without taking all modules apart, half of a command's time.

    The stack below is left as it is: what it would clean up belongs to whoever has forked.
    """
    code: object = 1
    try:
        code = main()
    except SystemExit as left:
        code = left.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else code is not None)


class ForkedDaemon:
    """A daemon as `mountd.launch` sees it: what that uses of subprocess.Popen."""

    def __init__(
        self, command: Sequence[str], *, stdin: int, stdout: IO[bytes], stderr: IO[bytes], cwd: str,
        env: Mapping[str, str], start_new_session: bool, pass_fds: Sequence[int],
    ) -> None:  # fmt: skip
        assert list(command[1:3]) == ["-m", "mountd"]
        assert stdin == subprocess.DEVNULL
        assert start_new_session
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            be_at(stdout.fileno(), stderr.fileno(), {0, 1, 2, *pass_fds})
            os.setsid()
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = list(command[2:])
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            gc.set_threshold(*THRESHOLDS)
            gc.freeze()
            end_with(mountd.__main__.main)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("mountd", timeout)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        """Send SIGTERM to it."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to it."""
        os.kill(self.pid, signal.SIGKILL)


if __name__ == "__main__":
    THRESHOLDS = gc.get_threshold()
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `mlfs mount` has it
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.path += map(str, (SCRIPTS, CLI_TESTS))
    import slow_source
    import source_lies
    import tiny_fs

    import mlfs.cli.main
    import mountd.__main__
    from mlfs.config import CacheDir, MountConfig
    from mlfs.job import JobSpec
    from mountd import daemon, launch, preflight  # noqa: F401

    late = "numpy.ma", "encodings.ascii"  # which others load when they first need them
    for name in (*(module.name for module in pkgutil.iter_modules(mlfs.cli.__path__, "mlfs.cli.")), *late):
        importlib.import_module(name)
    for model in (CacheDir, MountConfig, JobSpec):
        model.model_rebuild()  # else each command and each daemon would, as it first needs them
    MAINS = {
        "mlfs": mlfs.cli.main.main,
        "slow_source": slow_source.main,
        "tiny_fs": tiny_fs.main,
        "source_lies": lambda: slow_source.main(source_lies.LyingSource),
    }
    launch.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=ForkedDaemon, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    gc.freeze()
    gc.enable()
    run(*serve(socket.socket(fileno=int(sys.argv[1]))), sys.argv[2])
