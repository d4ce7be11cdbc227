"""Bandwidths as a mount has refined them while it ran: kept beside the source's calibration, which is never touched.

In: the refined curves of a mount's places when it ends. Out: a TOML file, and what is known of a source from it and
from its calibration. Written by the daemon; read by the daemon (mountd.known_speeds) and `mlfs plan`.

A calibration that was named by the user, or that is newer, wins.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mlfs.measure import calibration
from mlfs.measure.calibration import Calibration, Point, SourceSpeeds, check_ascending, toml_points, toml_text
from mlfs.tree.index import default_index_path

log = logging.getLogger("mlfs.measure.refined")


class ReadSpeeds(BaseModel):
    """A place: bytes a second of all lanes together, by lanes; `path` is empty for memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = ""
    read: tuple[Point, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ascending(self) -> ReadSpeeds:
        check_ascending(self.read)
        return self


class Refined(BaseModel):
    """What mounts of a source measured; places that none of them used are missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    made: str
    source: SourceSpeeds | None = None
    memory: ReadSpeeds | None = None
    disk: tuple[ReadSpeeds, ...] = ()

    def to_toml(self) -> str:
        """The file's text; `load` reads it back."""
        lines = ["# Written by a mount when it ended. Points are [lanes, bytes per second of all lanes together]."]
        lines.append(f"made = {toml_text(self.made)}")
        if self.source is not None:
            lines += ["", "[source]", f"path = {toml_text(self.source.path)}"]
            lines += [
                f"mean_sample_bytes = {self.source.mean_sample_bytes!r}",
                f"read = {toml_points(self.source.read)}",
            ]
        if self.memory is not None:
            lines += ["", "[memory]", f"read = {toml_points(self.memory.read)}"]
        for speeds in self.disk:
            lines += ["", "[[disk]]", f"path = {toml_text(speeds.path)}", f"read = {toml_points(speeds.read)}"]
        return "\n".join(lines) + "\n"


class Known:
    """What is known of a source's surroundings, the calibration and later refinements together.

    Attributes:
        calibrated: the calibration. refined: what mounts measured since, None where that is older or not to be used.
    """

    def __init__(self, calibrated: Calibration | None, refined: Refined | None) -> None:
        self.calibrated = calibrated
        self.refined = refined

    @property
    def source(self) -> SourceSpeeds | None:
        """The source."""
        if self.refined is not None and self.refined.source is not None:
            return self.refined.source
        return None if self.calibrated is None else self.calibrated.source

    @property
    def memory(self) -> Sequence[Point]:
        """Points of memory, read; none when nothing is known."""
        if self.refined is not None and self.refined.memory is not None:
            return self.refined.memory.read
        return () if self.calibrated is None else self.calibrated.memory.read

    def disk(self, path: str) -> Sequence[Point]:
        """Points of a cache directory, read."""
        for speeds in () if self.refined is None else self.refined.disk:
            if os.path.abspath(speeds.path) == os.path.abspath(path):
                return speeds.read
        speeds_of = None if self.calibrated is None else self.calibrated.of_directory(path)
        return () if speeds_of is None else speeds_of.read

    @property
    def disks(self) -> list[str]:
        """The cache directories that something is known of; the calibrated ones first."""
        calibrated = [speeds.path for speeds in self.calibrated.ssd] if self.calibrated else []
        return calibrated + [speeds.path for speeds in self.refined.disk] if self.refined else calibrated


def default_path(source: str) -> Path:
    """Where the refined figures of a source lie: beside its saved index and its calibration."""
    return default_index_path(source).with_suffix(".refined.toml")


def load(path: Path) -> Refined | None:
    """The file; None when there is none, or when it cannot be used: that is logged."""
    try:
        with open(path, "rb") as file:
            return Refined.model_validate(tomllib.load(file))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        log.warning("not used: %s: %s", path, str(error).splitlines()[0])
        return None


def known(source: str, calibrated: Calibration | None, named: bool) -> Known:
    """What is known of `source`. `named`: the user named the calibration, so it alone counts."""
    refined = None if named else load(default_path(source))
    if refined is not None and calibrated is not None and _time(refined.made) < _time(calibrated.made):
        refined = None
    return Known(calibrated, refined)


def merged(before: Refined | None, new: Refined) -> Refined:
    """`new`, with the places of `before` that it does not tell of."""
    if before is None:
        return new
    there = {speeds.path for speeds in new.disk}
    return Refined(
        made=new.made,
        source=new.source or before.source,
        memory=new.memory or before.memory,
        disk=(*new.disk, *(speeds for speeds in before.disk if speeds.path not in there)),
    )


def save(refined: Refined, path: Path) -> None:
    """Write the file whole or not at all, on top of what it told before. Raises: OSError."""
    calibration.write_whole(merged(load(path), refined).to_toml(), path)


def lanes(points: Sequence[tuple[float, float]]) -> tuple[Point, ...]:
    """Points of a curve as a file holds them."""
    return tuple((round(count), rate) for count, rate in points)


def by_place(found: Known, places: Mapping[str, str | None]) -> dict[str, Sequence[Point]]:
    """Points by name of a place: its directory, "" for memory, None for the source. Without those of which nothing is.

    Args:
        places: directory by name.
    """
    result = {}
    for name, directory in places.items():
        if directory is None:
            points: Sequence[Point] = found.source.read if found.source else ()
        else:
            points = found.disk(directory) if directory else found.memory
        if points:
            result[name] = points
    return result


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
