"""The page cache of our own mount, filled and emptied by FUSE notifications.

In: bytes from the engine's worker threads. Out: pages in the kernel. Implements mlfs.engine.pagecache.PageCache. The
two notifications of the FUSE binding are passed in, so that this module knows no binding.

The kernel takes pages only for an inode that it has looked up, and completes a file's last page only when it knows the
file's size. So an inode that it does not know, or whose attributes went with its pages, is first looked up through our
own mount. The loop answers that look-up; so this code runs in worker threads only.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable, Sequence

from mlfs.engine.pagecache import Buffer
from mlfs.tree.manifest import Manifest
from mountd.inodes import inode_of

log = logging.getLogger("mlfs.pagecache")

# Larger contents are pushed in pieces: a notification holds pages locked until it is through.
PIECE_BYTES = 8 << 20


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_MAP_FAILED = ctypes.c_void_p(-1).value


def all_resident(fd: int, size_bytes: int, offset: int = 0) -> bool:
    """Whether all pages of a range of an open file are in the page cache; True where mincore(2) does not tell.

    Nothing is read: the file is mapped, and no page of the mapping is touched.
    """
    address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
    if address == _MAP_FAILED:
        return True
    try:
        pages = ctypes.create_string_buffer(-(-size_bytes // mmap.PAGESIZE))  # a byte each, 1: it is there
        if _libc.mincore(address, size_bytes, pages):
            return True
        return b"\0" not in pages.raw
    finally:
        _libc.munmap(address, size_bytes)


class MountPages:
    """Pages of one mount.

    Args:
        mountpoint: absolute path of the mount.
        store: (inode, offset, data), the binding's FUSE_NOTIFY_STORE.
        invalidate: (inode, offset, size), FUSE_NOTIFY_INVAL_INODE: attributes, and pages of a range; size 0: all.
        forget_name: (directory's inode, name), the binding's FUSE_NOTIFY_INVAL_ENTRY: the name is looked up anew.
        unknown: whether another process may have had attributes forgotten, which served this mount before.

    Attributes:
        looking: the native id of the thread that opens files to see which pages are there, None when none does. Only
            one thread does (the pool mlfs.engine.page_watch.POOL). It is None and not 0, as 0 is what the kernel calls
            each reader in another pid namespace.
    """

    def __init__(
        self,
        manifest: Manifest,
        mountpoint: bytes,
        store: Callable[[int, int, Buffer], None],
        invalidate: Callable[[int, int, int], None],
        forget_name: Callable[[int, bytes], None],
        unknown: bool = False,
    ) -> None:
        self.manifest = manifest
        self._prefix = mountpoint.rstrip(b"/") + b"/"
        self._store = store
        self._invalidate = invalidate
        self._forget_name = forget_name
        self._attributes_gone = bytearray(bytes((unknown,))) * len(manifest)
        self.looking: int | None = None
        self.pushed = 0
        self.refused = 0

    def push(self, entry: int, generation: int, offset: int, data: Buffer) -> bool:
        (target,) = self.targets((entry,), (generation,))
        try:
            self._push_pieces(target, offset, data)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return self._refuse(entry, error)
            try:
                self.look_up(entry)
                self._push_pieces(target, offset, data)
            except OSError as second:
                return self._refuse(entry, second)
        self.pushed += 1
        return True

    def resident(self, entry: int) -> bool:
        size_bytes = self.manifest.size_view[entry]
        return not size_bytes or self.resident_ranges(entry, [(0, size_bytes)])[0]

    def resident_ranges(self, entry: int, ranges: Sequence[tuple[int, int]]) -> list[bool]:
        """Opens the file through our own mount: the handlers know the thread by `looking`.

        mincore(2) tells only the file's owner, root, and who may write to it; others hear that all pages are there.
        """
        self.looking = threading.get_native_id()
        try:
            fd = os.open(self._prefix + self.manifest.path(entry), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return [True] * len(ranges)
        try:
            return [all_resident(fd, size_bytes, offset) for offset, size_bytes in ranges]
        finally:
            os.close(fd)
            self.looking = None

    def drop(self, entry: int, offset: int = 0, size: int = 0) -> None:
        # A row is pushed by whole pages, or with the file's end: the kernel knows the size, as the file is open.
        if not size:
            self._attributes_gone[entry] = 1
        try:
            self._invalidate(inode_of(entry, self.manifest.generation_view[entry]), offset, size)
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the kernel does not know the inode, so it has no pages of it
                log.warning("pages of %r could not be dropped: %s", self.manifest.path(entry), error)

    def replace(self, entry: int) -> None:
        try:
            self._forget_name(inode_of(self.manifest.parent_view[entry]), self.manifest.name(entry))
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the kernel does not know the name
                log.warning("the name of %r could not be forgotten: %s", self.manifest.path(entry), error)
        self.look_up(entry)

    def _push_pieces(self, inode: int, offset: int, data: Buffer) -> None:
        if len(data) <= PIECE_BYTES:
            self._store(inode, offset, data)
            return
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            self._store(inode, offset + start, view[start : start + PIECE_BYTES])

    def targets(self, entries: Sequence[int], generations: Sequence[int]) -> list[int]:
        gone = self._attributes_gone
        for entry in entries:
            if gone[entry]:
                self.look_up(entry)
        return [*map(inode_of, entries, generations)]

    def look_up(self, entry: int) -> None:
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
