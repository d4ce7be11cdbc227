"""Every kind of place under the contract that all share, what only the source promises, and the places' numbers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from place_contract import MIB, DataSet, PlaceContract, StoringPlaceContract

from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.place import SOURCE, FileChange, Place, PlaceKind, Places, SourcePlace, StoringPlace, TierPlace
from mlfs.places.ram import RamTier
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Tier
from mlfs.tree.attributes import attributes_of
from mlfs.tree.samples import Version


class TestSource(PlaceContract):
    """The shared suite, and what only the source does: it fails, and it answers with what is there now."""

    kind = PlaceKind.SOURCE

    @pytest.fixture
    def make_place(self) -> Callable[[DataSet], Place]:
        return lambda data: SourcePlace(data.source, data.samples)

    def largest(self, data: DataSet) -> tuple[int, Path]:
        """The largest sample that begins its file, and the file."""
        at_begin = [sample for sample in data.samples.ids.tolist() if data.samples.offset_of(sample) == 0]
        sample = max(at_begin, key=data.samples.length_of)
        return sample, data.root / os.fsdecode(data.manifest.path(data.samples.file_of(sample)))

    def test_an_unchanged_file_is_not_told_as_changed(self, place: Place, data: DataSet) -> None:
        for sample in data.samples.ids.tolist():
            found = place.get(sample, data.samples.version_of(sample))
            assert found is not None
            assert found.changed is None

    def test_a_changed_file_is_answered_with_its_new_bytes(self, place: Place, data: DataSet) -> None:
        sample, path = self.largest(data)
        new = bytes(reversed(path.read_bytes()))
        path.write_bytes(new)
        os.utime(path, ns=(5, 5))
        found = place.get(sample, data.samples.version_of(sample))
        assert found is not None
        length = data.samples.length_of(sample)
        version = data.samples.version_of_part(Version(len(new), 5, path.stat().st_ctime_ns), length)
        assert (bytes(found.data), found.version) == (new[:length], version)
        assert found.changed == FileChange(len(new), 5, path.stat().st_ctime_ns, attributes_of(path.stat()).rights)

    def test_a_file_that_became_too_short_gives_what_it_has(self, place: Place, data: DataSet) -> None:
        sample, path = self.largest(data)
        path.write_bytes(b"short")
        os.utime(path, ns=(5, 5))
        found = place.get(sample, data.samples.version_of(sample))
        assert found is not None
        version = data.samples.version_of_part(Version(5, 5, path.stat().st_ctime_ns), 5)
        assert (bytes(found.data), found.version) == (b"short", version)
        assert found.changed is not None
        assert found.changed.size_bytes == 5

    def test_a_file_that_is_gone_is_an_error(self, place: Place, data: DataSet) -> None:
        sample, path = self.largest(data)
        path.unlink()
        with pytest.raises(FileNotFoundError):
            place.get(sample, data.samples.version_of(sample))

    def test_a_file_that_became_a_fifo_is_an_error(self, place: Place, data: DataSet) -> None:
        sample, path = self.largest(data)
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(OSError) as error:  # noqa: PT011
            place.get(sample, data.samples.version_of(sample))
        assert error.value.errno == errno.ESTALE

    def test_no_descriptor_is_left_open(self, place: SourcePlace, data: DataSet) -> None:
        def descriptors() -> int:
            return len(os.listdir("/proc/self/fd"))

        before = descriptors()
        for sample in data.samples.ids.tolist():
            place.get(sample, data.samples.version_of(sample))
        assert descriptors() <= before + len(data.samples.manifest.files)  # one a file of which parts were read
        place.files.close()
        assert descriptors() == before
        for sample in data.samples.ids.tolist():
            place.read(sample, close_later=True)
        place.close_read()
        place.files.close()
        assert descriptors() == before


class TierPlaceContract(StoringPlaceContract):
    """A tier behind the adapter."""

    def make_tier(self, directory: Path) -> Tier:
        raise NotImplementedError

    @pytest.fixture
    def make_place(self, tmp_path: Path) -> Iterator[Callable[[DataSet], Place]]:
        made: list[StoringPlace] = []

        def make(data: DataSet) -> Place:
            made.append(TierPlace(self.kind, self.make_tier(tmp_path / "cache"), data.samples, self.LARGEST))
            return made[-1]

        yield make
        for place in made:
            place.close()


class TestRam(TierPlaceContract):
    """The shared suite."""

    kind = PlaceKind.RAM

    def make_tier(self, directory: Path) -> Tier:
        return RamTier(self.CAPACITY)


class TestSsd(TierPlaceContract):
    """The shared suite."""

    kind = PlaceKind.SSD

    def make_tier(self, directory: Path) -> Tier:
        return SsdTier(directory, self.CAPACITY, b"source")


class TestLmdb(TierPlaceContract):
    """The shared suite."""

    kind = PlaceKind.LMDB
    FOR_COPIES = 0.85

    def make_tier(self, directory: Path) -> Tier:
        return LmdbTier(directory, self.CAPACITY, b"source", max_sample_bytes=self.LARGEST)


class TestNumbers(PlaceContract):
    """The places of a mount, by number. The suite holds for the one that has everything."""

    kind = PlaceKind.SOURCE

    @pytest.fixture
    def make_place(self) -> Callable[[DataSet], Place]:
        return lambda data: Places(SourcePlace(data.source, data.samples))[SOURCE]

    def test_the_source_is_the_first_and_the_tiers_follow_as_given(self, data: DataSet, tmp_path: Path) -> None:
        samples = data.samples
        disk = TierPlace(PlaceKind.SSD, SsdTier(tmp_path / "cache", MIB, b"source"), samples)
        ram = TierPlace(PlaceKind.RAM, RamTier(MIB), samples)
        places = Places(SourcePlace(data.source, samples), [disk, ram])
        assert [place.kind for place in places] == [PlaceKind.SOURCE, PlaceKind.SSD, PlaceKind.RAM]
        assert places[SOURCE] is places.source
        assert [places[number] for number in range(1, len(places))] == list(places.storing) == [disk, ram]
        assert places[1:] == (disk, ram)
        copy = data.copy_of(int(samples.ids[0]))
        places.close()
        assert [place.keep([copy]) for place in places.storing] == [[False], [False]]
        with pytest.raises(ValueError, match="same name"):
            Places(SourcePlace(data.source, samples), [ram, ram])
