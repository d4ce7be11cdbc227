"""Fetches ahead for strangers: readers who are of no job, and whose next reads are likely.

Pure. In: what a stranger reads next. `mlfs.follow.job` says it with each of his reads where his order is plain,
`mlfs.plan.scheduler.neighbours` where nobody follows him. Out: samples to fetch while no job needs the room or the
lane; samples whose counted use is over. A use is counted as a job's is, so that the pages stay until the stranger
comes. It is given up if he does not come soon, or a job needs the room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from mlfs.follow.evidence import Read
from mlfs.plan.scheduler.config import SAME_TIME_S
from mlfs.plan.scheduler.neighbours import Neighbours, NeighboursStatistics
from mlfs.plan.scheduler.states import SampleTable, State, Verb

PATIENCE_S = 1.0
"""How long pages wait for a stranger: he reads files one after the other, and stops without a word."""
SHARE_OF_WINDOW = 8
"""The most that strangers get is this part of the staging window: a few files ahead hide the source's latency, and what
a job needs next is never far away."""
DOUBTED = 64
"""Once pages that nobody needed were found gone, so many samples are not believed to be in the page cache any more: the
kernel takes pages back by the thousand, and what is there all the same is fetched once in vain."""
MOST_PROCESSES = 64
"""Strangers whose next reads are looked at, between two times that some are fetched: the last ones to read."""


class StrangersAhead:
    """The uses of strangers that are counted ahead, and the samples that strangers are likely to read next.

    Invariant: each sample of `_until_s` counts once in `SampleTable.pending`, and no other use is counted here.
    """

    def __init__(self, table: SampleTable) -> None:
        self._table = table
        self._until_s: OrderedDict[int, float] = OrderedDict()  # by sample, the soonest first
        self._bytes = 0
        self._doubted = 0
        # By process that has read since samples were last fetched: what it reads next as a job says, () if none does.
        self._go_on: OrderedDict[int, Sequence[int]] = OrderedDict()
        self._neighbours = Neighbours(table.sizes[: table.first_row], PATIENCE_S)

    def read(self, reads: Sequence[Read], coming: Sequence[int] = ()) -> list[int]:
        """Strangers, or readers whose order nobody knows, read samples. Returns those whose last counted use is over.

        Args:
            coming: what they read next, if a job says it; else it is told by what came after what so far.
        """
        over = []
        if self._table.blocks.rows:  # of a job that has just ended
            reads = [read for read in reads if read.sample < self._table.first_row]
        if self._until_s:
            ended = [read.sample for read in reads if self._until_s.pop(read.sample, None) is not None]
            over = [sample for sample in ended if self._over(sample)]
        self._neighbours.read(reads)
        for process in dict.fromkeys(read.process for read in reads):
            self._go_on[process] = coming
            self._go_on.move_to_end(process)
        while len(self._go_on) > MOST_PROCESSES:
            self._go_on.popitem(last=False)
        return over

    def pages_gone(self, sample: int) -> None:
        """Somebody read a sample whose pages the kernel had taken back."""
        if self._table.state[sample] == State.RECENT:
            self._doubted = DOUBTED

    def statistics(self) -> NeighboursStatistics:
        """Frozen figures of the reads that no job follows."""
        return self._neighbours.statistics()

    def fetch(self, now_s: float, reserve: Callable[[int], bool]) -> None:
        """No job needs more for now: fetch what a stranger reads next, as far as there is room.

        Args:
            reserve: has a sample fetched; False where all lanes of its place have work.
        """
        table, most_bytes = self._table, self._table.window_capacity_bytes // SHARE_OF_WINDOW
        go_on, self._go_on = self._go_on, OrderedDict()
        for sample in (
            sample for process, said in go_on.items() for sample in said or self._neighbours.coming(process)
        ):
            if sample in self._until_s or sample in table.readers:
                continue  # what somebody has open and is ABSENT is a large file, which he reads in parts
            if table.blocks.of(sample):
                continue  # places keep its blocks, and whoever reads them in order has them fetched ahead of him
            if self._doubted and table.state[sample] == State.RECENT:
                self._doubted -= 1
                table.move(sample, Verb.LOSE)
            if table.state[sample] != State.ABSENT:
                continue
            footprint = table.footprint(sample)
            if self._bytes + footprint > most_bytes or not table.fits_window(sample) or not reserve(sample):
                return
            table.expect(sample)
            self._bytes += footprint
            self._until_s[sample] = now_s + PATIENCE_S

    def counted(self, sample: int) -> int:
        """How many uses of a sample are counted here."""
        return int(sample in self._until_s)

    def expired(self, now_s: float) -> list[int]:
        """Give up uses whose stranger did not come. Returns the samples whose last counted use is over by that."""
        over = []
        while self._until_s and next(iter(self._until_s.values())) <= now_s + SAME_TIME_S:
            sample, _ = self._until_s.popitem(last=False)
            if self._over(sample):
                over.append(sample)
        return over

    def give_back(self) -> list[int]:
        """Give up all uses, as a job needs the room. Returns the samples whose last counted use is over by that."""
        return self.expired(float("inf"))

    def next_due_s(self) -> float:
        """When a patience ends next, infinity when nothing waits."""
        return next(iter(self._until_s.values()), float("inf"))

    def _over(self, sample: int) -> bool:
        self._bytes = max(0, self._bytes - self._table.footprint(sample)) if self._until_s else 0
        return bool(self._table.fulfil((sample,)))
