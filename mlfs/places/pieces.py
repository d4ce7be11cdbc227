"""Pieces of samples that were read from the source before the whole sample was wanted.

In: ranges that readers asked for, from worker threads. Out: the same ranges, and the whole sample once all of it was
read. So a reader of small ranges costs the source what he asks for, and no byte comes twice when a block is fetched
whole behind him. The pieces that were used longest ago go when there are too many.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlfs.tree.samples import Version

Piece = tuple[int, bytes]
"""Bytes of a sample, and where they begin in it."""


class _Begun(NamedTuple):
    """A sample of which some pieces are there, in the order of their places; no two of them overlap."""

    version: Version
    pieces: list[Piece]

    def held(self) -> int:
        """The bytes that are there."""
        return sum(len(data) for _, data in self.pieces)

    def within(self, begin: int, end: int) -> Iterator[tuple[int, int, bytes | None]]:
        """The range from begin to end cut into what is there, and what is missing (None)."""
        at = max(0, bisect_right(self.pieces, begin, key=lambda piece: piece[0]) - 1)
        for first, data in self.pieces[at:]:
            last = first + len(data)
            if last <= begin:
                continue
            if first >= end:
                break
            if first > begin:
                yield begin, first, None
                begin = first
            yield begin, min(last, end), data[begin - first : end - first]
            begin = min(last, end)
        if begin < end:
            yield begin, end, None


class Pieces:
    """The pieces of samples, at most so many bytes; thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun: OrderedDict[int, _Begun] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def of(self, sample: int) -> int:
        """The bytes of the sample that are there."""
        with self._lock:
            begun = self._begun.get(sample)
            return begun.held() if begun is not None else 0

    def get(self, sample: int, version: Version, begin: int, end: int) -> bytes | None:
        """A range of this version of the sample, if all of it is there."""
        with self._lock:
            begun = self._current(sample, version)
            if begun is None:
                return None
            found = [data for _, _, data in begun.within(begin, end)]
        return None if None in found else b"".join(data for data in found if data is not None)

    def add(self, sample: int, version: Version, begin: int, data: bytes) -> bytes | None:
        """A range was read. Returns the whole sample if that was the last of it: then it is not kept here any more."""
        with self._lock:
            begun = self._current(sample, version) or _Begun(version, [])
            missing = [one for one in begun.within(begin, begin + len(data)) if one[2] is None]
            begun.pieces.extend((first, data[first - begin : last - begin]) for first, last, _ in missing)
            begun.pieces.sort()
            self._begun[sample] = begun
            self.bytes += sum(last - first for first, last, _ in missing)
            if begun.held() == version.size_bytes:
                self._forget(sample)
                return b"".join(data for _, data in begun.pieces)
            while self.bytes > self._most_bytes:
                self._forget(next(iter(self._begun)))
        return None

    def whole(self, sample: int, version: Version, read: Callable[[int, int], bytes]) -> bytes:
        """The whole sample; what is missing is read by `read(offset, size)`. Pieces of it are not kept any more.

        Raises: as `read` does.
        """
        with self._lock:
            begun = self._current(sample, version)
            self._forget(sample)
        if begun is None:
            return read(0, version.size_bytes)
        cut = begun.within(0, version.size_bytes)
        return b"".join(read(begin, end - begin) if data is None else data for begin, end, data in cut)

    def _current(self, sample: int, version: Version) -> _Begun | None:
        """The pieces of this version; those of another one are forgotten."""
        begun = self._begun.get(sample)
        if begun is None or begun.version == version:
            if begun is not None:
                self._begun.move_to_end(sample)
            return begun
        self._forget(sample)
        return None

    def _forget(self, sample: int) -> None:
        begun = self._begun.pop(sample, None)
        if begun is not None:
            self.bytes -= begun.held()
