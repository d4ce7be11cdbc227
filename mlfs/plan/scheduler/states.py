"""A sample's life: one record a sample, and the one table of the transitions that are allowed.

Pure. In: verbs (what happens to a sample), predicted uses that come and go. Out: states, and the bytes of the staging
window. Every part of the scheduler changes a sample's state here and nowhere else; an illegal transition raises, as in
h11's `_state.py`: it is a bug, which tests see.

The record is a few bytes in arrays side by side, so that 100 million samples stay cheap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from mlfs.plan.file_blocks import FileBlocks
from mlfs.served.partition import PAGE_BYTES


class State:
    """The place of a sample's pages, as far as this node knows. For pages that the kernel has forgotten a READ comes.

    ABSENT    not in the page cache, and nothing is under way.
    QUEUED    room in the window is reserved; the sample waits for a lane.
    FETCHING  a lane has it, or a fetch for a reader who waits.
    STAGED    in the page cache, and a predicted use is to come.
    RECENT    in the page cache, and no predicted use is to come.
    DROPPING  queued for dropping; a reader or the look-ahead can still rescue it.
    GOING     handed to the dropper: it cannot be rescued any more.

    The states are plain ints and no enum, because they are compared several times for each read.
    """

    ABSENT: Final = 0
    QUEUED: Final = 1
    FETCHING: Final = 2
    STAGED: Final = 3
    RECENT: Final = 4
    DROPPING: Final = 5
    GOING: Final = 6


STATE_NAMES: Final = ("ABSENT", "QUEUED", "FETCHING", "STAGED", "RECENT", "DROPPING", "GOING")


class Verb:
    """The causes of transitions: all that happens to a sample.

    RESERVE   the look-ahead reserves room for it.     CANCEL  it is not needed any more, and no lane has begun it.
    BEGIN     a lane begins to fetch it.               DEMAND  a fetch for a reader who waits begins.
    LAND      its bytes are in the page cache.         FAIL    the fetch ended without that.
    EXPECT    a predicted use was counted ahead.       USED    the last predicted use is over.
    TOUCH     a reader rescues it from being dropped.  LET_GO  its pages shall be dropped.
    SEND      the dropper gets it.                     GONE    the dropper is done with it.
    LOSE      the kernel has taken its pages back.   FILL    a lane begins to fetch it, for this node's places only.
    """

    RESERVE: Final = 0
    CANCEL: Final = 1
    BEGIN: Final = 2
    DEMAND: Final = 3
    LAND: Final = 4
    FAIL: Final = 5
    EXPECT: Final = 6
    USED: Final = 7
    TOUCH: Final = 8
    LET_GO: Final = 9
    SEND: Final = 10
    GONE: Final = 11
    LOSE: Final = 12
    FILL: Final = 13


VERB_NAMES: Final = (
    "RESERVE", "CANCEL", "BEGIN", "DEMAND", "LAND", "FAIL", "EXPECT", "USED", "TOUCH", "LET_GO", "SEND", "GONE",
    "LOSE", "FILL",
)  # fmt: skip

ILLEGAL: Final = -1

# state -> verb -> next state. Any transition that is missing here is illegal. LAND leads to RECENT; where a predicted
# use is to come, the table goes on to STAGED by itself (`SampleTable.move`).
ALLOWED: Final[dict[int, dict[int, int]]] = {
    State.ABSENT: {Verb.RESERVE: State.QUEUED, Verb.DEMAND: State.FETCHING, Verb.FILL: State.FETCHING},
    State.QUEUED: {Verb.BEGIN: State.FETCHING, Verb.DEMAND: State.FETCHING, Verb.CANCEL: State.ABSENT},
    State.FETCHING: {Verb.LAND: State.RECENT, Verb.FAIL: State.ABSENT},
    State.STAGED: {Verb.USED: State.RECENT, Verb.LET_GO: State.DROPPING, Verb.LOSE: State.ABSENT},
    State.RECENT: {Verb.EXPECT: State.STAGED, Verb.LET_GO: State.DROPPING, Verb.LOSE: State.ABSENT},
    State.DROPPING: {Verb.EXPECT: State.STAGED, Verb.TOUCH: State.RECENT, Verb.SEND: State.GOING},
    State.GOING: {Verb.GONE: State.ABSENT},
}

_NEXT = [[ALLOWED[state].get(verb, ILLEGAL) for verb in range(len(VERB_NAMES))] for state in range(len(STATE_NAMES))]


class IllegalTransitionError(AssertionError):
    """A bug of the scheduler, or of a driver that reports what cannot have happened."""


def footprint_bytes(size_bytes: int) -> int:
    """The bytes that a sample occupies in the page cache: whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class SampleTable:
    """The records of all samples, and the staging window's budget.

    Attributes:
        state: see State.
        held_by: the number of the place of this node that holds a copy, 0 (the source) for none.
        pending: predicted uses that are counted ahead and not over; it saturates at 255.
        readers: how many readers hold each sample open; a sample that nobody holds open is missing.
        filling: samples that are FETCHING for this node's places only (`Verb.FILL`): they are not to be staged, and the
            window has no room for them.
        sizes: bytes by sample; changes are reported by `resize`.
        blocks: the files that are kept in blocks, and the rows of such files. Jobs read files or rows. Predicted uses
            of files in blocks are counted as those of others are; what is staged, dropped and kept are their blocks.
        first_row: all ids from there on are rows. has_rows: whether there are any.

    Invariants:
        window_bytes = sum of the footprints of all samples that are not ABSENT, but for those of `filling`.
        A sample in the page cache is STAGED exactly while its `pending` is above 0; `expect` and `fulfil` are the only
        ones that change `pending`, and the only ones that need to know this.
    """

    def __init__(self, sizes: memoryview, window_capacity_bytes: int, blocks: FileBlocks | None = None) -> None:
        self.blocks = FileBlocks.none(sizes) if blocks is None else blocks
        n_samples = self.blocks.rows.end
        self.first_row: Final = self.blocks.rows.first
        self.has_rows = False
        self.state = bytearray(n_samples)
        self.pending = bytearray(n_samples)
        self.held_by = bytearray(n_samples)
        self.readers: dict[int, int] = {}
        self.filling: set[int] = set()
        self.sizes = sizes
        self.window_capacity_bytes = window_capacity_bytes
        self.window_bytes = 0

    def grow(self) -> None:
        """Have records of all rows that there are by now."""
        self.has_rows = self.blocks.rows.end > self.first_row
        more = bytes(max(0, self.blocks.rows.end - len(self.state)))
        for column in (self.state, self.pending, self.held_by):
            column.extend(more)

    @property
    def kept_sizes(self) -> npt.NDArray[np.int64]:
        """Bytes by file and block: of what places keep. A row is kept by its blocks."""
        return np.asarray(self.sizes)[: self.first_row]

    @property
    def holders(self) -> npt.NDArray[np.uint8]:
        """`held_by` of files and blocks. Nobody may keep this view: there may come more rows."""
        return np.frombuffer(self.held_by, dtype=np.uint8)[: self.first_row]

    def set_window_capacity(self, capacity_bytes: int) -> None:
        """Make the window so large from now on. Pages that lie in it beyond that go as they are read."""
        self.window_capacity_bytes = capacity_bytes

    def footprint(self, sample: int) -> int:
        """Bytes the sample occupies in the page cache."""
        return footprint_bytes(self.sizes[sample])

    def fits_window(self, sample: int) -> bool:
        """Whether the window has room for the sample now."""
        return self.window_bytes + self.footprint(sample) <= self.window_capacity_bytes

    def move(self, sample: int, verb: int) -> int:
        """Change a sample's state, and the window's bytes with it; returns the new state."""
        old = self.state[sample]
        new = _NEXT[old][verb]
        if new == ILLEGAL:
            raise IllegalTransitionError(f"sample {sample}: {VERB_NAMES[verb]} in state {STATE_NAMES[old]}")
        if verb == Verb.FILL:
            self.filling.add(sample)
        elif sample in self.filling:  # it is over
            self.filling.discard(sample)
            self.window_bytes += footprint_bytes(self.sizes[sample]) if new != State.ABSENT else 0
        elif old == State.ABSENT:
            self.window_bytes += footprint_bytes(self.sizes[sample])
        elif new == State.ABSENT:
            self.window_bytes -= footprint_bytes(self.sizes[sample])
        if new == State.RECENT and self.pending[sample]:
            new = State.STAGED
        self.state[sample] = new
        return new

    def by_block(self, of_samples: bytearray) -> bytearray:
        """By file and block what is said of files and rows: a file in blocks, or a row, says it of its blocks, and not
        of itself."""
        if self.blocks.first == self.first_row:  # no file can have any
            return of_samples
        of_rows = self.blocks.members(of_samples)
        by_file = np.frombuffer(of_rows[: self.blocks.first], dtype=np.uint8).copy()
        by_block = self.blocks.of_files(by_file)
        by_rows = np.frombuffer(of_rows[self.blocks.first : self.first_row], dtype=np.uint8)
        by_block[: len(by_rows)] |= by_rows
        by_file[self.blocks.files_now()] = 0
        return bytearray(by_file.tobytes() + by_block.tobytes())

    def holder(self, sample: int) -> int:
        """The place of this node that holds the sample, 0 for none; of a file in blocks that which holds the first of
        them, where all of them are held."""
        if sample < self.blocks.first and self.sizes[sample] <= self.blocks.above_bytes:
            return self.held_by[sample]  # most samples: files that are one
        blocks = self.blocks.of(sample)
        if not blocks:
            return self.held_by[sample]
        return self.held_by[blocks.start] if 0 not in self.held_by[blocks.start : blocks.stop] else 0

    def has_part(self, sample: int) -> bool:
        """Whether a block or a row is there: its file may have become too short for it."""
        return bool(self.blocks.of(sample)) if sample >= self.first_row else self.sizes[sample] > 0

    def is_at_hand(self, sample: int) -> bool:
        """Whether the sample lies in the page cache, or each block that it lies in there or in a place of this node."""
        blocks, in_place = self.blocks.of(sample), (State.STAGED, State.RECENT)
        if self.state[sample] in in_place:
            return True
        return bool(blocks) and all(self.held_by[block] or self.state[block] in in_place for block in blocks)

    def in_state(self, samples: npt.NDArray[np.integer], *states: int) -> npt.NDArray[np.bool_]:
        """Which of these samples are in one of the states."""
        wanted = np.zeros(len(STATE_NAMES), np.bool_)
        wanted[list(states)] = True
        found: npt.NDArray[np.bool_] = wanted[np.frombuffer(self.state, dtype=np.uint8)[samples]]
        return found

    def are_at_hand(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """`is_at_hand` of each file or row."""
        there = self.in_state(samples, State.STAGED, State.RECENT)
        if self.blocks.first < self.first_row or self.has_rows:  # some may have blocks
            files = samples < self.blocks.first
            has_blocks = ~files
            has_blocks[files] = np.asarray(self.sizes)[samples[files]] > self.blocks.above_bytes
            for at in (has_blocks & ~there).nonzero()[0].tolist():
                there[at] = self.is_at_hand(int(samples[at]))
        return there

    def hold(self, sample: int, place: int) -> int:
        """Note that a place of this node holds a copy now; 0: none does. Returns the one that did."""
        before = self.held_by[sample]
        self.held_by[sample] = place
        return before

    def expect(self, sample: int) -> None:
        """Count one more predicted use ahead: pages that are in place stay until it is over."""
        if self.pending[sample] < 255:
            self.pending[sample] += 1
        state = self.state[sample]
        if state == State.RECENT:  # nothing else changes: a call would cost each read of a job
            self.state[sample] = State.STAGED
        elif state == State.DROPPING:
            self.move(sample, Verb.EXPECT)

    def fulfil(self, samples: Iterable[int]) -> list[int]:
        """Count a predicted use of each as over: it came, or was given up. Returns those of which it was the last."""
        pending, state, over = self.pending, self.state, []
        for sample in samples:
            left = pending[sample]
            if left > 1:
                pending[sample] = left - 1
                continue
            pending[sample] = 0
            if state[sample] == State.STAGED:
                state[sample] = State.RECENT  # as above
            over.append(sample)
        return over

    def opened(self, samples: Iterable[int]) -> None:
        """One more reader holds each of the samples open."""
        for sample in samples:
            self.readers[sample] = self.readers[sample] + 1 if sample in self.readers else 1

    def closed(self, samples: Iterable[int]) -> list[int]:
        """Readers closed the samples. Returns those that nobody holds open any more."""
        readers, free = self.readers, []
        for sample in samples:
            if sample in readers and readers[sample] > 1:
                readers[sample] -= 1
                continue
            if sample in readers:
                del readers[sample]
            free.append(sample)
        return free

    def resize(self, sample: int, old_bytes: int, new_bytes: int) -> None:
        """The sample's size has changed, and `sizes` has the new one: the window counts it."""
        if self.state[sample] != State.ABSENT and sample not in self.filling:
            self.window_bytes += footprint_bytes(new_bytes) - footprint_bytes(old_bytes)
