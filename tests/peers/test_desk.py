"""The desk of a server: whoever wants a sample gets it or None, and no landing memory is lost."""

import gc
import threading

from hypothesis import given
from hypothesis import strategies as st

from mlfs.peers import link
from mlfs.peers.desk import Desk
from mlfs.peers.landing import Landing
from mlfs.peers.link import Ended
from mlfs.places.place import Want
from mlfs.tree.samples import Version

SIZE = 5000
WANTS = [Want(node, sample, Version(SIZE, 1)) for node in (1, 2) for sample in range(10)]


class Agent:
    """Stands for the agent: each FETCH is written down."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.takes = True

    def __call__(self, packet: bytes) -> bool:
        if self.takes:
            self.asked += [tuple(row) for row in link.unpack(packet).records.tolist()]
        return self.takes


def content(sample: int) -> bytes:
    """The right bytes of a sample."""
    return bytes([sample + 1]) * SIZE


def land(landing: Landing, row: tuple[int, ...]) -> None:
    landing.write(row[-1], content(row[2]))


def test_what_was_asked_ahead_is_asked_once_and_got() -> None:
    agent, landing = Agent(), Landing(1 << 20)
    desk = Desk(landing, agent, 5.0)
    asked = desk.ahead(WANTS[:3])
    assert asked == WANTS[:3]
    assert [row[2] for row in agent.asked] == [0, 1, 2]
    for row in agent.asked:
        land(landing, row)
    desk.ended([(row[0], Ended.HERE) for row in agent.asked])
    got = [desk.get(want) for want in WANTS[:3]]
    assert got == [content(0), content(1), content(2)]
    assert len(agent.asked) == 3
    desk.no_longer(asked)
    del got
    gc.collect()
    assert landing.free_bytes == landing.size_bytes


def test_who_waits_goes_on_when_the_agent_says_so_or_dies() -> None:
    agent, landing = Agent(), Landing(1 << 20)
    desk = Desk(landing, agent, 60.0)
    results: dict[int, object] = {}

    def want(number: int) -> None:
        results[number] = desk.get(WANTS[number])

    threads = [threading.Thread(target=want, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(agent.asked) < 4:
        pass
    rows = {row[2]: row for row in agent.asked}
    land(landing, rows[0])
    desk.ended([(rows[0][0], Ended.HERE), (rows[1][0], Ended.MISSING), (rows[2][0], Ended.LOST)])
    desk.close()  # the fourth was still under way
    for thread in threads:
        thread.join(10)
    assert results == {0: content(0), 1: None, 2: None, 3: None}
    assert desk.get(WANTS[7]) is None


def test_memory_of_a_lost_peer_is_not_given_to_others_before_it_is_off() -> None:
    agent, landing = Agent(), Landing(2 * 8192)
    desk = Desk(landing, agent, 0.0)
    desk.ahead(WANTS[:2])
    first, second = agent.asked
    desk.ended([(first[0], Ended.LOST), (second[0], Ended.LOST)])
    assert desk.get(WANTS[0]) is None
    assert landing.free_bytes == 0
    assert desk.ahead(WANTS[5:6]) == []
    desk.ended([(first[0], Ended.OFF)])
    assert landing.free_bytes == 8192
    desk.no_longer(WANTS[:2])
    assert landing.free_bytes == 8192
    desk.ended([(second[0], Ended.OFF)])
    assert landing.free_bytes == 2 * 8192


def test_an_agent_that_takes_no_packets_holds_nobody_up() -> None:
    agent, landing = Agent(), Landing(1 << 20)
    agent.takes = False
    desk = Desk(landing, agent, 60.0)
    assert desk.get(WANTS[0]) is None
    assert landing.free_bytes == landing.size_bytes


@given(
    st.lists(st.tuples(st.sampled_from(["ahead", "get", "leave", "end", "hear"]), st.integers(0, 19)), max_size=80),
    st.randoms(),
)
def test_whatever_happens_each_piece_of_memory_comes_back(steps: list[tuple[str, int]], random: object) -> None:
    agent, landing = Agent(), Landing(1 << 17)
    silences: list[None] = []
    desk = Desk(landing, agent, -1.0, lambda: silences.append(None))  # nobody waits: who comes too early gets None
    ended: set[int] = set()
    for what, number in steps:
        want = WANTS[number]
        if what == "ahead":
            desk.ahead([want])
        elif what == "get":
            data = desk.get(want)
            assert data is None or data == content(want.sample)
            del data
            if desk.silent:  # nothing more is asked before the agent is heard again
                asked = len(agent.asked)
                assert desk.get(WANTS[0]) is None or len(agent.asked) == asked
                assert desk.ahead(WANTS) == []
                assert len(agent.asked) == asked
        elif what == "leave":
            desk.no_longer([want])
        elif what == "hear":
            assert desk.hears() == bool(silences)
            silences.clear()
            assert not desk.silent
        elif agent.asked:
            row = agent.asked[number % len(agent.asked)]
            if row[0] not in ended:
                ended.add(row[0])
                land(landing, row)
                desk.ended([(row[0], random.choice([Ended.HERE, Ended.MISSING]))])  # type: ignore[attr-defined]
    for row in agent.asked:
        if row[0] not in ended:
            desk.ended([(row[0], Ended.MISSING)])
    desk.no_longer(WANTS)
    assert len(silences) <= 1  # it is told once
    assert desk.under_way == 0
    assert landing.free_bytes == landing.size_bytes
