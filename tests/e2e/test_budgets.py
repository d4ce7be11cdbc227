"""The daemon's budgets over a real mount: memory, descriptors, threads, idle CPU."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.fuse import happened, wait_until
from support.mounts import MlfsMount

from mlfs.tree.scan import scan

MANY = 100_000
CONTENT_BYTES = 100_000
OVERHEAD_BYTES = 200 << 20
STEADY_BYTES = 8 << 20
IDLE_S = 2.0


pytestmark = pytest.mark.usefixtures("own_interpreter")


def resident_bytes(pid: int) -> int:
    """What the process itself has in memory. The RAM tier's memfd is not mapped, so its pages come on top."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10


def counts_of(pid: int) -> tuple[int, int]:
    """Open descriptors and threads."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def many() -> Iterator[Path]:
    """100,000 files in memory, one in a hundred with content. A disk takes ten times as long to make them."""
    with TemporaryDirectory(dir="/dev/shm") as name:
        root = Path(name)
        for directory in range(100):
            (root / f"d{directory:03d}").mkdir()
            fd = os.open(root / f"d{directory:03d}", os.O_RDONLY)
            for index in range(MANY // 100):
                file = os.open(f"f{index:05d}.jpg", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
                if not index % 100:
                    os.truncate(file, CONTENT_BYTES)
                os.close(file)
            os.close(fd)
        yield root


def read_as_predicted(mount: MlfsMount, epochs: range, most: int | None = None) -> None:
    """Read what the job predicts, to the end of these epochs or a number of samples."""
    for epoch in epochs:
        order = (mount.path / f".mlfs/order/train/{epoch}/0").read_text().splitlines()
        for name in order[:most]:
            (mount.path / name).read_bytes()


@pytest.mark.promise("daemon-memory")
def test_memory_stays_in_its_budget_with_100000_files(many: Path) -> None:
    began = time.monotonic()
    with MlfsMount(many, "--ram", "64M", "--staging", "32M") as mount:
        print(f"mounted {MANY} files in {time.monotonic() - began:.2f} s")
        pid = mount.pid
        mount.register(seed=1, epochs=3, batch_size=64, layout="sorted")
        read_as_predicted(mount, range(1), most=2_000)
        for directory in sorted(many.iterdir()):
            os.listdir(mount.path / directory.name)
        status = mount.status()
        in_flight = (16 + 4) * CONTENT_BYTES
        rss = resident_bytes(pid)
        print(f"RSS {rss >> 20} MiB with {MANY} files, RAM tier {status['tiers'][0]['used_bytes'] >> 20} MiB besides")
        assert rss <= in_flight + OVERHEAD_BYTES
        assert status["fetches"]["pfs"]["count"] > 0


@pytest.mark.promise("daemon-memory")
def test_the_manifest_takes_less_than_200_bytes_a_file(many: Path) -> None:
    fd = os.open(many, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = scan(fd)
    finally:
        os.close(fd)
    print(f"{manifest.nbytes / manifest.n_files:.1f} bytes a file")
    assert manifest.n_files == MANY
    assert manifest.nbytes < 200 * MANY


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A small data set."""
    root = tmp_path / "few"
    root.mkdir()
    for index in range(200):
        (root / f"{index:03d}.jpg").write_bytes(os.urandom(20_000 + index))
    return root


@pytest.mark.promise("daemon-memory")
@pytest.mark.parametrize("registered", [True, False], ids=["job", "no job"])
def test_nothing_grows_over_epochs(few: Path, tmp_path: Path, registered: bool) -> None:
    epochs = 13
    names = sorted(os.listdir(few))
    disks = ["--ssd", f"{tmp_path / 'ssd'}:2M", "--lmdb", f"{tmp_path / 'lmdb'}:2M"]
    # A mover, which begins once lanes have computed for a while, has descriptors of its own.
    with MlfsMount(few, "--ram", "1M", "--staging", "1M", "--movers", "0", *disks) as mount:
        pid = mount.pid
        if registered:
            mount.register(seed=1, epochs=epochs, batch_size=8, layout="sorted")
        sizes, descriptors, threads = [], [], []
        for epoch in range(epochs):
            if registered:
                read_as_predicted(mount, range(epoch, epoch + 1))
            else:
                for name in names:
                    (mount.path / name).read_bytes()
            mount.settle()
            sizes.append(resident_bytes(pid))
            descriptors.append(counts_of(pid)[0])
            threads.append(counts_of(pid)[1])
        print([size >> 10 for size in sizes], descriptors, threads)
        assert sizes[12] - sizes[2] <= STEADY_BYTES
        assert max(descriptors[2:]) - min(descriptors[2:]) <= 20  # a source file that is open just now
        assert max(threads) <= 120
        # A thread has a descriptor of its own, and those of a pool start when they are first needed: in any epoch.
        wait_until(lambda: operator.sub(*counts_of(pid)) <= descriptors[2] - threads[2] + 2)


def idles(mount: MlfsMount) -> bool:
    """Whether the daemon uses less than 1 % of a core when nobody asks it for anything."""
    mount.settle()
    pid = mount.pid
    return happened(lambda: idle_share(pid) <= 0.01)


def idle_share(pid: int) -> float:
    """Share of a core that the daemon uses for some seconds."""
    cpu, began = cpu_seconds(pid), time.monotonic()
    time.sleep(IDLE_S)
    return (cpu_seconds(pid) - cpu) / (time.monotonic() - began)


@pytest.mark.promise("idle")
@pytest.mark.wall_clock
def test_an_idle_mount_uses_no_cpu(few: Path) -> None:
    began = time.monotonic()
    with MlfsMount(few, "--staging", "1M") as mount:
        print(f"mlfs mount of a small tree: {time.monotonic() - began:.2f} s")
        assert idles(mount)
        mount.register(seed=1, epochs=2, batch_size=8, layout="sorted")
        read_as_predicted(mount, range(1), most=50)
        assert idles(mount)
        mount.register(seed=1, epochs=2, batch_size=8, layout="sorted")
        read_as_predicted(mount, range(2))
        wait_until(lambda: bool(mount.status()["jobs"][0]["state"] == "finished"))
        assert idles(mount)
