"""The refined bandwidths of a source: what mounts measured while they ran, in a TOML file beside its calibration.

In: the refined curves of a mount's places when it ends. Out: the file. `mlfs calibrate` never touches it, and mounts
never touch the calibration. Read and written through mlfs.measure.earlier.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from mlfs.measure.calibration import FilePart, Point, SourceSpeeds, check_ascending, toml_points, toml_text, write_whole
from mlfs.ours import open_ours
from mlfs.tree.index import default_index_path
from mlfs.user_input import MOST_TOML_BYTES, InputError, parse_toml

log = logging.getLogger("mlfs.measure.refined")


class ReadSpeeds(FilePart):
    """A cache directory or memory: bytes a second of all lanes together, by lanes; `path` is empty for memory."""

    path: str = ""
    read: tuple[Point, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ascending(self) -> ReadSpeeds:
        check_ascending(self.read)
        return self


class Refined(FilePart):
    """Bandwidths that mounts of a source measured; places that none of them used are missing."""

    made: str
    source: SourceSpeeds | None = None
    memory: ReadSpeeds | None = None
    disk: tuple[ReadSpeeds, ...] = ()

    def to_toml(self) -> str:
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


def default_path(source: str) -> Path:
    """The file of the refined bandwidths of a source: it lies beside its saved index and its calibration."""
    return default_index_path(source).with_suffix(".refined.toml")


def load(path: Path) -> Refined | None:
    """Read the file. None when there is none, or when it cannot be used, which is logged."""
    try:
        with open(open_ours(str(path)), "rb") as file:
            return Refined.model_validate(parse_toml(file.read(MOST_TOML_BYTES)))
    except FileNotFoundError:
        return None
    except (OSError, InputError, ValidationError) as error:
        log.warning("not used: %s: %s", path, str(error).splitlines()[0])
        return None


def combined(before: Refined | None, new: Refined) -> Refined:
    """`new`, and from `before` the places that `new` says nothing of."""
    if before is None:
        return new
    paths = {speeds.path for speeds in new.disk}
    return Refined(
        made=new.made,
        source=new.source or before.source,
        memory=new.memory or before.memory,
        disk=(*new.disk, *(speeds for speeds in before.disk if speeds.path not in paths)),
    )


def save(refined: Refined, path: Path) -> None:
    """Write the file whole or not at all; places that `refined` says nothing of stay as they are. Raises: OSError."""
    write_whole(combined(load(path), refined).to_toml(), path, "refined bandwidths of mlfs")
