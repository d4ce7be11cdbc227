"""The contract of a source: the file system behind the mount, which has the data set itself.

In: an entry of the manifest, from the engine's worker threads. Out: the file's bytes with the attributes that they
belong to, or an OSError. All methods block, are thread-safe, and are called from worker threads only: any of them can
hang for as long as the file system does.

A source never gives part of a file for the whole, nor parts of two versions of a file.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple, Protocol

from mlfs.tree.attributes import Rights

# The arguments of the OSError of a file that cannot be read as a whole, as nobody knows how long it is. It can be read
# as it comes, through a file that was opened.
UNSIZED: Final = (errno.EOVERFLOW, "the source file has another number of bytes than its size says")


class WholeFile(NamedTuple):
    """A whole file, and the attributes of exactly this content.

    Attributes:
        size: in bytes; `len(data)`.
        changed: whether it, or who may read it, is not what the manifest said at the time of the call.
        rights: who may read it; None where it is as the manifest said.
    """

    data: bytes | bytearray
    size: int
    mtime_ns: int
    ctime_ns: int
    changed: bool
    rights: Rights | None = None


class FileVersion(NamedTuple):
    """Which content an open file has; `size` is in bytes."""

    size: int
    mtime_ns: int
    ino: int


class OpenFile(Protocol):
    """A file of the source that is held open for reads of ranges. It survives that its name is replaced or removed."""

    @property
    def fd(self) -> int:
        """The descriptor; -1 once the file is closed."""

    @property
    def version(self) -> FileVersion:
        """The content that was there at open; `read` gives bytes of no other one."""

    @property
    def ctime_ns(self) -> int:
        """The time of the last change of the attributes, as it was at open."""

    @property
    def changed(self) -> bool:
        """Whether it, or who may read it, was not what the manifest said at open."""

    @property
    def rights(self) -> Rights:
        """The rights of the file, as they were at open."""

    @property
    def unsized(self) -> bool:
        """Whether the size was not the number of its bytes at open: then `read` gives them as they come."""

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, fewer only where the file ends.

        Raises: OSError; ESTALE when the file was written in place, so that it no longer has this version.
        """

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""


class Source(Protocol):
    """The file system behind the mount."""

    @property
    def open_count(self) -> int:
        """How many files were opened so far, for whole reads and for ranges."""

    @property
    def bytes_read(self) -> int:
        """How many bytes of file contents were read so far, those of reads that were repeated included."""

    def read_whole(self, entry: int, close_later: bool = False) -> WholeFile:
        """The whole content of a regular file. `close_later`: it stays open until `close_read`, which must follow.

        Raises: OSError; FileNotFoundError when it is gone; ESTALE when it is no regular file any more or keeps
        changing; ELOOP when a symbolic link has taken its place; UNSIZED when its size is wrong.
        """

    def close_read(self) -> None:
        """Close what `read_whole` left open, in whatever thread. To most file systems a close is a request of its own,
        so it is done when nobody waits for the bytes any more."""

    def open(self, entry: int) -> OpenFile:
        """Open a regular file for reads of ranges; the caller closes it. Raises: as `read_whole`."""

    def stat(self, entry: int) -> os.stat_result:
        """The attributes that the entry has now; those of a symbolic link are its own. Raises: OSError."""

    def attribute(self, entry: int, name: bytes) -> bytes:
        """An extended attribute of the entry. Raises: OSError; ENODATA when it has none of that name."""

    def attribute_names(self, entry: int) -> list[bytes]:
        """The names of the entry's extended attributes. Raises: OSError."""

    def statvfs(self) -> os.statvfs_result:
        """Sizes and limits of the file system. Raises: OSError."""

    def close(self) -> None:
        """Close the source's root; every later call fails."""
