"""The SSD tier: one file for each sample, below a directory of the user's choice, found again at the next mount.

In: samples from the engine's worker threads. Out: the same bytes, verified, or None. A file holds a sample's key,
version, checksum and data (`record`). It is written under another name, renamed, and never changed after that. Made by
the daemon when a mount starts; keeps the contract of `mlfs.places.tier.Tier`.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

from blake3 import blake3

from mlfs.places import cache_directory, record
from mlfs.places.direct_read import read_direct
from mlfs.places.faults import PROCESS_SHORTAGE
from mlfs.places.known_copy import READ, write_file
from mlfs.places.ledger import Ledger
from mlfs.places.memory_file import MemoryFile, in_pages
from mlfs.places.on_disk import OnDisk
from mlfs.places.part_sums import PartSums
from mlfs.places.secret import Secret
from mlfs.places.tier import Spot, Version

# The data starts here at least, so that keys of up to 176 bytes (most paths) do not change what a sample occupies.
_HEAD_FLOOR_BYTES = 256
_BLOCK_BYTES = 4096
_MAX_BLOCK_BYTES = 65536  # a few file systems report their stripe as the block; nothing allocates in such units
_NO_VERSION = Version(0, 0, 0)  # of what is no sample
_STRIPES = 64  # locks; several times the threads that write at once, so that two of them seldom meet
_ONE_READ_BYTES = 1 << 30  # read(2) moves at most 2 GiB - 4 KiB at once
# Copies that are read past the page cache. Smaller ones gain little, larger ones take buffers that are made anew.
_DIRECT_FROM_BYTES, _DIRECT_TO_BYTES = 256 << 10, 8 << 20

_T = TypeVar("_T")


class SsdTier(OnDisk):
    """Copies of one source's samples, each in a file of its own. Arguments and errors are those of `OnDisk`.

    `used_bytes` counts the blocks of all files that are held or being written. It does not count the 256 directories,
    which take about 1 MiB.
    """

    kind = cache_directory.CacheKind.SSD

    def __init__(
        self,
        directory: str | os.PathLike[str],
        capacity_bytes: int,
        source_id: bytes | str,
        clock: Callable[[], float] = time.monotonic,
        secret: Secret | None = None,
        locks: Collection[int] = (),
    ) -> None:
        super().__init__(directory, capacity_bytes, source_id, clock, secret, locks)
        # A digest is written or removed only under its stripe, so its temporary file has one writer, and its file and
        # its ledger entry change together. Reads take no lock: a file is whole from the moment it has its name.
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        # Invariant of the contract: room is reserved here before a byte is written and freed after the file is gone.
        self._ledger = Ledger(capacity_bytes)
        self._elsewhere: set[bytes] = set()  # digests that another process writes, each under its stripe
        self._sums = PartSums(self._secret)
        self._has_ranges = False
        self._reads_direct = True  # until the file system refuses
        try:
            block_bytes = os.fstatvfs(self._claim.dir_fd).f_frsize
            self._block_bytes = min(max(block_bytes, _BLOCK_BYTES), _MAX_BLOCK_BYTES)
            self._take_over()
        except OSError as error:
            self._claim.release()
            raise cache_directory.unusable(self._directory, error) from error

    def _take_over(self) -> None:
        """Enter what an earlier mount left, as far as it fits. No file is opened: each is verified when it is used."""
        for found in cache_directory.scan_samples(self._claim.dir_fd, clean=not self._claim.read_only):
            if not self._ledger.adopt(found.digest, self._rounded(found.size_bytes)):
                self._unlink(found.digest)

    @property
    def directory_fd(self) -> int:
        """The directory that the copies lie in; it belongs to the tier."""
        return self._claim.dir_fd

    def file_of_ranges(self) -> tuple[MemoryFile, bytes] | None:
        """A file on the same disk for ranges of samples, and what the last mount has said of it if it was left by that:
        else it is empty. None where the disk has no files with holes. It goes when the tier is closed, unless it is
        left to the next mount."""
        if self._claim.read_only:
            return None
        dir_fd, fd, said = self._claim.dir_fd, -1, self._taken_up()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if said else os.O_TRUNC)
        try:
            fd = os.open(cache_directory.RANGES_IN_USE, flags, 0o600, dir_fd=dir_fd)
            file = MemoryFile(fd, in_pages(os.fstat(fd).st_size))
            file.drop(1, file.end)
        except OSError:
            if fd >= 0:
                os.close(fd)
            return None
        self._has_ranges = True
        return file, said

    def _taken_up(self) -> bytes:
        """Take what the last mount has left, and return what it said of it; nothing where it left none."""
        dir_fd, index = self._claim.dir_fd, cache_directory.RANGES_INDEX
        try:
            fd = os.open(index, READ, dir_fd=dir_fd)
            try:
                blob = _read_long(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
            os.unlink(index, dir_fd=dir_fd)
            said = record.data_of(blob, os.fsencode(index), _NO_VERSION, self._secret)
            os.rename(
                cache_directory.RANGES_FILE, cache_directory.RANGES_IN_USE, src_dir_fd=dir_fd, dst_dir_fd=dir_fd
            )  # fmt: skip
            return bytes(said)
        except (OSError, record.DamagedCopy, record.OtherCopy):
            for name in (index, cache_directory.RANGES_FILE):
                with suppress(OSError):
                    os.unlink(name, dir_fd=dir_fd)
            return b""

    def leave_ranges(self, said: bytes) -> None:
        """Leave the file of ranges to the next mount. Args: said: what it has to know of it. Raises: OSError."""
        dir_fd, index = self._claim.dir_fd, cache_directory.RANGES_INDEX
        head = record.pack_head(os.fsencode(index), _NO_VERSION, memoryview(said), _HEAD_FLOOR_BYTES, self._secret)
        os.rename(cache_directory.RANGES_IN_USE, cache_directory.RANGES_FILE, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        self._has_ranges = False
        write_file(dir_fd, index, head, memoryview(said))

    def sum_of_range(self, data: bytes) -> bytes:
        """The sum of a range, which only this user can make."""
        return blake3(data, key=self._secret.value).digest(16)

    def disk_free_bytes(self) -> int:
        """Bytes that are free on the disk; 0 where it cannot be asked."""
        try:
            disk = os.fstatvfs(self._claim.dir_fd)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize

    def footprint_bytes(self, size_bytes: int) -> int:
        """See Tier. Whole blocks for head, key and data; a key of more than 176 bytes may take a block more."""
        return self._rounded(_HEAD_FLOOR_BYTES + size_bytes)

    def _rounded(self, file_bytes: int) -> int:
        return -(-file_bytes // self._block_bytes) * self._block_bytes

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        """See Tier. After a full disk the tier refuses without trying for a while; only tries count in `errors`."""
        digest = cache_directory.key_digest(key)
        with self._stripes[digest[0] % _STRIPES]:
            # The older copy is removed first: it is out of date, and both together could exceed the budget.
            self._remove(digest)
            if self._closed or self._claim.read_only or len(key) > record.MAX_KEY_BYTES or self._faults.paused:
                return False
            offset = record.data_offset(len(key), _HEAD_FLOOR_BYTES)
            footprint_bytes = self._rounded(offset + data.nbytes)
            if not self._ledger.reserve(footprint_bytes):
                return False
            try:
                self._write(digest, record.pack_head(key, version, data, _HEAD_FLOOR_BYTES, self._secret), data)
            except BaseException as error:
                self._unlink_temp(digest)
                self._ledger.release(footprint_bytes)
                if not isinstance(error, OSError):
                    raise
                self._faults.write_failed(error)
                return False
            self._ledger.record(digest, footprint_bytes)
            self._faults.went_well()
            return True

    def _write(self, digest: bytes, head: bytes, data: memoryview) -> None:
        """Write a file under a temporary name, then give it the final one.

        There is no fsync. A file that a crash of the machine has torn is found by its length and checksum when it is
        used, and costs one read from the source. An fsync would cost each sample of the first epoch milliseconds.
        """
        temp, dir_fd = cache_directory.temp_path(digest), self._claim.dir_fd
        write_file(dir_fd, temp, head, data)
        os.rename(temp, cache_directory.sample_path(digest), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def _unlink_temp(self, digest: bytes, elsewhere: bool = False) -> None:
        if self._closed:
            return  # the next mount removes it
        with suppress(OSError):
            os.unlink(cache_directory.temp_path(digest, elsewhere), dir_fd=self._claim.dir_fd)

    # -- copies that another process writes or reads, which has the directory and the secret as well

    @property
    def shared_fds(self) -> list[int]:
        return [self._claim.dir_fd]

    @property
    def shared_secret(self) -> bytes:
        return self._secret.value

    def begin_elsewhere(self, wanted: Sequence[tuple[bytes, Version]]) -> list[Spot | None]:
        """See SharedTier. The other process writes to a name of its own, which `put_elsewhere` changes."""
        return [self._begin_elsewhere(*one) for one in wanted]

    def _begin_elsewhere(self, key: bytes, version: Version) -> Spot | None:
        digest = cache_directory.key_digest(key)
        with self._stripes[digest[0] % _STRIPES]:
            if digest in self._elsewhere:
                return None
            self._remove(digest)
            if self._closed or self._claim.read_only or len(key) > record.MAX_KEY_BYTES or self._faults.paused:
                return None
            head = record.head_without_sum(key, version, version.size_bytes, _HEAD_FLOOR_BYTES, self._secret)
            footprint_bytes = self._rounded(len(head) + version.size_bytes)
            if not self._ledger.reserve(footprint_bytes):
                return None
            self._elsewhere.add(digest)
        name = cache_directory.temp_path(digest, elsewhere=True)
        return Spot(digest, version, name=name, head=head, footprint_bytes=footprint_bytes)

    def put_elsewhere(self, written: Sequence[tuple[Spot, bool, int]]) -> list[bool]:
        return [self._put_elsewhere(*one) for one in written]

    def _put_elsewhere(self, spot: Spot, is_whole: bool, failure: int) -> bool:
        digest = spot.digest
        with self._stripes[digest[0] % _STRIPES]:
            self._elsewhere.discard(digest)
            if is_whole and not self._closed:
                self._remove(digest)  # another thread may have put it meanwhile
                try:
                    fd = self._claim.dir_fd
                    os.rename(spot.name, cache_directory.sample_path(digest), src_dir_fd=fd, dst_dir_fd=fd)
                    self._ledger.record(digest, spot.footprint_bytes)
                except OSError as error:
                    failure = error.errno or errno.EIO
                else:
                    self._faults.went_well()
                    return True
            self._unlink_temp(digest, elsewhere=True)
            self._ledger.release(spot.footprint_bytes)
        if failure:
            self._faults.write_failed(OSError(failure, os.strerror(failure)))
        return False

    def lend(self, wanted: Sequence[tuple[bytes, Version]]) -> list[Spot | None]:
        """See SharedTier. They may be of other versions: whoever reads them finds that by the heads."""
        return [self._lend(*one) for one in wanted]

    def _lend(self, key: bytes, version: Version) -> Spot | None:
        digest = cache_directory.key_digest(key)
        if digest not in self._ledger:
            return None
        head = record.head_without_sum(key, version, version.size_bytes, _HEAD_FLOOR_BYTES, self._secret)
        return Spot(digest, version, name=cache_directory.sample_path(digest), head=head)

    def give_back(self, spots: Sequence[Spot]) -> None:
        """See SharedTier. A file that is open can be read after it is gone."""

    def get(self, key: bytes, version: Version) -> memoryview | None:
        """See Tier. It takes one open, one read and one pass of the checksum."""
        return self._get(key, version, self._reads_direct)

    def _get(self, key: bytes, version: Version, direct: bool) -> memoryview | None:
        digest = cache_directory.key_digest(key)
        footprint_bytes = self._ledger.footprint_bytes(digest)
        if footprint_bytes is None:
            return None
        try:
            return record.data_of(self._read(digest, footprint_bytes, direct), key, version, self._secret)
        except (OSError, record.DamagedCopy, record.OtherCopy):
            return self._second_look(digest, lambda blob: record.data_of(blob, key, version, self._secret))

    def get_range(self, key: bytes, version: Version, offset: int, size: int) -> memoryview | None:
        """See GivesRanges. The first range of a copy takes all of it, and what the later ones are verified by."""
        digest = cache_directory.key_digest(key)
        sums = self._sums.of(digest, version)
        if sums is None or digest not in self._ledger:
            data = self._get(key, version, False)  # the next ranges come from the page cache
            if data is None:
                return None
            self._sums.learn(digest, version, data)
            return data[offset : offset + size]
        first, end = self._sums.parts(offset, size, version)
        head_bytes = record.data_offset(len(key), _HEAD_FLOOR_BYTES)
        try:
            fd = os.open(cache_directory.sample_path(digest), READ, dir_fd=self._claim.dir_fd)
            try:
                data = memoryview(os.pread(fd, end - first, head_bytes + first))
            finally:
                os.close(fd)
        except OSError:
            data = memoryview(b"")
        if len(data) != end - first or not self._sums.verify(sums, first, data):
            self._sums.forget(digest)
            whole = self.get(key, version)  # which deals with a copy that is damaged
            return None if whole is None else whole[offset : offset + size]
        return data[offset - first : offset - first + size]

    def _second_look(self, digest: bytes, check: Callable[[bytes | memoryview], _T]) -> _T | None:
        """Read a copy again that did not pass `check`, and remove it if it does not pass now either.

        The stripe's lock keeps writers out: the first look may have met a copy that was just being replaced.
        """
        with self._stripes[digest[0] % _STRIPES]:
            footprint_bytes = self._ledger.footprint_bytes(digest)
            if footprint_bytes is None:
                return None
            try:
                return check(self._read(digest, footprint_bytes))
            except record.OtherCopy:
                pass
            except record.DamagedCopy as error:
                self._faults.count(error.kind, f"{error} in {cache_directory.sample_path(digest)}")
            except OSError as error:
                self._faults.count(f"cannot read ({errno.errorcode.get(error.errno or 0)})", str(error))
                if error.errno in PROCESS_SHORTAGE:
                    return None
            self._remove(digest)
            return None

    def _read(self, digest: bytes, footprint_bytes: int, direct: bool = False) -> bytes | memoryview:
        # The footprint is known, the exact size is not. To ask for more than there is saves an fstat, and the byte
        # beyond the footprint tells a file that has grown.
        name, dir_fd = cache_directory.sample_path(digest), self._claim.dir_fd
        if direct and _DIRECT_FROM_BYTES <= footprint_bytes <= _DIRECT_TO_BYTES:
            try:
                return read_direct(dir_fd, name, footprint_bytes + 1)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._reads_direct = False
        fd = os.open(name, READ, dir_fd=dir_fd)
        try:
            if footprint_bytes > _ONE_READ_BYTES:
                return _read_long(fd, footprint_bytes)
            return os.read(fd, footprint_bytes + 1)
        finally:
            os.close(fd)

    def _drop(self, digest: bytes) -> None:
        with self._stripes[digest[0] % _STRIPES]:
            self._remove(digest)

    def _remove(self, digest: bytes) -> None:
        if digest in self._ledger:
            self._unlink(digest)
            self._ledger.forget(digest)

    def _unlink(self, digest: bytes) -> None:
        if self._claim.read_only:
            return
        try:
            os.unlink(cache_directory.sample_path(digest), dir_fd=self._claim.dir_fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._faults.count("cannot remove", str(error))

    def keys(self) -> list[bytes]:
        """The keys held now. It opens every file: whoever asks for known keys uses `contains`."""
        found = []
        for digest in self._ledger.digests():
            head: record.Head | None
            try:
                head = self._read_head(digest)
            except (OSError, record.DamagedCopy, record.OtherCopy):
                head = self._second_look(digest, self._head_of)
            if head is not None:
                found.append(head.key)
        return found

    def _head_of(self, blob: bytes | memoryview) -> record.Head:
        return record.read_head(blob, self._secret)

    def _read_head(self, digest: bytes) -> record.Head:
        fd = os.open(cache_directory.sample_path(digest), READ, dir_fd=self._claim.dir_fd)
        try:
            return self._head_of(os.read(fd, record.MAX_HEAD_BYTES))
        finally:
            os.close(fd)

    def close(self) -> None:
        """See Tier. Unlock the directory; the copies stay in it, and this object holds nothing from then on."""
        for stripe in self._stripes:
            stripe.acquire()
        try:
            self._closed = True
            self._ledger.clear()
            if self._has_ranges:
                with suppress(OSError):
                    os.unlink(cache_directory.RANGES_IN_USE, dir_fd=self._claim.dir_fd)
            self._claim.release()
        finally:
            for stripe in self._stripes:
                stripe.release()


def _read_long(fd: int, footprint_bytes: int) -> memoryview:
    buffer = memoryview(bytearray(footprint_bytes + 1))
    filled = 0
    while count := os.readv(fd, [buffer[filled : filled + _ONE_READ_BYTES]]):
        filled += count
    return buffer[:filled]
