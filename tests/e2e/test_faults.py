"""A source that fails, hangs or goes away: the reader of that file may notice, nobody else does."""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fuse import kill, wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.trees import content, image_folder, make_tree

pytestmark = pytest.mark.page_counts

FILES = image_folder(classes=4, files=40, size=20_000) | {"class00/large.bin": 6_000_001}
ALWAYS = 1_000_000
TIMEOUT = "2s"  # a file that hangs costs twice that; no other may take as long


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("faults") / "backing", FILES)


@pytest.fixture
def slow(backing: Path) -> Iterator[SlowSource]:
    with SlowSource(backing, open_latency="1ms", bandwidth="1G") as source:
        yield source


@pytest.fixture
def mount(slow: SlowSource) -> Iterator[MlfsMount]:
    with MlfsMount(slow.path, "--source-timeout", TIMEOUT) as mounted:
        yield mounted


def read(root: Path, name: str) -> int | bytes:
    """The bytes, or the error number."""
    try:
        return (root / name).read_bytes()
    except OSError as error:
        return error.errno or -1


def wrong(root: Path, but: tuple[str, ...] = ()) -> list[str]:
    """The files that do not read as they should. They are read in no order by which mlfs would fetch any ahead."""
    names = random.Random(3).sample(list(FILES), len(FILES))
    return [name for name in names if name not in but and read(root, name) != content(name, FILES[name])]


@pytest.mark.promise("fail-ahead")
def test_errors_of_a_prefetch_are_no_readers_business(slow: SlowSource, mount: MlfsMount) -> None:
    broken = list(FILES)[3:9]
    for name in broken:
        slow.control(fail={"path": name, "errno": errno.EIO, "times": 1})
    mount.register(seed=0, epochs=2, layout="sorted")
    wait_until(lambda: mount.status()["errors"].get("prefetch_failed", 0) == len(broken))
    assert wrong(mount.path) == []
    assert slow.counts()["failed"] == len(broken)
    assert "source_retried" not in mount.status()["errors"]


def test_a_call_that_the_source_does_not_know_ends_it_for_no_other_file(slow: SlowSource, mount: MlfsMount) -> None:
    """The kernel would remember ENOSYS for the whole mount, and send no further open."""
    first, second = "class01/img_00003.jpg", "class00/large.bin"
    slow.control(fail={"path": first, "errno": errno.ENOSYS, "times": ALWAYS, "op": "read"})
    slow.control(fail={"path": second, "errno": errno.ENOSYS, "times": ALWAYS, "op": "read"})
    for name in (first, second):
        assert read(mount.path, name) == errno.EOPNOTSUPP
    before = mount.status()["requests"]["open"]
    assert wrong(mount.path, but=(first, second)) == []
    assert mount.status()["requests"]["open"] >= before + len(FILES) - 2


@pytest.mark.promise("fail-retry")
def test_errors_of_demand_reads_are_tried_once_more(slow: SlowSource, mount: MlfsMount) -> None:
    once, at_read, always, large = (
        "class00/img_00001.jpg",
        "class01/img_00001.jpg",
        "class02/img_00001.jpg",
        "class00/large.bin",
    )
    slow.control(fail={"path": once, "errno": errno.EIO, "times": 1})
    slow.control(fail={"path": at_read, "errno": errno.ETIMEDOUT, "times": 1, "op": "read"})
    slow.control(fail={"path": large, "errno": errno.EIO, "times": 1, "op": "read"})
    slow.control(fail={"path": always, "errno": errno.EIO, "times": ALWAYS})
    assert wrong(mount.path, but=(always,)) == []
    for _ in range(2):
        assert read(mount.path, always) == errno.EIO
    assert mount.status()["errors"]["source_retried"] == 5
    assert os.stat(mount.path / always).st_size == FILES[always]


def checksums(root: Path, workers: int) -> dict[str, int]:
    """All files through a DataLoader, in its order: CRC, or minus the error number."""
    from torch.utils.data import DataLoader, Dataset

    names = sorted(FILES)

    class Files(Dataset[int]):
        def __len__(self) -> int:
            return len(names)

        def __getitem__(self, index: int) -> int:
            found = read(root, names[index])
            return -found if isinstance(found, int) else zlib.crc32(found)

    loader: Any = DataLoader(Files(), batch_size=8, num_workers=workers)
    return dict(zip(names, (int(x) for batch in loader for x in batch), strict=True))


@pytest.mark.promise("hang-timeout", "hang-others")
@pytest.mark.wall_clock
def test_a_file_that_hangs_holds_up_nobody_else(slow: SlowSource, mount: MlfsMount) -> None:
    hanging = ("class01/img_00007.jpg", "class02/img_00009.jpg")
    for name in hanging:
        slow.control(hang={"path": name})
    mount.register(sampler="sequential", epochs=2, batch_size=8, layout="sorted")
    expected = {name: zlib.crc32(content(name, size)) for name, size in FILES.items()}
    seen = checksums(mount.path, workers=3)
    assert seen == expected | {name: -errno.ETIMEDOUT for name in hanging}
    # All but the two were fetched once, also those behind them in the order: prefetching goes on. The large one is
    # opened once more where the reader came first: it is read by ranges then, and staged for nobody.
    opens = slow.counts()["by_path"]
    assert {name for name in FILES if opens.get(name) != 1} - {"class00/large.bin"} == set(hanging)
    assert mount.status()["state"] == "serving"
    slow.control(release={"path": "*"})
    wait_until(lambda: wrong(mount.path) == [])


@pytest.mark.promise("hang-others")
@pytest.mark.wall_clock
def test_prefetching_goes_on_behind_files_that_hang(tmp_path: Path) -> None:
    """On a source so fast that few lanes read it, many samples at a time."""
    files = image_folder(classes=4, files=150, size=3000)
    names = sorted(files)
    hanging = names[300:301]
    backing = make_tree(tmp_path / "backing", files)
    # Room for all of it, also where the machine takes pages back and the window is halved.
    flags = ("--source-timeout", TIMEOUT, "--ram", "0", "--staging", "8M")
    with SlowSource(backing, open_latency="0ms", bandwidth="0") as slow, MlfsMount(slow.path, *flags) as mount:
        for name in hanging:
            slow.control(hang={"path": name})
        mount.register(sampler="sequential", epochs=1, batch_size=8, layout="sorted")
        wait_until(lambda: ahead(mount) >= 200)
        for name in names[:302]:
            assert read(mount.path, name) == (errno.ETIMEDOUT if name in hanging else content(name, files[name]))
        wait_until(lambda: ahead(mount) >= 100)
        hits, lost = hits_and_lost(mount)
        for name in names[302:402]:
            assert read(mount.path, name) == content(name, files[name])
        hits, lost = hits_and_lost(mount)[0] - hits, hits_and_lost(mount)[1] - lost
        assert hits + lost >= 95
        slow.control(release={"path": "*"})
        daemon_files = Path(f"/proc/{mount.pid}/fd")
        wait_until(lambda: not [fd for fd in daemon_files.iterdir() if "img_" in _target(fd)])


def hits_and_lost(mount: MlfsMount) -> tuple[int, int]:
    """Reads from the page cache, and samples whose staged pages the kernel took back."""
    return mount.status()["reads"]["all"]["page_cache"]["reads"], mount.taken_back()


def ahead(mount: MlfsMount) -> int:
    """Samples that lie ready for the job's only rank, from its next one on."""
    samples: int = mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"]
    return samples


def _target(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except OSError:
        return ""


@pytest.mark.promise("hang-unmount")
@pytest.mark.wall_clock
def test_unmount_while_a_file_hangs(slow: SlowSource) -> None:
    name = "class01/img_00007.jpg"
    with MlfsMount(slow.path, "--source-timeout", TIMEOUT) as mount:
        slow.control(hang={"path": name})
        assert read(mount.path, name) == errno.ETIMEDOUT
        assert read(mount.path, "class00/img_00000.jpg") == content(
            "class00/img_00000.jpg", FILES["class00/img_00000.jpg"]
        )
        mount.unmount()
        slow.control(release={"path": name})


@pytest.mark.promise("gone-kept")
def test_a_source_that_goes_away_leaves_what_was_fetched(slow: SlowSource, mount: MlfsMount) -> None:
    mount.register(seed=0, epochs=2, root="class01", layout="sorted")
    mine = [name for name in FILES if name.startswith("class01/")]
    wait_until(lambda: mount.status()["fetches"].get("pfs", {"count": 0})["count"] >= len(mine))
    demanded = "class02/img_00000.jpg"
    assert read(mount.path, demanded) == content(demanded, FILES[demanded])
    wait_until(lambda: mount.status()["tiers"][0]["samples"] == len(mine) + 1)  # kept a moment later
    kill(slow.pid)
    wait_until(lambda: isinstance(read(mount.path, "class03/img_00000.jpg"), int))
    for name in [*mine, demanded]:
        assert read(mount.path, name) == content(name, FILES[name])
    Path("/proc/sys/vm/drop_caches").write_text("1")  # what the RAM class holds is not the kernel's to take
    for name in mine:
        assert read(mount.path, name) == content(name, FILES[name])
    assert read(mount.path, "class00/large.bin") in (errno.ENOTCONN, errno.ECONNABORTED)
    assert mount.status()["state"] == "serving"
    assert mount.run("status", str(mount.path)).returncode == 0
    mount.unmount()


def direct(path: Path) -> bytes:
    """Past the page cache, in aligned blocks as O_DIRECT wants them."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        found, block = b"", mmap.mmap(-1, 256 << 10)
        while count := os.preadv(fd, [block], len(found)):
            found += block[:count]
        return found
    finally:
        os.close(fd)


def mapped(path: Path) -> bytes:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return view[:]


@pytest.mark.promise("pages")
def test_every_kind_of_reader_while_prefetching_and_while_the_kernel_takes_pages_back(slow: SlowSource) -> None:
    slow.control(bandwidth_bytes_s=30e6)
    flags = ("--ram", "1M", "--staging", "4M")  # too small for all: samples come and go
    with MlfsMount(slow.path, *flags) as mount:
        mount.register(seed=3, epochs=4, batch_size=8, layout="sorted")
        failed: list[str] = []

        def go(how: Callable[[Path], bytes], step: int) -> None:
            names = list(FILES)[::step]
            for name in names:
                try:
                    if how(mount.path / name) != content(name, FILES[name]):
                        failed.append(name)
                except OSError as error:
                    failed.append(f"{name}: {error}")

        threads = [
            threading.Thread(target=go, args=(how, step))
            for how, step in ((direct, 1), (mapped, 1), (Path.read_bytes, 1), (direct, -1), (mapped, -1))
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            Path("/proc/sys/vm/drop_caches").write_text("1")
            time.sleep(0.2)
        assert failed == []
        assert mount.status()["state"] == "serving"
