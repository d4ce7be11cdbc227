"""The layout of a cache directory: where copies lie in it, which source they belong to, which process may write.

In: a cache directory and a source's identity. Out: a `Claim` (the source's directory, locked) for a tier; `SourceDir`s
for `mlfs cache`. Used by `on_disk` and `ssd` when a mount starts, by `cache_admin` and `mlfs.cli.cache`. The layout is
described in docs/cache-format.md.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import xxhash

from mlfs.errors import CacheError
from mlfs.ours import OPEN_DIR, NotOursError, open_ours, private_directory

FORMAT_DIR = "mlfs-v2"
OLD_FORMAT_DIR = "mlfs-v1"
SOURCE_FILE = "source.json"
LMDB_DIR = "lmdb"
LMDB_FILES = ("data.mdb", "lock.mdb")
RANGES_FILE = "ranges"
"""Ranges of large files that lie beside the copies (`mlfs.places.left_pieces`)."""
RANGES_INDEX = RANGES_FILE + ".index"
RANGES_IN_USE = RANGES_FILE + ".t"
_SOURCE_NAME = re.compile(r"[0-9a-f]{32}")
_FAN_NAME = re.compile(r"[0-9a-f]{2}")
_SAMPLE_NAME = re.compile(r"[0-9a-f]{32}\.s")
_TEMP_NAME = re.compile(r"[0-9a-f]{32}\.[tm]")
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}


class CacheKind(StrEnum):
    """The two stores that keep copies on disk; the values are part of file names."""

    SSD = "ssd"
    LMDB = "lmdb"


def source_hash(source_id: bytes | str) -> str:
    """The name of a source's directory: 32 hex digits over its identity, usually its real path."""
    return xxhash.xxh3_128_hexdigest(os.fsencode(source_id))


def user_path(directory: str) -> str:
    """The directory below a cache directory that is this user's own: several users may share a cache directory."""
    return os.path.join(directory, f"{FORMAT_DIR}-{os.geteuid()}")


def source_path(directory: str, source_id: bytes | str) -> str:
    """The directory of a source's copies below a cache directory."""
    return os.path.join(user_path(directory), source_hash(source_id))


def old_copies(directory: str) -> str | None:
    """Files that an earlier mlfs left in a cache directory, and that no mount uses any more."""
    path = os.path.join(directory, OLD_FORMAT_DIR)
    return path if os.path.isdir(path) and not os.path.islink(path) else None


def key_digest(key: bytes) -> bytes:
    """The 16 bytes that stand for a sample's key in names and LMDB keys; the whole key is stored beside the data."""
    return xxhash.xxh3_128_digest(key)


def sample_path(digest: bytes) -> str:
    """Path of a sample's file relative to the source's directory."""
    name = digest.hex()
    return f"{name[:2]}/{name}.s"


def temp_path(digest: bytes, elsewhere: bool = False) -> str:
    """Path of a sample's file while it is written, or while a process beside this one writes it."""
    name = digest.hex()
    return f"{name[:2]}/{name}.{'m' if elsewhere else 't'}"


@dataclass
class Claim:
    """A source's directory, open, and locked against other mounts for one kind of store."""

    path: str
    dir_fd: int
    read_only: bool
    _lock_fd: int | None

    @property
    def lock_fd(self) -> int:
        """Holds the lock, as long as any process has this descriptor; -1 for none that keeps others from reading."""
        return -1 if self.read_only or self._lock_fd is None else self._lock_fd

    def release(self) -> None:
        """Unlock and close; may be called twice."""
        if self.dir_fd >= 0:
            os.close(self.dir_fd)
            self.dir_fd = -1
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def claim(directory: str, source_id: bytes | str, kind: CacheKind, locks: Collection[int] = ()) -> Claim:
    """Make the directory of a source usable by this process alone, for one kind of store.

    Args: locks: `Claim.lock_fd` of another process, among others: then this one goes on with that lock.

    A directory that cannot be written but holds this source's directory is claimed read-only.
    Raises CacheError when it cannot be used or another process uses it.
    """
    path = source_path(directory, source_id)
    dir_fd = -1
    lock_fd: int | None = None
    try:
        dir_fd = _open_source(path, make=True)
        try:
            lock_fd, read_only = lock(dir_fd, path, kind, locks), False
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            lock_fd, read_only = lock_shared(dir_fd, path, kind), True
        if not read_only:
            _write_source_file(dir_fd, source_id)
        return Claim(path, dir_fd, read_only, lock_fd)
    except BaseException as error:
        for fd in (dir_fd, lock_fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        if isinstance(error, OSError):
            raise unusable(directory, error) from error
        raise


def _open_source(path: str, *, make: bool) -> int:
    """A descriptor of a source's directory. All that is opened in it is opened relative to that."""
    above, name = os.path.split(path)
    user_fd = private_directory(above, make=make)
    try:
        return private_directory(name, dir_fd=user_fd, make=make)
    except NotOursError as error:
        raise NotOursError(path, str(error.strerror), error.way_out) from None
    finally:
        os.close(user_fd)


def unusable(directory: str, error: OSError) -> CacheError:
    """The error for a cache directory that the system refuses, or that somebody else can have filled."""
    if isinstance(error, NotOursError):
        message = f"cannot use the cache directory {directory}: {error.filename}: {error.strerror}"
        return CacheError(message, error.way_out)
    hints = {
        errno.ENOSPC: "free some space there, or name another directory",
        errno.EEXIST: "a file stands where the directory should be; name another directory",
        errno.ENOTDIR: "a file stands where the directory should be; name another directory",
    }
    hint = hints.get(error.errno or 0, "name a directory that this user can write to")
    return CacheError(f"cannot use the cache directory {directory}: {error.strerror}", hint)


def lock(dir_fd: int, source_path: str, kind: CacheKind, locks: Collection[int] = ()) -> int:
    """Lock one store of a source against all other processes, and leave this process's id in the lock file.

    Returns the descriptor that holds the lock. Raises CacheError when another process holds it, OSError when the lock
    file cannot be made.
    """
    name = f"{kind}.lock"
    while True:
        held = next((fd for fd in locks if _still_named(fd, name, dir_fd)), None)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=dir_fd) if held is None else os.dup(held)
        try:
            _flock(fd, fcntl.LOCK_EX, source_path)
            # `mlfs cache clear` may have removed the file between open and lock. Then the lock protects nothing.
            if _still_named(fd, name, dir_fd):
                with suppress(OSError):  # a full disk must not keep a mount from reading what lies there
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def lock_shared(dir_fd: int, source_path: str, kind: CacheKind) -> int | None:
    """Lock a store that this process can only read, against processes that can write it; None without a lock file.

    Raises CacheError when another process holds it.
    """
    try:
        fd = os.open(f"{kind}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return None  # nothing to lock: no mount has written here, and none can
    try:
        _flock(fd, fcntl.LOCK_SH, source_path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _flock(fd: int, how: int, source_path: str) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise CacheError(
            f"the cache in {source_path} is in use by process {pid}",
            "unmount that mount first, or name another cache directory",
        ) from error


def _still_named(fd: int, name: str, dir_fd: int) -> bool:
    try:
        named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def _write_source_file(dir_fd: int, source_id: bytes | str) -> None:
    """Write down which source the copies belong to, for `mlfs cache list`. Nothing else depends on it."""
    # Bytes that are not UTF-8 become \udcXX escapes, which JSON carries and os.fsencode turns back.
    text = json.dumps({"format": 2, "source": os.fsdecode(source_id)}) + "\n"
    with suppress(OSError):
        with suppress(FileNotFoundError), open(open_ours(SOURCE_FILE, dir_fd=dir_fd), encoding="ascii") as file:
            if file.read() == text:
                return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(SOURCE_FILE + ".t", flags, 0o600, dir_fd=dir_fd), "w", encoding="ascii") as file:
            file.write(text)
        os.rename(SOURCE_FILE + ".t", SOURCE_FILE, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


@dataclass(frozen=True)
class SampleFile:
    """A file of the SSD store, as a directory scan sees it."""

    digest: bytes
    size_bytes: int
    mtime_ns: int


def scan_samples(dir_fd: int, *, clean: bool = False) -> Iterator[SampleFile]:
    """The sample files below a source's directory: names, sizes and times only, nothing is opened.

    With `clean`, files that an interrupted write left are removed on the way: only for the holder of the lock.
    """
    for fan, fan_fd in _fan_dirs(dir_fd):
        with os.scandir(fan_fd) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(fan) or not entry.is_file(follow_symlinks=False):
                    continue
                if clean and _TEMP_NAME.fullmatch(name):
                    with suppress(OSError):
                        os.unlink(name, dir_fd=fan_fd)
                elif _SAMPLE_NAME.fullmatch(name):
                    with suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        yield SampleFile(bytes.fromhex(name[:-2]), stat.st_size, stat.st_mtime_ns)


def remove_samples(dir_fd: int) -> None:
    """Remove all sample files, ranges, temporary files and their directories. Other files stay. Raises OSError."""
    fans = []
    for name in (RANGES_INDEX, RANGES_FILE, RANGES_IN_USE):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=dir_fd)
    for fan, fan_fd in _fan_dirs(dir_fd):
        fans.append(fan)
        with os.scandir(fan_fd) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            if _TEMP_NAME.fullmatch(name) or _SAMPLE_NAME.fullmatch(name):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=fan_fd)
    for fan in fans:
        with suppress(OSError):  # it is not empty: a file that mlfs did not make is in it
            os.rmdir(fan, dir_fd=dir_fd)


def _fan_dirs(dir_fd: int) -> Iterator[tuple[str, int]]:
    """The directories 00 to ff, each with a descriptor that is open for its turn. Symbolic links are left out."""
    with os.scandir(dir_fd) as entries:
        names = [e.name for e in entries if _FAN_NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    for name in sorted(names):
        try:
            fd = os.open(name, OPEN_DIR, dir_fd=dir_fd)
        except OSError:
            continue
        try:
            yield name, fd
        finally:
            os.close(fd)


@dataclass(frozen=True)
class SourceDir:
    """A source's directory below a cache directory.

    Attributes:
        source: the source's path as `source.json` says it; None when it says nothing that can be believed.
    """

    path: str
    source: str | None

    def open(self) -> int:
        """Return a descriptor of the directory. Raises OSError; never follows a symbolic link."""
        return _open_source(self.path, make=False)


def find_sources(directory: str) -> list[SourceDir]:
    """The sources of which this user has copies below a cache directory, by path.

    Raises CacheError when the directory cannot be read, holds no cache of this user, or one that is not surely his.
    """
    root = user_path(directory)
    try:
        fd = private_directory(root, make=False)  # a symbolic link here could lead anywhere
    except NotOursError as error:
        raise unusable(directory, error) from error
    except OSError as error:
        old = old_copies(directory)
        hint = (
            f"{old} is of an earlier mlfs and not used any more: rm -r {old}"
            if old
            else "name the DIR of --ssd or --lmdb"
        )
        raise CacheError(f"no mlfs cache of yours in {directory}: {error.strerror}", hint) from error
    try:
        with os.scandir(fd) as entries:
            names = [e.name for e in entries if _SOURCE_NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        found = [SourceDir(os.path.join(root, name), _read_source_file(fd, name)) for name in names]
    finally:
        os.close(fd)
    return sorted(found, key=lambda entry: (entry.source or "", entry.path))


def _read_source_file(root_fd: int, name: str) -> str | None:
    try:
        with open(open_ours(f"{name}/{SOURCE_FILE}", dir_fd=root_fd), "rb") as file:
            source = json.loads(file.read(65536))["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return source if isinstance(source, str) and source_hash(source) == name else None
