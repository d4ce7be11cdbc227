"""A source whose file system dies, hangs, and is mounted again while mlfs is mounted."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from support.fuse import kill, wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.trees import content, make_tree

NAMES = [f"{number}.jpg" for number in range(8)]
NASTY = "a\x1b[31m\nb.jpg"
LARGE, LARGE_BYTES = "large.bin", 9 << 20  # above what a demand read fetches whole
DEAD = (errno.ENOTCONN, errno.ECONNABORTED)


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    files = {name: content(name, 30_000) for name in [*NAMES, NASTY]}
    return make_tree(tmp_path / "backing", files | {LARGE: content(LARGE, LARGE_BYTES)})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the source is mounted, again and again."""
    path = tmp_path / "source"
    path.mkdir()
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "mount"
    path.mkdir()
    return path


def source(backing: Path, place: Path) -> SlowSource:
    return SlowSource(backing, place, open_latency="0ms", bandwidth="1G")


def shown(mount: MlfsMount) -> str:
    """The status as a person sees it, but for the breaks of its lines."""
    return " ".join(mount.run("status", str(mount.path)).stdout.split())


def error_of(path: Path) -> int | None:
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


@pytest.mark.promise("source-back", "told-source", "gone-kept")
@pytest.mark.wall_clock
def test_reads_go_on_once_the_same_source_is_mounted_again_and_an_empty_directory_is_not_taken_for_it(
    backing: Path, place: Path, target: Path
) -> None:
    with source(backing, place) as slow, MlfsMount(place, mountpoint=target) as mount:
        assert (target / NAMES[0]).read_bytes() == (backing / NAMES[0]).read_bytes()
        wait_until(lambda: mount.status()["tiers"][0]["samples"] == 1)
        with open(target / LARGE, "rb", buffering=0) as held:
            assert held.read(10) == (backing / LARGE).read_bytes()[:10]
            kill(slow.pid)
            wait_until(lambda: error_of(target / NAMES[1]) in DEAD)
            assert (target / NAMES[0]).read_bytes() == (backing / NAMES[0]).read_bytes()
            assert mount.status()["source_state"]["state"] == "gone"
            told = shown(mount)
            assert told.startswith("the source has been gone for ")
            assert f"! the source {place} has been gone for " in told
            assert "mount it there again, and reads go on" in told
            assert mount.status()["failed_reads"]["last"]["path"] == NAMES[1]
            assert re.search(rf"! (a read|\d+ reads) failed, the last one \d+ s ago: {NAMES[1]}: ", told)
            metrics = (target / ".mlfs/metrics").read_text()
            assert re.search(r"mlfs_source_there\{.*\} 0.0\n", metrics)
            assert re.search(r"mlfs_failed_reads_total\{.*\} [1-9]", metrics)

            slow.stop()  # what is at its path now is the empty directory that it was mounted on
            assert error_of(target / NAMES[2]) in DEAD
            wait_until(lambda: mount.status()["source_state"]["state"] == "another")
            assert f"! what is at {place} now is not the source that was mounted" in shown(mount)

            with source(backing, place):
                assert (target / NAMES[2]).read_bytes() == (backing / NAMES[2]).read_bytes()
                os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(held.fileno(), 5000, 8 << 20) == (backing / LARGE).read_bytes()[8 << 20 :][:5000]
                assert mount.status()["source_state"] | {"since_s": 0} == {
                    "state": "there", "error": "", "since_s": 0, "opened_again": 1,
                    "hanging": 0, "hanging_s": 0, "hanging_path": "",
                    "mtime_proves": True, "ctime_proves": True, "directory_times_prove": True, "unsized_files": 0,
                }  # fmt: skip
                assert "! the source's file system was gone or hung, and was found again " in shown(mount)


@pytest.mark.promise("told-source", "source-back")
@pytest.mark.wall_clock
def test_a_source_that_hangs_is_shown_with_the_path_and_left_for_one_that_is_mounted_in_its_place(
    backing: Path, place: Path, target: Path
) -> None:
    with source(backing, place) as slow, MlfsMount(place, "--source-timeout", "6s", mountpoint=target) as mount:
        slow.control(hang={"path": NASTY, "op": "any"})
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append((target / NASTY).read_bytes()))
        reader.start()
        wait_until(lambda: bool(mount.status()["source_state"]["hanging"]))
        assert re.search(r"! the source has not answered for \d+ s, of a\\x1b\[31m\\nb.jpg: ", shown(mount))
        subprocess.run(["umount", "-l", place], check=True)
        assert os.listdir(place) == []
        with source(backing, place):
            reader.join(30)
            assert read == [(backing / NASTY).read_bytes()]  # by the second try
            assert mount.status()["source_state"]["opened_again"] == 1
            slow.control(release={"path": "*"})
            mount.unmount()


@pytest.mark.promise("end-source-died")
def test_a_mount_whose_source_died_is_unmounted_like_any_other(backing: Path, place: Path, target: Path) -> None:
    with source(backing, place) as slow, MlfsMount(place, mountpoint=target) as mount:
        kill(slow.pid)
        wait_until(lambda: error_of(target / NAMES[1]) in DEAD)
        os.statvfs(target)  # the mount answers, as what lives does
        done = mount.run("unmount", str(target))
        assert (done.stdout, done.stderr) == (f"unmounted {target}\n", "")
