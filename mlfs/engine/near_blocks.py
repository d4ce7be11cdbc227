"""Blocks of this node's places that are put into the page cache whole, as READs come to them again and again.

In: READs of ranges that a place of this node has answered, on the loop. Out: pages pushed, in a worker. Nobody waits
for them.

A reader of rows here and there comes to each block several times, and each READ costs a request and a hop to a worker.
A block that has its second READ gets all of its pages: the third one is the kernel's own. The first READ brings no more
than was asked for: where a data set is much larger than memory, none comes to the same block soon.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mlfs.engine.fetch import Fetcher
from mlfs.engine.runner import Runner, start

POOL: Final = "near"
# Blocks whose first READ is remembered.
MOST_REMEMBERED: Final = 1 << 16
# Blocks that wait for the worker, at most. A further one has its turn with its next READ.
MOST_WAITING: Final = 4


class NearBlocks:
    """Which blocks were put into the page cache because they are read by ranges.

    Args:
        most: blocks at most, so that mlfs fills no more of the page cache than the staging window allows. The kernel
            may have taken back some of them: a block whose READs come again is none of them any more.
    """

    def __init__(self, runner: Runner, fetcher: Fetcher, most: int) -> None:
        self._runner, self._fetcher, self._most = runner, fetcher, most
        self._read_once: OrderedDict[int, None] = OrderedDict()  # in the order of these READs
        self._near: set[int] = set()
        self._waiting = 0

    def was_read(self, block: int, generation: int, place: int) -> None:
        """A range of the block was read from a place of this node, in this generation of its file."""
        if block not in self._read_once:
            self._near.discard(block)  # the kernel has taken it back
            self._read_once[block] = None
            if len(self._read_once) > MOST_REMEMBERED:
                self._read_once.popitem(last=False)
        elif self._waiting < MOST_WAITING and len(self._near) < self._most:
            del self._read_once[block]
            self._near.add(block)
            self._waiting += 1
            start(self._runner, POOL, self._fetcher.put_near, block, place, generation, then=self._is_over)

    def _is_over(self, _result: object, _error: BaseException | None) -> None:
        self._waiting -= 1
