"""The tiers behind a real mount on a slow source: filling, finding again, damage, full and read-only disks."""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

pytestmark = pytest.mark.page_counts

SMALL, LARGE = 40, 8
SMALL_BYTES, LARGE_BYTES = 30_000, 400_000
PAGE = 4096
RAM_BYTES = 10 * 8 * PAGE  # ten small samples of 8 pages
Sums = dict[str, int]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Samples that LMDB takes and samples too large for it, mixed in every stretch of any order."""
    root = tmp_path / "source"
    root.mkdir()
    for index in range(SMALL):
        (root / f"{index:03d}.small").write_bytes(os.urandom(SMALL_BYTES + index))
    for index in range(LARGE):
        (root / f"{index * 5:03d}.x.large").write_bytes(os.urandom(LARGE_BYTES + index))
    return root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    _command("mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", path)
    yield path
    _command("umount", "-l", path)


def _command(*words: str | Path) -> None:
    subprocess.run(words, check=True)


def sums(directory: Path, names: list[str] | None = None) -> Sums:
    """What a reader gets: the checksum of every file, in the order of `names`."""
    return {name: zlib.crc32((directory / name).read_bytes()) for name in names or sorted(os.listdir(directory))}


def run_job(mount: MlfsMount, epochs: int, name: str = "train") -> list[Sums]:
    """Register a job and read as it says. Epochs so short would else begin before the copies of the last are kept."""
    mount.register(name=name, seed=5, epochs=epochs, batch_size=4, layout="sorted")
    order = mount.path / ".mlfs/order" / name
    seen = []
    for epoch in range(epochs):
        seen.append(sums(mount.path, (order / f"{epoch}/0").read_text().splitlines()))
        mount.settle()
    wait_until(lambda: bool(mount.status()["jobs"][-1]["state"] == "finished"))
    return seen


def tiers(mount: MlfsMount) -> dict[str, dict[str, Any]]:
    """The status of each tier, by class."""
    return {tier["class"]: tier for tier in mount.status()["tiers"]}


def kept(mount: MlfsMount, samples: int) -> bool:
    """Wait until the tiers hold that many: copies of demand fetches are kept behind the reader's back."""
    return wait_until(lambda: sum(tier["samples"] for tier in tiers(mount).values()) == samples)


def log_of(mount: MlfsMount) -> str:
    """The daemon's log."""
    return "".join(path.read_text() for path in mount.state.rglob("*.log"))


def flags(tmp_path: Path, ram: int | str = RAM_BYTES, lmdb: str = "8M", ssd: str = "16M") -> list[str]:
    """A mount with all three tiers."""
    disks = ["--lmdb", f"{tmp_path / 'lmdb'}:{lmdb}", "--ssd", f"{tmp_path / 'ssd'}:{ssd}"]
    return ["--ram", str(ram), "--staging", "2M", *disks]


def fast(source: Path) -> SlowSource:
    """The source, counted."""
    return SlowSource(source, open_latency="0ms", bandwidth="1G")


@pytest.mark.promise("once", "ram")
def test_ram_fills_first_then_lmdb_and_ssd_by_size(source: Path, tmp_path: Path) -> None:
    right = sums(source)
    with fast(source) as slow, MlfsMount(slow.path, *flags(tmp_path)) as mount:
        assert run_job(mount, 3) == [right] * 3
        status, by_class = mount.status(), tiers(mount)
        total = sum(p.stat().st_size for p in source.iterdir())
        assert status["pfs"]["by_epoch"] == {"0": total}
        assert slow.counts()["opens"] == SMALL + LARGE == status["fetches"]["pfs"]["count"]
        assert set(slow.counts()["by_path"].values()) == {1}
        assert by_class["ram"]["used_bytes"] <= RAM_BYTES
        assert by_class["ram"]["used_bytes"] > RAM_BYTES - 8 * PAGE  # no small sample would fit any more
        assert by_class["ssd"]["samples"] == LARGE
        assert by_class["ram"]["samples"] + by_class["lmdb"]["samples"] == SMALL
        reads, fetches = status["reads"]["all"], status["fetches"]
        assert sum(route["reads"] for route in reads.values()) == 3 * (SMALL + LARGE)
        assert sum(route["bytes"] for route in reads.values()) == 3 * total
        assert fetches["ssd"]["count"] >= LARGE
        # A page that the kernel took back (other processes can make it) costs a fetch more.
        again = status["errors"].get("pages_taken_back", 0)
        assert sum(route["count"] for route in fetches.values()) <= 3 * (SMALL + LARGE) + again
        assert {tier["errors"] for tier in by_class.values()} == {0}


@pytest.mark.promise("bound")
def test_without_room_exactly_the_overflow_comes_from_the_source(source: Path, tmp_path: Path) -> None:
    right = sums(source)
    small_flags = flags(tmp_path, lmdb="1M", ssd="1M")
    with fast(source) as slow, MlfsMount(slow.path, *small_flags) as mount:
        assert run_job(mount, 4) == [right] * 4
        status = mount.status()
        total = sum(p.stat().st_size for p in source.iterdir())
        held = sum(tier["used_bytes"] for tier in status["tiers"])
        assert slow.counts()["opens"] == status["fetches"]["pfs"]["count"]
        assert slow.counts()["bytes"] == status["pfs"]["total_bytes"]
        for tier in status["tiers"]:
            assert tier["used_bytes"] <= tier["capacity_bytes"]
        for epoch in "123":
            # What lies in the staging window when an epoch ends need not be fetched again.
            overflow = status["pfs"]["by_epoch"][epoch]
            assert total - held - (2 << 20) <= overflow <= total - held + 50 * PAGE * 2


@pytest.mark.promise("change-copies")
def test_copies_are_found_again_and_a_changed_file_is_read_new(source: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with fast(source) as slow:
        with MlfsMount(slow.path, *flags(tmp_path, ram=PAGE), state=state) as mount:
            run_job(mount, 1)
            assert kept(mount, SMALL + LARGE)
        slow.control(reset_counts=True)
        changed = {"003.small", "010.x.large"}
        for name in changed:
            (source / name).write_bytes(os.urandom(50_000))
        right = sums(source)
        with MlfsMount(slow.path, *flags(tmp_path, ram=PAGE), state=state) as again:
            assert kept(again, SMALL + LARGE)
            assert tiers(again)["ram"]["samples"] == 0
            assert run_job(again, 2) == [right] * 2
            assert set(slow.counts()["by_path"]) == changed
            assert set(slow.counts()["by_path"].values()) == {1}
            status = again.status()
            assert status["fetches"]["pfs"]["count"] == len(changed) == status["manifest"]["changed"]
            assert (again.path / "003.small").stat().st_size == 50_000


def damage(path: Path, how: str) -> None:
    """Spoil one copy."""
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, 1000)
    else:
        with open(path, "r+b") as file:
            file.seek(5000)
            file.write(b"garbage")


@pytest.mark.promise("copy-damaged")
@pytest.mark.parametrize("mounted", [False, True], ids=["between mounts", "while mounted"])
def test_damaged_ssd_copies_cost_one_read_and_one_line(source: Path, tmp_path: Path, mounted: bool) -> None:
    right, state = sums(source), tmp_path / "state"
    with fast(source) as slow:
        mount = MlfsMount(slow.path, "--ram", str(PAGE), "--staging", "1M", "--ssd", f"{tmp_path}/ssd:64M", state=state)

        def spoil() -> None:
            copies = sorted((tmp_path / "ssd").rglob("*.s"))
            assert len(copies) == SMALL + LARGE
            for index, how in enumerate(("deleted", "truncated", "flipped", "truncated", "flipped", "flipped")):
                damage(copies[7 * index], how)
            slow.control(reset_counts=True)

        with mount:
            run_job(mount, 1)
            assert kept(mount, SMALL + LARGE)
            if mounted:
                spoil()
                assert run_job(mount, 2) == [right] * 2
                check_damage(mount, slow)
        if not mounted:
            spoil()
            with MlfsMount(slow.path, *mount.flags, state=state) as again:
                assert run_job(again, 2) == [right] * 2
                check_damage(again, slow)


def check_damage(mount: MlfsMount, slow: SlowSource) -> None:
    """Six copies were spoiled, one of them removed: that is found at start, or when it is used."""
    assert slow.counts()["opens"] == 6
    assert set(slow.counts()["by_path"].values()) == {1}
    assert tiers(mount)["ssd"]["errors"] in (5, 6)
    assert len(re.findall("damaged copy", log_of(mount))) == 1


@pytest.mark.promise("copy-damaged")
def test_a_garbage_lmdb_file_and_flipped_bytes_while_mounted(source: Path, tmp_path: Path) -> None:
    right, state = sums(source), tmp_path / "state"
    words = ["--ram", str(PAGE), "--staging", "1M", "--lmdb", f"{tmp_path}/lmdb:16M"]
    with fast(source) as slow:
        with MlfsMount(slow.path, *words, state=state) as mount:
            run_job(mount, 1)
            assert kept(mount, SMALL)
            mount.control({"op": "unregister", "name": "train"})
            (data,) = (tmp_path / "lmdb").rglob("data.mdb")
            wanted = (source / "007.small").read_bytes()
            wait_until(lambda: wanted in data.read_bytes())
            with open(data, "r+b") as file:
                file.seek(data.read_bytes().index(wanted) + 20_000)
                file.write(b"garbage")
            slow.control(reset_counts=True)
            assert run_job(mount, 2) == [right] * 2
            assert slow.counts()["by_path"].pop("007.small") == 1
            assert tiers(mount)["lmdb"]["errors"] == 1
        data.write_bytes(os.urandom(data.stat().st_size))
        with MlfsMount(slow.path, *words, state=state) as again:
            assert tiers(again)["lmdb"] | {"errors": 1, "samples": 0} == tiers(again)["lmdb"]
            assert run_job(again, 2) == [right] * 2
            assert kept(again, SMALL)
            assert len(re.findall("damaged environment", log_of(again))) == 1


@pytest.mark.promise("copy-full")
@pytest.mark.parametrize("kind", ["ssd", "lmdb"])
def test_a_full_disk_is_borne(source: Path, tmp_path: Path, small_disk: Path, kind: str) -> None:
    right = sums(source)
    words = ["--ram", str(PAGE), "--staging", "1M", f"--{kind}", f"{small_disk}:64M"]
    with fast(source) as slow, MlfsMount(slow.path, *words) as mount:
        (small_disk / "other").write_bytes(bytes(1_500_000))
        assert run_job(mount, 3) == [right] * 3
        tier = tiers(mount)[kind]
        assert tier["errors"] >= 1
        assert tier["samples"] < SMALL
        assert kind == "lmdb" or tier["samples"]  # a commit fails as a whole
        assert log_of(mount).count("WARNING") == 1


@pytest.mark.promise("copy-read-only")
@pytest.mark.parametrize("kind", ["ssd", "lmdb"])
def test_a_read_only_cache_directory_is_read(source: Path, tmp_path: Path, small_disk: Path, kind: str) -> None:
    state, held = tmp_path / "state", SMALL
    for path in source.glob("*.large"):
        path.unlink()
    right = sums(source)
    words = ["--ram", str(PAGE), "--staging", "1M", f"--{kind}", f"{small_disk}:2M"]
    with fast(source) as slow:
        with MlfsMount(slow.path, *words, state=state) as mount:
            run_job(mount, 1)
            wait_until(lambda: tiers(mount)[kind]["samples"] >= held - 5)
        _command("mount", "-o", "remount,ro", small_disk)
        slow.control(reset_counts=True)
        (source / "009.small").write_bytes(os.urandom(40_000))
        right = sums(source)
        with MlfsMount(slow.path, *words, state=state) as again:
            assert run_job(again, 3) == [right] * 3
            assert 1 <= slow.counts()["by_path"]["009.small"] <= 3  # its pages may outlive the end of an epoch
            assert slow.counts()["by_path"].get("001.small", 0) == 0


def test_cache_command_on_what_a_mount_made(source: Path, tmp_path: Path) -> None:
    with fast(source) as slow:
        with MlfsMount(slow.path, *flags(tmp_path, ram=PAGE), state=tmp_path / "state") as mount:
            sums(mount.path)
            assert kept(mount, SMALL + LARGE)
            for directory in ("ssd", "lmdb"):
                for words in (["verify"], ["clear", "--yes"]):
                    refused = mount.run("cache", words[0], str(tmp_path / directory), *words[1:], check=False)
                    assert refused.returncode == 10
                    assert f"process {mount.pid}" in refused.stderr
            assert str(slow.path) in mount.run("cache", "list", str(tmp_path / "ssd")).stdout
        assert f" {LARGE} " in mount.run("cache", "list", str(tmp_path / "ssd")).stdout
        assert f" {SMALL} " in mount.run("cache", "list", str(tmp_path / "lmdb")).stdout
        damage(next((tmp_path / "ssd").rglob("*.s")), "flipped")
        assert mount.run("cache", "verify", str(tmp_path / "ssd"), check=False).returncode == 1
        assert mount.run("cache", "verify", str(tmp_path / "lmdb")).returncode == 0
        for directory in ("ssd", "lmdb"):
            mount.run("cache", "clear", "--yes", str(tmp_path / directory))
            assert list((tmp_path / directory).rglob("*.s")) + list((tmp_path / directory).rglob("*.mdb")) == []


@pytest.mark.promise("copy-shared")
def test_two_sources_share_a_directory_at_once(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in sorted(os.listdir(source))[::2]:  # the same names, other contents
        (other / name).write_bytes(os.urandom(20_000))
    words = ["--ram", str(PAGE), "--staging", "1M", "--ssd", f"{tmp_path}/c:16M", "--lmdb", f"{tmp_path}/c:16M"]
    right = [sums(source), sums(other)]
    with MlfsMount(source, *words) as one, MlfsMount(other, *words) as two:
        for _ in range(2):
            assert [sums(one.path), sums(two.path)] == right
        assert kept(one, len(right[0]))
        assert kept(two, len(right[1]))
        third = MlfsMount(source, *words, mountpoint=tmp_path / "third")
        third.path.mkdir()
        refused = third.run("mount", str(source), str(third.path), *words, check=False)
        assert refused.returncode != 0
        third.clean_up()


def test_a_full_place_takes_new_copies_once_files_have_changed(tmp_path: Path) -> None:
    root, mountpoint = tmp_path / "data", tmp_path / "mnt"
    root.mkdir()
    mountpoint.mkdir()
    names = [f"f{number:03d}" for number in range(120)]

    def change() -> None:
        for name in names:
            (root / "new").write_bytes(os.urandom(100_000))
            (root / "new").rename(root / name)

    change()
    with MlfsMount(root, "--ram", "10MiB", mountpoint=mountpoint) as mount:
        for _ in range(3):
            mount.run("refresh", str(mount.path))
            for name in names:
                assert (mount.path / name).read_bytes() == (root / name).read_bytes()
            mount.settle()
            assert 9 << 20 < mount.status()["tiers"][0]["used_bytes"] <= 10 << 20
            change()
