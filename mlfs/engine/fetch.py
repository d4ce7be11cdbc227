"""Fetches one sample and puts it into the page cache: the blocking half of the engine, run in worker threads.

In: entries from the prefetcher's lanes or from the demand path. Out: a `Fetched` each, never an exception for a
failure of the source, a tier or the kernel. Order of places: the tier that holds the sample, then the source
(the PFS); the other way round where the tier has become slow (mlfs.engine.routes).

Why the striped locks: a worker that was given up on may finish late. Pushing is allowed only while the entry still is
of the generation the worker started with, and a change of generation replaces the pages under the same lock, so old
bytes can never land under new attributes.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from mlfs.engine.pagecache import Buffer, PageCache
from mlfs.engine.placing import Placing
from mlfs.engine.routes import Routes
from mlfs.engine.table import SampleTable
from mlfs.places.source import OpenFile, Source
from mlfs.places.tier import KeyedCopy as Sample
from mlfs.places.tier import Tier, Version
from mlfs.plan.placement import NOWHERE, ClassRoom
from mlfs.tree.manifest import Manifest

STRIPES = 64
CHUNK_BYTES = 4 << 20
LARGEST_WHOLE_BYTES = 64 << 20


class ClassTier(NamedTuple):
    """A running tier with its storage class."""

    kind: str  # "ram", "ssd" or "lmdb"
    tier: Tier
    largest_bytes: int  # largest sample it takes, 0 for no limit


class Fetched(NamedTuple):
    """What became of a fetch.

    Attributes:
        route: where the bytes came from (`ram`, `ssd`, `lmdb`, `pfs`).
        size_bytes: content size, of the version that was fetched.
        data: the bytes if asked for and fetched whole, else None.
        version: version of the bytes.
        staged: whether the whole content lies in the page cache.
        by_choice: whether it came from the source though a tier holds it, which is slower.
        error: the failure; then nothing else holds.
    """

    entry: int
    route: str = "pfs"
    size_bytes: int = 0
    data: Buffer | None = None
    version: Version | None = None
    staged: bool = False
    by_choice: bool = False
    error: OSError | None = None


class Fetcher:
    """Blocking fetches; thread-safe.

    Attributes:
        to_keep: what fetches brought and no tier keeps yet, by entry: as good as kept. Entered by the engine and by
            lanes; whoever finds that the source has something else takes it out, and then it is not kept.

    Args:
        announce: called from the worker when the source differs from the manifest, with (entry, size in bytes,
            mtime_ns, ctime_ns): must have updated the manifest, on the loop, when it returns.
    """

    def __init__(
        self,
        manifest: Manifest,
        source: Source,
        tiers: Sequence[ClassTier],
        table: SampleTable,
        pages: PageCache,
        announce: Callable[[int, int, int, int], None],
        routes: Routes,
    ) -> None:
        self.routes = routes
        self.manifest = manifest
        self.source = source
        self.tiers = tiers
        self.table = table
        self.pages = pages
        self.announce = announce
        # Whether `held_by` does not know yet all that the tiers hold from an earlier mount.
        self.finding = False
        self.to_keep: dict[int, Fetched] = {}
        self.placing = Placing(table.sizes, len(tiers))
        self._locks = [threading.Lock() for _ in range(STRIPES)]

    def fetch(self, entry: int, close_later: bool = False) -> Fetched:
        """Fetch the sample whole and push it into the page cache. `close_later`: see mlfs.places.source."""
        try:
            for _ in range(3):
                result = self._fetch_once(entry, close_later)
                if result is not None:
                    return result
            raise OSError(errno.ESTALE, "the file keeps changing at the source")
        except OSError as error:
            return Fetched(entry, error=error)

    def fetch_large(self, entry: int, go_on: Callable[[], bool]) -> Fetched:
        """Push a sample too large to be held whole, piece by piece, while `go_on()`; no tier keeps it."""
        try:
            with closing(self.open(entry)) as opened:
                generation = self.manifest.generation_view[entry]
                size, offset = opened.version.size, 0
                while offset < size and go_on():
                    piece = opened.read(offset, min(CHUNK_BYTES, size - offset))
                    if not self.push(entry, generation, offset, piece):
                        break
                    offset += len(piece)
                return Fetched(entry, "pfs", size, None, self.version(entry), offset >= size)
        except OSError as error:
            return Fetched(entry, error=error)

    def open(self, entry: int) -> OpenFile:
        """Open the source file for reads of ranges, its content that of the manifest from now on. Raises: OSError."""
        opened = self.source.open(entry)
        try:
            if opened.changed:
                self._replace(entry, opened.version.size, opened.version.mtime_ns, opened.ctime_ns)
            self.table.verified[entry] = 1
        except BaseException:
            opened.close()
            raise
        return opened

    def read_bytes(self, entry: int) -> Fetched:
        """Fetch the sample whole without touching the page cache: for a READ that found its page gone.

        The request being answered holds a page locked, so nothing here may wait for the kernel's page cache: a changed
        source gives ESTALE, and the change is left to the next open.
        """
        by_choice = self.passed_over(entry)
        try:
            held = None if by_choice else self._from_tier(entry)
            if held is not None:
                return held
            fetched = self.source.read_whole(entry)
            if fetched.changed:
                raise OSError(errno.ESTALE, "the file changed at the source since it was opened")
            return Fetched(entry, "pfs", len(fetched.data), fetched.data, self.version(entry), by_choice=by_choice)
        except OSError as error:
            if by_choice and (held := self._from_tier(entry)) is not None:
                return held
            self.to_keep.pop(entry, None)  # of a content that is gone, maybe: the next open asks the source
            self.table.verified[entry] = 0
            return Fetched(entry, error=error)

    def version(self, entry: int) -> Version:
        """The version that the manifest says is current."""
        return Version(self.manifest.size_view[entry], self.manifest.mtime_ns_view[entry])

    def keep(self, entry: int, version: Version, data: Buffer) -> bool:
        """Have the best tier with room keep a copy; False when none does. See mlfs.plan.placement."""
        key, size = self.manifest.path(entry), len(data)
        left = [(index, tier) for index, tier in enumerate(self.tiers) if not self.routes.left[index]]
        while left:
            rooms = [self._room(index, tier.tier.capacity_bytes - tier.tier.used_bytes, size) for index, tier in left]
            chosen = self.placing.choose(entry, size, rooms)
            if chosen == NOWHERE:
                return False
            index, chosen_tier = left.pop(chosen)
            if chosen_tier.tier.put(key, version, memoryview(data)):
                self.table.held_by[entry] = index + 1
                self.placing.kept(entry)
                return True
        return False

    def _room(self, index: int, free_bytes: int, size_bytes: int) -> ClassRoom:
        kind, tier, largest = self.tiers[index]
        return ClassRoom(kind, free_bytes, tier.footprint_bytes(size_bytes), largest, self.placing.slower[index])

    def keep_waiting(self, batch: Sequence[Fetched]) -> None:
        """Have tiers keep what waits in `to_keep`, unless the source was found to have something else meanwhile."""
        kept = [fetched for fetched in batch if self.to_keep.get(fetched.entry) is fetched]
        self._keep_all([fetched for fetched in kept if not self.table.held_by[fetched.entry]])
        for fetched in kept:
            if self.to_keep.get(fetched.entry) is fetched:
                del self.to_keep[fetched.entry]

    def _keep_all(self, batch: Sequence[Fetched]) -> None:
        """`keep` for each, with one write a tier where tiers can.

        Not under a plan: what one sample takes changes what is left for the next, by `placing.kept`.
        """
        if self.placing.classes is not None:
            for fetched in batch:
                if fetched.version is not None and fetched.data is not None:
                    self.keep(fetched.entry, fetched.version, fetched.data)
            return
        free = [
            0 if self.routes.left[index] else tier.capacity_bytes - tier.used_bytes
            for index, (_, tier, _) in enumerate(self.tiers)
        ]
        chosen: dict[int, dict[int, Sample]] = {}
        for fetched in batch:
            if fetched.data is None or fetched.version is None:
                continue
            size = len(fetched.data)
            rooms = [self._room(index, free_bytes, size) for index, free_bytes in enumerate(free)]
            index = self.placing.choose(fetched.entry, size, rooms)
            if index != NOWHERE:
                free[index] -= rooms[index].footprint_bytes
                key = self.manifest.path(fetched.entry)
                chosen.setdefault(index, {})[fetched.entry] = Sample(key, fetched.version, memoryview(fetched.data))
        for index, samples in chosen.items():
            held = self.tiers[index].tier.put_all(list(samples.values()))
            for (entry, sample), is_held in zip(samples.items(), held, strict=True):
                if is_held:
                    self.table.held_by[entry] = index + 1
                    self.placing.kept(entry)
                else:
                    self.keep(entry, sample.version, sample.data)  # another may

    def _fetch_once(self, entry: int, close_later: bool) -> Fetched | None:
        generation = self.manifest.generation_view[entry]
        held = self._waiting(entry)
        by_choice = held is None and self.passed_over(entry)
        if held is None and not by_choice:
            held = self._from_tier(entry)
        try:
            fetched = None if held is not None else self.source.read_whole(entry, close_later)
        except OSError:
            held = self._from_tier(entry) if by_choice else None
            if held is None:
                raise
        if held is not None and held.data is not None:
            staged = self.push(entry, generation, 0, held.data)
            return held._replace(staged=staged)
        assert fetched is not None
        if self.manifest.generation_view[entry] != generation:
            return None  # a change was noticed meanwhile: what was read may be older than it
        if fetched.changed:
            self._replace(entry, fetched.size, fetched.mtime_ns, fetched.ctime_ns)
            generation = self.manifest.generation_view[entry]
        self.table.verified[entry] = 1
        version = Version(len(fetched.data), fetched.mtime_ns)
        staged = self.push(entry, generation, 0, fetched.data)
        return Fetched(entry, "pfs", len(fetched.data), fetched.data, version, staged, by_choice)

    def passed_over(self, entry: int) -> bool:
        """Whether a tier holds the sample, and the source gives it sooner."""
        held_by = self.table.held_by[entry]
        return held_by > 0 and self.routes.passes_over(entry, held_by - 1)

    def _waiting(self, entry: int) -> Fetched | None:
        """What a tier is about to keep, as if it had."""
        waiting = self.to_keep.get(entry)
        return waiting._replace(route="ram") if waiting and waiting.version == self.version(entry) else None

    def _from_tier(self, entry: int) -> Fetched | None:
        if self.finding:
            self.find(entry, self.manifest.path(entry))
        held_by = self.table.held_by[entry]
        if not held_by or not self._is_current(entry):
            return None
        kind, tier, _ = self.tiers[held_by - 1]
        version = self.version(entry)
        data = tier.get(self.manifest.path(entry), version)
        if data is None:
            self.table.held_by[entry] = 0
            return None
        return Fetched(entry, kind, len(data), data, version)

    def find(self, entry: int, path: bytes) -> None:
        """Learn which tier holds a copy from an earlier mount."""
        for index, (_, tier, _) in enumerate(self.tiers):
            if not self.table.held_by[entry] and tier.contains(path):
                self.table.held_by[entry] = index + 1
                self.placing.kept(entry)

    def _is_current(self, entry: int) -> bool:
        """Whether the manifest's version was seen at the source since the mount; asks the source once a sample.

        A source that cannot be asked now does not make a copy of the manifest's version wrong.
        """
        if self.table.verified[entry]:
            return True
        try:
            stat = self.source.stat(entry)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        if Version(stat.st_size, stat.st_mtime_ns) != self.version(entry):
            return False
        self.table.verified[entry] = 1
        return True

    def push(self, entry: int, generation: int, offset: int, data: Buffer) -> bool:
        """Put bytes of that generation into the page cache; False when they are of the past, or the kernel refused."""
        with self._locks[entry % STRIPES]:
            if self.manifest.generation_view[entry] != generation:
                return False
            return not len(data) or self.pages.push(entry, offset, data)

    def _replace(self, entry: int, size_bytes: int, mtime_ns: int, ctime_ns: int) -> None:
        with self._locks[entry % STRIPES]:
            self.announce(entry, size_bytes, mtime_ns, ctime_ns)
            held_by, self.table.held_by[entry] = self.table.held_by[entry], 0
            if held_by:
                self.tiers[held_by - 1].tier.drop(self.manifest.path(entry))
            self.pages.replace(entry)
