"""The contract of tiers as tests: every implementation runs all of them.

A test module subclasses `TierContract` and overrides the fixture `make_tier`. Capacities asked for are at least 2 MiB;
`reopen` closes a tier and makes the next one over what it left.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from mlfs.places.on_disk import OnDisk
from mlfs.places.tier import KeyedCopy, Tier, Version

MIB = 1 << 20
PATIENCE_S = 60.0  # as in tests/support, which the program in killing.py cannot import
MakeTier = Callable[[int], Tier]


def content(key: bytes, version: Version) -> bytes:
    """Bytes that follow from key and version, so that a reader can tell right from wrong ones."""
    return random.Random(repr((key, version))).randbytes(version.size_bytes)


def put(tier: Tier, key: bytes, version: Version) -> bool:
    return tier.put(key, version, memoryview(content(key, version)))


def sample(key: bytes, version: Version) -> KeyedCopy:
    return KeyedCopy(key, version, memoryview(content(key, version)))


def holds(tier: Tier, key: bytes, version: Version) -> bool:
    """Whether the tier answers; fails if it answers wrongly."""
    got = tier.get(key, version)
    assert got is None or bytes(got) == content(key, version)
    return got is not None


def held(tier: Tier, keys: Iterable[bytes]) -> list[bytes]:
    """Those of the keys that the tier has a copy of."""
    return [key for key in keys if tier.contains(key)]


def rounds(count: int, enough: list[int]) -> Iterator[int]:
    """So many turns, and more until others have had enough of their turns: on a slow disk readers come seldom."""
    yield from range(count)
    end = time.monotonic() + PATIENCE_S
    while not enough and time.monotonic() < end:
        yield 0


class TierContract:
    """All that a tier promises. `persistent`: copies outlive close(). `for_copies`: the share that they may take."""

    persistent: bool
    for_copies = 1.0

    @pytest.fixture
    def make_tier(self) -> Iterator[MakeTier]:
        """Override: return a function that makes a tier; a persistent one finds what the last one left."""
        raise NotImplementedError

    def test_put_get(self, make_tier: MakeTier) -> None:
        tier = make_tier(4 * MIB)
        assert isinstance(tier, Tier)
        for size in (0, 1, 100, 2000, 4096, 110_000):
            key, version = b"sample %d" % size, Version(size, 1_700_000_000_123_456_789)
            assert not tier.contains(key)
            assert put(tier, key, version)
            assert tier.contains(key)
            assert holds(tier, key, version)
        assert tier.errors == 0
        assert self.for_copies * 4 * MIB <= tier.capacity_bytes <= 4 * MIB

    def test_unknown_key(self, make_tier: MakeTier) -> None:
        tier = make_tier(4 * MIB)
        assert put(tier, b"known", Version(10, 1))
        assert tier.get(b"unknown", Version(10, 1)) is None
        assert not tier.contains(b"unknown")
        tier.drop(b"unknown")
        assert holds(tier, b"known", Version(10, 1))
        assert tier.errors == 0

    def test_copies_of_other_keys_than_are_known_go_when_they_were_there_before(self, make_tier: MakeTier) -> None:
        tier, version = make_tier(4 * MIB), Version(1000, 1)
        if not isinstance(tier, OnDisk):
            return
        assert all(put(tier, b"%d" % number, version) for number in range(6))

        def keys() -> Iterator[bytes]:
            assert put(tier, b"new", version)
            yield from (b"1", b"4", b"unknown")

        assert (tier.copies, tier.drop_others(keys), tier.copies) == (6, 4, 3)
        assert held(tier, [b"%d" % number for number in range(6)] + [b"new"]) == [b"1", b"4", b"new"]
        assert tier.used_bytes == 3 * tier.footprint_bytes(1000)
        assert tier.errors == 0

    @pytest.mark.parametrize("mtime_ns", [0, -1, -(10**18), 2**63 + 5, 1_700_000_000_999_999_999])
    def test_any_mtime(self, make_tier: MakeTier, mtime_ns: int) -> None:
        tier = make_tier(2 * MIB)
        assert put(tier, b"k", Version(5, mtime_ns))
        assert tier.get(b"k", Version(5, mtime_ns + 1)) is None
        assert put(tier, b"k", Version(5, mtime_ns))
        assert holds(tier, b"k", Version(5, mtime_ns))

    def test_replaced_version(self, make_tier: MakeTier) -> None:
        tier = make_tier(4 * MIB)
        old, new = Version(50_000, 1), Version(3_000, 2)
        assert put(tier, b"k", old)
        assert put(tier, b"k", new)
        assert holds(tier, b"k", new)
        assert tier.used_bytes == tier.footprint_bytes(3_000)
        assert tier.contains(b"k")

    @pytest.mark.parametrize("asked", [Version(1000, 2), Version(999, 1), Version(1000, 1, 5)])
    def test_wrong_version_is_dropped(self, make_tier: MakeTier, asked: Version) -> None:
        tier = make_tier(4 * MIB)
        assert put(tier, b"k", Version(1000, 1))
        assert tier.get(b"k", asked) is None
        assert not tier.contains(b"k")
        assert tier.used_bytes == 0
        assert tier.errors == 0

    @pytest.mark.parametrize(
        "key", [b"a/b", bytes(range(1, 256)), b"\xff\xfe/\x80", b"x" * 4000, "Ünïcödé/日本.jpg".encode(), b"../../etc"]
    )
    def test_any_key(self, make_tier: MakeTier, key: bytes) -> None:
        tier = make_tier(4 * MIB)
        version = Version(700, 3)
        assert put(tier, key, version)
        assert holds(tier, key, version)
        assert tier.contains(key)
        tier.drop(key)
        assert tier.used_bytes == 0

    def test_every_byte_is_accounted(self, make_tier: MakeTier) -> None:
        tier = make_tier(4 * MIB)
        assert tier.used_bytes == 0
        expected = 0
        for number, size in enumerate([0, 1, 500, 1800, 2100, 4096, 9000, 60_000]):
            assert tier.footprint_bytes(size) >= size
            assert put(tier, b"%d" % number, Version(size, 1))
            expected += tier.footprint_bytes(size)
            assert tier.used_bytes == expected

    def test_full(self, make_tier: MakeTier) -> None:
        """Fill it: bounded, refuses what does not fit, keeps nothing of it, and keeps what it has."""
        tier = make_tier(2 * MIB)
        version = Version(20_000, 1)
        kept = 0
        while put(tier, b"%d" % kept, version):
            kept += 1
            assert tier.used_bytes <= tier.capacity_bytes
            assert kept < 200
        assert kept >= 75  # of 104 that would fit without any overhead
        assert tier.get(b"%d" % kept, version) is None
        assert not tier.contains(b"%d" % kept)
        assert all(holds(tier, b"%d" % number, version) for number in range(kept))
        assert tier.used_bytes == kept * tier.footprint_bytes(20_000)

    def test_many_at_once(self, make_tier: MakeTier) -> None:
        """As `put` for each in turn: bounded, exactly accounted, empty ones and replaced ones as well."""
        tier = make_tier(2 * MIB)
        assert tier.put_all([]) == []
        assert put(tier, b"5", Version(1, 9))
        samples = {b"%d" % n: Version((0, 1, 4095, 4096, 4097, 20_000)[n % 6], n) for n in range(600)}
        kept = tier.put_all([sample(key, version) for key, version in samples.items()])
        assert kept[:30] == [True] * 30
        assert not all(kept)
        expected = {key: version for (key, version), is_kept in zip(samples.items(), kept, strict=True) if is_kept}
        assert held(tier, samples) == list(expected)
        assert all(holds(tier, key, version) for key, version in expected.items())
        assert tier.used_bytes == sum(tier.footprint_bytes(version.size_bytes) for version in expected.values())
        assert tier.used_bytes <= tier.capacity_bytes

    def test_one_key_twice_at_once(self, make_tier: MakeTier) -> None:
        tier = make_tier(2 * MIB)
        first, second, too_large = Version(5000, 1), Version(3000, 2), Version(3 * MIB, 3)
        assert tier.put_all([sample(b"k", first), sample(b"k", second)]) == [True, True]
        assert holds(tier, b"k", second)
        assert tier.used_bytes == tier.footprint_bytes(3000)
        assert tier.put_all([sample(b"k", first), sample(b"k", too_large)]) == [True, False]
        assert tier.used_bytes == 0

    def test_too_large_replacement_keeps_nothing(self, make_tier: MakeTier) -> None:
        tier = make_tier(2 * MIB)
        assert put(tier, b"k", Version(100, 1))
        assert not put(tier, b"k", Version(3 * MIB, 2))
        assert not tier.contains(b"k")
        assert tier.get(b"k", Version(100, 1)) is None
        assert tier.used_bytes == 0

    def test_drop_frees(self, make_tier: MakeTier) -> None:
        tier = make_tier(2 * MIB)
        version = Version(100_000, 1)
        for turn in range(30):  # 3 MB in all: does not fit unless drops free
            assert put(tier, b"%d" % turn, version)
            if turn >= 3:
                tier.drop(b"%d" % (turn - 3))
        assert tier.used_bytes == 3 * tier.footprint_bytes(100_000)
        assert held(tier, [b"%d" % turn for turn in range(30)]) == [b"27", b"28", b"29"]

    def test_parallel_puts_stay_within_capacity(self, make_tier: MakeTier) -> None:
        tier = make_tier(2 * MIB)
        peaks: list[int] = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                peaks.append(tier.used_bytes)

        def fill(worker: int) -> list[bytes]:
            keys = [b"%d/%d" % (worker, number) for number in range(12)]
            return [key for key in keys if put(tier, key, Version(40_000, 1))]

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(8) as pool:
            accepted = [key for keys in pool.map(fill, range(8)) for key in keys]
        done.set()
        watcher.join()
        assert max(peaks) <= tier.capacity_bytes
        assert 0 < len(accepted) < 96
        assert held(tier, [b"%d/%d" % (worker, number) for worker in range(8) for number in range(12)]) == accepted
        assert tier.used_bytes == len(accepted) * tier.footprint_bytes(40_000)

    def test_parallel_puts_of_one_key(self, make_tier: MakeTier) -> None:
        tier = make_tier(4 * MIB)
        versions = [Version(1000 + number * 5000, number) for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda version: put(tier, b"k", version), versions))
        assert tier.used_bytes in [tier.footprint_bytes(version.size_bytes) for version in versions]

    def test_concurrent_reads_never_see_wrong_bytes(self, make_tier: MakeTier) -> None:
        tier = make_tier(4 * MIB)
        keys = [b"k%d" % number for number in range(4)]
        versions = [Version(30_000, 1), Version(30_000, 2), Version(2_000, 3)]
        answers = {(key, version): content(key, version) for key in keys for version in versions}
        done = threading.Event()
        hits: list[int] = []

        def change(seed: int) -> None:
            chance = random.Random(seed)
            for _ in rounds(250, enough=hits):
                key, version = chance.choice(keys), chance.choice(versions)
                if chance.random() < 0.2:
                    tier.drop(key)
                else:
                    assert tier.put(key, version, memoryview(answers[key, version]))

        def read(seed: int) -> None:
            chance = random.Random(seed)
            while not done.is_set():
                key, version = chance.choice(keys), chance.choice(versions)
                got = tier.get(key, version)
                if got is not None:
                    assert got == answers[key, version]
                    hits.append(1)

        with ThreadPoolExecutor(5) as pool:
            readers = [pool.submit(read, seed) for seed in range(3)]
            writers = [pool.submit(change, seed) for seed in range(2)]
            for writer in writers:
                writer.result()
            done.set()
            for reader in readers:
                reader.result()
        assert hits
        assert tier.errors == 0
        for key in keys:
            tier.drop(key)
        assert tier.used_bytes == 0

    def test_answer_outlives_the_copy(self, make_tier: MakeTier) -> None:
        tier = make_tier(2 * MIB)
        version = Version(50_000, 1)
        assert put(tier, b"k", version)
        got = tier.get(b"k", version)
        assert got is not None
        for number in range(10):
            put(tier, b"k", Version(50_000, 2 + number))
        tier.drop(b"k")
        tier.close()
        assert bytes(got) == content(b"k", version)

    def test_closed_tier_is_empty(self, make_tier: MakeTier) -> None:
        tier = make_tier(2 * MIB)
        assert put(tier, b"k", Version(10, 1))
        tier.close()
        tier.close()
        assert tier.get(b"k", Version(10, 1)) is None
        assert not put(tier, b"k", Version(10, 1))

    def test_next_mount(self, make_tier: MakeTier) -> None:
        """What the next tier over the same place holds: all of it or nothing."""
        tier = make_tier(4 * MIB)
        kept = {b"k%d" % number: Version(number * 1111, number) for number in range(20)}
        assert all(put(tier, key, version) for key, version in kept.items())
        tier.drop(b"k7")
        del kept[b"k7"]
        used_bytes = tier.used_bytes
        tier.close()
        tier = make_tier(4 * MIB)
        if not self.persistent:
            assert (held(tier, kept), tier.used_bytes) == ([], 0)
            return
        assert tier.used_bytes == used_bytes
        assert held(tier, kept) == list(kept)
        assert all(holds(tier, key, version) for key, version in kept.items())
        assert not tier.contains(b"k7")
        assert tier.errors == 0

    def test_against_a_model(self, make_tier: MakeTier) -> None:
        persistent = self.persistent
        run_state_machine_as_test(
            lambda: TierMachine(make_tier, persistent),
            settings=settings(
                max_examples=15,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
                derandomize=True,
            ),
        )


class TierMachine(RuleBasedStateMachine):
    """The tier against a dict, with room for everything, so that it has no excuse to lose a sample."""

    _all_keys = (b"a", b"b/c", b"\xff", b"y" * 500)
    _keys = st.sampled_from(_all_keys)
    _versions = st.builds(Version, st.sampled_from([0, 1, 300, 1990, 2500, 9000]), st.integers(1, 2), st.integers(1, 2))

    def __init__(self, make_tier: MakeTier, persistent: bool) -> None:
        super().__init__()
        self.make_tier = make_tier
        self.persistent = persistent
        self.model: dict[bytes, Version] = {}
        self.tier = make_tier(4 * MIB)
        for key in self._all_keys:  # by the example before
            self.tier.drop(key)

    @rule(key=_keys, version=_versions)
    def put(self, key: bytes, version: Version) -> None:
        assert put(self.tier, key, version)
        self.model[key] = version

    @rule(samples=st.lists(st.tuples(_keys, _versions), max_size=5))
    def put_all(self, samples: list[tuple[bytes, Version]]) -> None:
        assert all(self.tier.put_all([sample(key, version) for key, version in samples]))
        self.model |= dict(samples)

    @rule(key=_keys, version=_versions)
    def get(self, key: bytes, version: Version) -> None:
        assert holds(self.tier, key, version) == (self.model.get(key) == version)
        if self.model.get(key) != version:
            self.model.pop(key, None)

    @rule(key=_keys)
    def get_held(self, key: bytes) -> None:
        if key in self.model:
            assert holds(self.tier, key, self.model[key])

    @rule(key=_keys)
    def drop(self, key: bytes) -> None:
        self.tier.drop(key)
        self.model.pop(key, None)

    @rule()
    def reopen(self) -> None:
        self.tier.close()
        self.tier = self.make_tier(4 * MIB)
        if not self.persistent:
            self.model.clear()

    @invariant()
    def same_keys(self) -> None:
        assert held(self.tier, self._all_keys) == [key for key in self._all_keys if key in self.model]
        assert (self.tier.used_bytes == 0) == (not self.model)
        assert self.tier.used_bytes <= self.tier.capacity_bytes
        assert self.tier.errors == 0

    def teardown(self) -> None:
        self.tier.close()
