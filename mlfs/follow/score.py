"""Counts how many of a job's opens were predicted: of all, of the last ones, and of those of each epoch and rank.

Pure. In: opens, each with whether it was predicted (`mlfs.follow.tracker` finds out). Out: counts, shares, and the last
opens. Read through `mlfs.follow.matching`. An open's count can be taken back or moved: when it turns out to be another
job's, or when the matching has learned better what the job's processes read.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from mlfs.follow.evidence import UNTIMED, Read

RECENT_OPENS = 256
"""Opens that the recent agreement is about: a few batches, so that a wrong prediction shows within seconds."""
FEWEST_OPENS = 48
"""Opens before the prediction may be called wrong: the first ones can disagree while a loader's shape is not known."""
REMEMBERED_OPENS = 2048
"""Opens that are kept to be counted anew: enough for several batches of each worker, and cheap to go through."""
REMEMBERED_EPOCHS = 512
"""Epochs whose counts are kept. A job of a million short epochs must not grow for ever."""


class Cell:
    """Opens of one epoch and local rank (-1: no rank's), and how many of them were predicted."""

    __slots__ = ("agreed", "epoch", "observed", "rank_index")

    def __init__(self, epoch: int, rank_index: int) -> None:
        self.epoch = epoch
        self.rank_index = rank_index
        self.observed = 0
        self.agreed = 0

    def add(self, observed: int, agreed: int) -> None:
        """Count opens; negative numbers take counts back."""
        self.observed += observed
        self.agreed += agreed


class Open(NamedTuple):
    """An observed open, how it was counted, and the position it was matched to (-1: none).

    `again`: how often its process had opened its previous sample once more before it, which was not counted.
    """

    sample: int
    process: int
    parent: int
    cell: Cell
    agrees: bool
    rank_index: int
    position: int
    again: int = 0

    @property
    def read(self) -> Read:
        """The read, of which nobody knows any more when it came."""
        return Read(self.sample, self.process, self.parent, UNTIMED)


Matched = tuple[Cell, int, Sequence[int]]
"""Where a process's reads are counted, the rank that they are of, and their positions."""


class Score:
    """Counts a job's opens.

    Attributes:
        observed, agreed: opens, and how many of them were predicted.
        cells: the same by epoch and rank. Opens may have been counted elsewhere for some of these (`add`, `forget`).
    """

    def __init__(self, n_ranks: int) -> None:
        self.observed = 0
        self.agreed = 0
        self.cells: OrderedDict[tuple[int, int], Cell] = OrderedDict()
        self._history: deque[Open] = deque(maxlen=REMEMBERED_OPENS)
        # What comes behind it, and nobody has asked for yet.
        self._later: deque[tuple[Sequence[Read], Mapping[int, Matched]]] = deque()
        self._later_opens = 0
        self._most_cells = REMEMBERED_EPOCHS * (1 + n_ranks)
        self._disowned = 0
        self._incomplete = False
        self._in_a_row = 0  # the last opens, so many at least, were predicted: agreement is asked for all the time

    # -- counting

    def cell(self, epoch: int, rank_index: int) -> Cell:
        """The cell in which the opens of an epoch and rank are counted."""
        cell = self.cells.get((epoch, rank_index))
        if cell is None:
            cell = self.cells[epoch, rank_index] = Cell(epoch, rank_index)
            if len(self.cells) > self._most_cells:
                self.cells.popitem(last=False)
        return cell

    def count(self, opened: Open) -> None:
        cell, agrees = opened.cell, opened.agrees
        self.observed += 1
        cell.observed += 1
        if agrees:
            self.agreed += 1
            cell.agreed += 1
            self._in_a_row += 1
        else:
            self._in_a_row = 0
        self.history.append(opened)

    def count_predicted(self, reads: Sequence[Read], matched: Mapping[int, Matched]) -> None:
        """Count reads all of which were predicted. Args: matched: those of each process."""
        count = len(reads)
        self.observed += count
        self.agreed += count
        self._in_a_row += count
        for cell, _, positions in matched.values():
            cell.add(len(positions), len(positions))
        self._later.append((reads, matched))
        self._later_opens += count
        while self._later_opens - len(self._later[0][0]) >= REMEMBERED_OPENS:
            self._later_opens -= len(self._later.popleft()[0])

    @property
    def history(self) -> deque[Open]:
        """The last opens, the last one last. Repeated opens, which are not counted, are left out."""
        for reads, matched in self._later:
            places = {process: (*of[:2], iter(of[2])) for process, of in matched.items()}
            for sample, process, parent, _ in reads:
                cell, rank_index, positions = places[process]
                self._history.append(Open(sample, process, parent, cell, True, rank_index, next(positions)))
        self._later.clear()
        self._later_opens = 0
        return self._history

    @property
    def remembered(self) -> int:
        """How many opens the history has."""
        return min(REMEMBERED_OPENS, len(self._history) + self._later_opens)

    def add(self, epoch: int, rank_index: int, observed: int, agreed: int) -> None:
        """Add opens that were counted elsewhere."""
        self.cell(epoch, rank_index).add(observed, agreed)
        self.observed += observed
        self.agreed += agreed

    # -- correcting

    def disown(self, process: int, opens: int) -> None:
        self._incomplete = not self.complete
        own = [at for at, seen in enumerate(self.history) if seen.process == process][-opens:]
        for at in reversed(own):
            seen = self.history[at]
            if not seen.agrees:
                del self.history[at]
                self.observed -= 1
                self._disowned += 1
                seen.cell.add(-1, 0)

    def forget(self, opens: Iterable[Open]) -> None:
        """Opens will be counted elsewhere: take those of them that are still in the history out of the cells."""
        left = Counter((seen.sample, seen.process) for seen in opens)
        for seen in reversed(self.history):
            if left[seen.sample, seen.process] > 0:
                left[seen.sample, seen.process] -= 1
                seen.cell.add(-1, -int(seen.agrees))

    def count_late(self, process: int, opens: int, cell: Cell) -> None:
        """Count the first opens of a process as predicted after all, in the cell given.

        A process that was reading before its job was registered is found by what it opens: those opens came in the
        predicted order, only where in the order was not known yet. Nothing is done unless they are all that the process
        has opened, and as many as `opens` says.
        """
        own = [(at, seen) for at, seen in enumerate(self.history) if seen.process == process]
        if len(own) != opens or any(seen.agrees for _, seen in own):
            return
        for at, seen in own:
            self.agreed += 1
            seen.cell.add(-1, 0)
            cell.add(1, 1)
            self.history[at] = seen._replace(cell=cell, agrees=True)

    def agrees_after_all(self, sample: int, process: int, cell: Cell) -> None:
        """The last open of a sample by a process, which was not predicted, is now: it counts in the cell given."""
        for at in range(len(self.history) - 1, -1, -1):
            seen = self.history[at]
            if seen.sample == sample and seen.process == process and not seen.agrees:
                self.agreed += 1
                seen.cell.add(-1, 0)
                cell.add(1, 1)
                self.history[at] = seen._replace(cell=cell, agrees=True)
                return

    def go_on_from(self, before: Score) -> None:
        """Take over the counts of an earlier score, but for its history: this one has counted those opens anew."""
        anew = self.cells
        self.cells = OrderedDict((key, anew.get(key) or Cell(*key)) for key in before.cells)
        self.cells.update(anew)  # the order stays that in which the epochs were first read: the oldest goes first
        for key, cell in before.cells.items():
            self.cells[key].add(cell.observed, cell.agreed)
        self.observed += before.observed
        self.agreed += before.agreed
        for seen in before.history:
            agreed = int(seen.agrees)
            self.cell(seen.cell.epoch, seen.cell.rank_index).add(-1, -agreed)
            self.observed -= 1
            self.agreed -= agreed
        self._disowned = before.ever_observed - self.observed
        self._incomplete = not before.complete

    @property
    def ever_observed(self) -> int:
        """Opens that were counted once, whether they still are: it grows with each, and never falls."""
        return self.observed + self._disowned

    @property
    def complete(self) -> bool:
        """Whether the history is all that was ever counted."""
        return not self._incomplete and self.remembered < REMEMBERED_OPENS

    # -- agreement

    def agreement_of_last(self, opens: int) -> float:
        """Share of the last opens that were predicted; 0.0 before any."""
        if self._in_a_row >= min(opens, self.remembered) > 0:
            return 1.0
        agrees = [seen.agrees for seen in islice(reversed(self.history), opens)]
        return sum(agrees) / len(agrees) if agrees else 0.0

    def since(self, seen: int) -> list[Open]:
        """The opens that were counted since there were so many, as far as they are remembered."""
        count = max(0, min(self.observed - seen, len(self.history)))
        return list(islice(reversed(self.history), count))[::-1]

    @property
    def recent_opens(self) -> int:
        """How many opens `agreement` is about."""
        return min(RECENT_OPENS, self.remembered)

    @property
    def agreement(self) -> float | None:
        """Share of the last 256 opens that were predicted; None before any open."""
        return self.agreement_of_last(RECENT_OPENS) if self.remembered else None

    @property
    def drifting(self) -> bool:
        """Whether the prediction fails: under 50 % of the recent opens agreed."""
        return self.recent_opens >= FEWEST_OPENS and self.agreement_of_last(RECENT_OPENS) < 0.5
