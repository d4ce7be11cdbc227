"""The rest of large files of which readers have asked for most by small ranges: it comes while nobody wants the source.

Pure. In: files. Out: fetches by lanes of the source that have nothing else to do, one block at a time and in their
order, so that a reader's range waits for no more than that. Nothing comes of a file that no place of this node has room
for: its blocks would take the room of ranges that were read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.states import SampleTable, State

# Blocks that one step looks at: those that are there already cost a moment each.
LOOKS_A_STEP = 256


class RestOfFiles:
    """Files whose missing blocks are brought.

    Attributes:
        has_more: there is more to look at, although no lane will report anything.
    """

    def __init__(self, table: SampleTable, keeping: Keeping, fetching: Fetching) -> None:
        self._table, self._keeping, self._fetching = table, keeping, fetching
        self._files: deque[Iterator[int]] = deque()
        self._under_way = -1
        self.has_more = False

    def bring(self, blocks: range) -> None:
        """Readers have asked for most of these blocks, which are a file."""
        of_file = slice(blocks.start, blocks.stop)
        missing_bytes = np.asarray(self._table.sizes)[of_file][self._table.holders[of_file] == 0].sum()
        if any(missing_bytes <= self._keeping.free_bytes(place) for place in self._keeping.stores):
            self._files.append(iter(blocks))

    def dispatch(self) -> None:
        """Give a lane that has nothing else to do the next block."""
        table, self.has_more = self._table, False
        if self._under_way >= 0 and table.state[self._under_way] == State.FETCHING:
            return
        self._under_way = -1
        for _ in range(LOOKS_A_STEP):
            if not self._files or not self._fetching.idle_lane_takes():
                return
            block = next(self._files[0], -1)
            if block < 0:
                self._files.popleft()
            elif table.state[block] == State.ABSENT and not table.held_by[block] and table.sizes[block]:
                if self._fetching.fill([block]):
                    self._files.clear()  # there is no room, or it is another node's to keep
                else:
                    self._under_way = block
                return
        self.has_more = True
