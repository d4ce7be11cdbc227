"""What a calibration tells a mount: how many lanes to begin with, and bandwidths to show beside the measured ones.

In: the mount's config, its tiers, the file of `mlfs calibrate` (named, or the one of the source). Out: fields of
`mlfs.engine.engine.Limits`. Called by the daemon at start. A file that nobody named and that cannot be used is only
logged: it costs nothing but the lanes' first seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypedDict

from mlfs import calibration
from mlfs.calibration import Calibration
from mlfs.config import MountConfig
from mlfs.engine.fetch import ClassTier
from mlfs.errors import ConfigError

log = logging.getLogger("mlfs.daemon")


class Calibrated(TypedDict, total=False):
    """See Limits."""

    calibrated: dict[str, Sequence[tuple[int, float]]]
    pfs_lanes_at_first: int


def calibrated_limits(config: MountConfig, tiers: Sequence[ClassTier]) -> Calibrated:
    """The fields that a calibration fills in; none without one. Raises ConfigError for a named file."""
    found = _find(config)
    if found is None:
        return {}
    directories = {directory.path for directory in (*config.ssd, *config.lmdb)}
    by_place: dict[str, Sequence[tuple[int, float]]] = {"pfs": found.source.read}
    for kind, tier, _ in tiers:
        path = next((path for path in directories if tier.name.endswith(f":{path}")), "")
        speeds = found.memory if kind == "ram" else found.of_directory(path)
        if speeds is not None:
            by_place[tier.name] = speeds.read
    log.info("calibrated %s: the source gives most to %d readers", found.made, found.source.good_readers)
    return {"calibrated": by_place, "pfs_lanes_at_first": found.source.good_readers}


def _find(config: MountConfig) -> Calibration | None:
    if config.calibration is not None:
        return calibration.load(config.calibration)
    path = calibration.default_path(config.source)
    try:
        return calibration.load(path) if path.exists() else None
    except ConfigError as error:
        log.warning("not used: %s", error)
        return None
