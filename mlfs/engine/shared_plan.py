"""One node plans for the cluster: it hears what the others hold, shares the samples, and has all go by that at once.

In: the nodes that joined, those that are lost or back, the jobs to plan with, what the servers of other nodes say. Out:
plans for the scheduler, words for the other servers.

The lowest node that answers plans for all; when it is lost the next one does. A plan is made when a job comes or goes,
or when a node is lost for good or back. It has a number, higher than any that its planner has heard of, and goes
through the stages of `Stage`. The planner says to all at which stage it is, also again and again: what is said late or
twice changes nothing. The others do what the stage asks of them:

    GATHERING   they tell the planner what they hold: that stays where it is, and is not read again
    MADE        they fetch the plan from the planner in pieces, and say when they have it and all that it is made for
    BEGUN       they go by it, and jobs that waited for it begin

Nodes that go by different plans read samples of the source twice, and nothing worse. So a plan begins when all have it,
or after PATIENCE_S; and a node that is asked for a sample goes by the plan that it has fetched at once: who asks knows
that all have it. A node owns what it has got since it told what it holds, also where the new plan gives that to others:
it says so to all when the plan begins.

A node heeds only the lowest node that it can hear itself. When that is another one than before, it says to it of which
plan it has heard last. A planner that learns of a higher number than its own plans anew, with a higher one still. So
all go by one plan in the end, whoever was lost to whom in between, and numbers only rise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.planner import Planner
from mlfs.engine.runner import Runner
from mlfs.engine.sharing import Sharing, is_counted
from mlfs.follow.job import JobRun
from mlfs.plan.holdings import Holdings, from_pieces, pieces
from mlfs.plan.members import Members, OwnShare
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.keeping import Plan

log = logging.getLogger("mlfs.peers")

# So long the planner waits for the others at each stage, and they for a sign of the planner, before it goes on without.
PATIENCE_S = 10.0
# A node that has been lost for so many times the peers' patience is lost for good: others own what it owned.
PATIENCES = 10
# So many numbers of samples fit into one word between servers.
SAMPLES_IN_A_WORD = 4000
# While a plan is made its planner says so every so many looks, as the others wait for it.
SAYS_AGAIN_LOOKS = 3

Tell = Callable[[Mapping[str, Any], int | None], None]
"""Says something to the server of a node, None: of all others."""
Flags = npt.NDArray[np.bool_]
Samples = npt.NDArray[np.int64]


class Stage(IntEnum):
    """How far a plan is."""

    COUNTING = 0
    """The planner counts which node reads what."""
    GATHERING = 1
    """It asks what each node holds."""
    MADE = 2
    """It can be fetched."""
    BEGUN = 3
    """All go by it."""


class PlanId(NamedTuple):
    """The number of a plan, and the node that made it: of two plans the one with the higher number counts."""

    number: int
    by: int


NO_PLAN = PlanId(0, -1)


class Target(NamedTuple):
    """The purpose of a plan: the nodes that own nothing, as they are lost for good; by name, the key of each job."""

    away: tuple[int, ...] = ()
    jobs: Mapping[str, str] = {}


class Round(NamedTuple):
    """The state of a plan, as its planner says it.

    Attributes:
        views: how often nodes went for good or came back. owners: the plan that says who owns what: this one, or an
            earlier one of the same planner where only jobs have come that change no owner.
        shared: by what owners were found. late: the nodes that did not have all when it began.
    """

    id: PlanId
    stage: Stage
    target: Target
    views: int
    owners: PlanId
    shared: str = ""
    late: tuple[int, ...] = ()

    def word(self) -> Mapping[str, Any]:
        """As it is told."""
        away, jobs = self.target
        return {
            "round": [self.id, self.stage, away, dict(jobs), self.views, self.owners, self.shared, self.late]
        }  # fmt: skip


def round_of(value: Any) -> Round:
    """The state of a plan that a planner has said. Raises ValueError or TypeError for what none can have said."""
    id_, stage, away, jobs, views, owners, shared, late = value
    target = Target(_numbers(away), {str(name): str(key) for name, key in dict(jobs).items()})
    return Round(_id_of(id_), Stage(stage), target, int(views), _id_of(owners), str(shared), _numbers(late))


def _id_of(value: Any) -> PlanId:
    number, by = value
    return PlanId(int(number), int(by))


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(sorted(int(number) for number in value))


@dataclass(slots=True, eq=False)
class _Fetched:
    """The newest plan as it comes to this node.

    Attributes:
        parts: the pieces that have come. whole: whether all have. share: what this node owns by it, once they are
            unpacked. looked: whether nothing came since the last look.
    """

    of: PlanId
    parts: list[str] = field(default_factory=list)
    whole: bool = False
    share: OwnShare | None = None
    looked: bool = False


@dataclass(slots=True, eq=False)
class _Made:
    """The newest plan as this node makes it.

    Attributes:
        holdings: what the others have told. have: the nodes that have the plan. signs: how often one has said something
            that brings it nearer.
    """

    holdings: Holdings
    have: set[int] = field(default_factory=set)
    signs: int = 0


@dataclass(slots=True, eq=False)
class _Cluster:
    """The nodes that this one has joined, as it knows them.

    Attributes:
        heard_s: when each has last said something. lost: those that do not answer, and since when. mute: those that
            answer, and whose servers say nothing though they are waited for.
        planner: the node that this one heeds. newest: the newest plan that it has told. begun: the last that has begun.
        floor: a number that is taken already. views: how often others have seen nodes go for good or come back.
        outdone: whether another node has heard of a plan that this one has not made and cannot tell about: new owners
            have to be found.
        has: the plan of which the planner knows that this node has all that it is made for.
        adopted: the plan by which samples have owners. told, told_for: what this node held, and for which plan it told.
        got: what nodes have got while that plan was made; they own it, whomever the plan gives it to.
        pieces: of the plan that this node has made last, of that number. counted: the jobs whose reads it rests on.
    """

    members: Members
    tell: Tell
    lost_for_good_s: float
    heard_s: dict[int, float]
    lost: dict[int, float] = field(default_factory=dict)
    mute: set[int] = field(default_factory=set)
    planner: int = -1
    newest: Round | None = None
    begun: Round | None = None
    floor: int = 0
    views: int = 0
    outdone: bool = False
    fetched: _Fetched = field(default_factory=lambda: _Fetched(NO_PLAN))
    has: PlanId = NO_PLAN
    adopted: PlanId = NO_PLAN
    told: Flags | None = None
    told_for: PlanId = NO_PLAN
    got: list[tuple[PlanId, int, Samples]] = field(default_factory=list)
    made: _Made | None = None
    pieces: tuple[PlanId, list[str]] = field(default_factory=lambda: (NO_PLAN, []))
    counted: Mapping[str, str] = field(default_factory=dict)

    @property
    def plans(self) -> bool:
        """Whether this node plans for all."""
        return self.planner == self.members.own

    @property
    def ids(self) -> tuple[PlanId, PlanId, PlanId]:
        """The newest plan that was told of, the last that has begun, and the one that says who owns what."""
        newest, begun = (NO_PLAN if said is None else said.id for said in (self.newest, self.begun))
        return newest, begun, self.adopted

    @property
    def others(self) -> set[int]:
        """The other nodes."""
        return {*self.members.nodes} - {self.members.own}

    def missing(self, there: Collection[int]) -> set[int]:
        """Other nodes that answer, and are not `there`."""
        return self.others - {*there} - self.lost.keys()


class SharedPlan:
    """See the module. Without others, before `begin` and after `end`, plans are this node's own.

    Args:
        step: takes events for the scheduler. holds: by sample, whether this node holds it or is about to.
        sizes: bytes by sample. jobs: those of this mount, whose own reads the planner may count.
    """

    def __init__(
        self,
        planner: Planner,
        runner: Runner,
        clock: Callable[[], float],
        step: Callable[..., None],
        holds: Callable[[], Flags],
        sizes: memoryview,
        jobs: MountJobs,
    ) -> None:
        self._planner = planner
        self._sharing = Sharing(sizes, runner)
        self._runner = runner
        self._clock = clock
        self._step = step
        self._holds = holds
        self._sizes = sizes
        self._jobs = jobs
        self._cluster: _Cluster | None = None
        self._early: list[tuple[int, Mapping[str, Any]]] = []  # what was said before this node had joined
        self._wanted: dict[str, tuple[str, JobRun | None]] = {}  # by name, the jobs to plan with
        self._changed = trio.Event()
        self._making: tuple[Target, trio.CancelScope] | None = None  # what this node makes a plan for
        self._looks = self._waiting = 0

    @property
    def members(self) -> Members | None:
        """The nodes that have joined, None without any."""
        return None if self._cluster is None else self._cluster.members

    @property
    def planned(self) -> bool:
        """Whether the first plan has begun."""
        return self._cluster is not None and self._cluster.begun is not None

    @property
    def under_way(self) -> int:
        """Plans that this node waits for."""
        if (cluster := self._cluster) is None:
            return 0
        begun = cluster.begun.target.jobs if cluster.begun is not None else {}
        waits = cluster.begun is None or any(begun.get(name) != key for name, (key, _) in self._wanted.items())
        return int(waits or self._making is not None)

    @property
    def planner(self) -> int:
        """The node that plans for all, -1 where this one is alone."""
        return -1 if self._cluster is None else self._cluster.planner

    @property
    def planned_otherwise(self) -> frozenset[str]:
        """Names under which the planner plans with another job than this node would, or only one of them with any."""
        if self._cluster is None or self._cluster.plans or self._cluster.newest is None:
            return frozenset()
        ours = {name: key for name, (key, _) in self._wanted.items()}
        return frozenset(name for name, _ in ours.items() ^ self._cluster.newest.target.jobs.items())

    @property
    def view(self) -> tuple[int, tuple[int, ...]]:
        """How often nodes went for good or came back, and which are away, as far as the plan goes by it."""
        begun = None if self._cluster is None else self._cluster.begun
        return (0, ()) if begun is None else (begun.views, begun.target.away)

    async def begin(self, members: Members, tell: Tell, patience_s: float) -> None:
        """This node has joined others. Returns when it goes by a plan of all of them, or the others are gone."""
        heard_s = dict.fromkeys(members.nodes, self._clock())
        cluster = self._cluster = _Cluster(members, tell, PATIENCES * patience_s, heard_s)
        self._look_who_plans(cluster)
        early, self._early = self._early, []
        for node, value in early:
            self.hear(node, value)
        while self._cluster is cluster and cluster.begun is None:
            await self._changed.wait()

    def end(self) -> None:
        """This node is alone from now on."""
        self._cluster = None
        self._early.clear()
        self._wanted.clear()
        self._sharing.forget()
        if self._making is not None:
            self._making[1].cancel()
        self._stir()
        self._planner.share(None, self._jobs.jobs.values())

    # -- what to plan with

    def want(self, name: str, key: str, job: JobRun | None) -> None:
        """Plan with this job from now on, in place of another one of its name. Args: job: None: this node cannot follow
        it."""
        self._wanted[name] = key, job
        self._go_on()

    def want_no_more(self, name: str) -> None:
        """The job has ended, or reads refute the order."""
        if self._wanted.pop(name, None) is not None:
            self._go_on()

    async def begun_with(self, name: str, key: str) -> Sequence[int]:
        """Wait until a plan has begun that is made with the job of that key.

        Returns the nodes that were not ready for it then; the planner, where that does not plan with it in time.
        """
        self._waiting += 1
        try:
            return await self._begun_with(name, key)
        finally:
            self._waiting -= 1

    async def _begun_with(self, name: str, key: str) -> Sequence[int]:
        while (cluster := self._cluster) is not None:
            if cluster.begun is not None and cluster.begun.target.jobs.get(name) == key:
                return cluster.begun.late
            planner, newest = cluster.planner, cluster.newest
            with trio.move_on_after(2 * PATIENCE_S) as patience:  # a planner that is mute is passed over before
                if newest is not None and newest.target.jobs.get(name) == key:
                    patience.deadline = float("inf")  # it is planned with; whether the planner lives is seen elsewhere
                known = planner, newest, cluster.begun
                while known == (cluster.planner, cluster.newest, cluster.begun) and cluster is self._cluster:
                    await self._changed.wait()
            if patience.cancelled_caught:
                return (planner,)
        return ()

    # -- what happens to other nodes

    def lose(self, nodes: Collection[int]) -> None:
        """These do not answer: nobody waits for them."""
        if (cluster := self._cluster) is not None:
            cluster.lost.update((node, self._clock()) for node in nodes if node not in cluster.lost)
            self._look_who_plans(cluster)

    def back(self, node: int) -> None:
        """It answers again: it may have missed what was said."""
        if (cluster := self._cluster) is not None:
            cluster.lost.pop(node, None)
            self._look_who_plans(cluster)
            self._say_newest(cluster, node)

    def look(self) -> None:
        """Now and then: is a node lost for good, does the planner say anything, did a piece get lost?"""
        if (cluster := self._cluster) is None:
            return
        self._looks += 1
        if cluster.plans and self._making is not None and self._looks % SAYS_AGAIN_LOOKS == 0:
            self._say_newest(cluster, None)
        if not cluster.plans and (self._waiting or cluster.begun is None):
            now_s = self._clock()
            silent = {node for node in cluster.others if now_s - cluster.heard_s[node] >= PATIENCE_S}
            if cluster.planner in silent:
                log.warning("node %d says nothing: others plan without it", cluster.planner)
                cluster.mute |= silent
        if cluster.fetched.looked:
            self._ask(cluster)
        cluster.fetched.looked = True
        self._look_who_plans(cluster)

    def _look_who_plans(self, cluster: _Cluster) -> None:
        """The lowest node plans that answers. This one says so to it if it has heeded another one before."""
        planner = min({*cluster.members.nodes} - cluster.lost.keys() - cluster.mute)
        if planner != cluster.planner:
            cluster.planner = planner
            if not cluster.plans:
                self._sharing.forget()
                self._follow(cluster)
        self._go_on()

    def _follow(self, cluster: _Cluster) -> None:
        """Say to the planner of which plan this node has heard last, which has begun, and which says who owns what."""
        cluster.tell({"follows": cluster.ids, "views": self.view[0]}, cluster.planner)

    def _go_on(self) -> None:
        """Something has changed: make a plan, or another one, if this node is to make it and there has to be one."""
        self._stir()
        if (cluster := self._cluster) is None:
            return
        self._say_have(cluster)
        if self._making is not None:
            target, scope = self._making
            if not cluster.plans or target != self._target(cluster):
                scope.cancel()
        elif self._has_to_plan(cluster):
            self._making = self._target(cluster), trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._make, cluster)

    def _stir(self) -> None:
        """Those who wait look again."""
        self._changed.set()
        self._changed = trio.Event()

    def _target(self, cluster: _Cluster) -> Target:
        """The purpose that the plan should have. A node that is away stays so until it answers again."""
        known = cluster.begun.target.away if cluster.begun is not None else ()
        long_ago_s = self._clock() - cluster.lost_for_good_s
        away = (node for node, since_s in sorted(cluster.lost.items()) if node in known or since_s <= long_ago_s)
        return Target(tuple(away), {name: key for name, (key, _) in self._wanted.items()})

    def _has_to_plan(self, cluster: _Cluster) -> bool:
        begun = cluster.begun
        if not cluster.plans:
            return False
        return begun is None or cluster.outdone or begun != cluster.newest or begun.target != self._target(cluster)

    # -- as the planner

    async def _make(self, cluster: _Cluster) -> None:
        """Make plans as long as there has to be another one."""
        try:
            while self._cluster is cluster and self._has_to_plan(cluster):
                self._making = target, scope = self._target(cluster), trio.CancelScope()
                with scope:
                    await self._make_one(cluster, target)
        except Exception:  # a bug: it costs reads of the source, never the mount
            log.exception("nothing is planned for the cluster any more")
            return
        finally:
            self._making = None
        self._go_on()

    async def _make_one(self, cluster: _Cluster, target: Target) -> None:
        """One plan, from its first stage to the last; cancelled when it is made for what is past."""
        begun, own = cluster.begun, cluster.members.own
        number = max(cluster.floor, cluster.ids[0].number) + 1
        said = Round(PlanId(number, own), Stage.COUNTING, target, 0, cluster.adopted)
        if begun is not None:
            anew = cluster.outdone or begun.target.away != target.away
            said = said._replace(views=max(begun.views, cluster.views) + anew, shared=begun.shared)
        members = replace(cluster.members, away=target.away)
        followed = {name: job for name, (_, job) in self._wanted.items() if job is not None}
        jobs = {name: job for name, job in followed.items() if is_counted(job.spec, members)}
        counted = {name: target.jobs[name] for name in jobs}
        made = cluster.made = _Made(Holdings(len(self._sizes)))
        same_owners = begun is not None and begun.target.away == target.away and counted == cluster.counted
        self._enter(cluster, said)
        if cluster.outdone or not same_owners or cluster.adopted != cluster.pieces[0]:
            try:
                shared = await self._share(cluster, said, members, jobs)
                cluster.counted, cluster.outdone = counted, False
                said = said._replace(owners=said.id, shared=shared)
            except Exception:
                log.exception("who owns what cannot be planned: it stays as it is")
        said = self._enter(cluster, said._replace(stage=Stage.MADE))
        await self._until_all(cluster, made, lambda: made.have)
        late = cluster.missing(made.have)
        before = {} if begun is None else begun.target.jobs
        if any(job is None and before.get(name) != key for name, (key, job) in self._wanted.items()):
            late.add(own)
        self._enter(cluster, said._replace(stage=Stage.BEGUN, late=tuple(sorted(late))))

    async def _share(self, cluster: _Cluster, said: Round, members: Members, jobs: Mapping[str, JobRun]) -> str:
        """Find owners, and have them ready for the others. Returns by what they were found."""
        made = cluster.made
        assert made is not None
        await self._sharing.count(members, jobs)
        self._enter(cluster, said._replace(stage=Stage.GATHERING))
        assert cluster.told is not None
        held = await self._runner.run("plan", _pieces_of, cluster.told)
        for at, piece in enumerate(held):
            made.holdings.hear(members.own, at, len(held), piece)
        await self._until_all(cluster, made, lambda: made.holdings.known)
        holder = await self._runner.run("plan", made.holdings.holders, members.away)
        shares, shared = await self._sharing.share(members, holder)
        packed = await self._runner.run("plan", members.pack, shares)
        text: list[str] = await self._runner.run("plan", pieces, packed)
        sizes = np.asarray(self._sizes)
        share = await self._runner.run("plan", members.own_share, shares, sizes, shared)
        cluster.fetched = _Fetched(said.id, share=share)
        cluster.pieces = said.id, text
        return shared

    def _enter(self, cluster: _Cluster, said: Round) -> Round:
        """A plan of this node's comes to another stage: all hear of it, and this node, too."""
        cluster.tell(said.word(), None)
        self._heed(cluster, said)
        return said

    def _say_newest(self, cluster: _Cluster, node: int | None) -> None:
        if cluster.plans and cluster.newest is not None and cluster.newest.id.by == cluster.members.own:
            cluster.tell(cluster.newest.word(), node)

    async def _until_all(self, cluster: _Cluster, made: _Made, there: Callable[[], Collection[int]]) -> None:
        """Wait until all other nodes are `there`; not for one that does not answer, nor for ever for those that do."""
        while cluster.missing(there()) - cluster.mute:
            signs = made.signs
            with trio.move_on_after(PATIENCE_S) as patience:
                while made.signs == signs and cluster.missing(there()) - cluster.mute:
                    await self._changed.wait()
            if patience.cancelled_caught:  # they are not waited for again until they say something
                cluster.mute |= cluster.missing(there())

    # -- what other nodes say

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something. Raises ValueError or TypeError for what it cannot have said."""
        if (cluster := self._cluster) is None:
            self._early.append((node, value))
            return
        if node not in cluster.heard_s:
            return
        cluster.heard_s[node] = self._clock()
        if node in cluster.mute:
            cluster.mute.discard(node)
            self._look_who_plans(cluster)
        if "round" in value:
            self._hear_planner(cluster, node, round_of(value["round"]))
        if "piece" in value:
            self._hear_piece(cluster, *value["piece"])
        if "got" in value:
            samples = np.array([int(sample) for sample in value["got"]], dtype=np.int64)
            if samples.min(initial=0) < 0 or samples.max(initial=-1) >= len(self._sizes):
                raise ValueError("it holds samples that there are not")
            self._note_got(cluster, _id_of(value["of"]), node, samples)
        if cluster.plans:
            self._hear_follower(cluster, node, value)

    def _hear_follower(self, cluster: _Cluster, node: int, value: Mapping[str, Any]) -> None:
        """A node says something to its planner."""
        if "follows" in value:
            theirs, ours = tuple(map(_id_of, value["follows"])), cluster.ids
            cluster.floor = max(cluster.floor, theirs[0].number)
            cluster.views = max(cluster.views, int(value["views"]))
            later = theirs[0].number > ours[0].number or (theirs[0].number == ours[0].number and theirs[0] != ours[0])
            if later or (ours[0].by != cluster.members.own and theirs != ours):
                cluster.outdone = True
                if self._making is not None:
                    self._making[1].cancel()
                self._go_on()
            else:
                self._say_newest(cluster, node)
        if "wants" in value:
            of, at = value["wants"]
            known, text = cluster.pieces
            if _id_of(of) == known and 0 <= int(at) < len(text):
                cluster.tell({"piece": [known, int(at), len(text), text[int(at)]]}, node)
                self._sign(cluster)
        if "held" in value or "have" in value:
            made, of = cluster.made, _id_of(value["of"])
            if made is None or cluster.newest is None or cluster.newest.id != of:
                return
            if "held" in value:
                at, count, piece = value["held"]
                made.holdings.hear(node, int(at), int(count), str(piece))
            else:
                made.have.add(node)
            self._sign(cluster)

    def _sign(self, cluster: _Cluster) -> None:
        """The plan that is made here is a bit nearer."""
        if cluster.made is not None:
            cluster.made.signs += 1
            self._stir()

    # -- as one of those who go by the plan

    def _hear_planner(self, cluster: _Cluster, node: int, said: Round) -> None:
        if cluster.plans or node != cluster.planner or said.id.by != node:
            return
        newest = cluster.newest
        if newest is not None and said.id != newest.id and said.id.number <= newest.id.number:
            self._follow(cluster)  # it has not heard of what came after
        elif newest is None or said.id != newest.id or said.stage >= newest.stage:
            self._heed(cluster, said)

    def _heed(self, cluster: _Cluster, said: Round) -> None:
        """Do what the stage of the newest plan asks for."""
        if cluster.fetched.of != said.owners:
            cluster.fetched = _Fetched(said.owners)
        cluster.newest = said
        if said.stage is Stage.GATHERING and cluster.told_for != said.id:
            cluster.told, cluster.told_for = self._holds(), said.id
            if not cluster.plans:
                self._runner.start("plan", _pieces_of, cluster.told, then=partial(self._tell_held, cluster, said.id))
        elif said.stage is Stage.MADE:
            if not cluster.fetched.parts:
                self._ask(cluster)
            self._say_have(cluster)
        elif said.stage is Stage.BEGUN:
            self._ask(cluster)
            self._begin_by(cluster)

    def _tell_held(self, cluster: _Cluster, of: PlanId, told: list[str] | None, error: BaseException | None) -> None:
        if error is not None:
            log.error("what lies here is not told", exc_info=error)
        for at, text in enumerate(told or ()):
            cluster.tell({"held": [at, len(told or ()), text], "of": of}, of.by)

    def _ask(self, cluster: _Cluster) -> None:
        """Ask the planner for the next piece of its plan, if there is one to be had."""
        newest, fetched = cluster.newest, cluster.fetched
        if cluster.plans or newest is None or newest.stage < Stage.MADE or fetched.whole:
            return
        if newest.owners != cluster.adopted:
            fetched.looked = False
            cluster.tell({"wants": [newest.owners, len(fetched.parts)]}, cluster.planner)

    def _hear_piece(self, cluster: _Cluster, of: Any, at: int, count: int, text: str) -> None:
        newest, fetched = cluster.newest, cluster.fetched
        if newest is None or newest.owners != _id_of(of) or fetched.whole or at != len(fetched.parts):
            return
        fetched.parts.append(str(text))
        if len(fetched.parts) < int(count):
            self._ask(cluster)
            return
        fetched.whole = True
        then = partial(self._unpacked, cluster, fetched)
        self._runner.start("plan", self._unpack, cluster.members, newest, fetched.parts, then=then)

    def _unpack(self, members: Members, said: Round, parts: Sequence[str]) -> OwnShare:
        """In a worker: what this node owns by a plan. Raises ValueError for what is none."""
        samples = len(self._sizes)
        shares = members.unpack(from_pieces(parts, members.packed_bytes(samples)), samples)
        return replace(members, away=said.target.away).own_share(shares, np.asarray(self._sizes), said.shared)

    def _unpacked(
        self, cluster: _Cluster, fetched: _Fetched, share: OwnShare | None, error: BaseException | None
    ) -> None:
        if error is not None:
            log.error("the plan of node %d is not understood", cluster.planner, exc_info=error)
        if cluster is not self._cluster or cluster.fetched is not fetched:
            return
        fetched.share = share
        fetched.parts.clear()
        self._say_have(cluster)
        self._begin_by(cluster)

    def _say_have(self, cluster: _Cluster) -> None:
        """Say that this node has the newest plan, and has prepared the jobs that begin with it."""
        newest, fetched = cluster.newest, cluster.fetched
        if cluster.plans or newest is None or newest.stage < Stage.MADE or cluster.has == newest.id:
            return
        if newest.owners != cluster.adopted and fetched.share is None:
            return
        before = {} if cluster.begun is None else cluster.begun.target.jobs
        ready = {name: key for name, (key, job) in self._wanted.items() if job is not None}
        if all(before.get(name) == key or ready.get(name) == key for name, key in newest.target.jobs.items()):
            cluster.has = newest.id
            cluster.tell({"have": True, "of": newest.id}, cluster.planner)

    def _begin_by(self, cluster: _Cluster) -> None:
        """Go by the newest plan, if it has begun and is here."""
        newest = cluster.newest
        if newest is None or newest.stage is not Stage.BEGUN or newest == cluster.begun:
            return
        if newest.owners != cluster.adopted and cluster.fetched.share is None:
            return  # when it has come
        before, cluster.begun = cluster.begun, newest
        cluster.members = replace(cluster.members, away=newest.target.away)
        if before is not None and before.target.away != newest.target.away:
            away = newest.target.away
            said = f"without nodes {', '.join(map(str, away))}" if away else "with all nodes"
            log.warning("who owns what is planned anew, %s", said)
        self.adopt()
        self._go_on()

    # -- who owns what

    def adopt(self) -> None:
        """Keep by the newest plan from now on, if it is here: it begins, or who asks for a sample goes by it."""
        cluster = self._cluster
        if cluster is None or cluster.newest is None or cluster.fetched.share is None:
            return
        of, share = cluster.newest.owners, cluster.fetched.share
        if of == cluster.adopted:
            return
        cluster.adopted = of
        cluster.got = [one for one in cluster.got if one[0].number >= of.number]
        self._planner.share(share, self._jobs.jobs.values())
        self.plan_made(share.plan)
        held = self._holds()
        if cluster.told is not None and cluster.told_for == of:
            held &= ~cluster.told
        assert share.plan.owner is not None
        samples = np.flatnonzero(held & ((share.plan.owner >= 0) | (share.plan.classes == NOWHERE)))
        for start in range(0, len(samples), SAMPLES_IN_A_WORD):
            cluster.tell({"got": samples[start : start + SAMPLES_IN_A_WORD].tolist(), "of": of}, None)
        if len(samples):
            self._note_got(cluster, of, cluster.members.own, samples)

    def plan_made(self, plan: Plan | None) -> None:
        """A new plan of what this node keeps; samples that nodes have got since they told what they hold lie there."""
        self._step(e.Planned(plan))
        if (cluster := self._cluster) is not None:
            for of, node, samples in cluster.got:
                if of == cluster.adopted and node not in cluster.members.away:
                    self._owns(cluster, node, samples)

    def _owns(self, cluster: _Cluster, node: int, samples: Samples) -> None:
        self._step(e.HeldBy(-1 if node == cluster.members.own else node, samples))

    def _note_got(self, cluster: _Cluster, of: PlanId, node: int, samples: Samples) -> None:
        """A node has got samples while a plan was made that gives them to others."""
        if of.number >= cluster.adopted.number:
            cluster.got.append((of, node, samples))
        if of == cluster.adopted:
            self._owns(cluster, node, samples)


def _pieces_of(held: Flags) -> list[str]:
    return pieces(np.packbits(held).tobytes())
