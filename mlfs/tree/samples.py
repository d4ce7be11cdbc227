"""Samples: what a training job reads, as ranges of the data set's files, each with an id of its own.

In: the manifest. Out: `Samples`, which answers where a sample lies, how long it is, which samples a file has, under
which key tiers keep it, and which version of it is current.

A sample is (file, offset, length); a file is an entry of the manifest. In most data sets each regular file is one
sample: `Samples.whole_files`. A large file is many: its blocks (`Samples.in_blocks`), whose ids stand behind those of
all entries; behind them come the rows that jobs name (`mlfs.plan.rows`). Whoever holds a sample's id asks here for
everything else, and never takes it for an entry of the manifest, although for whole files they are equal.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.rows import Rows, room_behind
from mlfs.tree.manifest import Manifest


class Version(NamedTuple):
    """Which content of a sample: how many bytes it has, and when the source file that it lies in was changed.

    A time that proves nothing in this source is no part of it (`mlfs.tree.times`).

    Attributes:
        ctime_ns: the time of the last change of any kind. A file that takes another one's name by a rename, or that is
            written over, may keep size and mtime; this it cannot keep.
    """

    size_bytes: int
    mtime_ns: int
    ctime_ns: int = 0


class Samples:
    """The samples of a data set. Ids are numbers from 0 to `len(samples) - 1`; not every one of them need be a sample.

    This class takes each regular file for one sample, by the file's entry; `_InBlocks` has blocks and rows behind them.

    Attributes:
        manifest: the tree that the samples' files belong to.
        sizes: length in bytes by id, without a call. For whole files it is the manifest's own column, so it changes
            with the manifest when a source file does. It says nothing for an id that is no sample.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.sizes = manifest.size_view

    @staticmethod
    def whole_files(manifest: Manifest) -> Samples:
        """Every regular file is one sample. A directory's id or a link's is no sample, and its length is 0."""
        return Samples(manifest)

    @staticmethod
    def in_blocks(manifest: Manifest, above_bytes: int, block_bytes: int) -> Samples:
        """A file of more than `above_bytes` is blocks of `block_bytes`, the last one shorter; any other is one sample.

        From now on the manifest's sizes lie in the same memory as those of the blocks. A file that comes or grows later
        gets ids for its blocks, while there are some; what lies behind its blocks then belongs to no sample.
        """
        return _InBlocks(manifest, above_bytes, block_bytes)

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The ids of all samples, ascending."""
        return self.manifest.files

    def __len__(self) -> int:
        """How long an array has to be that has a place for every id."""
        return len(self.manifest)

    def file_of(self, sample: int) -> int:
        """The file that the sample lies in, as an entry of the manifest."""
        return sample

    def files_of(self, samples: list[int]) -> list[int]:
        """`file_of` of many samples."""
        return samples

    def offset_of(self, sample: int) -> int:
        """The offset of the sample in its file, in bytes."""
        return 0

    def length_of(self, sample: int) -> int:
        """How many bytes the sample has now; 0 for an id that is no sample."""
        return self.sizes[sample] if self.manifest.is_file(sample) else 0

    def of_file(self, entry: int) -> Sequence[int]:
        """The samples that lie in a file, ascending; none for an entry that is no regular file.

        The entry of a large file is among them, as jobs call it by that, with all blocks that it had in this mount, and
        its rows.
        """
        return range(entry, entry + 1) if self.manifest.is_file(entry) else range(0)

    def is_one(self, entry: int) -> bool:
        """Whether an entry is a file that is one sample, and always was in this mount."""
        return self.manifest.is_file(entry)

    def are_one(self, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        are: NDArray[np.bool_] = self.manifest.mode[entries] & 0o170000 == stat.S_IFREG
        return are

    def blocks_of(self, entry: int) -> range:
        """The blocks that a file has now, in the order of their offsets; none for a file that is one sample."""
        return range(0)

    @property
    def file_blocks(self) -> FileBlocks:
        """The files that are in blocks, and the blocks of each."""
        return FileBlocks.none(self.sizes)

    def resized(self, entry: int) -> None:
        """The manifest has another size of the file, or a new one: its blocks have other lengths. On the loop."""
        return

    def came(self, entries: range) -> None:
        """The manifest has these entries from now on: those that are large files have blocks. On the loop."""
        return

    def fingerprint(self) -> str:
        """A digest of how samples are numbered: two nodes with the same one call each sample by the same id."""
        return self.manifest.fingerprint()

    def is_whole_file(self, sample: int) -> bool:
        """Whether the sample is a whole file, however long that may be."""
        return True

    def key(self, sample: int) -> bytes:
        """The name under which tiers keep the sample: the same in every mount of this source, and of this range only.

        It is the file's path; for a part the path, a zero byte (which no path contains), and `OFFSET+LENGTH`. A last
        block has the length of the others there.
        """
        return self.manifest.path(sample)

    def name(self, sample: int) -> bytes:
        """The sample as people are shown it: its file's path, and of a part its offset and length between tabs."""
        path = self.manifest.path(self.file_of(sample))
        if self.is_whole_file(sample):
            return path
        return b"%b\t%d\t%d" % (path, self.offset_of(sample), self.sizes[sample])

    def version_of(self, sample: int) -> Version:
        """The version that the manifest says is current."""
        manifest = self.manifest
        times = manifest.mtime_ns_view[sample], manifest.ctime_ns_view[sample]
        return Version(self.sizes[sample], *(times if manifest.times.both else manifest.times.version(*times)))

    def version_of_part(self, of_file: Version, size_bytes: int) -> Version:
        """The version of a part of so many bytes, of a file that has this version."""
        return of_file._replace(size_bytes=size_bytes)


# So many blocks may come later at least, or a quarter of those that there are.
FEWEST_LATER: Final = 16_384


class _InBlocks(Samples):
    """Whole files, and behind them the blocks of large ones: 8 bytes a block, and some for each large file.

    A file has up to an eighth more ids than it has blocks, in steps of its own size: so a node that mounts after it has
    grown by a little numbers all blocks as the others do, and each grown block has an id.

    Attributes:
        sizes: of entries, then of blocks, then room for those of rows.
    """

    def __init__(self, manifest: Manifest, above_bytes: int, block_bytes: int) -> None:
        self.manifest = manifest
        self._entries = len(manifest)
        files = manifest.files.astype(np.int64)
        large = files[manifest.size[files] > above_bytes]
        counts = -(-manifest.size[large] // block_bytes)
        steps = np.maximum(1, 1 << np.maximum(0, np.frexp(counts)[1] - 4))
        ids = -(-counts // steps) * steps
        firsts = self._entries + np.cumsum(ids) - ids
        total = self._entries + int(ids.sum())
        first_row = total + max(FEWEST_LATER, (total - self._entries) // 4)
        column = room_behind(first_row) if len(large) else np.zeros(first_row, dtype=np.int64)
        column[self._entries : total] = block_bytes
        self._rows = Rows(first_row, column, large)
        manifest.keep_sizes_in(column, self._rows)
        column[firsts + counts - 1] = manifest.size[large] - (counts - 1) * block_bytes
        spare = ids - counts
        column[np.repeat(firsts + ids - np.cumsum(spare), spare) + np.arange(spare.sum())] = 0
        self.sizes = column.data
        self._blocks = FileBlocks(self.sizes, large, ids, self._entries, above_bytes, block_bytes, self._rows)

    def is_one(self, entry: int) -> bool:
        return not self._blocks.ever_of(entry) and self.manifest.is_file(entry)

    def are_one(self, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        return super().are_one(entries) & ~self._blocks.ever(entries)

    def blocks_of(self, entry: int) -> range:
        return self._blocks.of(entry)

    @property
    def file_blocks(self) -> FileBlocks:
        return self._blocks

    @property
    def ids(self) -> NDArray[np.uint32]:
        """Small files, and the blocks of the others."""
        files = self.manifest.files
        small = files[~np.isin(files, self._blocks.files_now())]
        blocks = np.arange(self._entries, self._rows.first, dtype=np.int64)
        blocks = blocks[np.asarray(self.sizes)[blocks] > 0]
        return np.concatenate([small, blocks]).astype(np.uint32)

    def __len__(self) -> int:
        return self._rows.end

    def file_of(self, sample: int) -> int:
        if sample < self._entries:
            return sample
        return self._blocks.file_of(sample) if sample < self._rows.first else self._rows.file_of(sample)

    def files_of(self, samples: list[int]) -> list[int]:
        return [sample if sample < self._entries else self.file_of(sample) for sample in samples]

    def offset_of(self, sample: int) -> int:
        if sample < self._entries:
            return 0
        return self._blocks.offset_of(sample) if sample < self._rows.first else self._rows.offset_of(sample)

    def length_of(self, sample: int) -> int:
        return super().length_of(sample) if sample < self._entries else self.sizes[sample]

    def resized(self, entry: int) -> None:
        blocks, size, sizes = self._blocks, self.sizes[entry], np.asarray(self.sizes)
        size = size if size > blocks.above_bytes else 0
        ever, count = blocks.ever_of(entry), -(-size // blocks.block_bytes)
        if count > len(ever) and blocks.number(entry, count + count // 4):  # it may go on to grow
            sizes[ever.start : ever.stop] = 0
            ever = blocks.ever_of(entry)
        behind = size - blocks.block_bytes * np.arange(len(ever), dtype=np.int64)  # bytes from each block's begin on
        sizes[ever.start : ever.stop] = behind.clip(0, blocks.block_bytes)

    def came(self, entries: range) -> None:
        large = np.flatnonzero(self.manifest.size[entries.start : entries.stop] > self._blocks.above_bytes)
        for entry in (entries.start + large).tolist():
            if self.manifest.is_file(entry):
                self.resized(entry)

    def of_file(self, entry: int) -> Sequence[int]:
        if not self.manifest.is_file(entry):
            return range(0)
        blocks = self._blocks.ever_of(entry)
        return (entry, *blocks, *self._rows.of_file(entry)) if blocks else range(entry, entry + 1)

    def is_whole_file(self, sample: int) -> bool:
        return sample < self._entries

    def key(self, sample: int) -> bytes:
        if sample < self._entries:
            return super().key(sample)
        # Not the length that it has now: the copy of a last block is to be found when its file has changed.
        block_bytes = self._blocks.block_bytes
        return b"%b\0%d+%d" % (self.manifest.path(self.file_of(sample)), self.offset_of(sample), block_bytes)

    def version_of(self, sample: int) -> Version:
        if sample < self._entries:
            return super().version_of(sample)
        return self.version_of_part(super().version_of(self.file_of(sample)), self.sizes[sample])

    def version_of_part(self, of_file: Version, size_bytes: int) -> Version:
        # In a source whose times are all alike, a file's length tells one content from another, and a block has not
        # that length.
        return of_file._replace(size_bytes=size_bytes, mtime_ns=of_file.mtime_ns ^ of_file.size_bytes)

    def fingerprint(self) -> str:
        """The digest depends on how many ids each large file had at first."""
        files, firsts = self._blocks.numbering()
        if not len(files):
            return super().fingerprint()
        numbers = xxhash.xxh3_128()
        for column in (files, firsts):
            numbers.update(column)
        return f"{super().fingerprint()}-{numbers.hexdigest()}"
