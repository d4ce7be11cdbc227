"""One node's scheduler on the event heap with given durations, and a record of all that it was told and decided.

In: a scheduler, readers, how long each get and each drop takes. Out: a trace, step by step. The daemon's driver, given
the same durations under trio's mock clock, is held to the same commands (tests/engine/test_one_mind.py).

What is told when, so that another driver can do the same:

- `first` at 0 s, in one step. A job's epochs are known, and Planned is told, in the step after the one that asked.
- A reader opens a sample: ReadsSeen; and Waits in a step of its own, unless the table says STAGED or RECENT; Touched
  before that where it says DROPPING. Told Answer, it has read and closed the sample at once: Opened, if it has waited,
  and Released. It opens the next one `think_s` later.
- ReadsSeen, Opened and Released are handed in together, EVENTS_DELAY_S after the first of them came, in a step of
  their own; reads of samples in place and releases that follow each other are one ReadsSeen.
- A fetch gets its items one after the other, from the step on that commanded it; the end of the last is its end:
  FetchEnded, in a step with Kept for all of them. Landed is told before, at an item's end, if Recall came too late for
  it. Kept of what was fetched for a reader is told KEEP_DELAY_S after the first of such a fetch's end.
- Copies are kept in the first place of `keep_in`. Every get succeeds and is staged.
- A drop takes what the table of durations says, then Dropped in a step of its own. TimePassed comes at its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.job import JobRun
from mlfs.lab.sim.detailed.heap import Heap
from mlfs.lab.sim.detailed.node import Lane, Node
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.keeping import Plan
from mlfs.plan.scheduler.scheduler import Scheduler

Durations = Callable[[int, int], float]
"""Seconds of a get, by the fetch's number and the sample; of a drop, by `DROP` and its first sample."""
DROP: Final = 0
MOST_EVENTS: Final = 1_000_000


class OneReader(NamedTuple):
    """A process that reads these samples, one after the other."""

    process: int
    parent: int
    samples: Sequence[int]
    begins_s: float = 0.0
    think_s: float = 0.001


class Step(NamedTuple):
    """One step of the scheduler: when, what it was told, what it commanded."""

    at_s: float
    events: tuple[e.Event, ...]
    commands: tuple[c.Command, ...]


def drawn_durations(seed: int, shortest_s: float = 0.0005, longest_s: float = 0.02) -> Durations:
    """Durations that depend on nothing but the seed and what they are for, no two of them alike."""

    def duration(fetch: int, sample: int) -> float:
        return shortest_s + Random(f"{seed} {fetch} {sample}").random() * (longest_s - shortest_s)

    return duration


def run_node(
    scheduler: Scheduler,
    places: Sequence[PlaceInfo],
    readers: Sequence[OneReader],
    durations: Durations,
    first: Sequence[e.Event],
    plan: Plan | None = None,
) -> list[Step]:
    """Run a node alone until nothing is to come.

    Args:
        places: as the scheduler has them; no peers. first: what the node is told at the begin: its jobs.
        plan: what it is told to keep whenever it has its reads counted.
    """
    heap, trace = Heap(), list[Step]()

    def record(events: Sequence[e.Event], commands: Sequence[c.Command]) -> None:
        trace.append(Step(heap.now_s, tuple(events), tuple(commands)))

    node = Node(0, heap, scheduler, places, _World(heap, durations, plan), record)
    node.tell(*first)
    for reader in readers:
        heap.at(reader.begins_s, _Reading(heap, node, reader).go_on)
    while heap.step():
        assert heap.happened < MOST_EVENTS, "the node comes to rest"
    return trace


class _Reading:
    """A reader at work."""

    def __init__(self, heap: Heap, node: Node, reader: OneReader) -> None:
        self._heap, self._node, self._reader = heap, node, reader
        self._samples = iter(reader.samples)
        self._sample = -1

    def go_on(self) -> None:
        self._sample = next(self._samples, -1)
        reader = self._reader
        if self._sample >= 0 and self._node.open(self._sample, reader.process, reader.parent, self._told):
            self._close()

    def _told(self, told: int) -> None:
        assert told <= 0, "no get fails here"
        self._node.soon(e.Opened(self._sample, self._reader.process, self._heap.now_s))
        self._close()

    def _close(self) -> None:
        self._node.soon(e.Released(self._sample))
        self._heap.at(self._heap.now_s + self._reader.think_s, self.go_on)


class _World:
    """Gets and drops that take as long as they are said to."""

    def __init__(self, heap: Heap, durations: Durations, plan: Plan | None) -> None:
        self._heap, self._durations, self._plan = heap, durations, plan

    def get(self, node: Node, lane: Lane) -> None:
        seconds = self._durations(lane.fetch.fetch, lane.item.sample)
        self._heap.at(self._heap.now_s + seconds, self._got, node, lane)

    def _got(self, node: Node, lane: Lane) -> None:
        item = lane.item
        place = node.came_from(item)
        landed = e.Landed(lane.fetch.fetch, item.sample, place, node.sizes[item.sample], True)
        node.got(lane, landed, node.to_keep(item, place))

    def drop(self, node: Node, samples: Sequence[int]) -> None:
        self._heap.at(self._heap.now_s + self._durations(DROP, samples[0]), node.dropped, samples)

    def evict(self, node: Node, place: int, samples: Sequence[int]) -> None:
        self._heap.at(self._heap.now_s + self._durations(DROP, samples[0]), node.evicted, place, samples)

    def load_epoch(self, node: Node, job: JobRun, epoch: int) -> EpochIndex | None:
        return job.load_epoch(epoch)

    def plan(self, node: Node) -> Plan | None:
        return self._plan

    def begins_anew(self, node: Node, job: JobRun) -> None:
        raise AssertionError(f"job {job.name}: readers that follow their order never begin anew")
