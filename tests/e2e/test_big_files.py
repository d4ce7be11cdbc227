"""Large files are kept by blocks: read once from the source, whoever reads them and however."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from support.drawn import cases
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

from mlfs.job import parse_job
from mlfs.orders.order import build_order

MIB = 1 << 20
SIZES = {
    "a/three.bin": 3 * MIB + 17,
    "a/five.bin": 5 * MIB + 4097,
    "b/twenty.bin": 20 * MIB,
    "b/seventy.bin": 70 * MIB + 1,
}


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("big")
    for name, size in SIZES.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.Random(name).randbytes(size))
    return root


def cat(mount: MlfsMount, names: list[str], backing: Path) -> None:
    """Read files front to back in another process, and compare them."""
    for name in names:
        subprocess.run(["cmp", str(mount.path / name), str(backing / name)], check=True)


def forget(mount: MlfsMount, names: Iterable[str] = tuple(SIZES)) -> None:
    """The kernel gives all pages of the files up."""
    for name in names:
        fd = os.open(mount.path / name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def test_files_are_read_once_from_the_source_whatever_their_size(backing: Path, tmp_path: Path) -> None:
    total, names = sum(SIZES.values()), sorted(SIZES)
    (tmp_path / "mnt").mkdir()
    with SlowSource(backing, bandwidth="400M") as slow:
        flags = ["--ram", "32MiB", "--ssd", f"{tmp_path / 'ssd'}:200MiB"]
        with MlfsMount(slow.path, *flags, state=tmp_path / "state", mountpoint=tmp_path / "mnt") as mount:
            slow.control(reset_counts=True)
            cat(mount, names, backing)
            mount.settle()
            counts = slow.counts()
            print(counts["bytes"] / total, counts["by_path"])
            assert counts["bytes"] <= 1.02 * total
            assert set(counts["by_path"].values()) == {1}
            slow.control(reset_counts=True)
            forget(mount)
            cat(mount, names, backing)
            assert (slow.counts()["bytes"], slow.counts()["opens"]) == (0, 0)
            status = mount.status()
            handed_out = sum(tally["bytes"] for tally in status["reads"]["all"].values())
            assert total <= handed_out <= 2.1 * total
        slow.control(reset_counts=True)
        with MlfsMount(slow.path, *flags, state=tmp_path / "state", mountpoint=tmp_path / "mnt") as mount:
            mount.settle()
            cat(mount, names, backing)
            # What lay in RAM is gone.
            assert slow.counts()["bytes"] <= 33 * MIB


def test_the_source_opens_no_file_that_an_earlier_mount_has_kept_and_gives_no_range_again(
    backing: Path, tmp_path: Path
) -> None:
    (tmp_path / "mnt").mkdir()
    flags = ["--ram", "0", "--ssd", f"{tmp_path / 'ssd'}:200MiB"]
    (*names, by_ranges) = sorted(SIZES, key=lambda name: SIZES[name])
    content = (backing / by_ranges).read_bytes()
    with SlowSource(backing, bandwidth="400M") as slow:
        for is_second in (False, True):
            slow.control(reset_counts=True)
            with MlfsMount(slow.path, *flags, state=tmp_path / "state", mountpoint=tmp_path / "mnt") as mount:
                mount.settle()
                pid = mount.pid
                cat(mount, names, backing)
                fd = os.open(mount.path / by_ranges, os.O_RDONLY)
                for begin in range(1000, len(content), 3 * MIB):
                    assert os.pread(fd, 2000, begin) == content[begin : begin + 2000]
                os.close(fd)
                mount.settle()
                if is_second:
                    # It is opened, and its last byte read: that tells whether the source has what the ranges are of.
                    assert (slow.counts()["bytes"], slow.counts()["by_path"]) == (1, {by_ranges: 1})
                else:
                    subprocess.run(["umount", mount.path], check=True)
                    with suppress(ProcessLookupError):  # no signal cuts short what is written at the end
                        while True:
                            os.kill(pid, signal.SIGTERM)


def test_copies_of_what_was_removed_or_cut_while_nothing_was_mounted_go(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "mnt").mkdir()
    sizes = {"cut": 12 * MIB, "gone": 8 * MIB, "small": 100_000, "stays": 6 * MIB}
    for name, size in sizes.items():
        (tmp_path / "source" / name).write_bytes(random.Random(name).randbytes(size))
    flags = ["--ram", "0", "--ssd", f"{tmp_path / 'ssd'}:60MiB"]
    for is_second in (False, True):
        if is_second:
            (tmp_path / "source" / "gone").unlink()
            (tmp_path / "source" / "small").unlink()
            os.truncate(tmp_path / "source" / "cut", 5 * MIB)
        with MlfsMount(
            tmp_path / "source", *flags, state=tmp_path / "state", mountpoint=tmp_path / "mnt"
        ) as mount:  # fmt: skip
            mount.settle()
            now = sorted(path.name for path in (tmp_path / "source").iterdir())
            if is_second:
                # What is left of the file that was cut is of another version.
                wait_until(lambda: 11 * MIB <= mount.status()["tiers"][-1]["used_bytes"] <= 11 * MIB + 13 * 4096)
            cat(mount, now, tmp_path / "source")
            mount.settle()
            total = sum((tmp_path / "source" / name).stat().st_size for name in now)
            assert total <= mount.status()["tiers"][-1]["used_bytes"] <= total + 40 * 4096


@pytest.mark.parametrize("staging", ["128MiB", "16MiB"])
def test_a_registered_jobs_files_are_brought_ahead_of_it_once(backing: Path, tmp_path: Path, staging: str) -> None:
    """What the window cannot hold is brought for the places alone."""
    total = sum(SIZES.values())
    (tmp_path / "mnt").mkdir()
    with (
        SlowSource(backing, bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "150MiB", "--staging", staging, mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        mount.register(name="train", sampler="sequential", epochs=2, batch_size=1, layout="sorted")
        wait_until(lambda: mount.status()["tiers"][0]["used_bytes"] >= total - SIZES["a/three.bin"])
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] == len(SIZES))
        for _ in range(2):
            cat(mount, sorted(SIZES), backing)
            forget(mount)
        assert slow.counts()["bytes"] <= 1.02 * total


def test_many_files_read_one_after_the_other_are_read_once_and_kept_once(tmp_path: Path) -> None:
    """They are large, and who reads them is seen to go from each to the next."""
    names, size = [f"{number:02}.bin" for number in range(24)], 4 * MIB + 5
    (tmp_path / "source").mkdir()
    (tmp_path / "mnt").mkdir()
    for name in names:
        (tmp_path / "source" / name).write_bytes(random.Random(name).randbytes(size))
    with (
        SlowSource(tmp_path / "source", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "300MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        for _ in range(3):
            cat(mount, names, tmp_path / "source")
            mount.settle()
            forget(mount, names)
        assert slow.counts()["bytes"] <= 1.05 * len(names) * size
        assert mount.status()["tiers"][0]["used_bytes"] <= 1.05 * len(names) * size


@pytest.mark.page_counts
def test_rows_of_a_kept_file_take_fewer_requests_than_there_are_rows(tmp_path: Path) -> None:
    """Each row is read once, in random order. Ten of them lie in a block: two take a request, and some the time until
    the block is near."""
    row_bytes, size, draw = 100_000, 40 * MIB, random.Random(6)
    content = draw.randbytes(size)
    (tmp_path / "source").mkdir()
    (tmp_path / "source/rows").write_bytes(content)
    (tmp_path / "mnt").mkdir()
    with MlfsMount(tmp_path / "source", "--ram", "100M", mountpoint=tmp_path / "mnt") as mount:
        cat(mount, ["rows"], tmp_path / "source")
        mount.settle()
        forget(mount, ["rows"])
        offsets = [at * row_bytes for at in range(size // row_bytes)]
        draw.shuffle(offsets)
        before = mount.status()["requests"]["read"]
        fd = os.open(mount.path / "rows", os.O_RDONLY)
        for offset in offsets:
            assert os.pread(fd, row_bytes, offset) == content[offset : offset + row_bytes]
        os.close(fd)
        assert mount.status()["requests"]["read"] - before <= 6 * size // MIB


@pytest.mark.promise("change-renamed")
def test_a_handle_of_a_file_that_was_kept_reads_it_though_another_one_takes_its_name(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "mnt").mkdir()
    old, new = (random.Random(seed).randbytes(6 * MIB) for seed in range(2))
    (tmp_path / "source" / "file").write_bytes(old)
    with MlfsMount(tmp_path / "source", "--ram", "20MiB", mountpoint=tmp_path / "mnt") as mount:
        cat(mount, ["file"], tmp_path / "source")
        mount.settle()
        fd = os.open(mount.path / "file", os.O_RDONLY)
        (tmp_path / "source" / "file.new").write_bytes(new)
        (tmp_path / "source" / "file.new").rename(tmp_path / "source" / "file")
        mount.run("refresh", str(mount.path))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, 6 * MIB, 0) == old
        os.close(fd)
        assert (mount.path / "file").read_bytes() == new


@pytest.mark.promise("change-renamed")
def test_the_same_holds_of_a_file_that_an_earlier_mount_has_kept(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "mnt").mkdir()
    old, new = (random.Random(seed).randbytes(6 * MIB) for seed in range(2))
    (tmp_path / "source" / "file").write_bytes(old)
    flags = ["--ssd", f"{tmp_path / 'ssd'}:20MiB"]
    for is_second in (False, True):
        with MlfsMount(
            tmp_path / "source", *flags, state=tmp_path / "state", mountpoint=tmp_path / "mnt"
        ) as mount:  # fmt: skip
            mount.settle()
            fd = os.open(mount.path / "file", os.O_RDONLY)
            if is_second:
                assert mount.status()["fetches"]["pfs"]["bytes"] == 0
                (tmp_path / "source" / "file.new").write_bytes(new)
                (tmp_path / "source" / "file.new").rename(tmp_path / "source" / "file")
                mount.run("refresh", str(mount.path))
            assert os.pread(fd, 6 * MIB, 0) == old
            os.close(fd)
            mount.settle()


def test_staged_pages_of_a_large_file_that_are_taken_back_come_from_this_nodes_places(
    backing: Path, tmp_path: Path
) -> None:
    """Some are staged again, as the job will read them; and a READ comes before that maybe."""
    (tmp_path / "mnt").mkdir()
    names = sorted(SIZES)
    with (
        SlowSource(backing, bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "150MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        mount.register(name="train", sampler="sequential", epochs=2, batch_size=1, layout="sorted")
        wait_until(lambda: mount.status()["tiers"][0]["used_bytes"] >= sum(SIZES.values()))
        mount.settle()
        slow.control(reset_counts=True)
        for again in range(2):
            for name in names:
                fd = os.open(mount.path / name, os.O_RDONLY)
                begun = os.pread(fd, 100_000, 0)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                content = begun + os.pread(fd, SIZES[name], len(begun))
                assert content == (backing / name).read_bytes(), (name, again)
                os.close(fd)
        mount.settle()
        assert slow.counts()["bytes"] == 0
        status = mount.status()
        assert status["jobs"][0]["agreement"] == 1.0
        handed_out = sum(tally["bytes"] for tally in status["reads"]["all"].values())
        assert 2 * sum(SIZES.values()) <= handed_out <= 2.2 * sum(SIZES.values())


def test_files_of_a_registered_job_may_change(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "mnt").mkdir()
    names = [f"f{number}" for number in range(4)]

    def put(name: str, size: int) -> None:
        (tmp_path / "source" / "new").write_bytes(random.Random(size).randbytes(size))
        (tmp_path / "source" / "new").rename(tmp_path / "source" / name)

    for name in names:
        put(name, 6 * MIB)
    with MlfsMount(tmp_path / "source", "--ram", "60MiB", mountpoint=tmp_path / "mnt") as mount:
        mount.register(name="train", sampler="sequential", epochs=3, batch_size=1, layout="sorted")
        for sizes in ((), (5 * MIB, 9 * MIB + 1), (3 * MIB, 6 * MIB)):
            for name, size in zip(names, sizes, strict=False):
                put(name, size)
            mount.run("refresh", str(mount.path))
            cat(mount, names, tmp_path / "source")
            forget(mount, names)
        assert not mount.status()["errors"].get("scheduler_fault")


@pytest.mark.parametrize("sizes", [{"old": 6 * MIB, "grows": 40 * MIB + 5, "small": MIB}, {"grows": 1, "small": 2}])
def test_what_comes_with_a_refresh_and_what_a_file_grows_by_is_kept_in_blocks(
    sizes: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "backing").mkdir()
    (tmp_path / "mnt").mkdir()

    def put(name: str, size: int) -> None:
        (tmp_path / "backing" / "new.part").write_bytes(random.Random(f"{name}{size}").randbytes(size))
        (tmp_path / "backing" / "new.part").rename(tmp_path / "backing" / name)

    for name, size in sizes.items():
        put(name, size)
    with (
        SlowSource(tmp_path / "backing", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "150MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        mount.register(name="train", sampler="sequential", epochs=1, batch_size=1, layout="sorted")
        cat(mount, sorted(sizes), tmp_path / "backing")
        now = {"came": 9 * MIB + 1, "grows": 47 * MIB, "small": 5 * MIB}
        for name, size in now.items():
            put(name, size)
        mount.run("refresh", str(mount.path))
        slow.control(reset_counts=True)
        for _ in range(2):
            cat(mount, sorted(now), tmp_path / "backing")
            mount.settle()
            assert slow.counts()["bytes"] <= 1.01 * sum(now.values())
            forget(mount, now)


@pytest.mark.parametrize("size", [100_000, 12 * MIB])
def test_a_full_place_takes_new_copies_once_files_have_changed(tmp_path: Path, size: int) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "mnt").mkdir()
    names = [f"f{number}" for number in range(12 * MIB // size)]

    def change(seed: int) -> None:
        for name in names:
            (tmp_path / "source" / "new").write_bytes(random.Random(f"{name}{seed}").randbytes(size))
            (tmp_path / "source" / "new").rename(tmp_path / "source" / name)

    change(0)
    with MlfsMount(tmp_path / "source", "--ram", "10MiB", mountpoint=tmp_path / "mnt") as mount:
        for seed in range(1, 4):
            mount.run("refresh", str(mount.path))
            for name in names:
                assert (mount.path / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
            mount.settle()
            assert 9 * MIB < mount.status()["tiers"][0]["used_bytes"] <= 10 * MIB
            change(seed)


@pytest.mark.parametrize("reads", ["windows", "rows"])
def test_small_ranges_cost_the_source_what_was_asked_for_and_no_byte_twice(
    backing: Path, tmp_path: Path, reads: str
) -> None:
    name, draw = "b/seventy.bin", random.Random(3)
    content, size = (backing / name).read_bytes(), 100_000
    begins = (
        list(range(0, len(content), size)) if reads == "rows" else [draw.randrange(len(content)) for _ in range(60)]
    )
    draw.shuffle(begins)
    (tmp_path / "mnt").mkdir()
    with (
        SlowSource(backing, bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        fd = os.open(mount.path / name, os.O_RDONLY)
        for begin in begins:
            assert os.pread(fd, size, begin) == content[begin : begin + size]
        os.close(fd)
        counts = slow.counts()
        assert counts["opens"] == 1
        assert counts["bytes"] <= (1.6 * len(content) if reads == "rows" else 2 * len(begins) * (size + 2 * 4096))


@pytest.mark.parametrize("seed", range(cases(2)))
def test_ranges_read_by_many_at_once_are_of_one_content_also_while_files_change(seed: int, tmp_path: Path) -> None:
    """Sizes, ranges, readers and changes are drawn; each handle delivers one version of its file, or ESTALE."""
    draw = random.Random(seed)
    source, names = tmp_path / "source", [f"f{number}" for number in range(4)]
    source.mkdir()
    (tmp_path / "mnt").mkdir()
    versions: dict[str, list[bytes]] = {name: [] for name in names}

    def change(name: str) -> None:
        """Another content of a drawn size is put in place of the old one."""
        size = draw.choice([4 * MIB + 1, 5 * MIB, 6 * MIB - 1, draw.randrange(3 * MIB, 12 * MIB)])
        content = random.Random(f"{name}{len(versions[name])}").randbytes(size)
        versions[name].append(content)  # before anybody can read it
        (source / f"{name}.new").write_bytes(content)
        (source / f"{name}.new").rename(source / name)

    def read(seed: int, faults: list[str]) -> None:
        of_reader = random.Random(seed)
        for _ in range(25):
            name, may_be = of_reader.choice(names), None
            try:
                fd = os.open(tmp_path / "mnt" / name, os.O_RDONLY)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    faults.append(f"{name}: {error}")
                continue
            at, in_order = of_reader.randrange(12 * MIB), of_reader.random() < 0.5
            try:
                for _ in range(of_reader.randrange(1, 12)):
                    size = of_reader.choice([1, 4096, 100_000, 2 * MIB])
                    data = os.pread(fd, size, at)
                    now = {number for number, content in enumerate(versions[name]) if content[at : at + size] == data}
                    may_be = now if may_be is None else may_be & now
                    if not may_be:
                        faults.append(f"{name} {at}+{size}: of no content that the handle may have")
                    at = at + size if in_order else of_reader.randrange(12 * MIB)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    faults.append(f"{name} {at}: {error}")
            finally:
                os.close(fd)

    for name in names:
        change(name)
    changes = draw.random() < 0.8
    flags = ["--ram", draw.choice(["0", "3MiB", "100MiB"]), "--ssd", f"{tmp_path / 'ssd'}:{draw.choice([5, 80])}MiB"]
    with MlfsMount(source, *flags, mountpoint=tmp_path / "mnt") as mount:
        faults: list[str] = []
        if draw.random() < 0.6:  # then lanes stage the files whole, also while they change
            mount.register(name="train", seed=seed, epochs=50, batch_size=1, layout="sorted")
        readers = [threading.Thread(target=read, args=(seed * 100 + number, faults)) for number in range(4)]
        for reader in readers:
            reader.start()
        while changes and any(reader.is_alive() for reader in readers):
            change(draw.choice(names))
            readers[draw.randrange(4)].join(draw.random() / 5)
        for reader in readers:
            reader.join()
        assert not faults
        mount.settle()
        if not changes:
            forget(mount, names)
            cat(mount, names, source)


# A process reads these files, each from front to back, and prints a digest of each.
WORKER = """
import hashlib, sys
for path in sys.argv[1:]:
    digest = hashlib.blake2b()
    with open(path, "rb", buffering=0) as file:
        while portion := file.read(100_000):
            digest.update(portion)
    print(digest.hexdigest(), flush=True)
"""


@pytest.mark.page_counts  # without a place to keep them, blocks whose pages the machine takes back are read once more
@pytest.mark.parametrize(("window", "ram"), [(256, "200MiB"), (24, "0"), (6, "0"), (12, "200MiB")])
def test_registered_shards_are_read_once_by_many_workers_at_any_window_size(
    tmp_path: Path, window: int, ram: str
) -> None:
    """Each worker reads shards of its own, as webdataset's do: the source gives each byte once in the first epoch."""
    source, epochs, workers = tmp_path / "source", 2, 2
    source.mkdir()
    (tmp_path / "mnt").mkdir()
    names = [f"shard-{number:03}.tar" for number in range(5)]
    contents = [random.Random(name).randbytes(9 * MIB + 4097 * number) for number, name in enumerate(names)]
    for name, content in zip(names, contents, strict=True):
        (source / name).write_bytes(content)
    total, window = sum(map(len, contents)), window * MIB
    fields = {"preset": "webdataset", "pattern": "shard-{000..004}.tar", "seed": 5, "epochs": epochs}
    order = build_order(parse_job(fields | {"num_workers": workers}), len(names))
    with (
        SlowSource(source, bandwidth="200M") as slow,
        MlfsMount(slow.path, "--ram", ram, "--staging", str(window), mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        mount.register(**fields, num_workers=workers)
        for epoch in range(epochs):
            stream = order.rank_stream(epoch, 0).tolist()
            parts = [stream[worker::workers] for worker in range(workers)]
            commands = [
                [sys.executable, "-c", WORKER, *(str(mount.path / names[shard]) for shard in of)] for of in parts
            ]
            running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
            for part, process in zip(parts, running, strict=True):
                digests = [hashlib.blake2b(contents[shard]).hexdigest() for shard in part]
                assert process.communicate()[0].split() == digests
                assert process.returncode == 0
            mount.settle()
            by_epoch = mount.status()["jobs"][0]["pfs_bytes_by_epoch"]
            assert sum(by_epoch.values()) == pytest.approx(slow.counts()["bytes"], rel=0.02), by_epoch
            # Without a place to keep it the second epoch reads it again, and its beginning is staged in the first.
            assert total <= slow.counts()["bytes"] <= (1.02 + (ram == "0") * (epoch or window / total)) * total
        wait_until(lambda: mount.status()["jobs"][0]["state"] == "finished")
        assert mount.status()["jobs"][0]["agreement"] == 1.0
        assert set(slow.counts()["by_path"].values()) == {1}


# Whenever it comes to a file, it opens the next four and asks the kernel to read them ahead, and maps it: as litdata.
WORKER_AHEAD = """
import hashlib, mmap, os, sys
for at, path in enumerate(sys.argv[1:], 1):
    for ahead in sys.argv[at : at + 4]:
        fd = os.open(ahead, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        os.close(fd)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        print(hashlib.blake2b(content).hexdigest(), flush=True)
"""


@pytest.mark.page_counts
def test_chunks_of_litdata_that_are_opened_again_and_again_are_followed(tmp_path: Path) -> None:
    source, workers, chunks = tmp_path / "source", 2, 24
    source.mkdir()
    (tmp_path / "mnt").mkdir()
    names = [f"chunk-0-{number}.bin" for number in range(chunks)]
    contents = [random.Random(name).randbytes(4 * MIB + 4097 * (number + 1)) for number, name in enumerate(names)]
    for name, content in zip(names, contents, strict=True):
        (source / name).write_bytes(content)
    listed = [{"filename": name, "chunk_size": 10 + number % 3} for number, name in enumerate(names)]
    (source / "index.json").write_text(json.dumps({"chunks": listed}))
    with (
        SlowSource(source, bandwidth="200M") as slow,
        MlfsMount(slow.path, "--ram", "300MiB", "--staging", "64MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        mount.register(preset="litdata", group_batch=4, epochs=1, num_workers=workers)
        slow.control(reset_counts=True)
        paths = (mount.path / ".mlfs/order/train/0/0").read_text().splitlines()
        parts = [paths[worker::workers] for worker in range(workers)]
        commands = [[sys.executable, "-c", WORKER_AHEAD, *(str(mount.path / path) for path in of)] for of in parts]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        for part, process in zip(parts, running, strict=True):
            digests = [hashlib.blake2b(contents[names.index(path)]).hexdigest() for path in part]
            assert process.communicate()[0].split() == digests
        mount.settle()
        assert mount.status()["jobs"][0]["agreement"] > 0.9
        assert slow.counts()["bytes"] <= 1.02 * sum(map(len, contents))
