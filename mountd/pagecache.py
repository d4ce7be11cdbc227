"""The page cache of our own mount, filled and emptied by FUSE notifications.

In: bytes from the engine's worker threads. Out: pages in the kernel. Implements mlfs.engine.pagecache.PageCache; the
binding's two notifications are passed in, so that either channel can serve.

What the kernel asks for: it takes pages only for an inode it has looked up, and completes a file's last page only
when it knows the file's size. So an inode it does not know, or whose attributes went with its pages, is first looked
up through our own mount (a request that the loop answers; hence worker threads only).

Whether pages are still there is asked by a probe: a worker opens the file through our own mount with PROBE_FLAGS and
reads it. The handlers know a probe by its flags and thread, tell the engine nothing of it, and refuse every READ that
comes of it: so its read succeeds exactly when the kernel has all pages, for any user. mincore(2) goes first because it
sends no request and does not wait for a page that a reader's READ has locked; alone it would not do, since to those who
neither own the file nor may write it the kernel says that every page is there. cachestat(2) counts pages whose content
never came, too.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
from collections.abc import Callable, Iterator

from mlfs.engine.pagecache import Buffer
from mlfs.manifest import Manifest
from mountd.inodes import inode_of

log = logging.getLogger("mlfs.pagecache")

PIECE_BYTES = 8 << 20
PROBE_FLAGS = os.O_NONBLOCK | os.O_DSYNC

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


def is_probe(flags: int, pid: int) -> bool:
    """Whether an OPEN is a probe of ours: these flags from a thread of this process, so no reader is taken for one."""
    return flags & PROBE_FLAGS == PROBE_FLAGS and os.path.exists(f"/proc/self/task/{pid}")


class MountPages:
    """Pages of one mount.

    Args:
        mountpoint: absolute path of the mount.
        store: (inode, offset, data), the binding's FUSE_NOTIFY_STORE.
        invalidate: (inode), the binding's FUSE_NOTIFY_INVAL_INODE: pages and attributes.
    """

    def __init__(
        self,
        manifest: Manifest,
        mountpoint: bytes,
        store: Callable[[int, int, Buffer], None],
        invalidate: Callable[[int], None],
    ) -> None:
        self.manifest = manifest
        self._prefix = mountpoint.rstrip(b"/") + b"/"
        self._store = store
        self._invalidate = invalidate
        self._attributes_gone = bytearray(len(manifest))
        self.pushed = 0
        self.refused = 0

    def push(self, entry: int, offset: int, data: Buffer) -> bool:
        """See PageCache."""
        if self._attributes_gone[entry]:
            self._look_up(entry)
        try:
            self._push_pieces(entry, offset, data)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return self._refuse(entry, error)
            try:
                self._look_up(entry)
                self._push_pieces(entry, offset, data)
            except OSError as second:
                return self._refuse(entry, second)
        self.pushed += 1
        return True

    def drop(self, entry: int) -> None:
        """See PageCache."""
        self._attributes_gone[entry] = 1
        try:
            self._invalidate(inode_of(entry))
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the kernel does not know the inode, so it has no pages of it
                log.warning("pages of %r could not be dropped: %s", self.manifest.path(entry), error)

    def replace(self, entry: int) -> None:
        """See PageCache."""
        self.drop(entry)
        self._look_up(entry)

    def read(self, entry: int, size: int) -> bytes | None:
        """See PageCache."""
        pieces = list(self._probe(entry, size))
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return data if len(data) == size else None

    def resident(self, entry: int, size: int) -> bool:
        """See PageCache."""
        return sum(len(piece) for piece in self._probe(entry, size)) == size

    def _probe(self, entry: int, size: int) -> Iterator[bytes]:
        """The file's bytes, as far as the kernel has them."""
        if not size:
            return
        try:
            fd = os.open(self._prefix + self.manifest.path(entry), os.O_RDONLY | os.O_CLOEXEC | PROBE_FLAGS)
        except OSError as error:
            log.debug("probe of %r: %s", self.manifest.path(entry), error)
            return
        try:
            offset = 0
            while offset < size and (offset or _all_in_core(fd, size)):
                piece = os.pread(fd, min(PIECE_BYTES, size - offset), offset)
                if not piece:
                    return
                offset += len(piece)
                yield piece
        except OSError as error:
            if error.errno != errno.EAGAIN:
                log.debug("probe of %r: %s", self.manifest.path(entry), error)
        finally:
            os.close(fd)

    def _push_pieces(self, entry: int, offset: int, data: Buffer) -> None:
        inode = inode_of(entry)
        if len(data) <= PIECE_BYTES:
            self._store(inode, offset, data)
            return
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            self._store(inode, offset + start, view[start : start + PIECE_BYTES])

    def _look_up(self, entry: int) -> None:
        """Make the kernel know the inode and its attributes."""
        try:
            os.stat(self._prefix + self.manifest.path(entry), follow_symlinks=False)
            self._attributes_gone[entry] = 0
        except OSError as error:
            log.debug("look-up of %r through the mount: %s", self.manifest.path(entry), error)

    def _refuse(self, entry: int, error: OSError) -> bool:
        self.refused += 1
        if self.refused == 1:
            log.warning(
                "the kernel refused pages of %r: %s (further ones are counted)", self.manifest.path(entry), error
            )
        return False


def _all_in_core(fd: int, size: int) -> bool:
    """Whether mincore(2) says that all pages are there; the mapping is never touched."""
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0)
    if address == _MAP_FAILED:
        return True  # a file that cannot be mapped: the read will tell
    try:
        there = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        return _libc.mincore(address, size, there) != 0 or all(byte & 1 for byte in there.raw)
    finally:
        _libc.munmap(address, size)
