"""The calibration of a source: bandwidths by number of readers, as `mlfs calibrate` measured them, in a TOML file.

In: points from `mlfs calibrate`, or such a file. Out: the file, or curves for the performance model (mlfs.plan.model).
Written by mlfs.cli.calibrate; read by `mlfs mount` and `mlfs plan`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mlfs.errors import ConfigError
from mlfs.ours import NotOursError, check_replaceable, make_parent, open_ours, write_ours
from mlfs.plan.model import Curve
from mlfs.tree.index import default_index_path
from mlfs.user_input import MOST_TOML_BYTES, InputError, parse_toml

# -- points of bandwidth, and how they stand in a TOML file
#
# In: points of a curve, strings. Out: checked points, TOML text, a file written whole.

# Lanes, and bytes a second of all of them together.
Point = tuple[Annotated[int, Field(ge=1, le=1 << 20)], Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class FilePart(BaseModel):
    """A part of a file: what is read is checked, and an unknown field is an error."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")


def check_ascending(points: tuple[Point, ...]) -> None:
    """Raises ValueError unless each point has more lanes than the one before."""
    counts = [count for count, _ in points]
    if counts != sorted(set(counts)):
        raise ValueError("the numbers of threads must ascend")


def toml_text(value: str) -> str:
    # JSON's strings are TOML's but for DEL and surrogates: bytes of a path that are no UTF-8 are not kept.
    return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_points(points: tuple[Point, ...]) -> str:
    # With all digits, so that what is read back is what was measured.
    return "[" + ", ".join(f"[{count}, {rate!r}]" for count, rate in points) + "]"


def write_whole(text: str, path: Path, kind: str) -> None:
    """Write a file whole or not at all, over none but one that begins with the same line. Raises: OSError."""
    make_parent(str(path))
    first_line = text.partition("\n")[0].encode()
    write_ours(str(path), lambda file: _write(file, text), kind, lambda beginning: beginning.startswith(first_line))


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode())


# -- the calibration

KIND = "a calibration made by mlfs"
_FIRST_LINE = "# Made by `mlfs calibrate`. Points are [threads, bytes per second of all threads together]."

# More readers than reach this share of the most load a file system that others use as well, for a tenth at best.
_GOOD_ENOUGH = 0.9


class StorageSpeeds(FilePart):
    """A cache directory or memory: bytes a second of all threads together, by threads.

    Attributes:
        path: the directory, empty for memory.
    """

    path: str = ""
    read: tuple[Point, ...] = Field(min_length=1)
    write: tuple[Point, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ascending(self) -> StorageSpeeds:
        check_ascending(self.read)
        check_ascending(self.write)
        return self


class SourceSpeeds(FilePart):
    """The source as one node sees it: bytes a second of all readers together, by readers.

    Attributes:
        mean_sample_bytes: of the files that were read; 0 when that is not known.
    """

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
        """The fewest readers that reach nine tenths of the most."""
        return next(count for count, rate in self.read if rate >= _GOOD_ENOUGH * self.best_bytes_per_s)


class Calibration(FilePart):
    """Everything that was measured.

    Attributes:
        made: when, in ISO format; empty when that is not known.
    """

    made: str = ""
    source: SourceSpeeds
    memory: StorageSpeeds
    ssd: tuple[StorageSpeeds, ...] = ()

    def of_directory(self, path: str) -> StorageSpeeds | None:
        """The measurements of a cache directory."""
        return next((speeds for speeds in self.ssd if os.path.abspath(speeds.path) == os.path.abspath(path)), None)

    def to_toml(self) -> str:
        """The file's text; `load` reads it back."""
        lines = [
            _FIRST_LINE,
            f"made = {toml_text(self.made)}",
            "",
            "[source]",
            f"path = {toml_text(self.source.path)}",
            f"mean_sample_bytes = {float(self.source.mean_sample_bytes)!r}",
            f"read = {toml_points(self.source.read)}",
            "",
            "[memory]",
            f"read = {toml_points(self.memory.read)}",
            f"write = {toml_points(self.memory.write)}",
        ]
        for speeds in self.ssd:
            lines += ["", "[[ssd]]", f"path = {toml_text(speeds.path)}"]
            lines += [f"read = {toml_points(speeds.read)}", f"write = {toml_points(speeds.write)}"]
        return "\n".join(lines) + "\n"


def default_path(source: str) -> Path:
    """The calibration of a source unless the user says otherwise: it lies beside its saved index."""
    return default_index_path(source).with_suffix(".calibration.toml")


def check_path(path: Path) -> None:
    """Whether a calibration may be written there. Raises NotOursError for a file that is none; OSError."""
    check_replaceable(str(path), KIND, lambda beginning: beginning.startswith(_FIRST_LINE.encode()))


def load(path: str | Path) -> Calibration:
    """Read the file. Raises ConfigError, one line, for one that cannot be used."""
    hint = "make a new one: mlfs calibrate SOURCE"
    try:
        with open(open_ours(str(path)), "rb") as file:
            return Calibration.model_validate(parse_toml(file.read(MOST_TOML_BYTES)))
    except NotOursError as error:
        raise ConfigError(f"calibration {path}: {error.strerror}", error.way_out) from None
    except OSError as error:
        raise ConfigError(f"calibration {path}: {error.strerror}", hint) from None
    except InputError as error:
        raise ConfigError(f"calibration {path} is not valid TOML: {error}", hint) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"calibration {path}: {where}: {first['msg']}", hint) from None


def save(calibration: Calibration, path: Path) -> None:
    """Write the file whole or not at all. Raises: OSError."""
    write_whole(calibration.to_toml(), path, KIND)
