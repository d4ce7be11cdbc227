"""READs of large files, answered by blocks: each is a sample, got from a tier, a peer or the source as any other.

In: READs of files that are in blocks, on the loop. Out: bytes. A READ that needs a block waits for it as an OPEN waits
for a small file: the scheduler chooses the place, has it fetched once for all who want it, and kept where is room.
A block that a READ waits for is not put into the page cache by mlfs: the READ holds pages locked, and the kernel keeps
what it was given.

A reader who goes through a file in order gets whole blocks, and further ones are fetched ahead of him, twice as many
each time that he comes to a new one. A reader of small ranges here and there gets what he asked for, until nearly all
of a block was asked for: then the rest of it comes as well, once (`mlfs.places.pieces`). A block that a place of this
node holds is put into the page cache at the second such READ.

Blocks of a file that a job reads are staged ahead of its readers (`mlfs.plan.scheduler.shards_ahead`). A READ of one
comes for its first page, which tells how far the reader is, and for pages that the kernel has taken back.
"""

from __future__ import annotations

import errno
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from mlfs.engine.context import Context, MountLimits
from mlfs.engine.counted_opens import CountedOpens
from mlfs.engine.digest import Digest
from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.engine.hot_contents import HotContent, HotContents
from mlfs.engine.near_blocks import NearBlocks
from mlfs.engine.pagecache import Buffer
from mlfs.engine.runner import start
from mlfs.engine.write_behind import WriteBehind
from mlfs.limits import lacking
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.events import AheadOfReader, BlockReached, MostWasAsked, Waiter, Waits
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State

log = logging.getLogger("mlfs.engine")

# A reader who has read so much in order goes on, most likely: three READs, as of 600 windows here and there in 300 MB
# several come just behind another one by chance. Until then he costs the source no more than he asks for.
IN_ORDER_BYTES: Final = 320 << 10
# A READ may leave out so much and still go on: pages that the kernel has already.
GAP_BYTES: Final = 128 << 10
# The rest of a block comes as well once a reader of small ranges has left out so small a part of it: he costs the
# source little more than he asked for, and most of the last requests for a block are one.
LITTLE_LEFT: Final = 1 / 8
# Once ranges have brought more than this part of a file, its rest comes while nobody else wants the source: who has
# read so much here and there reads all of it, mostly.
MOST: Final = 1 / 2
# Blocks that are fetched ahead of one reader, at most: at 1 MiB a block enough for 1 GB/s at a latency of 8 ms.
MOST_AHEAD: Final = 8
# The same of blocks that a disk of this node holds, or half of what the reader has read in order if that is more. A row
# group ends soon, and what is fetched behind it is read and verified in vain.
MOST_AHEAD_NEAR: Final = 2
# Readers of one file that are told apart by where they are, and files whose readers are remembered.
MOST_STREAMS: Final = 16
MOST_FILES: Final = 1024
# A reader in order who asks for nothing so long has stopped, or computes: a block may be brought for another one.
GOES_ON_S: Final = 2.0
# A place that has not given a range in time is asked for none so long: each costs a reader that time, and a thread.
HUNG_S: Final = 60.0
# A read of the source waits so long for another one of the same bytes; a source that is well takes less.
SAME_BYTES_S: Final = 1.0
# A block in one of these states comes whole, whoever asks for it.
COMING: Final = (State.QUEUED, State.FETCHING)
# Threads for what nobody waits for.
_UNAWAITED_POOL: Final = "near"
# A block that others have fetched, and that is gone before it could be taken, is asked for again so often.
TRIES: Final = 3


HandedOut = Callable[[PlaceKind, int], None]
"""A listener for bytes that were handed out: the place that they came from, and how many they are."""
Spent = list[OSError | None]
"""What became of a try at the source that counts as the first one, until that is taken out: its error; None: it
hangs."""


class WaitingRead(Waiter):
    """A READ that waits for a block (see `mlfs.engine.demand.Answerable`); `over` is set in the end.

    Attributes:
        brought: what was fetched for it; None where others had it fetched. by_itself: it is to read the source's file.
    """

    __slots__ = ("brought", "by_itself", "error", "over")

    def __init__(self, block: int, since_s: float) -> None:
        super().__init__(block, since_s, in_read=True)
        self.over = trio.Event()
        self.brought: Fetched | None = None
        self.by_itself = False
        self.error: OSError | None = None

    def in_place(self, source_bytes: int) -> bool:
        """From a worker: blocks have no pages that are put in place."""
        return False

    def answer(self, brought: Fetched | None) -> None:
        """The block is here, or a place of this node has it by now."""
        self.brought = brought
        self.over.set()

    def open_direct(self, unstaged: bool) -> None:
        """Nobody fetches it in time."""
        self.by_itself = True
        self.over.set()

    def refuse(self, error: OSError) -> None:
        """The source failed."""
        self.error = error
        self.over.set()


class _Flight:
    """A block that is being fetched whole for the READs of one generation; how that has ended, once it is `over`.

    Attributes:
        brought: whether the block is there. error: why not; None where each READ is to go on by itself.
    """

    __slots__ = ("brought", "error", "generation", "over")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.over = trio.Event()
        self.brought = False
        self.error: OSError | None = None


class FromSource:
    """Ranges of blocks that the source is asked for, for one READ.

    Attributes:
        parts: by block, from where to where in it, in the order of the file.
        over: set once their bytes are among the pieces, or have failed to come. is_awaited: whether others wait for it.
    """

    __slots__ = ("entry", "generation", "is_awaited", "over", "parts")

    def __init__(self, entry: int, generation: int, parts: list[tuple[int, int, int]]) -> None:
        self.entry, self.generation, self.parts = entry, generation, parts
        self.over = trio.Event()
        self.is_awaited = False


class _Stream:
    """A reader who goes through a file: what he has read in order, how many blocks are ahead of him.

    Attributes:
        end: of his last READ. to: how far the kernel has what is behind that.
    """

    __slots__ = ("ahead", "begun", "end", "read_bytes", "to")

    def __init__(self, begin: int) -> None:
        self.end = self.to = begin
        self.read_bytes = 0
        self.ahead = 0
        self.begun = -1  # the number of the last block that was fetched ahead


class BlockReads:
    """Reads of files in blocks.

    Args:
        once: makes a blocking call in a pool; None where it fails. It raises trio.TooSlowError.
        twice: makes one on the source, and once more where it fails or hangs.
        limits: its hedge_s, and staging_bytes: of blocks that are put into the page cache as they are read by ranges.
    """

    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        fetcher: Fetcher,
        write_behind: WriteBehind,
        digest: Digest,
        counted: CountedOpens,
        hot: HotContents,
        once: Callable[..., Awaitable[Any]],
        twice: Callable[..., Awaitable[Any]],
        limits: MountLimits,
    ) -> None:
        self._step, self._clock = context.step, context.clock
        self._table, self._keeping, self._where = scheduler.table, scheduler.keeping, scheduler.where
        self._shards = scheduler.shards.by_file
        self._fetcher, self._samples = fetcher, fetcher.samples
        self._manifest, self._places = fetcher.samples.manifest, fetcher.places
        self._write_behind, self._digest, self._counted = write_behind, digest, counted
        self._hot, self._once, self._twice = hot, once, twice
        self._flights: dict[int, _Flight] = {}
        self._ranges: dict[int, list[FromSource]] = {}  # by block, what the source is asked for
        self._streams: OrderedDict[int, list[_Stream]] = OrderedDict()  # by file; who has read last stands last
        self._in_order: OrderedDict[_Stream, float] = OrderedDict()  # when each read last; who did so last stands last
        self._given_bytes: OrderedDict[int, int] = OrderedDict()  # by file, what ranges have brought from the source
        self._hung_s: dict[int, float] = {}  # when a place did not give a range in time
        self._ahead = 0  # blocks that are being fetched ahead
        self._runner, self._tidies = context.runner, False
        self._block_bytes = self._samples.file_blocks.block_bytes
        self._near = NearBlocks(
            context.runner, fetcher, limits.staging_bytes // max(1, self._block_bytes), hot, counted.gave
        )
        self._hedge_s = limits.hedge_s
        self._most_at_once = hot.most_bytes // max(1, 2 * self._block_bytes)  # half of what can be held

    def kept(self, entry: int) -> bool:
        """Whether places of this node hold all blocks of a file, so that the source need not be asked."""
        blocks = self._samples.blocks_of(entry)
        return bool(blocks) and 0 not in self._table.held_by[blocks.start : blocks.stop]

    def reached_bytes(self, entry: int) -> int:
        """How far a reader of a job's file has come, in bytes."""
        shard = self._shards.get(entry)
        come = (shard.last + 1) * self._block_bytes if shard is not None else 0
        return min(come, self._manifest.size_view[entry])

    def staged_bytes(self, entry: int) -> int:
        """Bytes of a job's file that a reader who opens it finds in the page cache, and of which no READ will tell."""
        table, first_pages = self._table, self._fetcher.first_pages
        blocks = self._samples.blocks_of(entry) if entry in self._shards else ()
        in_place = (block for block in blocks if table.state[block] in (State.STAGED, State.RECENT))
        return sum(table.sizes[block] for block in in_place if block not in first_pages)

    def kind_of(self, entry: int) -> PlaceKind:
        """The place that most of a file comes from that this node holds."""
        return self._places.kinds[self._table.held_by[self._samples.blocks_of(entry).start]]

    async def read(
        self, entry: int, generation: int, offset: int, size: int, count: HandedOut, spent: Spent | None = None
    ) -> Buffer:  # fmt: skip
        """Bytes of the file as it is in this generation; fewer where it ends. Raises: OSError; ESTALE if it changes.

        Args:
            count: told of the places that the bytes came from.
            spent: of tries at the source, see `mlfs.engine.range_reads`.
        """
        end = min(offset + size, self._manifest.size_view[entry])
        if offset >= end:
            return b""
        blocks, block_bytes = self._samples.blocks_of(entry), self._block_bytes
        stream = self._comes_to(entry, generation, blocks, offset, end)
        parts: list[Buffer] = []
        while offset < end:
            number = offset // block_bytes
            first, stop = number * block_bytes, min(end, (number + 1) * block_bytes)
            if number >= len(blocks):  # of a file that has grown since the mount
                stop = end
                parts.append(await self._twice("read", self._fetcher.read_behind_blocks, entry, offset, end - offset))
                self._check(entry, generation)
                self._count_range(entry, len(parts[-1]), len(parts[-1]), count)
            else:
                begin, end_of_part = offset - first, stop - first
                parts.append(
                    await self._part(blocks[number], entry, generation, begin, end_of_part, stream, count, spent)
                )  # fmt: skip
            offset = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def at_once(self, entry: int, generation: int, offset: int, size: int, count: HandedOut) -> Buffer | None:
        """The same where all of it lies in memory, without waiting; None where it does not, or the file has changed."""
        wanted = self._parts_of(entry, generation, offset, size)
        if wanted is None:
            return None
        parts, blocks, end = wanted
        found: list[tuple[int, PlaceKind, Buffer, int]] = []  # with the bytes that count as handed out
        given_bytes, passed_to = 0, 0
        for block, begin, stop in parts:
            held = self._hot.get(block, generation)
            if held is not None:
                found.append((block, held.kind, memoryview(held.data)[begin:stop], stop - begin))
                continue
            ahead = self._near.given(block, generation, begin, stop)
            if ahead is not None:
                size_bytes = self._table.sizes[block]
                passed_to = self._samples.offset_of(block) + size_bytes
                found.append((0, ahead.kind, ahead.data, 0 if begin else size_bytes))  # he goes through it
                continue
            place, is_staged = self._table.held_by[block], self._table.state[block] in (State.STAGED, State.RECENT)
            if self._places.kinds[place] is not PlaceKind.RAM or is_staged or self._held_by(block) != place:
                return None
            data = self._of_memory(block, place, begin, stop - begin)
            if data is None:
                return None
            given_bytes += len(data)
            found.append((block, PlaceKind.RAM, data, len(data)))
        if given_bytes:
            self._counted.gave(PlaceKind.RAM, given_bytes)
        stream = self._comes_to(entry, generation, blocks, offset, end)
        stream.to = max(stream.to, passed_to)
        for block, kind, _, counted_bytes in found:
            count(kind, counted_bytes)
            if block:
                self._bring_near(block, entry, generation, self._table.held_by[block], stream)
        return found[0][2] if len(found) == 1 else b"".join(data for _, _, data, _ in found)

    def _parts_of(
        self, entry: int, generation: int, offset: int, size: int
    ) -> tuple[list[tuple[int, int, int]], range, int] | None:  # fmt: skip
        """The parts of blocks that a READ wants, each as (block, begin, end); the file's blocks; where the READ ends.

        Returns None where the READ goes behind the file's blocks, or the file has changed.
        """
        end, blocks, block_bytes = (
            min(offset + size, self._manifest.size_view[entry]), self._samples.blocks_of(entry), self._block_bytes
        )  # fmt: skip
        first, stop = offset // block_bytes, -(-end // block_bytes)
        if offset >= end or stop > len(blocks) or self._manifest.generation_view[entry] != generation:
            return None
        if first + 1 == stop:  # as nearly all READs
            return [(blocks[first], offset - first * block_bytes, end - first * block_bytes)], blocks, end
        begins = [max(offset - number * block_bytes, 0) for number in range(first, stop)]
        ends = [min(end - number * block_bytes, block_bytes) for number in range(first, stop)]
        return [*zip(blocks[first:stop], begins, ends, strict=True)], blocks, end

    def _comes_to(self, entry: int, generation: int, blocks: range, offset: int, end: int) -> _Stream:
        """A reader comes to a range: note who, and have what is ahead of him fetched."""
        block_bytes, stream = self._block_bytes, self._stream(entry, offset, end)
        if entry in self._shards:
            self._tell(entry, blocks[offset // block_bytes : -(-end // block_bytes)])
        if stream.read_bytes >= IN_ORDER_BYTES:
            self._fetch_ahead(stream, entry, blocks, (end - 1) // block_bytes, generation)
        return stream

    def _bring_near(self, block: int, entry: int, generation: int, place: int, stream: _Stream) -> None:
        """A READ was answered from memory or a place of this node: the kernel may get all of the block.

        It does not for a reader who goes through the file, for whom the kernel has asked for the rest already, and not
        where a job reads the file by blocks or rows: then READs have to tell where its readers are.
        """
        if place and stream.read_bytes < IN_ORDER_BYTES and not self._is_followed(entry):
            self._near.was_read(block, generation, place)

    def _tell(self, entry: int, blocks: range) -> None:
        """Tell of the blocks of a READ of a job's file that its reader was not known to have come to."""
        shard = self._shards[entry]
        for block in blocks:
            if block - shard.blocks.start != shard.last and entry in self._shards:
                self._step(BlockReached(block))

    def _stream(self, entry: int, offset: int, end: int) -> _Stream:
        """The reader of this range: the one who goes on here, or another one."""
        streams = self._streams.get(entry)
        if streams is None:
            streams = self._streams[entry] = []
            if len(self._streams) > MOST_FILES:
                self._streams.popitem(last=False)
        self._streams.move_to_end(entry)
        stream = self._who_goes_on(entry, offset)
        if stream is not None:
            streams.remove(stream)
        else:
            stream = _Stream(offset)
        streams.append(stream)
        del streams[:-MOST_STREAMS]
        stream.read_bytes += end - (stream.end if offset <= stream.to else offset)
        stream.end = stream.to = end
        if stream.read_bytes >= IN_ORDER_BYTES:
            now_s = self._clock()
            self._in_order[stream] = now_s
            self._in_order.move_to_end(stream)
            while next(iter(self._in_order.values())) < now_s - GOES_ON_S:
                self._in_order.popitem(last=False)
        return stream

    def _who_goes_on(self, entry: int, offset: int) -> _Stream | None:
        """The reader of whom a READ from there may be the next one."""
        for stream in reversed(self._streams.get(entry, ())):
            if stream.end <= offset <= stream.to + GAP_BYTES:
                return stream
        return None

    # -- one block

    async def _part(
        self, block: int, entry: int, generation: int, begin: int, end: int, stream: _Stream, count: HandedOut,
        spent: Spent | None, has_waited: bool = False,
    ) -> Buffer:  # fmt: skip
        """A range of a block."""
        by_itself, was_asked = False, False
        while not by_itself:
            held = self._hot.get(block, generation)
            if held is not None:
                count(held.kind, end - begin)
                self._bring_near(block, entry, generation, self._table.held_by[block], stream)
                return memoryview(held.data)[begin:end]
            data = await self._pushed(block, entry, generation, begin, end, stream, count)
            if data is not None:
                return data
            flight = self._flights.get(block)
            if flight is None:
                place = self._held_by(block)
                if was_asked or not place or self._goes_on(entry, place, stream):
                    break
                was_asked = True
                data = await self._of_place(block, place, entry, generation, begin, end, stream, count)
                if data is not None:
                    return data
                by_itself = self._is_hung(place)
                continue  # another READ may have begun to fetch it meanwhile
            await flight.over.wait()
            self._check(entry, generation)
            if flight.generation == generation and flight.error is not None:
                # One after the other would wait for a source that hangs, each as long as one READ may.
                raise OSError(flight.error.errno, flight.error.strerror)
            by_itself = flight.generation == generation and not flight.brought
        if not by_itself and self._wants_whole(block, begin, end, stream.read_bytes >= IN_ORDER_BYTES):
            content = await self._whole(block, entry, generation)
            if content is not None:
                count(content.kind, end - begin)
                return memoryview(content.data)[begin:end]
        if not has_waited and await self._waited_for_ranges(block, begin, end):
            self._check(entry, generation)
            return await self._part(block, entry, generation, begin, end, stream, count, spent, has_waited=True)
        asked = FromSource(entry, generation, [(block, begin, end)])
        self._ask(asked)
        call = self._fetcher.read_range
        try:
            found = await self._twice("read", call, block, begin, end - begin, spent=spent)
        finally:
            self.is_over(asked)
        self._check(entry, generation)
        self.came(asked, [found], count)
        return found[0]  # type: ignore[no-any-return]

    # -- what the source alone has

    def from_source(self, entry: int, generation: int, offset: int, size: int) -> FromSource | None:
        """The parts of a READ of small ranges, if the source alone has them: `begins`, `is_over` and `came` follow.
        None for any other READ, which is for `read`."""
        wanted, stream = self._parts_of(entry, generation, offset, size), self._who_goes_on(entry, offset)
        if wanted is None:
            return None
        parts, _, end = wanted
        if (stream.read_bytes if stream is not None else 0) + end - offset >= IN_ORDER_BYTES:
            return None
        for block, begin, stop in parts:
            is_elsewhere = (
                block in self._flights
                or self._hot.get(block, generation) is not None
                or block in self._fetcher.being_staged
                or block in self._near.coming
                or self._table.state[block] in (State.STAGED, State.RECENT)
            )
            is_asked = block in self._ranges and self._same(block, begin, stop)
            if is_elsewhere or is_asked or self._wants_whole(block, begin, stop, False):
                return None
        return FromSource(entry, generation, parts)

    def begins(self, asked: FromSource, offset: int, size: int) -> None:
        """A worker is at it: note who reads, and that others wait for the same bytes."""
        end = min(offset + size, self._manifest.size_view[asked.entry])
        self._comes_to(asked.entry, asked.generation, self._samples.blocks_of(asked.entry), offset, end)
        self._ask(asked)

    def _ask(self, asked: FromSource) -> None:
        for block, _, _ in asked.parts:
            self._ranges.setdefault(block, []).append(asked)

    def is_over(self, asked: FromSource) -> None:
        """The source is asked for these no longer."""
        for block, _, _ in asked.parts:
            under_way = self._ranges[block]
            under_way.remove(asked)
            if not under_way:
                del self._ranges[block]
        asked.over.set()

    def came(self, asked: FromSource, found: Sequence[tuple[Buffer, int, Fetched | None]], count: HandedOut) -> None:
        """They were handed out to the reader, as `Fetcher.read_range` has given them."""
        self._tidy_pieces()
        for data, given_bytes, whole in found:
            self._count_range(asked.entry, len(data), given_bytes, count)
            if whole is not None:
                self._write_behind.got_aside(whole)

    def _same(self, block: int, begin: int, end: int) -> list[FromSource]:
        """Those that the source is asked for now and that have bytes of this range."""
        return [
            one for one in self._ranges.get(block, ())
            if any(of == block and first < end and begin < stop for of, first, stop in one.parts)
        ]  # fmt: skip

    def _tidy_pieces(self) -> None:
        """Have a thread move pieces away that are too much for memory: the reader has his range meanwhile."""
        pieces = self._places.source.pieces
        if pieces.is_untidy and not self._tidies:
            self._tidies = True
            start(self._runner, _UNAWAITED_POOL, pieces.tidy, then=self._is_tidy)

    def _is_tidy(self, _result: object, error: BaseException | None) -> None:
        self._tidies = False
        if error is not None:
            log.error("pieces of blocks could not be moved away", exc_info=error)

    def _of_memory(self, block: int, place: int, begin: int, size: int) -> Buffer | None:
        """A range of a copy in memory; None where there is none any more. A thread would take longer to wake up."""
        try:
            return self._fetcher.read_held(block, place, begin, size)
        except (OSError, MemoryError):
            return None

    async def _waited_for_ranges(self, block: int, begin: int, end: int) -> bool:
        """Wait until those have ended that the source is asked for and that have bytes of this one; whether there were
        any. Their bytes are among the pieces then."""
        same = self._same(block, begin, end)
        with trio.move_on_after(SAME_BYTES_S):
            for one in same:
                one.is_awaited = True
                await one.over.wait()
        return bool(same)

    def _goes_on(self, entry: int, place: int, stream: _Stream) -> bool:
        """Whether a READ of a job's file wants all of a block of a disk: its reader goes on."""
        in_order = stream.read_bytes >= IN_ORDER_BYTES
        return in_order and self._is_followed(entry) and self._places.kinds[place] is not PlaceKind.RAM

    def _is_followed(self, entry: int) -> bool:
        """Whether a job reads a file by blocks or rows: READs have to tell where its readers are."""
        return entry in self._shards or self._samples.file_blocks.rows.has(entry)

    async def _of_place(
        self, block: int, place: int, entry: int, generation: int, begin: int, end: int, stream: _Stream,
        count: HandedOut,
    ) -> Buffer | None:  # fmt: skip
        """A range of a block that this node holds; None where it does not, or the place hangs."""
        kind, in_order = self._places.kinds[place], stream.read_bytes >= IN_ORDER_BYTES
        data: Buffer | None = None
        if kind is PlaceKind.RAM:
            data = self._of_memory(block, place, begin, end - begin)
        elif not self._is_followed(entry) and self._near.bring_now(block, generation, place, end, in_order):
            return await self._pushed(block, entry, generation, begin, end, stream, count)
        else:
            try:
                data = await self._once("held", self._fetcher.read_held, block, place, begin, end - begin)
            except trio.TooSlowError:
                self._hung_s[place] = self._clock()
        self._check(entry, generation)
        if data is not None:
            count(kind, len(data))
            self._counted.gave(kind, len(data))
            if kind is PlaceKind.RAM:
                self._bring_near(block, entry, generation, place, stream)
        return data

    async def _pushed(
        self, block: int, entry: int, generation: int, begin: int, end: int, stream: _Stream, count: HandedOut
    ) -> Buffer | None:  # fmt: skip
        """A range of a block that is, or was, put into the page cache, and that the kernel does not have."""
        coming = self._near.coming.get(block)
        if coming is None or coming.generation != generation:
            return self._staged(block, generation, begin, end, count)
        if not await coming.is_here(end, self._hedge_s):
            self._hung_s[coming.place] = self._clock()
            self._near.coming.pop(block, None)  # nobody else waits for it
        self._check(entry, generation)
        if coming.held is None:
            return None
        stream.to = max(stream.to, self._samples.offset_of(block) + len(coming.held.data))  # the kernel has the rest
        count(coming.held.kind, (len(coming.held.data) if stream.read_bytes >= IN_ORDER_BYTES else end) - begin)
        return memoryview(coming.held.data)[begin:end]

    def _staged(self, block: int, generation: int, begin: int, end: int, count: HandedOut) -> Buffer | None:
        """A range of a block that is staged, or about to be, and that the kernel does not have all the same."""
        fetched = self._fetcher.being_staged.get(block)
        if fetched is not None and fetched.data is not None and fetched.version == self._samples.version_of(block):
            count(self._places.kinds[fetched.place], end - begin)
            return memoryview(fetched.data)[begin:end]
        if self._table.state[block] not in (State.STAGED, State.RECENT):
            return None
        of, page = self._fetcher.first_pages.pop(block, (generation, b""))  # the kernel has it from now on
        if of == generation and end <= len(page):
            count(PlaceKind.RAM, end - begin)
            return page[begin:end]
        self._step(BlockReached(block, lost=True))
        return None

    def _held_by(self, block: int) -> int:
        """The place of this node that is asked for a range of a block; 0 for none."""
        place = self._table.held_by[block]
        if not place or self._where(block)[0] != place:  # it is slow, and is passed over
            return 0
        return 0 if self._is_hung(place) else place

    def _is_hung(self, place: int) -> bool:
        return self._clock() - self._hung_s.get(place, -HUNG_S) < HUNG_S

    def _count_range(self, entry: int, size_bytes: int, given_bytes: int, count: HandedOut) -> None:
        """Count a range: what the source gave of it just now, and else as from memory."""
        count(PlaceKind.SOURCE if given_bytes else PlaceKind.RAM, size_bytes)
        if given_bytes:
            self._counted.gave(PlaceKind.SOURCE, given_bytes)
            self._digest.source_gave(entry, given_bytes)
            self._gave(entry, given_bytes)

    def _gave(self, entry: int, size_bytes: int) -> None:
        """Ranges of a file have brought so much: the rest may come as well, if places have room for it."""
        before, blocks = self._given_bytes.pop(entry, 0), self._samples.blocks_of(entry)
        self._given_bytes[entry] = before + size_bytes
        if len(self._given_bytes) > MOST_FILES:
            self._given_bytes.popitem(last=False)
        if before <= MOST * self._manifest.size_view[entry] < before + size_bytes:
            self._step(MostWasAsked(blocks))

    def _wants_whole(self, block: int, begin: int, end: int, goes_on: bool) -> bool:
        """Whether all of a block is fetched for a READ that wants a part of it. Args: goes_on: its reader, in order."""
        if self._table.held_by[block] or self._table.state[block] in COMING or self._fetcher.has(block):
            return True
        if self._keeping.is_promised(block):  # a lane gets it for a row, and this READ with it
            return True
        if self._where(block)[0] != SOURCE:  # another node gives samples, and no parts of them
            return True
        size = self._table.sizes[block]
        left = size - self._fetcher.places.source.pieces.of(block) - (end - begin)
        return (goes_on or left <= LITTLE_LEFT * size) and self._has_room(block)

    def _has_room(self, block: int) -> bool:
        """Whether a block that is fetched whole will be there for the next READ of it."""
        return self._keeping.has_room(block) or len(self._flights) + len(self._in_order) <= self._most_at_once

    async def _whole(self, block: int, entry: int, generation: int) -> HotContent | None:
        """All of a block, fetched once for all READs that want it; None where the READ is to go on by itself."""
        flight = self._flights[block] = _Flight(generation)
        try:
            await self._waited_for_ranges(block, 0, self._block_bytes)
            fetched = await self._fetch(block)
            self._check(entry, generation)
            if fetched is None or fetched.data is None:
                return None
            content = HotContent(generation, fetched.data, self._places.kinds[fetched.place])
            self._hot.add(block, content)
            flight.brought = True
        except OSError as error:
            flight.error = error
            raise
        finally:
            del self._flights[block]
            flight.over.set()
        if fetched.place == SOURCE:
            self._digest.source_gave(entry, fetched.size_bytes - fetched.read_before_bytes)
        return content

    async def _fetch(self, block: int) -> Fetched | None:
        for _ in range(TRIES):
            waiting = WaitingRead(block, self._clock())
            self._step(Waits(waiting))
            await waiting.over.wait()
            if waiting.error is not None:
                if lacking(waiting.error) is not None:
                    return None  # there is no room for the whole
                raise waiting.error
            if waiting.by_itself:
                return None
            # Bytes that another node has had fetched may be of before a change that is known by now.
            brought, staging = waiting.brought, self._fetcher.being_staged.get(block)
            if brought is None and staging is not None:  # the lane that has it counts what the source gave
                brought = staging._replace(read_before_bytes=staging.size_bytes)
            if brought is not None and brought.version == self._samples.version_of(block):
                return brought
        return None

    def _check(self, entry: int, generation: int) -> None:
        if self._manifest.generation_view[entry] != generation:
            raise OSError(errno.ESTALE, "the file changed at the source since it was opened")

    # -- ahead of a reader

    def _fetch_ahead(self, stream: _Stream, entry: int, blocks: range, number: int, generation: int) -> None:
        """Have the blocks behind this one fetched, more of them each time that the reader has come to another one."""
        if number + stream.ahead > stream.begun or not stream.ahead:
            stream.ahead = min(MOST_AHEAD, 2 * stream.ahead or 1)
        near = number + max(MOST_AHEAD_NEAR, stream.read_bytes // (2 * self._block_bytes))
        for block in blocks[max(number, stream.begun) + 1 : number + 1 + stream.ahead]:
            if self._table.held_by[block] and block - blocks.start > near:
                continue
            if self._ahead >= self._most_at_once or not self._has_room(block):
                return
            stream.begun = block - blocks.start
            is_here = self._table.held_by[block] and self._places.kinds[self._table.held_by[block]] is PlaceKind.RAM
            if block in self._flights or self._hot.get(block, generation) is not None or is_here:
                continue
            if (shard := self._shards.get(entry)) is not None:
                if block < shard.blocks.start + shard.looked:
                    continue  # it is staged ahead of him
                self._step(AheadOfReader(block))
            elif (place := self._held_by(block)) and not self._samples.file_blocks.rows.has(entry):
                self._near.bring(block, generation, place)
                continue
            self._ahead += 1
            trio.lowlevel.spawn_system_task(self._bring, block, generation)

    async def _bring(self, block: int, generation: int) -> None:
        try:
            if block not in self._flights and self._hot.get(block, generation) is None:
                await self._whole(block, self._samples.file_of(block), generation)
        except OSError:
            pass  # the READ that comes for it tells its reader
        except Exception:
            log.exception("a block could not be fetched ahead")
        finally:
            self._ahead -= 1
