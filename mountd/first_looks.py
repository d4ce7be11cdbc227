"""Looks at an entry in the source, in worker threads, before the kernel is told of it for the first time.

In: entries that a LOOKUP or a listing is about to tell of. Out: nothing, once they have been looked at; OSError.
Called by the request handlers, with `--allow-other` only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import trio

from mlfs.engine.looks import Looks
from mlfs.engine.runner import Runner
from mlfs.tree.manifest import ROOT, Manifest, ids_of

POOL: Final = "looks"
# Threads that look at the files of one directory at a time.
AT_ONCE: Final = 4


class FirstLooks:
    """Has each entry looked at in the source before the kernel is told of it.

    Args:
        limit_s: how long the source has for an answer.
    """

    def __init__(self, manifest: Manifest, looks: Looks, runner: Runner, limit_s: float) -> None:
        self._manifest = manifest
        self._looks = looks
        self._runner = runner
        self._limit_s = limit_s

    async def at(self, entry: int) -> None:
        """Look at one. Raises: OSError; ESTALE, upon which the kernel asks anew from the root on, if a directory
        above has been found to be another: who asks may have come through what is closed now."""
        before = self._looks.changes
        failed = await self._look((entry,))
        if failed is not None:
            raise failed
        if entry != ROOT and self._looks.changed_since(self._manifest.parent_view[entry], before):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    async def at_children(self, directory: int, start: int, count: int) -> None:
        """Look at some children of a directory, from number `start` on; what fails is left for a LOOKUP to tell."""
        children = self._manifest.children(directory)[start : start + count]
        entries = ids_of(children)
        unseen = entries[~self._looks.seen_of(entries)]
        async with trio.open_nursery() as nursery:
            for portion in np.array_split(unseen, AT_ONCE):
                if len(portion):
                    nursery.start_soon(self._look, portion.tolist())

    async def _look(self, entries: Sequence[int]) -> OSError | None:
        try:
            return await self._runner.run_within(self._limit_s, POOL, self._looks.look, entries)
        except trio.TooSlowError:
            return OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
