"""The RAM tier: samples kept in the page cache of the mount itself, so that a read of one never leaves the kernel.

In: samples of the manifest with their current version, from the engine's worker threads. Out: the same bytes while the
kernel has all pages of them, else None. There is no second copy: the books (which entries, how many bytes) are the
engine's table, which changes on the loop only, and the kernel may take pages back at any time: see
docs/decisions/ram-class.md. The engine itself keeps samples here by table transitions, without a put; this is the same
class seen as a tier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from mlfs.manifest import Manifest
from mlfs.tiers.contract import Version

log = logging.getLogger("mlfs.tiers")

Push = Callable[[int, int, int, bytes | bytearray | memoryview], bool]


class Books(Protocol):
    """What the tier asks of mlfs.engine.table.SampleTable. Methods that change something run on the loop."""

    kept_bytes: int
    promised_bytes: int
    ram_capacity_bytes: int

    def footprint_of(self, size_bytes: int) -> int: ...
    def keeps(self, entry: int) -> bool: ...
    def kept_entries(self) -> list[int]: ...
    def begin_keep(self, entry: int) -> bool: ...
    def end_keep(self, entry: int, pushed: bool) -> bool: ...
    def end_kept(self, entry: int) -> bool: ...


class Pages(Protocol):
    """What it asks of the mount's page cache: see mlfs.engine.pagecache.PageCache."""

    def drop(self, entry: int) -> None: ...
    def read(self, entry: int, size: int) -> bytes | None: ...


class RamTier:
    """See the module, and mlfs.tiers.contract.Tier for the methods.

    Args:
        on_loop: runs a call on the loop and returns its result (Runner.on_loop).
        push: (entry, generation, offset, bytes) into the page cache; False when the kernel refused or the entry is of
            another generation by now (Fetcher.push).
    """

    name = "ram"

    def __init__(self, books: Books, manifest: Manifest, pages: Pages, on_loop: Callable[..., Any], push: Push) -> None:
        self._books = books
        self._manifest = manifest
        self._pages = pages
        self._on_loop = on_loop
        self._push = push
        self._errors = 0
        self._closed = False

    @property
    def capacity_bytes(self) -> int:
        """See Tier."""
        return self._books.ram_capacity_bytes

    @property
    def used_bytes(self) -> int:
        """See Tier: what is kept and what is promised."""
        books = self._books
        while True:
            kept = books.kept_bytes
            used = kept + books.promised_bytes
            if kept == books.kept_bytes:  # else an entry may have gone from one to the other in between
                return used

    def footprint_bytes(self, size_bytes: int) -> int:
        """See Tier: whole pages."""
        return self._books.footprint_of(size_bytes)

    @property
    def errors(self) -> int:
        """See Tier: pages that the kernel refused. Pages that it took back are no failure."""
        return self._errors

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        """See Tier. Also refuses what is not in the manifest, or not of the manifest's version."""
        entry = self._entry(key)
        if entry < 0:
            return False
        generation = self._manifest.generation_view[entry]
        if version != self._current(entry) or len(data) != version.size_bytes:
            return False
        if not self._on_loop(self._books.begin_keep, entry):
            return False
        pushed = self._push(entry, generation, 0, data)
        if not pushed and self._manifest.generation_view[entry] == generation:
            self._count_refusal(key)
        return bool(self._on_loop(self._books.end_keep, entry, pushed))

    def get(self, key: bytes, version: Version) -> bytes | None:
        """See Tier. None, and the entry is forgotten, when the kernel took pages of it back."""
        entry = self._entry(key)
        if entry < 0:
            return None
        generation = self._manifest.generation_view[entry]
        if not self._books.keeps(entry):
            return None
        if version != self._current(entry):
            self.drop(key)
            return None
        data = self._pages.read(entry, version.size_bytes)
        if self._manifest.generation_view[entry] != generation:
            return None  # changed while it was read: the bytes may be of either content
        if data is None:
            self._on_loop(self._books.end_kept, entry)
        return data

    def contains(self, key: bytes) -> bool:
        """See Tier."""
        entry = self._entry(key)
        return entry >= 0 and self._books.keeps(entry)

    def drop(self, key: bytes) -> None:
        """See Tier."""
        entry = self._entry(key)
        if entry >= 0 and self._on_loop(self._books.end_kept, entry):
            self._pages.drop(entry)

    def keys(self) -> list[bytes]:
        """See Tier."""
        return [] if self._closed else list(self._manifest.paths(self._books.kept_entries()))

    def close(self) -> None:
        """See Tier: gives the room back, for as long as the mount lives on without it."""
        for key in self.keys():
            self.drop(key)
        self._closed = True

    def _entry(self, key: bytes) -> int:
        """The manifest's entry of a key; -1 for what is no file of it, and for all once closed."""
        entry = -1 if self._closed else self._manifest.find(key)
        return entry if entry >= 0 and self._manifest.is_file(entry) else -1

    def _current(self, entry: int) -> Version:
        return Version(self._manifest.size_view[entry], self._manifest.mtime_ns_view[entry])

    def _count_refusal(self, key: bytes) -> None:
        self._errors += 1
        if self._errors == 1:
            log.warning("ram: the kernel refused pages of %r (further ones are counted)", key)
