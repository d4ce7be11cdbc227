"""Points of bandwidth, and how they stand in a TOML file: common to the two files of bandwidths.

In: points of a curve, strings. Out: checked points, TOML text, a file written whole. Used by mlfs.measure.calibration
and mlfs.measure.refined.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from mlfs.ours import make_parent, write_ours

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
    """A string as a TOML file has it."""
    # JSON's strings are TOML's but for DEL and surrogates: bytes of a path that are no UTF-8 are not kept.
    return json.dumps(value.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_points(points: tuple[Point, ...]) -> str:
    """Points as a TOML file has them."""
    # With all digits, so that what is read back is what was measured.
    return "[" + ", ".join(f"[{count}, {rate!r}]" for count, rate in points) + "]"


def write_whole(text: str, path: Path, kind: str) -> None:
    """Write a file whole or not at all, over none but one that begins with the same line. Raises: OSError."""
    make_parent(str(path))
    first_line = text.partition("\n")[0].encode()
    write_ours(str(path), lambda file: _write(file, text), kind, lambda beginning: beginning.startswith(first_line))


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode())
