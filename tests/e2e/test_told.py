"""What `mlfs status` says of a mount is so: against the counts of a slow source, and what a reader went through."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.trees import image_folder, make_tree

pytestmark = pytest.mark.page_counts

FILES = image_folder(classes=2, files=60, size=100_000)
LARGE = "class00/large.bin"


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("told") / "backing", FILES | {LARGE: 6_000_000})


def read_epoch(mount: MlfsMount, epoch: int, compute_s: float = 0.0) -> None:
    """Read what is predicted, as a loop does that computes a while on each sample."""
    for name in (mount.path / f".mlfs/order/train/{epoch}/0").read_text().splitlines():
        (mount.path / name).read_bytes()
        time.sleep(compute_s)


@pytest.mark.promise("told-waiting")
@pytest.mark.wall_clock
def test_status_begins_with_why_training_waits_and_what_would_end_it(backing: Path) -> None:
    with SlowSource(backing, open_latency="1ms", bandwidth="3M") as slow:
        flags = ("--ram", "1M", "--staging", "4M", "--source-timeout", "60s")
        with MlfsMount(slow.path, *flags) as mount:
            assert "nothing was read yet" in mount.status()["headline"]
            mount.register(name="train", seed=1, epochs=3, batch_size=4, layout="sorted")
            assert "training has not begun to read" in mount.status()["headline"]
            read_epoch(mount, 0, compute_s=0.005)
            mount.settle()
            said = mount.status()["headline"]
            # 12 MB at 3 MB/s are 4 s, of which computing takes 0.6 s.
            assert (found := re.match(r"epoch 0 wait(?:s|ed) (\d+) %: the source gives ", said)), said
            assert int(found[1]) > 50
            assert re.search(r"; \d+(\.\d)? MiB more of --ssd would end it from the next epoch on$", said), said
            assert mount.run("status", str(mount.path)).stdout.startswith(f"epoch 0 wait{said[12]}")


@pytest.mark.promise("told-waiting")
@pytest.mark.wall_clock
def test_status_says_that_nothing_is_to_be_done(backing: Path) -> None:
    with MlfsMount(backing, "--ram", "64M") as mount:
        mount.register(name="train", seed=1, epochs=9, batch_size=4, layout="sorted")
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] > 50)
        for epoch in range(2):
            read_epoch(mount, epoch, compute_s=0.03)
        mount.settle()
        status = mount.status()
        if taken_back := status["errors"].get("pages_taken_back", 0):  # some machines reclaim page cache all the time
            assert f" the pages of {taken_back:,} of " in status["headline"] or "nothing to do" in status["headline"]
        else:
            assert status["headline"].endswith("; nothing to do")


@pytest.mark.promise("told-bytes")
@pytest.mark.wall_clock
def test_of_a_large_file_what_was_handed_out_is_counted_and_how_long_it_took(backing: Path) -> None:
    with (
        SlowSource(backing, open_latency="1ms", bandwidth="10M") as slow,
        MlfsMount(slow.path, "--staging", "1M") as mount,
    ):
        before = slow.counts()["bytes"]
        fd = os.open(mount.path / LARGE, os.O_RDONLY)
        for offset in (0, 3_000_000):
            assert len(os.pread(fd, 1000, offset)) == 1000
        mount.settle()
        read = slow.counts()["bytes"] - before - 1  # whoever opens it looks whether the last byte is the last one
        status = mount.status()
        assert 2000 <= read < 4_000_000
        assert status["reads"]["all"]["pfs"] == {"reads": 1, "bytes": read}
        assert status["fetches"]["pfs"]["bytes"] == status["pfs"]["total_bytes"] == read
        assert status["stalls"]["count"] >= 3  # the open, and two READs at least
        assert status["stalls"]["total_s"] >= 0.5 * read / 10e6
        os.close(fd)


@pytest.mark.promise("told-bytes")
def test_a_read_whose_pages_were_taken_back_counts_where_it_was_answered(backing: Path) -> None:
    with MlfsMount(backing, "--ram", "64M") as mount:
        names = sorted(FILES)[:40]
        for name in names:
            (mount.path / name).read_bytes()
        mount.settle()
        for name in names:
            fd = os.open(mount.path / name, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        before = mount.status()["reads"]["all"]
        for name in names:
            (mount.path / name).read_bytes()
        mount.settle()
        reads = mount.status()["reads"]["all"]
        assert reads["ram"]["reads"] - before["ram"]["reads"] == len(names)
        assert reads["page_cache"]["reads"] == before["page_cache"]["reads"]


@pytest.mark.promise("told-pages")
def test_pages_that_are_taken_back_are_staged_again_and_status_says_so(backing: Path) -> None:
    with MlfsMount(backing, "--ram", "64M") as mount:
        # Open since before the job was registered: what is done with these descriptors is no read of the job's.
        open_files = [os.open(mount.path / name, os.O_RDONLY) for name in sorted(FILES)]
        mount.settle()
        mount.register(name="train", seed=1, epochs=1, batch_size=4, layout="sorted")
        names = (mount.path / ".mlfs/order/train/0/0").read_text().splitlines()
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] == len(names))
        for fd in open_files:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # as the kernel does when memory is short
        for fd in open_files:
            os.close(fd)
        wait_until(lambda: mount.status()["pages"]["taken_back"] >= len(open_files))
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] == len(names))
        before = mount.status()
        assert any("takes staged pages back" in said for said in before["messages"])
        for name in names:
            (mount.path / name).read_bytes()
        mount.settle()
        status = mount.status()
        assert "pages_taken_back" not in status["errors"]
        served = status["reads"]["all"]["page_cache"]["reads"] - before["reads"]["all"]["page_cache"]["reads"]
        assert served == len(names)
        assert status["jobs"][0]["agreement"] == 1.0


@pytest.mark.promise("told-unreadable")
def test_directories_that_the_scan_could_not_read_are_told_when_the_mount_is_made_and_by_status(tmp_path: Path) -> None:
    names = {f"{directory}/{number}.jpg": 1000 for directory in "abc" for number in range(3)}
    with SlowSource(make_tree(tmp_path / "backing", names), open_latency="0ms") as slow:
        for directory in "bc":
            slow.control(fail={"path": directory, "errno": 13, "times": 99, "op": "list"})
        mount = MlfsMount(slow.path)
        try:
            said = mount.run("mount", str(slow.path), *mount.flags).stderr
            told = f"2 directories (the first of them: b) of {slow.path} could not be read by the scan, so nothing in"
            assert f"mlfs: {told}" in said
            assert any(message.startswith(told) for message in mount.status()["messages"])
            assert "chmod" in said
            mount.unmount()
        finally:
            mount.clean_up()
