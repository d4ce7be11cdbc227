"""The jobs of a cluster: one node is told a job, and all follow it, each its own ranks, by one plan.

In: jobs that are registered here; what the servers of other nodes say; what this node has room for. Out: jobs for
`mlfs.engine.mount_jobs`, jobs to plan with for `mlfs.engine.planner`, words for the other servers. A job begins when
all nodes have planned with it (`mlfs.engine.shared_plan`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.nodes_of_job import with_nodes
from mlfs.engine.planner import Planner
from mlfs.engine.runner import Runner
from mlfs.engine.shared_orders import SharedOrders
from mlfs.engine.shared_plan import SharedPlan, Tell
from mlfs.errors import MlfsError
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec, parse_job
from mlfs.job.ranks import ranks_in
from mlfs.orders.streams import JobStreams
from mlfs.plan.members import Members

log = logging.getLogger("mlfs.peers")

# A word between servers is one packet of 64 KiB; what is longer than half of that is packed.
LONGEST_PLAIN_BYTES = 1 << 15
# A job of 32,767 nodes takes some 4 MB: more is not unpacked.
LONGEST_JOB_BYTES = 16 << 20

OTHER_NODES = (
    "its order was served before these nodes joined, and goes on as it is: an order that is dealt to them needs another"
    " registration"
)

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
                nodes = job.spec.nodes
                if nodes is not None and {node.node for node in nodes} != {*members.nodes}:
                    log.warning("job %s: %s", job.name, OTHER_NODES)

    def end(self) -> None:
        """This node is alone from now on: it goes on with the jobs that it has."""
        self._joined = False
        self._told.clear()
        self._orders.end()
        self._plan.end()
        self._planner.join(None, list(self._jobs.jobs.values()))

    # -- orders that mlfs serves

    def with_nodes(self, spec: JobSpec) -> JobSpec:
        """A job to be registered, with the nodes on which its order rests, if mlfs serves it. Raises: JobError."""
        before = self._jobs.jobs.get(spec.name)
        return with_nodes(
            spec, before.spec if before else None, self._plan.members, self._capacities(), self._buffer_bytes
        )

    # -- what is told here

    async def register(self, spec: JobSpec, streams: JobStreams) -> JobRun:
        """A job was registered on this node: all follow it, each its own ranks."""
        self._told[spec.name] = fields = _fields(spec)
        self._tell(_words(fields))
        return await self._start(JobRun(self._of_this_node(spec), streams, self._jobs.manifest.size), fields)

    def _share(self, spec: JobSpec) -> None:
        self._told[spec.name] = fields = _fields(spec)
        self._tell(_words(fields))
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
        if (fields := _told_job(value)) is not None:
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


def _words(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said of a job to the others. The nodes of a served order may be a thousand, more than one word holds."""
    text = json.dumps(fields)
    if len(text) <= LONGEST_PLAIN_BYTES:
        return {"job": fields}
    return {"packed_job": base64.b85encode(zlib.compress(text.encode())).decode()}


def _told_job(words: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The job of which another node says something, None where it is about none. Raises ValueError."""
    if "packed_job" not in words:
        job: Mapping[str, Any] | None = words.get("job")
        return job
    try:
        text = zlib.decompressobj().decompress(base64.b85decode(words["packed_job"]), LONGEST_JOB_BYTES)
    except zlib.error as error:
        raise ValueError(f"a job cannot be unpacked: {error}") from None
    unpacked: Mapping[str, Any] = json.loads(text)
    return unpacked


def _key(fields: Mapping[str, Any]) -> str:
    """The same for the same job, and short, as it stands in many words."""
    return f"job {hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]}"
