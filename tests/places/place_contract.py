"""The contract of places as tests: every kind of place runs all of them, over whole files and over blocks of files.

A test module subclasses `PlaceContract`, or `StoringPlaceContract` for a place that keeps what it is given, and
overrides the fixture `make_place`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from mlfs.places.place import Copy, Place, PlaceKind, StoringPlace
from mlfs.places.posix import PosixSource
from mlfs.tree.manifest import Manifest
from mlfs.tree.samples import Samples, Version
from mlfs.tree.scan import scan

MIB = 1 << 20
SIZES = (0, 1, 100, 2000, 4096, 110_000)


class DataSet(NamedTuple):
    """A source directory with samples in it."""

    root: Path
    fd: int
    manifest: Manifest
    source: PosixSource
    samples: Samples

    def bytes_of(self, sample: int) -> bytes:
        """What the sample's bytes are, read without any place."""
        samples = self.samples
        data = (self.root / os.fsdecode(self.manifest.path(samples.file_of(sample)))).read_bytes()
        return data[samples.offset_of(sample) :][: samples.length_of(sample)]

    def copy_of(self, sample: int) -> Copy:
        return Copy(sample, self.samples.version_of(sample), memoryview(self.bytes_of(sample)))


def holds(place: Place, data: DataSet, sample: int) -> bool:
    """Whether the place answers with the current version; fails if it answers with wrong bytes."""
    version = data.samples.version_of(sample)
    found = place.get(sample, version)
    assert found is None or (bytes(found.data), found.version) == (data.bytes_of(sample), version)
    return found is not None


class PlaceContract:
    """All that a place promises."""

    kind: PlaceKind

    @pytest.fixture
    def make_place(self) -> Iterator[Callable[[DataSet], Place]]:
        """Override: return a function that makes a place over the data set's samples."""
        raise NotImplementedError

    @pytest.fixture(params=["whole files", "blocks"])
    def data(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[DataSet]:
        """Files of many sizes: each is a sample, or the large ones are many."""
        monkeypatch.setattr("mlfs.tree.stable_stat.TICK_NS", 0)
        root = tmp_path / "source"
        (root / "d").mkdir(parents=True)
        for size in SIZES:
            (root / "d" / f"f{size}").write_bytes(random.Random(size).randbytes(size))
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        manifest = scan(fd, workers=1)
        in_blocks = request.param == "blocks"
        samples = Samples.in_blocks(manifest, 1000, 1500) if in_blocks else Samples.whole_files(manifest)
        source = PosixSource(fd, manifest)
        yield DataSet(root, fd, manifest, source, samples)
        source.close()
        os.close(fd)

    @pytest.fixture
    def place(self, data: DataSet, make_place: Callable[[DataSet], Place]) -> Place:
        """A place that has all samples."""
        place = make_place(data)
        if isinstance(place, StoringPlace):
            assert all(place.keep([data.copy_of(sample) for sample in data.samples.ids.tolist()]))
        return place

    def test_it_has_a_kind_and_a_name(self, place: Place) -> None:
        assert isinstance(place, Place)
        assert place.kind is self.kind
        assert place.name.startswith(self.kind)

    def test_every_sample_is_there_with_its_own_bytes(self, place: Place, data: DataSet) -> None:
        assert all(holds(place, data, sample) for sample in data.samples.ids.tolist())

    def test_no_bytes_are_given_out_as_a_version_they_are_not(self, place: Place, data: DataSet) -> None:
        for sample in data.samples.ids.tolist():
            true = data.samples.version_of(sample)
            for other in (Version(true.size_bytes + 1, true.mtime_ns), Version(true.size_bytes, true.mtime_ns + 1)):
                found = place.get(sample, other)
                assert found is None or (found.version == true and bytes(found.data) == data.bytes_of(sample))

    def test_many_threads_get_at_once(self, place: Place, data: DataSet) -> None:
        wanted = data.samples.ids.tolist() * 20
        random.Random(1).shuffle(wanted)
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda sample: holds(place, data, sample), wanted))


class StoringPlaceContract(PlaceContract):
    """What a place that keeps copies promises besides. `make_place` gives it `CAPACITY`, and `LARGEST` for a sample."""

    CAPACITY = 2 * MIB
    LARGEST = 400_000
    FOR_COPIES = 1.0  # the least share of it that copies may take

    @pytest.fixture
    def empty(self, data: DataSet, make_place: Callable[[DataSet], Place]) -> StoringPlace:
        place = make_place(data)
        assert isinstance(place, StoringPlace)
        return place

    def test_it_has_what_it_was_given_to_keep(self, empty: StoringPlace, data: DataSet) -> None:
        assert self.FOR_COPIES * self.CAPACITY <= empty.capacity_bytes <= self.CAPACITY
        assert (empty.used_bytes, empty.largest_bytes) == (0, self.LARGEST)
        expected_bytes = 0
        for sample in data.samples.ids.tolist():
            assert not empty.contains(sample)
            assert not holds(empty, data, sample)
            assert empty.keep([data.copy_of(sample)]) == [True]
            assert empty.contains(sample)
            assert holds(empty, data, sample)
            expected_bytes += empty.footprint_bytes(data.samples.length_of(sample))
            assert empty.used_bytes == expected_bytes
        assert empty.errors == 0

    def test_what_is_dropped_is_gone_and_nothing_else(self, place: StoringPlace, data: DataSet) -> None:
        ids = data.samples.ids.tolist()
        for sample in ids[::2]:
            place.drop(sample)
        assert [holds(place, data, sample) for sample in ids] == [number % 2 == 1 for number in range(len(ids))]
        assert [place.contains(sample) for sample in ids] == [number % 2 == 1 for number in range(len(ids))]

    def test_another_version_replaces_the_first(self, place: StoringPlace, data: DataSet) -> None:
        sample = int(data.samples.ids[-1])
        old, new = data.copy_of(sample), Copy(sample, Version(3, 9), memoryview(b"new"))
        assert place.keep([new]) == [True]
        assert place.get(sample, new.version) == (b"new", new.version, None, 0)
        assert place.get(sample, old.version) is None

    def test_a_sample_that_is_too_large_is_refused_and_the_others_are_kept(
        self, empty: StoringPlace, data: DataSet
    ) -> None:
        first, second, third = data.samples.ids.tolist()[:3]
        large = memoryview(bytes(self.LARGEST + 1))
        assert empty.keep([data.copy_of(second)]) == [True]
        copies = [data.copy_of(first), Copy(second, Version(len(large), 1), large), data.copy_of(third)]
        assert empty.keep(copies) == [True, False, True]
        assert [empty.contains(sample) for sample in (first, second, third)] == [True, False, True]
        exactly = Copy(second, Version(self.LARGEST, 1), large[: self.LARGEST])
        assert empty.keep([exactly]) == [True]

    @pytest.mark.parametrize("first", [0, 1])
    def test_of_two_copies_of_a_sample_the_last_one_counts(
        self, empty: StoringPlace, data: DataSet, first: int
    ) -> None:
        sample = int(data.samples.ids[0])
        large = Copy(sample, Version(self.LARGEST + 1, 1), memoryview(bytes(self.LARGEST + 1)))
        copies = [data.copy_of(sample), large]
        assert empty.keep([copies[first], copies[1 - first]]) == [first == 0, first == 1]
        assert empty.contains(sample) == (first == 1)

    def test_the_budget_holds(self, empty: StoringPlace, data: DataSet) -> None:
        """All samples together, each of the largest size, do not fit."""
        kept, size = [], self.LARGEST
        for sample in data.samples.ids.tolist():
            kept += empty.keep([Copy(sample, Version(size, 1), memoryview(bytes(size)))])
            assert empty.used_bytes <= empty.capacity_bytes
            assert empty.contains(sample) == kept[-1]
        assert any(kept)
        assert not all(kept)

    def test_a_closed_place_has_and_keeps_nothing(self, place: StoringPlace, data: DataSet) -> None:
        copy = data.copy_of(int(data.samples.ids[0]))
        place.close()
        place.close()
        assert not holds(place, data, copy.sample)
        assert place.keep([copy]) == [False]
