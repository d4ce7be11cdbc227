"""The LMDB tier: small samples packed into one LMDB environment for each source, found again at the next mount.

In: samples from the engine's worker threads. Out: the same bytes, verified, or None. Values have the layout of
`record`. One thread (`lmdb_writer`) commits what puts leave to it. Made by the daemon when a mount starts, in the
process that serves: a fork would lose that thread, and LMDB forbids it. Keeps the contract of `mlfs.places.tier.Tier`.

Every commit is synced (sync=True). LMDB writes pages and waits for them before it writes the meta page that points to
them, so a crash of the process or the machine at any moment leaves the state of some commit. metasync=False saves the
second wait. After a crash of the machine the last commit may then be missing, which costs a cache nothing. No put waits
for a sync, and one sync covers many puts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import lmdb

from mlfs.errors import CacheError
from mlfs.ours import open_ours, private_directory
from mlfs.places import cache_directory, lmdb_pages, record
from mlfs.places.ledger import Ledger
from mlfs.places.lmdb_writer import Writer
from mlfs.places.on_disk import OnDisk
from mlfs.places.secret import Secret
from mlfs.places.tier import Version

_T = TypeVar("_T")
# The data starts here at least, so that keys of up to 64 bytes do not change what a sample occupies. It is less than on
# the SSD, as samples here are small and share pages.
_HEAD_FLOOR_BYTES = 144
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")  # LMDB's pages are the system's
_PAGE_HEAD_BYTES = 16
_NODE_BYTES = 8 + lmdb_pages.KEY_BYTES + 2  # a node's head, its key, its slot in the page's table
_MAX_READERS = 512  # threads that read at once, 64 bytes of the lock file each; one more goes to the source
_MIN_CAPACITY_BYTES = 1 << 20  # below, what commits need of the file leaves next to nothing for samples
# A commit holds about this much. Fewer and larger commits sync less often; what waits for one is kept in memory.
_BATCH_BYTES = 8 << 20

_LOCK_FILE_BYTES = -(-(_MAX_READERS + 2) * 64 // _PAGE_BYTES) * _PAGE_BYTES


def _slack_bytes(map_bytes: int) -> int:
    """Every commit writes new pages before it frees old ones: room for that is no part of the samples' budget."""
    return map_bytes // 16 + 32 * _PAGE_BYTES


class LmdbTier(OnDisk):
    """Copies of one source's small samples in an LMDB environment.

    `used_bytes` is what they need in pages, with room for pages that are filled in part. Other arguments and errors are
    those of `OnDisk`.

    Args:
        capacity_bytes: at least 1 MiB; the data file never grows beyond it.
        max_sample_bytes: larger samples are refused, for a file of its own serves a large sample better.
    """

    kind = cache_directory.CacheKind.LMDB

    def __init__(
        self,
        directory: str | os.PathLike[str],
        capacity_bytes: int,
        source_id: bytes | str,
        max_sample_bytes: int = 262144,
        clock: Callable[[], float] = time.monotonic,
        secret: Secret | None = None,
        locks: Collection[int] = (),
    ) -> None:
        if capacity_bytes < _MIN_CAPACITY_BYTES:
            raise CacheError(f"an LMDB cache of {capacity_bytes} bytes is too small", "give it at least 1M")
        super().__init__(directory, capacity_bytes, source_id, clock, secret, locks)
        self._max_sample_bytes = max_sample_bytes
        self._lmdb_fd = -1
        # Invariant: the data file is at most map_size, and map_size plus the lock file at most the capacity.
        # Address space is taken for all of the map: no more than the disk could hold, were it to grow while we run.
        disk = os.fstatvfs(self._claim.dir_fd)
        most_bytes = min(capacity_bytes, max(_MIN_CAPACITY_BYTES, 4 * disk.f_blocks * disk.f_frsize))
        self._map_bytes = (most_bytes - _LOCK_FILE_BYTES) // _PAGE_BYTES * _PAGE_BYTES
        slack_bytes = _slack_bytes(self._map_bytes)
        # Guards the ledger's entries and what waits for the writer, so that they change together.
        self._changed = threading.Condition()
        self._ledger = Ledger(self._map_bytes - slack_bytes)
        self._readers = 0
        try:
            self._env = self._open()
        except (OSError, lmdb.Error) as error:
            self._release()
            if isinstance(error, lmdb.MemoryError):
                way_out = "ulimit -v unlimited, or a smaller size: all of an LMDB cache is mapped"
                raise CacheError(
                    f"{self._directory}: no address space for {self._map_bytes >> 20} MiB", way_out
                ) from error
            reason = error if isinstance(error, OSError) else OSError(0, str(error))
            raise cache_directory.unusable(self._directory, reason) from error
        batch_bytes = min(_BATCH_BYTES, slack_bytes // 4)
        self._writer = Writer(
            self._env, self._ledger, self._faults, self._changed, batch_bytes=batch_bytes, read_only=self._read_only
        )
        self._drop_surplus()

    # ---- start

    def _open(self) -> lmdb.Environment | None:
        """Check what an earlier mount left, remove it if it is not safe to be opened, and open the environment."""
        self._surplus: list[bytes] = []
        self._read_only = self._claim.read_only
        if not self._read_only:
            self._lmdb_fd = private_directory(cache_directory.LMDB_DIR, dir_fd=self._claim.dir_fd)
        else:
            with suppress(FileNotFoundError):
                self._lmdb_fd = private_directory(cache_directory.LMDB_DIR, dir_fd=self._claim.dir_fd, make=False)
        entries = self._check()
        if entries is None:
            if self._read_only:
                return None  # nothing usable and nothing to write to: an empty tier
            self._clear()
            entries = []
        for digest, value_bytes in entries:
            if not self._ledger.adopt(digest, _footprint_bytes(value_bytes)):
                self._surplus.append(digest)
        return lmdb.open(
            f"/proc/self/fd/{self._lmdb_fd}",  # the directory that was checked, whatever its path leads to by now
            map_size=self._map_bytes,
            readonly=self._read_only,
            create=not self._read_only,
            lock=not self._read_only,  # a medium that cannot be written has no writers to lock against
            metasync=False,
            mode=0o600,
            max_readers=_MAX_READERS,
            max_spare_txns=16,
        )

    def _check(self) -> list[tuple[bytes, int]] | None:
        """Return the records of a sound data file, an empty list when there is none, None when it cannot be used."""
        try:
            if self._lmdb_fd < 0:
                return None
            fd = open_ours(cache_directory.LMDB_FILES[0], dir_fd=self._lmdb_fd)
        except FileNotFoundError:
            return None if self._read_only else []
        try:
            size_bytes = os.fstat(fd).st_size
            if size_bytes > self._map_bytes and not self._read_only:
                self._faults.tell(f"the data file has {size_bytes} bytes, more than the budget: starting empty")
                return None
            self._map_bytes = max(self._map_bytes, size_bytes) if self._read_only else self._map_bytes
            return lmdb_pages.read_entries(fd)
        except (lmdb_pages.BadEnvironment, OSError) as error:
            self._faults.count("damaged environment", f"{error}: starting empty")
            return None
        finally:
            os.close(fd)

    def _clear(self) -> None:
        for name in cache_directory.LMDB_FILES:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._lmdb_fd)

    def _release(self) -> None:
        if self._lmdb_fd >= 0:
            os.close(self._lmdb_fd)
            self._lmdb_fd = -1
        self._claim.release()

    def _drop_surplus(self) -> None:
        """Remove what does not fit any more, because the budget has become smaller since the last mount."""
        with self._changed:
            for digest in self._surplus:
                self._writer.delete(digest)
        del self._surplus

    def _beside_bytes(self, capacity_bytes: int) -> int:
        return _LOCK_FILE_BYTES + _slack_bytes(capacity_bytes)

    @property
    def capacity_bytes(self) -> int:
        """The room for copies within the budget, or within what the disk has room for: all but what commits need beside
        them. So a place that takes no more copies is seen to be full."""
        budget_bytes = super().capacity_bytes
        return max(self._ledger.used_bytes, budget_bytes - self._beside_bytes(budget_bytes))

    def _occupied_bytes(self) -> int:
        """The pages of the data file, of which those that are free are used again."""
        try:
            return os.stat(cache_directory.LMDB_FILES[0], dir_fd=self._lmdb_fd).st_blocks * 512
        except OSError:
            return 0

    # ---- the contract

    @property
    def read_only(self) -> bool:
        """Whether the directory can be read only: copies are served, none are added."""
        return self._read_only

    def footprint_bytes(self, size_bytes: int) -> int:
        """Pages for head, key and data; a key of more than 64 bytes may take more."""
        return _footprint_bytes(_HEAD_FLOOR_BYTES + size_bytes)

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        """Take a copy to be committed soon; False, with no copy of the key left, when there is no room.

        Waits while the writer is 2 batches behind. A copy whose commit fails later is forgotten and counted.
        """
        digest = cache_directory.key_digest(key)
        footprint_bytes = _footprint_bytes(record.data_offset(len(key), _HEAD_FLOOR_BYTES) + data.nbytes)
        with self._changed:
            self._remove(digest)
            if not self._accepts(key, data) or not self._writer.wait_for_room():
                return False
            if not self._ledger.reserve(footprint_bytes):
                return False
        try:
            blob = record.pack_head(key, version, data, _HEAD_FLOOR_BYTES, self._secret) + data
        except BaseException:
            self._ledger.release(footprint_bytes)
            raise
        with self._changed:
            if self._closed:
                self._ledger.release(footprint_bytes)
                return False
            self._ledger.record(digest, footprint_bytes)
            self._writer.put(digest, blob)
        return True

    @property
    def directory_fd(self) -> int:
        """The directory in which the environment's own directory lies; it belongs to the tier."""
        return self._claim.dir_fd

    def forget_dead_readers(self) -> None:
        """Free the pages that LMDB keeps for a process which read here and died in a transaction."""
        with self._reading() as env, suppress(lmdb.Error):
            if env is not None:
                env.reader_check()

    def _accepts(self, key: bytes, data: memoryview) -> bool:
        if self._closed or self._read_only or self._faults.paused:
            return False
        return data.nbytes <= self._max_sample_bytes and len(key) <= record.MAX_KEY_BYTES

    def get(self, key: bytes, version: Version) -> memoryview | None:
        """The bytes are copied out of LMDB, so they are the caller's own."""
        digest = cache_directory.key_digest(key)
        if digest not in self._ledger:
            return None
        return self._checked(digest, lambda blob: record.data_of(blob, key, version, self._secret))

    def _drop(self, digest: bytes) -> None:
        """Its pages are free for others after the next commits."""
        with self._changed:
            self._remove(digest)

    def keys(self) -> list[bytes]:
        """All keys, read from every value: whoever asks for known keys uses `contains`."""
        heads = (self._checked(digest, self._head_of) for digest in self._ledger.digests())
        return [head.key for head in heads if head is not None]

    def _head_of(self, blob: bytes) -> record.Head:
        return record.read_head(blob, self._secret)

    def flush(self) -> None:
        """Wait until all puts so far are committed, or have failed to be."""
        self._writer.flush()

    def close(self) -> None:
        """Commit what waits, release the environment and unlock; the copies stay for the next mount."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        self._writer.stop()
        with self._changed:
            # LMDB unmaps the file even while a thread reads from it.
            self._changed.wait_for(lambda: self._readers == 0)
            self._ledger.clear()
            if self._env is not None:
                self._env.close()
                self._env = None
        self._release()

    # ---- reading

    def _checked(self, digest: bytes, check: Callable[[bytes], _T]) -> _T | None:
        """Read a value and check it. One that does not pass is removed; one that is damaged is counted as well."""
        try:
            with suppress(record.DamagedCopy, record.OtherCopy):
                blob = self._read(digest)
                if blob is not None:
                    return check(blob)
            # Once more with writers kept out, as the first look may have met a value that was just being replaced.
            with self._changed:
                return self._second_look(digest, check)
        except lmdb.ReadersFullError as error:
            self._faults.count("too many readers", str(error))
        except lmdb.Error as error:
            self._give_up(error)
        return None

    def _second_look(self, digest: bytes, check: Callable[[bytes], _T]) -> _T | None:
        if digest not in self._ledger:
            return None
        try:
            blob = self._read(digest)
            if blob is None:
                raise record.DamagedCopy("missing")
            return check(blob)
        except record.DamagedCopy as error:
            self._faults.count(error.kind, f"{error}, {digest.hex()}")
        except record.OtherCopy:
            pass
        self._remove(digest)
        return None

    def _read(self, digest: bytes) -> bytes | None:
        blob = self._writer.waiting(digest)
        if blob is not None:
            return blob
        with self._reading() as env:
            if env is None:
                return None
            # buffers=False: LMDB's memory is valid until the transaction ends only, so the value is copied out. py-lmdb
            # touches the pages before that without the GIL, so a slow disk does not stop the other threads.
            with env.begin() as transaction:
                return transaction.get(digest)

    @contextmanager
    def _reading(self) -> Iterator[lmdb.Environment | None]:
        with self._changed:
            self._readers += 1
        try:
            yield self._env
        finally:
            with self._changed:
                self._readers -= 1
                if self._closed:
                    self._changed.notify_all()

    def _remove(self, digest: bytes) -> None:
        if self._ledger.forget(digest):
            self._writer.delete(digest)

    def _give_up(self, error: lmdb.Error) -> None:
        """Hold nothing from now on, as LMDB says that the environment is broken. The next mount checks it."""
        self._faults.count("LMDB failed", f"{error}; not used until the next mount")
        with self._changed:
            self._read_only = True
            self._ledger.clear()


def _footprint_bytes(value_bytes: int) -> int:
    """The bytes of the data file that a value occupies.

    A large value takes whole pages of its own and a node in a leaf. Small ones share leaves. Keys come in the order of
    their hash, so leaves are about 69 % full: k values that would fill one leaf count as one and a half.
    """
    if _NODE_BYTES - 2 + value_bytes > (_PAGE_BYTES - _PAGE_HEAD_BYTES) // 2 - 2:
        pages = -(-(_PAGE_HEAD_BYTES + value_bytes) // _PAGE_BYTES)
        return pages * _PAGE_BYTES + 64
    per_leaf = (_PAGE_BYTES - _PAGE_HEAD_BYTES) // (_NODE_BYTES + value_bytes)
    return -(-_PAGE_BYTES * 3 // (2 * per_leaf))
