"""The SSD tier: the contract, and each way its files and its disk can go wrong."""

from __future__ import annotations

import errno
import os
import random
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fcntl import fcntl
from pathlib import Path

import pytest
from disks import Clock, SmallDisk
from killing import kill_and_look
from tier_contract import MIB, MakeTier, TierContract, content, holds, put

from mlfs.errors import CacheError, ExitCode
from mlfs.places import cache_directory, direct_read
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Version

V = Version(9_000, 1)
FaultyOs = Callable[[str, int], AbstractContextManager[None]]


@pytest.fixture
def faulty_os(monkeypatch: pytest.MonkeyPatch) -> FaultyOs:
    """Let one call of the system fail inside the tier."""

    @contextmanager
    def fail(call: str, code: int) -> Iterator[None]:
        real = getattr(os, call)

        def refuse(*args: object, **kwargs: object) -> object:
            if call == "close":  # as network file systems do over quota: closed, and only then refused
                real(*args, **kwargs)
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(f"mlfs.places.ssd.os.{call}", refuse)
            yield

    return fail


class TestSsdContract(TierContract):
    persistent = True

    @pytest.fixture
    def make_tier(self, tmp_path: Path) -> Iterator[MakeTier]:
        made: list[SsdTier] = []

        def make(capacity_bytes: int) -> SsdTier:
            made.append(SsdTier(tmp_path / "cache", capacity_bytes, "/src"))
            return made[-1]

        yield make
        for tier in made:
            tier.close()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[SsdTier, Path]]:
    """A tier with one sample, and its file."""
    tier = SsdTier(tmp_path, 4 * MIB, "/src")
    assert put(tier, b"k", V)
    (path,) = tmp_path.rglob("*.s")
    yield tier, path
    tier.close()


def test_occupies_what_it_says(filled: tuple[SsdTier, Path]) -> None:
    tier, path = filled
    os.sync()
    assert path.stat().st_blocks * 512 == tier.used_bytes == tier.footprint_bytes(V.size_bytes)


def test_only_the_owner_can_read(filled: tuple[SsdTier, Path]) -> None:
    _, path = filled
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_any_flipped_byte_is_found(filled: tuple[SsdTier, Path], caplog: pytest.LogCaptureFixture) -> None:
    tier, path = filled
    right = path.read_bytes()
    chance = random.Random(1)
    places = [*range(300), *(chance.randrange(len(right)) for _ in range(100)), len(right) - 1]
    for count, place in enumerate(places, 1):
        wrong = bytearray(right)
        wrong[place] ^= 1 << chance.randrange(8)
        path.write_bytes(wrong)
        assert tier.get(b"k", V) is None
        assert tier.errors == count, place
        assert (tier.used_bytes, path.exists()) == (0, False)
        assert put(tier, b"k", V)
    assert len([entry for entry in caplog.records if "damaged copy" in entry.message]) == 1


def test_any_other_length_is_found(filled: tuple[SsdTier, Path]) -> None:
    tier, path = filled
    right = path.read_bytes()
    lengths = [*range(0, 320, 3), *range(320, len(right), 701), len(right) - 1]
    for count, length in enumerate(lengths, 1):
        path.write_bytes(right[:length])
        assert tier.get(b"k", V) is None
        assert tier.errors == count
        assert put(tier, b"k", V)
    for extra in (1, 5000):
        path.write_bytes(right + bytes(extra))
        assert tier.get(b"k", V) is None
        assert put(tier, b"k", V)
    assert tier.errors == len(lengths) + 2


def test_damage_is_found_by_keys(filled: tuple[SsdTier, Path]) -> None:
    tier, path = filled
    path.write_bytes(b"garbage")
    assert tier.keys() == []
    assert (tier.errors, tier.used_bytes) == (1, 0)


def test_missing_file(filled: tuple[SsdTier, Path]) -> None:
    tier, path = filled
    path.unlink()
    assert tier.get(b"k", V) is None
    assert (tier.errors, tier.used_bytes, tier.contains(b"k")) == (1, 0, False)


def test_symbolic_link_is_not_followed(filled: tuple[SsdTier, Path], tmp_path: Path) -> None:
    tier, path = filled
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert tier.get(b"k", V) is None
    assert tier.errors == 1
    assert (tmp_path / "elsewhere").exists()


def test_copy_under_the_name_of_another(filled: tuple[SsdTier, Path]) -> None:
    tier, path = filled
    assert put(tier, b"other", V)
    source_dir = path.parent.parent
    (source_dir / cache_directory.sample_path(cache_directory.key_digest(b"other"))).write_bytes(path.read_bytes())
    assert tier.get(b"other", V) is None
    assert holds(tier, b"k", V)


def test_start_clears_temporary_files_and_leaves_foreign_ones(filled: tuple[SsdTier, Path]) -> None:
    tier, path = filled
    tier.close()
    foreign = [path.parent / "README", path.parent / "ff.s", path.parent.parent / "zz", path.parent / (32 * "0" + ".x")]
    for other in foreign:
        other.write_text("mine")
    left = path.with_suffix(".t")
    left.write_bytes(b"half")
    again = SsdTier(path.parents[3], 4 * MIB, "/src")
    assert not left.exists()
    assert all(other.exists() for other in foreign)
    assert again.keys() == [b"k"]
    assert (again.used_bytes, again.errors) == (again.footprint_bytes(V.size_bytes), 0)
    again.close()


def test_smaller_budget_drops_until_it_fits(tmp_path: Path) -> None:
    tier = SsdTier(tmp_path, 4 * MIB, "/src")
    assert all(put(tier, b"%d" % number, V) for number in range(50))
    tier.close()
    small = SsdTier(tmp_path, 10 * tier.footprint_bytes(V.size_bytes), "/src")
    assert small.used_bytes == small.capacity_bytes
    assert len(small.keys()) == len(list(tmp_path.rglob("*.s"))) == 10
    small.close()


def test_sources_share_a_directory(tmp_path: Path) -> None:
    one, two = SsdTier(tmp_path, MIB, "/src/one"), SsdTier(tmp_path, MIB, b"/src/\xff")
    assert put(one, b"k", Version(10, 1))
    assert put(two, b"k", Version(20, 2))
    assert holds(one, b"k", Version(10, 1))
    assert holds(two, b"k", Version(20, 2))
    assert [entry.source for entry in cache_directory.find_sources(str(tmp_path))] == ["/src/one", "/src/\udcff"]
    one.close()
    two.close()


@pytest.mark.promise("copy-shared")
def test_second_mount_is_refused(filled: tuple[SsdTier, Path], tmp_path: Path) -> None:
    program = "import sys; from mlfs.places.ssd import SsdTier; SsdTier(sys.argv[1], 1 << 20, '/src')"
    result = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert f"CacheError: the cache in {tmp_path}" in result.stderr
    assert f"is in use by process {os.getpid()}" in result.stderr
    filled[0].close()
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)


def test_who_was_given_the_lock_goes_on_with_it_while_its_first_owner_hangs(
    filled: tuple[SsdTier, Path], tmp_path: Path
) -> None:
    given = os.dup(filled[0].lock_fd)
    after = SsdTier(tmp_path, MIB, "/src", locks=[given])
    os.close(given)
    filled[0].close()
    with pytest.raises(CacheError, match="is in use by process"):
        SsdTier(tmp_path, MIB, "/src")
    after.close()
    SsdTier(tmp_path, MIB, "/src").close()


@pytest.mark.parametrize("below", ["", "sub/dir"])
def test_a_file_in_the_way(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError) as caught:
        SsdTier(tmp_path / "file" / below, MIB, "/src")
    assert caught.value.hint
    assert caught.value.exit_code == ExitCode.CACHE


def test_missing_directory_is_made(tmp_path: Path) -> None:
    tier = SsdTier(tmp_path / "a" / "b", MIB, "/src")
    assert put(tier, b"k", V)
    tier.close()


def test_full_disk(small_disk: Callable[[int], SmallDisk], clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    disk = small_disk(MIB)
    tier = SsdTier(disk.path, 64 * MIB, "/src", clock=clock)
    kept = 0
    while put(tier, b"%d" % kept, V):
        kept += 1
    assert tier.errors == 1
    assert tier.used_bytes == kept * tier.footprint_bytes(V.size_bytes)
    assert not list(disk.path.rglob("*.t"))
    assert all(holds(tier, b"%d" % number, V) for number in range(kept))
    tier.drop(b"0")
    assert not put(tier, b"0", V)  # there is room now, but it rests
    clock.now_s += 29
    assert not put(tier, b"0", V)
    clock.now_s += 2
    assert put(tier, b"0", V)
    assert not put(tier, b"more", V)
    assert tier.errors == 2
    assert len([entry for entry in caplog.records if "ENOSPC" in entry.message]) == 1
    tier.close()


def test_file_size_limit_keeps_nothing(tmp_path: Path) -> None:
    tier = SsdTier(tmp_path, 4 * MIB, "/src")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        assert not put(tier, b"k", V)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tier.errors, tier.used_bytes) == (1, 0)
    assert [path for path in tmp_path.rglob("*") if path.suffix in (".s", ".t")] == []
    assert put(tier, b"k", V)
    tier.close()


def test_read_only_directory_is_read(small_disk: Callable[[int], SmallDisk]) -> None:
    disk = small_disk(4 * MIB)
    tier = SsdTier(disk.path, 2 * MIB, "/src")
    assert put(tier, b"k", V)
    assert put(tier, b"gone", V)
    tier.close()
    disk.read_only(True)
    tier = SsdTier(disk.path, 2 * MIB, "/src")
    assert holds(tier, b"k", V)
    assert not put(tier, b"new", V)
    tier.drop(b"gone")
    assert tier.keys() == [b"k"]
    assert tier.read_only
    with pytest.raises(CacheError, match="Read-only file system"):
        SsdTier(disk.path, 2 * MIB, "/other")
    tier.close()


@pytest.mark.parametrize("call", ["open", "writev", "close", "rename"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.EACCES, errno.EDQUOT])
def test_medium_refuses(faulty_os: FaultyOs, tmp_path: Path, clock: Clock, call: str, code: int) -> None:
    tier = SsdTier(tmp_path, 2 * MIB, "/src", clock=clock)
    assert put(tier, b"k", V)
    with faulty_os(call, code):
        assert not put(tier, b"new", V)
        assert not put(tier, b"new", V)  # it rests: not tried, not counted
    assert (tier.errors, tier.used_bytes) == (1, tier.footprint_bytes(V.size_bytes))
    assert not list(tmp_path.rglob("*.t"))
    assert holds(tier, b"k", V)
    clock.now_s += 31
    assert put(tier, b"new", V)
    tier.close()


def test_read_error_drops_the_copy(filled: tuple[SsdTier, Path], faulty_os: FaultyOs) -> None:
    tier, path = filled
    with faulty_os("read", errno.EIO):
        assert tier.get(b"k", V) is None
    assert (tier.errors, tier.used_bytes, path.exists()) == (1, 0, False)


def test_no_descriptors_left_keeps_the_copy(filled: tuple[SsdTier, Path]) -> None:
    tier, _ = filled
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert tier.get(b"k", V) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert tier.errors == 1
    assert holds(tier, b"k", V)


@pytest.mark.promise("copy-killed")
def test_killed_while_writing(tmp_path: Path) -> None:
    assert kill_and_look("ssd", tmp_path, rounds=5) > 20
    assert not list(tmp_path.rglob("*.t"))


def test_ranges_of_a_copy_are_verified_each_time(tmp_path: Path) -> None:
    """The disk changes a byte after the copy was read whole: no range with that byte is given."""
    key, version = b"k", Version(300_000, 1)
    tier = SsdTier(tmp_path, 2 * MIB, b"source")
    assert put(tier, key, version)
    right = content(key, version)
    for offset, size in ((0, 10), (65_530, 20), (299_990, 10), (131_072, 65_536)):
        found = tier.get_range(key, version, offset, size)
        assert found is not None
        assert bytes(found) == right[offset : offset + size]
    assert tier.get_range(key, Version(300_000, 2), 0, 10) is None
    assert put(tier, key, version)
    tier.get_range(key, version, 0, 10)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 300_000)
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\0\0\0\0")
    assert tier.get_range(key, version, 299_950, 10) is None
    assert tier.get_range(key, version, 0, 10) is None
    assert tier.errors == 1
    tier.close()


def test_a_large_copy_is_read_past_the_page_cache_where_that_goes_and_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the page cache while it lies there; in the usual way where the file system refuses."""
    key, version, asked = b"k", Version(MIB + 77, 1), list[int]()
    tier = SsdTier(tmp_path, 4 * MIB, b"source")

    def lost_pages() -> Path:
        assert put(tier, key, version)
        (path,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > MIB)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return path

    monkeypatch.setattr(direct_read.fcntl, "fcntl", lambda *how: asked.append(how[2]) or fcntl(*how))
    lost_pages()
    assert holds(tier, key, version)
    for damage in (bytes, bytes.swapcase, lambda right: right + b"1", lambda right: right[:-1]):
        path = lost_pages()
        path.write_bytes(damage(path.read_bytes()))
        os.sync()
        assert holds(tier, key, version) is (damage is bytes)

    def refuses(*how: int) -> int:
        asked.append(how[2])
        raise OSError(errno.EINVAL, "no such reads here")

    monkeypatch.setattr(direct_read.fcntl, "fcntl", refuses)
    asked.clear()
    lost_pages()
    assert holds(tier, key, version)
    lost_pages()
    assert holds(tier, key, version)
    assert asked in ([], [os.O_DIRECT])  # none where all files lie in memory
    assert tier.errors == 3
    tier.close()
