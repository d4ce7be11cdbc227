"""The LMDB tier: the contract, and each way its file and its disk can go wrong."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import pytest
from disks import Clock, SmallDisk
from killing import kill_and_look
from tier_contract import MIB, MakeTier, TierContract, content, holds, put

from mlfs.errors import CacheError
from mlfs.places import cache_directory, lmdb_pages
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.tier import Version

V = Version(700, 1)


class TestLmdbContract(TierContract):
    persistent = True
    for_copies = 0.85

    @pytest.fixture
    def make_tier(self, tmp_path: Path) -> Iterator[MakeTier]:
        made: list[LmdbTier] = []

        def make(capacity_bytes: int) -> LmdbTier:
            made.append(LmdbTier(tmp_path / "cache", capacity_bytes, "/src"))
            return made[-1]

        yield make
        for tier in made:
            tier.close()


def data_file(directory: Path) -> Path:
    (path,) = directory.rglob("data.mdb")
    return path


def fill(directory: Path, sizes: list[int], capacity_bytes: int = 8 * MIB) -> dict[bytes, Version]:
    """Commit samples of these sizes, with deletions in between so that there are free lists; close."""
    tier = LmdbTier(directory, capacity_bytes, "/src")
    kept = {}
    for number, size in enumerate(sizes):
        key, version = b"%d" % number, Version(size, number)
        assert put(tier, key, version)
        kept[key] = version
        if number % 7 == 3:
            tier.flush()
            tier.drop(key)
            del kept[key]
    tier.close()
    return kept


def test_nothing_over_max_sample_bytes(tmp_path: Path) -> None:
    tier = LmdbTier(tmp_path, 4 * MIB, "/src", max_sample_bytes=1000)
    assert put(tier, b"k", Version(1000, 1))
    assert not put(tier, b"k", Version(1001, 2))
    assert not tier.contains(b"k")
    tier.close()


def test_too_small_a_budget_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="too small"):
        LmdbTier(tmp_path, 1000, "/src")


@pytest.mark.parametrize("size", [0, 300, 1500, 3000, 20_000])
def test_file_stays_within_capacity(tmp_path: Path, size: int) -> None:
    """Fill it, with turnover: the budget is for the file, and the account does not promise more than fits."""
    tier = LmdbTier(tmp_path, 2 * MIB, "/src")
    number = 0
    while put(tier, b"%d" % number, Version(size, 1)):
        number += 1
    for turn in range(300):
        tier.drop(b"%d" % turn)
        put(tier, b"new %d" % turn, Version(size, 1))
    tier.flush()
    held_bytes = tier.used_bytes
    tier.close()
    live_bytes = live_pages(tmp_path) * 4096
    occupied = sum(path.stat().st_blocks * 512 for path in data_file(tmp_path).parent.iterdir())
    assert occupied <= 2 * MIB
    assert held_bytes > 0.75 * 2 * MIB
    assert live_bytes <= 2 * MIB - 8 * 4096


def live_pages(directory: Path) -> int:
    with lmdb.open(str(data_file(directory).parent), readonly=True) as environment:
        stat = environment.stat()
    return stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]


@pytest.mark.parametrize("size", [0, 300, 700, 1500, 1900, 3000, 20_000])
def test_account_covers_live_pages(tmp_path: Path, size: int) -> None:
    tier = LmdbTier(tmp_path, 16 * MIB, "/src")
    for number in range(400):
        assert put(tier, b"%d" % number, Version(size, 1))
    tier.flush()
    used_bytes = tier.used_bytes
    tier.close()
    assert live_pages(tmp_path) * 4096 <= used_bytes + 2 * 4096
    assert used_bytes <= 400 * max(600, size * 3)


def test_flipped_bytes_never_give_wrong_bytes(tmp_path: Path) -> None:
    """Anywhere in the file: each sample is right or gone, gone ones are counted, and nothing crashes."""
    kept = fill(tmp_path, [400] * 60 + [5000] * 10)
    path = data_file(tmp_path)
    right = path.read_bytes()
    heads = [place for page in range(0, len(right), 4096) for place in range(page, page + 40)]
    chance = random.Random(2)
    for place in [*range(16, 160, 3), *chance.sample(heads, 100), *chance.sample(range(len(right)), 100)]:
        wrong = bytearray(right)
        wrong[place] ^= 1 << chance.randrange(8)
        check_damaged_file(tmp_path, path, bytes(wrong), kept)


def check_damaged_file(directory: Path, path: Path, file: bytes, kept: dict[bytes, Version]) -> None:
    path.write_bytes(file)
    tier = LmdbTier(directory, 8 * MIB, "/src")
    found = [holds(tier, key, version) for key, version in kept.items()]
    # The last commit may be undone by damage to its meta page: then older samples show up, and are right too.
    assert all(found) or tier.errors
    assert put(tier, b"new", V)
    tier.drop(b"0")
    tier.flush()
    assert holds(tier, b"new", V)
    tier.close()


def test_truncated_file(tmp_path: Path) -> None:
    kept = fill(tmp_path, [400] * 60 + [5000] * 10)
    path = data_file(tmp_path)
    right = path.read_bytes()
    for length in [0, 1, 100, 4096, 4097, *range(8192, len(right), 16384 + 11), len(right) - 1]:
        check_damaged_file(tmp_path, path, right[:length], kept)


def test_garbage_is_cleared_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, [400] * 10)
    path = data_file(tmp_path)
    path.write_bytes(random.Random(3).randbytes(100_000))
    tier = LmdbTier(tmp_path, 4 * MIB, "/src")
    assert (tier.keys(), tier.errors) == ([], 1)
    assert "starting empty" in caplog.text
    assert put(tier, b"k", V)
    tier.close()
    again = LmdbTier(tmp_path, 4 * MIB, "/src")
    assert holds(again, b"k", V)
    assert again.errors == 0
    again.close()


def test_missing_record_is_counted(tmp_path: Path) -> None:
    tier = LmdbTier(tmp_path, 4 * MIB, "/src")
    assert put(tier, b"k", V)
    tier.flush()
    folder, digest = str(data_file(tmp_path).parent), cache_directory.key_digest(b"k")
    delete = f"import lmdb\nwith lmdb.open({folder!r}).begin(write=True) as t: assert t.delete({digest!r})"
    subprocess.run([sys.executable, "-c", delete], check=True)
    assert tier.get(b"k", V) is None
    assert (tier.errors, tier.used_bytes) == (1, 0)
    tier.close()


def test_a_page_that_is_free_and_in_use(tmp_path: Path) -> None:
    """LMDB would give the page to the next sample, and overwrite a live one."""
    kept = fill(tmp_path, [400] * 60 + [5000] * 10)
    path = data_file(tmp_path)
    right = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    walk = lmdb_pages.StructureCheck(fd, False)
    lists = [(page, node) for page, node in walk.nodes(walk.meta.free) if not node.big]
    os.close(fd)
    root = walk.meta.main.root
    page, node = lists[0]
    at = int.from_bytes(page[:8], "little") * 4096 + node.value_at
    wrong = right[:at] + struct.pack("=QQ", 1, root) + right[at + 16 :]
    check_damaged_file(tmp_path, path, wrong, kept)
    path.write_bytes(wrong)
    tier = LmdbTier(tmp_path, 8 * MIB, "/src")
    assert (tier.errors, tier.used_bytes) == (1, 0)
    tier.close()


def test_walk_finds_what_lmdb_finds(tmp_path: Path) -> None:
    """The walk over pages against LMDB itself, with small, large and replaced values, three levels deep."""
    chance = random.Random(5)
    with lmdb.open(str(tmp_path / "env"), map_size=64 * MIB) as env:
        for _ in range(20):
            with env.begin(write=True) as transaction:
                for _ in range(400):
                    transaction.put(chance.randbytes(16), bytes(chance.choice([0, 1500, 1990, 2000, 2100, 9000])))
                for key in [key for key, _ in transaction.cursor()][::31]:
                    transaction.delete(key)
        with env.begin() as transaction:
            expected = [(key, len(value)) for key, value in transaction.cursor()]
        assert env.stat()["depth"] >= 3
    fd = os.open(tmp_path / "env" / "data.mdb", os.O_RDONLY)
    assert lmdb_pages.read_entries(fd, overflow_heads=True) == expected
    os.close(fd)


def test_a_tier_that_has_no_room_left_says_so_by_its_capacity(tmp_path: Path) -> None:
    """Whoever makes room in it looks at that."""
    tier = LmdbTier(tmp_path, 4 * MIB, "/src")
    number = 0
    while put(tier, b"%d" % number, Version(20_000, 1)):
        number += 1
    assert number > 100
    assert 0 <= tier.capacity_bytes - tier.used_bytes < 2 * tier.footprint_bytes(20_000)
    tier.close()


def test_smaller_budget(tmp_path: Path) -> None:
    """The file fits, its account does not: some go. The file does not fit: all go, since it cannot shrink."""
    tier = LmdbTier(tmp_path, 4 * MIB, "/src")
    assert all(put(tier, b"%d" % number, Version(3000, 1)) for number in range(400))
    tier.close()
    size_bytes = data_file(tmp_path).stat().st_size
    tier = LmdbTier(tmp_path, size_bytes + 10 * 4096, "/src")
    assert tier.used_bytes <= tier.capacity_bytes
    held = len(tier.keys())
    assert 300 < held < 400
    tier.close()
    tier = LmdbTier(tmp_path, size_bytes + 10 * 4096, "/src")
    assert len(tier.keys()) == held
    assert tier.errors == 0
    tier.close()
    tier = LmdbTier(tmp_path, size_bytes - 4096, "/src")
    assert (tier.keys(), tier.used_bytes) == ([], 0)
    tier.close()


def test_second_mount_is_refused_and_a_sibling_store_is_not(tmp_path: Path) -> None:
    tier = LmdbTier(tmp_path, MIB, "/src")
    program = (
        "import sys; from mlfs.places.lmdb_store import LmdbTier; LmdbTier(sys.argv[1], 1 << 20, sys.argv[2]).close()"
    )
    run = [sys.executable, "-c", program, tmp_path]
    result = subprocess.run([*run, "/src"], capture_output=True, text=True, check=False)
    assert f"is in use by process {os.getpid()}" in result.stderr
    subprocess.run([*run, "/other"], check=True)
    tier.close()
    subprocess.run([*run, "/src"], check=True)


def test_full_disk(small_disk: Callable[[int], SmallDisk], clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    disk = small_disk(MIB)
    tier = LmdbTier(disk.path, 64 * MIB, "/src", clock=clock)
    for number in range(200):
        put(tier, b"%d" % number, Version(9000, number))
        if number % 20 == 0:
            tier.flush()
    tier.flush()
    assert tier.errors > 0
    assert not put(tier, b"k", V)  # it rests
    errors, used_bytes = tier.errors, tier.used_bytes
    held = tier.keys()
    assert (tier.errors, tier.used_bytes) == (errors, used_bytes)  # what was not committed was forgotten already
    assert 20 <= len(held) < 120
    assert all(holds(tier, key, Version(9000, int(key))) for key in held)
    assert tier.used_bytes == len(held) * tier.footprint_bytes(9000)
    assert len([entry for entry in caplog.records if "ENOSPC" in entry.message]) == 1
    for key in held[10:]:
        tier.drop(key)
    tier.flush()
    clock.now_s += 31
    assert put(tier, b"k", V)
    tier.flush()
    assert holds(tier, b"k", V)
    tier.close()


def test_read_only_directory_is_read(small_disk: Callable[[int], SmallDisk]) -> None:
    disk = small_disk(8 * MIB)
    kept = fill(disk.path, [700] * 30, capacity_bytes=4 * MIB)
    disk.read_only(True)
    tier = LmdbTier(disk.path, 4 * MIB, "/src")
    assert all(holds(tier, key, version) for key, version in kept.items())
    assert not put(tier, b"new", V)
    tier.drop(b"0")
    assert not tier.contains(b"0")
    assert tier.read_only
    tier.close()


def test_read_only_garbage_is_an_empty_tier(small_disk: Callable[[int], SmallDisk]) -> None:
    disk = small_disk(8 * MIB)
    fill(disk.path, [700], capacity_bytes=4 * MIB)
    data_file(disk.path).write_bytes(b"garbage" * 10_000)
    disk.read_only(True)
    tier = LmdbTier(disk.path, 4 * MIB, "/src")
    assert (tier.keys(), tier.errors) == ([], 1)
    assert tier.get(b"0", Version(700, 0)) is None
    assert not put(tier, b"new", V)
    tier.close()


def test_many_reading_threads(tmp_path: Path) -> None:
    tier = LmdbTier(tmp_path, 8 * MIB, "/src")
    versions = {b"%d" % number: Version(5000, number) for number in range(64)}
    assert all(put(tier, key, version) for key, version in versions.items())
    tier.flush()
    answers = {key: content(key, version) for key, version in versions.items()}

    def read(_: int) -> bool:
        return all(tier.get(key, versions[key]) == answers[key] for key in versions)

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(read, range(64)))
    assert tier.errors == 0
    tier.close()


def test_a_sibling_process_can_read(tmp_path: Path) -> None:
    tier = LmdbTier(tmp_path, 4 * MIB, "/src")
    assert put(tier, b"k", V)
    tier.flush()
    program = """if True:
        import sys, lmdb
        from mlfs.places import cache_directory, record
        from mlfs.places.secret import of_this_user
        with lmdb.open(sys.argv[1], readonly=True) as env, env.begin() as transaction:
            blob = transaction.get(cache_directory.key_digest(b"k"))
        sys.stdout.buffer.write(bytes(record.data_of(blob, b"k", (700, 1, 0), of_this_user())))"""
    path = data_file(tmp_path).parent
    assert subprocess.run([sys.executable, "-c", program, path], capture_output=True, check=True).stdout == content(
        b"k", V
    )
    tier.close()


@pytest.mark.promise("copy-killed")
def test_killed_while_writing(tmp_path: Path) -> None:
    assert kill_and_look("lmdb", tmp_path, rounds=5) > 20
