"""The epochs of a job whose order is in memory, those whose order should be, and the reads that wait for one.

Pure. In: a specification and its streams, the epochs that the ranks are in, orders that were computed or could not be.
Out: the orders at hand by epoch, the epochs whose order is to be computed next. Used by `mlfs.follow.job`.

An order at hand is needed from the epoch before the slowest rank's (opens may come late) to the one after the fastest
rank's (loaders read ahead). Everything but `load` happens on the loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.evidence import TRIAL_READS
from mlfs.follow.matching import StreamMatcher
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams

# -- the linear positions of all epochs


class Timeline:
    """The bases of a job's epochs. The loop may ask, and at the same time threads that compute an epoch's order."""

    def __init__(self, spec: JobSpec, streams: JobStreams) -> None:
        self.spec = spec
        self.streams = streams
        self._bases = [0]  # an item never changes once it is there: see `base`

    @property
    def start(self) -> int:
        """Linear position at which every rank begins."""
        step = min(self.spec.start_step * self.streams.batch_files, self.streams.length(self.spec.start_epoch))
        return self.base(self.spec.start_epoch) + step

    @property
    def end(self) -> int:
        """Linear position after the last epoch."""
        return self.base(self.spec.epochs)

    def base(self, epoch: int) -> int:
        """Linear position of an epoch's first sample.

        Needs no lock: two threads that work out the same base put the same number at the same index. One that is behind
        the other replaces numbers by their equals, and never appends one out of turn.
        """
        bases = self._bases
        for at in range(len(bases), epoch + 1):
            bases[at : at + 1] = [bases[at - 1] + self.streams.length(at - 1)]
        return bases[epoch]

    def begin(self, epoch: int) -> int:
        """Index in the epoch's streams at which its reading begins."""
        return self.start - self.base(epoch) if epoch == self.spec.start_epoch else 0

    def epoch_of(self, position: int) -> int:
        """The epoch a linear position lies in; the last one for the end."""
        bases = self._bases
        while len(bases) < self.spec.epochs and bases[-1] <= position:
            self.base(len(bases))
        return bisect_right(bases, position, 1, min(len(bases), self.spec.epochs)) - 1


# -- the epochs at hand

LOADED_AHEAD = 2048
"""Samples a rank that are at hand ahead of the fastest rank, in a small tree. The loaders' workers read some hundred
samples ahead, which can be several short epochs."""
MOST_EPOCHS_AHEAD = 32
"""Epochs at hand ahead of the fastest rank, in a small tree. With few samples each, 2048 samples would be hundreds."""
SMALL_TREE = 1 << 17
"""Places for entries in a tree that counts as small: 65536, and as many that a refresh may add to any tree. An epoch at
hand costs four bytes for each of them, however short it is: 32 epochs of the largest small tree cost 16 MiB."""


class EpochsAtHand:
    """The orders of a job's epochs that are in memory.

    Attributes:
        timeline: the linear positions of all epochs.
        at_hand: the epochs whose order is known and needed, by number.
        first_length: samples a rank of the first epoch.
    """

    def __init__(self, spec: JobSpec, streams: JobStreams, n_entries: int) -> None:
        self.timeline = Timeline(spec, streams)
        self._at_hand: dict[int, EpochIndex] = {}
        self.at_hand: Mapping[int, EpochIndex] = MappingProxyType(self._at_hand)
        self.first_length = streams.length(spec.start_epoch)
        self._spec = spec
        self._streams = streams
        self._n_entries = n_entries
        self._last_found: EpochIndex | None = None  # one of those at hand
        self._being_computed: set[int] = set()
        self._failed: set[int] = set()

    # -- positions

    @property
    def end(self) -> int:
        return self.timeline.end

    def index_at(self, position: int) -> EpochIndex | None:
        """The epoch at hand that a linear position lies in."""
        last = self._last_found  # each read asks several times, nearly always for the same epoch
        if last is not None and last.base <= position < last.base + last.length:
            return last
        for index in self._at_hand.values():
            if index.contains(position):
                self._last_found = index
                return index
        return None

    def epoch_of(self, position: int) -> int:
        index = self.index_at(position)
        return index.epoch if index is not None else self.timeline.epoch_of(position)

    # -- what is at hand

    @property
    def first(self) -> EpochIndex | None:
        """The first epoch, None before it is at hand."""
        return self._at_hand.get(self._spec.start_epoch)

    def first_ones(self) -> dict[int, EpochIndex]:
        """The epochs that a trial's reads are of if the script is started again; they stay at hand. It is the first
        one alone, but for short epochs in a small tree."""
        start, enough = self._spec.start_epoch, self.timeline.start + TRIAL_READS
        stop = start + 1
        while self._n_entries <= SMALL_TREE and stop < self._spec.epochs and self.timeline.base(stop) < enough:
            stop += 1
        return {epoch: self._at_hand[epoch] for epoch in range(start, stop) if epoch in self._at_hand}

    @property
    def last(self) -> EpochIndex | None:
        """The job's last epoch, None before it is at hand."""
        return self._at_hand.get(self._spec.epochs - 1)

    def next_after(self, position: int) -> int:
        """The first epoch that is not at hand, from that on which a linear position lies in."""
        epoch = self.epoch_of(position)
        while epoch in self._at_hand:
            epoch += 1
        return epoch

    def may_come(self, epoch: int) -> bool:
        """Whether the job has an epoch, and its order may still be computed."""
        return epoch < self._spec.epochs and epoch not in self._failed

    def add(self, index: EpochIndex) -> None:
        """An epoch's order was computed."""
        self._being_computed.discard(index.epoch)
        self._at_hand[index.epoch] = index
        self._last_found = None

    def let_go(self, slowest: int) -> list[int]:
        """Let go of the epochs that all ranks have left, but for the first ones. Args: the slowest rank's epoch."""
        stay = self.first_ones()
        left = [epoch for epoch in self._at_hand if epoch < slowest - 1 and epoch not in stay]
        for epoch in left:
            del self._at_hand[epoch]
            self._last_found = None
        return left

    # -- what is wanted

    def missing(self, slowest: int, fastest: int) -> list[int]:
        """Epochs that should be at hand, are not, and are not being computed. Args: epochs of two ranks."""
        stop = fastest + 2
        if self._n_entries <= SMALL_TREE:
            enough = self.timeline.base(fastest) + LOADED_AHEAD
            most = min(self._spec.epochs, fastest + MOST_EPOCHS_AHEAD)
            while stop < most and self.timeline.base(stop) < enough:
                stop += 1
        wanted = range(max(self._spec.start_epoch, slowest - 1), min(stop, self._spec.epochs))
        there = self._at_hand.keys() | self._being_computed | self._failed
        return [epoch for epoch in wanted if epoch not in there]

    def wanted(self, slowest: int, fastest: int) -> list[int]:
        """Epochs to be computed now: one after the other, for reads that come early wait for the next one."""
        return [] if self._being_computed else self.missing(slowest, fastest)[:1]

    def asked(self, epoch: int) -> None:
        """An epoch's order is being computed."""
        self._being_computed.add(epoch)

    def failed(self, epoch: int) -> None:
        """Note that an epoch's order could not be computed."""
        self._being_computed.discard(epoch)
        self._failed.add(epoch)

    def load(self, epoch: int) -> EpochIndex:
        """Compute an epoch's order and its inverse. Any thread may call; nothing here changes by it."""
        streams = [self._streams.epoch_ids(epoch, rank) for rank in self._spec.ranks]
        refill = self._streams.refill(epoch, self._spec.ranks)
        return EpochIndex(
            epoch, self.timeline.base(epoch), streams, self._n_entries, self.timeline.begin(epoch), refill
        )


# -- reads that wait for one

MOST_HELD = 4096
"""Reads that may wait: more than any loader reads ahead. If an order takes longer, the reads go on without it."""

HeldRead = tuple[int, int, int, float]
"""Sample, process, its parent, when."""


class HeldReads:
    """Reads that wait until the order of the next epoch is at hand.

    In: reads, how far the ranks are, the epochs at hand. Out: whether a read waits; later the reads that waited, in
    their order.

    A loader's workers open the first samples of an epoch while others are still in the one before. When the order of
    that epoch is not at hand yet, such a read fits nothing: matched at once, it would count as wrongly predicted. So a
    read that fits nothing waits while a rank is near the end of what is at hand, and all reads after it wait with it,
    because they are matched in their order.

    Attributes:
        reads: those that wait. Others may look whether there are any: each read of a job does.
    """

    def __init__(self, epochs: EpochsAtHand) -> None:
        self._epochs = epochs
        self.reads: deque[HeldRead] = deque()
        self._next = epochs.next_after(epochs.timeline.start)  # the epoch after those at hand that the ranks come to
        self._near_end = True  # a rank may come to that one with its next reads
        self._near_from = 0  # the position from which on a rank is near it

    @property
    def may_hold(self) -> bool:
        """Whether a read that fits nothing waits, as it may be of an epoch whose order is not at hand."""
        return bool(self.reads) or (self._near_end and self._epochs.may_come(self._next))

    def hold(self, sample: int, process: int, parent: int, at_s: float, matcher: StreamMatcher) -> bool:
        """Whether a read waits. If so it is kept until `release`."""
        if not self.reads:
            if not self.may_hold or matcher.fits(sample, process):
                return False
        elif len(self.reads) >= MOST_HELD:
            return False
        self.reads.append((sample, process, parent, at_s))
        return True

    def rank_came_to(self, frontier: int) -> None:
        """A rank has read, and reads next at `frontier`."""
        if frontier >= self._near_from:
            self._near_end = True

    def look_ahead(self, furthest: int, lag: int) -> None:
        """Another epoch is at hand, or the ranks are elsewhere.

        Args:
            furthest: the frontier of the rank that is furthest. lag: how far from its frontier a rank may read.
        """
        self._next = self._epochs.next_after(furthest)
        self._near_from = self._epochs.timeline.base(self._next) - lag - 1
        self._near_end = furthest >= self._near_from

    def release(self) -> list[HeldRead]:
        """The reads that waited; they wait no more."""
        released = list(self.reads)
        self.reads.clear()
        return released
