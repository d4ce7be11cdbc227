"""The RAM tier: the contract over a real mount and the kernel's own page cache, and the kernel taking pages back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from contract import MIB, MakeTier, TierContract
from ram_mount import RamMount, SuiteTier

from mlfs.engine.table import SampleTable, State, footprint_bytes
from mlfs.tiers.contract import Tier
from mountd import pagecache

FILES, SIZE = 140, 30_000
OWN = FILES - 20  # the suite changes the files from the first one on; the tests here use those from this one on


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RamMount]:
    """One mount for all: a process has one session of pyfuse3."""
    with RamMount(tmp_path_factory.mktemp("ram"), FILES, SIZE, 64 * MIB) as mount:
        yield mount


@pytest.fixture
def mount(served: RamMount) -> Iterator[RamMount]:
    """The mount with nothing kept and all the room."""
    served.set_capacity(64 * MIB)
    served.empty()
    yield served
    assert_books_balance(served.engine.table)


def assert_books_balance(table: SampleTable) -> None:
    state = table.state
    kept = [entry for entry in range(len(state)) if state[entry] == State.KEPT]
    assert table.kept_bytes == sum(map(table.footprint, kept))
    assert table.kept_samples == len(kept)
    promised = [entry for entry in range(len(state)) if table.promised[entry]]
    assert table.promised_bytes == sum(map(table.footprint, promised))
    window = [entry for entry in range(len(state)) if State.FETCHING <= state[entry] <= State.DROPPING]
    assert table.window_bytes == sum(map(table.footprint, window))


def content(mount: RamMount, entry: int) -> bytes:
    return (mount.source / os.fsdecode(mount.manifest.path(entry))).read_bytes()


def put(mount: RamMount, entry: int, tier: Tier | None = None) -> bool:
    key, version = mount.manifest.path(entry), mount.engine.fetcher.version(entry)
    return (tier or mount.engine.ram).put(key, version, memoryview(content(mount, entry)))


def get(mount: RamMount, entry: int) -> bytes | memoryview | None:
    return mount.engine.ram.get(mount.manifest.path(entry), mount.engine.fetcher.version(entry))


class TestRamContract(TierContract):
    persistent = False

    @pytest.fixture
    def make_tier(self, mount: RamMount) -> Iterator[MakeTier]:
        made: list[SuiteTier] = []

        def make(capacity_bytes: int) -> SuiteTier:
            made.append(SuiteTier(mount, capacity_bytes))
            return made[-1]

        yield make
        for tier in made:
            tier.close()


def test_a_kept_sample_is_read_without_the_daemon_and_the_source(mount: RamMount) -> None:
    entry = mount.entries[OWN + 0]
    assert put(mount, entry)
    reads, kept = mount.channel.request_counts()["read"], mount.engine.counters.all.reads["ram"].count
    fetches = mount.engine.counters.all.fetches["pfs"].count
    assert (mount.path / os.fsdecode(mount.manifest.path(entry))).read_bytes() == content(mount, entry)
    assert mount.channel.request_counts()["read"] == reads
    assert mount.engine.counters.all.reads["ram"].count == kept + 1
    assert mount.engine.counters.all.fetches["pfs"].count == fetches


@pytest.mark.parametrize("hole", [(0, 0), (0, 4096), (8192, 4096), (28_672, 4096)], ids=str)
def test_pages_taken_back_are_noticed_and_the_room_is_given_back(mount: RamMount, hole: tuple[int, int]) -> None:
    entry, other = mount.entries[OWN + 1 : OWN + 3]
    assert put(mount, entry)
    assert put(mount, other)
    assert get(mount, entry) == content(mount, entry)
    mount.take_back(entry, *hole)
    assert mount.engine.ram.contains(mount.manifest.path(entry))  # believed until asked
    assert get(mount, entry) is None
    assert not mount.engine.ram.contains(mount.manifest.path(entry))
    assert mount.engine.ram.used_bytes == mount.engine.ram.footprint_bytes(SIZE)
    assert mount.engine.ram.errors == 0
    assert get(mount, other) == content(mount, other)
    assert put(mount, entry)
    assert get(mount, entry) == content(mount, entry)


def test_refuses_what_is_not_the_manifests(mount: RamMount) -> None:
    ram, entry = mount.engine.ram, mount.entries[OWN + 3]
    key, version, data = mount.manifest.path(entry), mount.engine.fetcher.version(entry), memoryview(bytes(SIZE))
    assert not ram.put(b"no such file", version, data)
    assert not ram.put(b"", version, data)
    assert not ram.put(key, version._replace(mtime_ns=version.mtime_ns + 1), data)
    assert not ram.put(key, version, data[1:])
    assert (ram.used_bytes, ram.errors, ram.keys()) == (0, 0, [])


def test_pages_that_the_kernel_refuses_give_their_room_back(mount: RamMount) -> None:
    tier = mount.make_tier(push=lambda *_: False)
    assert not put(mount, mount.entries[OWN + 4], tier)
    assert not put(mount, mount.entries[OWN + 5], tier)
    assert (tier.errors, tier.used_bytes, tier.keys()) == (2, 0, [])


def test_a_change_at_the_source_beats_a_put_under_way(mount: RamMount) -> None:
    entry = mount.entries[OWN + 6]
    new = os.urandom(SIZE)

    def change_first(*args: Any) -> bool:
        mount.change(entry, new, 5)
        return mount.engine.fetcher.push(*args)

    tier = mount.make_tier(push=change_first)
    assert not put(mount, entry, tier)
    assert (tier.errors, tier.used_bytes) == (0, 0)
    assert (mount.path / os.fsdecode(mount.manifest.path(entry))).read_bytes() == new


def test_a_change_while_it_is_read_gives_nothing(mount: RamMount, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = mount.entries[OWN + 7]
    assert put(mount, entry)
    read = mount.pages.read

    def read_then_change(entry: int, size: int) -> bytes | None:
        data = read(entry, size)
        mount.change(entry, os.urandom(SIZE), 6)
        return data

    monkeypatch.setattr(mount.pages, "read", read_then_change)
    assert get(mount, entry) is None
    assert mount.engine.ram.used_bytes == 0


# -- probes


def test_probes_are_no_reads(mount: RamMount) -> None:
    there, gone = mount.entries[OWN + 8 : OWN + 10]
    assert put(mount, there)
    mount.take_back(gone)
    mount.on_loop(mount.engine.staging.drop_lingering)
    opens = sum(route.count for route in mount.engine.counters.all.reads.values())
    asked = mount.channel.request_counts()
    for _ in range(3):
        assert mount.pages.resident(there, SIZE)
        assert not mount.pages.resident(gone, SIZE)
        assert mount.pages.read(gone, SIZE) is None
        assert mount.pages.read(there, SIZE) == content(mount, there)
    assert sum(route.count for route in mount.engine.counters.all.reads.values()) == opens
    assert mount.engine.counters.errors == {}
    assert mount.channel.request_counts()["read"] == asked["read"]
    assert mount.channel.request_counts()["release"] >= asked["release"] + 11  # the last one may be under way
    assert mount.engine.table.open_count == {}
    assert mount.pages.read(there, SIZE + 1) is None
    assert mount.pages.resident(there, 0)


def test_a_kernel_that_says_all_is_there_is_not_believed(mount: RamMount, monkeypatch: pytest.MonkeyPatch) -> None:
    """mincore(2) says so of files that the asker neither owns nor may write."""
    monkeypatch.setattr(pagecache, "_all_in_core", lambda fd, size: True)
    entry = mount.entries[OWN + 10]
    assert put(mount, entry)
    assert mount.pages.resident(entry, SIZE)
    for hole in ((8192, 4096), (0, 0)):
        mount.take_back(entry, *hole)
        assert not mount.pages.resident(entry, SIZE)
        assert mount.pages.read(entry, SIZE) is None
    assert (mount.path / os.fsdecode(mount.manifest.path(entry))).read_bytes() == content(mount, entry)


def test_a_reader_with_the_flags_of_a_probe_is_a_reader(mount: RamMount) -> None:
    entry = mount.entries[OWN + 11]
    path = mount.path / os.fsdecode(mount.manifest.path(entry))
    code = (
        "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK | os.O_DSYNC);"
        f"sys.stdout.buffer.write(os.read(fd, {SIZE + 1}))"
    )
    before = sum(route.count for route in mount.engine.counters.all.reads.values())
    done = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True)
    assert done.stdout == content(mount, entry)
    assert sum(route.count for route in mount.engine.counters.all.reads.values()) == before + 1


# -- the books


def test_a_put_of_what_the_window_holds_moves_it_to_the_ram_class(mount: RamMount) -> None:
    entry = mount.entries[OWN + 12]
    mount.set_capacity(0)
    (mount.path / os.fsdecode(mount.manifest.path(entry))).read_bytes()
    assert mount.engine.table.state[entry] == State.RECENT
    assert not put(mount, entry)
    mount.set_capacity(MIB)
    assert put(mount, entry)
    assert mount.engine.table.state[entry] == State.KEPT
    assert mount.engine.ram.used_bytes == footprint_bytes(SIZE)


def disturb(table: SampleTable, entry: int, step: str) -> None:
    """What the engine may do with an entry between a put's two steps."""
    state = table.state[entry]
    if step == "fetch" and state == State.ABSENT:
        table.move(entry, State.FETCHING)
    elif step == "fetch again" and state == State.KEPT:
        table.fetch_kept_again(entry)
    elif step == "staged" and state == State.FETCHING:
        table.move(entry, State.RECENT if entry % 2 else State.STAGED)
    elif step == "failed" and state == State.FETCHING:
        table.break_promise(entry)
        table.move(entry, State.ABSENT)
    elif step == "used" and state in (State.STAGED, State.RECENT):
        table.move(entry, State.KEPT if table.promised[entry] else State.ABSENT)


def test_the_books_balance_whatever_meets_a_put() -> None:
    """Puts, fetches, uses and drops of a few entries in any order; the sums and the capacity hold each time."""
    chance = random.Random(5)
    sizes = memoryview(bytearray(8 * 6)).cast("q")
    for entry, size in enumerate((0, 1, 4096, 5000, 9000, 12_288)):
        sizes[entry] = size
    table = SampleTable(6, sizes, 1 << 20, 6 * 4096)
    puts = {
        "begin": table.begin_keep,
        "pushed": lambda entry: table.end_keep(entry, True),
        "refused": lambda entry: table.end_keep(entry, False),
        "forgotten": table.end_kept,
    }
    seen = set()
    for _ in range(20_000):
        entry = chance.randrange(6)
        step = chance.choice([*puts, "fetch", "fetch again", "staged", "failed", "used"])
        if step in puts:
            seen.add((step, puts[step](entry)))
        else:
            disturb(table, entry, step)
        assert_books_balance(table)
        assert table.kept_bytes + table.promised_bytes <= table.ram_capacity_bytes
        assert table.kept_entries() == [e for e in range(6) if table.keeps(e)]
    assert seen == {(step, answer) for step in puts for answer in (True, False)} - {("refused", True)}


def test_the_status_shows_the_tier(mount: RamMount) -> None:
    assert isinstance(mount.engine.ram, Tier)
    assert put(mount, mount.entries[OWN + 13])
    row = json.loads((mount.path / ".mlfs" / "status").read_bytes())["tiers"][0]
    used = footprint_bytes(SIZE)
    assert row == {
        "name": "ram",
        "capacity_bytes": 64 * MIB,
        "used_bytes": used,
        "promised_bytes": 0,
        "samples": 1,
        "errors": 0,
    }
