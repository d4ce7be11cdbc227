"""The field `nodes`: the nodes to which a served order deals its reads.

In: a list of JSON objects, as a mount fills it in when a job is registered there. Out: a tuple of `JobNode`. Called by
`mlfs.job.spec`.

A served order is the same on all nodes and at all times because it rests on these fields and on nothing that may change
meanwhile: a node that dies stays in them, and the order goes on as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from mlfs.job.ranks import MOST_RANKS, ranks_in
from mlfs.job.refusals import refuse

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
