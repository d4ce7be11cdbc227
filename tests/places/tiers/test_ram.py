"""The RAM tier under the contract that all tiers share, and what is its own: memory really comes and goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tier_contract import MIB, MakeTier, TierContract

from mlfs.places.ram import RamTier
from mlfs.places.tier import Version

HUGE_PAGE_BYTES = 2 * MIB  # the kernel may back the arena's end with one


class TestRamTier(TierContract):
    """The shared suite."""

    persistent = False

    @pytest.fixture
    def make_tier(self) -> Iterator[MakeTier]:
        made: list[RamTier] = []

        def make(capacity_bytes: int) -> RamTier:
            made.append(RamTier(capacity_bytes))
            return made[-1]

        yield make
        for tier in made:
            tier.close()


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
