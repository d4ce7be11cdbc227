"""One plan for all nodes of a cluster: what a node decides, as the one that plans for all or as one that goes by it.

Pure: a state machine without I/O and without a clock. In: jobs to plan with, nodes that are lost or back, what others
say, and what the driver has computed. Out: commands, which `ClusterPlan.take` gives. The driver of a mount is
`mlfs.engine.shared_plan`; tests drive it with a network in memory.

The lowest node that answers plans for all; when it is lost the next one does. A plan is made when a job comes or goes,
or when a node is lost for good or back. It has a number, higher than any that its planner has heard of, and goes
through the stages of `PlanStage`. The planner says to all at which stage it is, also again and again: what is said late
or twice changes nothing. The others do what the stage asks of them:

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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.plan.holdings import Holdings
from mlfs.plan.members import Members, OwnShare

# So long the planner waits for the others at each stage, and they for a sign of the planner, before it goes on without.
PATIENCE_S = 10.0
# A node that has been lost for so many times the peers' patience is lost for good: others own what it owned.
PATIENCES = 10
# So many numbers of samples fit into one word between servers.
SAMPLES_IN_A_WORD = 4000
# While a plan is made its planner says so every so many looks, as the others wait for it.
SAYS_AGAIN_LOOKS = 3

Samples = npt.NDArray[np.int64]


class PlanStage(IntEnum):
    """The progress of a plan."""

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
    stage: PlanStage
    target: Target
    views: int
    owners: PlanId
    shared: str = ""
    late: tuple[int, ...] = ()

    def word(self) -> Mapping[str, Any]:
        """The form in which other nodes are told of it."""
        away, jobs = self.target
        return {"round": [self.id, self.stage, away, dict(jobs), self.views, self.owners, self.shared, self.late]}


def round_of(value: Any) -> Round:
    """The state of a plan that a planner has said. Raises ValueError or TypeError for what none can have said."""
    id_, stage, away, jobs, views, owners, shared, late = value
    target = Target(_numbers(away), {str(name): str(key) for name, key in dict(jobs).items()})
    return Round(_id_of(id_), PlanStage(stage), target, int(views), _id_of(owners), str(shared), _numbers(late))


def _id_of(value: Any) -> PlanId:
    number, by = value
    return PlanId(int(number), int(by))


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(sorted(int(number) for number in value))


# -- what the driver is to do


class Tell(NamedTuple):
    """Say something to the server of a node, None: of all others."""

    value: Mapping[str, Any]
    to: int | None


class Gather(NamedTuple):
    """Look at once what is held here, and say `ClusterPlan.gathered` when that is text."""

    of: PlanId


class CountReaders(NamedTuple):
    """Count which node reads what of these jobs; then say `counted`."""

    of: PlanId
    members: Members
    jobs: Mapping[str, Any]


class FindOwners(NamedTuple):
    """Find owners for what was counted, by what nodes hold; then say `shared`."""

    of: PlanId
    members: Members
    holdings: Holdings


class GiveUp(NamedTuple):
    """Count and share no more: that plan is not made any further."""


class Unpack(NamedTuple):
    """Read this node's part from the pieces of a plan; then say `unpacked`."""

    of: PlanId
    members: Members
    parts: Sequence[str]
    shared: str


class Adopt(NamedTuple):
    """Keep by this from now on; then say in `hold` what has come here since `Gather` of that plan."""

    of: PlanId
    share: OwnShare


class Owns(NamedTuple):
    """A node has these samples, whomever the plan gives them to."""

    node: int
    samples: Samples


class Notice(NamedTuple):
    """A line for the log."""

    text: str


Command = Tell | Gather | CountReaders | FindOwners | GiveUp | Unpack | Adopt | Owns | Notice


# -- what a node knows


class _Wanted(NamedTuple):
    """A job to plan with. job: None: this node cannot follow it. counted: it is worth counting who reads what of it."""

    key: str
    job: Any | None
    counted: bool


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
class _Making:
    """The plan that this node makes.

    Attributes:
        said: as all have heard of it. counted: the jobs whose reads it rests on, by name their keys.
        holdings: what the others have told. have: the nodes that have the plan.
        sign_s: when one has last said something that brings it nearer, or a stage began.
        busy: whether this node itself is at work on it, and others are not waited for.
    """

    said: Round
    counted: Mapping[str, str]
    holdings: Holdings
    sign_s: float
    have: set[int] = field(default_factory=set)
    busy: bool = False


class ClusterPlan:
    """The part of one node in the cluster's plan.

    Each call says what has happened; `take` gives what is to be done then.

    Time comes with `look`, once a second: what happens in between happens at the last look.

    Args:
        samples: how many there are. lost_for_good_s: a node that has not answered for so long owns nothing.

    Attributes:
        members: the nodes that have joined.
        planner: the node that this one heeds. newest: the newest plan that it has told. begun: the last that has begun.
        adopted: the plan by which samples have owners.
    """

    def __init__(self, members: Members, samples: int, lost_for_good_s: float, now_s: float) -> None:
        self.members = members
        self.planner = -1
        self.newest: Round | None = None
        self.begun: Round | None = None
        self.adopted = NO_PLAN
        # The samples that nodes have got while a plan was made; they own them, whomever the plan gives them to.
        self._got: list[tuple[PlanId, int, Samples]] = []
        self._samples = samples
        self._lost_for_good_s = lost_for_good_s
        self._now_s = now_s
        self._looks = 0
        self._commands: list[Command] = []
        self._wanted: dict[str, _Wanted] = {}  # by name
        self._heard_s = dict.fromkeys(members.nodes, now_s)  # when each has last said something
        self._lost: dict[int, float] = {}  # nodes that do not answer, and since when
        self._mute: set[int] = set()  # nodes that answer, and whose servers say nothing though they are waited for
        self._moved_s = now_s  # when the planner or a plan was last another one
        self._fetched = _Fetched(NO_PLAN)
        self._gathered = NO_PLAN  # the plan for which this node has looked what it holds
        self._has = NO_PLAN  # the plan of which the planner knows that this node has all that it is made for
        # As the planner.
        self._making: _Making | None = None
        self._floor = 0  # a number that is taken already
        self._views = 0  # how often others have seen nodes go for good or come back
        # Another node has heard of a plan that this one has not made and cannot tell about: new owners are to be found.
        self._outdone = False
        self._pieces: tuple[PlanId, Sequence[str]] = (NO_PLAN, ())  # of the plan that this node has made last
        self._counted: Mapping[str, str] = {}  # the jobs whose reads it rests on
        self._look_who_plans()

    def take(self) -> list[Command]:
        """The commands for the driver, in the order in which it carries them out."""
        commands, self._commands = self._commands, []
        return commands

    # -- what others may know

    @property
    def plans(self) -> bool:
        return self.planner == self.members.own

    @property
    def under_way(self) -> bool:
        """Whether a plan is made here, or waited for."""
        begun = self.begun.target.jobs if self.begun is not None else {}
        waits = self.begun is None or any(begun.get(name) != wanted.key for name, wanted in self._wanted.items())
        return waits or self._making is not None

    @property
    def owned_besides(self) -> list[Owns]:
        """The samples that nodes own beside what the plan gives them."""
        there = [one for one in self._got if one[0] == self.adopted and one[1] not in self.members.away]
        return [Owns(node, samples) for _, node, samples in there]

    @property
    def planned_otherwise(self) -> frozenset[str]:
        """Names under which the planner plans with another job than this node would, or only one of them with any."""
        if self.plans or self.newest is None:
            return frozenset()
        ours = {name: wanted.key for name, wanted in self._wanted.items()}
        return frozenset(name for name, _ in ours.items() ^ self.newest.target.jobs.items())

    def late(self, name: str, key: str, since_s: float) -> Sequence[int] | None:
        """The nodes that were not ready for a job when a plan with it began; None: one that begins is waited for.

        The planner, where that does not plan with the job in time. Args: since_s: since when it is waited for.
        """
        if self.begun is not None and self.begun.target.jobs.get(name) == key:
            return self.begun.late
        if self.newest is not None and self.newest.target.jobs.get(name) == key:
            return None  # it is planned with; whether the planner lives is seen elsewhere
        # A planner that is mute is passed over before.
        return (self.planner,) if self._now_s - max(since_s, self._moved_s) >= 2 * PATIENCE_S else None

    @property
    def _ids(self) -> tuple[PlanId, PlanId, PlanId]:
        """The newest plan that was told of, the last that has begun, and the one that says who owns what."""
        newest, begun = (NO_PLAN if said is None else said.id for said in (self.newest, self.begun))
        return newest, begun, self.adopted

    @property
    def _others(self) -> set[int]:
        return {*self.members.nodes} - {self.members.own}

    def _missing(self, there: Collection[int]) -> set[int]:
        """The other nodes that answer, and have not done what the stage asks of them."""
        return self._others - {*there} - self._lost.keys()

    # -- what happens here

    def want(self, name: str, key: str, job: Any | None, counted: bool) -> None:
        """Plan with this job from now on, in place of another one of its name.

        Args:
            key: the same for the same job on all nodes. job: the driver's, None where this node cannot follow it.
            counted: whether it is worth counting which node reads what of it.
        """
        self._wanted[name] = _Wanted(key, job, counted)
        self._go_on()

    def want_no_more(self, name: str) -> None:
        if self._wanted.pop(name, None) is not None:
            self._go_on()

    def lose(self, nodes: Collection[int]) -> None:
        self._lost = dict.fromkeys(nodes, self._now_s) | self._lost
        self._look_who_plans()

    def back(self, node: int) -> None:
        self._lost.pop(node, None)
        self._look_who_plans()
        self._say_newest(node)

    def look(self, now_s: float, waiting: bool) -> None:
        """Now and then: is a node lost for good, does the planner say anything, did a piece get lost?

        Args: waiting: whether somebody waits here for a job to begin.
        """
        self._now_s = now_s
        self._looks += 1
        if (making := self._making) is not None:
            if self._looks % SAYS_AGAIN_LOOKS == 0:
                self._say_newest(None)
            if not making.busy and now_s - making.sign_s >= PATIENCE_S:
                self._mute |= self._missing(self._there(making))  # not waited for again until they say something
        if not self.plans and (waiting or self.begun is None):
            silent = {node for node in self._others if now_s - self._heard_s[node] >= PATIENCE_S}
            if self.planner in silent:
                self._commands.append(Notice(f"node {self.planner} says nothing: others plan without it"))
                self._mute |= silent
        fetched = self._fetched
        if fetched.looked:
            self._ask()
        fetched.looked = True
        self._look_who_plans()

    def _look_who_plans(self) -> None:
        """The lowest node plans that answers. This one says so to it if it has heeded another one before."""
        planner = min({*self.members.nodes} - self._lost.keys() - self._mute)
        if planner != self.planner:
            self.planner, self._moved_s = planner, self._now_s
            if not self.plans:
                self._follow()
        self._go_on()

    def _follow(self) -> None:
        """Say to the planner of which plan this node has heard last, which has begun, and which says who owns what."""
        views = 0 if self.begun is None else self.begun.views
        self._tell({"follows": self._ids, "views": views}, self.planner)

    def _tell(self, value: Mapping[str, Any], to: int | None) -> None:
        self._commands.append(Tell(value, to))

    def _go_on(self) -> None:
        """Something has changed: is this node to make a plan, and how far is the one that it makes?"""
        self._say_have()
        target = self._target()
        if self._making is not None and not (self.plans and self._making.said.target == target):
            self._making = None
            self._commands.append(GiveUp())
        begun = self.begun
        if self._making is None:
            has_to = begun is None or self._outdone or begun != self.newest or begun.target != target
            if self.plans and has_to:
                self._begin_to_make(target)
        elif not self._making.busy and not self._missing(self._there(self._making)) - self._mute:
            self._next_stage(self._making)

    def _target(self) -> Target:
        """The purpose that the plan should have. A node that is away stays so until it answers again."""
        known = self.begun.target.away if self.begun is not None else ()
        long_ago_s = self._now_s - self._lost_for_good_s
        away = (node for node, since_s in sorted(self._lost.items()) if node in known or since_s <= long_ago_s)
        return Target(tuple(away), {name: wanted.key for name, wanted in self._wanted.items()})

    # -- as the planner

    def _begin_to_make(self, target: Target) -> None:
        begun, own = self.begun, self.members.own
        id_ = PlanId(max(self._floor, self._ids[0].number) + 1, own)
        said = Round(id_, PlanStage.COUNTING, target, 0, self.adopted)
        if begun is not None:
            anew = self._outdone or begun.target.away != target.away
            said = said._replace(views=max(begun.views, self._views) + anew, shared=begun.shared)
        jobs = {name: wanted.job for name, wanted in self._wanted.items() if wanted.job is not None and wanted.counted}
        counted = {name: target.jobs[name] for name in jobs}
        same_owners = begun is not None and begun.target.away == target.away and counted == self._counted
        making = self._making = _Making(said, counted, Holdings(self._samples), self._now_s)
        self._enter(making, said)
        if self._outdone or not same_owners or self.adopted != self._pieces[0]:
            making.busy = True
            self._commands.append(CountReaders(id_, replace(self.members, away=target.away), jobs))
        else:
            self._as_made(making, said)

    def _there(self, making: _Making) -> Collection[int]:
        """The nodes that have done what the stage asks of them."""
        return making.holdings.known if making.said.stage is PlanStage.GATHERING else making.have

    def _next_stage(self, making: _Making) -> None:
        """All are there, or none is waited for any more."""
        if making.said.stage is PlanStage.GATHERING:
            making.busy = True
            members = replace(self.members, away=making.said.target.away)
            self._commands.append(FindOwners(making.said.id, members, making.holdings))
        elif making.said.stage is PlanStage.MADE:
            late = self._missing(making.have)
            before = {} if self.begun is None else self.begun.target.jobs
            if any(wanted.job is None and before.get(name) != wanted.key for name, wanted in self._wanted.items()):
                late.add(self.members.own)
            self._making = None
            self._enter(making, making.said._replace(stage=PlanStage.BEGUN, late=tuple(sorted(late))))

    def _enter(self, making: _Making, said: Round) -> None:
        """A plan of this node's comes to another stage: all hear of it, and this node, too."""
        making.said, making.sign_s = said, self._now_s
        self._tell(said.word(), None)
        self._heed(said)

    def counted(self, of: PlanId) -> None:
        """Note that it is counted who reads what: nodes are asked next what they hold."""
        if (making := self._made_here(of)) is not None:
            self._enter(making, making.said._replace(stage=PlanStage.GATHERING))

    def gathered(self, of: PlanId, pieces: Sequence[str]) -> None:
        """The pieces by which the planner is told what is held here."""
        making = self._made_here(of)
        for at, text in enumerate(pieces):
            if making is not None:
                making.holdings.hear(self.members.own, at, len(pieces), text)
            elif of.by != self.members.own:
                self._tell({"held": [at, len(pieces), text], "of": of}, of.by)
        if making is not None:
            making.busy, making.sign_s = False, self._now_s
            self._go_on()

    def shared(self, of: PlanId, share: OwnShare, pieces: Sequence[str], by_what: str) -> None:
        """Owners are found: this node's part, and all as the others are told it. Args: by_what: how they were found."""
        if (making := self._made_here(of)) is not None:
            self._fetched = _Fetched(of, share=share)
            self._pieces, self._counted, self._outdone = (of, pieces), making.counted, False
            self._as_made(making, making.said._replace(owners=of, shared=by_what))

    def failed(self, of: PlanId) -> None:
        """Note that no plan could be made: samples keep their owners."""
        if (making := self._made_here(of)) is not None:
            self._as_made(making, making.said)

    def _as_made(self, making: _Making, said: Round) -> None:
        making.busy = False
        self._enter(making, said._replace(stage=PlanStage.MADE))
        self._go_on()

    def _made_here(self, of: PlanId) -> _Making | None:
        return self._making if self._making is not None and self._making.said.id == of else None

    def _say_newest(self, node: int | None) -> None:
        if self.plans and self.newest is not None and self.newest.id.by == self.members.own:
            self._tell(self.newest.word(), node)

    # -- what other nodes say

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        if node not in self._heard_s:
            return
        self._heard_s[node] = self._now_s
        if node in self._mute:
            self._mute.discard(node)
            self._look_who_plans()
        if "round" in value:
            self._hear_planner(node, round_of(value["round"]))
        if "piece" in value:
            self._hear_piece(*value["piece"])
        if "got" in value:
            samples = np.array([int(sample) for sample in value["got"]], dtype=np.int64)
            if samples.min(initial=0) < 0 or samples.max(initial=-1) >= self._samples:
                raise ValueError("it holds samples that there are not")
            self._note_got(_id_of(value["of"]), node, samples)
        if self.plans:
            self._hear_follower(node, value)
        self._go_on()

    def _hear_follower(self, node: int, value: Mapping[str, Any]) -> None:
        """A node says something to its planner."""
        if "follows" in value:
            theirs, ours = tuple(map(_id_of, value["follows"])), self._ids
            self._floor = max(self._floor, theirs[0].number)
            self._views = max(self._views, int(value["views"]))
            later = theirs[0].number > ours[0].number or (theirs[0].number == ours[0].number and theirs[0] != ours[0])
            if later or (ours[0].by != self.members.own and theirs != ours):
                self._outdone = True
                if self._making is not None:
                    self._making = None
                    self._commands.append(GiveUp())
            else:
                self._say_newest(node)
        making = self._making
        if "wants" in value:
            of, at = value["wants"]
            known, text = self._pieces
            if _id_of(of) == known and 0 <= int(at) < len(text):
                self._tell({"piece": [known, int(at), len(text), text[int(at)]]}, node)
                if making is not None:
                    making.sign_s = self._now_s
        if ("held" in value or "have" in value) and (making := self._made_here(_id_of(value["of"]))) is not None:
            if "held" in value:
                at, count, piece = value["held"]
                making.holdings.hear(node, int(at), int(count), str(piece))
            else:
                making.have.add(node)
            making.sign_s = self._now_s

    # -- as one of those who go by the plan

    def _hear_planner(self, node: int, said: Round) -> None:
        if self.plans or node != self.planner or said.id.by != node:
            return
        newest = self.newest
        if newest is not None and said.id != newest.id and said.id.number <= newest.id.number:
            self._follow()  # it has not heard of what came after
        elif newest is None or said.id != newest.id or said.stage >= newest.stage:
            self._heed(said)

    def _heed(self, said: Round) -> None:
        """Do what the stage of the newest plan asks for."""
        if self._fetched.of != said.owners:
            self._fetched = _Fetched(said.owners)
        if said != self.newest:
            self.newest, self._moved_s = said, self._now_s
        if said.stage is PlanStage.GATHERING and self._gathered != said.id:
            self._gathered = said.id
            self._commands.append(Gather(said.id))
        elif said.stage is PlanStage.MADE:
            if not self._fetched.parts:
                self._ask()
            self._say_have()
        elif said.stage is PlanStage.BEGUN:
            self._ask()
            self._begin_by_newest()

    def _ask(self) -> None:
        """Ask the planner for the next piece of its plan, if there is one to be had."""
        newest, fetched = self.newest, self._fetched
        if self.plans or newest is None or newest.stage < PlanStage.MADE or fetched.whole:
            return
        if newest.owners != self.adopted:
            fetched.looked = False
            self._tell({"wants": [newest.owners, len(fetched.parts)]}, self.planner)

    def _hear_piece(self, of: Any, at: int, count: int, text: str) -> None:
        newest, fetched = self.newest, self._fetched
        if newest is None or newest.owners != _id_of(of) or fetched.whole or at != len(fetched.parts):
            return
        fetched.parts.append(str(text))
        if len(fetched.parts) < int(count):
            self._ask()
            return
        fetched.whole = True
        members = replace(self.members, away=newest.target.away)
        self._commands.append(Unpack(fetched.of, members, fetched.parts, newest.shared))

    def unpacked(self, of: PlanId, share: OwnShare | None) -> None:
        """Take the plan that was fetched; None where it was not understood."""
        fetched = self._fetched
        if fetched.of == of and fetched.whole:
            fetched.share, fetched.parts = share, []
            self._begin_by_newest()
            self._go_on()

    def _say_have(self) -> None:
        """Say that this node has the newest plan, and has prepared the jobs that begin with it."""
        newest = self.newest
        if self.plans or newest is None or newest.stage < PlanStage.MADE or self._has == newest.id:
            return
        if newest.owners != self.adopted and self._fetched.share is None:
            return
        before = {} if self.begun is None else self.begun.target.jobs
        ready = {name: wanted.key for name, wanted in self._wanted.items() if wanted.job is not None}
        if all(before.get(name) == key or ready.get(name) == key for name, key in newest.target.jobs.items()):
            self._has = newest.id
            self._tell({"have": True, "of": newest.id}, self.planner)

    def _begin_by_newest(self) -> None:
        """Go by the newest plan, if it has begun and is here."""
        newest = self.newest
        if newest is None or newest.stage is not PlanStage.BEGUN or newest == self.begun:
            return
        if newest.owners != self.adopted and self._fetched.share is None:
            return  # when it has come
        before, self.begun, self._moved_s = self.begun, newest, self._now_s
        self.members = replace(self.members, away=newest.target.away)
        if before is not None and before.target.away != newest.target.away:
            away = newest.target.away
            said = f"without nodes {', '.join(map(str, away))}" if away else "with all nodes"
            self._commands.append(Notice(f"who owns what is planned anew, {said}"))
        self.adopt()
        self._go_on()

    # -- who owns what

    def adopt(self) -> bool:
        """Keep by the newest plan from now on, if it is here: it begins, or who asks for a sample goes by it. Returns
        whether it was another one before.
        """
        if self.newest is None or self._fetched.share is None or self.newest.owners == self.adopted:
            return False
        of = self.adopted = self.newest.owners
        self._got = [one for one in self._got if one[0].number >= of.number]
        self._commands.append(Adopt(of, self._fetched.share))
        return True

    def hold(self, of: PlanId, samples: Samples) -> None:
        """Tell all of samples that this node got while that plan was made."""
        for start in range(0, len(samples), SAMPLES_IN_A_WORD):
            self._tell({"got": samples[start : start + SAMPLES_IN_A_WORD].tolist(), "of": of}, None)
        if len(samples):
            self._note_got(of, self.members.own, samples)

    def _note_got(self, of: PlanId, node: int, samples: Samples) -> None:
        """A node has got samples while a plan was made that gives them to others."""
        if of.number >= self.adopted.number:
            self._got.append((of, node, samples))
        if of == self.adopted:
            self._commands.append(Owns(node, samples))
