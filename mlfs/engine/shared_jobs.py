"""The jobs of a cluster: one node is told a job, and all follow it, each its own ranks, by one plan.

In: jobs that are registered here; what the servers of other nodes say; what this node has room for. Out: jobs for
`mlfs.engine.mount_jobs`, jobs to plan with for `mlfs.engine.shared_plan`, messages for the other servers. A job begins
when a plan begins that is made with it, on all nodes at once. One of several jobs that are registered under one name
counts, also when they come at the same moment on different nodes, and it is the same on all
(`mlfs.plan.registrations`): what is under way for another one is given up before it begins. An order that a node has
found out from its reads is planned with as a registered job is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio

from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.runner import Runner
from mlfs.engine.shared_plan import SharedPlan, Tell
from mlfs.errors import JobError, MlfsError
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec, parse_job
from mlfs.job.ranks import JobNode, ranks_in, ranks_text
from mlfs.orders.order_file import IN_MEMORY
from mlfs.orders.served import LEVEL
from mlfs.orders.streams import JobStreams
from mlfs.plan.members import Members
from mlfs.plan.registrations import Heard, Registration, Registrations

log = logging.getLogger("mlfs.peers")

# A word between servers is one packet of 64 KiB; what is longer than half of that is packed.
LONGEST_PLAIN_BYTES = 1 << 15
# The rest of the packet is for what stands around the job. Some 3,000 nodes fit into it.
LONGEST_PACKED_BYTES = 60_000
# A job of so many nodes takes half a MB. A word that unpacks to more than this is none of ours.
LONGEST_JOB_BYTES = 16 << 20

# Reads that came as an order says before it is told: a wrong finding mostly lasts for fewer, and each costs all nodes a
# plan and its withdrawal.
BORNE_OUT_READS = 32
# These fields differ between nodes, or show only later, and are nothing to the order.
_NOT_THE_ORDER = ("name", "ranks", "batch_size", "start_epoch", "start_step", "epochs")

OTHER_NODES = (
    "its order was served before these nodes joined, and goes on as it is: an order that is dealt to them needs another"
    " registration"
)

Build = Callable[[JobSpec], JobStreams]
Fields = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class _Beginning:
    """A job that is being planned with, until it begins or is given up for another one.

    Attributes:
        scope: cancelled when it is given up. over: set when it has begun, or was given up.
    """

    fields: Mapping[str, Any]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    over: trio.Event = field(default_factory=trio.Event)


class SharedJobs:
    """Tells the other nodes of jobs, and has the jobs of other nodes followed here.

    Without members, before `begin` and after `end`, it does nothing.

    Args:
        build: computes a job's streams, in a worker thread.
        capacities: what this node keeps, by class (`Keeping.capacities_bytes`). buffer_bytes: half of its staging
            window.

    Attributes:
        buffer_bytes: as above; the other nodes are told it when they join.
    """

    def __init__(
        self,
        jobs: MountJobs,
        plan: SharedPlan,
        runner: Runner,
        build: Build,
        capacities: Callable[[], Sequence[int]],
        buffer_bytes: int,
    ) -> None:
        self._jobs = jobs
        self._plan = plan
        self._runner = runner
        self._build = build
        self._capacities = capacities
        self.buffer_bytes = buffer_bytes
        self._orders = SharedOrders(jobs, plan, runner, build)
        self._joined = False
        self._tell: Tell = lambda _, __: None
        self._registrations = Registrations()  # of the jobs of the cluster
        self._rest_on: dict[str, Registration | None] = {}  # by job whose nodes were filled in: what counted then
        self._beginning: dict[str, list[_Beginning]] = {}  # by job, what is under way
        self._otherwise: frozenset[str] = frozenset()  # names of jobs with which the planner planned otherwise
        self._late: dict[str, Sequence[int]] = {}  # by job, the nodes that had not planned with it when it began

    async def begin(self, members: Members, tell: Tell, patience_s: float) -> None:
        """Share jobs with the nodes that this one has joined. Returns when all go by one plan of what each keeps."""
        self._tell = tell
        self._joined = True
        await self._plan.begin(members, tell, patience_s)
        if self._plan.members is None:
            return  # the agent is gone already
        known = self._registrations.names()
        for name in known:  # before this node had joined
            self._follow(name, joins=True)
        for job in list(self._jobs.jobs.values()):
            if not job.inferred and job.name not in known:
                self._share(job.spec)
                nodes = job.spec.nodes
                if nodes is not None and {node.node for node in nodes} != {*members.nodes}:
                    log.warning("job %s: %s", job.name, OTHER_NODES)

    def end(self) -> None:
        """Go on alone, with the jobs that this node has."""
        self._joined = False
        self._registrations.forget()
        self._late.clear()
        self._orders.end()
        self._plan.end()

    def late(self, name: str) -> Sequence[int]:
        """The nodes that were not ready for a job when it began here: they follow it later, or not at all."""
        return self._late.get(name, ())

    # -- orders that mlfs serves

    def registered(self, name: str) -> JobSpec | None:
        """A job as it was registered: here, or on another node where this one has just come. None where it is not."""
        here, counts = self._jobs.jobs.get(name), self._registrations.fields(name)
        if here is not None:
            return (here.registered or here).spec
        return None if counts is None else parse_job(counts)

    def with_nodes(self, spec: JobSpec) -> JobSpec:
        """A job to be registered, with the nodes on which its order rests, if mlfs serves it. Raises: JobError."""
        before, members = self.registered(spec.name), self._plan.members
        filled_in = with_nodes(spec, before, members, self._capacities(), self.buffer_bytes)
        self._rest_on.pop(spec.name, None)
        if filled_in.nodes != spec.nodes:
            self._rest_on[spec.name] = self._registrations.last(spec.name)
        return filled_in

    # -- what is told here

    async def register(self, spec: JobSpec, streams: JobStreams) -> JobRun:
        """A job was registered on this node: all follow it, each its own ranks; it takes the place of one of its name.

        The job that is returned is the one that goes on: where another node has registered it meanwhile, with other
        nodes under a served order, that order counts.

        Raises:
            JobError: it is too long to be told, or something else of its name was told to another node meanwhile.
        """
        if not self._joined:
            return await self._jobs.register(spec, streams)
        name, fields = spec.name, _fields(spec)
        heard = name in self._rest_on and self._rest_on.pop(name) != self._registrations.last(name)
        counts = self._registrations.fields(name) if heard else None  # what was told while this one was prepared
        if counts is not None and counts != fields and _but_for_nodes(counts) == _but_for_nodes(fields):
            spec, fields = parse_job({**counts, "ranks": list(spec.ranks)}), {**counts}
            streams = await self._runner.run("orders", self._build, spec)
        members = self._plan.members
        assert members is not None
        message = message_of_job(fields)
        self._tell({**message, "number": self._registrations.make(name, fields, members.own).number}, None)
        job = JobRun(self._of_this_node(spec), streams, self._jobs.manifest.sample_sizes)

        async def this_job() -> JobRun:
            return job

        if await self._begin(name, fields, this_job):
            return job
        return await self._what_counts(name, fields)

    async def _what_counts(self, name: str, fields: Mapping[str, Any]) -> JobRun:
        """The job that goes on in place of one that was given up while it began. Raises: JobError."""
        while under_way := self._beginning.get(name):
            await under_way[-1].over.wait()
        job = self._jobs.jobs.get(name)
        if job is None or _but_for_nodes(_fields(job.spec)) != _but_for_nodes(fields):
            message = f"another node was told something else of the job {name} at the same moment, and that counts"
            raise JobError(message, "look at it with `mlfs status`, and register this one once more", "name")
        return job

    def _share(self, spec: JobSpec) -> None:
        fields = _fields(spec)
        try:
            message = message_of_job(fields)
        except JobError as error:  # it goes on here
            log.warning("job %s: %s", spec.name, error)
            return
        members = self._plan.members
        assert members is not None
        self._tell({**message, "number": self._registrations.had_before(spec.name, fields, members.own).number}, None)
        self._follow(spec.name)

    def ended(self, name: str) -> bool:
        """A job was ended on this node: it is over on all. False when there is none of that name here."""
        if (registration := self._registrations.end(name)) is not None:
            self._tell({"ended": name, "registration": list(registration)}, None)
            self._give_up(name)
            self._plan.want_no_more(name)
        return self._jobs.end(name)

    # -- what other nodes say

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something."""
        self._orders.hear(node, value)
        if (fields := job_of_message(value)) is not None:
            name = str(fields["name"])
            heard = self._registrations.hear(
                name, Registration(int(value["number"]), int(value.get("by", node))), fields
            )
            if self._plan.planned and heard is not Heard.NOTHING:
                self._follow(name)
        if "ended" in value:
            name, (number, by) = str(value["ended"]), value["registration"]
            if self._registrations.hear_end(name, Registration(int(number), int(by))):
                self._give_up(name)
                self._jobs.end(name)
                self._plan.want_no_more(name)

        if "asks" in value:
            self._tell(self._word(str(value["asks"])), node)

    def look(self) -> None:
        """Now and then: has an order been found out, or refuted? Does the planner know of the same jobs?

        A node that dies may have told some of the others more than the rest. So who plans with something else than the
        planner for a while tells it what it has heard of, and asks what the planner has.
        """
        if self._plan.members is None:
            return
        self._orders.look(self._plan.members.own, self._tell)
        otherwise = self._plan.planned_otherwise
        for name in otherwise & self._otherwise:
            self._tell({**self._word(name), "asks": name}, self._plan.planner)
        self._otherwise = otherwise

    def tell_all(self, node: int) -> None:
        """Tell a node of the jobs that count: another server has taken its mount over."""
        for name in self._registrations.names():
            self._tell(self._word(name), node)

    def _word(self, name: str) -> Mapping[str, Any]:
        """The registration that counts here, as the others are told it; nothing of an unknown job."""
        last, fields = self._registrations.last(name), self._registrations.fields(name)
        if last is None:
            return {}
        if fields is None:
            return {"ended": name, "registration": list(last)}
        return {**message_of_job(fields), **last._asdict()}

    # -- following

    def _of_this_node(self, spec: JobSpec) -> JobSpec:
        """The job with the ranks that run here. Whoever tells a node its ranks knows better.

        The description of a job with a served order, as a mount shows it, has the ranks of the node that has shown it.
        """
        members = self._plan.members
        assert members is not None
        served = {node.node: ranks_in(node.ranks) for node in spec.nodes or ()}
        if len(spec.ranks) < spec.world_size and [*spec.ranks] not in [[*ranks] for ranks in served.values()]:
            return spec
        ranks = served.get(members.own, members.ranks(spec.world_size, members.own))
        return parse_job({**_fields(spec), "ranks": list(ranks)})

    def _follow(self, name: str, joins: bool = False) -> None:
        """Follow what counts as the job of that name: another node was told it, or this one had it before it joined.

        Args:
            joins: this node has just joined. A job that goes on here from another server has come further by then.
        """
        fields = self._registrations.fields(name)
        assert fields is not None

        async def the_job() -> JobRun:
            here = self._jobs.jobs.get(name)
            if here is not None and (_fields(here.spec) == fields or (joins and _has_come_further(here.spec, fields))):
                return here
            spec = self._of_this_node(parse_job(fields))
            streams = await self._runner.run("orders", self._build, spec)
            return JobRun(spec, streams, self._jobs.manifest.sample_sizes)

        async def follow() -> None:
            try:
                await self._begin(name, fields, the_job)
            except MlfsError as error:
                log.warning("a job that another node was told cannot be followed here: %s", error)
                if self._registrations.fields(name) == fields:  # the others follow it, also where this node plans
                    self._plan.want(name, self._key(name), None)
            except Exception:  # a bug: it costs this job here, never the mount
                log.exception("a job that another node was told cannot be followed here")

        trio.lowlevel.spawn_system_task(follow)

    async def _begin(self, name: str, fields: Mapping[str, Any], make: Callable[[], Awaitable[JobRun]]) -> bool:
        """Have a job begin with the plan that is made with it, after what is under way for its name.

        Returns whether it goes on: not where another one counts by then.
        """
        if self._registrations.fields(name) != fields:
            return False
        self._give_up(name, but=fields)
        before = list(self._beginning.get(name, ()))
        this = _Beginning(fields)
        self._beginning.setdefault(name, []).append(this)
        try:
            with this.scope:
                for other in before:
                    await other.over.wait()
                job = await make()
                key = self._key(name)
                self._plan.want(name, key, job)
                self._late[name] = await self._plan.begun_with(name, key)
                if self._jobs.jobs.get(name) is not job:  # else it goes on where it is
                    await self._jobs.install(job)
        finally:
            self._beginning[name].remove(this)
            if not self._beginning[name]:
                del self._beginning[name]
            this.over.set()
        return not this.scope.cancelled_caught

    def _key(self, name: str) -> str:
        """A short name of a registration, which is the same on all nodes for the same fields."""
        last, fields = self._registrations.last(name), self._registrations.fields(name)
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
        return f"{digest} {0 if last is None else last.number}"

    def _give_up(self, name: str, but: Mapping[str, Any] | None = None) -> None:
        """Give up a job that has not begun, as another one of its name counts by now, or none."""
        self._late.pop(name, None)
        for beginning in self._beginning.get(name, ()):
            if beginning.fields != but:
                beginning.scope.cancel()


def _fields(spec: JobSpec) -> dict[str, Any]:
    """A job as the others are told it: which ranks run here is nothing to them."""
    fields: dict[str, Any] = json.loads(spec.to_json())
    fields.pop("ranks", None)
    return {"name": spec.name, **fields}  # the name also where it is the one that jobs have by default


def _has_come_further(spec: JobSpec, fields: Fields) -> bool:
    """Whether a job is the one that others are told, from a later place on."""
    mine, begins = _fields(spec), ("start_epoch", "start_step")
    differs = {name for name in mine.keys() | fields.keys() if mine.get(name) != fields.get(name)}
    return differs <= {*begins} and [mine.get(name, 0) for name in begins] >= [fields.get(name, 0) for name in begins]


def _but_for_nodes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The registered fields of a job, without those that the mount fills in."""
    return {name: value for name, value in fields.items() if name != "nodes"}


def message_of_job(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A job as it is said to the others. The nodes of a served order may be a thousand, so long ones are packed.

    Raises:
        JobError: one word does not hold it.
    """
    text = json.dumps(fields)
    if len(text) <= LONGEST_PLAIN_BYTES:
        return {"job": fields}
    packed = base64.b85encode(zlib.compress(text.encode())).decode()
    if len(packed) > LONGEST_PACKED_BYTES:
        message = f"the job is too long to be told to other nodes: {len(packed):,} of {LONGEST_PACKED_BYTES:,} bytes"
        raise JobError(message, 'a served order of fewer "nodes"; some 3,000 can be told', "nodes")
    return {"packed_job": packed}


def job_of_message(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The job of which another node says something, None where it is about none. Raises ValueError."""
    if "packed_job" not in message:
        job: Mapping[str, Any] | None = message.get("job")
        return job
    try:
        text = zlib.decompressobj().decompress(base64.b85decode(message["packed_job"]), LONGEST_JOB_BYTES)
    except zlib.error as error:
        raise ValueError(f"a job cannot be unpacked: {error}") from None
    unpacked: Mapping[str, Any] = json.loads(text)
    return unpacked


# -- orders that a node has found out from its reads: all plan by them as by registered jobs


class _Order(NamedTuple):
    """An order that all plan by. by: the node that told it; of several the lowest."""

    by: int
    fields: Fields


class SharedOrders:
    """The orders that are told, from where a node finds one out until it takes it back.

    An order is told once it has been borne out by some reads, and taken back by who told it when reads refute it. Each
    node follows it by its own reads: which ranks run there shows in what is read, and where the reads differ that node
    finds out for itself what they are. A registered job that was corrected is told alike: all plan by what the script
    does instead.

    Args:
        build: computes a job's streams, in a worker thread.
    """

    def __init__(
        self,
        jobs: MountJobs,
        plan: SharedPlan,
        runner: Runner,
        build: Build,
    ) -> None:
        self._jobs = jobs
        self._plan = plan
        self._runner = runner
        self._build = build
        self._orders: dict[str, _Order] = {}

    def end(self) -> None:
        """Go on alone."""
        self._orders.clear()

    def look(self, own: int, tell: Tell) -> None:
        """Now and then: tell what was found out here, and take back what proved wrong."""
        found = {}
        for job in self._jobs.jobs.values():
            # An order that mlfs serves is known to all as the registered job's.
            found_here = (job.inferred or job.registered is not None) and job.spec.serve is None
            found_here = found_here and job.spec.order_file != IN_MEMORY  # others have not seen it
            if found_here and job.predicting and not job.given_up:
                fields = _order_of(job.spec)
                found[_key_of_order(fields)] = job, fields
        for key, (job, fields) in found.items():
            if key not in self._orders and job.observed >= BORNE_OUT_READS:
                instead = "" if job.registered is None else job.registered.name
                tell({"order": fields, "instead": instead}, None)
                self._plan_by(key, _Order(own, fields), instead)
        for key in [key for key, order in self._orders.items() if order.by == own and key not in found]:
            tell({"order_over": key}, None)
            self._withdraw(key)

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        if "order" in value:
            fields = value["order"]
            key = _key_of_order(fields)
            known = self._orders.get(key)
            if known is None or node < known.by:
                self._plan_by(key, _Order(node, fields), str(value.get("instead", "")))
            if known is None:
                self._jobs.offer(dict(fields))
        if "order_over" in value:
            key = str(value["order_over"])
            if key in self._orders and self._orders[key].by == node:
                self._withdraw(key)

    def _plan_by(self, key: str, order: _Order, instead: str) -> None:
        """Plan by an order, in place of the registered job of that name if it is what is read instead."""
        before = self._orders.get(key)
        self._orders[key] = order
        if before is None or before.fields != order.fields:
            trio.lowlevel.spawn_system_task(self._prepare, key, order.fields, instead)

    async def _prepare(self, key: str, fields: Fields, instead: str) -> None:
        job = None
        try:
            spec = parse_job({**fields, "name": _name_of_order(key)})
            streams = await self._runner.run("orders", self._build, spec)
            of_node = Hypothesis(spec, Origin.NODE, streams)
            job = JobRun(spec, streams, self._jobs.manifest.sample_sizes, of_node)
        except MlfsError as error:
            log.warning("an order that another node found cannot be planned with here: %s", error)
        except Exception:  # a bug: it costs reads of the source, never the mount
            log.exception("an order that another node found cannot be planned with here")
        if instead:
            self._plan.want_no_more(instead)
        if key in self._orders:
            self._plan.want(_name_of_order(key), _name_of_order(key), job)

    def _withdraw(self, key: str) -> None:
        """Nobody plans by an order any more. Here it goes on being followed if reads have borne it out."""
        del self._orders[key]
        self._plan.want_no_more(_name_of_order(key))
        for job in list(self._jobs.jobs.values()):
            if job.inferred and not job.observed and _key_of_order(_order_of(job.spec)) == key:
                self._jobs.end(job.name)


def _order_of(spec: JobSpec) -> Fields:
    """An order as it is told: from its first epoch on, for all ranks."""
    return {name: value for name, value in _fields(spec).items() if name not in ("start_epoch", "start_step")} | {
        "world_size": spec.world_size
    }


def _key_of_order(fields: Fields) -> str:
    """The same for the same order."""
    return json.dumps({name: fields[name] for name in sorted(fields) if name not in _NOT_THE_ORDER})


def _name_of_order(key: str) -> str:
    """By which the planner knows it: no job that is followed here has this name."""
    return f"found-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


# -- the nodes on which a served order rests: from its registration on nothing that happens to a node changes it


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
        return _with(spec, spec.nodes, LEVEL)
    if before is not None and before.nodes is not None and _goes_on(spec, before):
        return _with(spec, before.nodes, before.level)
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
    return _with(spec, nodes, LEVEL)


def _goes_on(spec: JobSpec, before: JobSpec) -> bool:
    alike = (before.serve, before.world_size) == (spec.serve, spec.world_size)
    return alike and bool(spec.start_epoch or spec.start_step)


def _with(spec: JobSpec, nodes: Sequence[JobNode], level: float | None) -> JobSpec:
    """The job with these nodes, and with the level of randomness where it has none: the order rests on that, too."""
    filled_in: dict[str, object] = {"nodes": [node.model_dump(mode="json") for node in nodes]}
    if spec.serve == "opportunistic":
        filled_in["level"] = level if spec.level is None else spec.level
    return parse_job({**json.loads(spec.to_json()), **filled_in})
