"""The measurements of `mlfs calibrate`: reads of the source, writes and reads of a cache directory, copies in memory.

In: a list of files, a directory, a sample's size, a meter. Out: points (threads, bytes a second). Called by
mlfs.cli.calibrate. All that is written lies in one temporary directory, which is removed at the end, however that
comes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from mlfs.measure.meter import PIECE_BYTES, Budget, Meter, Rate, Work

TEMPORARY_PREFIX = ".mlfs-calibrate-"
# A file of this size keeps a disk streaming; larger ones would only use the budget up sooner.
LARGEST_TEST_FILE_BYTES = 16 << 20
# A thread copies from or into so much: more than the caches of most processors hold.
_MEMORY_BYTES = 32 << 20

Point = tuple[int, float]
Report = Callable[[str, int, Rate], None]


def doubling(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def read_file(path: bytes, dir_fd: int | None = None) -> Iterator[int]:
    """Read a file from the medium, in pieces. Its pages are dropped from the page cache before that and after it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        offset = 0
        while piece := os.pread(fd, PIECE_BYTES, offset):
            offset += len(piece)
            yield len(piece)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def source_points(
    meter: Meter, root_fd: int, paths: Sequence[bytes], most_readers: int, budget: Budget, report: Report
) -> list[Point]:
    """Rates of the source for 1, 2, 4, ... readers, each of which reads one file after the other.

    Args:
        paths: files below `root_fd`, in random order. Each measurement goes on where the one before it ended, so that
            none reads what another has read, as long as there are enough files.
    """
    endless = _around(paths)

    def work(_index: int) -> Iterator[int]:
        for path in endless:
            try:
                yield from read_file(path, root_fd)
            except (FileNotFoundError, PermissionError):
                yield 0  # since the scan it was removed or its rights were changed; the next file will do

    return [(n, rate) for n in doubling(most_readers) if (rate := _one(meter, "source", work, n, budget, report)) > 0]


def directory_points(
    meter: Meter, directory: str, sample_bytes: int, most_threads: int, budget: Budget, report: Report
) -> tuple[list[Point], list[Point]]:
    """Read and write points of a cache directory, with files of a sample's size. They are removed at the end.

    Raises:
        OSError: the directory cannot be written.
    """
    size = max(1, min(sample_bytes, LARGEST_TEST_FILE_BYTES))
    reads, writes = [], []
    root = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=directory)
    try:
        for count in doubling(most_threads):
            place = Path(root, str(count))
            place.mkdir()
            name = f"{directory} write"
            writes.append((count, _one(meter, name, _writer(place, os.urandom(size)), count, budget, report)))
            files = [os.fsencode(path) for path in sorted(place.iterdir())]
            name = f"{directory} read"
            reads.append((count, _one(meter, name, _reader(files, count), count, budget, report)))
            shutil.rmtree(place, ignore_errors=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return [p for p in reads if p[1] > 0], [p for p in writes if p[1] > 0]


def memory_points(
    meter: Meter, sample_bytes: int, most_threads: int, budget: Budget, report: Report
) -> tuple[list[Point], list[Point]]:
    """Read and write points of memory: copies out of a large block, and into one, a sample at a time."""
    size = max(PIECE_BYTES // 8, min(sample_bytes, PIECE_BYTES))
    directions = {}
    for name in ("read", "write"):
        work = _copier(size, name == "write")
        directions[name] = [(n, _one(meter, f"memory {name}", work, n, budget, report)) for n in doubling(most_threads)]
    return directions["read"], directions["write"]


def _one(meter: Meter, name: str, work: Work, threads: int, budget: Budget, report: Report) -> float:
    rate = meter.measure(work, threads, budget)
    report(name, threads, rate)
    return rate.bytes_per_s


class _around:
    """The items in order, again and again, dealt out to all threads that take from it."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self._items = items
        self._next = iter(range(1 << 62))

    def __iter__(self) -> Iterator[bytes]:
        for index in self._next:  # taking the next one of a range is a single step of the interpreter
            yield self._items[index % len(self._items)]


def _writer(place: Path, data: bytes) -> Work:
    def work(index: int) -> Iterator[int]:
        for number in range(1 << 30):
            fd = os.open(place / f"{index}-{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, data)
                os.fdatasync(fd)  # without it the page cache would be measured
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
            yield len(data)

    return work


def _reader(files: Iterable[bytes], threads: int) -> Work:
    listed = list(files)

    def work(index: int) -> Iterator[int]:
        for path in listed[index::threads]:
            with contextlib.suppress(FileNotFoundError):
                yield from read_file(path)

    return work


def _copier(size: int, into: bool) -> Work:
    import numpy as np

    def work(_index: int) -> Iterator[int]:
        block = np.ones(_MEMORY_BYTES, dtype=np.uint8)
        sample = np.ones(size, dtype=np.uint8)
        places = len(block) // size
        for number in range(1 << 40):
            at = number % places * size
            if into:
                block[at : at + size] = sample
            else:
                sample[:] = block[at : at + size]
            yield size

    return work
