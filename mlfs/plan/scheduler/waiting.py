"""Keeps who waits for which sample, decides when a fetch has taken too long for them, and answers each of them.

Pure. In: readers who opened what is not in place, other nodes that ask, ends of fetches, time. Out: fetches for them,
answers, refusals. A waiter joins a fetch that is under way, and takes over a sample that still waits for a lane. When
the fetch hangs, the place is asked once more. A reader gets an error only when the source failed or hung twice.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mlfs.plan.scheduler.commands import Abandon, Answer, Command, Count, OpenDirect, Recall, Refuse
from mlfs.plan.scheduler.config import LARGEST_KEPT_BYTES, SAME_TIME_S, SOURCE, Limits
from mlfs.plan.scheduler.events import Waiter
from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.rank_waits import RankWaits
from mlfs.plan.scheduler.routing import Routing
from mlfs.plan.scheduler.states import SampleTable, State, Verb
from mlfs.plan.scheduler.window import Window

# A second try cannot help: the file is gone, was replaced, or may not be read.
FINAL_ERRORS = frozenset(
    {errno.ENOENT, errno.ESTALE, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.EOVERFLOW}
)

# So long after a reader's wait others are taken to wait soon: he comes back with the next sample that is not in place.
URGENT_S = 0.2


@dataclass(slots=True)
class Flight:
    """A fetch for those who wait, on the first or second attempt; at `due_s` it has taken too long."""

    fetch: int
    place: int
    attempt: int
    due_s: float


class Waiting:
    """Knows who waits for which sample, and decides what is fetched for them and when they are answered.

    Attributes:
        waiters: by sample, those who wait for it, the first to come first; workers read it.
        waiting: how many that are, without READs: one reader may have several.
        waited_s: seconds that readers waited, all together.
    """

    def __init__(
        self,
        table: SampleTable,
        limits: Limits,
        window: Window,
        routing: Routing,
        keeping: Keeping,
        fetching: Fetching,
        rank_waits: RankWaits,
        out: list[Command],
    ) -> None:
        self._table = table
        self._rank_waits = rank_waits
        self._limits = limits
        self._window = window
        self._routing = routing
        self._keeping = keeping
        self._fetching = fetching
        self._out = out
        self._waiters: dict[int, list[Waiter]] = {}
        self.waiters: Mapping[int, Sequence[Waiter]] = MappingProxyType(self._waiters)
        self._flights: dict[int, Flight] = {}
        self._lane_due_s: dict[int, float] = {}  # of samples that a lane has and a reader waits for
        # (due_s, sample), ascending as all have the same waiting time: first attempts and readers behind lanes; then
        # second attempts.
        self._hedges: deque[tuple[float, int]] = deque()
        self._timeouts: deque[tuple[float, int]] = deque()
        self.waiting = 0
        self.waited_s = 0.0
        self._readers = 0  # of this node, who wait
        self._waited_at_s = -URGENT_S  # when one of them went on last

    def is_urgent(self, now_s: float) -> bool:
        """Whether readers of this node wait, or did a moment ago."""
        return self._readers > 0 or now_s - self._waited_at_s < URGENT_S

    def wait(self, waiter: Waiter, now_s: float) -> None:
        """Somebody wants a sample that was not in place when the driver looked: answer now, or once it is fetched."""
        if waiter.is_peer and not self._peer_may_wait(waiter):
            return
        sample, state = waiter.sample, self._table.state[waiter.sample]
        if state == State.DROPPING and self._window.rescue(sample):
            state = self._table.move(sample, Verb.TOUCH)
        if state in (State.STAGED, State.RECENT):
            self._out.append(Answer(waiter))
            return
        if state in (State.ABSENT, State.QUEUED) and self._table.sizes[sample] > self._largest_whole_bytes(waiter):
            self._out.append(OpenDirect(waiter))
            return
        if waiter.in_read and state in (State.DROPPING, State.GOING):
            self._out.append(OpenDirect(waiter))  # it holds pages locked that the dropper may wait for
            return
        self._waiters.setdefault(sample, []).append(waiter)
        self.waiting += not waiter.in_read
        self._readers += not waiter.is_peer
        if state in (State.ABSENT, State.QUEUED):
            self.begin(sample, now_s)
        elif state == State.FETCHING and sample not in self._flights and sample not in self._lane_due_s:
            due_s = self._lane_due_s[sample] = now_s + self._limits.hedge_s
            self._hedges.append((due_s, sample))
            self._out.append(Recall(self._fetching.fetch_of(sample), sample))

    def _peer_may_wait(self, peer: Waiter) -> bool:
        """Another node wants a sample: whether it waits as a reader does, as it cannot be answered at once.

        Pages cannot be sent. If they are all that is here, they count as lost, and the sample is fetched once more:
        this time a place keeps it. A copy that is about to be kept can be sent already.

        A sample that a third node owns by this node's plan is refused unless a copy is about to be kept here. The
        peer's plan is then another one, and nodes that passed questions on could wait for each other. The peer asks
        the source instead.
        """
        table, sample = self._table, peer.sample
        promised = self._keeping.is_promised(sample)
        table.opened((sample,))
        if table.held_by[sample]:
            self._out.append(Answer(peer))
            return False
        state = table.state[sample]
        if state == State.DROPPING and self._window.rescue(sample):
            state = table.move(sample, Verb.TOUCH)
        in_place = state in (State.STAGED, State.RECENT)
        if self._routing.is_elsewhere(self._keeping.owner(sample)) and not (in_place and promised):
            self._out.append(Refuse(peer, errno.ENOENT))
            return False
        if in_place and not promised and table.sizes[sample] <= self._largest_whole_bytes(peer):
            table.move(sample, Verb.LOSE)
        return True

    def _largest_whole_bytes(self, waiter: Waiter) -> int:
        """The largest sample that is fetched whole: a reader is served sooner by parts, a node gets all or nothing."""
        whole_bytes = self._limits.largest_whole_bytes
        return max(whole_bytes, LARGEST_KEPT_BYTES) if waiter.is_peer else whole_bytes

    def begin(self, sample: int, now_s: float) -> None:
        """Fetch a sample for those who wait for it, even if the window has no room."""
        self._lane_due_s.pop(sample, None)
        if self._table.blocks.of(sample):
            for waiter in self._waiters.pop(sample, ()):  # by blocks, each from its place
                self._count(waiter, now_s)
                self._out.append(OpenDirect(waiter))
            return
        if self._table.state[sample] == State.ABSENT:
            self._window.make_room(self._table.footprint(sample))
        self._table.move(sample, Verb.DEMAND)
        place = self._routing.for_reader(sample, self._table.held_by[sample], self._keeping.owner(sample))
        self._fly(sample, place, 1, now_s)

    def _fly(self, sample: int, place: int, attempt: int, now_s: float) -> None:
        due_s = now_s + (self._limits.hedge_s if attempt == 1 else self._limits.timeout_s)
        self._flights[sample] = Flight(self._fetching.for_reader(sample, place), place, attempt, due_s)
        (self._hedges if attempt == 1 else self._timeouts).append((due_s, sample))

    def recalled(self, sample: int, now_s: float) -> bool:
        """A lane gave a sample back that it had not begun: fetch it for its readers. Returns whether there are any."""
        self._table.move(sample, Verb.FAIL)
        self._window.landed(sample, False)
        if sample not in self._waiters:
            return False
        self.begin(sample, now_s)
        return True

    # -- ends

    def landed(self, sample: int, now_s: float) -> None:
        """The sample's fetch has ended well: all who wait go on."""
        self._flights.pop(sample, None)
        self._lane_due_s.pop(sample, None)
        for waiter in self._waiters.pop(sample, ()):
            self._count(waiter, now_s)
            self._out.append(Answer(waiter))

    def outdated(self, sample: int, now_s: float) -> None:
        """The sample's fetch has ended, but what it brought may be outdated.

        Those who wait go on waiting: the sample is fetched anew once its pages are dropped. But not READs: they hold
        pages locked that the dropper may wait for.
        """
        self._flights.pop(sample, None)
        self._lane_due_s.pop(sample, None)
        waiters = self._waiters.pop(sample, [])
        for waiter in (one for one in waiters if one.in_read):
            self._count(waiter, now_s)
            self._out.append(OpenDirect(waiter))
        if waiters := [one for one in waiters if not one.in_read]:
            self._waiters[sample] = waiters

    def failed(self, sample: int, error: int, now_s: float, peer: bool = False) -> None:
        """The sample's fetch has failed: begin another one for those who wait, or refuse them.

        The sample is ABSENT now, or still FETCHING when the fetch was for a reader.

        Args:
            peer: a peer did not have it, which is no failure: the source is asked at once.
        """
        flight = self._flights.pop(sample, None)
        if flight is None:
            self._lane_due_s.pop(sample, None)
            if sample in self._waiters:
                self.begin(sample, now_s)
        elif peer:
            self._fly(sample, SOURCE, flight.attempt, now_s)
        elif flight.attempt == 1 and error not in FINAL_ERRORS:
            self._out.append(Count("source_retried"))
            self._fly(sample, flight.place, 2, now_s)
        else:
            self._refuse(sample, error, False, now_s)

    def _refuse(self, sample: int, error: int, timed_out: bool, now_s: float) -> None:
        self._table.move(sample, Verb.FAIL)
        self._window.landed(sample, False)
        for waiter in self._waiters.pop(sample, ()):
            self._count(waiter, now_s)
            self._out.append(Refuse(waiter, error, timed_out))

    def _count(self, waiter: Waiter, now_s: float) -> None:
        seconds = now_s - waiter.since_s
        self.waiting -= not waiter.in_read
        self.waited_s += 0.0 if waiter.in_read else seconds
        if not waiter.is_peer:
            self._readers -= 1
            self._waited_at_s = now_s
            if not waiter.in_read:
                self._rank_waits.waited(waiter.sample, seconds)

    # -- time

    def next_due_s(self) -> float:
        """When the next fetch has taken too long, infinity when nobody waits. Forgets fetches that have ended."""
        due_s = float("inf")
        for queue in (self._hedges, self._timeouts):
            while queue and not self._is_due(*queue[0]):
                queue.popleft()
            if queue:
                due_s = min(due_s, queue[0][0])
        return due_s

    def _is_due(self, due_s: float, sample: int) -> bool:
        flight = self._flights.get(sample)
        return (flight is not None and flight.due_s == due_s) or self._lane_due_s.get(sample) == due_s

    def time_passed(self, now_s: float) -> None:
        """Deal with the fetches that have taken too long."""
        for queue in (self._hedges, self._timeouts):
            while queue and queue[0][0] <= now_s + SAME_TIME_S:
                due_s, sample = queue.popleft()
                if not self._is_due(due_s, sample):
                    continue
                if sample in self._flights:
                    self._flight_hangs(sample, now_s)
                else:
                    self._lane_hangs(sample, now_s)

    def _flight_hangs(self, sample: int, now_s: float) -> None:
        """A reader's fetch hangs: ask the source instead of another place, or the source a second time."""
        flight = self._flights.pop(sample)
        self._fetching.forget(flight.fetch, sample)
        self._out.append(Abandon(flight.fetch))
        self._out.append(Count("source_timeout"))
        if flight.place != SOURCE:
            self._fly(sample, SOURCE, 1, now_s)
            return
        self._routing.come_back(now_s)
        if flight.attempt == 1:
            self._fly(sample, SOURCE, 2, now_s)
        else:
            self._refuse(sample, errno.ETIMEDOUT, True, now_s)

    def _lane_hangs(self, sample: int, now_s: float) -> None:
        """A lane's fetch hangs: those who wait are served without it. It may still end later."""
        del self._lane_due_s[sample]
        self._out.append(Count("prefetch_hung"))
        self._fetching.hangs(sample)
        unstaged = bool(self._table.held_by[sample]) and self._routing.passed_over[self._table.held_by[sample]]
        if unstaged:
            self._routing.come_back(now_s)
        small = self._table.sizes[sample] <= self._limits.largest_whole_bytes
        for waiter in self._waiters.pop(sample, ()):
            self._count(waiter, now_s)
            self._out.append(OpenDirect(waiter, unstaged and small))
