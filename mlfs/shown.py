"""A status as the commands read it, and its values as text.

Pure. In: a status as `mlfs.cli.client` reads it, of this version's daemon or another's, or saved. Out: its parts
(`StatusPart`) and texts. Used by `mlfs.report`, and by the commands that show a status.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from typing import Any

from mlfs.printable import printable

NONE = "-"
ROUTE_NAMES = {
    "page_cache": "page cache",
    "ram": "RAM",
    "ssd": "SSD",
    "lmdb": "LMDB",
    "peer": "peers",
    "pfs": "source",
}
"""The places that answer reads, the fastest first, as people call them."""
ROUTES_OF_ALL = ("page_cache", "pfs")
"""The routes that every mount has: the others are shown once they have answered a read."""
_AUDITED_EPOCHS = 8  # that are shown of a job, the last ones


class StatusPart:
    """A part of a status, by the names that the JSON has: `status.reads.epoch["ram"].bytes`.

    Versions differ in what a status has. So there is one rule: what is missing, or null, is a part that has nothing. It
    is false, goes round no loop, is no number, and is shown as a dash. Lists are tuples.
    """

    __slots__ = ("_json",)

    def __init__(self, json: object = None) -> None:
        self._json = json if isinstance(json, dict) else {}

    def __getitem__(self, name: str) -> Any:
        value = self._json.get(name)
        if isinstance(value, list):
            return tuple(StatusPart(one) if isinstance(one, dict) else one for one in value)
        return StatusPart(value) if value is None or isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._json)

    def __len__(self) -> int:
        return len(self._json)

    def __str__(self) -> str:
        return str(self._json or NONE)

    def items(self) -> ItemsView[str, Any]:
        """Names, and what they have."""
        return {name: self[name] for name in self._json}.items()


def line_of(value: object) -> str:
    """A text of a status, on one line."""
    return printable(str(value))


def number(value: Any) -> float:
    """A number of a status; 0 where there is none."""
    return value if is_number(value) else 0


def of_which_ranks(job: StatusPart) -> str:
    """Which of a job's ranks what is said of their load is about; nothing where it is all of them."""
    world = job.spec.world_size
    seen_fewer = is_number(world) and len(job.load.ranks) < world
    return " of this node's ranks; others are not seen" if seen_fewer else ""


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


def audited(job: StatusPart, most: int = _AUDITED_EPOCHS) -> list[str]:
    """A job as the auditor saw it: who read, each of the last epochs in numbers, what is not judged."""
    ranks, readers = count_of(job.ranks, "rank", "ranks"), count_of(job.readers, "process", "processes")
    lines = [f"process {job.run}: {ranks}, {readers}, {count(job.samples)} samples"]
    epochs = tuple(job.epochs)
    if earlier := len(epochs[:-most]):
        lines.append(f"({count_of(earlier, 'earlier epoch is', 'earlier epochs are')} in mlfs audit --json)")
    for epoch in epochs[-most:]:
        line = f"epoch {count(epoch.epoch)}{'' if epoch.is_over else ' (not over)'}: "
        line += f"{count(epoch.by_one)} samples were read by one rank"
        line += f", {count(epoch.by_several)} by several" if epoch.by_several else ""
        line += f", {count(epoch.by_none)} by none" if epoch.by_none else ""
        if number(job.ranks) > 1 and (epoch.by_several or epoch.by_none):
            line += f" (samplers may repeat or drop {count(job.ranks - 1)} for {count(job.ranks)} equal ranks)"
        line += f"; shuffled by {percent(epoch.shuffled)}"
        line += f"; {count(epoch.fewest)} to {count(epoch.most)} reads a rank" if number(job.ranks) > 1 else ""
        lines.append(line)
    return lines + [f"not judged: {line_of(why)}" for why in job.unjudged]
