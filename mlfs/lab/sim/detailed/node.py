"""A node of a simulated cluster: carries out what its scheduler commands, and tells it what came of it.

In: commands of a scheduler, readers who open and close samples, peers who ask. Out: events for the scheduler, answers
for readers and peers. All that takes time is the world's affair (`World`): it moves bytes and drops pages, in modelled
time (mlfs.lab.sim.detailed.cluster) or in drawn time and with drawn faults (tests/lab/sim).

The life of a sample that a reader finds in place: `open` says so, and tells the scheduler a moment later. For one that
is not, `open` hands the scheduler a `_Caller`; its Fetch gets a `Lane`, which asks the world for one item after the
other; the last one's end is told as FetchEnded; the scheduler's Answer calls the reader back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.lab.sim.detailed.heap import Heap
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.keeping import STORES, Plan
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State

# Reads and releases are handed to the scheduler together, at most so late: as the daemon does (mlfs.engine.engine).
EVENTS_DELAY_S: Final = 0.01
# Copies of what was fetched for readers are kept so late: as the daemon does (mlfs.engine.write_behind).
KEEP_DELAY_S: Final = 0.02

IN_PLACE: Final = 0
"""What a waiting reader or peer is told when the sample is in place; above 0: an errno."""
DIRECT: Final = -1
"""He is to read the source by himself."""
UNSTAGED: Final = -2
"""He is to read the copy that the node holds by himself."""

Told = Callable[[int], None]


class _Caller(e.Waiter):
    """Whoever waits, and is called back."""

    __slots__ = ("over",)

    def __init__(self, sample: int, since_s: float, is_peer: bool, over: Told) -> None:
        super().__init__(sample, since_s, is_peer)
        self.over = over


@dataclass(eq=False, slots=True)
class Lane:
    """A thread that is at a fetch: one item after the other.

    Attributes:
        index: the item that it is at. landed: what became of those before. kept: copies to
            be made, and where. recalled: samples that
            were taken back. awaited: samples that somebody waits for: their end is told at once. gone: nobody wants to
            hear of it any more.
    """

    fetch: c.Fetch
    began_s: float
    index: int = -1
    landed: list[e.Landed] = field(default_factory=list)
    kept: list[tuple[e.Landed, int]] = field(default_factory=list)
    recalled: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)
    gone: bool = False

    @property
    def item(self) -> c.Item:
        return self.fetch.items[self.index]


class World(Protocol):
    """The surroundings of a node: a simulated cluster, or those that tests draw and break."""

    def get(self, node: Node, lane: Lane) -> None:
        """Get the item that a lane is at; tell its end by `node.got`."""

    def drop(self, node: Node, samples: Sequence[int]) -> None:
        """Drop pages; tell their end by `node.dropped`."""

    def evict(self, node: Node, place: int, samples: Sequence[int]) -> None:
        """Have a place give up copies; tell its end by `node.evicted`."""

    def load_epoch(self, node: Node, job: JobRun, epoch: int) -> EpochIndex | None:
        """The order of an epoch, None if it cannot be known."""

    def plan(self, node: Node) -> Plan | None:
        """Takes over which samples the node keeps."""

    def begins_anew(self, node: Node, job: JobRun) -> None:
        """A job's reads fit its beginning."""


class Node:
    """One node: its scheduler, its places and its ranks.

    Attributes:
        number: its own in the cluster. lives: whether it runs. used_bytes: of each place.
        steps: of its scheduler so far.

    Args:
        trace: called with each batch of events and the commands that it led to, where somebody wants to know.
    """

    def __init__(
        self,
        number: int,
        heap: Heap,
        scheduler: Scheduler,
        places: Sequence[PlaceInfo],
        world: World,
        trace: Callable[[Sequence[e.Event], Sequence[c.Command]], None] | None = None,
    ) -> None:
        self.number = number
        self.lives = True
        self.scheduler = scheduler
        self.used_bytes = [place.used_bytes for place in places]
        self.steps = 0
        self._heap, self._world, self._trace = heap, world, trace
        self._state, self._sizes = scheduler.table.state, scheduler.table.sizes
        self._stores = [place.kind in STORES for place in places]
        self._footprints = [place.footprint_bytes for place in places]
        self._inbox: list[e.Event] = []
        self._busy = False
        self._soon: list[e.Event] = []
        self._as_good_as_kept: dict[int, int] = {}  # samples that wait to be kept, and where
        self._keeping: list[tuple[e.Landed, int]] = []
        self._lanes: dict[int, Lane] = {}
        self._waiting: set[_Caller] = set()
        self._alarm = 0
        self._carry_out: dict[type, Callable[[Any], None]] = {
            c.Fetch: self._fetch,
            c.Abandon: self._abandon,
            c.Recall: self._recall,
            c.Drop: self._drop,
            c.Evict: self._evict,
            c.Answer: self._answer,
            c.OpenDirect: self._open_direct,
            c.Refuse: self._refuse,
            c.LoadEpoch: self._load_epoch,
            c.CountReads: self._count_reads,
            c.ForgetReads: self._count_reads,
            c.AnotherLeads: self._another_leads,
            c.JobFailed: self._job_failed,
            c.WakeAt: self._wake_at,
        }

    # -- what others may see

    @property
    def sizes(self) -> memoryview:
        """Bytes by sample."""
        return self._sizes

    def held_by(self, sample: int) -> int:
        """The place of this node that holds a copy, 0 for none."""
        return self.scheduler.table.held_by[sample]

    def came_from(self, item: c.Item) -> int:
        """The place that an item's bytes come from: what waits to be kept, or was kept since it was decided to ask the
        source, need not come from there."""
        return self._as_good_as_kept.get(item.sample, 0) or self.scheduler.place_of(item)

    def has_pages(self, sample: int) -> bool:
        return self._state[sample] in (State.STAGED, State.RECENT)

    def is_open(self, sample: int) -> bool:
        return sample in self.scheduler.table.readers

    @property
    def waiting(self) -> int:
        """How many readers and nodes were not answered yet."""
        return len(self._waiting)

    # -- events in, commands out

    def tell(self, *events: e.Event) -> None:
        """Hand events to the scheduler and carry out what it decides; what comes of that goes on in its turn."""
        if not self.lives:
            return
        self._inbox += events
        if self._busy or not self._inbox:
            return
        self._busy = True
        carry_out, step = self._carry_out, self.scheduler.step
        while self._inbox:
            batch, self._inbox = self._inbox, []
            self.steps += 1
            commands = step(self._heap.now_s, batch)
            if self._trace is not None:
                self._trace(batch, commands)
            for command in commands:
                handler = carry_out.get(type(command))
                if handler is not None and self.lives:
                    handler(command)
        self._busy = False

    def finds(self, place: int, samples: Sequence[int]) -> None:
        """A place has copies of an earlier run."""
        if samples:
            self.used_bytes[place] += sum(self._footprints[place](self._sizes[sample]) for sample in samples)
            self.tell(e.CopiesFound(place, samples), e.Holds(place, self.used_bytes[place]))

    def stop(self) -> None:
        """The node is gone: nothing is told to it, nobody is answered by it."""
        self.lives = False
        self._inbox.clear()
        self._soon.clear()
        self._waiting.clear()

    # -- readers and peers

    def open(self, sample: int, process: int, parent: int, over: Told) -> bool:
        """A process opens a sample: whether it is in place; else `told` is called once, with IN_PLACE, an errno, or
        what to do. A reader who goes on then says Opened, and Released when he closes it; one who does not says
        Refused."""
        state = self._state[sample]
        if state == State.DROPPING:
            self.tell(e.Touched(sample))
            state = self._state[sample]
        in_place = state in (State.STAGED, State.RECENT)
        self.soon(e.ReadsSeen([Read(sample, process, parent, self._heap.now_s)], waits=not in_place))
        if in_place:
            return True
        self._waits(_Caller(sample, self._heap.now_s, False, over))
        return False

    def _waits(self, caller: _Caller) -> None:
        self._waiting.add(caller)
        self.tell(e.Waits(caller))

    def soon(self, *events: e.Event) -> None:
        """Events of reads and releases: the scheduler hears of them a moment later, together."""
        if not self._soon:
            self._heap.at(self._heap.now_s + EVENTS_DELAY_S, self._hand_in)
        self._soon += events

    def _hand_in(self) -> None:
        events, self._soon = self._soon, []
        self.tell(*e.together(events))

    def asked(self, sample: int, over: Told) -> None:
        """Another node asks for a sample; it says `Released` when it has it."""
        self._waits(_Caller(sample, self._heap.now_s, True, over))

    def _answer(self, command: c.Answer) -> None:
        self._call_back(command.waiter, IN_PLACE)

    def _open_direct(self, command: c.OpenDirect) -> None:
        self._call_back(command.waiter, UNSTAGED if command.unstaged else DIRECT)

    def _refuse(self, command: c.Refuse) -> None:
        self._call_back(command.waiter, command.error)

    def _call_back(self, waiter: e.Waiter, how: int) -> None:
        """Tell whoever waits. A second answer, which must not be, finds nobody: KeyError."""
        caller = cast(_Caller, waiter)
        self._waiting.remove(caller)
        caller.over(how)

    # -- fetches

    def _fetch(self, command: c.Fetch) -> None:
        lane = self._lanes[command.fetch] = Lane(command, self._heap.now_s)
        self._next(lane)

    def _next(self, lane: Lane) -> None:
        """Go on to the lane's next item that was not taken back, or tell its end."""
        items = lane.fetch.items
        lane.index += 1
        while lane.index < len(items) and items[lane.index].sample in lane.recalled:
            lane.index += 1
        if lane.index < len(items):
            self._world.get(self, lane)
            return
        self._lanes.pop(lane.fetch.fetch, None)
        wall_s = self._heap.now_s - lane.began_s
        if lane.fetch.waited_for:  # no reader waits for a copy to be kept
            self.tell(e.FetchEnded(lane.fetch.fetch, lane.landed, wall_s))
            self._keep_soon(lane.kept)
        else:
            self.tell(e.FetchEnded(lane.fetch.fetch, lane.landed, wall_s), *self._kept(lane.kept))

    def _kept(self, copies: list[tuple[e.Landed, int]]) -> list[e.Kept]:
        """Copies are kept now."""
        kept = []
        for landed, place in copies:
            self._as_good_as_kept.pop(landed.sample, None)
            self.used_bytes[place] += self._footprints[place](landed.size_bytes) if place else 0
            kept.append(e.Kept(landed.fetch, landed.sample, place, self.used_bytes[place]))
        return kept

    def _keep_soon(self, kept: list[tuple[e.Landed, int]]) -> None:
        """Keeps together, a moment later, what was fetched for readers."""
        if kept and not self._keeping:
            self._heap.at(self._heap.now_s + KEEP_DELAY_S, self._keep)
        self._keeping += kept

    def _keep(self) -> None:
        copies, self._keeping = self._keeping, []
        self.tell(*self._kept(copies))

    def got(self, lane: Lane, landed: e.Landed, kept_in: int = -1) -> None:
        """The item that a lane is at has come to its end.

        Args:
            kept_in: the place that keeps a copy, 0 for none that could, below 0 where none was to.
        """
        lane.landed.append(landed)
        if lane.gone or not self.lives:
            return
        if kept_in >= 0:
            lane.kept.append((landed, kept_in))
            self._as_good_as_kept[landed.sample] = kept_in
        if landed.sample in lane.awaited:
            self.tell(landed)
        self._next(lane)

    def to_keep(self, item: c.Item, came_from: int) -> int:
        """The first of the places that shall keep what came from there, below 0 if none is to (see `got`)."""
        return item.keep_in[0] if item.keep_in and not self._stores[came_from] else -1

    def _abandon(self, command: c.Abandon) -> None:
        lane = self._lanes.pop(command.fetch, None)
        if lane is not None:
            lane.gone = True

    def _recall(self, command: c.Recall) -> None:
        lane = self._lanes.get(command.fetch)
        if lane is None:
            return
        sample = command.sample
        if sample not in lane.recalled and any(item.sample == sample for item in lane.fetch.items[lane.index + 1 :]):
            lane.recalled.add(sample)
            self.tell(e.Recalled(command.fetch, sample))
            return
        lane.awaited.add(sample)
        self.tell(*(landed for landed in lane.landed if landed.sample == sample))

    # -- pages, jobs, time

    def _drop(self, command: c.Drop) -> None:
        self._world.drop(self, command.samples)

    def _evict(self, command: c.Evict) -> None:
        self._world.evict(self, command.place, command.samples)

    def evicted(self, place: int, samples: Sequence[int]) -> None:
        """Copies were given up."""
        footprint = self._footprints[place]
        self.used_bytes[place] -= sum(footprint(self._sizes[sample]) for sample in samples)
        self.tell(e.Evicted(place, self.used_bytes[place]))

    def dropped(self, samples: Sequence[int]) -> None:
        """Pages are gone."""
        self.tell(e.Dropped(samples))

    def _load_epoch(self, command: c.LoadEpoch) -> None:
        streams = self._world.load_epoch(self, command.job, command.epoch)
        if streams is None:
            self.tell(e.EpochUnknown(command.job, command.epoch))
        else:
            self.tell(e.EpochKnown(command.job, streams))

    def _count_reads(self, _: c.CountReads | c.ForgetReads) -> None:
        self.tell(e.Planned(self._world.plan(self)))

    def _another_leads(self, command: c.AnotherLeads) -> None:
        self._world.begins_anew(self, command.job)

    def _job_failed(self, command: c.JobFailed) -> None:
        raise command.error

    def _wake_at(self, command: c.WakeAt) -> None:
        self._alarm += 1
        self._heap.at(command.at_s, self._awake, self._alarm)

    def _awake(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.tell(e.TimePassed())
