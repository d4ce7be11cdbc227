"""Finds the copies that an agent can give without its server: in this node's memory, on its SSDs and in LMDB.

In: the catalogue, the memory files of the RAM class and the tiers' directories, all of them the server's. Out: the
bytes of a sample and their checksum, or None. The server goes on writing meanwhile; mlfs.places.catalogue says why that
does no harm. Bytes in memory are not copied: they are sent from where they lie.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress

import lmdb

from mlfs.places import cache_directory, record
from mlfs.places.catalogue import Catalogue, CopyKind, Found
from mlfs.places.checksum import checksum
from mlfs.places.secret import Secret
from mlfs.tree.samples import Version

# Memory files grow without end, so they are mapped piece by piece; a sample may reach into the next piece.
_WINDOW_BYTES = 1 << 30
_MAPPED_BYTES = 2 * _WINDOW_BYTES
_HALVES = struct.Struct("<QQ")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class _MemoryFile:
    """A memory file of another process, mapped to be read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._windows: dict[int, memoryview] = {}
        self._size_bytes = 0

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """The bytes from `offset`, None where the file does not reach: touching what lies behind its end kills."""
        if size_bytes > _WINDOW_BYTES:
            return None
        if offset + size_bytes > self._size_bytes:
            self._size_bytes = os.fstat(self._fd).st_size
            if offset + size_bytes > self._size_bytes:
                return None
        window, within = divmod(offset, _WINDOW_BYTES)
        mapped = self._windows.get(window)
        if mapped is None:
            mapped = self._windows[window] = self._map(window * _WINDOW_BYTES)
        return mapped[within : within + size_bytes]

    def _map(self, start: int) -> memoryview:
        """A window, which stays mapped until nothing refers to its bytes any more: they may be on their way. Raises:
        OSError."""
        address = _libc.mmap(None, _MAPPED_BYTES, mmap.PROT_READ, mmap.MAP_SHARED, self._fd, start)
        if address in (None, _FAILED):
            raise OSError(ctypes.get_errno(), "a memory file cannot be mapped")
        mapped = (ctypes.c_char * _MAPPED_BYTES).from_address(address)
        weakref.finalize(mapped, _libc.munmap, address, _MAPPED_BYTES).atexit = False
        return memoryview(mapped).cast("B").toreadonly()

    def close(self) -> None:
        self._windows.clear()
        os.close(self._fd)


class Shelf:
    """The copies that this agent reads without asking its server.

    Args:
        memory_fds: the RAM class's memory files, which are closed with the shelf. ssd_dirs: descriptors of the
            directories in which the SSD tiers keep their copies; likewise. lmdb_dirs: those of the LMDB tiers.
        secret: what the checksums of copies on disk depend on; without it none of them is given.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        memory_fds: Sequence[int],
        ssd_dirs: Sequence[int] = (),
        lmdb_dirs: Sequence[int] = (),
        secret: Secret | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._memory = [_MemoryFile(fd) for fd in memory_fds]
        self._ssd_dirs = tuple(ssd_dirs)
        self._environments = [env for fd in lmdb_dirs if (env := _environment(fd)) is not None]
        self._secret = secret

    def find(self, sample: int, version: Version) -> tuple[memoryview, int] | None:
        """The bytes of that version and their checksum; None where this node has none to give by itself."""
        found = self._catalogue.find(sample)
        if found is None or found.version != version:
            return None
        if found.kind is CopyKind.RAM:
            data = self._in_memory(found)
            return None if data is None else (data, found.sum)
        data = self._in_lmdb(found) if found.kind is CopyKind.LMDB else self._on_ssd(found)
        return None if data is None else (data, checksum(data, sample, version))

    def _in_memory(self, found: Found) -> memoryview | None:
        number, offset = found.where
        if number >= len(self._memory) or found.version.size_bytes < 0:
            return None
        return self._memory[number].view(offset, found.version.size_bytes)

    def _on_ssd(self, found: Found) -> memoryview | None:
        digest = _HALVES.pack(*found.where)
        for directory in self._ssd_dirs:
            with suppress(OSError):
                data = self._checked(_read_file(cache_directory.sample_path(digest), directory), digest, found.version)
                if data is not None:
                    return data
        return None

    def _in_lmdb(self, found: Found) -> memoryview | None:
        digest = _HALVES.pack(*found.where)
        for environment in self._environments:
            with suppress(lmdb.Error):
                with environment.begin() as transaction:  # short, as LMDB keeps what it sees: the value is copied out
                    blob = transaction.get(digest)
                data = None if blob is None else self._checked(blob, digest, found.version)
                if data is not None:
                    return data
        return None

    def _checked(self, blob: bytes, digest: bytes, version: Version) -> memoryview | None:
        """The data of a stored copy, if it is the one of that digest and version and every byte is right."""
        secret = self._secret
        if secret is None:
            return None
        with suppress(record.DamagedCopy, record.OtherCopy):
            head = record.read_head(blob, secret)
            if cache_directory.key_digest(head.key) == digest:
                return memoryview(record.data_of(blob, head.key, version, secret))
        return None

    def close(self) -> None:
        """Let go of the memory files and the directories."""
        for file in self._memory:
            file.close()
        for directory in self._ssd_dirs:
            os.close(directory)
        for environment in self._environments:
            environment.close()


def _environment(fd: int) -> lmdb.Environment | None:
    """The environment of an LMDB tier, whose server writes to it meanwhile. None where it cannot be read."""
    try:
        return lmdb.open(f"/proc/self/fd/{fd}/{cache_directory.LMDB_DIR}", readonly=True, create=False)
    except lmdb.Error:
        return None  # on a medium that cannot be written, for instance: then the server gives what it has
    finally:
        os.close(fd)


def _read_file(path: str, dir_fd: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        parts = []
        while part := os.read(fd, 1 << 24):
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(fd)
