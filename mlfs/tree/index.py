"""The index: the saved manifest, from which the next mount of the same source starts without a scan.

In: a manifest, the path of the index file, the identity of the source. Out: the manifest again, or the reason why it
cannot be used. An index that is missing, damaged, of another version or of another source is no error; it costs a scan.
Called by the daemon at start (`manifest_for`), before any request is served, and by commands that look at a source.

The file is a fixed head (magic, version, lengths, a checksum), a JSON description of the columns, and the columns one
behind the other. The checksum (xxh3_128) covers the head, the description and every byte of the columns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from mlfs.ours import check_replaceable, make_parent, open_ours, user_cache_directory, write_ours
from mlfs.tree.attributes import attributes_of
from mlfs.tree.learn_times import alike, learn_at_start, stale_directory
from mlfs.tree.manifest import COLUMNS, Manifest, clamp_ns
from mlfs.tree.openat import open_beneath
from mlfs.tree.scan import GONE, Pool, Progress, Stop, poller, scan
from mlfs.tree.scan_lock import ScanLock, Stamp, Waits, stamp_of
from mlfs.tree.times import ALIKE, NEVER_MOVE, Times

FORMAT_VERSION: Final = 3

NO_PROOF: Final = "the times of its directories prove nothing"

_KIND = "an index of mlfs"
_MAGIC = b"mlfsidx\n"
_HEAD = struct.Struct("<8sIIQ")  # magic, format version, bytes of the description, bytes of the columns
_DIGEST_BYTES = 16
_DESCRIPTION_MAX_BYTES = 1 << 20  # a description has about 1 KiB; more is a damaged length
_PORTION = 256  # directories that a thread compares before it takes the next ones


class _UnusableError(Exception):
    """An index cannot be used; the text says why, for people."""


@dataclass(frozen=True)
class ScanReport:
    """How the manifest of a mount was made.

    Attributes:
        reused: whether it was read from the saved index; otherwise the source was scanned.
        reason: why the source was scanned, for people; "" when it was not.
        seconds: how long it took in all.
        problem_count: how many directories could not be read, and are shown empty.
        problems: the first few of them, as lines.
        vanished: how many directories disappeared during the scan.
        warning: why the index could not be saved; "" when it was saved or did not have to be.
        by: the node that scanned the source or compared it with the index, while this one waited; "" for this one.
    """

    reused: bool
    reason: str
    seconds: float
    problem_count: int = 0
    problems: tuple[str, ...] = ()
    vanished: int = 0
    warning: str = ""
    by: str = ""

    @property
    def how(self) -> str:
        """`reused` or `scanned`."""
        return "reused" if self.reused else "scanned"


def default_index_path(source: str) -> Path:
    """The index of a source unless the user says otherwise: it lies in the user's cache directory.

    Args:
        source: the source's path; made absolute, symbolic links are not followed, so this touches no file system.
    """
    digest = hashlib.sha256(os.fsencode(os.path.abspath(source))).hexdigest()[:32]
    return Path(user_cache_directory(), "index", f"{digest}.idx")


def source_identity(root_fd: int, source_path: str) -> str:
    """A text that tells one source from another: its path, and the inode number of the directory that is there.

    The device number is not in it, as network file systems get another one at each mount.
    """
    path = os.fsencode(os.path.abspath(source_path)).hex()
    return f"{path}:{os.fstat(root_fd).st_ino}"


# -- saving


def _description(manifest: Manifest, identity: str) -> bytes:
    columns = {name: [column.dtype.str, len(column)] for name, column in manifest.columns().items()}
    times = dataclasses.asdict(manifest.times.statistics())
    described = {"source": identity, "columns": columns, "times": times}
    return json.dumps(described).encode("ascii")


def _head_of(manifest: Manifest, identity: str) -> bytes:
    """The head and the description, one behind the other."""
    description = _description(manifest, identity)
    column_bytes = sum(column.nbytes for column in manifest.columns().values())
    return _HEAD.pack(_MAGIC, FORMAT_VERSION, len(description), column_bytes) + description


def _write(file: BinaryIO, manifest: Manifest, identity: str) -> None:
    head = _head_of(manifest, identity)
    digest = xxhash.xxh3_128(head)
    file.write(head[: _HEAD.size] + bytes(_DIGEST_BYTES) + head[_HEAD.size :])
    for column in manifest.columns().values():
        digest.update(column.data)
        file.write(column.data)
    file.seek(_HEAD.size)
    file.write(digest.digest())


def _is_index(beginning: bytes) -> bool:
    return beginning.startswith(_MAGIC)


def check_path(path: str) -> None:
    """Whether an index may be written there. Raises NotOursError for a file that is no index; OSError."""
    check_replaceable(path, _KIND, _is_index)


def save(manifest: Manifest, path: Path, identity: str) -> None:
    """Write the index, atomically: a reader finds the old file or the whole new one.

    Args:
        manifest: what to save; must not be updated meanwhile.
        path: the file; its directory is made when missing. Readable for the user only, for names can be private.
        identity: of `source_identity`.

    Raises: OSError, with no temporary file left behind; NotOursError for a file in its place that is no index.
    """
    make_parent(str(path))
    write_ours(str(path), lambda file: _write(file, manifest, identity), _KIND, _is_index)


# -- loading


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise _UnusableError("it is truncated")
    return data


def _read_head(file: BinaryIO) -> tuple[bytes, bytes, bytes, int]:
    """Head, digest, description and the number of bytes of the columns. Only the lengths are verified so far."""
    head = _read_exactly(file, _HEAD.size)
    magic, version, description_bytes, column_bytes = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise _UnusableError("it is not an index of mlfs")
    if version != FORMAT_VERSION:
        raise _UnusableError(f"it has format version {version}, this mlfs writes {FORMAT_VERSION}")
    expected = _HEAD.size + _DIGEST_BYTES + description_bytes + column_bytes
    # Before anything is allocated: a damaged length must not ask for terabytes.
    if description_bytes > _DESCRIPTION_MAX_BYTES or os.fstat(file.fileno()).st_size != expected:
        raise _UnusableError("it is truncated or damaged")
    digest = _read_exactly(file, _DIGEST_BYTES)
    return head, digest, _read_exactly(file, description_bytes), column_bytes


def _read_columns(file: BinaryIO, column_bytes: int, described: dict[str, list[Any]]) -> dict[str, NDArray[Any]]:
    """The columns, each in memory of its own. All lengths are checked against the file's before memory is taken."""
    # Names and dtypes are those of COLUMNS. The file's own words are only compared with them, so it brings no others
    # in.
    if list(described) != list(COLUMNS):
        raise _UnusableError("it has other columns")
    left = column_bytes
    columns: dict[str, NDArray[Any]] = {}
    for name, (found, count) in described.items():
        allowed = ("u4", "u8") if COLUMNS[name] == "offset" else (COLUMNS[name],)
        dtype = next((np.dtype(code) for code in allowed if np.dtype(code).str == found), None)
        if dtype is None or not 0 <= count * dtype.itemsize <= left:
            raise _UnusableError("its columns do not fit")
        left -= count * dtype.itemsize
        column = np.empty(count, dtype=dtype)
        if file.readinto(column.view(np.uint8).data) != column.nbytes:  # type: ignore[attr-defined]
            raise _UnusableError("it is truncated")
        columns[name] = column
    return columns


def _load(path: Path, identity: str) -> Manifest:
    with open(open_ours(str(path)), "rb") as file:
        return _load_file(file, identity)


def _load_file(file: BinaryIO, identity: str) -> Manifest:
    head, digest, description, column_bytes = _read_head(file)
    try:
        described = json.loads(description)
        source, wanted = described["source"], described["columns"]
        times = Times(**described["times"])
        columns = _read_columns(file, column_bytes, wanted)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _UnusableError("it is damaged") from error
    sum_found = xxhash.xxh3_128(head + description)
    for column in columns.values():
        sum_found.update(column.data)
    if sum_found.digest() != digest:
        raise _UnusableError("it is damaged: its checksum does not match")
    if source != identity:
        raise _UnusableError("it belongs to another source")
    return Manifest(columns, times=times)


def load(path: Path, identity: str) -> tuple[Manifest | None, str]:
    """Read an index back.

    Args:
        path: the file that `save` wrote.
        identity: of `source_identity`; an index that was saved with another one is not used.

    Returns: the manifest and ""; or None and why not, for people. Never raises for what lies in the file.
    """
    try:
        return _load(path, identity), ""
    except FileNotFoundError:
        return None, "there is no saved index"
    except _UnusableError as error:
        return None, f"the saved index is not usable: {error}"
    except OSError as error:
        return None, f"the saved index cannot be read: {error.strerror}"
    except (MemoryError, ValueError) as error:
        return None, f"the saved index is not usable: {error}"


# -- the list of files of one mount, by a descriptor: a server that takes the mount over has to number them alike


def kept_open(manifest: Manifest, path: Path, identity: str) -> int:
    """A descriptor of an index that has exactly these entries: of the saved one, which stays as it is when another one
    is saved in its place, or where that is not the same, of a copy in memory. Raises: OSError."""
    digest = xxhash.xxh3_128(_head_of(manifest, identity))
    for column in manifest.columns().values():
        digest.update(column.data)
    with contextlib.suppress(OSError):
        fd = open_ours(str(path))
        if os.pread(fd, _DIGEST_BYTES, _HEAD.size) == digest.digest():
            return fd
        os.close(fd)
    fd = os.memfd_create("mlfs-index", os.MFD_CLOEXEC)
    with open(os.dup(fd), "wb") as file:
        _write(file, manifest, identity)
    return fd


def load_kept(fd: int, identity: str) -> Manifest:
    """The manifest of such a descriptor. Raises: OSError for one that cannot be used."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        try:
            return _load_file(file, identity)
        except _UnusableError as error:
            raise OSError(f"the list of files that was kept cannot be used: {error}") from error


# -- comparing


class _Comparison:
    """Compares directories of the source with the manifest. The threads of one check share it."""

    def __init__(self, manifest: Manifest, root_fd: int) -> None:
        self._manifest = manifest
        self._root_fd = root_fd
        self._unreadable = frozenset(manifest.unreadable.tolist())
        self.found = False
        self.checked = 0

    def stop(self) -> None:
        """The answer is known, or nobody waits for it any more: threads that still compare leave it."""
        self.found = True

    def portion(self, item: tuple[list[int], list[bytes]]) -> list[int]:
        """The directories that have changed, of some. All threads stop at the first that any of them finds."""
        for entry, path in zip(*item, strict=True):
            if self.found:
                break
            self.checked += 1  # for a display: a lost count does no harm
            if self._changed(entry, path):
                self.found = True
                return [entry]
        return []

    def _changed(self, entry: int, path: bytes) -> bool:
        manifest = self._manifest
        try:
            # O_PATH asks for no right to read: only the time stamps are wanted.
            fd = open_beneath(self._root_fd, path, os.O_PATH | os.O_DIRECTORY)
            try:
                status = os.fstat(fd)
            finally:
                os.close(fd)
        except OSError:
            return entry not in self._unreadable
        if (
            clamp_ns(status.st_mtime_ns) != manifest.mtime_ns_view[entry]
            or clamp_ns(status.st_ctime_ns) != manifest.ctime_ns_view[entry]
            or attributes_of(status).rights[:3] != manifest.rights(entry)[:3]
        ):
            return True
        return entry in self._unreadable and self._readable(path)

    def _readable(self, path: bytes) -> bool:
        """Whether a directory that could not be listed can be now: its rights were changed, or the disk works again."""
        try:
            fd = open_beneath(self._root_fd, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.listdir(fd)
            finally:
                os.close(fd)
        except OSError as error:
            return error.errno in GONE
        return True


def _portions(manifest: Manifest, ids: list[int], workers: int) -> Iterator[tuple[list[int], list[bytes]]]:
    paths = manifest.paths(ids)
    step = max(1, min(_PORTION, len(ids) // (4 * workers)))
    for start in range(0, len(ids), step):
        portion = ids[start : start + step]
        yield portion, [next(paths) for _ in portion]


def changed_directories(
    manifest: Manifest,
    root_fd: int,
    workers: int = 8,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> list[int]:
    """Compare the time stamps of every directory with the manifest's.

    A directory's mtime moves when an entry comes, goes or is renamed; the contents of files are not looked at here.

    Args:
        manifest, root_fd: what to compare, with what.
        workers: threads.
        progress: called as in `mlfs.tree.scan.scan`, with the directories compared so far and 0.
        stop: as there.

    Returns: [] when none has changed, else the ids of the first found: the comparison stops there.
    Raises: ScanStopped; KeyboardInterrupt.
    """
    comparison = _Comparison(manifest, root_fd)

    pool = Pool(workers, poller(lambda: (comparison.checked, 0), progress, stop))
    try:
        found: list[int] = []
        for changed in pool.map(comparison.portion, _portions(manifest, manifest.directories.tolist(), workers)):
            found += changed
            if comparison.found and found:
                break
        return found
    finally:
        comparison.stop()
        pool.close()


# -- both


def _reusable(
    root_fd: int, index_path: Path, identity: str, progress: Progress | None, stop: Stop | None
) -> tuple[Manifest | None, str, str]:
    """The saved manifest, or why it is of no use, and what a new scan cannot find out of the times of directories."""
    manifest, reason = load(index_path, identity)
    if manifest is None:
        return None, reason, ""
    if why := manifest.times.directories:
        return None, f"{NO_PROOF}: {why}", why if why == NEVER_MOVE else ""
    changed = changed_directories(manifest, root_fd, progress=progress, stop=stop)
    if not changed:
        stale = stale_directory(manifest, root_fd)
        if stale < 0:
            return manifest, "", ""
        where = os.fsdecode(manifest.path(stale)) or "the source directory"
        return None, f"{NO_PROOF}: {NEVER_MOVE}, first found: {where}", NEVER_MOVE
    where = os.fsdecode(manifest.path(changed[0])) or "the source directory"
    return None, f"directories have changed since the index was saved, first found: {where}", ""


def _save_or_warn(manifest: Manifest, path: Path, identity: str) -> str:
    try:
        save(manifest, path, identity)
    except OSError as error:
        return f"the index cannot be saved to {path}: {error.strerror}; each mount scans by itself"
    return ""


def manifest_for(
    source_fd: int,
    source_path: str,
    index_path: Path,
    rescan: bool = False,
    progress: Progress | None = None,
    *,
    workers: int = 8,
    stop: Stop | None = None,
    waits: Waits | None = None,
) -> tuple[Manifest, ScanReport]:
    """The manifest of a source: the saved one when no directory has changed, else a new one, which is saved.

    One of many who ask at once, on whatever nodes, looks at the source; the others wait, and take what it has saved.

    Args:
        source_fd: the source's root directory.
        source_path: its path, for the identity only.
        index_path: where the index is read and saved.
        rescan: do not look at the saved one.
        progress, workers, stop: as in `mlfs.tree.scan.scan`.
        waits: told for whom this waits.

    Raises: SourceError when the root cannot be read; ScanStopped. An index that cannot be read or written is in the
    report, and no error.
    """
    began = time.monotonic()
    identity = source_identity(source_fd, source_path)
    before = stamp_of(index_path)

    def is_fresh(now: Stamp) -> bool:
        """Whether another has saved the index since this began, or, which is less, has found it right."""
        return now is not None and (before is None or (now[0] != before[0] if rescan else now != before))

    lock = ScanLock(index_path)
    try:
        other = lock.take(is_fresh, waits, poller(lambda: (0, 0), None, stop))
        manifest, reason, warning, distrust = None, "a new scan was asked for", "", ""
        if other is not None:
            manifest, reason = load(index_path, identity)
        by = other.host if manifest is not None and other is not None else ""
        if manifest is None and not rescan:
            manifest, reason, distrust = _reusable(source_fd, index_path, identity, progress, stop)
            if manifest is not None:
                if learn_at_start(manifest, source_fd):
                    warning = _save_or_warn(manifest, index_path, identity)
                with contextlib.suppress(OSError):
                    os.utime(index_path)  # those who wait see by this that it is right
        reused = manifest is not None
        if manifest is None:
            manifest = scan(source_fd, workers, progress, stop)
            if distrust or alike(manifest):
                manifest.times.distrust_directories(distrust or ALIKE)
            learn_at_start(manifest, source_fd)
            warning = _save_or_warn(manifest, index_path, identity)
    finally:
        lock.release()
    unreadable, problems, vanished = len(manifest.unreadable), manifest.problems, manifest.vanished
    seconds = time.monotonic() - began
    return manifest, ScanReport(reused, reason, seconds, unreadable, problems, vanished, warning, by)
