"""The slow source is what the other tests are measured against: its times, its counts and its faults are right."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.fuse import mounts_at, wait_until
from support.slow import FSTYPE, SCRIPT, SlowSource
from support.trees import Link, content, image_folder, make_tree

FIRST = "class00/img_00000.jpg"
SECOND = "class00/img_00001.jpg"


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[SlowSource]:
    """Neither latency nor a limit of bandwidth: for what is not about time."""
    tree = make_tree(tmp_path / "backing", image_folder() | {"link": Link("class00"), "empty": 0, "large": 3_000_000})
    with SlowSource(tree, open_latency="0", bandwidth="0") as slow:
        yield slow


def seconds(action: Callable[[], object]) -> float:
    start = time.monotonic()
    action()
    return time.monotonic() - start


def read_all(paths: list[Path], threads: int) -> int:
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda path: len(path.read_bytes()), paths))


def test_it_shows_the_tree_and_nothing_else(fast: SlowSource) -> None:
    assert subprocess.run(["diff", "-r", fast.backing, fast.path], check=False).returncode == 0
    assert sorted(os.listdir(fast.path)) == sorted(os.listdir(fast.backing))
    assert os.readlink(fast.path / "link") == "class00"
    with open(fast.path / "large", "rb") as file:
        assert os.pread(file.fileno(), 1000, 2_999_500) == content("large", 3_000_000)[-500:]


def test_it_is_read_only(fast: SlowSource) -> None:
    for change in (
        (fast.path / "new").touch,
        lambda: (fast.path / FIRST).write_bytes(b""),
        (fast.path / FIRST).unlink,
        lambda: (fast.path / FIRST).chmod(0o600),
        (fast.path / "directory").mkdir,
    ):
        with pytest.raises(OSError, match="Read-only") as caught:
            change()
        assert caught.value.errno == errno.EROFS


def test_opens_wait_beside_each_other(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "backing", {f"f{n:02d}": 10 for n in range(20)})
    with SlowSource(tree, open_latency="100ms", bandwidth="0") as slow:
        paths = [slow.path / f"f{n:02d}" for n in range(20)]
        assert seconds(lambda: read_all(paths[:2], threads=1)) >= 0.2
        assert seconds(lambda: read_all(paths, threads=20)) >= 0.1
        slow.control(hang={"path": "*"})  # not one after the other: all are there at once
        with ThreadPoolExecutor(20) as pool:
            read = [pool.submit(path.read_bytes) for path in paths]
            wait_until(lambda: slow.counts()["waiting"] == 20)
            slow.control(release={"path": "*"})
            assert [len(one.result()) for one in read] == [10] * 20


@pytest.mark.parametrize(("threads", "files", "size"), [(1, 2, 10_000_000), (8, 50, 400_000)])
def test_reads_share_the_bandwidth(tmp_path: Path, threads: int, files: int, size: int) -> None:
    tree = make_tree(tmp_path / "backing", {f"f{n:02d}": size for n in range(files)})
    with SlowSource(tree, open_latency="0", bandwidth="20M") as slow:
        paths = [slow.path / f"f{n:02d}" for n in range(files)]
        assert seconds(lambda: read_all(paths, threads)) >= 0.9 * size * files / 20e6


def test_idle_time_is_not_saved_up(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "backing", {"a": 1_000_000, "b": 1_000_000})
    with SlowSource(tree, open_latency="0", bandwidth="10M") as slow:
        (slow.path / "a").read_bytes()
        time.sleep(0.3)
        assert seconds((slow.path / "b").read_bytes) >= 0.07


def test_latency_and_bandwidth_can_be_changed(fast: SlowSource) -> None:
    fast.control(latency_s=0.2, bandwidth_bytes_s=10e6)
    assert seconds((fast.path / "large").read_bytes) >= 0.4


def test_every_open_and_byte_is_counted(fast: SlowSource) -> None:
    for _ in range(3):
        (fast.path / FIRST).read_bytes()
    (fast.path / "large").read_bytes()
    os.stat(fast.path / SECOND)
    list(os.walk(fast.path))
    counts = fast.counts()
    assert counts["by_path"] == {FIRST: 3, "large": 1}
    assert counts["bytes_by_path"] == {FIRST: 6000, "large": 3_000_000}
    assert (counts["opens"], counts["bytes"]) == (4, 3_006_000)
    fast.control(reset_counts=True)
    assert fast.counts()["opens"] == 0
    assert fast.counts()["by_path"] == {}


def test_a_file_fails_so_many_times(fast: SlowSource) -> None:
    fast.control(fail={"path": FIRST, "errno": errno.EIO, "times": 2})
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            (fast.path / FIRST).read_bytes()
    (fast.path / SECOND).read_bytes()
    assert (fast.path / FIRST).read_bytes() == content(FIRST, 2000)
    assert fast.counts()["failed"] == 2
    assert fast.counts()["by_path"] == {FIRST: 3, SECOND: 1}


def test_a_read_fails_after_an_open_that_did_not(fast: SlowSource) -> None:
    fast.control(fail={"path": "*", "errno": errno.ETIMEDOUT, "times": 1, "op": "read"})
    with open(fast.path / FIRST, "rb") as file, pytest.raises(TimeoutError):
        file.read()
    assert (fast.path / FIRST).read_bytes() == content(FIRST, 2000)


def test_a_file_hangs_until_released(fast: SlowSource) -> None:
    fast.control(hang={"path": FIRST})
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((fast.path / FIRST).read_bytes()))
    reader.start()
    wait_until(lambda: fast.counts()["waiting"] == 1)
    assert (fast.path / SECOND).read_bytes() == content(SECOND, 2007)
    assert got == []
    fast.control(release={"path": FIRST})
    reader.join(60)
    assert got == [content(FIRST, 2000)]
    assert fast.counts()["waiting"] == 0


def test_it_ends_while_a_reader_hangs(fast: SlowSource) -> None:
    fast.control(hang={"path": "*"})
    reader = subprocess.Popen(["cat", fast.path / FIRST], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: fast.counts()["waiting"] == 1)
    fast.stop()
    assert isinstance(reader.wait(60), int)
    assert mounts_at(fast.path, FSTYPE) == 0


@pytest.mark.parametrize("line", ["no json", "{}x", '{"jump": 1}', '{"fail": {"path": "a"}}', '{"hang": 1}', "[1]"])
def test_an_order_that_makes_no_sense_is_refused(fast: SlowSource, line: str) -> None:
    with pytest.raises(OSError, match="Invalid argument"), open(fast.path / ".slow_source_control", "w") as file:
        file.write(line + "\n")
    assert (fast.path / FIRST).read_bytes() == content(FIRST, 2000)


def test_the_command_returns_when_it_serves_and_unmounting_ends_it(tmp_path: Path) -> None:
    tree, mountpoint, stats = make_tree(tmp_path / "backing", image_folder()), tmp_path / "slow", tmp_path / "stats"
    mountpoint.mkdir()
    done = subprocess.run(
        [sys.executable, SCRIPT, tree, mountpoint, "--stats", stats], check=False, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    (mountpoint / FIRST).read_bytes()
    subprocess.run(["fusermount3", "-u", mountpoint], check=True)
    wait_until(stats.exists)
    assert json.loads(stats.read_bytes())["by_path"] == {FIRST: 1}


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "nothing", tmp_path], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == f"slow_source: {tmp_path}/nothing is not a directory\n"


def test_statistics_are_written_on_demand(tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    with SlowSource(make_tree(tmp_path / "backing", image_folder()), stats=stats) as slow:
        (slow.path / FIRST).read_bytes()
        os.kill(slow.pid, signal.SIGUSR1)
        wait_until(stats.exists)
        assert json.loads(stats.read_bytes())["opens"] == 1


def test_the_fixture_shows_a_small_image_folder(slow_source: SlowSource) -> None:
    assert len(list(slow_source.path.glob("class*/*.jpg"))) == 12
