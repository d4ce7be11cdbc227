"""The daemon in a container: readers in another pid namespace than its own, and in other mount namespaces.

The daemon runs in namespaces of its own (unshare), as `docker run` and a Kubernetes sidecar start it. Its mount comes
out of them through a directory whose mounts propagate (`rshared` there, `rslave` where readers are).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import scripts
from support.forks import forks
from support.fuse import wait_until
from support.mounts import FSTYPE
from support.training import train
from support.trees import make_tree

RANKS, WORKERS, BATCH = 2, 3, 6
FILES = {f"class{n % 4}/{n:04}.jpg": random.Random(n).randbytes(600 + n) for n in range(480)}
JOB = ["--seed", "5", "--epochs", "4", "--batch-size", str(BATCH), "--world-size", str(RANKS)]
TOLD = "readers are in another pid namespace"
TESTS = Path(__file__).parents[1]
# As `unshare --mount --propagation slave` (linux/sched.h, linux/mount.h), for what may be a fork.
INSIDE = """
import ctypes, sys
CLONE_NEWNS, MS_REC, MS_SLAVE = 0x20000, 0x4000, 1 << 19
libc = ctypes.CDLL(None)
assert libc.unshare(CLONE_NEWNS) == 0
assert libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None) == 0
sys.path[:0] = sys.argv[2:]
from support.training import train
"""


class Container:
    """A daemon in namespaces of its own, which the options of `unshare` say."""

    def __init__(self, tmp_path: Path, options: Sequence[str]) -> None:
        self.source = make_tree(tmp_path / "source", FILES)
        self.out = tmp_path / "out"
        self.mount = self.out / "data"
        self.env = os.environ | {"MLFS_RUNTIME_DIR": str(tmp_path / "run"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        self.options = options

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        self.out.mkdir()
        subprocess.run(["mount", "--bind", self.out, self.out], check=True)
        subprocess.run(["mount", "--make-rshared", self.out], check=True)
        self.mount.mkdir()
        mlfs = [sys.executable, "-m", "mlfs.cli.main", "mount", str(self.source), str(self.mount), "--foreground"]
        command = ["unshare", *self.options, "--propagation", "unchanged", "--kill-child", *mlfs]
        said = (self.out.parent / "said").open("w+")
        daemon = subprocess.Popen(command, env=self.env, stdout=said, stderr=said)
        try:
            wait_until(lambda: b"mounted" in Path(said.name).read_bytes() or daemon.poll() is not None)
            assert f" - {FSTYPE} " in Path("/proc/self/mountinfo").read_text(), Path(said.name).read_text()
            yield
            subprocess.run(["umount", self.mount], check=True)
            assert daemon.wait(60) == 0, Path(said.name).read_text()
        finally:
            daemon.kill()
            daemon.wait()
            said.close()
            subprocess.run(["umount", "-R", "-l", self.out], check=True)

    def mlfs(self, command: str, *words: str) -> None:
        """A command outside of the container. Its runtime directory is another one, as there."""
        env = self.env | {"MLFS_RUNTIME_DIR": str(self.out.parent / "run-outside")}
        words = (command, str(self.mount), *words)
        assert forks.run("mlfs", words, env, sys.__stdout__, sys.__stderr__, timeout_s=60) == 0

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.mount / ".mlfs/status").read_bytes())
        return status

    def settled(self) -> dict[str, Any]:
        wait_until(lambda: not any(self.status()["under_way"].values()))
        return self.status()

    def train(self, seed: int, epochs: int) -> None:
        """Real loaders read through the mount, ranks and workers in processes of their own; the bytes are right."""
        seen = train(self.mount, ranks=RANKS, workers=WORKERS, epochs=epochs, batch_size=BATCH, seed=seed)
        right = sorted(zlib.crc32(content) for content in FILES.values())
        for epoch in range(epochs):
            assert sorted(checksum for rank in seen for checksum in rank[epoch]) == right


def words_of(status: dict[str, Any]) -> list[str]:
    return [message for message in status["messages"] if TOLD in message]


@pytest.mark.promise("namespace-readers")
@pytest.mark.promise("namespace-mounts")
def test_readers_outside_of_the_daemons_pid_namespace(tmp_path: Path) -> None:
    container = Container(tmp_path, ["--pid", "--fork", "--mount-proc"])
    with container.serving():
        assert all((container.mount / name).read_bytes() == FILES[name] for name in sorted(FILES)[:20])
        container.train(seed=5, epochs=1)
        now = container.settled()
        assert (now["failed_reads"]["count"], now["jobs"]) == (0, [])  # nothing is inferred from readers without names
        assert now["inference"]["state"] == "watching the first reads"
        assert len(words_of(now)) == 1
        assert "--pid=host" in words_of(now)[0]
        assert "hostPID: true" in words_of(now)[0]

        container.mlfs("register", *JOB, "--name", "wrong", "--seed", "6")
        container.train(seed=5, epochs=1)
        now = container.settled()
        (job,) = now["jobs"]
        assert job["agreement"] < 0.5
        assert (job["searches"], job["found_out"], job["spec"]["seed"]) == (0, [], 6)
        container.mlfs("unregister", "wrong")

        container.mlfs("register", *JOB)
        container.train(seed=5, epochs=2)
        now = container.settled()
        (job,) = now["jobs"]
        assert job["agreement"] >= 0.97
        assert job["observed_opens"] >= 0.99 * 2 * len(FILES)
        assert (job["searches"], job["found_out"], len(words_of(now))) == (0, [], 1)


@pytest.mark.promise("namespace-readers")
@pytest.mark.promise("namespace-mounts")
def test_with_a_shared_pid_namespace_readers_in_containers_are_told_apart(tmp_path: Path) -> None:
    container = Container(tmp_path, ["--mount"])
    with container.serving():
        container.mlfs("register", *JOB)
        how = f"ranks={RANKS}, workers={WORKERS}, epochs=2, batch_size={BATCH}, seed=5"
        scripts.run([sys.executable, "-c", f"{INSIDE}train(sys.argv[1], {how})", container.mount, TESTS])
        now = container.settled()
        (job,) = now["jobs"]
        assert job["agreement"] >= 0.98
        assert job["observed_opens"] == 2 * len(FILES)
        assert words_of(now) == []
