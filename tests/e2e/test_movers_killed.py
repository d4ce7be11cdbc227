"""Movers of a real mount: when they come, and that what they have is read while they hang, and when they are killed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import image_folder, make_tree

from mlfs.engine.movers import by_cores
from mlfs.limits import usable_processors

MOVERS = 2
# Shorter than the time after which a reader is served past a lane that hangs.
SOON_S = 5.0


def movers(mount: MlfsMount) -> dict[str, dict[str, int]]:
    return {one["name"]: one for one in mount.status()["processes"] if one["name"].startswith("mover-")}


def runs(pid: int) -> bool:
    """Whether a process has not ended: a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.promise("outlived-movers")
def test_movers_that_hang_or_are_killed_cost_no_read(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", image_folder(classes=4, files=100, size=20_000))
    want = {file.relative_to(source): file.read_bytes() for file in sorted(source.rglob("*.jpg"))}
    view = tmp_path / "view"
    view.mkdir()
    # Less than an epoch's files fit: what the window drops is fetched again, from memory, the disk and the source.
    disk = f"{tmp_path / 'disk'}:3M"
    flags = ["--ram", "3M", "--ssd", disk, "--staging", "4M", "--movers", str(MOVERS), "--channel", "auto"]
    with MlfsMount(source, *flags, mountpoint=view) as mount:
        assert "movers" in mount.status()["channel"]["why"]  # the silent channel has none
        wait_until(lambda: len(movers(mount)) == MOVERS)
        first = movers(mount)
        for one in first.values():
            os.kill(one["pid"], signal.SIGSTOP)
        job = ["--sampler", "sequential", "--layout", "sorted", "--epochs", "3", "--batch-size", "8"]
        mount.run("register", str(view), *job)
        wait_until(lambda: mount.status()["under_way"]["fetches"] > 0)
        for name, content in want.items():
            began_s = time.monotonic()
            assert (view / name).read_bytes() == content
            assert time.monotonic() - began_s < SOON_S
        for one in first.values():
            os.kill(one["pid"], signal.SIGKILL)
        for name, content in want.items():
            assert (view / name).read_bytes() == content
        wait_until(lambda: [one["restarts"] for one in movers(mount).values()] == [1] * MOVERS)
        for number, (name, content) in enumerate(want.items()):
            if number % 100 == 50:  # while they are at work
                for one in movers(mount).values():
                    with suppress(ProcessLookupError):  # a lane has just found that one of the last time is dead
                        os.kill(one["pid"], signal.SIGKILL)
            assert (view / name).read_bytes() == content
        assert mount.status()["errors"].keys() <= {"pages_taken_back"}  # as a machine does that lacks memory
        wait_until(lambda: len(movers(mount)) == MOVERS)
        before = movers(mount)
        os.kill(mount.pid, signal.SIGKILL)
        wait_until(lambda: len(movers(mount)) == MOVERS)
        assert not any(runs(one["pid"]) for one in before.values())
        assert all(one["restarts"] > before[name]["restarts"] for name, one in movers(mount).items())
        after = [one["pid"] for one in movers(mount).values()]
        assert (view / next(iter(want))).read_bytes() == next(iter(want.values()))
        mount.unmount()
        wait_until(lambda: not any(map(runs, after)))


def test_movers_come_once_much_is_fetched(tmp_path: Path) -> None:
    """In a mount whose threads seem to compute a thousand times as long as they do: 200 files are much then."""
    source = make_tree(tmp_path / "source", image_folder(classes=4, files=50, size=20_000))
    want = {file.relative_to(source): file.read_bytes() for file in sorted(source.rglob("*.jpg"))}
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nreal = time.thread_time\ntime.thread_time = lambda: 1000 * real()"
    )
    mount = MlfsMount(source, "--ram", "2M", "--staging", "2M")
    mount.extra_env = {"PYTHONPATH": str(tmp_path)}
    with mount:
        assert not movers(mount)
        job = ["--sampler", "sequential", "--layout", "sorted", "--epochs", "3", "--batch-size", "8"]
        mount.run("register", str(mount.path), *job)
        for number in range(3):
            if number == 1:  # the others are fetched by them
                wait_until(lambda: len(movers(mount)) == by_cores(usable_processors()))
            for name, content in want.items():
                assert (mount.path / name).read_bytes() == content
        used_s = sum(one["cpu_s"] for one in movers(mount).values())
        assert used_s > 0 or not by_cores(usable_processors())
        assert mount.status()["jobs"][0]["agreement"] == 1.0
        assert mount.status()["errors"].keys() <= {"pages_taken_back"}
