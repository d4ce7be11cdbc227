"""The RAM tier under the contract that all tiers share, and what is its own: memory really comes and goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from killing import kill_and_look
from tier_contract import MIB, MakeTier, TierContract

from mlfs.places.memory_file import PAGE_BYTES
from mlfs.places.ram import FILES, RamTier
from mlfs.places.tier import Version

HUGE_PAGE_BYTES = 2 * MIB  # the kernel may back the arena's end with one


class TestRamTier(TierContract):
    """The shared suite. A tier that comes later has what the last one left in memory."""

    persistent = True

    @pytest.fixture
    def make_tier(self) -> Iterator[MakeTier]:
        made: list[RamTier] = []
        left: list[int] = []

        def make(capacity_bytes: int) -> RamTier:
            tier = RamTier(capacity_bytes, left)
            left[:] = map(os.dup, tier.memory)
            made.append(tier)
            return tier

        yield make
        for tier in made:
            tier.close()
        for fd in left:
            os.close(fd)


def shared_memory_bytes() -> int:
    """Shared memory that this process's memfds hold."""
    total = 0
    for fd in Path("/proc/self/fd").iterdir():
        try:
            if "mlfs-ram" in os.readlink(fd):
                total += fd.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_memory_is_taken_by_puts_and_given_back_by_drops() -> None:
    before = shared_memory_bytes()
    tier = RamTier(64 * MIB)
    data = os.urandom(110_000)
    for index in range(300):
        assert tier.put(b"%d" % index, Version(len(data), index), memoryview(data))
    assert tier.used_bytes == 300 * tier.footprint_bytes(110_000)
    assert tier.used_bytes <= shared_memory_bytes() - before <= tier.used_bytes + HUGE_PAGE_BYTES
    for index in range(0, 300, 2):
        tier.drop(b"%d" % index)
    assert tier.used_bytes == 150 * tier.footprint_bytes(110_000)
    assert tier.used_bytes <= shared_memory_bytes() - before <= tier.used_bytes + HUGE_PAGE_BYTES
    for index in range(1, 300, 2):
        assert tier.get(b"%d" % index, Version(len(data), index)) == data
    tier.close()
    assert shared_memory_bytes() == before


def test_a_put_of_another_size_than_its_version_says_is_refused() -> None:
    tier = RamTier(MIB)
    assert not tier.put(b"a", Version(10, 1), memoryview(b"short"))
    assert tier.used_bytes == 0
    tier.close()


def test_a_killed_process_leaves_whole_copies() -> None:
    tier = RamTier(4 * MIB)
    assert kill_and_look("ram", " ".join(map(str, tier.memory)), 5) > 30
    tier.close()


def test_copies_that_are_torn_or_too_many_and_bytes_without_a_record_are_given_back() -> None:
    tier = RamTier(MIB)
    data = os.urandom(10_000)
    assert all(tier.put(b"%d" % number, Version(len(data), number), memoryview(data)) for number in range(9))
    left = [os.dup(fd) for fd in tier.memory]
    os.pwrite(left[0], b"torn", 64 * 4 + 40)
    for fd in left[1:]:
        os.pwrite(fd, bytes(2 * HUGE_PAGE_BYTES), 64 * MIB)
    again = RamTier(7 * tier.footprint_bytes(len(data)), left)
    got = [again.get(b"%d" % number, Version(len(data), number)) for number in range(9)]
    assert got == [*[data] * 4, None, *[data] * 3, None]
    assert again.used_bytes == again.capacity_bytes
    held_bytes = sum(os.fstat(fd).st_blocks * 512 for fd in again.memory_fds)
    assert again.used_bytes <= held_bytes <= again.used_bytes + FILES * HUGE_PAGE_BYTES
    tier.close()
    again.close()


def test_what_another_process_reads_keeps_its_memory_until_it_gives_it_back() -> None:
    tier, version = RamTier(2 * PAGE_BYTES), Version(5, 1, 1)
    assert tier.put(b"a", version, memoryview(b"hello"))
    other, spot = tier.lend([(b"a", Version(5, 2, 2)), (b"a", version)])
    assert other is None
    assert spot is not None
    tier.drop(b"a")
    assert tier.get(b"a", version) is None
    fd = tier.shared_fds[spot.file]
    assert os.pread(fd, 5, spot.offset) == b"hello"
    assert tier.put(b"a", version, memoryview(b"again"))
    assert tier.used_bytes == 2 * PAGE_BYTES
    tier.give_back([spot])
    assert tier.used_bytes == PAGE_BYTES
    assert os.pread(fd, 5, spot.offset) == bytes(5)
    assert tier.get(b"a", version) == b"again"
    tier.close()
