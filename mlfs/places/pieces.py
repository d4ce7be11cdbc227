"""Pieces of samples that were read from the source before the whole sample was wanted.

In: ranges that readers asked for, from worker threads. Out: the same ranges, of which only what is missing is read, and
the whole sample once all of it was read. So a reader of small ranges costs the source what he asks for, and no byte
comes twice when a block is fetched whole behind him.

The pieces lie in a little memory. Those of samples that were used longest ago move to what room places have left
(`Spill`), and are forgotten where there is none.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import xxhash

from mlfs.places.memory_file import MemoryFile, in_pages
from mlfs.tree.samples import Version

# Ranges that are shorter are not remembered: to remember one takes 100 bytes and some time. Who reads past the page
# cache alone asks for so little (O_DIRECT).
LEAST_PIECE_BYTES: Final = 512
# Pieces that have moved take 300 bytes of memory each.
MOST_MOVED: Final = 1 << 17

Read = Callable[[int, int], bytes]
"""Reads so many bytes of a sample from an offset; it may raise."""


class Spill:
    """A file for pieces, in the room that a place has left; used under the lock of `Pieces`.

    Args:
        file: an open file that nobody else knows. room_bytes: what the place does not use.
    """

    def __init__(self, file: MemoryFile, room_bytes: Callable[[], int]) -> None:
        self.file = file
        self.room_bytes = room_bytes
        self.used_bytes = 0


class _Moved(NamedTuple):
    """A piece in a file. The checksum finds what a disk has made of it."""

    spill: Spill
    offset: int
    size_bytes: int
    checksum: int

    def __len__(self) -> int:
        return self.size_bytes


Data = bytes | _Moved


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
        at = max(0, bisect_right(self.pieces, begin, key=lambda piece: piece[0]) - 1)
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
    """The pieces of samples, at most so many bytes in memory; thread-safe.

    Attributes:
        bytes: what lies in memory.
    """

    def __init__(self, most_bytes: int, spills: Sequence[Spill] = (), least_bytes: int = LEAST_PIECE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._least_bytes = least_bytes
        self._spills = spills
        self._begun: OrderedDict[int, _Begun] = OrderedDict()  # the sample that was used last stands last
        self._in_memory: OrderedDict[int, None] = OrderedDict()  # the same of those that have pieces there
        self._moved = 0
        self._lock = threading.Lock()
        self.bytes = 0

    def of(self, sample: int) -> int:
        """The bytes of the sample that are there. It waits for nothing."""
        begun = self._begun.get(sample)
        return begun.held_bytes if begun is not None else 0

    def range(self, sample: int, version: Version, begin: int, end: int, read: Read) -> tuple[bytes, int, bytes | None]:
        """A range of this version of the sample; what is missing of it is read.

        Returns: the range; how many bytes were read; the whole sample if that was the last of it, which is not kept
        here any more.

        Raises: as `read` does.
        """
        with self._lock:
            parts = self._cut(sample, version, begin, end)
        found = [(first, read(first, last - first)) if data is None else (-1, data) for first, last, data in parts]
        missing = [(first, data) for first, data in found if first >= 0]
        data = found[0][1] if len(found) == 1 else b"".join(part for _, part in found)
        whole = None
        try:
            if missing:
                with self._lock:
                    whole = self._add(sample, version, missing)
        except (OSError, MemoryError):
            pass  # no memory is left for it, and none is needed
        return data, sum(len(part) for _, part in missing), whole

    def whole(self, sample: int, version: Version, read: Read) -> tuple[bytes, int]:
        """The whole sample, what is missing is read; and how many bytes that were. Pieces of it are not kept any more.

        Raises: as `read` does.
        """
        with self._lock:
            parts = self._cut(sample, version, 0, version.size_bytes)
            self._forget(sample)
        got = [read(begin, end - begin) if data is None else data for begin, end, data in parts]
        size_bytes = sum(end - begin for begin, end, data in parts if data is None)
        return got[0] if len(got) == 1 else b"".join(got), size_bytes

    def make_room(self, size_bytes: int) -> None:
        """Places are about to take so many bytes: pieces go first."""
        with self._lock:
            for spill in self._spills:
                while spill.used_bytes and spill.used_bytes + size_bytes > spill.room_bytes():
                    self._forget_moved(spill)

    def close(self) -> None:
        """Give all room back."""
        with self._lock:
            for sample in list(self._begun):
                self._forget(sample)
            for spill in self._spills:
                spill.file.close()
            self._spills = ()

    # -- under the lock

    def _cut(self, sample: int, version: Version, begin: int, end: int) -> list[tuple[int, int, bytes | None]]:
        """A range cut into what is there, and what is to be read."""
        begun = self._current(sample, version)
        if begun is None:
            return [(begin, end, None)]
        parts: list[tuple[int, int, bytes | None]] = []
        for first, last, data, of in begun.within(begin, end):
            if isinstance(data, _Moved):
                held = _read(data)
                if held is None:  # the disk has lost it
                    self._forget(sample)
                    return [(begin, end, None)]
            else:
                held = data
            is_all = held is None or last - first == len(held)
            parts.append((first, last, held if is_all or held is None else held[first - of : last - of]))
        return parts

    def _add(self, sample: int, version: Version, found: list[tuple[int, bytes]]) -> bytes | None:
        """Remember what was read. Another thread may have read some of it meanwhile."""
        begun = self._current(sample, version)
        if begun is None:
            begun = self._begun[sample] = _Begun(version)
        for begin, data in found:
            for first, last, held, _ in list(begun.within(begin, begin + len(data))):
                if held is None and (last - first >= self._least_bytes or last - first == version.size_bytes):
                    begun.pieces.append((first, data[first - begin : last - begin]))
                    begun.held_bytes += last - first
                    self.bytes += last - first
        if not begun.pieces:
            del self._begun[sample]
            return None
        begun.pieces.sort(key=lambda piece: piece[0])
        self._in_memory[sample] = None
        self._in_memory.move_to_end(sample)
        if begun.held_bytes == version.size_bytes:
            parts = [data for _, _, data in self._cut(sample, version, 0, version.size_bytes)]
            self._forget(sample)
            return None if None in parts else b"".join(part for part in parts if part is not None)
        while self.bytes > self._most_bytes:
            self._move(next(iter(self._in_memory)))
        return None

    def _current(self, sample: int, version: Version) -> _Begun | None:
        """The pieces of this version; those of another one are forgotten."""
        begun = self._begun.get(sample)
        if begun is None:
            return None
        if begun.version != version:
            self._forget(sample)
            return None
        self._begun.move_to_end(sample)
        if sample in self._in_memory:
            self._in_memory.move_to_end(sample)
        return begun

    def _move(self, sample: int) -> None:
        """Move the pieces that a sample has in memory to where is room; without room all of the sample is forgotten."""
        begun = self._begun[sample]
        for at, (first, data) in enumerate(begun.pieces):
            if isinstance(data, bytes):
                moved = self._moved_to(data)
                if moved is None:
                    self._forget(sample)
                    return
                begun.pieces[at] = first, moved
                self.bytes -= len(data)
        del self._in_memory[sample]

    def _moved_to(self, data: bytes) -> _Moved | None:
        if self._moved >= MOST_MOVED:
            return None
        for spill in self._spills:
            size_bytes = in_pages(len(data))
            if spill.used_bytes + size_bytes > spill.room_bytes():
                continue
            offset = spill.file.reserve(len(data))
            try:
                spill.file.write(memoryview(data), offset)
            except OSError:
                continue
            spill.used_bytes += size_bytes
            self._moved += 1
            return _Moved(spill, offset, len(data), xxhash.xxh3_64_intdigest(data))
        return None

    def _forget_moved(self, spill: Spill) -> None:
        """Forget the sample that was used longest ago of those that have pieces there."""
        for sample, begun in self._begun.items():
            if any(isinstance(data, _Moved) and data.spill is spill for _, data in begun.pieces):
                self._forget(sample)
                return

    def _forget(self, sample: int) -> None:
        begun = self._begun.pop(sample, None)
        self._in_memory.pop(sample, None)
        for _, data in begun.pieces if begun is not None else ():
            if isinstance(data, bytes):
                self.bytes -= len(data)
            else:
                data.spill.used_bytes -= in_pages(len(data))
                self._moved -= 1
                with suppress(OSError):
                    data.spill.file.drop(len(data), data.offset)


def _read(moved: _Moved) -> bytes | None:
    """A piece that lies in a file; None where it is not as it was."""
    try:
        data = moved.spill.file.read(moved.size_bytes, moved.offset)
    except OSError:
        return None
    return data if xxhash.xxh3_64_intdigest(data) == moved.checksum else None
