"""The slow source for tests: scripts/slow_source.py in a process of its own, with its counts and its faults.

In: a directory. Out: `SlowSource`, a context manager whose `path` shows that directory as a slow storage system would.
Always unmounted at the end, also with requests that hang.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from support.forks import Running, forks
from support.fuse import detach, require_fuse

SCRIPT = Path(__file__).parents[2] / "scripts" / "slow_source.py"
LYING_SCRIPT = SCRIPT.with_name("source_lies.py")
FSTYPE = "fuse.slow_source"
STOP_TIMEOUT_S = 60.0


class SlowSource:
    """The directory `backing`, served at `path` as a slow source. The kernel keeps no attributes: tests change them."""

    script = SCRIPT

    def __init__(
        self,
        backing: Path,
        mountpoint: Path | None = None,
        *,
        open_latency: str = "2ms",
        bandwidth: str = "100M",
        attr_timeout: str = "0s",
        stats: Path | None = None,
    ) -> None:
        self.backing = Path(backing)
        self._own_directory = None if mountpoint else tempfile.mkdtemp(prefix="mlfs-slow-")
        self.path = Path(mountpoint or self._own_directory or "").resolve()
        self._flags = ["--open-latency", open_latency, "--bandwidth", bandwidth, "--attr-timeout", attr_timeout]
        self._flags += ["--stats", str(stats)] if stats else []
        self._process: subprocess.Popen[bytes] | Running | None = None
        # Opened before a test mounts mlfs over the same path: the counts and the control file stay within reach.
        self._root_fd = -1

    def __enter__(self) -> SlowSource:
        require_fuse()
        words = [str(self.backing), str(self.path), "--foreground", *self._flags]
        said, says = os.pipe()
        with open(said) as told, open(says, "w") as out:
            if forks.can_run(os.environ):
                self._process = forks.start(self.script.stem, words, os.environ, out, sys.__stderr__)
            else:
                self._process = subprocess.Popen([sys.executable, str(self.script), *words], stdout=out)
            out.close()  # so that the end of the process is the end of the pipe
            if not told.readline():
                code = self._process.wait(STOP_TIMEOUT_S)
                pytest.fail(f"the slow source did not start (exit code {code}): its error is on stderr")
        self._root_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def counts(self) -> dict[str, Any]:
        """{"opens", "bytes", "failed", "waiting", "by_path": {path: opens}, "bytes_by_path": {path: bytes}}."""
        counts: dict[str, Any] = json.loads(self._virtual(".slow_source_stats", os.O_RDONLY).read())
        return counts

    def control(self, **orders: Any) -> None:
        """For example control(fail={"path": "a/b", "errno": 5, "times": 2}) or control(latency_s=0.01)."""
        with self._virtual(".slow_source_control", os.O_WRONLY) as file:
            file.write(json.dumps(orders).encode() + b"\n")

    def _virtual(self, name: str, flags: int) -> FileIO:
        return FileIO(os.open(name, flags, dir_fd=self._root_fd), "r" if flags == os.O_RDONLY else "w")

    def stop(self) -> None:
        """SIGTERM (which answers hanging requests first), then by force. May be called twice."""
        process, self._process = self._process, None
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)
            detach(self.path, FSTYPE)
        if self._own_directory is not None:
            Path(self._own_directory).rmdir()
            self._own_directory = None


class LyingSource(SlowSource):
    """The same with scripts/source_lies.py, and neither latency nor a limit of bandwidth."""

    script = LYING_SCRIPT

    def __init__(self, backing: Path, mountpoint: Path | None = None) -> None:
        super().__init__(backing, mountpoint, open_latency="0", bandwidth="0")

    def lie(self, path: str, **fields: Any) -> None:
        """For example lie("a", ctime="now"): see the script."""
        self.control(lie={"path": path, **fields})

    def truth(self, path: str) -> None:
        """No lie that was told for exactly this path any more."""
        self.control(truth={"path": path})
