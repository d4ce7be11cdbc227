"""A mount for `scripts/wild`, those who watch it, and strangers who read it beside a client.

In: a data set, a directory for what the mount leaves. Out: contexts, at whose ends all processes and the mount are
gone, whatever has happened. Only mlfs's own commands are used, as a user would. Imported by scripts/wild.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wild_report import reads

BIN = Path(sys.executable).parent
LOOK_EVERY = "100ms"
"""A job that another one follows tells its last counts while the client evaluates, a quarter of a second here."""
STOP_TIMEOUT_S = 10.0
STRANGER_AT = (0.3, 2.3)
"""In epochs' worth of all reads: in the middle of the first epoch, and in that of the second, when the stranger has
read everything once, too."""


class Refused(Exception):
    """What keeps the whole run from beginning, in one line."""


class Running:
    """A process group that ends with the context: SIGTERM, then SIGKILL."""

    def __init__(self, *words: str | Path, **named: Any) -> None:
        self.process = subprocess.Popen([str(word) for word in words], start_new_session=True, **named)

    def __enter__(self) -> subprocess.Popen[Any]:
        return self.process

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
                return


class Looks:
    """The statuses that `mlfs status --watch --json` prints, taken in by a thread of their own."""

    def __init__(self, watch: subprocess.Popen[Any]) -> None:
        self.statuses: list[dict[str, Any]] = []
        threading.Thread(target=self._take_in, args=(watch.stdout,), daemon=True).start()

    def _take_in(self, lines: Any) -> None:
        text: list[str] = []
        for line in lines:
            text.append(line)
            if line == "}\n":
                self.statuses.append(json.loads("".join(text)))
                text.clear()

    @property
    def reads(self) -> int:
        return reads(self.statuses[-1]) if self.statuses else 0


class Beside:
    """A stranger who reads the same files, twice.

    Attributes:
        pids: its processes; what they start is theirs, too.
    """

    def __init__(self, kind: str, data: Path, work: Path) -> None:
        self.kind = kind
        self.data = data
        self.copy = work / "copy"
        self.pids: list[int] = []
        self._at = list(STRANGER_AT) if kind != "none" else []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self.copy, ignore_errors=True)

    def look(self, epochs: float) -> None:
        """Begin when the client has come so far."""
        if not self._at or epochs < self._at[0]:
            return
        self._at.pop(0)
        if self.kind == "cp":
            shutil.rmtree(self.copy, ignore_errors=True)
            self._start("cp", "-r", self.data, self.copy)
        else:
            names = self._start("find", self.data, "-name", "*.jpg", stdout=subprocess.PIPE)
            self._start("xargs", "cat", stdin=names.stdout, stdout=subprocess.DEVNULL)
            assert names.stdout is not None
            names.stdout.close()

    def _start(self, *words: str | Path, **named: Any) -> subprocess.Popen[Any]:
        process = self._stack.enter_context(Running(*words, stderr=subprocess.DEVNULL, **named))
        self.pids.append(process.pid)
        return process


class Mlfs:
    """The command, for one mount: called with its words, returns what it prints."""

    def __init__(self, state: Path) -> None:
        places = {name: str(state) for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "MLFS_RUNTIME_DIR")}
        self.environment = os.environ | places

    def __call__(self, *words: str | Path) -> str:
        command = [str(BIN / "mlfs"), *map(str, words)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=self.environment)
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            raise Refused(f"{shlex.join(['mlfs', *command[1:]])}: {said}")
        return done.stdout


@contextlib.contextmanager
def mounted(data: Path, state: Path) -> Iterator[Mlfs]:
    """A mount over the data set itself, with nothing known from before; gone afterwards, whatever happens."""
    state.mkdir()
    mount = Mlfs(state)
    try:
        mount("mount", data, "--ram", "256M")
        yield mount
        mount("unmount", data)
    except BaseException:
        with contextlib.suppress(OSError):
            subprocess.run(
                [BIN / "mlfs", "unmount", data, "--force"], check=False, capture_output=True, env=mount.environment
            )
        raise


@contextlib.contextmanager
def watched(data: Path, state: Path, mount: Mlfs) -> Iterator[Looks]:
    """All opens are recorded, and the status is looked at again and again; `recorded` reads the former afterwards."""
    recording = Running(
        *(BIN / "mlfs", "record", data, state / "opens"),
        env=mount.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    looking = Running(
        *(BIN / "mlfs", "status", data, "--json", "--watch", LOOK_EVERY),
        env=mount.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with recording as record, looking as look:
        assert record.stderr is not None
        said = record.stderr.readline()
        if "recording" not in said:
            raise Refused(f"mlfs record {data}: {said.strip()}")
        yield Looks(look)
        record.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            record.wait(STOP_TIMEOUT_S)


def recorded(state: Path) -> list[list[Any]]:
    """The opens: seconds, process, parent, path."""
    if not (state / "opens").exists():
        raise Refused("mlfs record left no file")
    lines = [json.loads(line) for line in (state / "opens").read_text().splitlines()]
    return [line for line in lines if isinstance(line, list)]
