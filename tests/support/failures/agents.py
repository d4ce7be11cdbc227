"""The agents of a simulated cluster: what daemons run to get samples from each other, on simulated time.

In: gets of a node's lanes that are to come from another node; faults that strike agents, links and messages. Out: the
samples' ends, told to the world; nodes that are lost and back, told to the schedulers; `Broken` for what must not be.
The daemons' own code runs here: `Desk` and `Landing` of a server, `Agent` and `Liveness` of an agent, over the twin of
the transport in memory. What they would wait for is simulated: the packets between a server and its agent, the messages
between agents, and the server's side of `mlfs.engine.peering`.

A sample's way: `ask` has the desk say FETCH to the agent. The owner's agent finds the sample on its shelf, or asks its
server (WANTED), whose scheduler gets it. The bytes land, the desk is told ENDED, and the lane goes on: with the bytes,
or to the source where they did not come. A lane waits no longer than the desk would.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from mmap import mmap
from random import Random
from typing import Protocol

from mlfs.lab.sim.detailed.heap import Heap
from mlfs.lab.sim.detailed.node import IN_PLACE, Lane, Node
from mlfs.peers import link
from mlfs.peers.agent import Agent
from mlfs.peers.desk import AGENT_PATIENCE_S, Desk
from mlfs.peers.landing import Landing
from mlfs.peers.link import Ended, Ready
from mlfs.peers.liveness import BEATS, Liveness
from mlfs.peers.memory import MemoryNetwork
from mlfs.places.checksum import checksum
from mlfs.places.place import Want
from mlfs.plan.scheduler.events import PeerBack, PeerLost, Released
from mlfs.tree.samples import Version
from support.failures.drawing import AgentsCase, Fault
from support.failures.invariants import Broken

# A packet between a server and its agent takes so long, and an agent looks at the network so long after something came.
PACKET_S = 0.0001
# How much later readers may be served than patience and the beats of agents allow: what else takes time on the way.
SLACK_S = 0.1
# When all readers are through agents go on for so many patiences: enough to notice who is lost and who is back.
CALM = 6


class World(Protocol):
    """What agents ask of the world. See `support.failures.world`."""

    nodes: list[Node]
    version: list[int]

    def place_of(self, node: int, peer: int) -> int:
        """The place that stands for a peer at a node."""

    def copy_of(self, node: int, sample: int) -> Version | None:
        """The version of a node's copy of a sample."""

    def page_of(self, node: int, sample: int) -> int:
        """The version that lies in a node's page cache, 0 for none."""

    def peer_gave(self, node: Node, lane: Lane, whole: bool) -> None:
        """What became of a lane's get: the bytes of the present version came from a peer, or nothing did."""


def content(sample: int, version: Version) -> bytes:
    """The right bytes of a version of a sample."""
    word = b"%d of %d, " % (sample, version.mtime_ns)
    return (word * (version.size_bytes // len(word) + 1))[: version.size_bytes]


@dataclass(slots=True)
class Counted:
    """What happened in a run.

    Attributes:
        here, missing, lost: ends of samples that were asked of peers. back: peers that were lost and answered again.
        longest_s: the longest time that a lane waited for a peer.
    """

    here: int = 0
    missing: int = 0
    lost: int = 0
    back: int = 0
    longest_s: float = 0.0

    def ended(self, end: Ended) -> None:
        """A request has come to an end."""
        self.here += end is Ended.HERE
        self.missing += end is Ended.MISSING
        self.lost += end is Ended.LOST

    def came_back(self) -> None:
        """A peer that was lost answers."""
        self.back += 1

    def waited(self, seconds: float) -> None:
        """A lane has waited for a peer."""
        self.longest_s = max(self.longest_s, seconds)


@dataclass(eq=False, slots=True)
class _Waits:
    """Lanes that wait for a sample of a peer, since when, and the number of the request."""

    number: int
    since_s: float
    lanes: list[Lane] = field(default_factory=list)


class Seat:
    """One node's server, as far as it deals with peers, and its agent.

    Attributes:
        agent_lives: False once the agent or its server was killed: for good, as an MPI job takes nobody back.
        agent_wakes_s, server_wakes_s: until when a stopped one sleeps. lost: peers that its server knows to be lost.
    """

    def __init__(self, agents: Agents, number: int) -> None:
        self.agents, self.number = agents, number
        self.agent_lives = True
        self.agent_wakes_s = self.server_wakes_s = 0.0
        self.lost: set[int] = set()
        case = agents.case
        self.landing = Landing(case.landing_bytes)
        memory = memoryview(mmap(self.landing.fd, self.landing.size_bytes))
        self.landing.handed_over()
        self.desk = Desk(self.landing, self._send, case.patience_s)
        self.liveness = Liveness(agents.count, number, case.patience_s)
        self.agent = Agent(agents.network.port(number), self, memory, self._to_server, self.liveness)
        self._wants: dict[int, Want] = {}  # under way, by the request's number
        self._waiting: dict[Want, _Waits] = {}
        self._lost_first: set[int] = set()  # requests that ended LOST: OFF is to follow
        self._last = 0

    @property
    def node(self) -> Node:
        """The node whose server this is."""
        return self.agents.world.nodes[self.number]

    # -- a server and its agent say something to each other

    def _send(self, packet: bytes) -> bool:
        """The server's desk has something for the agent."""
        if not self.agent_lives:
            return False
        read = link.unpack(packet)
        if read.kind is link.PacketKind.FETCH:
            for number, owner, sample, _, size_bytes, mtime_ns, ctime_ns, _ in read.records.tolist():
                self._wants[number] = Want(owner, sample, Version(size_bytes, mtime_ns, ctime_ns))
                self._last = number
        self.agents.heap.at(self.agents.heap.now_s + PACKET_S, self._agent_hears, packet)
        return True

    def _agent_hears(self, packet: bytes) -> None:
        if not self.agent_lives:
            return
        now_s = self.agents.heap.now_s
        if now_s < self.agent_wakes_s:
            self.agents.heap.at(self.agent_wakes_s, self._agent_hears, packet)
        else:
            self.agent.packet(link.unpack(packet), now_s)

    def _to_server(self, packet: bytes) -> None:
        self.agents.heap.at(self.agents.heap.now_s + PACKET_S, self._server_hears, packet)

    def _server_hears(self, data: bytes) -> None:
        if not self.agent_lives:
            return
        now_s = self.agents.heap.now_s
        if now_s < self.server_wakes_s:
            self.agents.heap.at(self.server_wakes_s, self._server_hears, data)
            return
        packet = link.unpack(data)
        if packet.kind is link.PacketKind.ENDED:
            self._ended(packet.records.tolist())
        elif packet.kind is link.PacketKind.WANTED:
            for token, sample, size_bytes, mtime_ns, ctime_ns in packet.records.tolist():
                self._wish(token, sample, Version(size_bytes, mtime_ns, ctime_ns))
        elif packet.kind is link.PacketKind.FREE:
            for offset, size_bytes in packet.records.tolist():
                self.landing.release(offset, size_bytes)
        elif packet.kind is link.PacketKind.LOST:
            self._lose(packet.records["node"].tolist())
        elif packet.kind is link.PacketKind.BACK:
            for peer in packet.records["node"].tolist():
                self.lost.discard(peer)
                self.agents.counted.came_back()
                self.node.tell(PeerBack(self.agents.world.place_of(self.number, peer)))

    def _lose(self, peers: list[int]) -> None:
        for peer in set(peers) - self.lost:
            self.lost.add(peer)
            self.node.tell(PeerLost(self.agents.world.place_of(self.number, peer)))

    def killed(self) -> None:
        """The agent is gone: its server hears that at once, and goes on alone."""
        self.agent_lives = False
        self.desk.close()
        self._wants.clear()
        for want in list(self._waiting):
            self.desk.no_longer([want])
            self._go_on(want, False)
        self._lose([peer for peer in range(self.agents.count) if peer != self.number])

    # -- what lanes want of peers

    def ask(self, lane: Lane, want: Want) -> None:
        """A lane wants a sample. It goes on when that has come to its end, or after the desk's patience."""
        now_s = self.agents.heap.now_s
        waits = self._waiting.get(want)
        if waits is None:
            asked = self.desk.ahead([want]) if self.agent_lives else []
            if not asked:  # no room to land, or no agent
                self.agents.heap.at(now_s, self.agents.world.peer_gave, self.node, lane, False)
                return
            waits = self._waiting[want] = _Waits(self._last, now_s)
            patience_s = self.agents.case.patience_s + AGENT_PATIENCE_S
            self.agents.heap.at(now_s + patience_s, self._out_of_patience, want, waits)
        waits.lanes.append(lane)

    def _out_of_patience(self, want: Want, waits: _Waits) -> None:
        if self._waiting.get(want) is waits:
            self.desk.no_longer([want])
            self._go_on(want, False)

    def _ended(self, records: list[tuple[int, int]]) -> None:
        """Requests have come to their end: each once, and once more where landing memory comes back late."""
        over: list[tuple[int, Want]] = []
        for number, how in records:
            end = Ended(how)
            if (number in self._wants) == (end is Ended.OFF) or (number in self._lost_first) != (end is Ended.OFF):
                raise Broken(f"node {self.number}: request {number} ends with {end!r}, which does not follow")
            (self._lost_first.add if end is Ended.LOST else self._lost_first.discard)(number)
            if end is not Ended.OFF:
                over.append((number, self._wants.pop(number)))
            self.agents.count_end(self.number, end)
        self.desk.ended(records)
        for number, want in over:
            waits = self._waiting.get(want)
            if waits is not None and waits.number == number:
                data = self.desk.get(want)  # over, so it does not wait
                if data is not None and bytes(data) != content(want.sample, want.version):
                    raise Broken(f"node {self.number}: node {want.node} gave wrong bytes of sample {want.sample}")
                self._go_on(want, data is not None)

    def _go_on(self, want: Want, whole: bool) -> None:
        """Those who wait for a sample go on; what came of a version that is past by now is no use to them."""
        waits = self._waiting.pop(want)
        self.agents.counted.waited(self.agents.heap.now_s - waits.since_s)
        whole = whole and want.version.mtime_ns == self.agents.world.version[want.sample]
        for lane in waits.lanes:
            self.agents.world.peer_gave(self.node, lane, whole)

    # -- what peers want of this node

    def find(self, sample: int, version: Version) -> tuple[memoryview, int] | None:
        """The shelf: a copy that the agent finds by itself."""
        if self.agents.world.copy_of(self.number, sample) != version:
            return None
        data = content(sample, version)
        return memoryview(data), checksum(data, sample, version)

    def _wish(self, token: int, sample: int, version: Version) -> None:
        """The server is asked for what is not on the shelf. As in `mlfs.engine.giving`."""
        if not self.node.lives:
            return
        sizes = self.node.sizes
        known = 0 <= sample < len(sizes) and Version(sizes[sample], self.agents.world.version[sample])
        if version != known:
            self._answer(token, Ready.MISSING, 0, 0)
            return

        def told(how: int) -> None:
            if how != IN_PLACE:
                self._answer(token, Ready.MISSING, 0, 0)
                self.node.soon(Released(sample))
            else:
                self.agents.heap.at(self.agents.heap.now_s + PACKET_S, self._lay_out, token, sample, version)

        self.node.asked(sample, told)

    def _lay_out(self, token: int, sample: int, version: Version) -> None:
        """The sample is in place here: its bytes are put where the agent can send them from."""
        staged = self.agents.world.page_of(self.number, sample) == version.mtime_ns
        if self.agents.world.copy_of(self.number, sample) == version:
            self._answer(token, Ready.LOOK, 0, 0)
        elif staged and (offset := self.landing.reserve(version.size_bytes)) is not None:
            self.landing.write(offset, content(sample, version))
            self._answer(token, Ready.LIES, offset, version.size_bytes)
        else:
            self._answer(token, Ready.MISSING, 0, 0)
        if self.node.lives:
            self.node.soon(Released(sample))

    def _answer(self, token: int, how: Ready, offset: int, size_bytes: int) -> None:
        self._send(link.pack(link.PacketKind.READY, [(token, how, offset, size_bytes)])[0])

    # -- time

    def look(self) -> None:
        """The agent looks at what has come."""
        if self.agent_lives and self.agents.heap.now_s >= self.agent_wakes_s:
            self.agent.poll(self.agents.heap.now_s)

    def beat(self) -> None:
        """The agent's own time passes."""
        if not self.agent_lives:
            return
        now_s = self.agents.heap.now_s
        if now_s >= self.agent_wakes_s:
            self.agent.poll(now_s)
            self.agent.beat(now_s)
        if self.agents.goes_on:
            self.agents.heap.at(now_s + self.liveness.beat_s, self.beat)

    # -- at the end

    def check_end(self, others: list[int]) -> None:
        """Nothing is under way, all landing memory is free, who lives is lost to nobody. Raises Broken."""
        if self._waiting:
            raise Broken(f"node {self.number}: lanes wait for {list(self._waiting)} at the end")
        if not self.agent_lives:
            return
        statistics = self.agent.statistics()
        left = {
            "requests at the desk": self.desk.under_way,
            "bytes of landing memory in use": self.landing.size_bytes - self.landing.free_bytes,
            "samples for which the agent waits, or others wait": int(self.agent.waits),
            "requests of which the server never heard the end": len(self._wants) + len(self._lost_first),
            "samples got and not told": statistics.got - self.agents.here_by[self.number],
        }
        for what, count in left.items():
            if count:
                raise Broken(f"node {self.number}: at the end there are {count} {what}")
        forgotten = (self.lost | self.liveness.lost) & set(others)
        if forgotten:
            raise Broken(f"node {self.number}: nodes {sorted(forgotten)} answer again, and are taken for lost")


class Agents:
    """See the module."""

    def __init__(self, heap: Heap, random: Random, case: AgentsCase, nodes: int, world: World) -> None:
        self.heap, self.case, self.count, self.world = heap, case, nodes, world
        self.counted = Counted()
        self.here_by = [0] * nodes
        self.goes_on = True
        self.garbled_until_s = self.spoilt_until_s = self.slow_until_s = 0.0
        self._random = random
        self._free_at_s: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.network = MemoryNetwork(nodes, self._later, self._spoil, self._garble)
        self._cuts: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.seats = [Seat(self, number) for number in range(nodes)]
        for seat in self.seats:
            heap.at(random.random() * seat.liveness.beat_s, seat.beat)

    def ask(self, node: Node, lane: Lane, owner: int) -> None:
        """See `Seat.ask`."""
        sample = lane.item.sample
        version = Version(node.sizes[sample], self.world.version[sample])
        self.seats[node.number].ask(lane, Want(owner, sample, version))

    def count_end(self, number: int, end: Ended) -> None:
        """A request of a node has come to an end."""
        self.counted.ended(end)
        self.here_by[number] += end is Ended.HERE

    # -- the network

    def _later(self, source: int, to: int, size_bytes: int, arrive: Callable[[], None]) -> None:
        """Whatever goes from one node to another arrives in its order, after a while."""
        slowest_s = self.case.slowest_s * (20 if self.heap.now_s < self.slow_until_s else 1)
        at_s = max(self._free_at_s[source, to], self.heap.now_s + self._random.random() * slowest_s)
        self._free_at_s[source, to] = at_s
        self.heap.at(at_s, arrive)
        self.heap.at(at_s + PACKET_S, self.seats[to].look)

    def _spoil(self, data: bytes) -> bytes:
        """The bytes of a sample on their way: now and then some are changed."""
        if self.heap.now_s >= self.spoilt_until_s or not data or self._random.random() < 0.5:
            return data
        return _changed(data, self._random)

    def _garble(self, message: bytes) -> bytes:
        """A message on its way: now and then it is changed."""
        if self.heap.now_s >= self.garbled_until_s or self._random.random() < 0.7:
            return message
        return _changed(message, self._random)

    # -- faults

    def strike(self, fault: Fault, until_s: float) -> None:
        """A fault of `drawing.OF_AGENTS` strikes."""
        seat = self.seats[fault.node]
        other = (fault.node + 1 + fault.which % (self.count - 1)) % self.count
        if fault.kind == "kill_agent":
            self.kill(fault.node)
        elif fault.kind == "kill_agents":  # the launcher of the MPI job dies, and takes all along
            for number in range(self.count):
                self.kill(number)
        elif fault.kind == "agent_sleeps":
            seat.agent_wakes_s = until_s
            self.heap.at(until_s, seat.look)
        elif fault.kind == "server_sleeps":
            seat.server_wakes_s = until_s
        elif fault.kind == "link_cut":
            ways = [(fault.node, other), (other, fault.node)][: 1 + fault.which % 2]
            self._cut(ways, until_s)
        elif fault.kind == "node_cut":
            pairs = [(fault.node, number) for number in range(self.count) if number != fault.node]
            self._cut([*pairs, *((to, source) for source, to in pairs)], until_s)
        elif fault.kind == "messages_garbled":
            self.garbled_until_s = until_s
        elif fault.kind == "bytes_spoilt":
            self.spoilt_until_s = until_s
        elif fault.kind == "network_slow":
            self.slow_until_s = until_s

    def _cut(self, ways: list[tuple[int, int]], until_s: float) -> None:
        for way in ways:
            self._cuts[way] += 1
            self.network.cut.add(way)
        self.heap.at(until_s, self._mend, ways)

    def _mend(self, ways: list[tuple[int, int]]) -> None:
        for way in ways:
            self._cuts[way] -= 1
            if not self._cuts[way]:
                self.network.cut.discard(way)

    def kill(self, number: int, orderly: bool = False) -> None:
        """An agent is gone; with `orderly` it could say so, as one does whose server was killed."""
        seat = self.seats[number]
        if not seat.agent_lives:
            return
        if orderly and self.heap.now_s >= seat.agent_wakes_s:
            seat.agent.leave(self.heap.now_s)
        self.network.port(number).close(orderly=False, code=0)
        seat.killed()

    # -- the end

    def readers_are_through(self) -> None:
        """Agents go on until all have noticed who is there."""
        last_s = max(
            [
                self.heap.now_s, self.slow_until_s, self.garbled_until_s, self.spoilt_until_s,
                *(max(seat.agent_wakes_s, seat.server_wakes_s) for seat in self.seats),
            ]
        )  # fmt: skip
        self.heap.at(last_s + CALM * self.case.patience_s + AGENT_PATIENCE_S, self._stop)

    def _stop(self) -> None:
        self.goes_on = False

    def longest_wait_s(self, kinds: set[str]) -> float:
        """The longest that a lane may wait for a peer, by the faults of a case."""
        patience_s = self.case.patience_s
        # A node that is stopped between its agent and its peers, or a message that got lost while others came
        # through, is noticed by the desk alone.
        by_desk = kinds & {"server_sleeps", "messages_garbled", "link_cut", "node_cut", "agent_sleeps", "network_slow"}
        least = patience_s + AGENT_PATIENCE_S if by_desk else patience_s * (1 + 1 / BEATS)
        return least + SLACK_S

    def check_end(self, kinds: set[str]) -> None:
        """Raises Broken for what is left over."""
        living = [seat.number for seat in self.seats if seat.agent_lives]
        for seat in self.seats:
            seat.check_end(living)
        if self.counted.longest_s > self.longest_wait_s(kinds):
            raise Broken(f"a lane waited {self.counted.longest_s} s for a peer")


def _changed(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
