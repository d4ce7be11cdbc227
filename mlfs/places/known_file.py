"""Reads a whole file that is expected to be as it is known: one look after the read tells whether it is.

In: a descriptor that was just opened, and what the manifest says of the file. Out: the bytes, and whether all of it is
so. Called by `mlfs.places.posix`, and by movers (`mountd.mover`), which know no manifest: so this imports next to
nothing.
"""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

from mlfs.tree.attributes import FileAttributes, attributes_now

# O_NONBLOCK, so that a FIFO that has taken a file's place cannot hang the open. It is cleared before a read that waits.
READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
# One read(2) gives at most 2 GiB less a page. Up to half of that a file is read by one call into one allocation.
ONE_READ_BYTES: Final = 1 << 30


class KnownFile(NamedTuple):
    """A file's content as it is known, and who may read it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    uid: int
    gid: int


def read_known(fd: int, known: KnownFile) -> tuple[bytes | bytearray, FileAttributes, bool]:
    """The content of a file, a look at it afterwards, and whether that has found all as it is known.

    It proves that the bytes are those of the known content only if its times are settled (`mlfs.tree.stable_stat`).

    Raises: OSError.
    """
    data = pread_all(fd, 0, known.size, True)
    now = attributes_now(fd)
    found = len(data), now.size, now.mtime_ns, now.ctime_ns
    return data, now, found == (known.size, *known[:3]) and stat.S_ISREG(now.mode)


def pread_all(fd: int, offset: int, size: int, ends: bool = False) -> bytes | bytearray:
    """`size` bytes from `offset`, fewer only where the file ends.

    Args:
        ends: by its attributes the file ends there: one byte more is asked for, and comes where that is wrong. It costs
            no call of its own, and no copy: the memory that is taken for it is given back where it lies.
    """
    wanted = size + ends
    if wanted == 0:
        return b""  # an offset far beyond the end is no error
    if wanted <= ONE_READ_BYTES:
        data = os.pread(fd, wanted, offset)
        if len(data) == size or len(data) == wanted or not data:
            return data
    else:
        data = b""
    # Rare: a signal, a file that shrinks, more than one read gives.
    size = wanted
    whole = bytearray(size)
    view = memoryview(whole)
    done = len(data)
    whole[:done] = data
    while done < size:
        count = os.preadv(fd, [view[done : done + ONE_READ_BYTES]], offset + done)
        if not count:
            break
        done += count
    view.release()
    del whole[done:]
    return whole
