"""The accounts of a store on disk: which samples it holds, by digest, and how much of its budget each one occupies.

In: reservations before a write, entries after it, entries that were found at start. Out: whether there is room, what is
held. It touches no disk. Called by `ssd` and `lmdb_store` from any thread.
"""

from __future__ import annotations

import threading


class Ledger:
    """The occupied bytes of each digest, together within a limit.

    A held sample costs about 170 bytes of memory: a digest of 16 bytes and its slot in the dict. Footprints are shared.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._lock = threading.Lock()
        # Invariant: 0 <= used <= limit, and used == sum(held.values()) + what is reserved and not yet recorded.
        self._limit_bytes = max(0, limit_bytes)
        self._used_bytes = 0
        self._held: dict[bytes, int] = {}
        # One int object per distinct footprint instead of one per sample.
        self._interned: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes held and reserved now."""
        return self._used_bytes

    def __len__(self) -> int:
        """How many digests are held."""
        return len(self._held)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._held

    def footprint_bytes(self, digest: bytes) -> int | None:
        """The room that a held digest occupies; None when it is not held."""
        return self._held.get(digest)

    def digests(self) -> list[bytes]:
        """The digests held now."""
        with self._lock:
            return list(self._held)

    def reserve(self, footprint_bytes: int) -> bool:
        """Take room before a write; False when there is none. Ends with `record` or `release`."""
        with self._lock:
            if self._used_bytes + footprint_bytes > self._limit_bytes:
                return False
            self._used_bytes += footprint_bytes
            return True

    def release(self, footprint_bytes: int) -> None:
        """Give back what `reserve` took, after a write that failed."""
        with self._lock:
            self._used_bytes -= footprint_bytes

    def record(self, digest: bytes, footprint_bytes: int) -> None:
        """Enter a digest whose room is reserved. An entry of the same digest is replaced and its room freed."""
        with self._lock:
            self._used_bytes -= self._held.get(digest, 0)
            self._held[digest] = self._interned.setdefault(footprint_bytes, footprint_bytes)

    def adopt(self, digest: bytes, footprint_bytes: int) -> bool:
        """Enter a copy that was found at start; False when the limit has no room for it: it has to be removed."""
        if not self.reserve(footprint_bytes):
            return False
        self.record(digest, footprint_bytes)
        return True

    def forget(self, digest: bytes) -> bool:
        """Take a digest out and free its room; False when it was not held."""
        with self._lock:
            footprint_bytes = self._held.pop(digest, None)
            if footprint_bytes is None:
                return False
            self._used_bytes -= footprint_bytes
            return True

    def limit_to_used(self) -> int:
        """Lower the limit to what is used now, as the medium is full before the budget is. Returns the new limit."""
        with self._lock:
            self._limit_bytes = self._used_bytes
            return self._limit_bytes

    def lower_to(self, limit_bytes: int) -> int:
        """Lower the limit, but not below what is used. Returns the new limit."""
        with self._lock:
            self._limit_bytes = max(self._used_bytes, min(self._limit_bytes, limit_bytes))
            return self._limit_bytes

    def clear(self) -> None:
        """Forget all digests; reservations under way stay."""
        with self._lock:
            self._used_bytes -= sum(self._held.values())
            self._held.clear()
