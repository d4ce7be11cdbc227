"""Mounts of mlfs for tests, made by the real command in processes of its own.

In: a source, flags as on the command line. Out: `MlfsMount`, a context manager. Records, index and log go to a
directory of the mount's own (`state`), so that tests beside each other do not meet; pass the same `state` twice to
mount again with what the first mount left behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from support import spent
from support.forks import MARK, forks
from support.fuse import (
    PATIENCE_S,
    REPORTERS,
    detach,
    fuse_mounts,
    happened,
    mounts_at,
    processes_with,
    require_fuse,
    wait_until,
)

FSTYPE = "fuse.mlfs"
CHANNEL = os.environ.get("MLFS_TEST_CHANNEL", "")
"""The channel of all mounts that name none: any test of what is promised on both can be run on either."""
COMMAND_TIMEOUT_S = 180.0
PROGRESS = re.compile(
    r"^(?:mlfs: )?(?:starting|scan|mount|waiting for the list of files)(?:: [\d,]+ .*|: .* scans.*)?\n", re.MULTILINE
)
"""The progress lines of a start that takes longer than two seconds, as any may on a busy machine."""


class MlfsMount:
    """`mlfs mount SOURCE [MOUNTPOINT] FLAGS...` while the context lasts."""

    def __init__(
        self,
        source: Path | str,
        *flags: str,
        mountpoint: Path | str | None = None,
        state: Path | None = None,
        infer: bool = False,
    ):
        self.source = Path(source)
        self.path = Path(mountpoint or source).resolve()
        self.flags = [*flags, *([] if infer else ["--infer", "off"])]  # most tests want no order to be inferred
        if CHANNEL and "--channel" not in self.flags:
            self.flags += ["--channel", CHANNEL]
        self.extra_env: dict[str, str] = {}
        self.said = ""  # by `mlfs mount` on standard error
        self.within: list[str] = []  # what runs `mlfs mount`: a shell that sets limits first
        self._places = [str(self.source)] + ([str(mountpoint)] if mountpoint else [])
        self._own_state = state is None
        self.state = state or Path(tempfile.mkdtemp(prefix="mlfs-state-"))
        self._mark = uuid.uuid4().hex
        self._below = 0

    @property
    def env(self) -> dict[str, str]:
        """The environment in which commands find this mount."""
        run, cache = self.state / "run", self.state / "cache"
        for directory in (run, cache):
            directory.mkdir(parents=True, exist_ok=True)
        places = {"XDG_CACHE_HOME": cache, "XDG_RUNTIME_DIR": run, "MLFS_RUNTIME_DIR": run}
        return os.environ | {name: str(path) for name, path in places.items()} | {MARK: self._mark} | self.extra_env

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Any mlfs command; fails with what it printed unless `check` is False."""
        # Files, not pipes: a daemon that kept one end open would keep us waiting for its end.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            within = self.within if argv[0] == "mount" else []
            command, env = [*within, sys.executable, "-m", "mlfs.cli.main", *argv], self.env
            if not within and forks.can_run(env):
                code = forks.run("mlfs", argv, env, out, err, COMMAND_TIMEOUT_S)
            else:
                code = subprocess.call(command, env=env, stdout=out, stderr=err, timeout=COMMAND_TIMEOUT_S)
            out.seek(0)
            err.seek(0)
            result = subprocess.CompletedProcess(command, code, out.read(), PROGRESS.sub("", err.read()))
        if check and result.returncode:
            pytest.fail(f"mlfs {' '.join(argv)}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def __enter__(self) -> MlfsMount:
        require_fuse()
        self.mount()
        return self

    def mount(self) -> None:
        """Mount, as entering the context does. It may be called again after `unmount` or a kill."""
        self._below = mounts_at(self.path, FSTYPE)
        REPORTERS.append(self.report)
        try:
            self.said = self.run("mount", *self._places, *self.flags).stderr
        except BaseException:
            self.clean_up()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Unmount as a user does; by force if that fails, and then the test fails unless it has failed already."""
        known = self.pids()
        for pid in known:
            spent.add_daemon(pid)
        result = self.run("unmount", str(self.path), check=False) if self.is_mounted else None
        clean = happened(lambda: not self.is_mounted and not self.pids(known) and not self.pids(), PATIENCE_S)
        left, faults = {} if clean else self.pids(), self._faults()
        self.clean_up()
        if error is None and not clean:
            said = f": {result.stdout}{result.stderr}" if result else ""
            pytest.fail(f"the mount did not end by itself; left over: {left or 'the mount'}{said}")
        if error is None and faults:
            pytest.fail("bugs that the daemon survived stand in its log: " + faults[0])

    def _faults(self) -> list[str]:
        """The lines of the log that report bugs of the scheduler, its driver, or tasks beside the readers' way."""
        logs = (self.state / "cache").glob("mlfs/log/*.log*")
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
        words = ("the scheduler failed over", "could not be carried out", "failed and is begun again")
        return [line for line in lines if any(word in line for word in words)]

    def clean_up(self) -> None:
        """Remove the mount, its processes and its state, by force if need be."""
        if self.report in REPORTERS:
            REPORTERS.remove(self.report)
        self.kill()
        if self.is_mounted:
            detach(self.path, FSTYPE)
        for mounted in fuse_mounts():  # those for commands, which a killed daemon leaves
            if Path(mounted.path).is_relative_to(self.state / "run"):
                detach(Path(mounted.path), FSTYPE)
        if self._own_state:
            shutil.rmtree(self.state, ignore_errors=True)

    def kill(self) -> None:
        """Kill all processes of the mount at once: each of two would have the other start again."""
        pids = self.pids()
        while pids:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            happened(lambda killed=pids: not self.pids(killed))
            pids = self.pids()

    @property
    def is_mounted(self) -> bool:
        return mounts_at(self.path, FSTYPE) > self._below

    def pids(self, among: Iterable[int] | None = None) -> dict[int, list[str]]:
        """The processes of this mount, by command line: the daemon, and commands that still run."""
        return processes_with(MARK, self._mark, among)

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        pid: int = self.status()["pid"]
        return pid

    def status(self) -> dict[str, Any]:
        """What MOUNT/.mlfs/status says."""
        status: dict[str, Any] = json.loads((self.path / ".mlfs" / "status").read_bytes())
        return status

    def findings(self) -> list[str]:
        """The sentences of the auditor, once every read is digested."""
        self.settle()
        audit = json.loads((self.path / ".mlfs" / "audit").read_bytes())
        assert audit["jobs"]
        return [f"{finding['kind']}: {finding['sentence']}" for finding in audit["findings"]]

    def taken_back(self) -> int:
        """Samples whose staged pages the kernel took back, noticed before the read or by it: each was fetched again."""
        status = self.status()
        taken_back: int = status["pages"]["taken_back"] + status["errors"].get("pages_taken_back", 0)
        return taken_back

    def settle(self) -> None:
        """Wait until nothing is under way: every open and release digested, every fetch ended, every copy kept."""
        wait_until(lambda: not any(self.status()["under_way"].values()))

    def report(self) -> str:
        """The status, read in a process of its own, so that a daemon that hangs does not hang the tests."""
        command = ["timeout", "5", "cat", str(self.path / ".mlfs" / "status")]
        return f"{self.path}: {subprocess.run(command, capture_output=True, text=True, check=False).stdout}"

    def control(self, command: dict[str, Any]) -> dict[str, Any]:
        """Write one line to MOUNT/.mlfs/control and return the answer. Raises OSError (EINVAL) when it is refused."""
        with open(self.path / ".mlfs" / "control", "r+b", buffering=0) as file:
            file.write(json.dumps(command).encode() + b"\n")
            answer: dict[str, Any] = json.loads(file.readall())
        return answer

    def register(self, **fields: Any) -> dict[str, Any]:
        """Register a job; the defaults are the mount's."""
        return self.control({"op": "register"} | fields)

    def unmount(self, *flags: str) -> None:
        """Run `mlfs unmount`, which must succeed."""
        self.run("unmount", str(self.path), *flags)
        assert not self.is_mounted
