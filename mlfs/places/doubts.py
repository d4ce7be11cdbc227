"""Finds out whether a file that seems to have changed while it was read has changed, or only its times have moved.

In: looks around a read, from `mlfs.places.posix`. Out: what the manifest's `times` say from then on. A source whose
times move by themselves would else have its files read again and again, and none of them could be served.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from mlfs.places.source_root import SourceRoot
from mlfs.tree.attributes import FileAttributes, attributes_now
from mlfs.tree.learn_times import FILES_LOOKED_AT, learn, look_at, neighbours
from mlfs.tree.manifest import Manifest
from mlfs.tree.times import Looks

# If each read moves a file's times, so many others are read to see whether theirs move as well, so far of each.
FILES_READ: Final = 2
BEGINNING_BYTES: Final = 4096


class Doubts:
    """Decides for each file whose times moved whether they prove a change.

    Args:
        open_file: opens an entry of the manifest. count: counts opens and bytes of the source.
    """

    def __init__(
        self,
        manifest: Manifest,
        root: SourceRoot,
        open_file: Callable[[int], int],
        count: Callable[[int, int], None],
    ) -> None:
        self._manifest = manifest
        self._root = root
        self._open = open_file
        self._count = count

    def met(
        self, entry: int, before: FileAttributes, now: FileAttributes, asked: FileAttributes, read_twice: bool
    ) -> None:
        """A read has met a file that has changed, by its times.

        Args:
            before, now, asked: looks before the read, after it, and once more. read_twice: the read before gave the
                same bytes.
        """
        manifest = self._manifest
        if now != asked:
            others = neighbours(manifest, entry, FILES_LOOKED_AT)
            learn(manifest, [[(now, asked)], *(look_at(manifest, self._root.fd, other) for other in others)])
        elif read_twice and before != now:
            others = neighbours(manifest, entry, FILES_READ)
            learn(manifest, [[(before, now)], *(self._look_around_reads(other) for other in others)])

    def _look_around_reads(self, entry: int) -> Looks:
        """Looks at a file before, between and after two reads of its beginning, which came out alike."""
        with contextlib.suppress(OSError):
            fd = self._open(entry)
            try:
                looks, beginnings = [attributes_now(fd, ask=True)], []
                for _ in range(2):
                    beginnings.append(os.pread(fd, BEGINNING_BYTES, 0))
                    looks.append(attributes_now(fd, ask=True))
                self._count(1, sum(map(len, beginnings)))
                return list(pairwise(looks)) if beginnings[0] == beginnings[1] else []
            finally:
                os.close(fd)
        return []
