"""The contract of a source: the file system that holds the truth, behind the mount.

In: an entry of the manifest, from the engine's worker threads. Out: the file's bytes with the attributes they belong
to, or an OSError. All methods are blocking and thread-safe, and are called from worker threads only: any of them can
hang for as long as the file system does.

A source never answers with part of a file, nor with parts of two versions of it.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol


class WholeFile(NamedTuple):
    """A whole file, and the attributes of exactly this content."""

    data: bytes | bytearray  # len(data) == size
    size: int  # bytes
    mtime_ns: int
    ctime_ns: int
    changed: bool  # size or mtime_ns differ from the manifest's at the time of the call


class FileVersion(NamedTuple):
    """Which content an open file has."""

    size: int  # bytes
    mtime_ns: int
    ino: int


class OpenFile(Protocol):
    """A file of the source held open, for reads of ranges. It goes on when the name is replaced or removed."""

    @property
    def fd(self) -> int:
        """The descriptor, for as long as it is open."""

    @property
    def version(self) -> FileVersion:
        """The content that was there at open: all that `read` ever answers from."""

    @property
    def ctime_ns(self) -> int:
        """At open."""

    @property
    def changed(self) -> bool:
        """Whether the version differs from the manifest's, as it was at open, in size or mtime_ns."""

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, fewer only where the file ends.

        Raises: OSError; ESTALE when the file is no longer of this version (it was written in place).
        """

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""


class Source(Protocol):
    """The file system behind the mount."""

    @property
    def open_count(self) -> int:
        """Files opened so far, for whole reads and ranges; only grows."""

    @property
    def bytes_read(self) -> int:
        """Bytes of file contents read so far, those of reads that were then repeated included; only grows."""

    def read_whole(self, entry: int, close_later: bool = False) -> WholeFile:
        """The whole content of a regular file. `close_later`: it stays open until `close_read`, which has to follow.

        Raises: OSError; FileNotFoundError when it is gone; ESTALE when it is no regular file any more or keeps
        changing; ELOOP when a symbolic link has taken its place.
        """

    def close_read(self) -> None:
        """Close what `read_whole` left open, in any thread: a request of its own to most file systems, for which nobody
        who waits for the bytes need wait."""

    def open(self, entry: int) -> OpenFile:
        """Open a regular file for reads of ranges; the caller closes it. Raises: as `read_whole`."""

    def stat(self, entry: int) -> os.stat_result:
        """The attributes now, of a symbolic link its own. Raises: OSError."""

    def statvfs(self) -> os.statvfs_result:
        """Sizes and limits of the file system. Raises: OSError."""

    def close(self) -> None:
        """Let go of the source; calls after this one fail."""
