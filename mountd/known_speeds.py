"""What earlier measurements tell a mount, and what the mount tells the next one, in the daemon's terms.

In: the mount's config and its places; at the end the statistics of its engine. Out: fields of
`mlfs.engine.engine.Limits`; the file of refined bandwidths. Called by the daemon; the work is mlfs.measure.earlier's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypedDict

from mlfs.config import MountConfig
from mlfs.engine.statistics import EngineStatistics
from mlfs.measure import earlier
from mlfs.measure.measured_place import MeasuredPlace
from mlfs.places.place import Places

log = logging.getLogger("mlfs.daemon")


class Calibrated(TypedDict, total=False):
    """See Limits."""

    calibrated: dict[str, Sequence[tuple[int, float]]]
    refined: dict[str, Sequence[tuple[int, float]]]
    calibrated_sample_bytes: float
    pfs_lanes_at_first: int


def calibrated_limits(config: MountConfig, places: Places) -> Calibrated:
    """The fields that a calibration and earlier mounts fill in. Raises ConfigError for a named file."""
    found = earlier.for_mount(config.source, config.calibration)
    measured, result = _measured(places), Calibrated()
    if found.calibrated is not None:
        result["calibrated"] = found._replace(refined=None).by_name(measured)
        # Only a calibration tells this: a mount's lanes disturb each other, and there more never looked slower.
        result["pfs_lanes_at_first"] = found.calibrated.source.good_readers
    if found.refined is not None:
        result["refined"] = found._replace(calibrated=None).by_name(measured)
    if found.source is not None:
        result["calibrated_sample_bytes"] = found.source.mean_sample_bytes
    made = [f"{name} {file.made}" for name, file in found._asdict().items() if file is not None]
    if made:
        log.info("bandwidths known from before: %s", ", ".join(made))
    return result


def keep_refined(config: MountConfig, places: Places, told: EngineStatistics) -> None:
    """The mount has ended: keep what it measured for the next one. That this fails is only logged."""
    mean_bytes = told.tree.bytes / max(1, told.tree.files)
    measured = {name: speeds.refined for name, speeds in told.speeds.places.items() if speeds.measured}
    earlier.save_measured(config.source, mean_bytes, _measured(places), measured)


def _measured(places: Places) -> list[MeasuredPlace]:
    source = MeasuredPlace(places.source.kind, places.source.name)
    return [source, *(MeasuredPlace(place.kind, place.name, place.capacity_bytes) for place in places.storing)]
