"""The manifest: the source tree as it was at the scan, in numpy arrays with one fixed-size record for each entry.

In: columns by entry id, made by `mlfs.tree.scan` or read back by `mlfs.tree.index`. Out: names, attributes and the
form of the tree. The request handlers answer every lookup and getattr from it, the orders ask it for files and their
sizes, the source for an entry's path.

An entry is a number from 0 to n-1; 0 is the root. Entries stand breadth-first: the children of a directory are
contiguous and sorted by the bytes of their names, and the children of a lower id come before those of a higher one.
So one array of n+1 numbers, `first_child`, gives every directory's range.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from mlfs.plan.rows import Rows
from mlfs.tree.attributes import FileAttributes, Rights
from mlfs.tree.hard_links import HardLinks
from mlfs.tree.sizes import UnsizedFiles
from mlfs.tree.times import Times

# The columns, with n entries, k symbolic links, d devices, l hard links and u unreadable directories. Names and link
# targets are two blobs of bytes; offsets into a blob are uint32 while it is below 4 GiB (`offsets_dtype`).
COLUMNS: Final[Mapping[str, str]] = {
    "parent": "u4",  # [n] the root is its own parent
    "first_child": "u4",  # [n + 1] the children of e are first_child[e] .. first_child[e + 1] - 1
    "mode": "u4",  # [n] st_mode with the file type
    "uid": "u4",  # [n]
    "gid": "u4",  # [n]
    "nlink": "u4",  # [n]
    "size": "i8",  # [n] bytes
    "blocks": "i8",  # [n] st_blocks: units of 512 bytes that the file takes at the source
    "mtime_ns": "i8",  # [n]
    "ctime_ns": "i8",  # [n]
    "name_offset": "offset",  # [n + 1]
    "names": "u1",  # the names one after another; the root's is empty
    "link": "u4",  # [k] ids of the symbolic links, ascending
    "target_offset": "offset",  # [k + 1]
    "targets": "u1",
    "device": "u4",  # [d] ids of the device nodes, ascending
    "device_rdev": "u8",  # [d]
    "linked": "u4",  # [l] ids of files that have another name in the tree, ascending
    "linked_first": "u4",  # [l] the first of the file's names
    "unreadable": "u4",  # [u] ids of directories that could not be listed at the scan, ascending
    "unreadable_errno": "u4",  # [u] what the listing failed with
}

MAX_PROBLEMS: Final = 10  # named in `status`, the others are only counted
ROOT: Final = 0
ABSENT: Final = -1

# Directories whose paths are remembered: some ten megabytes, and more than most data sets have.
_PATH_CACHE_ENTRIES = 65_536
_GENERATIONS = 1 << 16


def offsets_dtype(blob_bytes: int) -> str:
    """The dtype for offsets into a blob of that many bytes: 4 bytes each while they fit."""
    return "u4" if blob_bytes < 1 << 32 else "u8"


def _index_of(ids: memoryview, entry: int) -> int:
    """The position of `entry` in the ascending `ids`, or -1."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < entry:
            low = middle + 1
        else:
            high = middle
    return low if low < len(ids) and ids[low] == entry else ABSENT


def ids_of(entries: Sequence[int]) -> NDArray[np.int64]:
    """Entries as an array, such as the children of a directory."""
    if isinstance(entries, range):
        return np.arange(entries.start, entries.stop, dtype=np.int64)
    return np.array(entries, dtype=np.int64)


class Manifest:
    """The source tree at the time of the scan; about 64 bytes an entry and the bytes of its name.

    The arrays are public and for reading; `update` is the only way to change one, and it must be called from one
    thread (the daemon's loop). `past` has the attributes of earlier contents, `hard_links` the entries that are names
    of one file, `updates` how often anything has changed, `at_update` the entry that is changed just now, -1 for none,
    `times` what the source's times prove, `unsized` the files whose size is not the number of their bytes, `gone` the
    entries that a refresh has taken out. The `*_view` attributes are memoryviews of the same memory: `m.size_view[e]`
    gives a plain int in a fraction of the time of numpy's scalar, so request handlers read those.

    Args:
        columns: the arrays of `COLUMNS`, by name; kept, not copied.
        vanished: directories that disappeared while the scan ran (they stand in the manifest, empty).
        problems: the first few things that could not be read, as lines for people. None for a manifest that is read
            back: an index does not keep the reasons, so the lines name the unreadable directories only.
        times: what the source's times prove.
    """

    parent: NDArray[np.uint32]
    first_child: NDArray[np.uint32]
    mode: NDArray[np.uint32]
    uid: NDArray[np.uint32]
    gid: NDArray[np.uint32]
    nlink: NDArray[np.uint32]
    size: NDArray[np.int64]
    blocks: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    ctime_ns: NDArray[np.int64]
    name_offset: NDArray[np.unsignedinteger[Any]]
    names: NDArray[np.uint8]
    link: NDArray[np.uint32]
    target_offset: NDArray[np.unsignedinteger[Any]]
    targets: NDArray[np.uint8]
    device: NDArray[np.uint32]
    device_rdev: NDArray[np.uint64]
    linked: NDArray[np.uint32]
    linked_first: NDArray[np.uint32]
    unreadable: NDArray[np.uint32]
    unreadable_errno: NDArray[np.uint32]
    growths: int = 0  # how often the form of the tree has changed (`mlfs.tree.growing`)

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        vanished: int = 0,
        problems: tuple[str, ...] | None = None,
        times: Times | None = None,
    ) -> None:
        self.gone: set[int] = set()
        for name in COLUMNS:
            setattr(self, name, columns[name])
        self._n = len(self.parent)
        if self._n == 0 or len(self.first_child) != self._n + 1 or len(self.name_offset) != self._n + 1:
            raise ValueError("the columns of a manifest do not fit each other")
        self.vanished = vanished
        self.times = times or Times()
        self.unsized = UnsizedFiles()
        self._above: dict[int, bytes] = {ROOT: b""}  # by directory: its path and a slash, or what of it is remembered
        # How often an entry was updated since this manifest was made or loaded; wraps around at 65,536.
        self.generation: NDArray[np.uint16] = np.zeros(self._n, dtype=np.uint16)
        self.updates = 0
        self.at_update = -1
        self._rows: Rows | None = None
        self.past = PastContents()
        self.hard_links = HardLinks(self.linked, self.linked_first)
        self._make_views()
        if problems is None:
            unreadable = self.unreadable[:MAX_PROBLEMS].tolist()
            problems = tuple(f"{os.fsdecode(path)}: not readable" for path in self.paths(unreadable))
        self.problems = problems

    def _make_views(self) -> None:
        self.parent_view = self.parent.data
        self.first_child_view = self.first_child.data
        self.mode_view = self.mode.data
        self.uid_view = self.uid.data
        self.gid_view = self.gid.data
        self.nlink_view = self.nlink.data
        self.size_view = self.size.data
        self.blocks_view = self.blocks.data
        self.mtime_ns_view = self.mtime_ns.data
        self.ctime_ns_view = self.ctime_ns.data
        self.generation_view = self.generation.data
        self._offset_view = self.name_offset.data
        # As bytes, because their slice is one allocation and a memoryview's slice is two. The array is a view of them.
        self._name_bytes = self.names.tobytes()
        self.names = np.frombuffer(self._name_bytes, dtype=np.uint8)
        self._link_view = self.link.data
        self._device_view = self.device.data

    def __len__(self) -> int:
        """The number of entries: the root, directories, files and all else."""
        return self._n

    @property
    def used(self) -> int:
        """The number that is above those of all entries."""
        return self._n

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the manifest's arrays take."""
        return sum(array.nbytes for array in self.columns().values()) + self.generation.nbytes

    def fingerprint(self) -> str:
        """A digest of the tree's form and names: two nodes with the same one number their files alike.

        Sizes and times are not in it: a file that changes does not make another tree.
        """
        columns = self.columns()
        digest = xxhash.xxh3_128(np.ascontiguousarray(stat.S_IFMT(0xFFFFFFFF) & columns["mode"]).data)
        for name in ("parent", "first_child", "name_offset", "names"):
            digest.update(np.ascontiguousarray(columns[name]).data)
        return digest.hexdigest()

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays of `COLUMNS`, by name, not copied."""
        return {name: getattr(self, name) for name in COLUMNS}

    def keep_sizes_in(self, column: NDArray[np.int64], rows: Rows) -> None:
        """Keep the sizes at the beginning of a longer column from now on, whose owner keeps others behind them.

        It comes before anybody holds a view of the sizes. Args: rows: those that jobs will name.
        """
        self._rows = rows
        column[: self._n] = self.size
        self.size = column[: self._n]
        self.size_view = self.size.data

    @property
    def rows(self) -> Rows:
        """The ranges of files that jobs have named, whose ids stand behind those of all entries."""
        if self._rows is None:  # of a tree that nobody mounts
            self._rows = Rows.behind(self.size)
        return self._rows

    @property
    def sample_sizes(self) -> NDArray[np.int64]:
        """Bytes by sample: of entries, of blocks if large files are in blocks, of rows."""
        return self.size if self._rows is None else self._rows.sizes

    # -- names and the tree

    def name(self, entry: int) -> bytes:
        """The entry's own name; b"" for the root. IndexError for an id out of range."""
        offsets = self._offset_view
        return self._name_bytes[offsets[entry] : offsets[entry + 1]]

    def names_of(self, first: int, last: int) -> list[bytes]:
        """The own names of the entries first .. last - 1, in less time than `name` takes for each."""
        offsets = self.name_offset[first : last + 1].tolist()
        names = self._name_bytes
        return [names[start:end] for start, end in pairwise(offsets)]

    def path(self, entry: int) -> bytes:
        """The path relative to the root, b"" for the root. It may be longer than PATH_MAX."""
        offsets = self._offset_view
        name = self._name_bytes[offsets[entry] : offsets[entry + 1]]
        directory = self.parent_view[entry]
        paths = self._above
        return (paths[directory] if directory in paths else self._path_above(directory)) + name

    def _path_above(self, directory: int) -> bytes:
        """The path of a directory and a slash, and have it remembered. A directory keeps its path."""
        if len(self._above) >= _PATH_CACHE_ENTRIES:
            self._above = {ROOT: b""}
        parents, offsets, names = self.parent_view, self._offset_view, self._name_bytes
        parts, entry = [b""], directory
        while entry:
            parts.append(names[offsets[entry] : offsets[entry + 1]])
            entry = parents[entry]
        above = self._above[directory] = b"/".join(reversed(parts))
        return above

    def paths(self, ids: Sequence[int] | NDArray[Any]) -> Iterator[bytes]:
        """The paths of many entries, in the order given, in less time than `path` takes for each."""
        entries = np.asarray(ids, np.int64)
        offsets, parents, names = self.name_offset, self.parent, self._name_bytes
        columns = parents[entries].tolist(), offsets[entries].tolist(), offsets[entries + 1].tolist()
        for directory, begin, end in zip(*columns, strict=True):
            above = self._above
            yield (above[directory] if directory in above else self._path_above(directory)) + names[begin:end]

    def children(self, entry: int) -> Sequence[int]:
        """The ids of a directory's children, sorted by name; empty for anything that is not a directory.

        A range; in a tree that was refreshed (`mlfs.tree.growing`) it may be a list.
        """
        first = self.first_child_view
        return range(first[entry], first[entry + 1])

    def lookup(self, parent: int, name: bytes) -> int:
        """The id of the child called `name`, or -1. A binary search: microseconds, also among 100,000 children."""
        first, offsets, names = self.first_child_view, self._offset_view, self._name_bytes
        low, end = first[parent], first[parent + 1]
        high = end
        while low < high:
            middle = (low + high) >> 1
            if names[offsets[middle] : offsets[middle + 1]] < name:
                low = middle + 1
            else:
                high = middle
        if low < end and names[offsets[low] : offsets[low + 1]] == name:
            return int(low)
        return ABSENT

    def behind(self, directory: int, child: int) -> int:
        """The place in the list of a directory's children that is behind one which is, or was, among them."""
        children = self.children(directory)
        if isinstance(children, range):
            return min(max(0, child + 1 - children.start), len(children))
        return bisect_right(children, self.name(child), key=self.name)

    def is_gone(self, entry: int) -> bool:
        """Whether the entry was taken out of the tree."""
        return entry in self.gone

    def find(self, path: bytes) -> int:
        """The id at a path relative to the root, or -1. Empty parts are ignored; "." and ".." are names like others."""
        entry = ROOT
        for part in path.split(b"/"):
            if part:
                entry = self.lookup(entry, part)
                if entry < 0:
                    return ABSENT
        return entry

    def target(self, entry: int) -> bytes:
        """The text of a symbolic link. ValueError for anything else."""
        at = _index_of(self._link_view, entry)
        if at < 0:
            raise ValueError(f"entry {entry} is not a symbolic link")
        return self.targets[int(self.target_offset[at]) : int(self.target_offset[at + 1])].tobytes()

    def rdev(self, entry: int) -> int:
        """The device number (st_rdev) of a device node, 0 for anything else."""
        at = _index_of(self._device_view, entry)
        return int(self.device_rdev[at]) if at >= 0 else 0

    def _set_unreadable(self, errors: Mapping[int, int]) -> None:
        ids = sorted(errors)
        self.unreadable = np.array(ids, dtype=np.uint32)
        self.unreadable_errno = np.array([errors[entry] for entry in ids], dtype=np.uint32)

    def unreadable_error(self, directory: int) -> int:
        """The errno with which listing the directory failed at the scan; 0 if it was listed."""
        at = _index_of(self.unreadable.data, directory)
        return int(self.unreadable_errno[at]) if 0 <= at < len(self.unreadable_errno) else 0

    def is_dir(self, entry: int) -> bool:
        return stat.S_ISDIR(self.mode_view[entry])

    def is_file(self, entry: int) -> bool:
        return stat.S_ISREG(self.mode_view[entry])

    def rights(self, entry: int) -> Rights:
        """The rights on the entry."""
        return Rights(self.mode_view[entry], self.uid_view[entry], self.gid_view[entry], self.nlink_view[entry])

    def as_known(self, entry: int, seen: FileAttributes) -> FileAttributes:
        """A look at a file, with the times of the manifest in the place of those that prove nothing."""
        times = self.times
        if times.both:
            return seen
        mtime_ns = seen.mtime_ns if times.mtime else self.mtime_ns_view[entry]
        return seen._replace(mtime_ns=mtime_ns, ctime_ns=seen.ctime_ns if times.ctime else self.ctime_ns_view[entry])

    def shows(self, entry: int, size: int, mtime_ns: int, ctime_ns: int) -> bool:
        """Whether a look at a file has met the content that stands here, by the times that prove something."""
        known, proved = (self.mtime_ns_view[entry], self.ctime_ns_view[entry]), self.times.proved
        seen = clamp_ns(mtime_ns), clamp_ns(ctime_ns)
        return size == self.size_view[entry] and (known == seen or proved(*known) == proved(*seen))

    # -- all of them

    def _of_type(self, file_type: int) -> NDArray[np.uint32]:
        return np.flatnonzero((self.mode & np.uint32(0o170000)) == file_type).astype(np.uint32)

    @cached_property
    def files(self) -> NDArray[np.uint32]:
        """The ids of the regular files, ascending."""
        return self._of_type(stat.S_IFREG)

    @property
    def directories(self) -> NDArray[np.uint32]:
        """The ids of the directories, ascending; the first is the root."""
        return self._of_type(stat.S_IFDIR)

    @property
    def n_files(self) -> int:
        return len(self.files)

    @cached_property
    def total_bytes(self) -> int:
        """The sizes of all regular files, added up."""
        return int(self.size[self.files].sum())

    # -- changes below

    def update(
        self,
        entry: int,
        size: int,
        mtime_ns: int,
        ctime_ns: int,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        nlink: int | None = None,
        blocks: int | None = None,
    ) -> None:
        """Take over the attributes of a source file that has changed, and bump its generation.

        Args:
            entry: a regular file's id; ValueError for anything else, also when `mode` is of another type.
            size: bytes.
            mtime_ns, ctime_ns: since the epoch.
            mode, uid, gid, nlink: left as they are when None. blocks: when None, as many as the size takes.
        """
        if not self.is_file(entry) or (mode is not None and not stat.S_ISREG(mode)):
            raise ValueError(f"entry {entry} is not a regular file")
        self.updates += 1
        self.past.keep(entry, self.generation_view[entry], self._as_past(entry))
        self.at_update = entry
        self.unsized.forget(entry)
        self.total_bytes += size - self.size_view[entry]
        self.size[entry] = size
        self.mtime_ns[entry] = clamp_ns(mtime_ns)
        self.ctime_ns[entry] = clamp_ns(ctime_ns)
        self.blocks[entry] = -(-size // 512) if blocks is None else blocks
        for column, value in ((self.mode, mode), (self.uid, uid), (self.gid, gid), (self.nlink, nlink)):
            if value is not None:
                column[entry] = value
        # Behind the attributes: a worker who has this generation never takes a copy of the content before for it.
        self.generation[entry] = (self.generation_view[entry] + 1) % _GENERATIONS
        self.at_update = -1

    def _as_past(self, entry: int) -> Past:
        first = self.hard_links.first_of(entry)
        return Past(
            self.mode_view[entry], self.nlink_view[entry], self.uid_view[entry], self.gid_view[entry],
            self.size_view[entry], self.blocks_view[entry], self.mtime_ns_view[entry], self.ctime_ns_view[entry],
            first, self.generation_view[first],
        )  # fmt: skip

    def set_rights(self, entry: int, rights: Rights) -> None:
        """Take over who may read an entry of any type, whose content stays. ValueError for another file type."""
        if stat.S_IFMT(rights.mode) != stat.S_IFMT(self.mode_view[entry]):
            raise ValueError(f"entry {entry} is of another type")
        self.updates += 1
        self.mode[entry], self.uid[entry], self.gid[entry], self.nlink[entry] = rights


_NS_MIN, _NS_MAX = -(1 << 63), (1 << 63) - 1


def clamp_ns(time_ns: int) -> int:
    """A time that fits a column: years beyond 2262 exist on some file systems and do not fit 64 bits of nanoseconds."""
    return time_ns if _NS_MIN <= time_ns <= _NS_MAX else max(_NS_MIN, min(_NS_MAX, time_ns))


# -- the attributes of earlier contents, for as long as somebody may ask for them
#
# A reader who holds a file open as it was sees its old size. The kernel knows each content as an inode of its own, and
# says when it has forgotten one.

# The kernel never says that it has forgotten a content that it never knew: the oldest go.
MOST_PAST_CONTENTS: Final = 65_536


class Past(NamedTuple):
    """The attributes of a content, as stat(2) had them."""

    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    blocks: int
    mtime_ns: int
    ctime_ns: int
    first_name: int  # see mlfs.tree.hard_links
    first_generation: int


class PastContents:
    def __init__(self, most: int = MOST_PAST_CONTENTS) -> None:
        self._most = most
        self._past: dict[tuple[int, int], Past] = {}

    def __len__(self) -> int:
        """The number of contents that are remembered."""
        return len(self._past)

    def keep(self, entry: int, generation: int, attributes: Past) -> None:
        """Keeps a generation of the entry that the source has no more."""
        self._past[entry, generation] = attributes
        if len(self._past) > self._most:
            del self._past[next(iter(self._past))]

    def of(self, entry: int, generation: int) -> Past | None:
        """The attributes that the entry had; None where they are forgotten."""
        return self._past.get((entry, generation))

    def forget(self, entry: int, generation: int) -> None:
        """Forget attributes that nobody can ask for any more."""
        self._past.pop((entry, generation), None)
