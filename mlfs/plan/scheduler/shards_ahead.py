"""Large files that jobs read, or will: their blocks, in the order in which the readers need them.

Pure. In: files as the look-ahead comes to them, blocks that readers come to, files that are closed. Out: the block that
is needed soonest of those that were not looked at; blocks whose use is over.

The workers of a rank read at the same time, each a file of its own from front to back. So what is needed next is a
block of each worker's file in turn. A *line* is the files of one worker, one behind the other. The line that has least
ahead of its reader comes first, so that a worker who stands still does not hold up the others.

A block is staged without its first page, but for a file's first block. The READ of that page tells that a reader has
come to the block. He is still in the block before it maybe, as the kernel reads ahead: those before that one are over.
A reader who goes through a file in another order is noticed by the first pages that he leaves out, or comes back to:
the blocks that he leaves behind stay until he closes the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

from mlfs.plan.scheduler.states import SampleTable, State

# A reader who has come to one of so many last blocks of a file may have opened the next one.
AT_THE_END = 3


class _Line:
    """The files of one worker: a record, which `ShardsAhead` keeps.

    Attributes:
        coming: those that have blocks which were not looked at. to_fill: the same of `Shard.filled`.
        ahead: blocks that were looked at and whose use is not over.
    """

    __slots__ = ("ahead", "coming", "to_fill")

    def __init__(self) -> None:
        self.coming: deque[Shard] = deque()
        self.to_fill: deque[Shard] = deque()
        self.ahead = 0


class Shard:
    """A large file that a job reads, or will.

    Attributes:
        job, epoch: the number of the job's record, and what the read counts for.
        looked: blocks from the front that were looked at. filled: the same, or that were brought for places alone.
        over: blocks from the front whose use is over. last: the last block that a reader has come to, -1 before that.
        armed: blocks that were staged without their first page and that no reader has come to.
        in_order: whether it is read from front to back, as far as is known.
        again: who reads it after that.
    """

    __slots__ = (
        "again", "armed", "blocks", "epoch", "file", "filled", "in_order", "is_open", "job", "last", "line", "looked",
        "over",
    )  # fmt: skip

    def __init__(self, file: int, blocks: range, job: int, epoch: int, line: Hashable) -> None:
        self.file, self.blocks, self.job, self.epoch, self.line = file, blocks, job, epoch, line
        self.looked = self.filled = self.over = 0
        self.last = -1
        self.armed: set[int] = set()
        self.in_order, self.is_open = True, False
        self.again: deque[tuple[int, int, Hashable]] = deque()


class ShardsAhead:
    """The large files that jobs read or will read soon.

    Attributes:
        by_file: each of them. Others may read it.

    Invariant: a block's use counts in `SampleTable.pending` exactly from `Shard.over` to `Shard.looked`, but for blocks
    that a reader came to before the look-ahead did.
    """

    def __init__(self, table: SampleTable) -> None:
        self._table = table
        self.by_file: dict[int, Shard] = {}
        self._lines: dict[Hashable, _Line] = {}
        self._readers: dict[Hashable, Shard] = {}  # by line, the file that was opened last, if it is open
        self._unfinished = 0  # files that have blocks which were neither looked at nor filled
        self._may_fill = True

    # -- files come

    def expect(self, file: int, job: int, epoch: int, line: Hashable) -> None:
        """The look-ahead has come to a file. Args: line: what is alike for all files of one worker."""
        shard = self.by_file.get(file)
        if shard is None:
            self._add(file, job, epoch, line)
        else:
            shard.again.append((job, epoch, line))

    def opened(self, file: int, job: int, epoch: int, line: Hashable) -> None:
        """A reader of a job has opened a file. One who reads beside another of his line gets a line of his own."""
        shard = self.by_file.get(file) or self._add(file, job, epoch, line)
        if shard.is_open:
            return
        if self._table.readers.get(file) == 1:  # whoever has read it before is another one
            shard.last, shard.in_order = -1, True
        other = self._readers.get(shard.line)
        # A reader who opens the next file may not have closed the one before, and is at its end.
        if other is not None and other.last < len(other.blocks) - AT_THE_END:
            self._leave_line(shard)
            self._join_line(shard, (line, file))
        shard.is_open = True
        self._readers[shard.line] = shard

    def _add(self, file: int, job: int, epoch: int, line: Hashable) -> Shard:
        shard = self.by_file[file] = Shard(file, self._table.blocks.of(file), job, epoch, line)
        self._join_line(shard, line)
        self._unfinished += 1
        return shard

    def _join_line(self, shard: Shard, key: Hashable) -> None:
        line = self._lines.setdefault(key, _Line())
        shard.line = key
        line.ahead += shard.looked - shard.over
        if shard.looked < len(shard.blocks):
            line.coming.append(shard)
        if shard.filled < len(shard.blocks):
            line.to_fill.append(shard)

    def _leave_line(self, shard: Shard) -> None:
        line = self._lines[shard.line]
        line.ahead -= shard.looked - shard.over
        if self._readers.get(shard.line) is shard:
            del self._readers[shard.line]
        for of in (line.coming, line.to_fill):
            if shard in of:
                of.remove(shard)
        if not line.coming and not line.to_fill and not line.ahead and shard.line not in self._readers:
            del self._lines[shard.line]

    # -- which block comes next

    def are_enough(self, readers: int) -> bool:
        """Whether so many readers have something to read in the files that are known."""
        return self._unfinished >= readers

    def next(self) -> Shard | None:
        """The file whose block number `looked` is needed soonest; None for none."""
        line = min((line for line in self._lines.values() if line.coming), key=lambda line: line.ahead, default=None)
        return line.coming[0] if line is not None else None

    def took(self, shard: Shard) -> None:
        """The block that was next was looked at."""
        self._move(shard, shard.looked + 1, shard.over)

    def to_fill(self, most: int) -> list[int]:
        """Blocks behind those that were looked at, which no place of this node has: at most so many."""
        found: list[int] = []
        table = self._table
        while len(found) < most and self._may_fill:
            lines = [line for line in self._lines.values() if line.to_fill]
            if not lines:
                break
            shard = min(lines, key=lambda line: line.ahead + line.to_fill[0].filled - line.to_fill[0].looked).to_fill[0]
            block = shard.blocks[shard.filled]
            if not table.held_by[block] and table.state[block] == State.ABSENT and table.sizes[block]:
                found.append(block)
            self._fill(shard, shard.filled + 1)
        return found

    def no_room(self) -> None:
        """No place takes what was to be filled: nothing more until readers have gone on."""
        self._may_fill = False

    # -- how far readers are

    def landed(self, block: int) -> None:
        shard = self._of(block)
        if shard is not None and block != shard.blocks.start and block - shard.blocks.start > shard.last:
            shard.armed.add(block - shard.blocks.start)

    def ahead_of_reader(self, block: int) -> None:
        """A block is fetched for a reader who has come before the look-ahead did, and is not to be staged."""
        shard = self._of(block)
        if shard is not None:
            self._move(shard, max(shard.looked, block - shard.blocks.start + 1), shard.over)

    def reached(self, block: int) -> Sequence[int]:
        """A reader has come to a block. Returns the blocks whose use is over by that."""
        shard = self._of(block)
        if shard is None:
            return ()
        number = block - shard.blocks.start
        shard.armed.discard(number)
        left_out = any(shard.last < other < number for other in shard.armed)
        shard.in_order = shard.in_order and not left_out and number >= shard.last - 1
        shard.last = max(shard.last, number)
        alone = self._table.readers.get(shard.file) == 1 and not self._table.pending[shard.file]
        over = shard.last - 1 if shard.in_order and alone else 0
        return self._move(shard, max(shard.looked, number + 1), max(shard.over, over))

    def ended(self, files: Iterable[int]) -> list[int]:
        """No reader has these files open, or no use of them is to come. Returns the blocks whose use is over by that.

        A file that is open is over once it is closed; one that will be read again begins anew.
        """
        over: list[int] = []
        for file in files:
            shard = self.by_file.get(file)
            if shard is None or file in self._table.readers:
                continue
            if not shard.is_open and self._table.pending[file]:
                continue
            over += shard.blocks[shard.over : shard.looked]
            self._leave_line(shard)
            del self.by_file[file]
            self._unfinished -= not self._is_finished(shard)
            self._may_fill = True
            if shard.again and self._table.pending[file] and self._table.blocks.of(file):
                job, epoch, line = shard.again.popleft()
                self._add(file, job, epoch, line).again.extend(shard.again)
        return over

    def _of(self, block: int) -> Shard | None:
        return self.by_file.get(self._table.blocks.file_of(block)) if self.by_file else None

    def _move(self, shard: Shard, looked: int, over: int) -> Sequence[int]:
        """The look-ahead or the reader has come so far. Returns the blocks whose counted use is over."""
        line = self._lines[shard.line]
        looked = min(looked, len(shard.blocks))
        ended = shard.blocks[shard.over : min(over, shard.looked)]
        line.ahead += (looked - over) - (shard.looked - shard.over)
        if shard.looked < len(shard.blocks) <= looked:
            line.coming.remove(shard)
        self._may_fill = self._may_fill or over > shard.over
        shard.looked, shard.over = looked, over
        self._fill(shard, max(shard.filled, looked))
        return ended

    def _fill(self, shard: Shard, filled: int) -> None:
        if shard.filled < len(shard.blocks) <= filled:
            self._lines[shard.line].to_fill.remove(shard)
            self._unfinished -= 1
        shard.filled = filled

    def _is_finished(self, shard: Shard) -> bool:
        return shard.filled >= len(shard.blocks)
