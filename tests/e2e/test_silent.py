"""The silent channel: staged files are read without a request, and all that is promised of reads holds all the same."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.training import train
from support.trees import content, image_folder, make_tree

SILENT = ("--channel", "silent")
FILES, SIZE = 60, 110_000
LARGE = "large.bin"
READ = """
import os, sys
for path in sys.argv[1:]:
    file = os.open(path, os.O_RDONLY)
    while os.read(file, 1 << 20):
        pass
    os.close(file)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files: dict[str, Any] = {**image_folder(classes=3, files=FILES, size=SIZE), LARGE: 9_000_001}
    tree = {name: content(name, size) for name, size in files.items()}
    return make_tree(tmp_path_factory.mktemp("silent") / "source", tree)


@pytest.fixture(scope="module")
def slow(source: Path) -> Iterator[SlowSource]:
    with SlowSource(source, open_latency="1ms", bandwidth="1G") as slow:
        yield slow


@pytest.fixture(scope="module")
def mount(slow: SlowSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlfsMount]:
    with MlfsMount(slow.path, "--channel", "auto", mountpoint=tmp_path_factory.mktemp("view")) as mounted:
        assert mounted.status()["channel"]["name"] == "silent"
        yield mounted


def read(*paths: Path) -> None:
    """Read files in a process of its own."""
    subprocess.run([sys.executable, "-c", READ, *map(str, paths)], check=True)


def requests_of(mount: MlfsMount, *paths: Path) -> dict[str, int]:
    """The requests that it takes to ask for the status, and to read these files before that is asked again."""
    before = mount.status()["requests"]
    if paths:
        read(*paths)
    now = mount.status()["requests"]
    return {kind: count - before[kind] for kind, count in now.items()}


@pytest.mark.promise("view-silent")
def test_a_staged_read_takes_no_request_and_is_counted(slow: SlowSource, tmp_path: Path) -> None:
    """But for pages that the kernel has taken back: DAMON takes single ones within a second."""
    slow.control(reset_counts=True)
    with MlfsMount(slow.path, *SILENT, mountpoint=tmp_path) as mount:
        assert mount.status()["channel"]["name"] == "silent"
        paths = sorted(mount.path.glob("class*/*.jpg"))
        read(*paths)  # some of them are fetched ahead, as neighbours of what was read
        mount.settle()
        first = mount.status()
        assert slow.counts()["opens"] == first["fetches"]["pfs"]["count"] == len(paths)
        assert first["reads"]["all"]["pfs"]["reads"] + first["reads"]["all"]["page_cache"]["reads"] == len(paths)
        assert first["requests"]["read"] >= first["reads"]["all"]["pfs"]["reads"] > 0
        with_reads, without = requests_of(mount, *paths), requests_of(mount)
        now = mount.status()
    reads = {route: one["reads"] - first["reads"]["all"][route]["reads"] for route, one in now["reads"]["all"].items()}
    taken_back = now["errors"].get("pages_taken_back", 0) - first["errors"].get("pages_taken_back", 0)
    assert reads == dict.fromkeys(reads, 0) | {"page_cache": len(paths) - reads["ram"], "ram": reads["ram"]}
    assert reads["ram"] <= taken_back <= len(paths) / 10
    # The kernel asks for the status itself in one READ or some, by its length.
    assert with_reads.pop("read") < without.pop("read") + 10 + taken_back
    assert with_reads == without
    assert now["opens"] == 2 * len(paths)
    assert slow.counts()["opens"] == len(paths)


@pytest.mark.promise("change-silent")
def test_who_is_the_first_to_notice_a_change_gets_estale_and_opens_the_new_content(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {"small": b"old" * 9000, "large": content("old", 5_000_001), "gone": 5000})
    (tmp_path / "view").mkdir()
    with MlfsMount(source, *SILENT, "--ram", "0", mountpoint=tmp_path / "view") as mount:
        for name in ("small", "large", "gone"):
            os.stat(mount.path / name)
        for name in ("small", "large"):
            new = content(f"new {name}", os.stat(source / name).st_size + 77)
            (source / "incoming").write_bytes(new)
            (source / "incoming").rename(source / name)
            with open(mount.path / name, "rb", buffering=0) as file, pytest.raises(OSError, match="Stale file handle"):
                file.read()
            assert (mount.path / name).read_bytes() == new
        (source / "gone").unlink()
        with pytest.raises(FileNotFoundError):
            (mount.path / "gone").read_bytes()


@pytest.mark.promise("change-whole", "change-inode")
def test_no_open_file_gives_parts_of_two_contents(tmp_path: Path) -> None:
    """Each content has a size of its own, which an open file shows. What it cannot have of that is ESTALE."""
    sizes = {"small": 40_000, "large": 5 << 20}
    source = make_tree(tmp_path / "source", sizes)
    (tmp_path / "view").mkdir()
    with MlfsMount(source, *SILENT, "--ram", "0", mountpoint=tmp_path / "view") as mount:
        for seed, (name, size) in enumerate(sizes.items()):
            with contextlib.ExitStack() as opened:
                _replace_and_read(mount, name, size, random.Random(seed), opened)


def _replace_and_read(
    mount: MlfsMount, name: str, first: int, draw: random.Random, opened: contextlib.ExitStack
) -> None:
    contents, newest = {first: content(name, first)}, first
    files: list[IO[bytes]] = []
    given = 0
    for step in range(80):
        do = draw.choice(("replace", "open", "read", "read", "read", "drop")) if files else "open"
        if do == "replace":
            newest = first + draw.randrange(1000) * 100 + step + 1
            contents[newest] = content(f"{name} {step}", newest)
            (mount.source / "incoming").write_bytes(contents[newest])
            (mount.source / "incoming").rename(mount.source / name)
        elif do == "open":
            files.append(os.fdopen(os.open(mount.path / name, os.O_RDONLY), "rb", buffering=0))
            opened.enter_context(files[-1])
        elif do == "drop":
            os.posix_fadvise(draw.choice(files).fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            fd = draw.choice(files).fileno()
            size = os.fstat(fd).st_size
            offset, length = draw.randrange(size), draw.choice((1, 5000, 300_000))
            try:
                want = contents[size][offset : offset + length]
                while want:  # what comes before a page that cannot be had is given
                    got = os.pread(fd, len(want), offset)
                    assert got, (step, size)
                    assert got == want[: len(got)], (step, size)
                    want, offset, given = want[len(got) :], offset + len(got), given + 1
            except OSError as error:
                if error.errno != errno.ESTALE or size == newest:
                    raise
    assert given

    mount.run("refresh", str(mount.path))  # what is staged may be served as it was until somebody looks
    assert (mount.path / name).read_bytes() == contents[newest]


def test_every_way_of_reading_gives_the_bytes_of_the_source(mount: MlfsMount, source: Path) -> None:
    for path in (*source.glob("class*/*.jpg"), source / LARGE):
        there, here = path.read_bytes(), mount.path / path.relative_to(source)
        assert here.read_bytes() == there
        with open(here, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), 5000, len(there) - 4000) == there[-4000:]
            assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 0


def test_many_readers_of_one_file_that_is_not_in_place_fetch_it_once(mount: MlfsMount, slow: SlowSource) -> None:
    path = mount.path / LARGE
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    want = content(LARGE, 9_000_001)
    got: list[bool] = []
    threads = [threading.Thread(target=lambda: got.append(path.read_bytes() == want)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [True] * 6


def test_each_open_of_a_control_file_has_a_text_of_its_own(mount: MlfsMount) -> None:
    first = mount.status()["opens"]
    with open(mount.path / ".mlfs/status", "rb", buffering=0) as held:
        before = held.read(100)
        read(next(mount.path.glob("class*/*.jpg")))
        wait_until(lambda: mount.status()["opens"] > first)
        held.seek(0)
        assert held.read(100) == before
    assert mount.control({"op": "drain"}) == {"ok": True}
    assert mount.control({"op": "resume"}) == {"ok": True}
    with open(mount.path / ".mlfs/control", "r+b", buffering=0) as file:
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            file.write(b'{"op": "nothing"}\n')
        assert b"nothing" in file.read()
        file.seek(0)
        file.write(b'{"op": "resume"}\n')
        assert file.readall() == b'{"ok": true}\n'


def test_a_server_that_is_killed_is_followed_by_one_that_hears_of_opens(tmp_path: Path) -> None:
    """Workers that live for a moment only may have ended before the next server hears of them: these live longer."""
    images = image_folder(classes=4, files=100, size=10_000)
    source = make_tree(tmp_path / "source", {name: content(name, size) for name, size in images.items()})
    with MlfsMount(source, *SILENT) as mount:
        mount.register(seed=3, epochs=4, batch_size=4)
        train(mount.path, ranks=1, workers=2, epochs=1, batch_size=4, seed=3)
        os.kill(mount.pid, signal.SIGKILL)
        seen = train(mount.path, ranks=1, workers=2, epochs=3, batch_size=4, seed=3, first_epoch=1)
        assert seen == train(source, ranks=1, workers=0, epochs=3, batch_size=4, seed=3, first_epoch=1)
        wait_until(lambda: mount.status()["jobs"][0]["state"] == "finished")
        status = mount.status()
        assert status["jobs"][0]["agreement"] >= 0.98
        assert (status["channel"]["name"], status["channel"]["lost"]) == ("silent", 0)
