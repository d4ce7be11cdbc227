"""One plan on all nodes of a cluster: who is there for good, what each holds already, and when a new plan begins.

In: the nodes that joined, those that are lost or back, what the servers of other nodes say, plans of the planner. Out:
members for `mlfs.engine.planner`, plans for the scheduler, words for the other servers. Nodes that plan differently
read samples of the source twice, and nothing worse. So a plan begins when all nodes have it, and a node that is asked
for a sample goes by its newest plan at once: who asks knows that all have it.

When nodes join, when the view of who is there changes (mlfs.plan.views), and for each new job or order, all tell what
they hold (mlfs.plan.holdings), and plan with that: what lies somewhere stays there, and is not read again. Planning
takes a while, in which nodes go on by the plan before. When the new one begins, each tells what it has got meanwhile
that the new plan gives to others: it owns that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from mlfs.engine.planner import Planner
from mlfs.engine.runner import Runner
from mlfs.plan.holdings import Holdings, pieces, together
from mlfs.plan.members import Members
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.views import View, Views, parse_view

log = logging.getLogger("mlfs.peers")

# So long a node waits for the others' plans before it goes on with its own. Planning takes seconds at most.
AGREEMENT_PATIENCE_S = 10.0
# A node that has been lost for so many times the peers' patience is lost for good.
PATIENCES = 10

# So many numbers of samples fit into one word between servers.
SAMPLES_IN_A_WORD = 4000

Tell = Callable[[Mapping[str, Any]], None]
Flags = npt.NDArray[np.bool_]
Samples = npt.NDArray[np.int64]


class _Agreement:
    """Which nodes are ready, and whether all are."""

    def __init__(self) -> None:
        self.ready: set[int] = set()
        self.changed = trio.Event()

    def add(self, node: int) -> None:
        """A node is ready."""
        self.ready.add(node)
        self.stir()

    def stir(self) -> None:
        """Those who wait look again."""
        self.changed.set()
        self.changed = trio.Event()


class SharedPlan:
    """See the module. Without members, before `begin` and after `end`, plans are this node's own.

    Args:
        step: takes events for the scheduler. holds: by sample, whether this node holds it or is about to.
    """

    def __init__(
        self,
        planner: Planner,
        runner: Runner,
        clock: Callable[[], float],
        step: Callable[..., None],
        holds: Callable[[], Flags],
    ) -> None:
        self._planner = planner
        self._runner = runner
        self._clock = clock
        self._step = step
        self._holds = holds
        self._members: Members | None = None
        self._tell: Tell = lambda _: None
        self._views: Views | None = None
        self._heard: list[tuple[int, Mapping[str, Any]]] = []  # before this node had joined
        self._holdings: dict[str, Holdings] = {}  # by what is to be agreed on
        self._agreements: dict[str, _Agreement] = {}
        self._agreeing = 0
        self._pending: list[Plan | None] = []  # the newest plan, where it waits for the others'
        self._told: Flags | None = None  # while plans are agreed on, what this node first told that it holds
        self._got = np.empty(0, dtype=np.int16)  # by sample, the node that got it while a plan was agreed on, or -1
        self._planned = False
        self._planned_for = View()

    @property
    def members(self) -> Members | None:
        """The nodes that have joined, None without any."""
        return self._members

    @property
    def planned(self) -> bool:
        """Whether the first plan has begun."""
        return self._planned

    @property
    def view(self) -> View:
        """Who is there, as far as the plan goes by it."""
        return self._planned_for

    async def begin(self, members: Members, tell: Tell, patience_s: float) -> None:
        """This node has joined others. Returns when all have planned, or none is waited for any more."""
        self._members, self._tell = members, tell
        views = self._views = Views(members.nodes, members.own, PATIENCES * patience_s)
        heard, self._heard = self._heard, []
        for node, value in heard:
            self.hear(node, value)
        await self._renew(views, views.current)
        self._planned = self._views is views

    def end(self) -> None:
        """This node is alone from now on."""
        self._members = self._views = None
        self._planned = False
        self._planned_for = View()
        self._heard.clear()
        self._holdings.clear()
        self._told = None
        self._got = np.empty(0, dtype=np.int16)
        for agreement in self._agreements.values():
            agreement.stir()
        self._agreements.clear()

    # -- what happens to other nodes, and what they say

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something. Raises ValueError for what it cannot have said."""
        if self._views is None:
            self._heard.append((node, value))
            return
        if "ready" in value:
            self._agreement(str(value["ready"])).add(node)
        if "held" in value:
            name = str(value["of"])
            self._holdings_of(name).hear(node, value["held"])
            self._agreement(f"held {name}").stir()
        if "got" in value:
            self._note_got(node, np.array([int(sample) for sample in value["got"]], dtype=np.int64))
        if "view" in value and self._views.hear(parse_view(value["view"])):
            self._take(self._views.current)

    def lose(self, nodes: list[int]) -> None:
        """These do not answer: nobody waits for them."""
        if self._views is not None:
            self._views.lose(nodes, self._clock())
            for agreement in self._agreements.values():
                agreement.stir()

    def back(self, node: int) -> None:
        """It answers again: it may have missed what was said."""
        if self._views is not None:
            self._views.back(node)
            self._tell({"view": list(self._views.current)})

    def look(self) -> None:
        """Now and then: is a node lost for good, or back?"""
        if self._views is not None and (view := self._views.look(self._clock())) is not None:
            self._tell({"view": list(view)})
            self._take(view)

    def _take(self, view: View) -> None:
        """Go by a new view."""
        views = self._views
        assert views is not None
        away = f"without nodes {', '.join(map(str, view.away))}" if view.away else "with all nodes"
        log.warning("who owns what is planned anew, %s", away)

        async def renew() -> None:
            try:
                await self._renew(views, view)
            except Exception:  # a bug: it costs reads of the source, never the mount
                log.exception("who owns what cannot be planned anew")

        trio.lowlevel.spawn_system_task(renew)

    # -- plans

    async def _renew(self, views: Views, view: View) -> None:
        """Plan without those who are lost for good, and with those who are back."""
        name = f"view {view.name}"
        self._agreeing += 1
        try:
            members = await self._with_holdings(name, views, view)
            if members is None:
                return  # there is another view by now
            self._members = members
            await self._planner.change(members)
            await self._all_ready(name, views, view)
        finally:
            self._agreeing -= 1
            self.adopt()
        if self._views is views:
            self._planned_for = view

    async def agree(self, name: str, prepare: Callable[[], Awaitable[None]]) -> Sequence[int]:
        """Plan with something new, and wait until all others have.

        A node that does not get ready is not waited for for ever: that costs reads of the source, and nothing else.
        Returns the numbers of such nodes, not of those that do not answer.
        """
        views = self._views
        self._agreeing += 1
        try:
            if views is not None:
                members = await self._with_holdings(name, views, views.current)
                if members is not None:
                    self._members = members
                    self._planner.expect(members)
            await prepare()
            return () if views is None else await self._all_ready(name, views, views.current)
        finally:
            self._agreeing -= 1
            self.adopt()

    def agree_soon(self, name: str, prepare: Callable[[], Awaitable[None]]) -> None:
        """As `agree`, for those who do not wait for it."""

        async def agree() -> None:
            try:
                await self.agree(name, prepare)
            except Exception:  # a bug: it costs reads of the source, never the mount
                log.exception("no plan is made with: %s", name)

        trio.lowlevel.spawn_system_task(agree)

    async def _with_holdings(self, name: str, views: Views, view: View) -> Members | None:
        """Tell what this node holds, hear what the others do. None if by then another view counts."""
        members = self._members
        assert members is not None
        holdings, held = self._holdings_of(name), self._holds()
        holdings.add(members.own, held)
        if self._told is None:  # of several plans that are agreed on at once, the last may rest on what was told first
            self._told = held
        told = await self._runner.run("plan", pieces, held)
        for number, piece in enumerate(told):
            self._tell({"of": name, "held": [number, len(told), piece]})
        await self._wait(f"held {name}", views, view, holdings.known)
        holder = await self._runner.run("plan", holdings.holders, view.away)
        self._holdings.pop(name, None)
        if self._views is not views or views.current is not view or self._members is None:
            return None
        # What is told for several plans at once all nodes come to know, though not in the same order.
        return replace(self._members, away=view.away, holder=together(self._members.holder, holder, view.away))

    async def _all_ready(self, name: str, views: Views, view: View) -> Sequence[int]:
        """Say that this node has planned, and wait until the others have. Returns those that have not."""
        if self._views is not views:
            return ()
        self._tell({"ready": name})
        agreement = self._agreement(name)
        return await self._wait(name, views, view, lambda: agreement.ready)

    async def _wait(
        self, name: str, views: Views, view: View, there: Callable[[], set[int] | frozenset[int]]
    ) -> Sequence[int]:
        """Wait until all other nodes are `there`: not for ever, not for one that is lost, not for a past view.

        Returns those that are not there after all that time.
        """
        members = self._members
        assert members is not None
        others = {*members.nodes} - {members.own}
        agreement = self._agreement(name)
        missing: set[int] = set()
        with trio.move_on_after(AGREEMENT_PATIENCE_S):
            while self._views is views and views.current is view:
                missing = others - there() - views.lost - {*views.current.away}
                if not missing:
                    return ()
                await agreement.changed.wait()
            return ()
        return sorted(missing)

    def _agreement(self, name: str) -> _Agreement:
        return self._agreements.setdefault(name, _Agreement())

    def _holdings_of(self, name: str) -> Holdings:
        if name not in self._holdings:
            self._holdings[name] = Holdings(len(self._holds()))
        return self._holdings[name]

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
            if plan is not None and plan.owner is not None:
                self._correct((plan.owner >= 0) | (plan.classes == NOWHERE))
        if not self._agreeing:
            self._told = None

    def _correct(self, elsewhere: Flags) -> None:
        """What nodes have got since they told what they hold lies there, whomever the plan gives it to.

        Args:
            elsewhere: by sample, whether the plan that has just begun gives it to another node, or to none.
        """
        away = () if self._views is None else self._views.current.away
        got = np.flatnonzero(self._got >= 0)
        for node in {*self._got[got].tolist()} - {*away}:
            self._owns(node, got[self._got[got] == node])
        if self._told is None or self._members is None:
            return
        samples = np.flatnonzero(self._holds() & ~self._told & elsewhere)
        for start in range(0, len(samples), SAMPLES_IN_A_WORD):
            self._tell({"got": samples[start : start + SAMPLES_IN_A_WORD].tolist()})
        if len(samples):
            self._note_got(self._members.own, samples)

    def _owns(self, node: int, samples: Samples) -> None:
        here = self._members is not None and node == self._members.own
        self._step(e.HeldBy(-1 if here else node, samples))

    def _note_got(self, node: int, samples: Samples) -> None:
        """A node has got samples while a plan was agreed on. Raises: ValueError."""
        if not len(self._got):
            self._got = np.full(len(self._holds()), -1, dtype=np.int16)
        if samples.min(initial=0) < 0 or samples.max(initial=0) >= len(self._got):
            raise ValueError("it holds samples that there are not")
        self._got[samples] = node
        self._owns(node, samples)
