"""Pieces of samples that were read from the source before the whole sample was wanted.

In: ranges that readers asked for, from worker threads. Out: the same ranges, of which only what is missing is read, and
the whole sample once all of it was read. So a reader of small ranges costs the source what he asks for, and no byte
comes twice when a block is fetched whole behind him.

The pieces lie in a little memory. Those of samples that were used longest ago move to what room places have left
(`Spill`), and are forgotten where there is none. Those on a disk are left to the next mount (`left_pieces`). No file is
read, written or cut under the lock, so a slow disk keeps only those waiting who want what lies there. A piece is read
after the lock is given back: its checksum tells whether it was dropped meanwhile, or another one lies there.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Final, NamedTuple

import xxhash

from mlfs.places.memory_file import MemoryFile, in_pages
from mlfs.tree.samples import Version

# Ranges that are shorter are not remembered: to remember one takes 100 bytes and some time. Only a reader past the page
# cache (O_DIRECT) asks for so little.
LEAST_PIECE_BYTES: Final = 512
# Pieces that have moved take 300 bytes of memory each.
MOST_MOVED: Final = 1 << 17
# Pieces move until so much of what may lie in memory is left there: then the next ranges move none.
LEFT_IN_MEMORY: Final = 7 / 8
# Forgotten pieces keep their room until so many are cut out of the file together, unless a copy needs it: each cut is a
# change of the file system's journal, for which no reader has to wait.
MOST_DROPPED: Final = 32
# Offsets in a file of pieces only grow, and some file systems end at 16 TiB. Beyond this offset all of its pieces are
# forgotten, and it begins again.
LAST_OFFSET: Final = 8 << 40
# A disk hangs when a read of a file on it has taken so long: what lies there is read from the source until it ends. It
# is half of the time after which a READ is made once more (`hedge_s`).
HANGS_S: Final = 5.0

Read = Callable[[int, int], bytes]
"""Reads so many bytes of a sample from an offset; it may raise."""


class Spill:
    """A file for pieces, in the room that a place has left.

    Args:
        file: an open file that nobody else knows. place: the place. room_bytes: what it does not use.
        disk_free_bytes: asks the place's disk what is free on it; pieces take half of that at most, as a disk may be
            smaller than what the place may use of it.
        sum_of: the sum that tells whether a piece is as it was. left: what the last mount has said of the file that it
            left (`mlfs.places.left_pieces`). leave: leaves the file to the next one; None where that cannot be.

    Attributes:
        used_bytes: what its pieces take, those that are being written and dropped included.
        promised_bytes: what the place is about to take.
        samples: the samples that have pieces there; the one that was used last stands last.
        dropped: pieces that nobody knows any more, and that take room until they are cut out of the file; one thread at
            a time does that, which holds `dropping`.
        reads: when each read of it that is under way began.
    """

    def __init__(
        self,
        file: MemoryFile,
        place: object,
        room_bytes: Callable[[], int],
        disk_free_bytes: Callable[[], int] | None = None,
        sum_of: Callable[[bytes], bytes] = xxhash.xxh3_64_digest,
        left: bytes = b"",
        leave: Callable[[bytes], None] | None = None,
    ) -> None:
        self.file, self.sum_of, self.leave, self._left = file, sum_of, leave, left
        self.place: Final = place
        self._room_bytes = room_bytes
        self._ask_disk = disk_free_bytes
        self._disk_free_bytes = 0
        self.used_bytes = 0
        self.promised_bytes = 0
        self.samples: OrderedDict[int, None] = OrderedDict()
        self.dropped: list[_Moved] = []
        self.dropping = threading.Lock()
        self.reads: dict[object, float] = {}

    def take_left(self) -> bytes:
        """Take what the last mount has said; it is not held here any longer."""
        left, self._left = self._left, b""
        return left

    def look(self) -> None:
        """Ask the disk what is free; not under the lock, as it may hang."""
        if self._ask_disk is not None:
            self._disk_free_bytes = self._ask_disk()

    def has_room(self, more_bytes: int = 0, going_bytes: int = 0) -> bool:
        """Whether so many bytes more fit, once others have gone. It asks nobody."""
        taken_bytes = self.used_bytes + self.promised_bytes + more_bytes - going_bytes
        disk_has = self._ask_disk is None or taken_bytes <= self._disk_free_bytes + going_bytes
        return taken_bytes <= self._room_bytes() and disk_has

    def read(self, size_bytes: int, offset: int) -> bytes | None:
        """A piece; None where its disk fails or hangs."""
        now_s = time.monotonic()
        if any(now_s - since_s > HANGS_S for since_s in tuple(self.reads.values())):
            return None
        one = object()
        self.reads[one] = now_s
        try:
            return self.file.read(size_bytes, offset)
        except OSError:
            return None
        finally:
            del self.reads[one]


class _Moved(NamedTuple):
    """A piece in a file. The checksum finds what a disk has made of it."""

    spill: Spill
    offset: int
    size_bytes: int
    checksum: bytes

    def __len__(self) -> int:
        return self.size_bytes

    def read(self) -> bytes | None:
        """The piece; None where it is not as it was."""
        data = self.spill.read(self.size_bytes, self.offset)
        return data if data is not None and self.spill.sum_of(data) == self.checksum else None


Data = bytes | _Moved


class Left(NamedTuple):
    """A piece in a file that one mount leaves to the next: where it begins in its sample, and where it lies."""

    first: int
    offset: int
    size_bytes: int
    checksum: bytes


class _Begun:
    """A sample of which some pieces are there, in the order of their places; no two of them overlap."""

    __slots__ = ("held_bytes", "pieces", "version")

    def __init__(self, version: Version) -> None:
        self.version = version
        self.pieces: list[tuple[int, Data]] = []
        self.held_bytes = 0

    def within(self, begin: int, end: int) -> Iterator[tuple[int, int, Data | None, int]]:
        """The range from begin to end cut into what is there, and what is missing (None); and where each piece of what
        is there begins."""
        at = max(0, bisect_right(self.pieces, begin, key=_place) - 1)
        for first, data in self.pieces[at:]:
            last = first + len(data)
            if last <= begin:
                continue
            if first >= end:
                break
            if first > begin:
                yield begin, first, None, 0
                begin = first
            yield begin, min(last, end), data, first
            begin = min(last, end)
        if begin < end:
            yield begin, end, None, 0


class Pieces:
    """The pieces of samples, about so many bytes in memory, once they were tidied; thread-safe.

    Attributes:
        bytes: what lies in memory.
    """

    def __init__(self, most_bytes: int, spills: Sequence[Spill] = (), least_bytes: int = LEAST_PIECE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._least_bytes = least_bytes
        self._spills = spills
        self._begun: OrderedDict[int, _Begun] = OrderedDict()
        self._in_memory: OrderedDict[int, None] = OrderedDict()  # samples; the one that was used last stands last
        self._moved = 0
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        self._closed = False
        self.bytes = 0

    def of(self, sample: int) -> int:
        """The bytes of the sample that are there. It waits for nothing."""
        begun = self._begun.get(sample)
        return begun.held_bytes if begun is not None else 0

    def range(
        self, sample: int, version: Version, begin: int, end: int, read: Read, part_bytes: int = 0,
        at_once: Callable[[bytes], None] | None = None,
    ) -> tuple[bytes | memoryview, int, bytes | None]:  # fmt: skip
        """A range of this version of the sample; what is missing of it is read.

        Args:
            part_bytes: what is missing is read with what lies around it up to the next multiples of so many bytes.
            at_once: gets a range without parts before it is remembered, as a reader waits for it. It may raise.

        Returns: the range; how many bytes were read; the whole sample if that was the last of it, which is not kept
        here any more.

        Raises: as `read` does.
        """
        parts = self._parts(sample, version, begin, end)
        missed = [place for first, last, held in parts if held is None for place in (first, last)]
        if missed and part_bytes:
            low = min(begin, missed[0] // part_bytes * part_bytes)
            high = max(end, min(-(-missed[-1] // part_bytes) * part_bytes, version.size_bytes))
            wide, read_bytes, whole = self.range(sample, version, low, high, read)
            return memoryview(wide)[begin - low : end - low], read_bytes, whole
        found = [(first, read(first, last - first)) if data is None else (-1, data) for first, last, data in parts]
        missing = [(first, data) for first, data in found if first >= 0]
        data = found[0][1] if len(found) == 1 else b"".join(part for _, part in found)
        if at_once is not None:
            at_once(data)
        whole = None
        with suppress(OSError, MemoryError):  # no memory is left for it, and none is needed
            if missing:
                with self._lock:
                    complete = self._add(sample, version, missing)
                whole = self._joined(complete) if complete is not None else None
            if self.bytes > 2 * self._most_bytes:
                self.tidy()
        return data, sum(len(part) for _, part in missing), whole

    @property
    def is_untidy(self) -> bool:
        """Whether `tidy` has something to do. It waits for nothing."""
        return self.bytes > self._most_bytes or any(len(spill.dropped) > MOST_DROPPED for spill in self._spills)

    def tidy(self) -> None:
        """Move what is too much for memory, and give the room of forgotten pieces back. It is called once the reader
        whose range was too much has got it; he does it himself where memory holds twice as much as it may."""
        self._drop()
        try:
            with suppress(OSError, MemoryError):
                self._move_away()
        finally:
            self._drop()

    def whole(self, sample: int, version: Version, read: Read) -> tuple[bytes, int]:
        """The whole sample, what is missing is read; and how many bytes that were. Pieces of it are not kept any more.

        Raises: as `read` does; then the pieces stay.
        """
        parts = self._parts(sample, version, 0, version.size_bytes)
        got = [read(begin, end - begin) if data is None else data for begin, end, data in parts]
        with self._lock:
            self._forget(sample)
        size_bytes = sum(end - begin for begin, end, data in parts if data is None)
        return got[0] if len(got) == 1 else b"".join(got), size_bytes

    @contextmanager
    def room_for(self, place: object, footprints: Iterable[int]) -> Iterator[None]:
        """The place takes copies that need so many bytes each within it: pieces go first, and none comes there."""
        spill = next((spill for spill in self._spills if spill.place is place), None)
        if spill is None:
            yield
            return
        spill.look()
        self._drop()
        size_bytes = sum(footprints)
        with self._lock:
            spill.promised_bytes += size_bytes
            going_bytes = 0
            while spill.samples and not spill.has_room(going_bytes=going_bytes):
                going_bytes += self._forget(next(iter(spill.samples)), spill)
        self._drop()
        try:
            yield
        finally:
            with self._lock:
                spill.promised_bytes -= size_bytes

    # -- from one mount to the next

    def leave_in(self, spill: Spill) -> Iterator[tuple[int, Version, list[Left]]]:
        """Have all pieces lie in this file, as far as it has room: samples, and their pieces. Nothing comes after."""
        spill.look()
        with self._lock:
            self._closed = True
            begun = list(self._begun.items())
        for sample, of in begun:
            left = []
            for first, data in of.pieces:
                moved = data if isinstance(data, _Moved) and data.spill is spill else self._copied(data, spill)
                if moved is not None:
                    left.append(Left(first, moved.offset, moved.size_bytes, moved.checksum))
            yield sample, of.version, left

    def _copied(self, data: Data, spill: Spill) -> _Moved | None:
        content = data.read() if isinstance(data, _Moved) else data
        if content is None:
            return None
        with self._lock:
            reserved = self._reserve(content, spill)
        if reserved is None:
            return None
        moved, is_written = self._written(reserved, content)
        return moved if is_written else None

    def take_up(self, spill: Spill, sample: int, version: Version, left: Sequence[Left]) -> None:
        """The last mount has left these pieces of a sample. Those that there is no room for are given up."""
        spill.look()
        with self._lock:
            begun = _Begun(version)
            for first, offset, size_bytes, checksum in left:
                moved = _Moved(spill, offset, size_bytes, checksum)
                fits = spill.has_room(in_pages(size_bytes)) and self._moved < MOST_MOVED
                spill.used_bytes += in_pages(size_bytes)
                self._moved += 1
                if fits:
                    begun.pieces.append((first, moved))
                    begun.held_bytes += size_bytes
                else:
                    spill.dropped.append(moved)
            if begun.pieces:
                self._begun[sample] = begun
                spill.samples[sample] = None

    def close(self) -> None:
        """Give all room back. A file that a thread is still at work on, as its disk hangs, is left to the end of the
        process: its number could be another file's by the time that the thread goes on."""
        with self._lock:
            self._closed = True
            for sample in list(self._begun):
                self._forget(sample)
        with _if_free(self._moving) as nobody_writes:
            for spill in self._spills if nobody_writes else ():
                with _if_free(spill.dropping) as nobody_drops:
                    if nobody_drops:
                        spill.file.close()

    # -- files, not under the lock

    def _parts(self, sample: int, version: Version, begin: int, end: int) -> list[tuple[int, int, bytes | None]]:
        """A range cut into what is there, and what is to be read."""
        with self._lock:
            begun = self._current(sample, version)
            cut = list(begun.within(begin, end)) if begun is not None else []
        parts = _read_parts(cut)
        if parts is None:  # the disk has lost it
            with self._lock:
                if self._begun.get(sample) is begun:
                    self._forget(sample)
        return parts or [(begin, end, None)]

    def _joined(self, complete: _Begun) -> bytes | None:
        """All pieces of a sample that is forgotten here; None where one is lost."""
        try:
            parts = _read_parts(list(complete.within(0, complete.version.size_bytes)))
        finally:
            with self._lock:
                self._free(complete)
        if parts is None or any(data is None for _, _, data in parts):
            return None
        return b"".join(data for _, _, data in parts if data is not None)

    def _move_away(self) -> None:
        """Move pieces to where is room until the rest may stay in memory. One thread does it at a time; while it waits
        for a disk the others forget what is too much."""
        with _if_free(self._moving) as nobody_moves:
            if nobody_moves and self.bytes > self._most_bytes:
                for spill in self._spills:
                    spill.look()
                while self._move_one(int(LEFT_IN_MEMORY * self._most_bytes)):
                    self._drop()
        if not nobody_moves:
            with self._lock:
                while self._in_memory and self.bytes > 2 * self._most_bytes:
                    self._forget(next(iter(self._in_memory)))

    def _move_one(self, left_bytes: int) -> bool:
        """Move a piece of the sample that was used longest ago, unless so little is left in memory. A sample is
        forgotten where no room is for it: one that has pieces in a file, or else this one. False when there is nothing
        to do."""
        with self._lock:
            if self._closed or not self._in_memory or self.bytes <= left_bytes:
                return False
            sample = next(iter(self._in_memory))
            begun = self._begun[sample]
            piece = next(((first, data) for first, data in begun.pieces if isinstance(data, bytes)), None)
            if piece is None:
                del self._in_memory[sample]
                return True
            first, data = piece
            moved = self._reserve(data)
            if moved is None:
                self._forget(next((next(iter(spill.samples)) for spill in self._spills if spill.samples), sample))
                return True
        moved, is_written = self._written(moved, data)
        with self._lock:
            at = bisect_right(begun.pieces, first, key=_place) - 1
            if is_written and self._begun.get(sample) is begun and begun.pieces[at][1] is data:
                begun.pieces[at] = first, moved
                self.bytes -= len(data)
                moved.spill.samples[sample] = None
                return True
            moved.spill.dropped.append(moved)
            if not is_written and self._begun.get(sample) is begun:
                self._forget(sample)
        return True

    @staticmethod
    def _written(moved: _Moved, data: bytes) -> tuple[_Moved, bool]:
        """A piece with its sum, and whether it could be written where room is reserved for it."""
        try:
            moved.spill.file.write(memoryview(data), moved.offset)
        except OSError:
            return moved, False
        return _Moved(moved.spill, moved.offset, moved.size_bytes, moved.spill.sum_of(data)), True

    def _drop(self) -> None:
        """Give back the room of pieces that nobody knows any more."""
        for spill in self._spills:
            with _if_free(spill.dropping) if spill.dropped else nullcontext() as nobody_drops:
                while nobody_drops and spill.dropped:
                    moved = spill.dropped.pop()
                    with suppress(OSError):
                        spill.file.drop(len(moved), moved.offset)
                    with self._lock:
                        spill.used_bytes -= in_pages(len(moved))
                        self._moved -= 1

    # -- under the lock

    def _add(self, sample: int, version: Version, found: list[tuple[int, bytes]]) -> _Begun | None:
        """Remember what was read. Another thread may have read some of it meanwhile. Returns: what was begun, if all of
        the sample is there now; then it is the caller's."""
        if self._closed:
            return None
        begun = self._current(sample, version)
        if begun is None:
            begun = self._begun[sample] = _Begun(version)
        for begin, data in found:
            for first, last, held, _ in list(begun.within(begin, begin + len(data))):
                if held is None and (last - first >= self._least_bytes or last - first == version.size_bytes):
                    insort(begun.pieces, (first, data[first - begin : last - begin]), key=_place)
                    begun.held_bytes += last - first
                    self.bytes += last - first
        if not begun.pieces:
            del self._begun[sample]
            return None
        self._in_memory[sample] = None
        self._in_memory.move_to_end(sample)
        if begun.held_bytes == version.size_bytes:
            self._take(sample)
            return begun
        return None

    def _current(self, sample: int, version: Version) -> _Begun | None:
        """The pieces of this version; those of another one are forgotten."""
        begun = self._begun.get(sample)
        if begun is None:
            return None
        if begun.version != version:
            self._forget(sample)
            return None
        for lying_there in (self._in_memory, *(spill.samples for spill in self._spills)):
            if sample in lying_there:
                lying_there.move_to_end(sample)
        return begun

    def _reserve(self, data: bytes, only: Spill | None = None) -> _Moved | None:
        """Room for a piece, for as long as it is not dropped. Args: only: in this file."""
        size_bytes = in_pages(len(data))
        for spill in (self._spills if only is None else (only,)) if self._moved < MOST_MOVED else ():
            if spill.file.end > LAST_OFFSET:
                for sample in list(spill.samples):
                    self._forget(sample)
                if spill.used_bytes:
                    continue  # until they are cut out of it
                spill.file.begin_again()
            if spill.has_room(size_bytes):
                spill.used_bytes += size_bytes
                self._moved += 1
                return _Moved(spill, spill.file.reserve(size_bytes), len(data), b"")
        return None

    def _take(self, sample: int) -> _Begun | None:
        """Nobody finds the sample's pieces here any more."""
        for lying_there in (self._in_memory, *(spill.samples for spill in self._spills)):
            lying_there.pop(sample, None)
        return self._begun.pop(sample, None)

    def _forget(self, sample: int, spill: Spill | None = None) -> int:
        """Forget the sample. Returns: the bytes that this gives back in a spill, once they are dropped."""
        begun = self._take(sample)
        return self._free(begun, spill) if begun is not None else 0

    def _free(self, begun: _Begun, spill: Spill | None = None) -> int:
        going_bytes = 0
        for _, data in begun.pieces:
            if isinstance(data, bytes):
                self.bytes -= len(data)
            else:
                data.spill.dropped.append(data)
                going_bytes += in_pages(len(data)) if data.spill is spill else 0
        return going_bytes


@contextmanager
def _if_free(lock: threading.Lock) -> Iterator[bool]:
    """Take a lock for a while if nobody has it; whether that was so."""
    is_taken = lock.acquire(blocking=False)
    try:
        yield is_taken
    finally:
        if is_taken:
            lock.release()


def _place(piece: tuple[int, Data]) -> int:
    return piece[0]


def _read_parts(cut: list[tuple[int, int, Data | None, int]]) -> list[tuple[int, int, bytes | None]] | None:
    """The pieces of a range, read where they lie in files; None where one of them is lost."""
    parts = []
    for first, last, data, of in cut:
        held = data.read() if isinstance(data, _Moved) else data
        if held is None and data is not None:
            return None
        parts.append((first, last, held[first - of : last - of] if held is not None else None))
    return parts
