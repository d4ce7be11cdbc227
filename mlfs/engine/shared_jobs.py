"""The jobs of a cluster: one node is told a job, and all follow it, each its own ranks, by plans that agree.

In: jobs that are registered here; what the servers of other nodes say. Out: jobs for `mlfs.engine.mount_jobs`, plans
for the scheduler, words for the other servers. Nodes that plan differently read samples of the source twice. So a job
begins when all nodes have planned with it, and a node that is asked for a sample goes by its newest plan at once: who
asks knows that all have it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import trio

from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.planner import Planner
from mlfs.engine.runner import Runner
from mlfs.errors import MlfsError
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import JobStreams
from mlfs.plan.members import Members
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.keeping import Plan

log = logging.getLogger("mlfs.peers")

# So long a node waits for the others' plans before it goes on with its own. Planning takes seconds at most.
AGREEMENT_PATIENCE_S = 10.0

Tell = Callable[[Mapping[str, Any]], None]
Build = Callable[[JobSpec], JobStreams]


class _Agreement:
    """Which nodes are ready, and whether all are."""

    def __init__(self) -> None:
        self.ready: set[int] = set()
        self.changed = trio.Event()

    def add(self, node: int) -> None:
        """A node is ready."""
        self.ready.add(node)
        self.changed.set()
        self.changed = trio.Event()


class SharedJobs:
    """See the module. Without members, before `begin` and after `end`, it does nothing.

    Args:
        step: takes events for the scheduler. build: computes a job's streams, in a worker thread.
    """

    def __init__(
        self, jobs: MountJobs, planner: Planner, runner: Runner, step: Callable[..., None], build: Build
    ) -> None:
        self._jobs = jobs
        self._planner = planner
        self._runner = runner
        self._step = step
        self._build = build
        self._members: Members | None = None
        self._tell: Tell = lambda _: None
        self._told: dict[str, Mapping[str, Any]] = {}  # the jobs of the cluster, by name, as the first node was told
        self._agreements: dict[str, _Agreement] = {}
        self._lost: set[int] = set()
        self._agreeing = 0
        self._pending: list[Plan | None] = []  # the newest plan, where it waits for the others'

    @property
    def active(self) -> bool:
        """Whether there are other nodes."""
        return self._members is not None

    def begin(self, members: Members, tell: Tell) -> None:
        """This node has joined others."""
        self._members, self._tell = members, tell
        self._planner.join(members, list(self._jobs.jobs.values()))
        for fields in list(self._told.values()):  # told before this node had joined
            self._follow(fields)
        for job in list(self._jobs.jobs.values()):
            if not job.inferred and job.name not in self._told:
                self._share(job.spec)

    def end(self) -> None:
        """This node is alone from now on: it goes on with the jobs that it has."""
        self._members = None
        self._told.clear()
        self._agreements.clear()
        self._lost.clear()
        self._planner.join(None, list(self._jobs.jobs.values()))

    # -- what is told here

    async def register(self, spec: JobSpec, streams: JobStreams) -> JobRun:
        """A job was registered on this node: all follow it, each its own ranks."""
        assert self._members is not None
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
            self._planner.forget_prepared(name)
            self._tell({"ended": name})

    # -- what other nodes say

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something."""
        if "job" in value:
            fields = value["job"]
            self._told[str(fields["name"])] = fields
            if self._members is not None:
                self._follow(fields)
        if "ready" in value:
            self._agreement(str(value["ready"])).add(node)
        if "ended" in value and self._told.pop(str(value["ended"]), None) is not None:
            self._planner.forget_prepared(str(value["ended"]))
            self._jobs.end(str(value["ended"]))

    def lose(self, node: int) -> None:
        """A node does not answer: nobody waits for it."""
        self._lost.add(node)
        for agreement in self._agreements.values():
            agreement.add(node)

    def back(self, node: int) -> None:
        """A node answers again."""
        self._lost.discard(node)

    # -- following

    def _of_this_node(self, spec: JobSpec) -> JobSpec:
        """The job with the ranks that run here. Whoever tells a node its ranks knows better."""
        assert self._members is not None
        if len(spec.ranks) < spec.world_size:
            return spec
        return parse_job({**_fields(spec), "ranks": list(self._members.ranks(spec.world_size, self._members.own))})

    def _follow(self, fields: Mapping[str, Any]) -> None:
        """Follow a job that another node was told, or that this one had before it joined."""

        async def follow() -> None:
            try:
                told = parse_job(fields)
                here = self._jobs.jobs.get(told.name)
                spec = self._of_this_node(told)
                if here is not None and len(here.spec.ranks) < here.spec.world_size:
                    spec = here.spec  # this node was told its own ranks
                streams = await self._runner.run("orders", self._build, spec)
                await self._start(JobRun(spec, streams, self._jobs.manifest.size), fields)
            except MlfsError as error:
                log.warning("a job that another node was told cannot be followed here: %s", error)
            except Exception:  # a bug: it costs this job here, never the mount
                log.exception("a job that another node was told cannot be followed here")

        trio.lowlevel.spawn_system_task(follow)

    async def _start(self, job: JobRun, fields: Mapping[str, Any]) -> JobRun:
        """Have a job begin once all nodes have planned with it."""
        await self._agree(job, json.dumps(fields, sort_keys=True))
        await self._jobs.install(job)
        return job

    async def _agree(self, job: JobRun, key: str) -> None:
        """Plan with a job, and wait until all others have.

        A node that does not get ready is not waited for for ever: that costs reads of the source, and nothing else.
        """
        self._agreeing += 1
        try:
            await self._planner.prepare(job)
            members = self._members
            if members is None:
                return
            self._tell({"ready": key})
            agreement = self._agreement(key)
            with trio.move_on_after(AGREEMENT_PATIENCE_S):
                while {*members.nodes} - {members.own} - self._lost - agreement.ready and self._members is members:
                    await agreement.changed.wait()
        finally:
            self._agreeing -= 1
            self.adopt()

    def _agreement(self, key: str) -> _Agreement:
        return self._agreements.setdefault(key, _Agreement())

    # -- plans

    def plan_made(self, plan: Plan | None) -> None:
        """A new plan: it waits until all nodes have theirs, where they wait for each other."""
        self._pending = [plan]
        if not self._agreeing:
            self.adopt()

    def adopt(self) -> None:
        """Keep by the newest plan from now on."""
        pending, self._pending = self._pending, []
        for plan in pending:
            self._step(e.Planned(plan))


def _fields(spec: JobSpec) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(spec.to_json())
    return {"name": spec.name, **fields}  # also where the name is the one that jobs have by default
