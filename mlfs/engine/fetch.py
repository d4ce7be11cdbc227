"""Gets one sample and puts it into the page cache: the blocking half of the engine, run in worker threads.

In: samples, and from which place, from the engine. Out: a `Fetched` each, never an exception for a failure of the
source, a tier or the kernel. Which place is asked is the scheduler's decision; what is here are the facts: a place that
does not have the sample after all, a source whose file has changed, pages that the kernel does not take.

Why the striped locks: a worker that was given up on may finish late. Pushing is allowed only while the file still is
of the generation the worker started with, and a change of generation replaces the pages under the same lock, so old
bytes can never land under new attributes.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from mlfs.engine.looked_up import Groups, LookedUp
from mlfs.engine.looks import Looks
from mlfs.engine.moves import LONGEST_PATH_BYTES
from mlfs.engine.pagecache import Buffer, PageCache
from mlfs.limits import Resource, lacking
from mlfs.places.known_file import KnownFile
from mlfs.places.open_files import SharedFile
from mlfs.places.place import SOURCE, Content, Copy, FileChange, Places, RangeOfSample, StoringPlace, TierPlace
from mlfs.places.posix import UNSIZED, PosixFile, PosixSource
from mlfs.plan.scheduler.commands import Item
from mlfs.plan.scheduler.config import LARGEST_KEPT_BYTES
from mlfs.plan.scheduler.events import Landed, Waiter
from mlfs.tree.attributes import attributes_of
from mlfs.tree.samples import Samples, Version

log = logging.getLogger("mlfs.engine")
T = TypeVar("T")

STRIPES = 64
# A sample that is too large to be held whole is pushed in pieces of this size.
CHUNK_BYTES = 4 << 20
LARGEST_WHOLE_BYTES = LARGEST_KEPT_BYTES
# Of a block that is staged, what stays away until its reader comes: a page.
FIRST_PAGE_BYTES = 4096
# A file that changes again while it is read is read again so often.
TRIES = 3


class Fetched(NamedTuple):
    """The end of a fetch.

    Attributes:
        place: where the bytes came from. size_bytes: of the content that was fetched.
        data: the bytes if they were fetched whole, else None. version: of the bytes.
        staged: whether the whole content lies in the page cache.
        error: the failure; then nothing else holds.
        read_before_bytes: of the data, what the source gave earlier, for reads of ranges.
    """

    sample: int
    place: int = SOURCE
    size_bytes: int = 0
    data: Buffer | None = None
    version: Version | None = None
    staged: bool = False
    error: OSError | None = None
    read_before_bytes: int = 0


_known_file: Callable[[tuple[int, ...]], KnownFile] = partial(tuple.__new__, KnownFile)
"""Of its fields: in a third of the time that its name takes, for each file that is fetched ahead."""


class ToMove(NamedTuple):
    """A file that a mover is to fetch.

    Attributes:
        place: where its bytes come from. entry: of the manifest.
        path: under which places keep it, too, as it is a whole file.
        known: what is known of it in this generation. target: where its pages are pushed to (`mlfs.engine.moves`).
    """

    item: Item
    place: int
    entry: int
    path: bytes
    known: KnownFile
    generation: int
    target: int


class Tripwire(NamedTuple):
    """The pages of a row that stay away from the page cache while the rest of the row is there, and their bytes."""

    generation: int
    offset: int
    data: bytes


class WholeReader(Waiter):
    """A READ that waits for a whole sample (mlfs.engine.whole_reads): it has its bytes before they are pushed."""

    __slots__ = ()

    def gets(self, fetched: Fetched, generation: int) -> bool:
        """From any thread: give it what was fetched, of that generation. Whether it got all of the file."""
        raise NotImplementedError


def give(waiters: Sequence[Waiter], fetched: Fetched, generation: int) -> bool:
    """In a worker: the READs among those who wait for a sample get its bytes. Whether one of them got all of it."""
    return any([one.gets(fetched, generation) for one in tuple(waiters) if isinstance(one, WholeReader)])


class Fetcher:
    """Blocking fetches; thread-safe.

    Attributes:
        samples, places: what is fetched, and from where.
        tripwires: of the rows that are staged: a READ that comes for one is answered from here.
        being_staged: files and blocks that are being pushed into the page cache. A READ of one must not wait for that.
        first_pages: of blocks that were staged without their first page, that page, and the generation of the file.
        to_keep: what fetches brought and no place keeps yet, by sample, and the place that shall: as good as kept.
            Whoever finds that the source has something else takes it out, and then it is not kept.

    Args:
        announce: called from the worker when a file is not what the manifest says: must have updated the manifest, on
            the loop, when it returns. regroup: see `mlfs.engine.looked_up.LookedUp`.
        forget_name: called from the worker to have the kernel look a name up anew, after the worker is done.
        looks: which entries the kernel may be told of.
        copies_went: called from the worker when places have given up copies of files that have changed or are gone.
        known: the samples of a file of which there may be a copy; without it, all of them.
        waiters: by sample, those who wait for it: READs among them get its bytes before it is pushed. None: no READ
            waits for a whole file, as each open is a request.
    """

    def __init__(
        self,
        samples: Samples,
        source: PosixSource,
        places: Places,
        pages: PageCache,
        announce: Callable[[int, FileChange], None],
        regroup: Callable[[Groups], None],
        forget_name: Callable[[int], None],
        looks: Looks,
        copies_went: Callable[[], None],
        known: Callable[[int], Sequence[int]] | None = None,
        waiters: Mapping[int, Sequence[Waiter]] | None = None,
    ) -> None:
        self.samples = samples
        self._waiters = waiters
        self._known = known or samples.of_file
        self._manifest = samples.manifest
        self._source = source
        self.places = places
        self._pages = pages
        self._announce = announce
        self._looked_up = LookedUp(samples.manifest, source, regroup)
        self._forget_name = forget_name
        self._looks = looks
        self._copies_went = copies_went
        self._finding = False
        self._blocks_from = samples.file_blocks.first
        self._rows = samples.file_blocks.rows
        self.tripwires: dict[int, Tripwire] = {}
        self._getting: dict[int, tuple[threading.RLock, int]] = {}  # blocks that threads get; how many want each
        self._getting_lock = threading.Lock()
        self.being_staged: dict[int, Fetched] = {}
        self.first_pages: dict[int, tuple[int, bytes]] = {}
        self.to_keep: dict[int, tuple[Fetched, int]] = {}
        # By file: its version was seen at the source since the mount.
        self._verified = bytearray(len(samples.manifest))
        self._locks = [threading.Lock() for _ in range(STRIPES)]

    @property
    def finding(self) -> bool:
        """Whether the places are still being asked what they hold from an earlier mount."""
        return self._finding

    def begin_finding(self) -> None:
        """The places may hold copies that the scheduler does not know: ask them before the source."""
        self._finding = True

    def end_finding(self) -> None:
        """The scheduler knows all copies."""
        self._finding = False

    def keep_soon(self, fetched: Fetched, place: int) -> None:
        """A place is about to keep this copy: until it does, or cannot, whoever asks gets it from here."""
        self.to_keep[fetched.sample] = fetched, place

    def no_longer_kept_soon(self, batch: Sequence[Fetched]) -> None:
        """The end of these is known: a place keeps them, or none does."""
        for one in batch:
            if self._still_waits(one):
                self.to_keep.pop(one.sample, None)

    # -- whole samples

    def fetch(
        self, sample: int, place: int, instead: int = 0, close_later: bool = False, stage: bool = True,
        keep_in: Sequence[int] = (),
    ) -> Fetched:  # fmt: skip
        """Get the sample whole and push it into the page cache. A block is not pushed: see `push_block`.

        Args:
            place: where to get it; a tier that does not have it is passed over for the source.
            instead: the tier to take it from if the source fails, 0 for none.
            close_later: the source's file stays open until `close_read`, which has to follow.
            stage: push it; without it the sample is for the places of this node alone.
            keep_in: places that the caller will have keep it. A block stands in `to_keep` before another thread can ask
                for it: rows are fetched by blocks, each beside whoever else gets the same block.
        """
        try:
            entry = self.samples.file_of(sample)
            if entry in self._manifest.unsized.files:
                raise OSError(*UNSIZED)
            if sample >= self._blocks_from:
                if not self.samples.length_of(sample):
                    raise OSError(errno.ESTALE, "the file has changed, and has no such block any more")
                stage = False  # a READ that waits for a block holds its pages
                with self._alone_with(sample):
                    if not place and not instead:  # a lane has just had it kept for a row, and its batch is not over
                        place = self.holder(sample)
                    block = self._fetch_block(sample, entry, place, instead, close_later)
                    if keep_in and self.places.kinds[block.place].is_afar:
                        self.keep_soon(block, keep_in[0])
                    return block
            for _ in range(TRIES):
                fetched = self._fetch_once(sample, entry, place, instead, close_later, stage)
                if fetched is not None:
                    return fetched
            raise OSError(errno.ESTALE, "the file keeps changing at the source")
        except (OSError, MemoryError) as error:
            return Fetched(sample, error=as_os_error(error))

    def _fetch_block(self, block: int, entry: int, place: int, instead: int, close_later: bool) -> Fetched:
        for _ in range(TRIES):
            fetched = self._fetch_once(block, entry, place, instead, close_later, stage=False)
            if fetched is not None:
                return fetched
        raise OSError(errno.ESTALE, "the file keeps changing at the source")

    @contextmanager
    def _alone_with(self, block: int) -> Iterator[None]:
        """Within it, no other thread gets the block: who comes second finds what the first one has brought."""
        with self._getting_lock:
            lock, wanted = self._getting.get(block) or (threading.RLock(), 0)
            self._getting[block] = lock, wanted + 1
        try:
            with lock:
                yield
        finally:
            with self._getting_lock:
                wanted = self._getting[block][1]
                if wanted > 1:
                    self._getting[block] = lock, wanted - 1
                else:
                    del self._getting[block]

    def _fetch_once(
        self, sample: int, entry: int, place: int, instead: int, close_later: bool, stage: bool
    ) -> Fetched | None:
        """None when a change was noticed meanwhile: what was read may be older than it."""
        generation = self._manifest.generation_view[entry]
        held = self._waiting(sample)
        if held is None and (place or self._finding):
            held = self._held(sample, place)
            if held is None and instead and place > len(self.places.storing):
                held = self._held(sample, instead)  # the owner did not give it, and this node has a copy
            if held is not None and not self._verified[entry]:
                instead = instead or held.place  # the source could not say whether it has another content
                held = None
        content: Content | None = None
        if held is None:
            try:
                content = self.places.source.read(sample, close_later)
            except OSError:
                held = self._held(sample, instead)
                if held is None:
                    raise
        if held is not None:
            if stage and self._waiters is not None:
                return self._stage(held, entry, generation, self._waiters)
            offset = self.samples.offset_of(sample)
            return held._replace(staged=stage and self.push(entry, generation, offset, held.data or b""))
        assert content is not None
        if self._manifest.generation_view[entry] != generation:
            return None
        self._looks.way_to(entry)
        if content.changed:
            self._replace(entry, content.changed)
            generation = self._manifest.generation_view[entry]
            if content.version != self.samples.version_of(sample):
                return None  # a part of the file, which has another length now
        self._looks.was_read(entry)
        self._verified[entry] = 1
        before = content.read_before_bytes
        if stage and self._waiters is not None:
            fetched = Fetched(sample, SOURCE, len(content.data), content.data, content.version, False, None, before)
            return self._stage(fetched, entry, generation, self._waiters)
        staged = stage and self.push(entry, generation, self.samples.offset_of(sample), content.data)
        return Fetched(sample, SOURCE, len(content.data), content.data, content.version, staged, None, before)

    def read_bytes(self, sample: int, place: int, instead: int) -> Fetched:
        """Get the sample whole without touching the page cache: for a READ that found its page gone.

        The request being answered holds a page locked, so nothing here may wait for the kernel's page cache: a changed
        source gives ESTALE, and the change is left to the next open.
        """
        try:
            held = self._waiting(sample) or self._held(sample, place)
            if held is not None and self._verified[self.samples.file_of(sample)]:
                return held
            instead = instead or (held.place if held is not None else 0)
            content = self.places.source.get(sample, self.samples.version_of(sample))
            if content.changed:
                raise OSError(errno.ESTALE, "the file changed at the source since it was opened")
            return Fetched(sample, SOURCE, len(content.data), content.data, content.version)
        except (OSError, MemoryError) as error:
            failed = Fetched(sample, error=as_os_error(error))
            if lacking(error) is not None:
                return failed
            if (held := self._held(sample, instead)) is not None:
                return held
            self.to_keep.pop(sample, None)  # of a content that is gone, maybe: the next open asks the source
            self._verified[self.samples.file_of(sample)] = 0
            return failed

    def close_read(self) -> None:
        """Close what `fetch(close_later=True)` left open."""
        self.places.source.close_read()

    # -- rows

    def fetch_part(
        self, item: Item, place: int, offset: int, size: int, keep: Callable[[Fetched, tuple[int, ...]], None]
    ) -> tuple[Buffer, Fetched]:
        """A range of a block, and how it was got: all of the block, where a place shall keep it.

        Args:
            place: where to get it. keep: has a copy kept.

        Raises: OSError.
        """
        block, end = item.sample, offset + size
        with self._alone_with(block):
            held = self._waiting(block)
            if held is not None:
                return memoryview(held.data or b"")[offset:end], held._replace(size_bytes=size)
            here = place or self.holder(block)  # another lane has just had it kept, and its batch is not over
            if here and (data := self.read_held(block, here, offset, size)) is not None:
                return data, Fetched(block, here, len(data))
            if place or (item.keep_in and not item.part_bytes):
                fetched = self.fetch(block, place, item.instead, stage=False, keep_in=item.keep_in)
                if fetched.error is not None:
                    raise fetched.error
                if item.keep_in and self.places.kinds[fetched.place].is_afar:
                    keep(fetched, item.keep_in)
                return memoryview(fetched.data or b"")[offset:end], fetched
            data, given_bytes, whole = self.read_range(block, offset, size, item.part_bytes)
            if whole is not None and item.keep_in:
                self.keep_soon(whole, item.keep_in[0])
                keep(whole, item.keep_in)
            came_bytes = max(size, given_bytes)  # parts are more than the row
            return data, Fetched(block, SOURCE, came_bytes, read_before_bytes=came_bytes - given_bytes)

    def push_row(self, row: int, generation: int, offset: int, data: Buffer) -> bool:
        """Put the pages of a row into the page cache, but for its tripwire. Args: offset, data: those pages."""
        entry, view = self.samples.file_of(row), memoryview(data)
        if self._manifest.generation_view[entry] != generation:
            return False  # before a READ of the old content finds the tripwire of the new one
        begin, end = self._rows.tripwire_of(row)
        self.tripwires[row] = Tripwire(generation, begin, bytes(view[begin - offset : end - offset]))
        for at, part in ((offset, view[: begin - offset]), (end, view[end - offset :])):
            if not self.push(entry, generation, at, part, is_block=True):
                self.tripwires.pop(row, None)  # whoever has left the row may have had it dropped meanwhile
                return False
        return True

    def drop_row(self, row: int) -> None:
        """Drop the pages of a row, but for a first one that is pushed and that another row may end in."""
        self.tripwires.pop(row, None)
        begin, end = self._rows.own_pages_of(row)
        self._pages.drop(self.samples.file_of(row), begin, end - begin)

    def lay_tripwires(self, rows: Sequence[int], but_for: int | None) -> None:
        """Drop the pages of rows that stay away, but for those of a row that is being read: the kernel has read them by
        itself, and would tell of nobody who reads them."""
        for entry, begin, end in self._rows.tripwires_of(rows, but_for):
            self._pages.drop(entry, begin, end - begin)

    # -- files that a mover fetches

    def to_move(self, placed: Sequence[tuple[Item, int]], stage: bool) -> list[ToMove]:
        """Those of a batch's samples, with their places, that are plain, as a mover has to know them.

        Plain is what can be fetched by who knows no more of it than the manifest: a whole file, at the source, or in a
        place that other processes read, where the source has been seen to have it. A content that is then found to be
        as it is known here is of that generation.
        """
        manifest, sizes = self._manifest, self.samples.sizes
        whole = [
            (item, place)
            for item, place in placed
            if not item.instead and item.sample < self._blocks_from and sizes[item.sample] <= LARGEST_WHOLE_BYTES
        ]
        if self._finding or not manifest.times.both or not whole:
            return []
        gone, unsized, to_keep, verified = manifest.gone, manifest.unsized.files, self.to_keep, self._verified
        entries = self.samples.files_of([item.sample for item, _ in whole])
        unseen = {entry for entry in entries if not self._looks.has_seen(entry)} if self._looks.needed else ()
        plain = [
            (item, place, entry, path, known, generation)
            for (item, place), entry, path, known, generation in zip(
                whole, entries, manifest.paths(entries), *self._known_now(entries), strict=True
            )
            if not (entry in gone or entry in unsized or entry in unseen or item.sample in to_keep)
            and (not place or (place in self.places.shared and verified[entry]))
            and len(path) <= LONGEST_PATH_BYTES
        ]
        targets = [0] * len(plain)
        if stage:
            targets = self._pages.targets([file[2] for file in plain], [file[5] for file in plain])
        return [ToMove(*file, target) for file, target in zip(plain, targets, strict=True)]

    def _known_now(self, entries: list[int]) -> tuple[list[KnownFile], list[int]]:
        """Files as the manifest has them, and their generations: all that is said of a file is of one content."""
        manifest, ids = self._manifest, np.array(entries)
        while True:
            generations: list[int] = manifest.generation[ids].tolist()
            times = manifest.size, manifest.mtime_ns, manifest.ctime_ns
            columns = [column[ids].tolist() for column in (*times, manifest.mode, manifest.uid, manifest.gid)]
            if manifest.at_update not in entries and manifest.generation[ids].tolist() == generations:
                return [*map(_known_file, zip(*columns, strict=True))], generations

    def look_up(self, sample: int) -> None:
        """The kernel does not know the file of a sample that is moved."""
        self._pages.look_up(self.samples.file_of(sample))

    def moved(self, files: Sequence[ToMove]) -> list[bool]:
        """A mover has found the contents of files as they were known; which of them are still the files'."""
        from_source = [file.entry for file in files if not file.place]
        if self._looks.needed:
            for entry in from_source:
                self._looks.way_to(entry)
        generations, verified = self._manifest.generation_view, self._verified
        are_current = [generations[file.entry] == file.generation for file in files]
        for file, is_current in zip(files, are_current, strict=True):
            if is_current and not file.place:
                verified[file.entry] = 1
                if self._looks.needed:
                    self._looks.was_read(file.entry)
        return are_current

    # -- large samples

    def fetch_large(self, sample: int, go_on: Callable[[], bool]) -> Fetched:
        """Push a sample too large to be held whole, piece by piece, while `go_on()`; no tier keeps it."""
        entry, first = self.samples.file_of(sample), self.samples.offset_of(sample)
        try:
            with closing(self.open(entry)) as opened:
                if opened.unsized:
                    raise OSError(*UNSIZED)
                generation = self._manifest.generation_view[entry]
                whole = self.samples.is_whole_file(sample)
                size = opened.version.size if whole else self.samples.length_of(sample)
                offset = 0
                while offset < size and go_on():
                    piece = opened.read(first + offset, min(CHUNK_BYTES, size - offset))
                    if not self.push(entry, generation, first + offset, piece):
                        break
                    offset += len(piece)
                return Fetched(sample, SOURCE, size, None, self.samples.version_of(sample), offset >= size)
        except (OSError, MemoryError) as error:
            return Fetched(sample, error=as_os_error(error))

    def open(self, entry: int) -> PosixFile:
        """Open a source file for reads of ranges, its content that of the manifest from now on. Raises: OSError."""
        opened = self._source.open(entry)
        try:
            self._show(entry, opened)
        except BaseException:
            opened.close()
            raise
        return opened

    def _show(self, entry: int, opened: PosixFile) -> None:
        """Have the manifest show the content of an open file. Raises: OSError, where the way to it is closed."""
        self._looks.way_to(entry)
        if opened.changed:
            version = opened.version
            self._replace(entry, FileChange(version.size, version.mtime_ns, opened.ctime_ns, opened.rights))
        self._looks.was_read(entry)
        self._verified[entry] = 1

    def open_shared(self, entry: int, is_read: bool = True) -> SharedFile:
        """Open a source file in blocks, or take the one that is open. Raises: as `open`. Args: is_read: see
        `mlfs.places.open_files`."""
        shared = self.places.source.files.take(entry, is_read)
        try:
            self._show(entry, shared.opened)
        except BaseException:
            shared.close()
            raise
        return shared

    def take_open(self, entry: int) -> SharedFile | None:
        """The file as the manifest has it, if it is open already. Asks nothing."""
        shared = self.places.source.files.take_open(entry)
        if shared is not None and not self.is_current(entry, shared.opened):
            shared.close()
            return None
        return shared

    def is_verified(self, entry: int) -> bool:
        """Whether the source has been seen to have what the manifest shows of a file, since the mount. Asks nothing."""
        return bool(self._verified[entry])

    def has(self, sample: int) -> bool:
        """Whether a copy may be had without the source, of which the scheduler does not know yet."""
        return sample in self.to_keep or self._finding

    def read_range(
        self, sample: int, offset: int, size: int, part_bytes: int = 0
    ) -> tuple[Buffer, int, Fetched | None]:  # fmt: skip
        """A range of a block, how much the source gave just now, and the whole block if all of it is there now.

        Args:
            part_bytes: what is missing comes in parts of so many bytes.

        Raises: OSError; ESTALE where the file has changed.
        """
        if sample in self._getting:  # another thread gets all of it: no byte is read twice
            with self._alone_with(sample):
                held = self._waiting(sample)
            if held is not None and held.data is not None:
                return bytes(memoryview(held.data)[offset : offset + size]), 0, None
        return _as_found(sample, self.places.source.read_range(sample, offset, size, part_bytes))

    def read_ranges(
        self, parts: Sequence[tuple[int, int, int]], at_once: Callable[[bytes], None]
    ) -> list[tuple[Buffer, int, Fetched | None]]:  # fmt: skip
        """The same of ranges that follow each other, each a block, its begin and end there. Args: at_once: gets all of
        it, before it is remembered."""
        if self._getting and any(sample in self._getting for sample, _, _ in parts):
            found = [self.read_range(sample, begin, end - begin) for sample, begin, end in parts]
            at_once(b"".join(data for data, _, _ in found))
            return found
        read = self.places.source.read_ranges(parts, at_once=at_once)
        return [_as_found(part[0], one) for part, one in zip(parts, read, strict=True)]

    def read_held(self, sample: int, place: int, offset: int, size: int) -> Buffer | None:
        """A range of the copy that a place of this node holds; None where it has none that may be given at once."""
        entry, of = self.samples.file_of(sample), self.places[place]
        if not isinstance(of, TierPlace) or not self._verified[entry]:
            return None
        return of.get_range(sample, self.samples.version_of(sample), offset, size)

    def near(self, block: int, place: int) -> Fetched | None:
        """All of a block, of a place of this node; None where it has none that may be given at once."""
        return self._held(block, place) if self._verified[self.samples.file_of(block)] else None

    def push_near(self, held: Fetched, generation: int, left_out: int = 0) -> bool:
        """Push a block that was got so, but for so many bytes at its beginning; False as in `push`."""
        entry, offset = self.samples.file_of(held.sample), self.samples.offset_of(held.sample) + left_out
        with self.staging(held):
            return self.push(entry, generation, offset, memoryview(held.data or b"")[left_out:], is_block=True)

    def read_behind_blocks(self, entry: int, offset: int, size: int) -> bytes:
        """A range of a file that has grown, behind all of its blocks. Raises: as `read_range`."""
        with self.places.source.files.using(entry) as opened:
            if opened.changed:
                raise OSError(errno.ESTALE, "the file changed at the source since it was opened")
            return opened.read(offset, size)

    def open_unchanged(self, entry: int) -> PosixFile:
        """Open a source file of which nothing may have changed, and whose size is right: the kernel goes by that.

        Raises: OSError; ESTALE if something has changed; UNSIZED.
        """
        opened = self._source.open(entry)
        if opened.unsized:
            opened.close()
            raise OSError(*UNSIZED)
        if opened.changed:
            opened.close()
            raise OSError(errno.ESTALE, "the file changed at the source since it was opened")
        return opened

    def is_current(self, entry: int, opened: PosixFile) -> bool:
        """Whether an open file is what the manifest shows now."""
        return self._manifest.shows(entry, opened.version.size, opened.version.mtime_ns, opened.ctime_ns)

    # -- copies

    def keep(self, batch: Sequence[tuple[Fetched, tuple[int, ...]]]) -> list[tuple[int, int]]:
        """Have places keep what waits in `to_keep`, the first of each sample's places that takes it.

        Returns: for each, (place, its used bytes); place 0 where none keeps it, or where the source was found to have
        something else meanwhile. As few writes as possible.
        """
        result = [(0, 0)] * len(batch)
        left = {at: keep_in for at, (one, keep_in) in enumerate(batch) if self._still_waits(one)}
        while left:
            by_place: dict[int, list[int]] = {}
            for at, keep_in in left.items():
                by_place.setdefault(keep_in[0], []).append(at)
            left = {at: keep_in[1:] for at, keep_in in left.items() if len(keep_in) > 1}
            for number, places in by_place.items():
                place = self.places.storing[number - 1]
                kept = self._keep_in(place, [batch[at][0] for at in places])
                used_bytes = place.used_bytes
                for at, is_kept in zip(places, kept, strict=True):
                    if is_kept:
                        result[at] = number, used_bytes
                        left.pop(at, None)
        self.no_longer_kept_soon([one for one, _ in batch])
        return result

    def evict(self, place: int, samples: Sequence[int]) -> int:
        """Have a place give up its copies of samples; returns its used bytes."""
        for sample in samples:
            self.places.storing[place - 1].drop(sample)
        return self.used_bytes(place)

    def used_bytes(self, place: int) -> int:
        """The bytes that a place holds which stores."""
        return self.places.storing[place - 1].used_bytes

    def _keep_in(self, place: StoringPlace, batch: Sequence[Fetched]) -> list[bool]:
        """Which of these a place keeps: none where it fails in a way of its own, which costs these copies only."""
        try:
            footprints = (place.footprint_bytes(fetched.size_bytes) for fetched in batch)
            with self.places.source.pieces.room_for(place, footprints):
                return list(place.keep([self._copy(fetched) for fetched in batch]))
        except Exception as error:
            if lacking(error) is None:
                log.exception("%s failed to keep %d samples", place.name, len(batch))
            return [False] * len(batch)

    def _still_waits(self, fetched: Fetched) -> bool:
        waiting = self.to_keep.get(fetched.sample)
        return waiting is not None and waiting[0] is fetched

    def _copy(self, fetched: Fetched) -> Copy:
        assert fetched.version is not None
        assert fetched.data is not None
        return Copy(fetched.sample, fetched.version, fetched.data)

    def for_peer(self, sample: int, version: Version) -> Fetched | None:
        """This node's copy of that version for another node, from memory or a tier; None where it has none.

        The other node believes that the source has this version: a copy is not given while the source cannot say so.
        """
        if self.samples.version_of(sample) != version:
            return None
        waiting = self._waiting(sample)
        held = waiting or self._held(sample, self.holder(sample))
        if held is None or not self._verified[self.samples.file_of(sample)]:
            return None
        place = self.places[held.place]
        if waiting is None and isinstance(place, TierPlace) and held.data is not None:
            place.show(Copy(sample, version, held.data))  # kept before the agent came: next time it gives it by itself
        return held

    @contextmanager
    def ahead(self, items: Sequence[Item]) -> Iterator[None]:
        """Within it, peers get ready what will be fetched from them: many samples are under way at once."""
        by_peer: dict[int, list[tuple[int, Version]]] = {}
        own = len(self.places.storing)
        for item in [part for whole in items for part in whole.blocks or (whole,) if part.place > own]:
            by_peer.setdefault(item.place, []).append((item.sample, self.samples.version_of(item.sample)))
        asked = [(peer, peer.ahead(wanted)) for place, wanted in by_peer.items() if (peer := self.places.peer(place))]
        try:
            yield
        finally:
            for peer, wants in asked:
                peer.no_longer(wants)

    def _waiting(self, sample: int) -> Fetched | None:
        """A copy that a place is about to keep, as if it had."""
        waiting = self.to_keep.get(sample)
        if waiting is None or waiting[0].version != self.samples.version_of(sample):
            return None
        return waiting[0]._replace(place=waiting[1])

    def _held(self, sample: int, place: int) -> Fetched | None:
        """The copy of a place that stores."""
        if not place and self._finding:
            place = self.holder(sample)
        if not place or (place <= len(self.places.storing) and not self._is_current(sample)):
            return None
        version = self.samples.version_of(sample)
        content = self.places[place].get(sample, version)
        if content is None:
            return None
        if place > len(self.places.storing):
            # A peer gives only what it has seen at the source since its mount.
            self._verified[self.samples.file_of(sample)] = 1
        return Fetched(sample, place, len(content.data), content.data, version)

    def holder(self, sample: int) -> int:
        """The place that holds a copy, from an earlier mount maybe; 0 for none."""
        for number, place in enumerate(self.places.storing, 1):
            if place.contains(sample):
                return number
        return 0

    def _is_current(self, sample: int) -> bool:
        """Whether the manifest's version was seen at the source since the mount; asks the source once a sample.

        A source that cannot be asked now does not make a copy of the manifest's version wrong. But nobody has vouched
        for the copy then (`_verified`): it is used only where the source cannot give the file either.
        """
        entry = self.samples.file_of(sample)
        if self._verified[entry]:
            return True
        try:
            stat = self._source.stat(entry)
        except (FileNotFoundError, PermissionError):
            return False  # the file is gone, or closed to us
        except OSError:
            return True
        now = attributes_of(stat)
        if not self._manifest.shows(entry, *now[:3]) or now.rights[:3] != self._manifest.rights(entry)[:3]:
            return False
        self._looks.way_to(entry)
        self._looks.was_read(entry)
        self._verified[entry] = 1
        return True

    # -- pages

    def push(self, entry: int, generation: int, offset: int, data: Buffer, is_block: bool = False) -> bool:
        """Put bytes of that generation into the page cache; False when they are of the past, or the kernel refused.

        A block is pushed without the lock, as a push waits for a page that a READ holds. The READ may wait for another
        block, and whoever fetches that one for the lock, if he finds a change. The bytes of a block were got since the
        file was of that generation, and they land in the inode of that content, whatever is noticed meanwhile.
        """
        if self._looks.needed and not self._looks.has_seen(entry) and self._looks.look((entry,)) is not None:
            return False  # before the lock: the kernel may have to be told of the file for that, which needs a look
        with nullcontext() if is_block else self._locks[entry % STRIPES]:
            if self._manifest.generation_view[entry] != generation:
                return False
            return not len(data) or self._pages.push(entry, generation, offset, data)

    def _stage(
        self, fetched: Fetched, entry: int, generation: int, waiters: Mapping[int, Sequence[Waiter]]
    ) -> Fetched:  # fmt: skip
        """Push a whole sample. READs that wait for it are answered before: they hold pages that the push waits for."""
        with self.staging(fetched):
            kernel_has_it = give(waiters.get(fetched.sample, ()), fetched, generation)
            offset, data = self.samples.offset_of(fetched.sample), fetched.data or b""
            return fetched._replace(staged=kernel_has_it or self.push(entry, generation, offset, data))

    @contextmanager
    def staging(self, fetched: Fetched) -> Iterator[None]:
        """Within it, a READ of this sample gets it from here: a push waits for the pages that the READ has locked."""
        self.being_staged[fetched.sample] = fetched
        try:
            yield
        finally:
            if self.being_staged.get(fetched.sample) is fetched:  # not of a lane that hung, and comes after another one
                del self.being_staged[fetched.sample]

    def push_block(self, fetched: Fetched, generation: int) -> bool:
        """Push a block that was fetched when its file was of that generation; False as in `push`.

        Its first page stays here, but for the first block of a file: the READ of it tells that a reader has come there.
        """
        block, data = fetched.sample, memoryview(fetched.data or b"")
        entry, offset = self.samples.file_of(block), self.samples.offset_of(block)
        left_out = FIRST_PAGE_BYTES if offset else 0
        if self._manifest.generation_view[entry] != generation:
            return False  # before a READ of the old content finds the first page of the new one
        if left_out:
            self.first_pages[block] = generation, bytes(data[:left_out])
        staged = self.push(entry, generation, offset + left_out, data[left_out:], is_block=True)
        if not staged:
            self.first_pages.pop(block, None)
        return staged

    def drop(self, samples: Sequence[int]) -> None:
        """Drop the pages of samples."""
        for sample in samples:
            entry = self.samples.file_of(sample)
            if sample >= self._rows.first:
                self.drop_row(sample)
            elif sample >= self._blocks_from:
                self.first_pages.pop(sample, None)
                if size := self.samples.length_of(sample):  # else the file has become shorter, and has other pages
                    self._pages.drop(entry, self.samples.offset_of(sample), size)
            else:
                self._pages.drop(entry)

    def replaced(self, entry: int, change: FileChange) -> None:
        """A scan has found something else, while nobody waits for it: a file's attributes, or a directory's."""
        if self.samples.of_file(entry):
            self._replace(entry, change)
        else:
            self.adopt(entry, change)

    def forget(self, samples: Sequence[int]) -> None:
        """The files of these samples are gone: no copy of them is kept."""
        for sample in samples:
            self.to_keep.pop(sample, None)
            self._verified[self.samples.file_of(sample)] = 0
        self._drop_copies(samples)
        for entry in {self.samples.file_of(sample) for sample in samples}:
            self.places.source.files.drop_other(entry)

    def _copies_of(self, entry: int) -> Sequence[int]:
        """The samples of a file of which places may have copies."""
        return self.samples.of_file(entry) if self._finding else self._known(entry)

    def _drop_copies(self, samples: Iterable[int]) -> None:
        held = [(place, sample) for sample in samples for place in self.places.storing if place.contains(sample)]
        for place, sample in held:
            place.drop(sample)
        if held:
            self._copies_went()

    def _replace(self, entry: int, change: FileChange) -> None:
        """The file has another content, under all of its names."""
        for name, found in self._looked_up.changes(entry, change):
            self._replace_one(name, found)

    def _replace_one(self, entry: int, change: FileChange) -> None:
        """The manifest shows the other content, copies of the old one go, the kernel looks the name up anew."""
        with self._locks[entry % STRIPES]:
            self._forget(entry, change)
            self._pages.replace(entry)

    def adopt(self, entry: int, change: FileChange) -> None:
        """The same of what a look found, of a directory as well.

        The kernel may be waiting for the look, with the directory locked: so no name is forgotten before it is over,
        nor is a lock waited for that somebody holds who has one forgotten. The kernel was not told of this name.
        """
        if not self.samples.of_file(entry):
            self._announce(entry, change)
            self._pages.drop(entry)
            return
        for name, found in self._looked_up.changes(entry, change):
            self._forget(name, found)
            if name != entry:
                self._forget_name(name)

    def _forget(self, entry: int, change: FileChange) -> None:
        held = self._copies_of(entry)
        self._announce(entry, change)
        here = [*self.to_keep, *self.first_pages]
        for sample in (one for one in here if self.samples.file_of(one) == entry):
            self.to_keep.pop(sample, None)
            self.first_pages.pop(sample, None)
        self._drop_copies({*held, *self._copies_of(entry)})  # those of before, and what came meanwhile
        self.places.source.files.drop_other(entry)


def landed_of(fetch: int, fetched: Fetched) -> Landed:
    """The end of a sample's fetch, as the scheduler is told it."""
    if fetched.error is not None:
        return Landed(fetch, fetched.sample, error=fetched.error.errno or errno.EIO)
    before = fetched.read_before_bytes
    return Landed(fetch, fetched.sample, fetched.place, fetched.size_bytes, fetched.staged, 0, (), before)


def _as_found(sample: int, found: RangeOfSample) -> tuple[Buffer, int, Fetched | None]:
    data, given_bytes, whole = found
    if whole is None:
        return data, given_bytes, None
    return data, given_bytes, Fetched(sample, SOURCE, len(whole.data), whole.data, whole.version)


def or_error(call: Callable[..., T], *args: object) -> T | OSError:
    """In a worker: the call's result, or its error."""
    try:
        return call(*args)
    except (OSError, MemoryError) as error:
        return as_os_error(error)


def as_os_error(error: BaseException | None) -> OSError:
    """The error of a call that raised. Anything but an OSError, or a lack of something, is a bug: it costs this read
    EIO, never the mount."""
    if isinstance(error, OSError):
        return error
    what = lacking(error)
    if what is not None:
        number = errno.ENOMEM if what is Resource.MEMORY else errno.EAGAIN
        return OSError(number, os.strerror(number))
    log.error("a fetch failed in an unforeseen way", exc_info=error)
    return OSError(errno.EIO, "an internal error, see the log")
