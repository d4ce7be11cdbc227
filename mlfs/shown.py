"""The parts of a status as text: what is missing is a dash, so that the status of another version can be shown too.

Pure. In: a status as `mlfs.cli.client` reads it. Out: its parts and texts. Used by `mlfs.report`, and by the commands
that show a status.
"""

from __future__ import annotations

from typing import Any

from mlfs.printable import printable

NONE = "-"


def one_of(mapping: dict[str, Any], key: str) -> str:
    """A text of a status, on one line."""
    return printable(str(mapping.get(key, NONE)))


def part(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    """A part of a status that has parts itself; an empty one where there is none."""
    value = mapping.get(key)
    return value if isinstance(value, dict) else {}


def parts_of(mapping: dict[str, Any], key: str) -> list[Any]:
    """A list of a status; an empty one where there is none."""
    value = mapping.get(key)
    return value if isinstance(value, list) else []


def number_of(status: dict[str, Any], section: str, key: str) -> float:
    """A number in a part of a status; 0 where there is none."""
    value = part(status, section).get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def of_which_ranks(job: dict[str, Any]) -> str:
    """Which of a job's ranks what is said of their load is about; nothing where it is all of them."""
    world = part(job, "spec").get("world_size")
    ranks = len(part(part(job, "load"), "ranks"))
    return " of this node's ranks; others are not seen" if isinstance(world, int) and ranks < world else ""


def is_number(value: object) -> bool:
    """Whether it is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def count(value: Any) -> str:
    """A number with its thousands told apart."""
    return f"{value:,}" if is_number(value) else str(value) if isinstance(value, str) else NONE


def count_of(value: Any, one: str, many: str) -> str:
    """A number of things, in words: 1 node, 2 nodes."""
    return f"{count(value)} {one if value == 1 else many}"


def out_of(value: Any, total: Any) -> str:
    """How far of how much, as far as that is known."""
    return f"{count(value)}/{count(total)}" if is_number(total) else count(value)


def percent(value: Any) -> str:
    """A share as per cent."""
    return f"{100 * value:.1f} %" if is_number(value) else NONE


def size(value: Any) -> str:
    """Bytes in a unit that suits them."""
    from mlfs.units import format_size

    return format_size(value) if is_number(value) else NONE


def duration(value: Any) -> str:
    """Seconds in units that suit them."""
    from mlfs.units import format_duration

    return format_duration(value) if is_number(value) else NONE
