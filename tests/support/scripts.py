"""Scripts that import torch, without the two seconds that it takes: forks of a process that has imported it.

In: what subprocess.Popen is given to run `python FILE WORDS...`, `-c CODE` or `-m MODULE`. Out: the same. A script has
its own words and environment, also as /proc shows them, a `__main__` of its own, and the random numbers of a fresh
process. Python that it starts is a fork of it in turn, as the ranks of a launcher are.

/proc shows the words and the environment from where they lay when a program began: those of support/script_server.py
have room for those of any script.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from support.fork_server import Request, be_at, end_with
from support.forks import ForkServer, Running

ROOM = "." * 50_000
NAMES = [*inspect.signature(subprocess.Popen._execute_child).parameters][1:]  # type: ignore[attr-defined]


class Popen(subprocess.Popen[Any]):
    """A script, as subprocess.Popen shows it. Whatever else is run begins as usual."""

    _running: Running | None = None

    def _execute_child(self, *values: Any) -> None:
        told = dict(zip(NAMES, values, strict=True))
        words = [os.fsdecode(word) for word in told["args"]] if isinstance(told["args"], list | tuple) else []
        if told["shell"] or len(words) < 2 or words[0] != sys.executable:
            super()._execute_child(*values)  # type: ignore[misc]
            return
        environment = dict(os.environ if told["env"] is None else told["env"])
        pipes = [told["p2cread"], told["c2pwrite"], told["errwrite"]]
        files = [pipe if pipe >= 0 else number for number, pipe in enumerate(pipes)]
        kind = "session" if told["start_new_session"] else ""
        request = Request(kind, words, environment, os.fspath(told["cwd"] or os.getcwd()))
        if is_script:
            sys.stdout.flush()  # else both would print what waits there
            self.pid = os.fork()
            if self.pid == 0:
                become(request, files)
        else:
            self._running = server.ask(request, files)
            self.pid = self._running.pid
        self._child_created = True
        self._close_pipe_fds(*(told[name] for name in NAMES if name[:3] in ("p2c", "c2p", "err")))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._running is None:
            return super()._try_wait(flags)  # type: ignore[misc,no-any-return]
        try:
            code = self._running.wait(0 if flags & os.WNOHANG else None)
        except subprocess.TimeoutExpired:
            return 0, 0
        return self.pid, -code if code < 0 else code << 8

    def _internal_poll(self, *args: Any, **settings: Any) -> int | None:
        if self._running is not None and self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
            return self.returncode
        return super()._internal_poll(*args, **settings)  # type: ignore[misc,no-any-return]


def run(words: Sequence[Any], *, check: bool = True, **settings: Any) -> subprocess.CompletedProcess[str]:
    """What it printed, as `subprocess.run(words, capture_output=True, text=True)` has it."""
    given = settings.pop("input", None)
    pipes = {"stdin": subprocess.DEVNULL if given is None else subprocess.PIPE, "text": True}
    pipes |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen([*map(str, words)], **(pipes | settings)) as script:
        try:
            out, err = script.communicate(given, timeout=300)
        finally:
            script.kill()
    assert not check or script.returncode == 0, f"exit code {script.returncode}\n{out}{err}"
    return subprocess.CompletedProcess(words, script.returncode, out, err)


server = ForkServer(program=(str(Path(__file__).with_name("script_server.py")), ROOM), environment={"ROOM": ROOM})
"""The one of this session."""
is_script = False


def become(request: Request, files: Sequence[int]) -> NoReturn:
    """Be the script from its first line to the end of the process."""
    global is_script
    try:
        is_script = True
        if request.program == "session":
            os.setsid()
        os.chdir(request.directory)
        kept = [os.dup(file) for file in files]
        os.dup2(kept[0], 0)
        be_at(*kept[1:], {0, 1, 2})
        _show(request.words, request.environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        random.seed()
        sys.modules["numpy"].random.seed()
        sys.modules["torch"].seed()
        gc.freeze()
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115
        subprocess.Popen = Popen  # type: ignore[misc]
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(255)
    end_with(lambda: _main(request.words[1:]))


def _main(words: list[str]) -> None:
    """Run what Python's words say, as Python does."""
    try:
        while words[0] == "-u":
            words = words[1:]
        first, *rest = words
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            return
        text = rest[0] if first == "-c" else Path(first).read_text()
        sys.argv = ["-c", *rest[1:]] if first == "-c" else words
        sys.path.insert(0, "" if first == "-c" else str(Path(first).parent))
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        if first != "-c":
            main.__file__ = first
        exec(compile(text, "<string>" if first == "-c" else first, "exec"), main.__dict__)
    finally:
        # Workers of a loader, as multiprocessing does when a program ends.
        for child in multiprocessing.active_children():
            if child.daemon:
                child.terminate()
            child.join()


def _show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have these words and this environment, also as /proc shows them."""
    os.environ.clear()
    os.environ.update(environment)
    fields = [int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    told = [*words], [f"{name}={value}" for name, value in environment.items()]
    for begin, end, texts in zip(fields[::2], fields[1::2], told, strict=True):
        text = b"".join(os.fsencode(text) + b"\0" for text in texts)
        assert len(text) <= end - begin, "more words than there is room for"
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)
