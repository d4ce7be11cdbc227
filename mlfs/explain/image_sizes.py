"""Width and height of image files, from their first bytes.

In: parts of files at the source. Out: two numbers a file, kept. Used by `mlfs.explain.augmentation` in a worker thread;
JPEG (its frame header, ITU-T T.81, B.2.2) and PNG (its IHDR chunk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Read = Callable[[int, int], bytes]
"""Bytes of a file from an offset on, so many at most."""

# Each is opened at the source once more: some seconds' worth. Who reads more images without workers waits for them,
# whatever mlfs does.
MOST_IMAGES = 1 << 15
# A JPEG without much about its camera has its frame header here.
FIRST_BYTES = 1 << 10
PNG = b"\x89PNG\r\n\x1a\n"
JPEG, PREFIX = b"\xff\xd8", 0xFF
# Start of frame: all of 0xC0 to 0xCF but the tables of Huffman and arithmetic codes, and what is reserved.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
MOST_SEGMENTS = 64
SEGMENT_HEAD = 9
# More than JPEG can have, and less than a header of a PNG may claim.
LONGEST_SIDE = 1 << 20


class Size(NamedTuple):
    """Of an image, in pixels."""

    width: int
    height: int


class ImageSizes:
    """See the module.

    Args:
        read: bytes of an entry at the source: entry, offset, size; raises OSError.
    """

    def __init__(self, read: Callable[[int, int, int], bytes]) -> None:
        self._read = read
        self._known: dict[int, Size | None] = {}

    def of(self, entries: Iterable[int]) -> npt.NDArray[np.int32] | None:
        """The sizes of files, in their order; None where one is no image that is known here, or there are too many."""
        listed = list(entries)
        if len(listed) > MOST_IMAGES or len(self._known) > 2 * MOST_IMAGES:
            return None
        sizes: list[Size] = []
        for entry in listed:
            if entry not in self._known:
                self._known[entry] = self._size(entry)
            size = self._known[entry]
            if size is None:
                return None
            sizes.append(size)
        return np.array(sizes, dtype=np.int32).reshape(len(sizes), 2)

    def _size(self, entry: int) -> Size | None:
        try:
            return size_of(lambda offset, size: self._read(entry, offset, size)) if entry >= 0 else None
        except OSError:
            return None


def size_of(read: Read) -> Size | None:
    """The size of a JPEG or PNG image; None for anything else."""
    head = read(0, FIRST_BYTES)
    if head.startswith(PNG) and len(head) >= 24:
        return _possible(head[16:20], head[20:24])
    if not head.startswith(JPEG):
        return None
    at = len(JPEG)
    for _ in range(MOST_SEGMENTS):
        segment = head[at : at + SEGMENT_HEAD]
        if len(segment) < SEGMENT_HEAD:
            segment = read(at, SEGMENT_HEAD)
        if len(segment) < SEGMENT_HEAD or segment[0] != PREFIX:
            return None
        if segment[1] in FRAMES:
            return _possible(segment[7:9], segment[5:7])
        at += 2 + int.from_bytes(segment[2:4], "big")
    return None


def _possible(width: bytes, height: bytes) -> Size | None:
    """What a header says, unless no image is like that."""
    size = Size(int.from_bytes(width, "big"), int.from_bytes(height, "big"))
    return size if min(size) > 0 and max(size) <= LONGEST_SIDE else None
