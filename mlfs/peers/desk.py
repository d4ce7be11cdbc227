"""The server's requests to peers: which samples are asked for, who waits for them, and how each request ended.

In: samples that lanes and readers want of a peer, from worker threads; the agent's ENDED. Out: FETCH packets for the
agent; the bytes, lying in the landing memory. Thread-safe. Lanes say ahead what they will want, so that many samples
are under way while each is waited for in its turn. Whatever fails ends in None: then the source is read.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mlfs.peers import link
from mlfs.peers.landing import Landing
from mlfs.peers.link import Ended
from mlfs.places.place import Content, Want
from mlfs.plan.place_kind import PlaceKind
from mlfs.tree.samples import Version

# An agent whose peer does not answer says so after its own patience; one that says nothing is given this much longer.
AGENT_PATIENCE_S = 1.0


@dataclass(eq=False, slots=True)
class _Request:
    """A sample under way.

    Attributes:
        end: what became of it; None while it is under way. awaited: somebody wants the bytes. over: set at the end.
    """

    want: Want
    offset: int
    end: Ended | None = None
    awaited: bool = True
    over: threading.Event | None = None


class Desk:
    """Asks the agent for samples, ahead or at once, and hands out the bytes that have landed.

    Args:
        send: has the agent take a packet; False when it does not.
        patience_s: how long one sample may take before its reader goes to the source. on_silence: called from a lane
            when the agent has not said anything for all that time: then nobody waits for it until it is heard again.
    """

    def __init__(
        self,
        landing: Landing,
        send: Callable[[bytes], bool],
        patience_s: float,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        self._landing = landing
        self._send = send
        self._patience_s = patience_s + AGENT_PATIENCE_S
        self._numbers = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._by_want: dict[Want, int] = {}  # those whose bytes nobody has taken
        self._lock = threading.Lock()
        self._closed = self._silent = False
        self._on_silence = on_silence
        self._heard = 0  # how often the agent has said something

    def ahead(self, wants: Iterable[Want]) -> list[Want]:
        """Ask for samples that will be wanted soon. Returns those for which `no_longer` has to follow."""
        return [request.want for _, request in self._ask(want for want in wants if want not in self._by_want)]

    def _ask(self, wants: Iterable[Want], wait_s: float = 0.0, awaited: bool = False) -> list[tuple[int, _Request]]:
        """Ask for samples for which there is room to land.

        Args:
            awaited: the caller waits for them, so nobody else may take or leave them.
        """
        records, asked = [], []
        for want in wants:
            offset = self._landing.reserve(want.version.size_bytes, wait_s)
            if offset is None:
                break
            number = next(self._numbers) & 0xFFFFFFFF
            request = _Request(want, offset, over=threading.Event() if awaited else None)
            with self._lock:
                if self._closed or self._silent or (not awaited and want in self._by_want):
                    self._landing.release(offset, want.version.size_bytes)
                    continue
                self._requests[number] = request
                if not awaited:
                    self._by_want[want] = number
            records.append((number, want.node, want.sample, 0, *want.version, offset))
            asked.append((number, request))
        for packet in link.pack(link.PacketKind.FETCH, records):
            if not self._send(packet):
                self.ended([(record[0], Ended.MISSING) for record in records])
        return asked

    def get(self, want: Want) -> memoryview | None:
        """The sample's bytes, None where the peer does not give them. Waits for them."""
        with self._lock:
            number = self._by_want.pop(want, 0)
            request = self._requests.get(number)
            if request is not None and request.end is None:
                request.over = threading.Event()
            heard = self._heard
        if request is None:
            asked = self._ask([want], self._patience_s, awaited=True)
            if not asked:
                return None
            number, request = asked[0]
        if request.over is not None and not self._has_come(request, request.over, heard):
            return None
        return self._take(number, request)

    def _has_come(self, request: _Request, over: threading.Event, heard: int) -> bool:
        """Wait for the end of a request, if the agent speaks. Whether it has come; what comes later goes back by
        itself."""
        waited = not self._silent and not over.wait(self._patience_s)
        with self._lock:
            if request.end is not None:
                return True
            request.awaited = False
            falls_silent = waited and heard == self._heard and not self._silent
            if falls_silent:
                self._silent = True
                for other in self._requests.values():
                    if other.over is not None:
                        other.over.set()
        if falls_silent:
            self._on_silence()
        return False

    def hears(self) -> bool:
        """Note that the agent has said something. Returns whether it was taken for silent."""
        with self._lock:
            self._heard += 1
            was_silent, self._silent = self._silent, False
        return was_silent

    @property
    def silent(self) -> bool:
        """Whether the agent does not answer: then nothing is asked, and nobody waits for it."""
        return self._silent

    def _take(self, number: int, request: _Request) -> memoryview | None:
        with self._lock:
            if request.end is Ended.LOST:
                request.awaited = False
                return None
            self._requests.pop(number, None)
        if request.end is Ended.HERE:
            return self._landing.lend(request.offset, request.want.version.size_bytes)
        self._landing.release(request.offset, request.want.version.size_bytes)
        return None

    def no_longer(self, wants: Iterable[Want]) -> None:
        """Nobody will want these any more: what was asked ahead and not got."""
        for want in wants:
            with self._lock:
                number = self._by_want.pop(want, None)
                request = self._requests.get(number) if number is not None else None
                if request is None:
                    continue
                request.awaited = False
                if request.end is None or request.end is Ended.LOST:
                    continue
                del self._requests[number or 0]
            self._landing.release(request.offset, want.version.size_bytes)

    def ended(self, records: Iterable[tuple[int, int]]) -> None:
        """The agent says what became of requests."""
        for number, end in records:
            with self._lock:
                request = self._requests.get(number)
                if request is None:
                    continue
                was_lost = request.end is Ended.LOST
                request.end = Ended(end)
                done = request.end is not Ended.LOST and not request.awaited
                if done:
                    del self._requests[number]
                over = request.over
            if done:
                self._landing.release(request.offset, request.want.version.size_bytes)
            if over is not None and not was_lost:
                over.set()

    def close(self) -> None:
        """The agent is gone: nothing comes any more, and those who wait go on."""
        with self._lock:
            self._closed = True
            waiting = [number for number, request in self._requests.items() if request.end is None]
        self.ended([(number, Ended.MISSING) for number in waiting])

    @property
    def under_way(self) -> int:
        """Requests that have not come to their end."""
        return len(self._requests)


# -- another node as a place: what it owns is got from it over the network


class NodePlace:
    kind: Final = PlaceKind.PEER

    def __init__(self, node: int, desk: Desk) -> None:
        self.name: Final = f"node {node}"
        self._node = node
        self._desk = desk

    def get(self, sample: int, version: Version) -> Content | None:
        data = self._desk.get(Want(self._node, sample, version))
        return None if data is None else Content(data, version)

    def ahead(self, wanted: Sequence[tuple[int, Version]]) -> list[Want]:
        """Samples that will be wanted soon. For those returned `no_longer` has to follow."""
        return self._desk.ahead([Want(self._node, sample, version) for sample, version in wanted])

    def no_longer(self, wants: Sequence[Want]) -> None:
        """Samples that were said ahead are not wanted any more, or were got."""
        self._desk.no_longer(wants)
