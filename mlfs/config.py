"""The settings of one mount: flags and a TOML file merged, defaults filled in from this machine's memory.

In: what the user gave (`load_config`), /proc and /sys for the memory limit, the free space of cache directories.
Out: a frozen `MountConfig` with absolute paths and plain numbers, which travels to the daemon as JSON.
Called by `mlfs.cli.mount`; read by `mountd`. Nothing is checked here that needs a look at the paths themselves
(that is `mountd.preflight`).

Memory is divided by `mlfs.plan.memory_budget`, of what `mlfs.limits` finds.

Paths are `str` in Python's surrogateescape form, so they can be any bytes. pydantic's own `str` refuses some of them,
and so does its JSON writer; that is why there are `PathText`, `to_json` and `from_json`.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from mlfs.errors import ConfigError
from mlfs.limits import MemoryRoom, memory_room
from mlfs.plan.memory_budget import LEAST_ROOM_BYTES, MOST_BUFFER_BYTES, OWN_BYTES, divide
from mlfs.units import format_size, parse_duration, parse_size
from mlfs.user_input import InputError, read_toml, shortened, whole_number

# The most threads on the source. A parallel file system serves many at once; fewer are used where more don't help.
DEFAULT_PFS_THREADS = 16
# A training job would rather wait than fail, and a file system that fails over to another server takes some seconds.
DEFAULT_SOURCE_TIMEOUT_S = 30.0
# Two logs of this size hold months of a quiet mount and the last hours of one that complains with every read.
DEFAULT_LOG_BYTES = 16 * 2**20
DEFAULT_OLDER_LOGS = 1

# No sample takes less. Less than that is a unit that was forgotten, but for a RAM class of 0, which is none.
LEAST_CACHE_BYTES = 4096
LEAST_STAGING_BYTES = 2**20

# The names of flags and TOML keys; `config` itself is not one of them.
KEYS = (
    "source",
    "mountpoint",
    "ram",
    "ssd",
    "lmdb",
    "staging",
    "pfs-threads",
    "movers",
    "allow-other",
    "foreground",
    "log-file",
    "log-format",
    "log-size",
    "log-files",
    "index",
    "rescan",
    "source-timeout",
    "infer",
    "strict-order",
    "calibration",
    "report",
    "channel",
)
_PATH_KEYS = ("source", "mountpoint", "log-file", "index", "calibration", "report")


def _path_text(value: object) -> str:
    if not isinstance(value, str) or not os.path.isabs(value) or "\0" in value:
        raise ValueError("an absolute path is needed")
    return value


PathText = Annotated[str, PlainValidator(_path_text)]


class CacheDir(BaseModel):
    """A directory for cached copies and how many bytes they may take up in it."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    path: PathText
    bytes: int = Field(ge=0)


class MountConfig(BaseModel):
    """Everything the daemon of one mount has to know. Paths are absolute, sizes are bytes."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    source: PathText
    mountpoint: PathText
    ram_bytes: int = Field(ge=0)
    ssd: list[CacheDir] = Field(default_factory=list)
    lmdb: list[CacheDir] = Field(default_factory=list)
    staging_bytes: int = Field(ge=1)
    buffer_bytes: int = Field(default=MOST_BUFFER_BYTES, ge=1)
    pfs_threads: int = Field(default=DEFAULT_PFS_THREADS, ge=1, le=1024)
    movers: int | None = Field(default=None, ge=0, le=64)  # None: by the cores (mlfs.engine.movers)
    allow_other: bool = False
    foreground: bool = False
    log_file: PathText | None = None
    log_format: Literal["text", "json"] = "text"
    log_size_bytes: int = Field(default=DEFAULT_LOG_BYTES, ge=4096)
    log_files: int = Field(default=DEFAULT_OLDER_LOGS, ge=0, le=1000)
    index: PathText | None = None
    calibration: PathText | None = None
    report: PathText | None = None
    rescan: bool = False
    source_timeout_s: float = Field(default=DEFAULT_SOURCE_TIMEOUT_S, gt=0)
    infer: bool = True
    strict_order: bool = False
    channel: Literal["auto", "open", "silent"] = "open"
    asked: dict[str, str] = Field(default_factory=dict)
    """What the user gave, by the names of `KEYS`, as text; what is missing has its default."""

    def to_json(self) -> str:
        """One line of ASCII; undecodable bytes of paths survive as escaped surrogates."""
        return json.dumps(self.model_dump(mode="python"))

    @classmethod
    def from_json(cls, text: str | bytes) -> MountConfig:
        """The config that `to_json` wrote."""
        return cls.model_validate(json.loads(text))


def load_config(
    flags: Mapping[str, Any], toml_path: str | None = None, *, limit_bytes: int | None = None
) -> MountConfig:
    """Merge flags (None: not given) with the TOML file, flags winning, and fill in the defaults.

    Args:
        flags: by flag name (`pfs-threads` or `pfs_threads`); values as typed. Relative paths: to the working directory.
        toml_path: the file given with --config. Relative paths in it: to the directory of the file.
        limit_bytes: the memory that may be used, all of it free; default: what `memory_room()` finds.
    """
    given = _checked_keys({k: v for k, v in flags.items() if v is not None}, "")
    merged = _load_toml(toml_path) if toml_path is not None else {}
    merged |= _absolute(given, None, expand_user=False)
    if "source" not in merged:
        raise ConfigError("no source directory is given", "mlfs mount SOURCE [MOUNTPOINT]")
    room = memory_room() if limit_bytes is None else MemoryRoom(limit_bytes)
    ram, staging, buffers = _memory_budgets(merged, room)
    values: dict[str, Any] = {
        "source": merged["source"],
        "mountpoint": merged.get("mountpoint", merged["source"]),
        "ram_bytes": ram,
        "staging_bytes": staging,
        "buffer_bytes": buffers,
        "ssd": _cache_dirs(merged, "ssd"),
        "lmdb": _cache_dirs(merged, "lmdb"),
        "source_timeout_s": parse_duration(
            merged.get("source-timeout", DEFAULT_SOURCE_TIMEOUT_S), what="source-timeout"
        ),
    }
    for key in ("pfs-threads", "movers", "log-files"):
        if key in merged:
            values[key.replace("-", "_")] = _whole_number(merged[key], key)
    if "log-size" in merged:
        values["log_size_bytes"] = parse_size(merged["log-size"], what="log-size")
    if "infer" in merged:
        values["infer"] = _on_or_off(merged["infer"], "infer")
    plain = ("log-file", "log-format", "index", "calibration", "report", "channel")
    for key in (*plain, "allow-other", "foreground", "rescan", "strict-order"):
        if key in merged:
            values[key.replace("-", "_")] = merged[key]
    values["asked"] = {key: json.dumps(value) for key, value in sorted(merged.items())}
    return _validated(values)


# How a mount is run, and not what it is: a mount that runs already may have been started otherwise.
_OF_THE_START = ("mountpoint", "foreground")
# What stays as it is while a mount lives.
OF_ALL_ITS_LIFE = ("source", "allow-other", "index", "rescan", "channel")
_IN_OTHER_UNITS = {
    "ram": "ram_bytes",
    "staging": "staging_bytes",
    "source-timeout": "source_timeout_s",
    "log-size": "log_size_bytes",
}


def differing(wanted: MountConfig, running: MountConfig) -> dict[str, str]:
    """The settings in which a mount that runs is not what is wanted, by key, in words: `ram 64 GiB, now 32 GiB`.

    A setting that was given in the same words is the same, although 50 % of what is free on a disk may be less by now.
    """
    said = {}
    for key in KEYS:
        name = _IN_OTHER_UNITS.get(key, key.replace("-", "_"))
        new, old = getattr(wanted, name), getattr(running, name)
        same = new == old or (wanted.asked.get(key) == running.asked.get(key) and key != "source")
        if key == "rescan":
            same = not new  # a new scan is wanted now
        if key == "log-file":
            same = key not in wanted.asked or new == old
        if not same and key not in _OF_THE_START:
            said[key] = f"{key} {_in_words(name, new)}, now {_in_words(name, old)}"
    return said


def changed(running: MountConfig, flags: Mapping[str, Any]) -> MountConfig:
    """The settings of a mount that runs, with those that are given now in place of its own. Raises ConfigError."""
    given = {key: value for key, value in flags.items() if value is not None}
    wanted = load_config({"source": running.source} | given)
    names = {_IN_OTHER_UNITS.get(key, key.replace("-", "_")) for key in given}
    asked = running.asked | {key: text for key, text in wanted.asked.items() if key in given}
    return running.model_copy(update={name: getattr(wanted, name) for name in names} | {"asked": asked})


def _in_words(name: str, value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "by cores" if name == "movers" else "none"}[value]
    if isinstance(value, list):
        return " ".join(f"{cache.path}:{format_size(cache.bytes)}" for cache in value) or "none"
    if isinstance(value, int) and name.endswith("_bytes"):
        return format_size(value)
    return f"{value:g} s" if isinstance(value, float) else str(value)


def _validated(values: dict[str, Any]) -> MountConfig:
    try:
        # strict: `allow-other = "no"` in TOML is a mistake, not a false.
        return MountConfig.model_validate(values, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]).replace("_", "-").removesuffix("-bytes").removesuffix("-s")
        must = first["msg"].replace("Input should be", "must be")
        shown = shortened(repr(first["input"]))
        raise ConfigError(f"{name}: {shown} cannot be used: {must}", "see mlfs mount --help") from None


def _checked_keys(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in values.items()}
    for key in named:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(KEYS)}"
            raise ConfigError(f"unknown key {key!r}{where}", hint)
    return named


def _load_toml(path: str) -> dict[str, Any]:
    try:
        table = read_toml(path)
    except OSError as error:
        raise ConfigError(f"config file {path}: {error.strerror}", "give --config a readable TOML file") from None
    except InputError as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}", 'lines look like ram = "64G"') from None
    named = _checked_keys(table, f" in {path}")
    return _absolute(named, os.path.dirname(os.path.abspath(path)), expand_user=True)


def _absolute(values: dict[str, Any], base: str | None, *, expand_user: bool) -> dict[str, Any]:
    """Paths made absolute. Only in TOML is `~` expanded: on the command line the shell has done it.

    Args:
        base: what they are relative to; None for the working directory, which need not be there for absolute paths.
    """

    def absolute(path: str) -> str:
        path = os.path.expanduser(path) if expand_user else path
        return os.path.abspath(path) if base is None else os.path.normpath(os.path.join(base, path))

    result = dict(values)
    for key in _PATH_KEYS:
        if key in result:
            if not isinstance(result[key], str) or not result[key]:
                raise ConfigError(f"{key}: {result[key]!r} is not a path", "give a path as text")
            result[key] = absolute(result[key])
    for key in ("ssd", "lmdb"):
        if key in result:
            result[key] = [(absolute(path), size) for path, size in _split_cache_dirs(result[key], key)]
    return result


def _split_cache_dirs(values: object, key: str) -> list[tuple[str, str]]:
    items = [values] if isinstance(values, str) else values
    if not isinstance(items, list | tuple):
        raise ConfigError(f"{key}: {values!r} is not a list of DIR:SIZE", f'write {key} = ["/scratch:400G"]')
    pairs = []
    for item in items:
        # The last colon divides: directories may have colons in their names, sizes have none.
        path, colon, size = item.rpartition(":") if isinstance(item, str) else ("", "", "")
        if not (path and colon and size):
            raise ConfigError(f"{key}: {item!r} is not DIR:SIZE", "write for example /scratch:400G or /scratch:50%")
        pairs.append((path, size))
    return pairs


def _cache_dirs(merged: Mapping[str, Any], key: str) -> list[CacheDir]:
    dirs = []
    for path, size in merged.get(key, []):
        of_bytes = free_bytes(path) if size.strip().endswith("%") else None
        size_bytes = parse_size(size, of_bytes=of_bytes, what=f"{key} {path}")
        if size_bytes == 0:
            raise ConfigError(f"{key} {path}: a size of 0 keeps nothing", f"leave --{key} out or give a size")
        _refuse_tiny(f"{key} {path}", size, size_bytes, LEAST_CACHE_BYTES)
        dirs.append(CacheDir(path=path, bytes=size_bytes))
    return dirs


def _refuse_tiny(what: str, typed: object, size_bytes: int, least_bytes: int) -> None:
    """Refuse a size that nobody means."""
    if size_bytes >= least_bytes:
        return
    plain = str(typed).strip().replace(".", "", 1).isdecimal()
    raise ConfigError(
        f"{what}: {str(typed)!r} is {format_size(size_bytes)}, less than {format_size(least_bytes)}",
        f"did you mean {str(typed).strip()}G?" if plain else "write for example 64M",
    )


def free_bytes(path: str) -> int:
    """The bytes that users may still write in the file system that `path` is in or will be made in."""
    path = os.path.abspath(path)  # the directory above a relative one may be "", which is nowhere
    while True:
        try:
            stat = os.statvfs(path)
            return stat.f_bavail * stat.f_frsize
        except FileNotFoundError:
            path = os.path.dirname(path)
        except OSError as error:
            raise ConfigError(f"free space of {path} is not known: {error.strerror}", "give a size, not %") from None


def _memory_budgets(merged: Mapping[str, Any], room: MemoryRoom) -> tuple[int, int, int]:
    """Bytes for the RAM tier, the staging window and buffers. A default becomes smaller where another was given."""
    limit = room.limit_bytes
    wanted = {key: parse_size(merged[key], of_bytes=limit, what=key) for key in ("ram", "staging") if key in merged}
    if wanted.get("ram"):
        _refuse_tiny("ram", merged["ram"], wanted["ram"], LEAST_CACHE_BYTES)
    if "staging" in wanted:
        _refuse_tiny("staging", merged["staging"], wanted["staging"], LEAST_STAGING_BYTES)
    shares = divide(limit, room.used_bytes, wanted.get("ram"), wanted.get("staging"))
    if shares.room_bytes < LEAST_ROOM_BYTES:
        raise ConfigError(
            f"the memory limit of {format_size(limit)} ({room.where}) leaves {format_size(shares.room_bytes)} beside"
            f" what others use ({format_size(room.used_bytes)}) and the daemon itself ({format_size(OWN_BYTES)})",
            f"give it at least {format_size(limit - shares.room_bytes + LEAST_ROOM_BYTES)}",
        )
    if shares.ram_bytes + shares.window_bytes > limit:
        raise ConfigError(
            f"ram ({format_size(shares.ram_bytes)}) and staging ({format_size(shares.window_bytes)}) are more than "
            f"the memory limit of {format_size(limit)}",
            "give smaller --ram or --staging; percentages are of that limit",
        )
    return shares.ram_bytes, shares.window_bytes, shares.buffer_bytes


def memory_warning(config: MountConfig, room: MemoryRoom | None = None) -> str | None:
    """One line where what was asked for takes more memory than the limits leave; None where it fits."""
    room = room or memory_room()
    shares = divide(room.limit_bytes, room.used_bytes, config.ram_bytes, config.staging_bytes)
    if shares.fits:
        return None
    asked = config.ram_bytes + config.staging_bytes + shares.buffer_bytes + OWN_BYTES
    return (
        f"--ram {format_size(config.ram_bytes)}, --staging {format_size(config.staging_bytes)} and the daemon's"
        f" {format_size(OWN_BYTES + shares.buffer_bytes)} are {format_size(asked)}, and"
        f" {format_size(room.limit_bytes - room.used_bytes)} of {format_size(room.limit_bytes)} is free"
        f" ({room.where}): pages will be taken back, or a process killed; smaller ones fit, as the defaults do"
    )


def _on_or_off(value: object, key: str) -> bool:
    """Whether the value is `on`. TOML's true and false are taken as well."""
    if isinstance(value, bool):
        return value
    if value in ("on", "off"):
        return value == "on"
    raise ConfigError(f"{key}: {value!r} is neither on nor off", f'write {key} = "off", or --{key} off')


def _whole_number(value: object, key: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        with suppress(InputError):
            return whole_number(value, 0, 2**63 - 1)
    raise ConfigError(f"{key}: {value!r} is not a whole number", f"write for example {DEFAULT_PFS_THREADS}")
