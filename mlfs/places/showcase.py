"""Keeps the catalogue of this node's samples up to date for its agent, while an agent is there.

In: what places keep and lose, from worker threads. Out: records of the catalogue. Made with the places, before anybody
knows whether an agent will ever come; until then it costs a look at a flag.
"""

from __future__ import annotations

import threading
from typing import Final

from mlfs.places import catalogue
from mlfs.places.catalogue import Catalogue, CopyKind, Found
from mlfs.places.checksum import checksum
from mlfs.tree.samples import Version

Where = tuple[int, int]


class Showcase:
    """Writes the catalogue as places keep and lose samples.

    Thread-safe: each sample is kept and lost by one thread at a time.
    """

    def __init__(self) -> None:
        self._catalogue: Catalogue | None = None
        self._lock: Final = threading.Lock()

    def open(self, samples: int) -> int:
        """An agent comes: a new catalogue, empty. Returns its memory, which belongs to the caller."""
        fd = catalogue.create(samples)
        with self._lock:
            self._catalogue = Catalogue(fd, samples)
        return fd

    def close(self) -> None:
        """The agent is gone."""
        with self._lock:
            self._catalogue = None

    @property
    def is_open(self) -> bool:
        """Whether an agent looks at the catalogue."""
        return self._catalogue is not None

    def kept(
        self, sample: int, kind: CopyKind, where: Where, version: Version, data: bytes | bytearray | memoryview
    ) -> None:
        """A place keeps this copy, whose version is that of the source since the mount."""
        shown = self._catalogue
        if shown is not None:
            sum_ = checksum(data, sample, version) if kind is CopyKind.RAM else 0
            shown.put(sample, Found(kind, where, version, sum_))

    def lost(self, sample: int) -> None:
        """No place keeps a copy of the sample."""
        if self._catalogue is not None:
            self._catalogue.drop(sample)

    def shows(self, sample: int, version: Version) -> bool:
        """Whether the agent finds this version by itself now. The agent may find samples in LMDB only after a
        commit."""
        shown = self._catalogue
        found = shown.find(sample) if shown is not None else None
        return found is not None and found.version == version and found.kind is not CopyKind.LMDB
