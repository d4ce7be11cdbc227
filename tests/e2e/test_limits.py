"""A limit costs speed, never the mount: threads, descriptors, memory, room on disks, drawn around real mounts.

Each mount serves whatever its source has, every byte compared, says in one line which limit it met and what to set,
and unmounts; or it is refused at once, in one line, and nothing is left behind.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.limits import cgroup, ulimit
from support.mounts import MlfsMount

pytestmark = pytest.mark.page_counts

SMALL, LARGE = 60, 12
SMALL_BYTES, LARGE_BYTES = 30_000, 5 << 20  # the latter are read by ranges, each through a descriptor of its own
READERS = 8


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("limits") / "set"
    root.mkdir()
    rng = random.Random(14)
    for index in range(SMALL):
        (root / f"{index:03d}.small").write_bytes(rng.randbytes(SMALL_BYTES + index))
    for index in range(LARGE):
        (root / f"{index:03d}.z.large").write_bytes(rng.randbytes(1 << 16) * (LARGE_BYTES >> 16) + bytes([index]))
    return root


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    path = tmp_path / "tiny"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M,mode=700", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path) -> None:
    """Leave no room on it."""
    with open(disk / "full", "wb", buffering=0) as full:
        try:
            while full.write(bytes(512)):
                pass
        except OSError:
            return


def compare(mount: MlfsMount, source: Path, names: list[str]) -> None:
    """Several readers read all these files, and each byte is right."""
    assert names

    def read(name: str) -> str:
        return "" if (mount.path / name).read_bytes() == (source / name).read_bytes() else name

    with ThreadPoolExecutor(READERS) as readers:
        assert not list(filter(None, readers.map(read, names)))


def read_anew(mount: MlfsMount, source: Path) -> None:
    """Each file is asked of the mount again, by several readers at once, as the kernel has no page of it."""
    names = sorted(path.name for path in source.iterdir())
    for name in names:
        with open(mount.path / name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    compare(mount, source, names)


def read_until(mount: MlfsMount, source: Path, words: str) -> None:
    """Read on until the status says so: how many threads and how much memory are used at a time is chance."""
    until_s = time.monotonic() + 30
    while not said(mount, words) and time.monotonic() < until_s:
        read_anew(mount, source)
    assert said(mount, words)


def read_a_job(mount: MlfsMount, source: Path, epochs: int = 2) -> None:
    """Register a job and read as it says, each epoch by several readers at once."""
    mount.register(name="train", seed=3, epochs=epochs, batch_size=4, layout="sorted")
    for epoch in range(epochs):
        compare(mount, source, (mount.path / f".mlfs/order/train/{epoch}/0").read_text().splitlines())


def said(mount: MlfsMount, words: str) -> bool:
    """Whether one line of the status says it."""
    return any(words in line for line in mount.status()["messages"])


def refused(mount: MlfsMount, *words: str) -> None:
    """The mount is refused soon, in one line with these words; neither mount nor process is left."""
    began_s = time.monotonic()
    done = mount.run("mount", str(mount.source), str(mount.path), *mount.flags, check=False)
    took_s = time.monotonic() - began_s
    try:
        assert done.returncode == 1, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert all(word in done.stderr for word in words), done.stderr
        assert took_s < 10  # the start of two interpreters, and nothing that is waited for
        assert not mount.is_mounted
        assert wait_until(lambda: not mount.pids())
        assert not list((mount.state / "run").glob("*.json"))
    finally:
        mount.clean_up()


@pytest.fixture
def view(tmp_path: Path) -> Path:
    path = tmp_path / "view"
    path.mkdir()
    return path


# -- threads and descriptors


@pytest.mark.promise("limit-costs-speed")
@pytest.mark.parametrize("threads", [8, 11])  # of the command, the holder and the server
def test_with_few_threads_it_serves_and_says_so(source: Path, view: Path, threads: int) -> None:
    with cgroup("threads", threads) as (within, directory):
        mount = MlfsMount(source, mountpoint=view)
        mount.within = within
        with mount:
            read_a_job(mount, source)
            read_until(mount, source, f"{threads} threads ({directory}/pids.max)")
            assert said(mount, f"short of threads, {mount.status()['errors']['threads_short']:,} times: its cgroup")
            assert mount.status()["fetches"].keys() & {"pfs"}
            server = mount.pid
            os.kill(server, signal.SIGKILL)  # the next one needs as many, and finds what stands by
            assert mount.pid != server
            read_anew(mount, source)


@pytest.mark.promise("limit-too-low")
@pytest.mark.wall_clock
def test_with_too_few_threads_it_is_refused(source: Path, view: Path) -> None:
    with cgroup("threads", 4) as (within, directory):
        mount = MlfsMount(source, mountpoint=view)
        mount.within = within
        refused(mount, "may have 4 threads", f"{directory}/pids.max", "needs 5 threads")


def test_with_few_descriptors_readers_hold_more_files_open_than_it_has(source: Path, view: Path) -> None:
    mount = MlfsMount(source, mountpoint=view)
    mount.within = ulimit("-n", 50)
    with mount:
        names = sorted(path.name for path in source.glob("*.large"))
        files = [open(view / name, "rb") for name in names * 2]  # noqa: SIM115 - held open all together
        for at in range(3):
            for file, name in zip(files, names * 2, strict=True):
                wanted = (source / name).read_bytes()
                start = (at * 7919 * 4096) % (len(wanted) - 300_000)
                assert os.pread(file.fileno(), 300_000, start) == wanted[start : start + 300_000]
        for file in files:
            file.close()
        read_a_job(mount, source)
        assert said(mount, "it may have 50 files open (ulimit -n)")
        assert mount.status()["errors"]["files_short"] > 0


@pytest.mark.promise("limit-too-low")
@pytest.mark.wall_clock
def test_with_too_few_descriptors_it_is_refused(source: Path, view: Path) -> None:
    mount = MlfsMount(source, mountpoint=view)
    mount.within = ulimit("-n", 24)
    refused(mount, "24 files open (ulimit -n)", "LimitNOFILE=")


# -- memory


@pytest.mark.wall_clock
def test_with_little_address_space_it_serves(source: Path, view: Path) -> None:
    mount = MlfsMount(source, "--ram", "1M", mountpoint=view)
    mount.within = ulimit("-v", 250 << 10)
    with mount:
        read_a_job(mount, source)
        read_until(mount, source, "it may map 250 MiB of memory (ulimit -v)")


@pytest.mark.promise("limit-too-low")
@pytest.mark.wall_clock
def test_with_too_little_address_space_it_is_refused(source: Path, view: Path) -> None:
    mount = MlfsMount(source, mountpoint=view)
    mount.within = ulimit("-v", 170 << 10)
    refused(mount, "170 MiB of memory (ulimit -v)")


@pytest.fixture(scope="module")
def more_than_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 MB, which no cgroup of these tests holds."""
    root = tmp_path_factory.mktemp("limits") / "more"
    root.mkdir()
    block = random.Random(15).randbytes(500_000)
    for index in range(400):
        (root / f"{index:03d}.bin").write_bytes(index.to_bytes(4, "big") + block[index * 7 :])
    return root


@pytest.mark.promise("memory-fits")
def test_defaults_stay_below_the_limit_of_the_cgroup(more_than_memory: Path, view: Path) -> None:
    limit = 120 << 20
    with cgroup("memory", limit) as (within, _):
        mount = MlfsMount(more_than_memory, mountpoint=view)
        mount.within = within
        with mount:
            pid, status = mount.pid, mount.status()
            own = status["memory"]["rss_bytes"]
            kept = status["staging"]["asked_bytes"] + status["tiers"][0]["capacity_bytes"]
            assert 8 << 20 < kept < limit - 64 * (1 << 20) < limit - own // 2
            read_a_job(mount, more_than_memory, epochs=1)
            assert mount.pid == pid


@pytest.mark.promise("memory-fits", "window-shrinks")
def test_a_window_that_the_memory_does_not_hold_is_told_and_shrinks(more_than_memory: Path, view: Path) -> None:
    with cgroup("memory", 120 << 20) as (within, _):
        mount = MlfsMount(more_than_memory, "--staging", "90M", "--ram", "0", mountpoint=view)
        mount.within = within
        told = mount.run("mount", str(mount.source), str(view), *mount.flags).stderr
        try:
            assert len(told.splitlines()) == 1
            assert "--staging 90 MiB" in told
            assert "of 120 MiB is free" in told
            mount.register(name="train", seed=3, epochs=1, batch_size=4, layout="sorted")
            order = (view / ".mlfs/order/train/0/0").read_text().splitlines()
            wait_until(lambda: mount.status()["staging"]["capacity_bytes"] < 70 << 20)
            status = mount.status()
            assert status["staging"]["asked_bytes"] == 90 << 20
            assert said(mount, "instead of 90 MiB, as staged pages are taken back")
            compare(mount, more_than_memory, order[:120])
            mount.unmount()
        finally:
            mount.clean_up()


# -- disks


@pytest.mark.promise("disk-fits")
@pytest.mark.parametrize("kind", ["ssd", "lmdb"])
def test_a_cache_larger_than_its_disk_is_told_and_a_full_one_too(
    source: Path, view: Path, tiny_disk: Path, kind: str
) -> None:
    mount = MlfsMount(source, "--ram", "0", f"--{kind}", f"{tiny_disk}:1000T", mountpoint=view)
    told = mount.run("mount", str(source), str(view), *mount.flags).stderr
    try:
        assert f"{kind}:{tiny_disk}: 1000 TiB were asked for, and the disk has room for " in told
        assert mount.status()["tiers"][1]["capacity_bytes"] < 2 << 20
        fill(tiny_disk)
        read_a_job(mount, source, epochs=1)
        wait_until(lambda: said(mount, f"{kind}:{tiny_disk} takes no more copies (No space left on device"))
        assert mount.status()["errors"]["tier_error"] > 0
        assert "tier error" in mount.run("status", str(view)).stdout
        mount.unmount()
    finally:
        mount.clean_up()


def test_without_room_for_its_record_it_serves(source: Path, view: Path, tiny_disk: Path) -> None:
    mount = MlfsMount(source, mountpoint=view)
    mount.extra_env = {"MLFS_RUNTIME_DIR": str(tiny_disk)}
    fill(tiny_disk)
    told = mount.run("mount", str(source), str(view), *mount.flags).stderr
    try:
        assert f"no record of this mount could be written to {tiny_disk}: No space left on device" in told
        compare(mount, source, sorted(os.listdir(source)))
        mount.unmount()
        assert wait_until(lambda: not mount.pids())
    finally:
        mount.clean_up()
