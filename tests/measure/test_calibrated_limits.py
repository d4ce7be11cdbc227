"""What a mount takes from a calibration: its own file, the one that was named, or nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mlfs.config import MountConfig, load_config
from mlfs.engine.fetch import ClassTier
from mlfs.errors import ConfigError
from mlfs.measure import calibration
from mlfs.measure.calibration import Calibration, SourceSpeeds, StorageSpeeds
from mlfs.places.ram import RamTier
from mlfs.places.ssd import SsdTier
from mountd.known_speeds import calibrated_limits

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
    tiers = [ClassTier("ram", RamTier(0), 0)]
    tiers += [ClassTier("ssd", SsdTier(str(tmp_path / name), 1 << 20, config.source), 0) for name in ("disk", "other")]
    try:
        assert calibrated_limits(config, tiers) == {}
        calibration.save(measured, calibration.default_path(config.source))
        found = calibrated_limits(config, tiers)
    finally:
        for _, tier, _ in tiers:
            tier.close()
    assert found["pfs_lanes_at_first"] == 2
    assert found["calibrated"] == {"pfs": READ, "ram": ((1, 5.0),), tiers[1].tier.name: ((1, 7.0),)}


def test_a_named_file_must_be_right_and_a_found_one_may_be_wrong(
    config: MountConfig, measured: Calibration, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = calibration.default_path(config.source)
    wrong.parent.mkdir(parents=True)
    wrong.write_text("source = 3")
    with caplog.at_level(logging.WARNING, "mlfs.daemon"):
        assert calibrated_limits(config, []) == {}
    assert "not used" in caplog.text
    named = config.model_copy(update={"calibration": str(wrong)})
    with pytest.raises(ConfigError):
        calibrated_limits(named, [])
    calibration.save(measured, tmp_path / "mine.toml")
    named = config.model_copy(update={"calibration": str(tmp_path / "mine.toml")})
    assert calibrated_limits(named, [])["pfs_lanes_at_first"] == 2


def test_a_config_file_names_it_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "mount.toml").write_text('source = "data"\ncalibration = "speeds.toml"\n')
    assert load_config({}, str(tmp_path / "mount.toml")).calibration == str(tmp_path / "speeds.toml")
