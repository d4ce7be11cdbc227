"""What a mount takes from a calibration: its own file, the one that was named, or nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from measure_support import places_over

from mlfs.config import MountConfig, load_config
from mlfs.errors import ConfigError
from mlfs.measure import calibration
from mlfs.measure.calibration import Calibration, SourceSpeeds, StorageSpeeds
from mlfs.places.place import PlaceKind
from mlfs.places.ram import RamTier
from mlfs.places.ssd import SsdTier
from mountd.daemon import calibrated_limits

READ = ((1, 10.0), (2, 19.0), (4, 20.0))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MountConfig:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = {"source": str(tmp_path / "data"), "ssd": [f"{tmp_path}/disk:1M", f"{tmp_path}/other:1M"], "ram": "0"}
    return load_config(flags)


@pytest.fixture
def measured(tmp_path: Path, config: MountConfig) -> Calibration:
    memory, disk = (
        StorageSpeeds(read=((1, 5.0),), write=((1, 6.0),)),
        StorageSpeeds(read=((1, 7.0),), write=((1, 8.0),)),
    )
    disk = disk.model_copy(update={"path": str(tmp_path / "disk")})
    return Calibration(source=SourceSpeeds(path=config.source, read=READ), memory=memory, ssd=(disk,))


def test_the_sources_own_file_is_found(config: MountConfig, measured: Calibration, tmp_path: Path) -> None:
    disks = [SsdTier(str(tmp_path / name), 1 << 20, config.source) for name in ("disk", "other")]
    tiers = [(PlaceKind.RAM, RamTier(0)), *((PlaceKind.SSD, disk) for disk in disks)]
    with places_over(tmp_path / "data", tiers) as places:
        assert calibrated_limits(config, places) == {}
        calibration.save(measured, calibration.default_path(config.source))
        found = calibrated_limits(config, places)
    assert found["pfs_lanes_at_first"] == 2
    assert found["calibrated"] == {"pfs": READ, "ram": ((1, 5.0),), disks[0].name: ((1, 7.0),)}


def test_a_named_file_must_be_right_and_a_found_one_may_be_wrong(
    config: MountConfig, measured: Calibration, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = calibration.default_path(config.source)
    wrong.parent.mkdir(parents=True)
    wrong.write_text("source = 3")
    with places_over(tmp_path / "data", []) as places:
        with caplog.at_level(logging.WARNING):
            assert calibrated_limits(config, places) == {}
        assert "not used" in caplog.text
        named = config.model_copy(update={"calibration": str(wrong)})
        with pytest.raises(ConfigError):
            calibrated_limits(named, places)
        calibration.save(measured, tmp_path / "mine.toml")
        named = config.model_copy(update={"calibration": str(tmp_path / "mine.toml")})
        assert calibrated_limits(named, places)["pfs_lanes_at_first"] == 2


def test_a_config_file_names_it_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "mount.toml").write_text('source = "data"\ncalibration = "speeds.toml"\n')
    assert load_config({}, str(tmp_path / "mount.toml")).calibration == str(tmp_path / "speeds.toml")
