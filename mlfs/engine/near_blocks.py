"""Blocks of this node's places that are put into the page cache, so that the kernel reads them by itself.

In: which blocks READs come to, on the loop. Out: pages, and bytes for READs that come meanwhile.

A reader of rows here and there comes to each block several times, and each READ costs a request and a hop to a worker.
A block in memory that has its second READ gets all of its pages: the third one is the kernel's own. The first READ
brings no more than was asked for: where a data set is much larger than memory, none comes to the same block soon. The
first READ of a block on a disk takes all of the copy, as that is verified whole: so the kernel gets all of it then.

A reader in order will come to the next block: it is read, verified, and pushed but for its first page. The READ for
that tells that he has come there. So a block costs him one request, where the kernel's own read-ahead makes eight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from mlfs.engine.fetch import FIRST_PAGE_BYTES, Fetched, Fetcher
from mlfs.engine.hot_contents import HotContent, HotContents
from mlfs.engine.runner import Runner, start
from mlfs.plan.place_kind import PlaceKind

# Threads that read blocks and push them, and those that only read.
POOL: Final = "near"
HELD_POOL: Final = "held"
# Blocks whose first READ is remembered.
_MOST_READ_ONCE: Final = 1 << 16
# Blocks read by ranges that wait for the worker, at most: what it does in some 30 ms. A further one has its turn with
# its next READ: at 4 a fast reader of rows made up to 350 READs where he makes 90 to 150.
_MOST_WAITING: Final = 32
# Blocks that are under way ahead of readers, at most, and with those for READs twice as many: each is held meanwhile.
_MOST_COMING: Final = 16
# First pages of blocks ahead of readers, at most: 1 MiB. A READ for another one is answered from its copy.
_MOST_FIRST_PAGES: Final = 256


class Coming:
    """A block that is read ahead of a reader or for a READ, and put into the page cache.

    A READ may wait for a thread that reads it, but for none that pushes, nor for one that is busy with a push: the READ
    holds pages that pushes need. So it waits for no thread of those that push, unless that reads the block already,
    and what it waits for is pushed once it has its answer.

    Attributes:
        begun: whether it can be waited for. held: its bytes, from when they were read and verified. awaited_to: where
            the READs end that wait for it; 0: none does. over: it was read, or cannot be. is_pushed: all but its first
            page.
    """

    __slots__ = ("awaited_to", "begun", "from_begin", "generation", "held", "is_pushed", "over", "place")

    def __init__(self, generation: int, place: int, awaited_to: int = 0, from_begin: bool = False) -> None:
        self.generation, self.place, self.awaited_to, self.from_begin = generation, place, awaited_to, from_begin
        self.begun, self.is_pushed = bool(awaited_to), False
        self.held: HotContent | None = None
        self.over = trio.Event()

    async def is_here(self, end: int, limit_s: float) -> bool:
        """For a READ up to there: wait until it was read, or cannot be; False where that takes too long."""
        if self.held is None:
            self.awaited_to = max(self.awaited_to, end)
            # The thread sets `held`, then looks whether a READ waits: either it does not push, or `held` is set.
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
        hot: gets what the kernel does not take. gave: told of what a place gave ahead of a reader or for a READ.

    Attributes:
        coming: by block, those that are under way for that.
    """

    def __init__(
        self, runner: Runner, fetcher: Fetcher, most: int, hot: HotContents, gave: Callable[[PlaceKind, int], None]
    ) -> None:
        self._runner, self._fetcher, self._most, self._hot, self._gave = runner, fetcher, most, hot, gave
        self._read_once: OrderedDict[int, None] = OrderedDict()  # in the order of these READs
        self._near: set[int] = set()
        self._waiting: set[int] = set()  # of these, those that have not come yet
        self.coming: dict[int, Coming] = {}
        self._first_pages: OrderedDict[int, HotContent] = OrderedDict()

    def was_read(self, block: int, generation: int, place: int) -> None:
        """A range of the block was read from a place of this node, in this generation of its file."""
        if block not in self._waiting and len(self._waiting) < _MOST_WAITING and self._has_room(block):
            self._near.add(block)
            self._waiting.add(block)
            start(self._runner, POOL, self._put, block, generation, place, then=partial(self._is_put, block))

    def _has_room(self, block: int, first_too: bool = False) -> bool:
        """A READ comes to the block: whether all of it may come near, from its second READ on."""
        if block in self._near:  # the kernel has taken it back
            self._near.discard(block)
            first_too = False
        if block in self._read_once or first_too:
            if len(self._near) >= self._most:
                return False
            self._read_once.pop(block, None)
            return True
        self._read_once[block] = None
        if len(self._read_once) > _MOST_READ_ONCE:
            self._read_once.popitem(last=False)
        return False

    def _put(self, block: int, generation: int, place: int) -> None:
        """In a worker."""
        held = self._fetcher.near(block, place)
        if held is not None:
            self._fetcher.push_near(held, generation)

    def _is_put(self, block: int, _result: object, _error: BaseException | None) -> None:
        self._waiting.discard(block)

    # -- ahead of readers, and for READs

    def bring(self, block: int, generation: int, place: int) -> None:
        """A reader in order will come to the block, which the place holds."""
        if block not in self.coming and block not in self._first_pages and len(self.coming) < _MOST_COMING:
            coming = self.coming[block] = Coming(generation, place)
            then = partial(self._was_got, block, coming)
            start(self._runner, POOL, self._put_ahead, block, coming, then=then)

    def bring_now(self, block: int, generation: int, place: int, end: int, in_order: bool) -> bool:
        """A READ up to there waits for a block of a disk: whether all of it is read for it. It is waited for then."""
        if not in_order and not self._has_room(block, first_too=True):
            return False
        if not in_order:
            self._near.add(block)
        coming = self.coming[block] = Coming(generation, place, end, not in_order)
        start(self._runner, HELD_POOL, self._get, block, coming, then=partial(self._was_got, block, coming))
        return True

    def _get(self, block: int, coming: Coming) -> Fetched | None:
        """In a worker."""
        found = self._fetcher.near(block, coming.place)
        if found is not None and found.data is not None:
            coming.held = HotContent(coming.generation, found.data, self._fetcher.places.kinds[coming.place])
        return found

    def _put_ahead(self, block: int, coming: Coming) -> Fetched | None:
        """In a worker. Returns: what was got, and not pushed."""
        coming.begun = True
        found = self._get(block, coming) if not coming.awaited_to else None
        if found is None or coming.awaited_to:
            return found
        coming.is_pushed = self._fetcher.push_near(found, coming.generation, FIRST_PAGE_BYTES)
        return None

    def _was_got(self, block: int, coming: Coming, got: Fetched | None, _error: BaseException | None) -> None:
        coming.over.set()
        if coming.held is not None:
            self._gave(coming.held.kind, len(coming.held.data))
        if coming.is_pushed and coming.held is not None:
            page = bytes(memoryview(coming.held.data)[:FIRST_PAGE_BYTES])
            self._first_pages[block] = coming.held._replace(data=page)
            if len(self._first_pages) > _MOST_FIRST_PAGES:
                self._first_pages.popitem(last=False)
        if got is None or coming.held is None:
            self._forget(block, coming)
        elif len(self.coming) > 2 * _MOST_COMING:
            self._rest_was_pushed(block, coming, False, None)
        else:
            begin, then = 0 if coming.from_begin else coming.awaited_to, partial(self._rest_was_pushed, block, coming)
            start(self._runner, POOL, self._fetcher.push_near, got, coming.generation, begin, then=then)

    def _rest_was_pushed(
        self, block: int, coming: Coming, pushed: bool | None, _error: BaseException | None
    ) -> None:  # fmt: skip
        self._forget(block, coming)
        if not pushed and coming.held is not None:
            self._hot.add(block, coming.held)

    def _forget(self, block: int, coming: Coming) -> None:
        if self.coming.get(block) is coming:  # else a READ took too long, or went its own way
            del self.coming[block]

    def given(self, block: int, generation: int, begin: int, end: int) -> HotContent | None:
        """A range of a block that is being pushed, or of the first page of one that was: the kernel has the rest."""
        coming = self.coming.get(block)
        # The kernel has the first page from now on.
        found = coming.held if coming is not None else self._first_pages.pop(block, None)
        if found is None or found.generation != generation or end > len(found.data):
            return None
        return found._replace(data=memoryview(found.data)[begin:end])
