"""The scan: it walks the source tree once and makes the manifest.

In: the descriptor of the source's root directory. Out: a `Manifest`. Called by `mlfs.tree.index`, which first tries
to reuse a saved one, when a mount starts, before any request is served.

The scan goes level by level. The directories of one depth are listed in parallel, and their listings are appended in
order, which gives the breadth-first ids of the manifest without sorting the whole. Each listing is packed into arrays
by the thread that made it, so no Python object of a file outlives its directory. All threads that have nothing else to
do look at a directory's entries where the source takes its time to answer (`mlfs.tree.scan`).
"""

from __future__ import annotations

import array
import errno
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlfs.errors import ExitCode, MlfsError, SourceError
from mlfs.tree.hard_links import columns_of as hard_link_columns
from mlfs.tree.manifest import MAX_PROBLEMS, Manifest, clamp_ns, offsets_dtype
from mlfs.tree.openat import open_beneath
from mlfs.tree.stable_stat import settled_status
from mlfs.tree.times import MOVED_BY_LISTINGS

Progress = Callable[[int, int], None]
Stop = Callable[[], bool]
Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_S = 0.1  # how often progress is told, and how soon a stop is heard
# Paths of directories that are kept. A level is listed in order, so those that are needed next are the last ones.
_PATHS_KEPT = 10_000
_LIST = os.O_RDONLY | os.O_DIRECTORY
# Directories whose times are looked at again after they were listed.
LOOKED_AT_AGAIN: Final = 64
# The errors of a directory that is gone, or no longer one.
GONE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
_U64: Final = (1 << 64) - 1
# The columns of a row, in the order that `row_of` fills them, and those of 64 bits.
_ROW = ("mode", "uid", "gid", "nlink", "size", "mtime_ns", "ctime_ns", "blocks")
_WIDE: Final = frozenset({"size", "mtime_ns", "ctime_ns", "blocks"})


class ScanStopped(MlfsError):
    """The scan was told to stop before it was done."""

    exit_code = ExitCode.INTERRUPTED


def poller(counts: Callable[[], tuple[int, int]], progress: Progress | None, stop: Stop | None) -> Callable[[], None]:
    """The `poll` of a `Pool`: tells the counts at most ten times a second, raises ScanStopped when `stop` says so."""
    told_at = 0.0

    def poll() -> None:
        nonlocal told_at
        if stop is not None and stop():
            raise ScanStopped("the scan of the source was interrupted")
        now = time.monotonic()
        if progress is not None and now - told_at >= _POLL_S:
            told_at = now
            progress(*counts())

    return poll


class Pool:
    """Threads that run one function over many items and give the results in order.

    The threads are daemons: one that hangs in a system call on a dead file system does not keep the process alive.

    Args:
        workers: threads, at most: fewer where the process may have no more, but one at least.
        poll: called in the thread that takes the results, at least every tenth of a second: shows progress, or stops by
            raising.
    """

    def __init__(self, workers: int, poll: Callable[[], None]) -> None:
        self._poll = poll
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[Any], Any], Any] | None] = SimpleQueue()
        self.workers = 0
        for number in range(workers):
            try:
                threading.Thread(target=self._run, name=f"mlfs-scan-{number}", daemon=True).start()
            except (RuntimeError, MemoryError):  # no further thread is to be had: the scan takes longer
                if not self.workers:
                    raise
                break
            self.workers += 1

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, item = task
            try:
                future.set_result(function(item))
            except BaseException as error:
                future.set_exception(error)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Run `function` on each item; results come in the order of the items.

        At most a few results for each worker wait at a time. An error of `function` or of `poll` ends the iteration.
        """
        waiting: deque[Future[Result]] = deque()
        for item in items:
            future: Future[Result] = Future()
            waiting.append(future)
            self._tasks.put((future, function, item))
            if len(waiting) >= 4 * self.workers:
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def lend_a_hand(self, call: Callable[[], None]) -> None:
        """Have every other thread that finds the time make this call, which may come when there is nothing left to do.

        Called by a thread of the pool, which must wait for none of these calls to begin.
        """
        for _ in range(self.workers - 1):
            self._tasks.put((Future(), lambda _: call(), None))

    def _next(self, waiting: deque[Future[Result]]) -> Result:
        future = waiting.popleft()
        self._poll()
        while True:
            try:
                return future.result(_POLL_S)
            except TimeoutError:
                if future.done():  # just now; or the function itself has raised it, which is ETIMEDOUT from the source
                    return future.result()
                self._poll()

    def close(self) -> None:
        """Tell the threads to end once they have done what they are at. It does not wait for them."""
        for _ in range(self.workers):
            self._tasks.put(None)


class Listing(NamedTuple):
    """A directory as a thread has read it, with its entries sorted by name."""

    rows: NDArray[np.int64]  # [entries, len(_ROW)]
    names: bytes  # one after another
    lengths: NDArray[np.uint32]  # [entries] of the names
    links: list[tuple[int, bytes]]  # position and target of the symbolic links
    devices: list[tuple[int, int]]  # position and st_rdev of the device nodes
    linked: list[tuple[int, int, int]]  # position, st_dev and st_ino of files with several links
    own: tuple[int, ...] | None  # the directory's own row, as it was just before the listing
    error: OSError | None = None  # why there are no entries


_NOTHING: Final = np.zeros((0, len(_ROW)), dtype=np.int64)


def _are_moved(moved: int, looked_at: int) -> bool:
    """Whether directories are moved by being looked at, and not by somebody who adds something to one of them."""
    return (moved > 1 and 2 * moved >= looked_at) or moved == looked_at == 1


def _failed(error: OSError) -> Listing:
    return Listing(_NOTHING, b"", np.zeros(0, dtype=np.uint32), [], [], [], None, error)


class DirectoryLister:
    """Lists directories. The threads of one scan share it: the root, the counts for the progress, the stop flag."""

    def __init__(self, root_fd: int) -> None:
        self.root_fd = root_fd
        self.directories = 0
        self.files = 0
        self._stopped = False
        self._looked_again = self._moved = 0
        self._lock = threading.Lock()

    def stop(self) -> None:
        """The scan is over: threads that still list directories fail."""
        self._stopped = True

    def list_all(self, paths: list[bytes], lend_a_hand: LendAHand) -> list[Listing]:
        """List some directories, given by their paths; an error of one is in its listing."""
        listings = []
        for path in paths:
            try:
                listings.append(self._list(path, lend_a_hand))
            except OSError as error:
                listings.append(_failed(error))
            with self._lock:
                self.directories += 1
        return listings

    def _list(self, path: bytes, lend_a_hand: LendAHand) -> Listing:
        self._check_stopped()
        # The root is opened anew as well: descriptors that are duplicates share the position of the listing.
        fd = open_beneath(self.root_fd, path, _LIST)
        try:
            return self._read(fd, lend_a_hand)
        finally:
            os.close(fd)

    def _read(self, fd: int, lend_a_hand: LendAHand) -> Listing:
        # The stamps are a tick old before the listing, so a change after it gives the directory others.
        own = row_of(settled_status(fd) if self._moved < 2 else os.fstat(fd))
        names = [os.fsencode(name) for name in os.listdir(fd)]
        self._look_again(fd, own)
        entries = Entries(fd, names, self._count)
        return _pack(entries.look_at_all(lend_a_hand), own)

    def _look_again(self, fd: int, own: tuple[int, ...]) -> None:
        """Whether the listing has moved the directory's times, asked of the first few."""
        if self._looked_again < LOOKED_AT_AGAIN:
            moved = row_of(os.fstat(fd)) != own
            with self._lock:
                self._looked_again += 1
                self._moved += moved

    @property
    def moved_by_listings(self) -> bool:
        """Whether directories have other times after each listing; somebody may change one of them meanwhile."""
        return _are_moved(self._moved, self._looked_again)

    def _count(self, files: int) -> None:
        """Add to the count of entries seen."""
        self._check_stopped()
        with self._lock:
            self.files += files

    def _check_stopped(self) -> None:
        if self._stopped:
            raise InterruptedError(errno.EINTR, "the scan was stopped")


def _pack(looked: Looked, own: tuple[int, ...]) -> Listing:
    names, special, linked = looked.names, looked.special, looked.linked
    order = sorted(range(len(names)), key=names.__getitem__)
    table = np.frombuffer(looked.rows, dtype=np.int64).reshape(-1, len(_ROW))[order] if order else _NOTHING
    in_order = [names[i] for i in order]
    lengths = np.fromiter(map(len, in_order), dtype=np.uint32, count=len(in_order))
    links: list[tuple[int, bytes]] = []
    devices: list[tuple[int, int]] = []
    if special:
        for position, name in enumerate(in_order):
            value = special.get(name)
            if isinstance(value, bytes):
                links.append((position, value))
            elif value is not None:
                devices.append((position, value))
    several = [(position, *linked[name]) for position, name in enumerate(in_order) if name in linked] if linked else []
    return Listing(table, b"".join(in_order), lengths, links, devices, several, own)


class _Builder:
    """The columns of the manifest while they grow.

    `array` grows in place, so the peak is little above the final size.
    """

    def __init__(self, root: os.stat_result) -> None:
        self.columns = {name: array.array("q" if name in _WIDE else "I") for name in _ROW}
        self.parent = array.array("I")
        self.name_offset = array.array("Q", [0])
        self.names = bytearray()
        self.links: list[tuple[int, bytes]] = []
        self.devices: list[tuple[int, int]] = []
        self.linked = array.array("Q")  # id, st_dev and st_ino of each file with several links
        self.unreadable = array.array("I")
        self.errors = array.array("I")  # of the unreadable ones
        self.problems: list[str] = []
        self.vanished = 0
        self.listed = self.moved = 0  # directories, and those that had other times once they were open
        self._paths: dict[int, bytes] = {}
        own = np.array([row_of(root)], dtype=np.int64)
        self.append(0, Listing(own, b"", np.zeros(1, dtype=np.uint32), [], [], [], None))

    def append(self, directory: int, listing: Listing) -> list[int]:
        """Add a directory's entries; returns the ids of those that are directories themselves."""
        first, count = len(self.parent), len(listing.rows)
        if first + count >= 1 << 32:
            raise SourceError("the source has more than 4 billion entries", "mount a part of it")
        if listing.own is not None:
            # These are newer than what the parent's listing said, and a later comparison has to be with these.
            self.listed += 1
            stamps = [listing.own[_ROW.index(name)] for name in ("mtime_ns", "ctime_ns")]
            self.moved += stamps != [self.columns[name][directory] for name in ("mtime_ns", "ctime_ns")]
            for name, value in zip(_ROW, listing.own, strict=True):
                self.columns[name][directory] = value
        if not count:
            return []
        self.parent.extend(array.array("I", [directory]) * count)
        for number, name in enumerate(_ROW):
            column = self.columns[name]
            column.frombytes(listing.rows[:, number].astype(column.typecode).tobytes())
        ends = np.cumsum(listing.lengths, dtype=np.uint64) + np.uint64(len(self.names))
        self.name_offset.frombytes(ends.tobytes())
        self.names += listing.names
        self.links.extend((first + position, target) for position, target in listing.links)
        self.devices.extend((first + position, rdev) for position, rdev in listing.devices)
        for position, device, inode in listing.linked:
            self.linked.extend((first + position, device & _U64, inode & _U64))
        kinds = listing.rows[:, 0] & 0o170000
        below: list[int] = (np.flatnonzero(kinds == stat.S_IFDIR) + first).tolist()
        return below

    def path(self, entry: int) -> bytes:
        """The path of an entry that was appended. A directory's path is kept, as its children's paths begin with it."""
        parts = []
        at = entry
        while at and at not in self._paths:
            parts.append(bytes(self.names[self.name_offset[at] : self.name_offset[at + 1]]))
            at = self.parent[at]
        if at:
            parts.append(self._paths[at])
        path = b"/".join(reversed(parts))
        if len(self._paths) >= _PATHS_KEPT:
            self._paths.clear()
        self._paths[entry] = path
        return path

    def failed(self, directory: int, error: OSError) -> None:
        """Note a directory that could not be listed. It stays in the manifest, without children."""
        if directory == 0:
            raise SourceError(
                f"cannot read the source directory: {error.strerror}", "check its permissions", ExitCode.SOURCE
            ) from error
        if error.errno in GONE:
            self.vanished += 1
            return
        self.unreadable.append(directory)
        self.errors.append(error.errno or errno.EIO)
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"{os.fsdecode(self.path(directory))}: {error.strerror}")

    def manifest(self) -> Manifest:
        parent = np.frombuffer(self.parent, dtype="u4")
        children = np.bincount(parent[1:], minlength=len(parent))
        first_child = np.ones(len(parent) + 1, dtype="u4")
        first_child[1:] += np.cumsum(children, dtype="u4")
        targets = b"".join(target for _, target in self.links)
        target_offset = np.zeros(len(self.links) + 1, dtype=offsets_dtype(len(targets)))
        target_offset[1:] = np.cumsum([len(target) for _, target in self.links])
        columns: dict[str, NDArray[Any]] = {
            name: np.frombuffer(column, dtype="i8" if column.typecode == "q" else "u4")
            for name, column in self.columns.items()
        }
        seen = np.frombuffer(self.linked, dtype="i8").reshape(-1, 3)
        ids = seen[:, 0]
        alike = [columns[name][ids].astype("i8") for name in ("nlink", "mode", "size", "mtime_ns", "ctime_ns")]
        linked, linked_first = hard_link_columns(np.column_stack([ids, *alike, seen[:, 1:]]))
        unreadable = np.array(self.unreadable, dtype="u4")
        order = np.argsort(unreadable)
        columns |= {
            "parent": parent,
            "first_child": first_child,
            "name_offset": np.frombuffer(self.name_offset, dtype="u8").astype(offsets_dtype(len(self.names))),
            "names": np.frombuffer(self.names, dtype="u1"),
            "link": np.array([entry for entry, _ in self.links], dtype="u4"),
            "target_offset": target_offset,
            "targets": np.frombuffer(targets, dtype="u1"),
            "device": np.array([entry for entry, _ in self.devices], dtype="u4"),
            "device_rdev": np.array([rdev for _, rdev in self.devices], dtype="u8"),
            "linked": linked,
            "linked_first": linked_first,
            "unreadable": unreadable[order],
            "unreadable_errno": np.array(self.errors, dtype="u4")[order],
        }
        return Manifest(columns, vanished=self.vanished, problems=tuple(self.problems))


def _chunks(
    directories: list[int], workers: int, path: Callable[[int], bytes]
) -> Iterator[tuple[list[int], list[bytes]]]:
    """Directories with their paths, in portions of one while there are few, and of up to 32 where there are many.

    Handing a portion over to a thread costs more than listing a small directory.
    """
    step = max(1, min(32, len(directories) // (8 * workers)))
    for start in range(0, len(directories), step):
        ids = directories[start : start + step]
        yield ids, [path(entry) for entry in ids]


def scan(
    root_fd: int,
    workers: int = 8,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Manifest:
    """Walk the tree below `root_fd` and return its manifest.

    Args:
        root_fd: descriptor of the root directory, kept by the caller.
        workers: threads; directories are spread over them.
        progress: called in this thread about ten times a second with the directories and entries seen so far.
        stop: asked as often; when it says True the scan ends with ScanStopped.

    Returns: the manifest. Sub-directories that cannot be read, or vanish meanwhile, stand in it without children.
    Raises: SourceError when the root itself cannot be read; ScanStopped; KeyboardInterrupt.
    """
    lister = DirectoryLister(root_fd)
    builder = _Builder(os.fstat(root_fd))
    pool = Pool(workers, poller(lambda: (lister.directories, lister.files), progress, stop))
    try:
        level = [0]
        while level:
            level = _scan_level(level, builder, lister, pool)
    finally:
        lister.stop()
        pool.close()
    if progress is not None:
        progress(lister.directories, lister.files)
    manifest = builder.manifest()
    if lister.moved_by_listings or _are_moved(builder.moved, builder.listed):
        manifest.times.distrust_directories(MOVED_BY_LISTINGS)
    return manifest


def _scan_level(level: list[int], builder: _Builder, lister: DirectoryLister, pool: Pool) -> list[int]:
    """List the directories of one depth; returns those of the next."""
    below: list[int] = []

    def work(chunk: tuple[list[int], list[bytes]]) -> tuple[list[int], list[Listing]]:
        return chunk[0], lister.list_all(chunk[1], pool.lend_a_hand)

    for ids, listings in pool.map(work, _chunks(level, pool.workers, builder.path)):
        for directory, listing in zip(ids, listings, strict=True):
            if listing.error is not None:
                builder.failed(directory, listing.error)
            else:
                below += builder.append(directory, listing)
    return below


# -- the entries of one directory: one thread begins, and where that takes long all others help
#
# In: the directory's descriptor and the names in it. Out: names, rows of attributes, and what links and device nodes
# have besides, in no order.
#
# On a local disk one thread is as fast as many, which would only take the interpreter from each other. On a network
# file system each look is a round trip, and a data set may be one flat directory. So the thread that lists a directory
# begins alone, and if that takes long asks for help: the names are taken in portions by whoever has time. It waits only
# for portions that somebody has begun, never for help to come, so threads that are all at such directories hold up
# nobody.

PORTION: Final = 16
# By so many looks the thread that lists a directory learns how long one takes.
FIRST: Final = 3
# A look at an entry whose attributes are in memory takes some 3 us. One that takes longer than this has asked a disk
# or a server, and several can be asked at once.
SLOW_LOOK_S: Final = 60e-6

LendAHand = Callable[[Callable[[], None]], None]
"""Has other threads make a call, soon or when it is of no use any more."""


class Looked(NamedTuple):
    """Entries as they were seen.

    Attributes:
        rows: the attributes of `row_of`, one entry behind the other.
        special: by name the target of a symbolic link, or the st_rdev of a device node.
        linked: by name st_dev and st_ino of a file with several links.
    """

    names: list[bytes]
    rows: array.array[int]
    special: dict[bytes, bytes | int]
    linked: dict[bytes, tuple[int, int]]

    def add(self, more: Looked) -> None:
        """Take over what was seen of other entries."""
        self.names.extend(more.names)
        self.rows.extend(more.rows)
        self.special.update(more.special)
        self.linked.update(more.linked)


def _nothing() -> Looked:
    return Looked([], array.array("q"), {}, {})


def row_of(status: os.stat_result) -> tuple[int, ...]:
    """The attributes that the manifest keeps of an entry, in the order of its columns."""
    return (
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_nlink,
        status.st_size,
        clamp_ns(status.st_mtime_ns),
        clamp_ns(status.st_ctime_ns),
        status.st_blocks,
    )


class Entries:
    """The entries of one directory.

    Args:
        fd: of the directory.
        count: told how many entries were seen; stops the look by raising.
    """

    def __init__(self, fd: int, names: Sequence[bytes], count: Callable[[int], None]) -> None:
        self._fd = fd
        self._names = names
        self._count = count
        self._seen = _nothing()
        self._next = 0
        self._at_work = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def look_at_all(self, lend_a_hand: LendAHand) -> Looked:
        """Look at all of them. Raises: OSError of the first that cannot be looked at, but for one that is gone."""
        began = time.monotonic()
        self._look(FIRST)
        if len(self._names) > PORTION and time.monotonic() - began > FIRST * SLOW_LOOK_S:
            lend_a_hand(self._look)
        self._look()
        with self._changed:
            while self._at_work:
                self._changed.wait()
        if self._error is not None:
            raise self._error
        return self._seen

    def _look(self, only: int = 0) -> None:
        """Look at portions of the names until none is left; or only at so many names."""
        size, goes_on = only or PORTION, True
        while goes_on:
            goes_on = not only
            with self._changed:
                first = self._next
                if first >= len(self._names) or self._error is not None:
                    return
                self._next += size
                self._at_work += 1
            seen: Looked | None = None
            error: BaseException | None = None
            try:
                seen = self._portion(self._names[first : first + size])
            except BaseException as raised:
                error = raised
            with self._changed:
                if seen is not None:
                    self._seen.add(seen)
                self._error = self._error or error
                self._at_work -= 1
                self._changed.notify_all()

    def _portion(self, names: Sequence[bytes]) -> Looked:
        seen = _nothing()
        for name in names:
            try:
                status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                kind = stat.S_IFMT(status.st_mode)
                if kind == stat.S_IFLNK:
                    seen.special[name] = os.readlink(name, dir_fd=self._fd)
                elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                    seen.special[name] = status.st_rdev
                if status.st_nlink > 1 and kind != stat.S_IFDIR:
                    seen.linked[name] = status.st_dev, status.st_ino
            except FileNotFoundError:
                continue  # gone since it was listed: as if it had been gone before
            seen.names.append(name)
            seen.rows.extend(row_of(status))
        self._count(len(seen.names))
        return seen
