"""The calibration of a source: bandwidths by number of readers, as `mlfs calibrate` measured them, in a TOML file.

In: points from `mlfs calibrate`, or such a file. Out: the file, or curves for the performance model (mlfs.plan.model).
Written by mlfs.cli.calibrate; read by `mlfs mount` and `mlfs plan`.
"""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mlfs.errors import ConfigError
from mlfs.plan.model import Curve
from mlfs.tree.index import default_index_path

_GOOD_ENOUGH = 0.9

Point = tuple[Annotated[int, Field(ge=1, le=1 << 20)], Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Speeds(_Part):
    """A storage class: bytes a second of all threads together, by threads.

    Attributes:
        path: the directory, empty for memory.
    """

    path: str = ""
    read: tuple[Point, ...] = Field(min_length=1)
    write: tuple[Point, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ascending(self) -> Speeds:
        check_ascending(self.read)
        check_ascending(self.write)
        return self

    @property
    def read_curve(self) -> Curve:
        """r_j(p)."""
        return Curve(self.read)

    @property
    def write_curve(self) -> Curve:
        """w_j(p)."""
        return Curve(self.write)


class SourceSpeeds(_Part):
    """The PFS as one node sees it: bytes a second of all readers together, by readers."""

    path: str
    read: tuple[Point, ...] = Field(min_length=1)
    mean_sample_bytes: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _ascending(self) -> SourceSpeeds:
        check_ascending(self.read)
        return self

    @property
    def curve(self) -> Curve:
        """Bytes a second by readers of this node."""
        return Curve(self.read)

    @property
    def best_bytes_per_s(self) -> float:
        """The most that was measured."""
        return max(rate for _, rate in self.read)

    @property
    def good_readers(self) -> int:
        """The fewest readers that reach nine tenths of the most: more only add load."""
        return next(count for count, rate in self.read if rate >= _GOOD_ENOUGH * self.best_bytes_per_s)


class Calibration(_Part):
    """Everything that was measured."""

    made: str = ""
    source: SourceSpeeds
    memory: Speeds
    ssd: tuple[Speeds, ...] = ()

    def of_directory(self, path: str) -> Speeds | None:
        """What was measured of a cache directory."""
        return next((speeds for speeds in self.ssd if os.path.abspath(speeds.path) == os.path.abspath(path)), None)

    def to_toml(self) -> str:
        """The file's text; `from_toml` reads it back."""
        lines = ["# Made by `mlfs calibrate`. Points are [threads, bytes per second of all threads together]."]
        lines += [f"made = {toml_text(self.made)}", "", "[source]", f"path = {toml_text(self.source.path)}"]
        lines += [
            f"mean_sample_bytes = {float(self.source.mean_sample_bytes)!r}",
            f"read = {toml_points(self.source.read)}",
        ]
        lines += [
            "",
            "[memory]",
            f"read = {toml_points(self.memory.read)}",
            f"write = {toml_points(self.memory.write)}",
        ]
        for speeds in self.ssd:
            lines += ["", "[[ssd]]", f"path = {toml_text(speeds.path)}"]
            lines += [f"read = {toml_points(speeds.read)}", f"write = {toml_points(speeds.write)}"]
        return "\n".join(lines) + "\n"


def check_ascending(points: tuple[Point, ...]) -> None:
    """Raises: ValueError."""
    counts = [count for count, _ in points]
    if counts != sorted(set(counts)):
        raise ValueError("the numbers of threads must ascend")


def toml_text(value: str) -> str:
    """A string of a TOML file."""
    # JSON's strings are TOML's but for DEL and surrogates: bytes of a path that are no UTF-8 are not kept.
    return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_points(points: tuple[Point, ...]) -> str:
    """Points of a TOML file."""
    # All digits: what is read back is what was measured and printed, also where it is rounded later.
    return "[" + ", ".join(f"[{count}, {rate!r}]" for count, rate in points) + "]"


def default_path(source: str) -> Path:
    """Where the calibration of a source lies unless the user says otherwise: beside its saved index."""
    return default_index_path(source).with_suffix(".calibration.toml")


def load(path: str | Path) -> Calibration:
    """The file; ConfigError, one line, for what cannot be used."""
    hint = "make a new one: mlfs calibrate SOURCE"
    try:
        with open(path, "rb") as file:
            return Calibration.model_validate(tomllib.load(file))
    except OSError as error:
        raise ConfigError(f"calibration {path}: {error.strerror}", hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"calibration {path} is not valid TOML: {error}", hint) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"calibration {path}: {where}: {first['msg']}", hint) from None


def save(calibration: Calibration, path: Path) -> None:
    """Write the file whole or not at all.

    Raises: OSError.
    """
    write_whole(calibration.to_toml(), path)


def write_whole(text: str, path: Path) -> None:
    """Write a file whole or not at all.

    Raises: OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
