"""Earlier measurements of a source and the places around it, and those that a mount leaves to the next one.

In: the calibration of the source (mlfs.measure.calibration) and what mounts measured since (mlfs.measure.refined). Out:
points of each place for the mount that starts and for `mlfs plan`; the refined file when the mount ends.

The refined measurement counts where both files have a place. It does not count at all when the calibration is newer
than it, or when the user named the calibration.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from mlfs.errors import ConfigError
from mlfs.measure import calibration, refined
from mlfs.measure.calibration import Calibration, Point, SourceSpeeds
from mlfs.measure.refine import Points
from mlfs.measure.refined import ReadSpeeds, Refined
from mlfs.measure.speeds import MeasuredPlace
from mlfs.places.place import PlaceKind

log = logging.getLogger("mlfs.measure")


class EarlierSpeeds(NamedTuple):
    """The measurements of a source and its surroundings from before now.

    Attributes:
        calibrated: the calibration, if there is one.
        refined: what mounts measured since, if that is to be used.
    """

    calibrated: Calibration | None
    refined: Refined | None

    @property
    def source(self) -> SourceSpeeds | None:
        """The refined speeds of the source, else the calibrated ones."""
        if self.refined is not None and self.refined.source is not None:
            return self.refined.source
        return None if self.calibrated is None else self.calibrated.source

    @property
    def memory(self) -> Sequence[Point]:
        """Points of reading memory; none when it was never measured."""
        if self.refined is not None and self.refined.memory is not None:
            return self.refined.memory.read
        return () if self.calibrated is None else self.calibrated.memory.read

    def disk(self, path: str) -> Sequence[Point]:
        """Points of reading a cache directory; none when it was never measured."""
        for speeds in () if self.refined is None else self.refined.disk:
            if os.path.abspath(speeds.path) == os.path.abspath(path):
                return speeds.read
        of_directory = None if self.calibrated is None else self.calibrated.of_directory(path)
        return () if of_directory is None else of_directory.read

    @property
    def disks(self) -> list[str]:
        """The cache directories that were measured, the calibrated ones first."""
        calibrated = [speeds.path for speeds in self.calibrated.ssd] if self.calibrated else []
        return calibrated + [speeds.path for speeds in self.refined.disk] if self.refined else calibrated

    def by_name(self, places: Iterable[MeasuredPlace]) -> dict[str, Sequence[Point]]:
        """Points of each place of a mount by its name; places that were never measured are left out."""
        found = {place.name: self._points_of(place) for place in places}
        return {name: points for name, points in found.items() if points}

    def _points_of(self, place: MeasuredPlace) -> Sequence[Point]:
        if place.kind is PlaceKind.SOURCE:
            return self.source.read if self.source else ()
        return self.memory if place.kind is PlaceKind.RAM else self.disk(place.path)


def earlier_speeds(source: str, calibrated: Calibration | None, *, named: bool) -> EarlierSpeeds:
    """The speeds that are to be used for `source`. `named`: the user named the calibration, so it alone counts."""
    measured = None if named else refined.load(refined.default_path(source))
    if measured is not None and calibrated is not None and _time(measured.made) < _time(calibrated.made):
        measured = None
    return EarlierSpeeds(calibrated, measured)


def for_mount(source: str, calibration_path: str | None) -> EarlierSpeeds:
    """The speeds that a mount of `source` starts with. A file that nobody named and that cannot be used is only logged.

    Args:
        calibration_path: the file that the user named, if any.

    Raises:
        ConfigError: the named file cannot be used.
    """
    if calibration_path is not None:
        return earlier_speeds(source, calibration.load(calibration_path), named=True)
    path, calibrated = calibration.default_path(source), None
    try:
        calibrated = calibration.load(path) if path.exists() else None
    except ConfigError as error:
        log.warning("not used: %s", error)
    return earlier_speeds(source, calibrated, named=False)


def save_measured(
    source: str, mean_sample_bytes: float, places: Iterable[MeasuredPlace], measured: Mapping[str, Points]
) -> None:
    """Save what a mount of `source` measured for the next one. A failure of this is only logged.

    Args:
        mean_sample_bytes: of the samples in the source.
        places: those of the mount.
        measured: refined points of the places that it used, by name.
    """
    if not measured:
        return
    of_source, memory, disks = None, None, []
    for place in places:
        # Lanes were counted, so they are whole numbers; the curve has them as floats.
        read = tuple((round(lanes), rate) for lanes, rate in measured.get(place.name, ()))
        if not read:
            continue
        if place.kind is PlaceKind.SOURCE:
            of_source = SourceSpeeds(path=source, read=read, mean_sample_bytes=mean_sample_bytes)
        elif place.kind is PlaceKind.RAM:
            memory = ReadSpeeds(read=read)
        elif place.path:
            disks.append(ReadSpeeds(path=os.path.abspath(place.path), read=read))
    made = datetime.now(UTC).isoformat(timespec="seconds")
    path = refined.default_path(source)
    try:
        refined.save(Refined(made=made, source=of_source, memory=memory, disk=tuple(disks)), path)
        log.info("kept what was measured for the next mount: %s", path)
    except (OSError, ValueError) as error:
        log.warning("what was measured is not kept: %s: %s", path, error)


def _time(text: str) -> float:
    """Seconds since 1970; 0 for a text that is no time, so that a file without one is the oldest."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
