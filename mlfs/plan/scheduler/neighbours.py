"""Likely next reads where nobody knows the order: files that lie next to each other, files that followed before.

Pure. In: reads that no job follows. Out: the samples that their reader is likely to read next, as long as such
predictions come true. Used by `mlfs.plan.scheduler.strangers_ahead`, which has them fetched as a stranger's.

An order may be random and still have runs: directories in a random order with the files of each in the order of their
names, shards that are read from the first file to the last, samples of several files. Two rules see that. *Adjacent*:
what comes next is the next file of the listing, or one a little further. *Earlier*: what comes next is what came next
the last time. Both are judged by each read, and only a rule that is right half of the time fetches anything.

A reader is believed step by step, as the kernel's own reading ahead does it: twice as far ahead with each read that
came as predicted, and from the beginning again after one that did not. So a run that ends costs no more than was read
of it. Samples that a reader would come to so late that their pages would not wait for him are not fetched.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

LONGEST_STEP = 4
"""Files that an adjacent reader may leave out at a time: labels beside images, what a worker beside it reads."""
JUDGED_READS = 64
"""The last reads, by which the rules are judged."""
FEWEST_JUDGED = 16
"""Reads before a rule is believed at all: what comes by chance in a small directory does not come so often."""
WORTH = 0.5
"""Share of the reads that must come as a rule says: below it more is fetched in vain than in time."""
MOST_AHEAD = 16
"""Samples that one reader gets ahead: enough to hide the latency of a source."""
MOST_READERS = 64
"""Processes that are remembered: eight ranks with eight workers each."""
MOST_REMEMBERED = 1 << 24
"""Samples of a mount for which it is remembered what came next, four bytes each; in a larger one adjacency must do."""


class Rule(StrEnum):
    """How what comes next is told."""

    ADJACENT = "the next file of the directory"
    EARLIER = "what came next the last time"


@dataclass(frozen=True, slots=True)
class NeighboursStatistics:
    """The reads that no job follows, and how often each rule was right about them.

    Attributes:
        reads: of them, so far. shares: of the last ones that came as a rule says; none while too few were seen.
        used: the rule by which samples are fetched ahead; None while none is right often enough.
    """

    reads: int = 0
    shares: tuple[tuple[Rule, float], ...] = ()
    used: Rule | None = None

    @property
    def words(self) -> str:
        """The rules in a sentence; "" while too little was read."""
        if not self.shares:
            return ""
        said = ", ".join(f"{share:.0%} were {rule}".replace("%", " %") for rule, share in self.shares)
        ahead = f"up to {MOST_AHEAD} files are" if self.used is not None else "nothing is"
        return (
            f"no job follows {self.reads:,} reads; of the last {JUDGED_READS} of them {said}:"
            f" {ahead} fetched ahead of such a reader"
        )


class _Reader:
    """A process: what it read last, and when; how often in a row it read as each rule said; how fast it reads."""

    __slots__ = ("at_s", "in_a_row", "interval_s", "last")

    def __init__(self, sample: int, at_s: float) -> None:
        self.last, self.at_s = sample, at_s
        self.interval_s = 0.0
        self.in_a_row = dict.fromkeys(Rule, 0)


class Neighbours:
    """The last reads of each process that no job follows, and the two rules, judged by them.

    Args:
        sizes: bytes by sample; what has none is no sample, or need not be fetched.
        patience_s: how long what was fetched waits for its reader.
    """

    def __init__(self, sizes: Sequence[int] | memoryview, patience_s: float) -> None:
        self._sizes = sizes
        self._patience_s = patience_s
        # One more than the sample that came next, 0 for none. The kernel gives memory only to those that are written.
        self._next = np.zeros(len(sizes) if len(sizes) <= MOST_REMEMBERED else 0, dtype=np.uint32)
        self._readers: OrderedDict[int, _Reader] = OrderedDict()
        self._judged = {rule: deque[bool](maxlen=JUDGED_READS) for rule in Rule}
        self._reads = 0

    def read(self, sample: int, process: int, at_s: float) -> None:
        """A process reads a sample that no job follows."""
        self._reads += 1
        reader = self._readers.get(process)
        if reader is None:
            self._readers[process] = _Reader(sample, at_s)
            if len(self._readers) > MOST_READERS:
                self._readers.popitem(last=False)
        elif sample != reader.last:
            self._judge(reader, sample)
            interval_s = max(0.0, at_s - reader.at_s)
            reader.interval_s = (3 * reader.interval_s + interval_s) / 4 if reader.interval_s else interval_s
            reader.last, reader.at_s = sample, at_s
            self._readers.move_to_end(process)

    def coming(self, process: int) -> list[int]:
        """The samples that a process is likely to read next, the next one first."""
        reader, rule = self._readers.get(process), self._used()
        if reader is None or rule is None:
            return []
        ahead = min(MOST_AHEAD, 1 << min(reader.in_a_row[rule], MOST_AHEAD))
        if reader.interval_s > 0.0:
            ahead = min(ahead, max(1, int(self._patience_s / reader.interval_s)))
        return self._adjacent(reader.last, ahead) if rule is Rule.ADJACENT else self._earlier(reader.last, ahead)

    def statistics(self) -> NeighboursStatistics:
        """Frozen figures."""
        shares = tuple((rule, share) for rule in Rule if (share := self._share(rule)) is not None)
        return NeighboursStatistics(self._reads, shares, self._used())

    def _judge(self, reader: _Reader, sample: int) -> None:
        """Compare a read with what each rule said, and remember what came next."""
        self._count(Rule.ADJACENT, reader, 0 < sample - reader.last <= LONGEST_STEP)
        if len(self._next):
            said = int(self._next[reader.last]) - 1
            if said >= 0:
                self._count(Rule.EARLIER, reader, said == sample)
            self._next[reader.last] = sample + 1

    def _count(self, rule: Rule, reader: _Reader, right: bool) -> None:
        self._judged[rule].append(right)
        reader.in_a_row[rule] = reader.in_a_row[rule] + 1 if right else 0

    def _share(self, rule: Rule) -> float | None:
        judged = self._judged[rule]
        return sum(judged) / len(judged) if len(judged) >= FEWEST_JUDGED else None

    def _used(self) -> Rule | None:
        """The rule that is right most often, None where neither is right often enough."""
        shares = [(share, rule) for rule in Rule if (share := self._share(rule)) is not None and share >= WORTH]
        return max(shares, key=lambda one: one[0])[1] if shares else None

    def _adjacent(self, sample: int, ahead: int) -> list[int]:
        following = range(sample + 1, min(len(self._sizes), sample + 1 + ahead))
        return [other for other in following if self._sizes[other] > 0]

    def _earlier(self, sample: int, ahead: int) -> list[int]:
        coming: list[int] = []
        while len(coming) < ahead:
            sample = int(self._next[sample]) - 1
            if sample < 0 or sample in coming:
                break
            coming.append(sample)
        return coming
