"""What a mount measured outlives it: beside the calibration, never in its place, and only while it is newer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from measure_support import places_over

from mlfs.config import load_config
from mlfs.measure import calibration, refined
from mlfs.measure.calibration import Calibration, SourceSpeeds, StorageSpeeds
from mlfs.measure.earlier import earlier_speeds
from mlfs.measure.refined import ReadSpeeds, Refined
from mlfs.places.place import PlaceKind
from mlfs.places.ram import RamTier
from mlfs.places.ssd import SsdTier
from mountd.daemon import calibrated_limits

SOURCE = SourceSpeeds(path="/data", read=((1, 10.0), (2, 20.0)), mean_sample_bytes=100.0)
MEMORY = StorageSpeeds(read=((1, 5.0),), write=((1, 6.0),))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def measured(made: str = "2026-02-01T00:00:00+00:00", **more: object) -> Refined:
    fields = {"made": made, "source": SOURCE.model_copy(update={"read": ((1, 8.0), (4, 31.0))})} | more
    return Refined(**fields)  # type: ignore[arg-type]


def test_a_file_is_read_back_and_places_it_does_not_tell_of_stay(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.refined.toml"
    first = measured(memory=ReadSpeeds(read=((1, 3.25),)), disk=(ReadSpeeds(path='/a"b', read=((1, 1.5),)),))
    refined.save(first, path)
    assert refined.load(path) == first
    second = measured("2026-03-01T00:00:00+00:00", source=None, disk=(ReadSpeeds(path="/c", read=((2, 9.0),)),))
    refined.save(second, path)
    both = refined.load(path)
    assert both is not None
    assert (both.made, both.source, both.memory) == (second.made, first.source, first.memory)
    assert [speeds.path for speeds in both.disk] == ["/c", '/a"b']


@pytest.mark.parametrize(
    "text", ["source = 3", "made = ", "\x00", 'made = "x"\n[source]\npath = "/"\nread = [[1, -1.0]]']
)
def test_a_broken_file_is_only_logged(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert refined.load(path) is None
    assert "not used" in caplog.text
    assert refined.load(tmp_path / "none.toml") is None


def test_a_newer_or_named_calibration_wins() -> None:
    refined.save(measured(), refined.default_path("/data"))
    old = Calibration(made="2026-01-01T00:00:00+00:00", source=SOURCE, memory=MEMORY)
    new = old.model_copy(update={"made": "2026-02-02T00:00:00+00:00"})
    found = earlier_speeds("/data", old, named=False)
    assert found.source is not None
    assert found.source.read == ((1, 8.0), (4, 31.0))
    assert found.memory == ((1, 5.0),)
    for calibrated, named in ((new, False), (old, True)):
        assert earlier_speeds("/data", calibrated, named=named).source == SOURCE
        assert earlier_speeds("/data", calibrated, named=named).refined is None
    alone = earlier_speeds("/data", None, named=False)
    assert alone.source is not None
    assert alone.memory == ()
    assert earlier_speeds("/other", None, named=False).source is None


def test_the_next_mount_begins_with_it(tmp_path: Path) -> None:
    disk = str(tmp_path / "disk")
    config = load_config({"source": str(tmp_path / "data"), "ssd": [f"{disk}:1M"], "ram": "0"})
    refined.save(measured(disk=(ReadSpeeds(path=disk, read=((1, 7.0),)),)), refined.default_path(config.source))
    calibration.save(
        Calibration(made="2026-01-01T00:00:00+00:00", source=SOURCE, memory=MEMORY),
        calibration.default_path(config.source),
    )
    ssd = SsdTier(disk, 1 << 20, config.source)
    with places_over(tmp_path / "data", [(PlaceKind.RAM, RamTier(0)), (PlaceKind.SSD, ssd)]) as places:
        found = calibrated_limits(config, places)
    assert found["calibrated"] == {"pfs": SOURCE.read, "ram": ((1, 5.0),)}
    assert found["refined"] == {"pfs": ((1, 8.0), (4, 31.0)), ssd.name: ((1, 7.0),)}
    assert found["pfs_lanes_at_first"] == SOURCE.good_readers == 2  # of the calibration
    assert found["calibrated_sample_bytes"] == 100.0
