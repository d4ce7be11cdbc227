"""What an agent reads of its node by itself: what the server's places keep, and nothing that they do not."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trees import make_tree

from mlfs.peers.shelf import Shelf
from mlfs.places.catalogue import Catalogue, CopyKind, Found, create
from mlfs.places.checksum import checksum
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.place import Copy, TierPlace
from mlfs.places.ram import RamTier
from mlfs.places.showcase import Showcase
from mlfs.places.ssd import SsdTier
from mlfs.plan.place_kind import PlaceKind
from mlfs.tree.samples import Samples, Version
from mlfs.tree.scan import scan


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    source = make_tree(tmp_path / "source", {f"f{number:02}": b"x" for number in range(20)})
    fd = os.open(source, os.O_RDONLY)
    try:
        return Samples.whole_files(scan(fd))
    finally:
        os.close(fd)


@given(st.integers(0, 2**32 - 1))
def test_a_shelf_gives_what_the_ram_class_has_now(seed: int) -> None:
    draw = np.random.default_rng(seed)
    # (drawn in one function, as fixtures of a function are not made anew for each example)
    ram, showcase = RamTier(1 << 20), Showcase()
    names = [b"f%02d" % number for number in range(20)]
    fd = showcase.open(20)
    shelf = Shelf(Catalogue(fd, 20), [os.dup(of) for of in ram.memory_fds])
    os.close(fd)
    kept: dict[int, tuple[Version, bytes]] = {}
    for step in range(60):
        sample = int(draw.integers(20))
        if draw.random() < 0.3:
            showcase.lost(sample)
            ram.drop(names[sample])
            kept.pop(sample, None)
        else:
            data = draw.bytes(int(draw.integers(0, 30_000)))
            version = Version(len(data), step)
            if ram.put(names[sample], version, memoryview(data)):
                where = ram.where(names[sample], version)
                assert where is not None
                showcase.kept(sample, CopyKind.RAM, where, version, data)
                kept[sample] = version, data
    for sample in range(20):
        version, data = kept.get(sample, (Version(1, 1), b""))
        found = shelf.find(sample, version)
        assert (found is None) == (sample not in kept)
        if found is not None:
            assert bytes(found[0]) == data
            assert found[1] == checksum(data, sample, version)
            assert shelf.find(sample, Version(version.size_bytes, version.mtime_ns + 1)) is None
    del found
    shelf.close()
    ram.close()


def one_copy() -> tuple[RamTier, Shelf, Version, bytes]:
    """Memory that keeps a copy, as b"a", and a shelf that shows it as sample 0."""
    ram, showcase = RamTier(1 << 20), Showcase()
    version, data = Version(9000, 1), os.urandom(9000)
    fd = showcase.open(1)
    shelf = Shelf(Catalogue(fd, 1), [os.dup(of) for of in ram.memory_fds])
    os.close(fd)
    ram.put(b"a", version, memoryview(data))
    where = ram.where(b"a", version)
    assert where is not None
    showcase.kept(0, CopyKind.RAM, where, version, data)
    return ram, shelf, version, data


def test_a_hole_has_the_wrong_checksum() -> None:
    """The catalogue is read without a lock: what was dropped after the look is found out by who gets it."""
    ram, shelf, version, _ = one_copy()
    ram.drop(b"a")
    found = shelf.find(0, version)
    assert found is not None
    assert checksum(found[0], 0, version) != found[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_catalogue_of_a_killed_server_gives_no_bytes_that_another_one_has_written(seed: int) -> None:
    """Until the next server has let the agent in, the catalogue is the old one and the memory is the new server's."""
    draw = np.random.default_rng(seed)
    old, showcase = RamTier(1 << 20), Showcase()
    fd = showcase.open(20)
    shelf = Shelf(Catalogue(fd, 20), [os.dup(of) for of in old.memory_fds])
    os.close(fd)

    def keep(tier: RamTier, sample: int) -> tuple[Version, bytes]:
        data = draw.bytes(int(draw.integers(1, 60_000)))
        version = Version(len(data), int(draw.integers(3)))
        tier.put(b"%d" % sample, version, memoryview(data))
        return version, data

    shown = {}
    for sample in draw.integers(20, size=30).tolist():
        version, data = shown[sample] = keep(old, sample)
        if (where := old.where(b"%d" % sample, version)) is not None:
            showcase.kept(sample, CopyKind.RAM, where, version, data)
    new = RamTier(1 << 20, [os.dup(of) for of in old.memory])
    wrong = 0
    for sample in draw.integers(20, size=30).tolist():
        new.drop(b"%d" % sample) if draw.random() < 0.5 else keep(new, sample)
    for sample, (version, data) in shown.items():
        found = shelf.find(sample, version)
        is_right = found is None or bytes(found[0]) == data
        assert is_right == (found is None or checksum(found[0], sample, version) == found[1])
        wrong += not is_right
    assert wrong
    del found
    shelf.close()
    new.close()
    old.close()


def test_memory_that_is_on_its_way_to_a_peer_outlives_the_shelf_and_then_is_given_back() -> None:
    """An agent lets go of the memory of a server that was killed: it would be as much as that server's again."""
    ram, shelf, version, data = one_copy()
    found = shelf.find(0, version)
    assert found is not None
    shelf.close()
    ram.close()
    assert bytes(found[0]) == data
    assert "mlfs-ram" in Path("/proc/self/maps").read_text()
    del found
    assert "mlfs-ram" not in Path("/proc/self/maps").read_text()


def test_a_record_that_points_anywhere_is_not_followed() -> None:
    """A torn record may name any offset: memory behind a file's end would kill the agent that touches it."""
    fd = create(4)
    catalogue = Catalogue(fd, 4)
    ram = RamTier(1 << 20)
    shelf = Shelf(catalogue, [os.dup(of) for of in ram.memory_fds])
    version = Version(100, 1)
    for where in ((0, 0), (0, 1 << 40), (3, (1 << 63) - 1), (7, 0), ((1 << 64) - 1, (1 << 64) - 1)):
        catalogue.put(2, Found(CopyKind.RAM, where, version))
        assert shelf.find(2, version) is None
    assert shelf.find(-1, version) is None
    assert shelf.find(4, version) is None
    os.close(fd)


def test_copies_on_disk_are_given_checked(samples: Samples, tmp_path: Path) -> None:
    showcase = Showcase()
    tier = SsdTier(tmp_path / "ssd", 1 << 24, "source")
    place = TierPlace(PlaceKind.SSD, tier, samples, showcase=showcase)
    fd = showcase.open(len(samples))
    shelf = Shelf(Catalogue(fd, len(samples)), [], [os.dup(tier.directory_fd)], secret=tier.secret)
    first, second = samples.ids[:2].tolist()
    data, version = os.urandom(50_000), Version(50_000, 7)
    assert place.keep([Copy(first, version, data), Copy(second, version, data)]) == [True, True]
    found = shelf.find(first, version)
    assert found is not None
    assert bytes(found[0]) == data
    assert found[1] == checksum(data, first, version)
    for path in (tmp_path / "ssd").rglob("*"):
        if path.is_file() and path.stat().st_size > 50_000:
            with path.open("r+b") as file:
                file.seek(40_000)
                file.write(b"spoilt")
    assert shelf.find(first, version) is None
    place.drop(second)
    assert shelf.find(second, version) is None
    os.close(fd)


READ_BY_AGENT = """
import sys
from mlfs.peers.shelf import Shelf
from mlfs.places.catalogue import Catalogue
from mlfs.places.secret import of_this_user
from mlfs.tree.samples import Version
catalogue, directory, *samples = map(int, sys.argv[1:])
shelf = Shelf(Catalogue(catalogue, 20), [], [], [directory], of_this_user())
for sample in samples:
    found = shelf.find(sample, Version(5000, 7))
    print("nothing" if found is None else f"{bytes(found[0]).hex()[:20]} {found[1]}")
shelf.close()
"""


def test_copies_in_lmdb_are_read_by_another_process(samples: Samples, tmp_path: Path) -> None:
    showcase = Showcase()
    tier = LmdbTier(tmp_path / "lmdb", 1 << 24, "source")
    place = TierPlace(PlaceKind.LMDB, tier, samples, showcase=showcase)
    fd = showcase.open(len(samples))
    first, second, third = samples.ids[:3].tolist()
    data, version = os.urandom(5000), Version(5000, 7)
    assert place.keep([Copy(sample, version, data) for sample in (first, second, third)]) == [True] * 3
    place.drop(second)
    tier.drop(samples.key(third))  # the agent looks before it is told
    tier.flush()
    assert not showcase.shows(first, version)  # a put may not be committed yet: the server gives it itself
    words = [sys.executable, "-c", READ_BY_AGENT, str(fd), str(tier.directory_fd), str(first), str(second), str(third)]
    done = subprocess.run(words, pass_fds=(fd, tier.directory_fd), capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == [f"{data.hex()[:20]} {checksum(data, first, version)}", "nothing", "nothing"]
    tier.forget_dead_readers()
    os.close(fd)
    place.close()
