"""The world of nodes that fail: how long a get takes and what comes of it, contents by version, messages that are lost.

In: gets and drops of nodes, the faults of a case. Out: their ends, on the heap. A sample's content is a number, its
version at the source. Pages and copies have the version that was read into them. A place refuses an old, short or
corrupt copy, as the daemon's places do (mlfs.places), and the driver then asks the source. So a reader can get old
bytes only from pages of which nobody has said yet that they are outdated.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random
from typing import Protocol

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.job import JobRun
from mlfs.lab.sim.detailed.heap import Heap
from mlfs.lab.sim.detailed.node import IN_PLACE, Lane, Node
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo
from mlfs.plan.scheduler.events import CopyLost, Evicted, FetchEnded, Kept, Landed, Outdated, Released, Resized
from mlfs.plan.scheduler.keeping import Plan
from mlfs.tree.samples import Version
from support.failures.drawing import Fault
from support.failures.invariants import Broken

LANE_S = 0.002  # a get takes about so long
HANG_S = 50.0  # a get that hangs ends after so long; everybody has given it up by then
PEER_PATIENCE_S = 0.2  # without agents: a peer that has not answered after so long has failed


class Agents(Protocol):
    """The agents of all nodes. See `support.failures.agents`."""

    def ask(self, node: Node, lane: Lane, owner: int) -> None:
        """Get the item that a lane is at from its owner; tell its end by `FailingWorld.peer_gave`."""


class Wiring(Protocol):
    """What the world asks of the run."""

    def plan_of(self, node: int) -> Plan | None:
        """What a node keeps."""

    def job_began_anew(self, node: Node, job: JobRun) -> None:
        """A job's reads fit its beginning."""


class NodeStore:
    """What a node holds, whatever its scheduler believes. All by sample.

    Attributes:
        pages: version in the page cache. copies: by place, version. used_bytes: by place.
    """

    def __init__(self, places: Sequence[PlaceInfo], sizes: memoryview) -> None:
        self.places, self.sizes = places, sizes
        self.pages: dict[int, int] = {}
        self.copies: list[dict[int, int]] = [{} for _ in places]
        self.copy_bytes: list[dict[int, int]] = [{} for _ in places]
        self.full_until_s = [0.0] * len(places)

    def used_bytes(self, place: int) -> int:
        """Of a place."""
        return sum(self.copy_bytes[place].values())

    def keep(self, sample: int, version: int, size: int, places: Sequence[int], now_s: float) -> int:
        """Keep a copy in the first place that takes it; 0 where none does."""
        for place in places:
            fits = self.used_bytes(place) + size <= self.places[place].capacity_bytes
            if fits and self.full_until_s[place] <= now_s:
                self.copies[place][sample] = version
                self.copy_bytes[place][sample] = size
                return place
        return 0

    def lose(self, place: int, sample: int) -> None:
        """A copy is gone."""
        self.copies[place].pop(sample, None)
        self.copy_bytes[place].pop(sample, None)


class FailingWorld:
    """See the module. One for all nodes of a case.

    Attributes:
        nodes: those that live, by number. stores: by node. version: of each sample at the source; all nodes are told at
            once when it changes. read_from_source: how often each sample was, by whoever.
    """

    def __init__(self, heap: Heap, random: Random, faults: Sequence[Fault], samples: int, wiring: Wiring) -> None:
        self.nodes: list[Node] = []
        self.stores: list[NodeStore] = []
        self.version = [1] * samples
        self.read_from_source = [0] * samples
        self._agents: Agents | None = None
        self.unreachable_until_s: dict[int, float] = {}
        self.slow: dict[tuple[int, int], float] = {}
        self._heap, self._random, self._wiring = heap, random, wiring
        self._of_get = {(fault.node, fault.get): fault for fault in faults if fault.get >= 0}
        self._gets: dict[int, int] = {}
        self._troubled: set[tuple[int, int]] = set()  # nodes and samples that the source failed, or kept waiting
        # Without faults copies are kept at once: whoever asks before a copy is kept would read the source again.
        self._faulty = bool(faults)

    # -- gets

    def get(self, node: Node, lane: Lane) -> None:
        """Draw what comes of a get."""
        number = self._gets[node.number] = self._gets.get(node.number, -1) + 1
        fault = self._of_get.get((node.number, number))
        kind = fault.kind if fault is not None else ""
        item, store = lane.item, self.stores[node.number]
        owner = store.places[item.place].node
        if owner >= 0 and self._agents is not None:
            self._agents.ask(node, lane, owner)
            return
        if owner >= 0:
            self._ask(node, lane, kind)
            return
        seconds = self._random.choice((0.1, 1.0, 1.0, 3.0)) * LANE_S * self.slow.get((node.number, item.place), 1.0)
        seconds = {"hang": HANG_S, "late": 0.3}.get(kind, seconds)
        if item.place == SOURCE:
            if kind or seconds > 3 * LANE_S:
                self._troubled.add((node.number, item.sample))
            self._heap.at(self._heap.now_s + seconds, self._from_source, node, lane, kind)
        else:
            self._heap.at(self._heap.now_s + seconds, self._from_copy, node, lane, kind)

    def _from_source(self, node: Node, lane: Lane, kind: str) -> None:
        item, store = lane.item, self.stores[node.number]
        if kind in ("fail", "gone", "hang", "corrupt", "lost_answer"):
            good = item.instead and store.copies[item.instead].get(item.sample) == self.version[item.sample]
            if good and kind != "hang":
                self._land(node, lane, item.instead, kind)
            else:
                error = errno.ENOENT if kind == "gone" else errno.EIO
                node.got(lane, Landed(lane.fetch.fetch, item.sample, error=error))
            return
        self.read_from_source[item.sample] += 1
        self._land(node, lane, SOURCE, kind)

    def _from_copy(self, node: Node, lane: Lane, kind: str) -> None:
        item, store = lane.item, self.stores[node.number]
        if kind == "hang":
            node.got(lane, Landed(lane.fetch.fetch, item.sample, error=errno.EIO))
        elif (
            kind in ("fail", "gone", "corrupt")
            or store.copies[item.place].get(item.sample) != self.version[item.sample]
        ):
            store.lose(item.place, item.sample)  # refused: the source has it
            self._from_source(node, lane, "")
        else:
            self._land(node, lane, item.place, kind)

    def _land(self, node: Node, lane: Lane, place: int, kind: str) -> None:
        """The bytes are there: into the page cache, told once or twice, a copy kept now or later."""
        item, store, fetch = lane.item, self.stores[node.number], lane.fetch.fetch
        sample, size = item.sample, store.sizes[item.sample]
        staged = kind != "unstaged"
        landed = Landed(fetch, sample, place, size, staged)
        if staged and node.lives and not lane.gone:
            store.pages[sample] = self.version[sample]
        came_from_afar = place == SOURCE or store.places[place].node >= 0
        if item.keep_in and came_from_afar and not lane.gone:  # what was given up keeps nothing either
            late_s = self._random.choice((0.0, 0.0, 0.01)) if self._faulty else 0.0
            at_s = self._heap.now_s + late_s
            self._heap.at(at_s, self._keep, node, lane, item.sample, self.version[sample], kind == "full")
        if kind == "told_early":
            node.tell(landed)
        if kind == "twice":
            # The end of a whole fetch is told twice only where this is all of it: it never comes too early.
            ended = [FetchEnded(fetch, [landed], 0.01)] if len(lane.fetch.items) == 1 else []
            self._heap.at(self._heap.now_s + 0.01, node.tell, landed, *ended, landed)
        node.got(lane, landed)

    def _keep(self, node: Node, lane: Lane, sample: int, version: int, full: bool) -> None:
        if not node.lives:
            return
        store = self.stores[node.number]
        places = next(item.keep_in for item in lane.fetch.items if item.sample == sample)
        place = store.keep(sample, version, store.sizes[sample], () if full else places, self._heap.now_s)
        node.tell(Kept(lane.fetch.fetch, sample, place, store.used_bytes(place)))

    # -- peers that have agents

    def join(self, agents: Agents) -> None:
        """The nodes have agents, who get what peers own."""
        self._agents = agents

    def place_of(self, node: int, peer: int) -> int:
        """The place that stands for a peer at a node."""
        return next(number for number, info in enumerate(self.stores[node].places) if info.node == peer)

    def copy_of(self, node: int, sample: int) -> Version | None:
        """The version of a node's copy of a sample."""
        store = self.stores[node]
        for copies, sizes in zip(store.copies, store.copy_bytes, strict=True):
            if sample in copies:
                return Version(sizes[sample], copies[sample])
        return None

    def page_of(self, node: int, sample: int) -> int:
        """The version that lies in a node's page cache, 0 for none."""
        return self.stores[node].pages.get(sample, 0)

    def peer_gave(self, node: Node, lane: Lane, whole: bool) -> None:
        """What became of a lane's get: a peer gave the present version, or the lane asks the source at once."""
        if whole:
            self._land(node, lane, lane.item.place, "")
        elif lane.item.instead:
            self._heap.at(self._heap.now_s + LANE_S, self._from_own_copy, node, lane)
        else:
            self._heap.at(self._heap.now_s + LANE_S, self._from_source, node, lane, "")

    def _from_own_copy(self, node: Node, lane: Lane) -> None:
        """The owner of a sample did not give it, and this node has a copy of its own."""
        item, store = lane.item, self.stores[node.number]
        if store.copies[item.instead].get(item.sample) == self.version[item.sample]:
            self._land(node, lane, item.instead, "")
        else:
            self._from_source(node, lane, "")

    # -- peers without agents: a question, an answer, either may be lost

    def reachable(self, *numbers: int) -> bool:
        """Whether messages between these nodes come through."""
        return all(self.unreachable_until_s.get(number, 0.0) <= self._heap.now_s for number in numbers)

    def _ask(self, node: Node, lane: Lane, kind: str) -> None:
        owner = self.nodes[self.stores[node.number].places[lane.item.place].node]
        question = _Question(lane)
        self._heap.at(self._heap.now_s + PEER_PATIENCE_S, self._no_answer, node, question)
        travels_s = self._random.choice((0.0, 0.001, 0.02))
        if kind in ("fail", "gone") or not self.reachable(node.number, owner.number):
            return  # lost on the way
        self._heap.at(self._heap.now_s + travels_s, self._arrives, owner, node, question, kind)
        if kind == "twice":
            self._heap.at(self._heap.now_s + travels_s + 0.005, self._arrives, owner, node, question, kind)

    def _arrives(self, owner: Node, node: Node, question: _Question, kind: str) -> None:
        if owner.lives:
            owner.asked(question.sample, lambda told: self._answered(owner, node, question, kind, told))

    def _answered(self, owner: Node, node: Node, question: _Question, kind: str, told: int) -> None:
        """The owner sends its answer, and is done with the sample when that is sent."""
        sent_s = self._heap.now_s + (0.3 if kind == "late" else self._random.choice((0.0, 0.001, 0.02)))
        lost = kind in ("lost_answer", "hang") or not self.reachable(node.number, owner.number)
        # The owner reads what it sends while it sends it: from its pages, or from its copy.
        store, sample = self.stores[owner.number], question.sample
        held = owner.held_by(sample)
        version = store.pages.get(sample, store.copies[held].get(sample) if held else None)
        sent = version if told == IN_PLACE and kind != "corrupt" else None
        self._heap.at(sent_s, self._sent, owner, node, question, kind, sent, lost)

    def _sent(self, owner: Node, node: Node, question: _Question, kind: str, version: int | None, lost: bool) -> None:
        """The answer arrives. A corrupt or outdated one is refused, and the lane that asked is told so."""
        if owner.lives:
            owner.soon(Released(question.sample))
        if lost or question.over:
            return
        question.over = True
        if not node.lives:
            return
        lane = question.lane
        if version == self.version[question.sample]:
            self._land(node, lane, lane.item.place, kind)
        else:
            node.got(lane, Landed(lane.fetch.fetch, lane.item.sample, lane.item.place, error=errno.ENOENT))

    def _no_answer(self, node: Node, question: _Question) -> None:
        if question.over:
            return
        question.over = True
        lane = question.lane
        node.got(lane, Landed(lane.fetch.fetch, lane.item.sample, lane.item.place, error=errno.ETIMEDOUT))

    # -- pages, copies, contents

    def drop(self, node: Node, samples: Sequence[int]) -> None:
        """Drop pages, in a moment."""
        seconds = self._random.choice((0.0, 0.001, 0.02))
        self._heap.at(self._heap.now_s + seconds, self._dropped, node, samples)

    def _dropped(self, node: Node, samples: Sequence[int]) -> None:
        if node.lives:
            for sample in samples:
                self.stores[node.number].pages.pop(sample, None)
        node.dropped(samples)

    def evict(self, node: Node, place: int, samples: Sequence[int]) -> None:
        """Give up copies, in a moment."""
        seconds = self._random.choice((0.0, 0.001, 0.02))
        self._heap.at(self._heap.now_s + seconds, self._evicted, node, place, samples)

    def _evicted(self, node: Node, place: int, samples: Sequence[int]) -> None:
        store = self.stores[node.number]
        for sample in samples:
            store.lose(place, sample)
        node.tell(Evicted(place, store.used_bytes(place)))

    def take_pages_back(self, node: Node, first: int) -> list[int]:
        """Every second sample from `first` on, that a node believes to be staged and nobody has open, has its pages
        taken back; returns these samples."""
        lost = [
            sample for sample in range(first, len(node.sizes), 2) if node.has_pages(sample) and not node.is_open(sample)
        ]
        for sample in lost:
            self.stores[node.number].pages.pop(sample, None)
        return lost

    def lose_copy(self, node: Node, sample: int) -> None:
        """A node's copy is found to be gone."""
        for place in range(len(self.stores[node.number].copies)):
            self.stores[node.number].lose(place, sample)
        node.tell(CopyLost(sample))

    def change(self, sample: int, size: int) -> None:
        """A sample changes at the source, and all nodes are told."""
        self.version[sample] += 1
        for node in self.nodes:
            old, sizes = node.sizes[sample], self.stores[node.number].sizes
            sizes[sample] = size
            if node.lives:
                node.tell(*([Resized(sample, old, size)] if size != old else []), Outdated(sample))

    def fast_again(self, node: int, place: int) -> None:
        """A place that was slow is so no more."""
        self.slow.pop((node, place), None)

    # -- what readers are given

    def check_refusal(self, node: Node, sample: int) -> None:
        """A reader was refused. That is right only where the source had failed, or was late."""
        if (node.number, sample) not in self._troubled:
            raise Broken(f"node {node.number}: sample {sample} is refused, and the source would have given it")

    def check_pages(self, node: Node, sample: int, least: int) -> None:
        """A reader reads pages: they must be there, of the version `least` or a newer one.

        Where the pages were taken back the reader sends READ requests, which the daemon answers from the source
        (mountd.handlers).
        """
        version = self.stores[node.number].pages.get(sample)
        if version is None and node.has_pages(sample):
            raise Broken(f"node {node.number}: sample {sample} is said to be in place, and is not")
        if version is not None and version < least:
            raise Broken(f"node {node.number}: sample {sample} is read as it was: {version}, it is {least} now")

    # -- see World

    def load_epoch(self, node: Node, job: JobRun, epoch: int) -> EpochIndex | None:
        """The order of an epoch, at once."""
        return job.load_epoch(epoch)

    def plan(self, node: Node) -> Plan | None:
        """What the node keeps."""
        return self._wiring.plan_of(node.number)

    def begins_anew(self, node: Node, job: JobRun) -> None:
        """Another run of the script: the job is installed again."""
        self._wiring.job_began_anew(node, job)


class _Question:
    """What a lane asked of a peer. over: the lane has its answer, or has given up."""

    __slots__ = ("lane", "over", "sample")

    def __init__(self, lane: Lane) -> None:
        self.lane, self.sample, self.over = lane, lane.item.sample, False
