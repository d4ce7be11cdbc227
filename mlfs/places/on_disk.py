"""The common part of the two stores on disk: their directory, their budget, their failures.

In: a cache directory, and the source whose copies may lie there. Out: the parts of `mlfs.places.tier.Tier` that are the
same for both. It is the base of `ssd.SsdTier` and `lmdb_store.LmdbTier`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence

from mlfs.places import cache_directory
from mlfs.places.faults import Faults
from mlfs.places.ledger import Ledger
from mlfs.places.secret import Secret, of_this_user
from mlfs.places.tier import KeyedCopy, Version

# One part in so many of a file system stays free: others write there, too, and full ones are slow.
DISK_RESERVE = 50


class OnDisk:
    """One store of one source.

    Args:
        directory: where the user wants caches; made if it is missing, shared by several sources and stores.
        capacity_bytes: what this source may occupy there.
        source_id: identity of the source, usually its real path.
        clock: seconds, monotonic; times the pause after a full disk.
        secret: what the checksums of copies depend on; this user's own by default.
        locks: see `cache_directory.claim`.

    Raises CacheError when the directory cannot be used, or another mount uses it for this source.
    """

    kind: cache_directory.CacheKind
    _ledger: Ledger

    def __init__(
        self,
        directory: str | os.PathLike[str],
        capacity_bytes: int,
        source_id: bytes | str,
        clock: Callable[[], float],
        secret: Secret | None,
        locks: Collection[int] = (),
    ) -> None:
        self._secret = of_this_user() if secret is None else secret
        self._directory = os.fspath(directory)
        self._capacity_bytes = capacity_bytes
        self._claim = cache_directory.claim(self._directory, source_id, self.kind, locks)
        self._faults = Faults(self.name, clock)
        self._closed = False

    @property
    def name(self) -> str:
        """`ssd:DIRECTORY` or `lmdb:DIRECTORY`."""
        return f"{self.kind}:{self._directory}"

    @property
    def lock_fd(self) -> int:
        """See `cache_directory.Claim`; it belongs to the tier."""
        return self._claim.lock_fd

    @property
    def secret(self) -> Secret:
        """The secret that the checksums of copies depend on."""
        return self._secret

    @property
    def capacity_bytes(self) -> int:
        """The budget given by the user, or what the disk has room for."""
        return self._capacity_bytes

    def fit_to_disk(self) -> bool:
        """Count on no more than the disk has: what is held, and what is free less a reserve. Whether the budget had to
        be lowered for that. Called before anything is put."""
        disk = os.fstatvfs(self._claim.dir_fd)
        free_bytes = (disk.f_bavail - disk.f_blocks // DISK_RESERVE) * disk.f_frsize
        room_bytes = self._occupied_bytes() + max(0, free_bytes)
        if self._claim.read_only or room_bytes >= self._capacity_bytes:
            return False
        self._capacity_bytes = max(room_bytes, self._ledger.lower_to(room_bytes - self._beside_bytes(room_bytes)))
        return True

    def _beside_bytes(self, capacity_bytes: int) -> int:
        """The part of a budget that is not for copies."""
        return 0

    def _occupied_bytes(self) -> int:
        """The room that the store takes on the disk."""
        return self._ledger.used_bytes

    @property
    def used_bytes(self) -> int:
        """The room that copies held or being written occupy, as the store counts it."""
        return self._ledger.used_bytes

    @property
    def errors(self) -> int:
        return self._faults.errors

    @property
    def refusal(self) -> str:
        return self._faults.refusal

    @property
    def read_only(self) -> bool:
        return self._claim.read_only

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        raise NotImplementedError

    def _drop(self, digest: bytes) -> None:
        """Remove a copy if there is one."""
        raise NotImplementedError

    def drop(self, key: bytes) -> None:
        """Forget the copy of `key` and give its room back."""
        self._drop(cache_directory.key_digest(key))

    @property
    def copies(self) -> int:
        return len(self._ledger)

    def drop_others(self, keys: Callable[[], Iterable[bytes]]) -> int:
        """Remove the copies of all keys but these, of those that are held before the keys are asked for. Returns how
        many."""
        held = self._ledger.digests()
        known = {cache_directory.key_digest(key) for key in keys()}
        others = [digest for digest in held if digest not in known]
        for digest in others:
            self._drop(digest)
        return len(others)

    def put_all(self, samples: Sequence[KeyedCopy]) -> list[bool]:
        """Put samples one by one: each is a file of its own, and LMDB's writer collects puts by itself."""
        return [self.put(*sample) for sample in samples]

    def contains(self, key: bytes) -> bool:
        return cache_directory.key_digest(key) in self._ledger
