"""The queue of a pool of lanes: samples that wait for a lane, lanes at work, and how many may work.

Pure. In: samples in the order of need, ends of fetches. Out: batches for lanes. A pool is a place's prefetch threads
(NoPFS, Section 4: the p_j threads of class j); all peers share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# How long a batch shall take a lane. A hop to a thread and back costs about as much as a sample from memory: it must
# be cheap beside the batch. A longer batch delays no reader, who takes his sample back if the lane has not begun it.
# With 2 ms a local source gave 8,000 samples a second, with 4 ms 9,300, with 8 ms 10,200 (medians of 5, 2 cores).
BATCH_S = 0.004
# The same of lanes whose work other processes do: a hop to one and back is four switches between threads, and counts in
# the time of a batch. With 4 ms half of the batches had a single sample on a busy machine, as its time was the hop's.
BATCH_OF_MOVERS_S = 0.016
# The most samples in a batch, however fast they are: the hop is cheap beside so many, and other lanes get work, too.
MOST_IN_BATCH = 64
# Where so many such batches of movers wait, they are twice as long: the code of a hop, which a mover's bytes have taken
# out of the processor's caches each time, is then shared by twice as many samples.
DEEP_BATCHES = 8
# A batch has this part of what waits for peers, divided by UNHURRIED_LANES (by all lanes, if those are fewer), where
# that is more than BATCH_S of work. All of a batch is asked for at once, and the first answer takes a millisecond or
# two, in which two agents are woken: with 4 ms of work lanes mostly wait for it. A larger part keeps what is needed
# soonest behind what is not: with an eighth, or with 30 ms of work, small epochs of the simulated cluster took 3 to 15
# % longer.
PEERS_PARTS = 16
# Lanes to peers while none of this node's readers waits: then what others' readers wait for takes precedence on the
# links. A node that is late at an epoch's end begins the next one with an empty window; with as many lanes for all it
# stayed late, while the others' windows were full.
UNHURRIED_LANES = 4
# Twice the lanes to peers stay whatever they give, as long as lanes mostly wait: a lane that waits for a peer costs
# next to nothing, and the rate over a slow link follows what other nodes ask for at that moment. Judged by it, a node
# that was late kept 4 lanes for whole epochs, while the others had 16.
PEERS_GAIN = 0.0
# The weight of a new batch in the smoothed time that a sample takes: about the last five batches count.
SMOOTHING = 0.2


class Wanted(NamedTuple):
    """A sample to fetch, and its place.

    Attributes:
        job, epoch: the number of the job's record, and the epoch for which bytes of the source are counted. A
            stranger's sample has neither.
    """

    sample: int
    place: int
    job: int = 0
    epoch: int = 0


@dataclass(eq=False, slots=True)
class Running:
    """A fetch of a lane. A lane whose fetch hangs does not count as working: another lane may take its place.

    Attributes:
        fills: it warms the places up, and more of that is likely to wait although nothing is queued.
    """

    fetch: int
    queue: PoolQueue
    samples: Sequence[int]
    lanes: int
    hangs: bool = False
    fills: bool = False

    def hang(self) -> None:
        """Somebody has waited for it too long: its lane does not count as working from now on."""
        self.give_back()
        self.hangs = True

    def give_back(self) -> None:
        """Its lane does not work any more."""
        if not self.hangs:
            self.queue.lane_ends()


@dataclass(eq=False, slots=True)
class PoolQueue:
    """Samples to fetch by one pool of lanes.

    Attributes:
        of_peers: whether this is the pool of the peers.
        sample_s: smoothed seconds that a sample takes a lane; decides how many make a batch.
        working: lanes at work whose fetch does not hang.
        batch_s: how long a batch shall take a lane. is_helped: whether movers do the work of some.
    """

    pool: int
    lanes: int
    of_peers: bool = False
    items: deque[Wanted] = field(default_factory=deque)
    sample_s: float = 0.001
    working: int = 0
    batch_s: float = BATCH_S
    is_helped: bool = False
    governor: LaneGovernor = field(init=False)

    def __post_init__(self) -> None:
        self.governor = LaneGovernor(self.lanes, PEERS_GAIN) if self.of_peers else LaneGovernor(self.lanes)

    def has_lane(self, urgent: bool) -> bool:
        """Whether another lane may work. Args: urgent: readers of this node wait, or did a moment ago."""
        return self.working < (UNHURRIED_LANES if self.holds_back(urgent) else self.governor.allowed)

    def holds_back(self, urgent: bool) -> bool:
        """Whether no more lanes are tried, since nobody is in a hurry: what they give says nothing of the most."""
        return self.of_peers and not urgent and self.governor.allowed >= UNHURRIED_LANES

    @property
    def batch_samples(self) -> int:
        """How many samples make about `batch_s` of work."""
        is_deep = self.is_helped and len(self.items) >= DEEP_BATCHES * MOST_IN_BATCH
        return (1 + is_deep) * max(1, min(MOST_IN_BATCH, int(self.batch_s / self.sample_s)))

    def helped_by(self, movers: int) -> None:
        """So many lanes may have other processes do their work."""
        self.governor.helped_by(movers)
        self.is_helped, self.batch_s = True, BATCH_OF_MOVERS_S

    def lane_begins(self) -> int:
        """A lane is at work; returns how many are."""
        self.working += 1
        return self.working

    def lane_ends(self) -> None:
        """A lane is free again, or hangs."""
        self.working -= 1

    def take(self, may_begin: Callable[[Wanted], bool]) -> list[Wanted]:
        """The next batch: about `batch_s` of work. Samples that may not begin leave the queue."""
        batch, items = list[Wanted](), self.items
        most = self.batch_samples
        if self.of_peers:
            part = len(self.items) // (PEERS_PARTS * min(self.lanes, UNHURRIED_LANES))
            most = max(most, min(MOST_IN_BATCH, part))
        while items and len(batch) < most:
            wanted = items.popleft()
            if may_begin(wanted):
                batch.append(wanted)
        return batch

    def ended(
        self, samples: int, work: float, wall_s: float, cpu_s: float, now_s: float, more: bool, urgent: bool
    ) -> None:
        """A batch is over: the governor decides by it how many lanes may work.

        Args:
            work: how many samples' bytes the place gave. more: whether more work waits. urgent: as for `has_lane`.
        """
        if samples:
            self.sample_s += SMOOTHING * (wall_s / samples - self.sample_s)
        if more and not self.holds_back(urgent):
            self.governor.done(samples, work, wall_s, cpu_s, now_s)
        else:
            self.governor.idle()


# -- how many lanes may work
#
# In: finished batches with their times, and whether work was waiting. Out: the number of lanes allowed. A slow source
# needs many lanes to hide its latency. One that answers from memory is limited by this process's interpreter, for which
# the lanes compete: there, 16 lanes gave a tenth of what one gave (docs/decisions/threads.md).

PERIOD_S = 0.02
"""The least time between two judgements: several batches of 4 ms, so that the best number is found within a second."""
FEWEST_SAMPLES = 16
"""The fewest samples of a judgement: on a slow source, a rate over fewer is mostly chance."""
HOLD_S = 3.0
"""How long a number is kept after twice as many lanes gave no more: a vain trial then costs less than a hundredth."""
FIRST_HOLD_S = 0.2
"""The same after the first trial, and four times as long after each one that follows: one may be vain by chance."""
GAIN = 1.15
"""The rate must grow by so much for twice the lanes to stay: more than it varies from one period to the next."""
BUSY_SHARE = 0.25
"""Lanes that compute for a larger share of their time are busy: more of them would only compete for the interpreter."""
BUSY_LANES = 2
"""So many lanes stay although they are busy; more only where others than this process compute for them."""


class LaneGovernor:
    """Doubles the lanes while they mostly wait and the rate grows by it, and goes back when the rate does not grow.

    Args:
        most: lanes. gain: how many times the rate must be what it was, for twice the lanes to stay; 0: they always
            stay.

    Attributes:
        allowed: lanes that may work now, 1..most. waits: whether they mostly waited when they were judged last.
    """

    def __init__(self, most: int, gain: float = GAIN) -> None:
        self.most = most
        self._gain = gain
        self._busy_lanes = min(BUSY_LANES, most)
        self.allowed = self._busy_lanes
        self.waits = False
        self._rate_before = 0.0
        self._tried_from = 0  # lanes before the last change, 0 when none is on trial
        self._hold_until = 0.0
        self._hold_s = FIRST_HOLD_S
        self._since: float | None = None
        self._samples = 0
        self._work = 0.0
        self._cpu_s = 0.0
        self._wall_s = 0.0

    def begin_with(self, lanes: int) -> None:
        """Begin with as many lanes as were measured to be enough; 0 when nothing was measured."""
        if lanes:
            self.allowed = max(1, min(lanes, self.most))

    def helped_by(self, movers: int) -> None:
        """So many lanes may compute in processes of their own."""
        self._busy_lanes = min(max(BUSY_LANES, movers), self.most)
        self.allowed = max(self.allowed, self._busy_lanes)

    def idle(self) -> None:
        """No work was waiting: this period says nothing about the place."""
        self._since = None

    def done(self, samples: int, work: float, wall_s: float, cpu_s: float, now_s: float) -> None:
        """A batch is finished while more work is waiting: it took its thread `wall_s`, of which `cpu_s` computing, and
        the place gave the bytes of `work` samples."""
        if self._since is None:
            self._begin(now_s)
            return
        self._samples += samples
        self._work += work
        self._wall_s += wall_s
        self._cpu_s += cpu_s
        passed = now_s - self._since
        if passed >= PERIOD_S and self._samples >= max(FEWEST_SAMPLES, 2 * self.allowed):
            self._judge(self._work / passed, self._cpu_s < BUSY_SHARE * self._wall_s, now_s)
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._since, self._samples, self._work, self._wall_s, self._cpu_s = now_s, 0, 0.0, 0.0, 0.0

    def _judge(self, rate: float, waits: bool, now_s: float) -> None:
        self.waits = waits
        if self._tried_from:
            tried_from, self._tried_from = self._tried_from, 0
            if rate < self._gain * self._rate_before:
                self.allowed = tried_from
                self._hold_until = now_s + self._hold_s
                self._hold_s = min(HOLD_S, 4 * self._hold_s)
                return
        if not waits:
            self.allowed = min(self.allowed, max(self._busy_lanes, self.allowed // 2))
        elif now_s >= self._hold_until and self.allowed < self.most:
            self._rate_before, self._tried_from = rate, self.allowed
            self.allowed = min(self.most, 2 * self.allowed)
