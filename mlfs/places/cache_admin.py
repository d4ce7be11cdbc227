"""Counts, verifies and removes the copies that lie in a cache directory, for `mlfs cache`.

In: a `cache_directory.SourceDir`. Out: counts, what is wrong with each copy, removals. It removes only files that mlfs
made, never follows a symbolic link, and changes nothing in a store that a mount has locked. Called by `mlfs.cli.cache`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import lmdb

from mlfs.errors import CacheError
from mlfs.ours import private_directory
from mlfs.places import cache_directory, lmdb_pages, record
from mlfs.places.cache_directory import CacheKind, SourceDir
from mlfs.places.secret import Secret, of_this_user

_BLOCK_BYTES = 512  # the unit of st_blocks
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Store:
    """One store of one source, as it lies on disk. `samples` is -1 when an LMDB file cannot be read."""

    source: SourceDir
    kind: CacheKind
    samples: int
    used_bytes: int
    newest_ns: int


def stores(source: SourceDir) -> list[Store]:
    """The stores that a source has. Nothing is locked, so a mount may change the numbers at any time."""
    fd = source.open()
    try:
        found = [_count_ssd(source, fd), _count_lmdb(source, fd)]
    finally:
        os.close(fd)
    return [store for store in found if store is not None]


def _count_ssd(source: SourceDir, dir_fd: int) -> Store | None:
    samples = used_bytes = newest_ns = 0
    for sample in cache_directory.scan_samples(dir_fd):
        samples += 1
        used_bytes += -(-sample.size_bytes // 4096) * 4096
        newest_ns = max(newest_ns, sample.mtime_ns)
    for name in (cache_directory.RANGES_FILE, cache_directory.RANGES_IN_USE):
        with suppress(FileNotFoundError):
            ranges = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            used_bytes += ranges.st_blocks * _BLOCK_BYTES
            newest_ns = max(newest_ns, ranges.st_mtime_ns)
    return Store(source, CacheKind.SSD, samples, used_bytes, newest_ns) if used_bytes else None


def _count_lmdb(source: SourceDir, dir_fd: int) -> Store | None:
    with _data_file(dir_fd) as fd:
        if fd is None:
            return None
        stat = os.fstat(fd)
        try:
            samples = lmdb_pages.read_meta(fd).main.entries
        except (lmdb_pages.BadEnvironment, OSError):
            samples = -1
        return Store(source, CacheKind.LMDB, samples, stat.st_blocks * _BLOCK_BYTES, stat.st_mtime_ns)


@contextmanager
def _data_file(dir_fd: int) -> Iterator[int | None]:
    """A descriptor of the LMDB data file, None when there is none; symbolic links count as none."""
    try:
        lmdb_fd = private_directory(cache_directory.LMDB_DIR, dir_fd=dir_fd, make=False)
    except OSError:
        yield None
        return
    try:
        try:
            fd = os.open(cache_directory.LMDB_FILES[0], _OPEN_FILE, dir_fd=lmdb_fd)
        except OSError:
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(lmdb_fd)


def is_read_only(source: SourceDir) -> bool:
    """Whether the file system that the copies lie in cannot be written."""
    return bool(os.statvfs(source.path).f_flag & os.ST_RDONLY)


def verify(store: Store, *, keep: bool) -> Iterator[str | None]:
    """Check every copy of a store byte by byte; yields None for a right one, else what is wrong with it.

    Damaged ones are removed unless `keep`, or nothing can be. Raises CacheError when a mount uses the store.
    """
    read_only = is_read_only(store.source)
    keep = keep or read_only
    source, kind = store.source, store.kind
    dir_fd = source.open()
    lock_fd: int | None = None
    try:
        lock_fd = (cache_directory.lock_shared if read_only else cache_directory.lock)(dir_fd, source.path, kind)
        secret = of_this_user()
        yield from (
            _verify_ssd(dir_fd, keep, secret) if kind is CacheKind.SSD else _verify_lmdb(source, dir_fd, keep, secret)
        )
    finally:
        os.close(dir_fd)
        if lock_fd is not None:
            os.close(lock_fd)


def _verify_ssd(dir_fd: int, keep: bool, secret: Secret) -> Iterator[str | None]:
    for sample in cache_directory.scan_samples(dir_fd):
        path = cache_directory.sample_path(sample.digest)
        fault = _fault_of_file(dir_fd, path, sample.digest, secret)
        if fault is not None and not keep:
            with suppress(OSError):
                os.unlink(path, dir_fd=dir_fd)
        yield fault


def _fault_of_file(dir_fd: int, path: str, digest: bytes, secret: Secret) -> str | None:
    try:
        with open(os.open(path, _OPEN_FILE, dir_fd=dir_fd), "rb") as file:
            return _fault_of(file.read(), digest, path, secret)
    except OSError as error:
        return f"{path}: {error.strerror}"


def _fault_of(blob: bytes, digest: bytes, what: str, secret: Secret) -> str | None:
    try:
        head = record.read_whole(blob, secret)
    except record.OldCopy as error:
        return f"{what}: {error}"
    except record.ForeignCopy:
        return f"{what}: made with another key"
    except record.DamagedCopy as error:
        return f"{what}: {error}"
    return None if cache_directory.key_digest(head.key) == digest else f"{what}: the copy of another sample"


def _verify_lmdb(source: SourceDir, dir_fd: int, keep: bool, secret: Secret) -> Iterator[str | None]:
    """Check the structure before LMDB may open the file, then each copy. A damaged structure costs the whole store."""
    shown = os.path.join(source.path, cache_directory.LMDB_DIR)
    try:
        with _data_file(dir_fd) as fd:
            if fd is None:
                return
            map_bytes = os.fstat(fd).st_size + (64 << 20)  # room for removing damaged records
            lmdb_pages.read_entries(fd, overflow_heads=True)
    except lmdb_pages.BadEnvironment as error:
        if not keep:
            _remove_lmdb(source)
        yield f"{shown}: {error}"
        return
    lmdb_fd = private_directory(cache_directory.LMDB_DIR, dir_fd=dir_fd, make=False)
    path, damaged = f"/proc/self/fd/{lmdb_fd}", []
    try:
        # Read-only unless there is something to remove: verifying must not write.
        with lmdb.open(path, map_size=map_bytes, readonly=True, lock=False) as env, env.begin() as transaction:
            for digest, blob in transaction.cursor():
                fault = _fault_of(blob, digest, f"{shown} {digest.hex()}", secret)
                if fault is not None:
                    damaged.append(digest)
                yield fault
        if damaged and not keep:
            with lmdb.open(path, map_size=map_bytes) as env, env.begin(write=True) as change:
                for digest in damaged:
                    change.delete(digest)
    finally:
        os.close(lmdb_fd)


def clear(source: SourceDir) -> None:
    """Remove all copies of a source, and its directory if nothing else lies in it.

    Raises CacheError when a mount uses it or the system refuses.
    """
    locks: list[int] = []
    try:
        dir_fd = source.open()
        try:
            for kind in CacheKind:
                locks.append(cache_directory.lock(dir_fd, source.path, kind))
            cache_directory.remove_samples(dir_fd)
            _remove_lmdb(source)
            # The locks go last: once they are gone, a mount that starts makes a directory of its own.
            for name in (
                cache_directory.SOURCE_FILE,
                cache_directory.SOURCE_FILE + ".t",
                *(f"{kind}.lock" for kind in CacheKind),
            ):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=dir_fd)
        finally:
            os.close(dir_fd)
        for path in (source.path, os.path.dirname(source.path)):
            with suppress(OSError):  # a file that mlfs did not make, or another source, is in it
                os.rmdir(path)
    except OSError as error:
        raise CacheError(
            f"cannot clear {source.path}: {error.strerror}", "check who owns it, and that it can be written"
        ) from error
    finally:
        for fd in locks:
            os.close(fd)


def _remove_lmdb(source: SourceDir) -> None:
    dir_fd = source.open()
    try:
        try:
            lmdb_fd = private_directory(cache_directory.LMDB_DIR, dir_fd=dir_fd, make=False)
        except OSError:
            return  # there is none, or a symbolic link, which mlfs did not make
        try:
            for name in cache_directory.LMDB_FILES:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=lmdb_fd)
        finally:
            os.close(lmdb_fd)
        with suppress(OSError):
            os.rmdir(cache_directory.LMDB_DIR, dir_fd=dir_fd)
    finally:
        os.close(dir_fd)
