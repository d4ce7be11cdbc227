"""Sizes and durations as people write them, both ways.

In: text from flags, the TOML file and control lines; numbers to be shown. Out: bytes and seconds; text for people.
Called by `mlfs.config`, `mlfs.cli` and whoever logs a size. Pure.

K, M, G, T (and KiB, MiB, ...) are powers of 1024; KB, MB, GB, TB are powers of 1000, as in coreutils.
"""

from __future__ import annotations

import re

from mlfs.errors import ConfigError

SIZE_EXAMPLES = "write for example 64G, 1.5TiB, 512M, 4096 or 10%"
DURATION_EXAMPLES = "write for example 250ms, 2s, 1m30s, 1h or a number of seconds"

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|([kmgtpe]?)(ib|b|))", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|sec|s|min|m|h|d)", re.IGNORECASE | re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PREFIXES = " kmgtpe"
# Python makes a number of so many digits, and more are no size nor duration of anything.
_MOST_DIGITS = 100
# More than any file system or memory holds; keeps every size within a signed 64-bit integer.
_MAX_BYTES = 2**63 - 1


def parse_size(text: str | int, *, of_bytes: int | None = None, what: str = "size") -> int:
    """Bytes meant by `text`; a percentage is one of `of_bytes`. The error names the flag by `what`."""
    if isinstance(text, int) and not isinstance(text, bool):
        value = float(text) if text < 0 or text > _MAX_BYTES else text
    else:
        value = _size_value(str(text).strip(), text, of_bytes, what)
    if not 0 <= value <= _MAX_BYTES:
        raise ConfigError(f"{what}: {text!r} is out of range", SIZE_EXAMPLES)
    return int(value)


def _size_value(stripped: str, text: object, of_bytes: int | None, what: str) -> float:
    match = _SIZE.fullmatch(stripped)
    if match is None or len(stripped) > _MOST_DIGITS:
        raise ConfigError(f"{what}: {text!r} is not a size", SIZE_EXAMPLES)
    number, unit = match[1], match[2].lower()
    if unit == "%":
        if of_bytes is None:
            raise ConfigError(f"{what}: {text!r} is a percentage, not a size", "write for example 64G or 512M")
        if float(number) > 100:
            raise ConfigError(f"{what}: {text!r} is more than 100 %", SIZE_EXAMPLES)
        return float(number) * of_bytes / 100
    power = _PREFIXES.index(match[3].lower() or " ")
    base: int = 1000 if unit.endswith("b") and not unit.endswith("ib") else 1024
    # Whole numbers stay integers: a float would lose the last bytes of sizes above 8 PiB.
    scale: int = base**power
    return int(number) * scale if number.isdigit() else float(number) * scale


def format_size(size_bytes: float) -> str:
    """For example `140.2 GiB`, `512 MiB`, `17 B`; at most one decimal."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    unit = units.pop(0)
    # 1023.95 would print as 1024.0 of a unit: move on to the next one where rounding gets there.
    while abs(value) >= 1023.95 and units:
        value, unit = value / 1024, units.pop(0)
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def parse_duration(text: str | float, *, what: str = "duration") -> float:
    """Seconds meant by `text`: `250ms`, `2s`, `1m30s`, `1h`; a bare number is seconds. The error names the flag by
    `what`."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return _checked_seconds(float(text), text, what)
    stripped = str(text).strip()
    if len(stripped) > _MOST_DIGITS:
        raise ConfigError(f"{what}: {text!r} is not a duration", DURATION_EXAMPLES)
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", stripped, re.ASCII):
        return _checked_seconds(float(stripped), text, what)
    parts = list(_DURATION.finditer(stripped))
    if not parts or re.sub(r"\s", "", "".join(m[0] for m in parts)) != re.sub(r"\s", "", stripped):
        raise ConfigError(f"{what}: {text!r} is not a duration", DURATION_EXAMPLES)
    return _checked_seconds(sum(float(m[1]) * _SECONDS[m[2].lower()] for m in parts), text, what)


def _checked_seconds(seconds: float, text: object, what: str) -> float:
    # The comparison is also false for nan; ten years is longer than any timeout and short enough for every clock.
    if not 0 <= seconds <= 10 * 365 * 86400:
        raise ConfigError(f"{what}: {text!r} is out of range", DURATION_EXAMPLES)
    return seconds


def format_duration(seconds: float) -> str:
    """For example `250 us`, `1.5 ms`, `2.0 s`, `1 min 30 s`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 59.95:
        for unit, factor in (("us", 1e6), ("ms", 1e3)):
            if seconds * factor < 999.5:
                return f"{seconds * factor:.3g} {unit}" if seconds else "0 s"
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for big, small, big_s, small_s in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < big_s * {"min": 60, "h": 24, "d": 10**9}[big]:
            rest = whole % big_s // small_s
            return f"{whole // big_s} {big}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("unreachable: days have no upper bound")
