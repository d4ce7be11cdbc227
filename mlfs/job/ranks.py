"""The field `ranks`: which ranks of the world read through this mount.

In: `3`, `"0-3,6"`, a list of both, or null for all. Out: a tuple of ranks. Called by `mlfs.job.spec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, WithJsonSchema

from mlfs.job.refusals import refuse

# A node has a few dozen training processes at most, and the epochs of each are kept in memory.
MAX_LOCAL_RANKS: Final = 1024
# A text that names more is a slip of the pen, and is not to fill the memory.
MOST_RANKS: Final = 1 << 20
_TOO_MANY = f"at most {MAX_LOCAL_RANKS} ranks"
_TOO_MANY_HINT = "give those of this node only"
_RANK_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)


def _parse_ranks(value: Any, info: ValidationInfo) -> tuple[int, ...]:
    """Expand what was written; None means every rank of the world."""
    world_size = info.data.get("world_size")
    if world_size is None:  # the world size was refused already, which is the error to report
        return ()
    if value is None:
        return _every_rank(world_size)
    allowed = f'different ranks from 0 to {world_size - 1} (the world has {world_size}), as [0, 1] or "0-3,6"'
    ranks: list[int] = []
    for low, high in _ranges(value):
        if not 0 <= low <= high < world_size:
            refuse("ranks", value, allowed, 'or "world_size" is another (--world-size)')
        if high - low >= MAX_LOCAL_RANKS or len(ranks) >= 2 * MAX_LOCAL_RANKS:
            refuse("ranks", value, _TOO_MANY, _TOO_MANY_HINT)
        ranks.extend(range(low, high + 1))
    if not ranks:
        refuse("ranks", value, allowed, "leave the field out to mean every rank")
    if len(set(ranks)) < len(ranks):
        refuse("ranks", value, allowed, "a rank is named twice")
    if len(ranks) > MAX_LOCAL_RANKS:
        refuse("ranks", value, _TOO_MANY, _TOO_MANY_HINT)
    return tuple(ranks)


def _every_rank(world_size: int) -> tuple[int, ...]:
    if world_size > MAX_LOCAL_RANKS:
        allowed = f"given: the world has {world_size} ranks, at most {MAX_LOCAL_RANKS} read through one mount"
        hint = 'give the ranks of this node, such as "ranks": "0-7"; mlfs register --from-env asks the launcher'
        refuse("ranks", None, allowed, hint)
    return tuple(range(world_size))


def _ranges(value: object) -> Iterator[tuple[int, int]]:
    for item in value if isinstance(value, list | tuple) else [value]:
        yield from _rank_ranges(item)


def _rank_ranges(item: object) -> list[tuple[int, int]]:
    """The (first, last) pairs of one item of `ranks`; an impossible pair stands for what cannot be read."""
    if isinstance(item, int) and not isinstance(item, bool):
        return [(item, item)]
    if not isinstance(item, str):
        return [(-1, -1)]
    found = [_RANK_RANGE.fullmatch(part) for part in item.split(",")]
    return [(int(m[1]), int(m[2] or m[1])) if m else (-1, -1) for m in found]


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks that "0-3,6" names; empty for a text that names none, or more than `MOST_RANKS`."""
    ranges = _rank_ranges(text)
    if not all(0 <= low <= high for low, high in ranges) or sum(high - low + 1 for low, high in ranges) > MOST_RANKS:
        return ()
    return tuple(rank for low, high in ranges for rank in range(low, high + 1))


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as "0-3,6"."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


Ranks = Annotated[
    tuple[int, ...],
    BeforeValidator(_parse_ranks),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\d+(-\d+)?(,\d+(-\d+)?)*$"},
                {"type": "integer", "minimum": 0},
                {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}},
                {"type": "null"},
            ]
        }
    ),
]


# -- the field `nodes`: the nodes to which a served order deals its reads
#
# In: a list of JSON objects, as a mount fills it in when a job is registered there. Out: a tuple of `JobNode`.
#
# A served order is the same on all nodes and at all times because it rests on these fields and on nothing that may
# change meanwhile: a node that dies stays in them, and the order goes on as it is.

_ALLOWED = (
    'a list such as [{"node": 0, "ranks": "0-3", "keeps_bytes": [64000000000, 0], "buffer_bytes": 1000000000}]:'
    " numbers ascend, and each rank has one node"
)
# Nodes are numbered in two signed bytes. `mlfs.served.locality` takes two numbers more: for what no node keeps, and for
# places in which nothing is read.
_MOST_NODE = 32_765
# An exabyte: more is a slip of the pen.
_MOST_BYTES = 10**18


class JobNode(BaseModel):
    """A node as the order sees it.

    Attributes:
        node: its number among the peers. ranks: those that run there, as "0-3,6".
        keeps_bytes: how much it keeps in memory, on disks, and on slower ones.
        buffer_bytes: half of its staging window: so much of what no node keeps is read while as much is fetched.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True)

    node: int = Field(ge=0, le=_MOST_NODE)
    ranks: str
    keeps_bytes: tuple[Annotated[int, Field(ge=0, le=_MOST_BYTES)], ...]
    buffer_bytes: int = Field(0, ge=0, le=_MOST_BYTES)


def _parse_nodes(value: Any, info: ValidationInfo) -> tuple[JobNode, ...] | None:
    if value is None:
        return None
    world_size = info.data.get("world_size")
    try:
        nodes = tuple(_parse_node(item) for item in value) if isinstance(value, list | tuple) else ()
    except (ValidationError, KeyError, TypeError, ValueError):
        nodes = ()
    ranks = _ranks_of(nodes)
    numbers = [node.node for node in nodes]
    if not nodes or numbers != sorted(set(numbers)):
        refuse("nodes", value, _ALLOWED, "leave the field out: the mount fills it in")
    if world_size is not None and sorted(ranks) != list(range(world_size)):
        refuse("nodes", value, f"{_ALLOWED} (the world has {world_size})", "leave the field out: the mount fills it in")
    return nodes


def _ranks_of(nodes: Iterable[JobNode]) -> list[int]:
    """The ranks of all nodes; nodes that name more than any world has are not read to their end."""
    ranks: list[int] = []
    for node in nodes:
        if len(ranks) <= MOST_RANKS:
            ranks.extend(ranks_in(node.ranks))
    return ranks


def _parse_node(item: Any) -> JobNode:
    if isinstance(item, JobNode):
        return item
    fields = dict(item)
    return JobNode.model_validate(fields | {"keeps_bytes": tuple(fields["keeps_bytes"])})


Nodes = Annotated[tuple[JobNode, ...] | None, BeforeValidator(_parse_nodes)]
