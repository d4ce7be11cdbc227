"""The nodes on which a served order rests, as they are when its job is registered.

In: a job with `serve`, the members of the cluster or this node alone, their rooms. Out: the job with its field `nodes`;
which node runs which rank. Called by `mlfs.engine.shared_jobs` and `mlfs.engine.sharing`. From then on nothing that
happens to a node changes the order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from mlfs.errors import JobError
from mlfs.job import JobSpec, parse_job
from mlfs.job.nodes import JobNode
from mlfs.job.ranks import ranks_in, ranks_text
from mlfs.orders.served import LEVEL
from mlfs.plan.members import Members


def with_nodes(
    spec: JobSpec,
    before: JobSpec | None,
    members: Members | None,
    capacities_bytes: Sequence[int],
    buffer_bytes: int,
) -> JobSpec:
    """The job with its nodes, and its level of randomness, if its order is served and nobody has said them.

    A run that goes on, in place of a job of its name, keeps that job's nodes: else it would go on in another order than
    it has begun.

    Args:
        before: the job that it replaces. members: the nodes that have joined, None for a node alone. Those that are
            lost for good keep nothing. All nodes know the same of them, so it is the same wherever the job is
            registered.
        capacities_bytes: what a node alone keeps, by class. buffer_bytes: half of its staging window.

    Raises:
        JobError: it is not known which ranks run on which node.
    """
    if spec.serve is None:
        return spec
    if spec.nodes is not None:
        return _of(spec, spec.nodes, LEVEL)
    if before is not None and before.nodes is not None and _goes_on(spec, before):
        return _of(spec, before.nodes, before.level)
    world = spec.world_size
    if members is None:
        ranks: Mapping[int, Sequence[int]] = {0: range(world)}
        rooms: Mapping[int, Sequence[int]] = {0: capacities_bytes}
        buffers = {0: buffer_bytes}
        known = len(spec.ranks) == world
        hint = "start `mlfs peers` on the nodes first; a node alone is to run all ranks"
    else:
        ranks = {node: members.ranks(world, node) for node in members.nodes}
        rooms = dict(zip(members.nodes, members.capacities_bytes, strict=True))
        buffers = dict(zip(members.nodes, members.buffers_bytes, strict=True))
        rooms |= {node: (0,) * len(rooms[node]) for node in members.away}  # what was theirs nobody keeps
        known = members.divides(world) and set(spec.ranks) in ({*ranks[members.own]}, {*range(world)})
        hint = f"here are {len(ranks)} nodes, each with as many ranks, one node's after the other's"
        if members.away:
            gone = ", ".join(map(str, members.away))
            hint += f"; of these {gone} went away: to go on without, end `mlfs peers` and start it where the job runs"
    if not known:
        message = 'job field "serve": a served order rests on which ranks run on which node, and that is not known'
        raise JobError(message, f'{hint}; or give "nodes"', "serve")
    nodes = [
        JobNode(node=node, ranks=ranks_text(ranks[node]), keeps_bytes=tuple(rooms[node]), buffer_bytes=buffers[node])
        for node in ranks
    ]
    return _of(spec, nodes, LEVEL)


def node_of_rank(spec: JobSpec, members: Members) -> dict[int, int]:
    """By rank, the number of the node that runs it: as the nodes of a served order say, else as launchers deal ranks;
    ranks of which nobody knows it are missing."""
    deal = {rank: node for node in members.nodes for rank in members.ranks(spec.world_size, node)}
    node_of = deal if members.divides(spec.world_size) else {}
    named = {rank: node.node for node in spec.nodes or () for rank in ranks_in(node.ranks)}
    return node_of | {rank: node for rank, node in named.items() if node in members.nodes}


def _goes_on(spec: JobSpec, before: JobSpec) -> bool:
    alike = (before.serve, before.world_size) == (spec.serve, spec.world_size)
    return alike and bool(spec.start_epoch or spec.start_step)


def _of(spec: JobSpec, nodes: Sequence[JobNode], level: float | None) -> JobSpec:
    """The job with these nodes, and with the level of randomness where it has none: the order rests on that, too."""
    filled_in: dict[str, object] = {"nodes": [node.model_dump(mode="json") for node in nodes]}
    if spec.serve == "opportunistic":
        filled_in["level"] = level if spec.level is None else spec.level
    return parse_job({**json.loads(spec.to_json()), **filled_in})
