"""Blocks of this node's places that are put into the page cache, so that the kernel reads them by itself.

In: which blocks READs come to, on the loop. Out: pages, and bytes for READs that come meanwhile.

A reader of rows here and there comes to each block several times, and each READ costs a request and a hop to a worker.
A block that has its second READ gets all of its pages: the third one is the kernel's own. The first READ brings no more
than was asked for: where a data set is much larger than memory, none comes to the same block soon.

A reader in order will come to the next block: it is read, verified, and pushed but for its first page. The READ for
that tells that he has come there. So a block costs him one request, where the kernel's own read-ahead makes eight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from mlfs.engine.fetch import FIRST_PAGE_BYTES, Fetcher
from mlfs.engine.hot_contents import HotContent
from mlfs.engine.runner import Runner, start

# Threads that read blocks and push them.
POOL: Final = "near"
# Blocks whose first READ is remembered.
_MOST_READ_ONCE: Final = 1 << 16
# Blocks read by ranges that wait for the worker, at most: what it does in some 30 ms. A further one has its turn with
# its next READ: at 4 a fast reader of rows made up to 350 READs where he makes 90 to 150.
_MOST_WAITING: Final = 32
# First pages of blocks ahead of readers, at most: 1 MiB. A READ for another one is answered from its copy.
_MOST_FIRST_PAGES: Final = 256


class Coming:
    """A block that is read ahead of a reader, and put into the page cache if he is not there yet.

    A READ may wait for a thread that reads it, but for no thread that pushes, nor for one that is busy with a push: the
    READ holds pages that pushes need. So it waits for none that has not begun, and what it waits for is not pushed.

    Attributes:
        begun: whether a thread reads it. held: its bytes, from when they were read and verified. is_awaited: a READ
            waits for them. over: the thread is through.
    """

    __slots__ = ("begun", "generation", "held", "is_awaited", "over", "place")

    def __init__(self, generation: int, place: int) -> None:
        self.generation, self.place = generation, place
        self.begun = self.is_awaited = False
        self.held: HotContent | None = None
        self.over = trio.Event()

    async def is_here(self, limit_s: float) -> bool:
        """Wait until it was read, or cannot be; False where that takes too long."""
        self.is_awaited = True  # the thread sets `held`, then looks here: either it does not push, or `held` is set
        if self.held is None and self.begun:
            with trio.move_on_after(limit_s) as scope:
                await self.over.wait()
            return not scope.cancelled_caught
        return True


class NearBlocks:
    """Which blocks were put into the page cache, or are about to be. On the loop.

    Args:
        most: blocks at most that are read by ranges, so that mlfs fills no more of the page cache than the staging
            window allows. The kernel may have taken back some of them: a block whose READs come again is none of them
            any more.
        came: told of a block that was read ahead of a reader.

    Attributes:
        coming: by block, those ahead of readers that are under way.
    """

    def __init__(self, runner: Runner, fetcher: Fetcher, most: int, came: Callable[[int, Coming], None]) -> None:
        self._runner, self._fetcher, self._most, self._came = runner, fetcher, most, came
        self._read_once: OrderedDict[int, None] = OrderedDict()  # in the order of these READs
        self._near: set[int] = set()
        self._waiting: set[int] = set()  # of these, those that have not come yet
        self.coming: dict[int, Coming] = {}
        self._first_pages: OrderedDict[int, HotContent] = OrderedDict()

    def was_read(self, block: int, generation: int, place: int) -> None:
        """A range of the block was read from a place of this node, in this generation of its file."""
        if block in self._waiting:
            return
        if block not in self._read_once:
            self._near.discard(block)  # the kernel has taken it back
            self._read_once[block] = None
            if len(self._read_once) > _MOST_READ_ONCE:
                self._read_once.popitem(last=False)
        elif len(self._waiting) < _MOST_WAITING and len(self._near) < self._most:
            del self._read_once[block]
            self._near.add(block)
            self._waiting.add(block)
            start(self._runner, POOL, self._put, block, generation, place, then=partial(self._is_put, block))

    def _put(self, block: int, generation: int, place: int) -> None:
        """In a worker."""
        held = self._fetcher.near(block, place)
        if held is not None:
            self._fetcher.push_near(held, generation)

    def _is_put(self, block: int, _result: object, _error: BaseException | None) -> None:
        self._waiting.discard(block)

    # -- ahead of readers

    def bring(self, block: int, generation: int, place: int) -> None:
        """A reader in order will come to the block, which the place holds."""
        if block not in self.coming and block not in self._first_pages:
            coming = self.coming[block] = Coming(generation, place)
            then = partial(self._is_over, block, coming)
            start(self._runner, POOL, self._put_ahead, block, coming, then=then)

    def _put_ahead(self, block: int, coming: Coming) -> bool:
        """In a worker: whether it was pushed."""
        coming.begun = True
        found = self._fetcher.near(block, coming.place) if not coming.is_awaited else None
        if found is None or found.data is None:
            return False
        coming.held = HotContent(coming.generation, found.data, self._fetcher.places.kinds[coming.place])
        return not coming.is_awaited and self._fetcher.push_near(found, coming.generation, FIRST_PAGE_BYTES)

    def _is_over(self, block: int, coming: Coming, is_pushed: bool | None, _error: BaseException | None) -> None:
        del self.coming[block]
        if is_pushed and coming.held is not None:
            page = bytes(memoryview(coming.held.data)[:FIRST_PAGE_BYTES])
            self._first_pages[block] = coming.held._replace(data=page)
            if len(self._first_pages) > _MOST_FIRST_PAGES:
                self._first_pages.popitem(last=False)
        coming.over.set()
        self._came(block, coming)

    def given(self, block: int, generation: int, begin: int, end: int) -> HotContent | None:
        """A range of a block that is being pushed, or of the first page of one that was: the kernel has the rest."""
        coming = self.coming.get(block)
        # The kernel has the first page from now on.
        found = coming.held if coming is not None else self._first_pages.pop(block, None)
        if found is None or found.generation != generation or end > len(found.data):
            return None
        return found._replace(data=memoryview(found.data)[begin:end])
