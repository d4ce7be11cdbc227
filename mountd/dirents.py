"""Replies to READDIRPLUS, built a thousand entries at a time with numpy instead of one by one.

In: a directory's entries in the manifest. Out: the bytes of `struct fuse_direntplus` records (linux/fuse.h, since
protocol 7.21), as the kernel takes them. Called by mountd.requests.

An entry is given with its attributes or without. With them the kernel makes an inode and a dentry for it: what `ls -l`
wants, and a job's files need before pages can be pushed. Without them (nodeid 0: "userspace did not want to return
attributes", fs/fuse/readdir.c) it only learns name and type, which is all that os.walk asks for, at a fraction of
the cost. Directories always come with theirs: whoever walks goes into them next.
"""

from __future__ import annotations

import stat
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.engine.looks import Looks
from mlfs.tree.manifest import Manifest, ids_of
from mountd.inodes import inode_of

HEAD_WORDS = 19  # struct fuse_entry_out: 16, struct fuse_dirent before the name: 3; every record is 8-aligned
BUILT_AT_ONCE = 4096
DESCRIBED_AT_ONCE = BUILT_AT_ONCE // 8
KEPT = 4
BLOCK_BYTES = 4096
_NS = 1_000_000_000
Words = NDArray[np.uint64]


class Records(NamedTuple):
    """Records of consecutive children of a directory: `data[ends[i - 1]:ends[i]]` is the one at place first + i."""

    first: int
    data: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def part(self, start: int, most_bytes: int) -> tuple[int, int]:
        """Begin and end of the records from child `start` on that fit."""
        begin = int(self.ends[start - self.first - 1]) if start > self.first else 0
        count = int(np.searchsorted(self.ends, begin + most_bytes, side="right"))
        return begin, int(self.ends[count - 1]) if count else 0

    def some(self, start: int, most_bytes: int) -> bytes:
        """The records from child `start` on that fit."""
        begin, end = self.part(start, most_bytes)
        return self.data[begin:end].tobytes()


class Direntries:
    """Listings of one manifest.

    Args:
        frozen_s: how long the kernel may keep names and attributes.
        generation: of all inodes but the root (mountd.wire.entry).
        looks: which entries the kernel may be told of; of the others it learns name and type.
    """

    def __init__(self, manifest: Manifest, frozen_s: float, generation: int, looks: Looks) -> None:
        self.manifest = manifest
        self._generation = generation
        self.frozen_s = int(frozen_s)
        self._looks = looks
        # Without attributes of files a listing changes with the manifest only: the next request for the same directory
        # goes on in it.
        self._kept: OrderedDict[tuple[int, int, int], Records] = OrderedDict()

    def records(self, directory: int, start: int, attributes: bool) -> Records | None:
        """Records from the directory's child number `start` on; None at the end.

        Each says how a listing goes on behind it: behind that entry, by its number. So one that goes on after the tree
        was refreshed leaves out nothing that was there all the time.
        """
        children = self.manifest.children(directory)
        if start >= len(children):
            return None
        block = start - start % BUILT_AT_ONCE
        key = (directory, block, self.manifest.updates + self.manifest.growths)
        if attributes:
            return self._build(start, ids_of(children[start : start + DESCRIBED_AT_ONCE]), attributes)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._build(block, ids_of(children[block : block + BUILT_AT_ONCE]), attributes)
            self._kept[key] = kept
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return kept

    def _build(self, place: int, entries: NDArray[np.int64], attributes: bool) -> Records:
        manifest = self.manifest
        offsets = manifest.name_offset[entries].astype(np.int64)
        lengths = manifest.name_offset[entries + 1].astype(np.int64) - offsets
        ends = np.cumsum(HEAD_WORDS + (lengths + 7) // 8)  # in words
        words = np.zeros(int(ends[-1]), dtype=np.uint64)
        begins = np.concatenate(([0], ends[:-1]))
        mode = manifest.mode[entries].astype(np.uint64)
        filled = np.ones(len(entries), dtype=np.bool_) if attributes else (mode & 0o170000) == stat.S_IFDIR
        if self._looks.needed:
            filled &= self._looks.seen_of(entries)
        known = np.flatnonzero(filled)
        if len(known):
            self._fill_attributes(words, begins[known], entries[known], self._numbers(entries)[known])
        words[begins + 16] = self._numbers(entries)
        words[begins + 17] = (1 + entries).astype(np.uint64)
        words[begins + 18] = lengths.astype(np.uint64) | (mode >> np.uint64(12) & np.uint64(15)) << np.uint64(32)
        data = words.view(np.uint8)
        before = np.cumsum(lengths) - lengths  # bytes of the names before
        numbers = np.arange(int(lengths.sum()))
        names = manifest.names[np.repeat(offsets - before, lengths) + numbers]
        data[np.repeat((begins + HEAD_WORDS) * 8 - before, lengths) + numbers] = names
        return Records(place, data, ends * 8)

    def _numbers(self, entries: NDArray[np.int64]) -> Words:
        """The st_ino of each entry: the inode of its file's first name."""
        return self._inodes(self.manifest.hard_links.first_of_each(entries))

    def _inodes(self, entries: NDArray[np.int64]) -> Words:
        generations = self.manifest.generation[entries].astype(np.uint64)
        return entries.astype(np.uint64) + np.uint64(inode_of(0)) | generations << np.uint64(32)

    def _fill_attributes(self, words: Words, at: NDArray[np.int64], entries: NDArray[np.int64], numbers: Words) -> None:
        """struct fuse_entry_out of each entry (no device nodes: their rdev stands elsewhere)."""
        m = self.manifest

        def column(values: NDArray[Any]) -> Words:
            return values[entries].astype(np.uint64)

        high, size = np.uint64(32), m.unsized.shown(entries, m.size[entries])
        mtime_s, mtime_ns = np.divmod(m.mtime_ns[entries], _NS)
        ctime_s, ctime_ns = np.divmod(m.ctime_ns[entries], _NS)
        words[at], words[at + 5] = self._inodes(entries), numbers
        words[at + 1] = self._generation
        words[at + 2] = words[at + 3] = self.frozen_s
        words[at + 6] = size.astype(np.uint64)
        words[at + 7] = column(m.blocks)
        words[at + 8] = words[at + 9] = mtime_s.astype(np.uint64)
        words[at + 10] = ctime_s.astype(np.uint64)
        words[at + 11] = mtime_ns.astype(np.uint64) | mtime_ns.astype(np.uint64) << high
        words[at + 12] = ctime_ns.astype(np.uint64) | column(m.mode) << high
        words[at + 13] = column(m.nlink) | column(m.uid) << high
        words[at + 14] = column(m.gid)
        words[at + 15] = BLOCK_BYTES
