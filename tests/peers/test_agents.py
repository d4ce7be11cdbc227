"""Agents of a cluster on simulated time: whatever happens on the network, every request comes to its one end.

Servers are made up: each wants samples of the others, and finds some that its agent's shelf does not have. What is
drawn from a seed: the delays, which links are cut and when, which bytes are spoilt, which agents stop for a while.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.lab.sim.detailed.heap import Heap
from mlfs.peers import agent as agent_module
from mlfs.peers import link, memory, outflow
from mlfs.peers.agent import Agent
from mlfs.peers.link import Ended, Ready
from mlfs.peers.liveness import Liveness
from mlfs.peers.memory import MemoryNetwork
from mlfs.places.checksum import checksum
from mlfs.tree.samples import Version

PATIENCE_S = 1.0
SAMPLES = 40
SLOT = 512


def content(sample: int) -> bytes:
    """The right bytes of a sample; every tenth is empty."""
    return random.Random(sample).randbytes(0 if sample % 10 == 3 else 50 + sample)


def version_of(sample: int) -> Version:
    return Version(len(content(sample)), 1000 + sample)


class Node:
    """A made-up server and its agent.

    Attributes:
        shelf: samples that the agent finds by itself. held: those that the server finds when it is asked.
        ends: what became of each request. lost: what the agent last said of each peer.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.shelf: set[int] = set()
        self.held: set[int] = set()
        self.landing = memoryview(bytearray(4000 * SLOT))
        self.requests: dict[int, tuple[int, int]] = {}
        self.ends: dict[int, list[Ended]] = {}
        self.told: list[object] = []
        self.lost: set[int] = set()
        self.stopped = False
        liveness = Liveness(cluster.nodes, number, PATIENCE_S)
        self.transport = cluster.network.port(number)
        self.agent = Agent(self.transport, self, self.landing, self.hear, liveness)

    def find(self, sample: int, version: Version) -> tuple[memoryview, int] | None:
        if sample not in self.shelf or version != version_of(sample):
            return None
        data = content(sample)
        return memoryview(data), checksum(data, sample, version)

    def want(self, node: int, sample: int) -> int:
        """Want a sample of a peer; returns the request's number."""
        self.want_all([(node, sample)])
        return len(self.requests)

    def want_all(self, wants: list[tuple[int, int]]) -> None:
        """Want samples of peers at once."""
        rows = []
        for node, sample in wants:
            number = len(self.requests) + 1
            self.requests[number] = node, sample
            self.ends[number] = []
            rows.append((number, node, sample, 0, *version_of(sample), number * SLOT))
        self.agent.packet(link.unpack(link.pack(link.PacketKind.FETCH, rows)[0]), self.cluster.heap.now_s)

    def hear(self, data: bytes) -> None:
        packet = link.unpack(data)
        if packet.kind is link.PacketKind.ENDED:
            for number, end in packet.records.tolist():
                self.ends[number].append(Ended(end))
                if end == Ended.HERE:
                    _, sample = self.requests[number]
                    landed = bytes(self.landing[number * SLOT : number * SLOT + len(content(sample))])
                    assert landed == content(sample)
        elif packet.kind is link.PacketKind.WANTED:
            for token, sample, *_ in packet.records.tolist():
                self.cluster.heap.at(self.cluster.heap.now_s + self.cluster.server_s(), self.answer, token, sample)
        elif packet.kind is link.PacketKind.LOST:
            self.lost.update(packet.records["node"].tolist())
        elif packet.kind is link.PacketKind.BACK:
            self.lost.difference_update(packet.records["node"].tolist())
        elif packet.kind is link.PacketKind.TOLD:
            self.told.append(packet.value)

    def answer(self, token: int, sample: int) -> None:
        how, offset = Ready.MISSING, 0
        if sample in self.shelf:
            how = Ready.LOOK
        elif sample in self.held:
            how, offset = Ready.LIES, (2000 + sample) * SLOT
            self.landing[offset : offset + len(content(sample))] = content(sample)
        row = (token, how, offset, len(content(sample)))
        self.agent.packet(link.unpack(link.pack(link.PacketKind.READY, [row])[0]), self.cluster.heap.now_s)


class Cluster:
    """Agents that look at the network soon after something arrived, and what is drawn."""

    def __init__(self, nodes: int, draw: random.Random, slowest_s: float = 0.01) -> None:
        self.heap = Heap()
        self.draw = draw
        self.slowest_s = slowest_s
        self.nodes = nodes
        self.carried = 0  # messages, and samples' bytes
        self._free_s: Counter[tuple[int, int]] = Counter()
        self.network = MemoryNetwork(nodes, self.later)
        self.members = [Node(self, number) for number in range(nodes)]
        for node in self.members:
            self.heap.at(draw.random() * 0.2, self.beat, node)

    def later(self, source: int, to: int, size_bytes: int, arrive: Callable[[], None]) -> None:
        """Whatever goes from one node to another arrives in its order."""
        self.carried += 1
        at_s = max(self._free_s[source, to], self.heap.now_s + self.draw.random() * self.slowest_s)
        self._free_s[source, to] = at_s
        self.heap.at(at_s, arrive)
        for number in (to, source):  # who has sent something may have been waiting for that
            self.heap.at(at_s + self.draw.random() * 1e-3, self.look, self.members[number])

    def server_s(self) -> float:
        return self.draw.random() * self.draw.choice([0.001, 0.1, 3.0])

    def look(self, node: Node) -> None:
        while not node.stopped and node.agent.poll(self.heap.now_s):
            pass

    def beat(self, node: Node) -> None:
        if not node.stopped:
            node.agent.beat(self.heap.now_s)
            self.look(node)
        self.heap.at(self.heap.now_s + PATIENCE_S / 4, self.beat, node)

    def run(self, seconds: float) -> None:
        until_s = self.heap.now_s + seconds
        while self.heap.now_s < until_s:
            self.heap.step()


def test_a_sample_comes_from_the_shelf_or_from_the_server_or_is_missing() -> None:
    cluster = Cluster(3, random.Random(1))
    asker, owner, _ = cluster.members
    owner.shelf, owner.held = set(range(10)), set(range(10, 20))
    numbers = [asker.want(1, sample) for sample in range(30)]
    cluster.run(5)
    ends = [asker.ends[number] for number in numbers]
    assert ends == [[Ended.HERE]] * 20 + [[Ended.MISSING]] * 10
    got, gave = asker.agent.statistics(), owner.agent.statistics()
    assert (got.got, got.missing, got.spoilt) == (20, 10, 0)
    assert (gave.given, gave.given_bytes, gave.missed) == (20, sum(len(content(n)) for n in range(20)), 10)
    assert not asker.agent.waits
    assert not owner.agent.waits


def test_spoilt_bytes_are_missing() -> None:
    cluster = Cluster(2, random.Random(2))
    asker, owner = cluster.members
    owner.shelf = set(range(SAMPLES))
    cluster.network.spoil = lambda data: bytes([data[0] ^ 1, *data[1:]]) if data else data
    numbers = [asker.want(1, sample) for sample in range(SAMPLES)]
    cluster.run(5)
    empty = [number for number in numbers if not content(asker.requests[number][1])]
    assert [asker.ends[number] for number in empty] == [[Ended.HERE]] * 4
    assert all(asker.ends[number] == [Ended.MISSING] for number in numbers if number not in empty)
    assert asker.agent.statistics().spoilt == SAMPLES - 4


def test_a_silent_peer_is_lost_within_its_patience_and_back_when_it_is_heard_of() -> None:
    cluster = Cluster(2, random.Random(3), slowest_s=0.001)
    asker, owner = cluster.members
    owner.shelf = set(range(SAMPLES))
    owner.stopped = True
    number = asker.want(1, 5)
    cluster.run(PATIENCE_S * 1.5)
    assert asker.ends[number][0] is Ended.LOST
    assert asker.lost == {1}
    later = asker.want(1, 6)
    cluster.run(0.1)
    assert asker.ends[later] == [Ended.MISSING]
    owner.stopped = False
    cluster.look(owner)
    cluster.run(PATIENCE_S)
    assert asker.lost == set()
    again = asker.want(1, 7)
    cluster.run(0.1)
    assert asker.ends[again] == [Ended.HERE]
    assert asker.ends[number] == [Ended.LOST, Ended.OFF]


def news_of(value: object, to: int | None = None) -> link.Packet:
    """What a server says to the server of a node, None: of all others."""
    return link.unpack(link.pack_json(link.PacketKind.TELL, {"to": to, "value": value}))


def test_a_peer_that_is_silent_for_an_hour_takes_no_room_for_messages_and_hears_the_news_when_it_is_back() -> None:
    """What a stopped process does not take stays in memory of MPI, which has room for 64 messages of a sender."""
    cluster = Cluster(2, random.Random(10), slowest_s=0.001)
    asker, owner = cluster.members
    owner.stopped = True
    asker.want(1, 5)
    cluster.run(2 * PATIENCE_S)
    assert asker.lost == {1}
    news = [{"state": {"held": number}} if number % 2 else {"job": number} for number in range(200)]
    for value in news:
        asker.agent.packet(news_of(value), cluster.heap.now_s)
        cluster.run(18)
    assert cluster.carried < 20
    owner.stopped = False
    cluster.look(owner)
    cluster.run(PATIENCE_S)
    assert asker.lost == set()
    assert owner.told == [{"node": 0, "value": value} for value in [*news[::2], news[-1]]]


def test_news_for_a_lost_peer_take_a_bounded_room_and_the_newest_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "UNHEARD_BYTES", 1000)
    cluster = Cluster(2, random.Random(11), slowest_s=0.001)
    asker, owner = cluster.members
    owner.stopped = True
    asker.want(1, 5)
    cluster.run(2 * PATIENCE_S)
    for number in range(200):
        asker.agent.packet(news_of({"job": number}), cluster.heap.now_s)
    owner.stopped = False
    cluster.look(owner)
    cluster.run(PATIENCE_S)
    told = [one["value"]["job"] for one in owner.told if isinstance(one, dict)]
    assert told == list(range(200 - len(told), 200))
    assert 20 < len(told) < 100


def test_a_server_that_takes_its_time_does_not_make_its_node_lost() -> None:
    cluster = Cluster(2, random.Random(4), slowest_s=0.001)
    asker, owner = cluster.members
    owner.held = {5}
    cluster.server_s = lambda: 5 * PATIENCE_S  # type: ignore[method-assign]
    number = asker.want(1, 5)
    cluster.run(6 * PATIENCE_S)
    assert asker.ends[number] == [Ended.HERE]
    assert asker.lost == set()


def test_who_slept_hears_what_became_of_what_it_had_asked_for() -> None:
    cluster = Cluster(2, random.Random(8), slowest_s=0.001)
    cluster.server_s = lambda: 2 * PATIENCE_S  # type: ignore[method-assign]
    asker, owner = cluster.members
    owner.held = {5}
    number = asker.want(1, 5)
    cluster.run(0.1)
    asker.stopped = True
    owner.want(0, 6)
    cluster.run(3 * PATIENCE_S)
    assert owner.lost == {0}
    asker.stopped = False
    cluster.look(asker)
    cluster.run(3 * PATIENCE_S)
    assert asker.ends[number] == [Ended.MISSING]


def test_who_leaves_is_asked_no_more_and_news_reach_all_servers() -> None:
    cluster = Cluster(3, random.Random(5), slowest_s=0.001)
    first, second, third = cluster.members
    long = {"about": ["x" * 50_000]}
    first.agent.packet(news_of(long), 0.0)
    cluster.run(0.1)
    assert second.told == third.told == [{"node": 0, "value": long}]
    for node in (1, 2, 0):  # to one of them, and not to itself
        first.agent.packet(news_of({"piece": node}, to=node), cluster.heap.now_s)
    cluster.run(0.1)
    assert [second.told[1:], third.told[1:]] == [[{"node": 0, "value": {"piece": node}}] for node in (1, 2)]
    assert not first.told
    second.agent.leave(cluster.heap.now_s)
    cluster.run(0.1)
    assert first.lost == third.lost == {1}
    number = first.want(1, 3)
    cluster.run(0.1)
    assert first.ends[number] == [Ended.MISSING]


class SlowLinks(Cluster):
    """Each link carries so many bytes a second; `large` are sizes that wait for each other, and messages overtake."""

    bytes_s = 1e6
    large: frozenset[int] = frozenset()

    def later(self, source: int, to: int, size_bytes: int, arrive: Callable[[], None]) -> None:
        takes_s = size_bytes / self.bytes_s if not self.large or size_bytes in self.large else 0.0
        way = (source, to) if size_bytes not in self.large else (source, ~to)
        at_s = self._free_s[way] = max(self._free_s[way], self.heap.now_s) + 1e-4 + takes_s
        self.heap.at(at_s, arrive)
        for number in (source, to):
            self.heap.at(at_s, self.look, self.members[number])


def test_who_floods_an_owner_waits_for_itself_and_costs_it_a_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "UNSENT_BYTES", 3000)
    cluster = SlowLinks(4, random.Random(7))
    cluster.server_s = lambda: 0.01  # type: ignore[method-assign]
    owner, flooding, other, third = cluster.members
    owner.shelf, owner.held = set(range(0, SAMPLES, 2)), set(range(1, SAMPLES, 2))
    numbers = [flooding.want(0, number % SAMPLES) for number in range(1900)]
    most = 0
    late = []
    for _ in range(100):
        cluster.run(0.005)
        most = max(most, owner.transport.unsent_bytes(1))
        if len(late) < 20:
            late.append((other.want(0, 4), third.want(0, 6)))
    assert all(other.ends[a] == third.ends[b] == [Ended.HERE] for a, b in late)
    assert not all(flooding.ends[number] for number in numbers)
    assert 0 < most <= 1000 + 2 * max(len(content(sample)) for sample in range(SAMPLES))
    cluster.run(10)
    assert all(flooding.ends[number] == [Ended.HERE] for number in numbers)


@pytest.mark.parametrize("of_server", [False, True])
def test_over_a_slow_link_what_a_node_says_does_not_wait_behind_all_that_its_peer_wants(
    monkeypatch: pytest.MonkeyPatch, of_server: bool
) -> None:
    monkeypatch.setattr(outflow, "FIRST_BYTES", 1000)
    monkeypatch.setattr(outflow, "LEAST_BYTES", 0)
    cluster = SlowLinks(2, random.Random(10))
    cluster.bytes_s = 10_000
    cluster.server_s = lambda: 0.001  # type: ignore[method-assign]
    owner, asker = cluster.members
    if of_server:
        owner.held = set(range(SAMPLES))
    else:
        owner.shelf = set(range(SAMPLES))
    numbers = [asker.want(0, number % SAMPLES) for number in range(1000)]
    cluster.run(0.5)
    waits_s = []
    for number in range(20):
        began_s = cluster.heap.now_s
        owner.agent.packet(news_of({"news": number}), began_s)
        while len(asker.told) == number:
            cluster.run(0.001)
        waits_s.append(cluster.heap.now_s - began_s)
    assert not all(asker.ends[number] for number in numbers), "the link is to be busy meanwhile"
    assert max(waits_s) < 3 * outflow.WAIT_S
    cluster.run(10)
    assert all(asker.ends[number] == [Ended.HERE] for number in numbers)
    assert not owner.agent.waits


def test_whoever_leaves_sends_nothing_to_those_who_may_have_ended() -> None:
    liveness = Liveness(5, 0, PATIENCE_S)
    liveness.leaves(1, 10.0)
    liveness.leaves(2, 11.8)
    liveness.asked(3, 12.0 - 2 * PATIENCE_S)
    assert liveness.found_lost(12.0) == [3]
    assert liveness.to_be_left(12.0) == [2, 4]


@pytest.mark.parametrize(("piece_bytes", "ends"), [(10, [Ended.HERE]), (1000, [Ended.LOST, Ended.OFF])])
def test_each_piece_of_a_large_sample_is_a_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int, ends: list[Ended]
) -> None:
    monkeypatch.setattr(memory, "PIECE_BYTES", piece_bytes)
    cluster = SlowLinks(2, random.Random(9))
    size_bytes = len(content(38))
    cluster.large, cluster.bytes_s = frozenset({10, size_bytes % 10, size_bytes}), size_bytes / (2 * PATIENCE_S)
    asker, owner = cluster.members
    owner.shelf = {38}
    number = asker.want(1, 38)
    cluster.run(0.01)
    owner.stopped = True  # it has given the sample, and what it says besides does not count
    cluster.run(5 * PATIENCE_S)
    assert asker.ends[number] == ends


def test_messages_of_a_node_grow_no_faster_than_the_number_of_nodes_and_an_idle_one_sends_none() -> None:
    wanted, sent = 112, {}
    for nodes in (2, 4, 8):
        cluster = Cluster(nodes, random.Random(nodes), slowest_s=0.001)
        cluster.run(20)
        assert cluster.carried == 0
        for node in cluster.members:
            node.shelf = set(range(SAMPLES))
            others = [other for other in range(nodes) if other != node.number]
            node.want_all([(others[number % len(others)], number % SAMPLES) for number in range(wanted)])
        cluster.run(5)
        assert all(ends == [Ended.HERE] for node in cluster.members for ends in node.ends.values())
        bytes_apart = sum(bool(content(number % SAMPLES)) for number in range(wanted))
        sent[nodes] = cluster.carried / nodes - bytes_apart
    assert sent == {2: 2, 4: 6, 8: 14}  # one request and one answer for each pair of nodes


def test_what_is_no_message_is_told_to_the_server_in_words() -> None:
    cluster = Cluster(2, random.Random(6))
    cluster.network.port(1).send(0, b"\x63\x00nonsense")
    cluster.run(0.1)
    [told] = cluster.members[0].told
    assert "run the same mlfs on all nodes" in str(told)


@given(st.integers(0, 2**32 - 1))
def test_every_request_ends_once_whatever_is_drawn(seed: int) -> None:
    draw = random.Random(seed)
    cluster = Cluster(draw.randint(2, 5), draw, slowest_s=draw.choice([0.001, 0.05, 0.6]))
    for node in cluster.members:
        node.shelf = {sample for sample in range(SAMPLES) if draw.random() < 0.4}
        node.held = {sample for sample in range(SAMPLES) if draw.random() < 0.4}
    if draw.random() < 0.3:
        cluster.network.spoil = lambda data: data[::-1] if draw.random() < 0.2 else data
    for _ in range(draw.randint(1, 60)):
        node = draw.choice(cluster.members)
        what = draw.random()
        if what < 0.7:
            for _ in range(draw.randint(1, 8)):
                other = draw.choice([other for other in range(cluster.nodes) if other != node.number])
                node.want(other, draw.randrange(SAMPLES))
        elif what < 0.8:
            node.stopped = not node.stopped
        elif what < 0.9:
            other = draw.randrange(cluster.nodes)  # it stays cut: whatever is sent arrives, or the other is gone
            cluster.network.cut |= {(node.number, other), (other, node.number)}
        cluster.run(draw.random() * draw.choice([0.01, 0.3, 2.0]))
    for node in cluster.members:  # a stopped process is given its time back: what it owes its server comes then
        node.stopped = False
        cluster.look(node)
    cluster.run(5 * PATIENCE_S + 3.0)
    for node in cluster.members:
        for number, ends in node.ends.items():
            assert ends[:1] in ([Ended.HERE], [Ended.MISSING], [Ended.LOST]), (seed, number, ends)
            assert ends[1:] in ([], [Ended.OFF]), (seed, number, ends)
            assert ends[0] is Ended.LOST or len(ends) == 1
