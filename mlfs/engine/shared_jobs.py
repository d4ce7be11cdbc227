"""The jobs of a cluster: one node is told a job, and all follow it, each its own ranks, by one plan.

In: jobs that are registered here; what the servers of other nodes say; what this node has room for. Out: jobs for
`mlfs.engine.mount_jobs`, jobs to plan with for `mlfs.engine.planner`, words for the other servers. A job begins when
all nodes have planned with it (`mlfs.engine.shared_plan`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.planner import Planner
from mlfs.engine.runner import Runner
from mlfs.engine.shared_orders import SharedOrders
from mlfs.engine.shared_plan import SharedPlan, Tell
from mlfs.errors import JobError, MlfsError
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec, parse_job
from mlfs.job.ranks import ranks_in, ranks_text
from mlfs.orders.streams import JobStreams
from mlfs.plan.members import Members

log = logging.getLogger("mlfs.peers")

Build = Callable[[JobSpec], JobStreams]


class SharedJobs:
    """See the module. Without members, before `begin` and after `end`, it does nothing.

    Args:
        build: computes a job's streams, in a worker thread.
        capacities: what this node keeps, by class (`Keeping.capacities_bytes`). buffer_bytes: half of its staging
            window.
    """

    def __init__(
        self,
        jobs: MountJobs,
        planner: Planner,
        plan: SharedPlan,
        runner: Runner,
        build: Build,
        capacities: Callable[[], Sequence[int]],
        buffer_bytes: int,
    ) -> None:
        self._jobs = jobs
        self._planner = planner
        self._plan = plan
        self._runner = runner
        self._build = build
        self._capacities = capacities
        self._buffer_bytes = buffer_bytes
        self._orders = SharedOrders(jobs, planner, plan, runner, build)
        self._joined = False
        self._tell: Tell = lambda _: None
        self._told: dict[str, Mapping[str, Any]] = {}  # the jobs of the cluster, by name, as the first node was told

    @property
    def active(self) -> bool:
        """Whether there are other nodes."""
        return self._joined

    async def begin(self, members: Members, tell: Tell, patience_s: float) -> None:
        """This node has joined others. Returns when all have planned what each keeps."""
        self._tell = tell
        self._planner.join(members, list(self._jobs.jobs.values()))
        self._joined = True
        await self._plan.begin(members, tell, patience_s)
        if self._plan.members is None:
            return  # the agent is gone already
        for fields in list(self._told.values()):  # told before this node had joined
            self._follow(fields)
        for job in list(self._jobs.jobs.values()):
            if not job.inferred and job.name not in self._told:
                self._share(job.spec)

    def end(self) -> None:
        """This node is alone from now on: it goes on with the jobs that it has."""
        self._joined = False
        self._told.clear()
        self._orders.end()
        self._plan.end()
        self._planner.join(None, list(self._jobs.jobs.values()))

    # -- orders that mlfs serves

    def with_nodes(self, spec: JobSpec) -> JobSpec:
        """The job with the nodes on which a served order rests, if it has one and nobody has said them.

        They are those that have joined by now. A run that goes on, in place of a job of its name, keeps those of that
        job: else it would go on in another order than it has begun. All nodes are taken to have this one's buffer.

        Raises:
            JobError: it is not known which ranks run on which node.
        """
        if spec.serve is None or spec.nodes is not None:
            return spec
        before = self._jobs.jobs.get(spec.name)
        goes_on = before is not None and (before.spec.serve, before.spec.world_size) == (spec.serve, spec.world_size)
        if before is not None and before.spec.nodes is not None and goes_on and spec.start_epoch + spec.start_step:
            rows = [node.model_dump(mode="json") for node in before.spec.nodes]
            return parse_job({**json.loads(spec.to_json()), "nodes": rows})
        members = self._plan.members
        if members is None:
            ranks, rooms = {0: tuple(range(spec.world_size))}, {0: list(self._capacities())}
            missing = len(spec.ranks) < spec.world_size
            hint = "start `mlfs peers` on the nodes first; a node alone is to run all ranks"
        else:
            ranks = {node: members.ranks(spec.world_size, node) for node in members.nodes}
            rooms = {node: list(row) for node, row in zip(members.nodes, members.capacities_bytes, strict=True)}
            missing = not members.divides(spec.world_size) or set(spec.ranks) not in (
                {*ranks[members.own]}, {*range(spec.world_size)}
            )  # fmt: skip
            hint = f"here are {len(ranks)} nodes, each with as many ranks, one node's after the other's"
        if missing:
            message = (
                'job field "serve": it is not known which ranks run on which node, and a served order rests on that'
            )
            raise JobError(message, f'{hint}; or give "nodes"', "serve")
        rows = [
            {
                "node": node,
                "ranks": ranks_text(ranks[node]),
                "keeps_bytes": rooms[node],
                "buffer_bytes": self._buffer_bytes,
            }
            for node in ranks
        ]
        return parse_job({**json.loads(spec.to_json()), "nodes": rows})

    # -- what is told here

    async def register(self, spec: JobSpec, streams: JobStreams) -> JobRun:
        """A job was registered on this node: all follow it, each its own ranks."""
        self._told[spec.name] = fields = _fields(spec)
        self._tell({"job": fields})
        return await self._start(JobRun(self._of_this_node(spec), streams, self._jobs.manifest.size), fields)

    def _share(self, spec: JobSpec) -> None:
        self._told[spec.name] = fields = _fields(spec)
        self._tell({"job": fields})
        self._follow(fields)

    def ended(self, name: str) -> None:
        """A job was ended on this node: it is over on all."""
        if self._told.pop(name, None) is not None:
            self._tell({"ended": name})
            self._plan.agree_soon(f"ended {name}", partial(self._planner.forget_prepared, name))

    # -- what other nodes say

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something."""
        self._orders.hear(node, value)
        if "job" in value:
            fields = value["job"]
            self._told[str(fields["name"])] = fields
            if self._plan.planned:
                self._follow(fields)
        if "ended" in value and self._told.pop(str(value["ended"]), None) is not None:
            name = str(value["ended"])
            self._jobs.end(name)
            self._plan.agree_soon(f"ended {name}", partial(self._planner.forget_prepared, name))

    def look(self) -> None:
        """Now and then: has an order been found out, or refuted?"""
        if self._plan.members is not None:
            self._orders.look(self._plan.members.own, self._tell)

    # -- following

    def _of_this_node(self, spec: JobSpec) -> JobSpec:
        """The job with the ranks that run here. Whoever tells a node its ranks knows better."""
        members = self._plan.members
        assert members is not None
        if len(spec.ranks) < spec.world_size:
            return spec
        served = (node for node in spec.nodes or () if node.node == members.own)
        ranks = next((ranks_in(node.ranks) for node in served), members.ranks(spec.world_size, members.own))
        return parse_job({**_fields(spec), "ranks": list(ranks)})

    def _follow(self, fields: Mapping[str, Any]) -> None:
        """Follow a job that another node was told, or that this one had before it joined."""

        async def follow() -> None:
            try:
                here = self._jobs.jobs.get(str(fields["name"]))
                if here is not None and _fields(here.spec) == fields:  # it goes on where it is
                    await self._plan.agree(_key(fields), partial(self._planner.prepare, here))
                    return
                spec = self._of_this_node(parse_job(fields))
                streams = await self._runner.run("orders", self._build, spec)
                await self._start(JobRun(spec, streams, self._jobs.manifest.size), fields)
            except MlfsError as error:
                log.warning("a job that another node was told cannot be followed here: %s", error)
            except Exception:  # a bug: it costs this job here, never the mount
                log.exception("a job that another node was told cannot be followed here")

        trio.lowlevel.spawn_system_task(follow)

    async def _start(self, job: JobRun, fields: Mapping[str, Any]) -> JobRun:
        """Have a job begin once all nodes have planned with it."""
        await self._plan.agree(_key(fields), partial(self._planner.prepare, job))
        await self._jobs.install(job)
        return job


def _fields(spec: JobSpec) -> dict[str, Any]:
    """A job as the others are told it: which ranks run here is nothing to them."""
    fields: dict[str, Any] = json.loads(spec.to_json())
    fields.pop("ranks", None)
    return {"name": spec.name, **fields}  # the name also where it is the one that jobs have by default


def _key(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)
