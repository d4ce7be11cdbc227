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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mlfs.follow.evidence import Read

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
    """The ways to tell what comes next."""

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
            f"no job followed {self.reads:,} reads; of the last {JUDGED_READS} of them {said}:"
            f" {ahead} fetched ahead of such a reader"
        )


class _Reader:
    """A process: what it read last, and when; how often in a row it read as each rule said; how fast it reads."""

    __slots__ = ("adjacent", "at_s", "earlier", "interval_s", "last")

    def __init__(self, sample: int, at_s: float) -> None:
        self.last, self.at_s = sample, at_s
        self.interval_s = 0.0
        self.adjacent = self.earlier = 0


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
        # Its memoryview gives and takes one in half of the time.
        self._next = np.zeros(len(sizes) if len(sizes) <= MOST_REMEMBERED else 0, dtype=np.uint32).data
        self._readers: OrderedDict[int, _Reader] = OrderedDict()
        self._judged = {rule: deque[bool](maxlen=JUDGED_READS) for rule in Rule}
        self._reads = 0

    def read(self, reads: Iterable[Read]) -> None:
        """Processes read samples that no job follows, in this order. It is done for each read of an unknown job."""
        readers, adjacent, earlier = self._readers, self._judged[Rule.ADJACENT], self._judged[Rule.EARLIER]
        came_next = self._next
        for sample, process, _, at_s in reads:
            self._reads += 1
            reader = readers.get(process)
            if reader is None:
                readers[process] = _Reader(sample, at_s)
                if len(readers) > MOST_READERS:
                    readers.popitem(last=False)
                continue
            last = reader.last
            if sample == last:
                continue
            right = 0 < sample - last <= LONGEST_STEP
            adjacent.append(right)
            reader.adjacent = reader.adjacent + 1 if right else 0
            if came_next:
                if said := came_next[last]:
                    earlier.append(said == sample + 1)
                    reader.earlier = reader.earlier + 1 if said == sample + 1 else 0
                came_next[last] = sample + 1
            interval_s = max(0.0, at_s - reader.at_s)
            reader.interval_s = (3 * reader.interval_s + interval_s) / 4 if reader.interval_s else interval_s
            reader.last, reader.at_s = sample, at_s
            readers.move_to_end(process)

    def coming(self, process: int) -> list[int]:
        """The samples that a process is likely to read next, the next one first."""
        reader, rule = self._readers.get(process), self._used()
        if reader is None or rule is None:
            return []
        in_a_row = reader.adjacent if rule is Rule.ADJACENT else reader.earlier
        ahead = min(MOST_AHEAD, 1 << min(in_a_row, MOST_AHEAD))
        if reader.interval_s > 0.0:
            ahead = min(ahead, max(1, int(self._patience_s / reader.interval_s)))
        return self._adjacent(reader.last, ahead) if rule is Rule.ADJACENT else self._earlier(reader.last, ahead)

    def statistics(self) -> NeighboursStatistics:
        shares = tuple((rule, share) for rule in Rule if (share := self._share(rule)) is not None)
        return NeighboursStatistics(self._reads, shares, self._used())

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
            sample = self._next[sample] - 1
            if sample < 0 or sample in coming:
                break
            coming.append(sample)
        return coming
