"""The one thread that writes to an LMDB environment: it commits what puts and drops leave to it, in groups.

In: values to store and digests to delete, from `lmdb_store` under its condition. Out: commits. A value can be read here
until it is committed. A failure is counted, and the samples concerned are forgotten; nothing is raised.
"""

from __future__ import annotations

import errno
import os
import threading

import lmdb

from mlfs.places.faults import Faults
from mlfs.places.ledger import Ledger

# A group gathers this long, which bounds the syncs to fifty a second, however slowly puts come.
_LINGER_S = 0.02
_MAX_BATCH_ITEMS = 4096  # bounds the pages that one transaction touches; LMDB allows 131,071
_Batch = list[tuple[bytes, bytes | None]]


class Writer:
    """Writes for one environment; `changed` guards all its state and the ledger's entries.

    Args:
        batch_bytes: a commit holds about this much, and at most twice as much waits (it is kept in memory).
    """

    def __init__(
        self,
        env: lmdb.Environment | None,
        ledger: Ledger,
        faults: Faults,
        changed: threading.Condition,
        *,
        batch_bytes: int,
        read_only: bool,
    ) -> None:
        self._env = env
        self._ledger = ledger
        self._faults = faults
        self._changed = changed
        self._batch_bytes = batch_bytes
        # The puts that are not committed yet, by digest: a value, or None for a deletion. An entry is taken out only
        # when this very object has been committed, so a reader that finds nothing here finds the value in the
        # environment.
        self._waiting: dict[bytes, bytes | None] = {}
        self._waiting_bytes = 0
        self._urgent = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        if env is not None and not read_only:
            self._thread = threading.Thread(target=self._run, name="mlfs-lmdb-writer", daemon=True)
            self._thread.start()

    def waiting(self, digest: bytes) -> bytes | None:
        """A value that is not committed yet."""
        return self._waiting.get(digest)

    def put(self, digest: bytes, blob: bytes) -> None:
        """Leave a value to be committed; `changed` is held."""
        self._replace(digest, blob)

    def delete(self, digest: bytes) -> None:
        """Leave a deletion to be committed; `changed` is held."""
        if self._thread is not None:
            self._replace(digest, None)

    def _replace(self, digest: bytes, blob: bytes | None) -> None:
        self._waiting_bytes += len(blob or b"") - len(self._waiting.pop(digest, None) or b"")
        self._waiting[digest] = blob
        if len(self._waiting) == 1 or self._is_due():  # otherwise the writer is gathering, and is not to be woken
            self._changed.notify_all()

    def wait_for_room(self) -> bool:
        """Wait until the writer has caught up; False when it has stopped. `changed` is held."""
        self._changed.wait_for(lambda: self._stopping or self._waiting_bytes < 2 * self._batch_bytes)
        return not self._stopping

    def flush(self) -> None:
        """Wait until all that waits now is committed or given up."""
        with self._changed:
            self._urgent += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting or self._thread is None)
            self._urgent -= 1

    def stop(self) -> None:
        """Commit what waits and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return
                self._changed.wait_for(self._is_due, _LINGER_S)
                batch = self._take()
            failed = self._write(batch)
            with self._changed:
                self._done(batch, failed)

    def _is_due(self) -> bool:
        return self._stopping or self._urgent > 0 or self._waiting_bytes >= self._batch_bytes

    def _take(self) -> _Batch:
        batch: _Batch = []
        size_bytes = 0
        for digest, blob in self._waiting.items():
            batch.append((digest, blob))
            size_bytes += len(blob or b"")
            if size_bytes >= self._batch_bytes or len(batch) >= _MAX_BATCH_ITEMS:
                break
        return batch

    def _done(self, batch: _Batch, failed: set[bytes]) -> None:
        """Take out what was committed. A copy that failed is forgotten, unless it has been replaced meanwhile."""
        full = False
        for digest, blob in batch:
            if digest not in self._waiting or self._waiting[digest] is not blob:
                continue
            del self._waiting[digest]
            self._waiting_bytes -= len(blob or b"")
            if digest in failed and blob is not None:
                self._ledger.forget(digest)
                full = True
        if full and not self._faults.paused:
            self._ledger.limit_to_used()
        self._changed.notify_all()

    # ---- commits

    def _write(self, batch: _Batch) -> set[bytes]:
        """Commit a batch; returns the digests that could not be written."""
        try:
            self._commit(batch)
            self._faults.went_well()
            return set()
        except lmdb.MapFullError:
            return self._write_singly(batch)
        except lmdb.Error as error:
            self._faults.write_failed(self._as_os_error(error))
            return {digest for digest, _ in batch}

    def _write_singly(self, batch: _Batch) -> set[bytes]:
        """Commit one item at a time, as the map is full: deletions first, since they make room, then values that fit.

        Pages that a commit frees can be used by the second commit after it, so some of the values find room.
        """
        failed: set[bytes] = set()
        for item in sorted(batch, key=lambda entry: entry[1] is not None):
            try:
                self._commit([item])
            except lmdb.MapFullError:
                failed.add(item[0])
            except lmdb.Error as error:
                self._faults.write_failed(self._as_os_error(error))
                return {digest for digest, _ in batch}
        if failed:
            self._faults.count("full before its budget is", "pages are too scattered; no more samples are added")
        return failed

    def _commit(self, batch: _Batch) -> None:
        assert self._env is not None
        with self._env.begin(write=True) as transaction:
            for digest, blob in batch:
                if blob is None:
                    transaction.delete(digest)
                else:
                    transaction.put(digest, blob)

    def _as_os_error(self, error: lmdb.Error) -> OSError:
        """The system's error behind one of LMDB, which has only its text; only numbers that matter here are found."""
        assert self._env is not None
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES):
            if os.strerror(code) in str(error):
                return OSError(code, str(error))
        # A disk that becomes full ends a write short, which LMDB reports as an I/O error.
        disk = os.statvfs(self._env.path())
        full = disk.f_bavail * disk.f_frsize < self._batch_bytes
        return OSError(errno.ENOSPC if full else errno.EIO, str(error))
