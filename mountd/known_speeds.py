"""What a calibration tells a mount, and what the mount tells the next one.

In: the mount's config, its tiers, the file of `mlfs calibrate` (named, or the one of the source), what earlier mounts
refined (mlfs.measure.refined). Out: fields of `mlfs.engine.engine.Limits` at the start; the refined figures at the end.
Called by the daemon. A file that nobody named and that cannot be used is only logged: it costs nothing but the first
seconds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypedDict

from mlfs.config import MountConfig
from mlfs.engine.engine import Engine
from mlfs.engine.fetch import ClassTier
from mlfs.errors import ConfigError
from mlfs.measure import calibration, refined
from mlfs.measure.calibration import Calibration, SourceSpeeds
from mlfs.measure.refined import Known, ReadSpeeds, Refined

log = logging.getLogger("mlfs.daemon")


class Calibrated(TypedDict, total=False):
    """See Limits."""

    calibrated: dict[str, Sequence[tuple[int, float]]]
    refined: dict[str, Sequence[tuple[int, float]]]
    calibrated_sample_bytes: float
    pfs_lanes_at_first: int


def calibrated_limits(config: MountConfig, tiers: Sequence[ClassTier]) -> Calibrated:
    """The fields that a calibration and earlier mounts fill in. Raises ConfigError for a named file."""
    found = refined.known(config.source, _find(config), config.calibration is not None)
    places, result = _places(config, tiers), Calibrated()
    if found.calibrated is not None:
        result["calibrated"] = refined.by_place(Known(found.calibrated, None), places)
    if found.refined is not None:
        result["refined"] = refined.by_place(Known(None, found.refined), places)
    if found.source is not None:
        result["calibrated_sample_bytes"] = found.source.mean_sample_bytes
    if found.calibrated is not None:
        # Not what a mount measured: its lanes were disturbed by each other, and more of them never looked slower.
        result["pfs_lanes_at_first"] = found.calibrated.source.good_readers
    made = [f"{name} {file.made}" for name, file in vars(found).items() if file is not None]
    if made:
        log.info("bandwidths known from before: %s", ", ".join(made))
    return result


def keep_refined(config: MountConfig, engine: Engine) -> None:
    """The mount has ended: keep what it measured for the next one. That this fails is only logged."""
    places = _places(config, engine.tiers)
    measured = {name: refined.lanes(points) for name, points in engine.speeds.measured().items()}
    if not measured:
        return
    source = None
    if "pfs" in measured:
        mean = engine.manifest.total_bytes / engine.manifest.n_files
        source = SourceSpeeds(path=config.source, read=measured["pfs"], mean_sample_bytes=mean)
    memory = [
        ReadSpeeds(read=measured[name]) for name, directory in places.items() if directory == "" and name in measured
    ]
    disks = [
        ReadSpeeds(path=os.path.abspath(directory), read=measured[name])
        for name, directory in places.items()
        if directory and name in measured
    ]
    made = datetime.now(UTC).isoformat(timespec="seconds")
    path = refined.default_path(config.source)
    try:
        refined.save(Refined(made=made, source=source, memory=memory[0] if memory else None, disk=tuple(disks)), path)
        log.info("kept what was measured for the next mount: %s", path)
    except (OSError, ValueError) as error:
        log.warning("what was measured is not kept: %s: %s", path, error)


def _places(config: MountConfig, tiers: Sequence[ClassTier]) -> dict[str, str | None]:
    """Directory by name of a place: "" for memory, None for the source."""
    directories = {directory.path for directory in (*config.ssd, *config.lmdb)}
    places: dict[str, str | None] = {"pfs": None}
    for kind, tier, _ in tiers:
        path = next((path for path in directories if tier.name.endswith(f":{path}")), None)
        if kind == "ram" or path is not None:
            places[tier.name] = path or ""
    return places


def _find(config: MountConfig) -> Calibration | None:
    if config.calibration is not None:
        return calibration.load(config.calibration)
    path = calibration.default_path(config.source)
    try:
        return calibration.load(path) if path.exists() else None
    except ConfigError as error:
        log.warning("not used: %s", error)
        return None
