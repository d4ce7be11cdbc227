"""Names that somebody asked for, that are not in the view, and that are at the source: added since the scan.

In: look-ups that found nothing, from the request handlers. Out: how many such names were found, and the first of them,
for the status and the log. The reader has had his ENOENT by then: the view changes by `mlfs refresh` only.

The source is asked beside the loop, about one name at a time, and seldom: an import of a Python module asks for dozens
of names that are nowhere, and a source that hangs must hold up nobody. Names that come in between are let go; whoever
still wants one asks again, as the kernel remembers for NEGATIVE_S only that there is none.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from dataclasses import dataclass

import trio

from mlfs.engine.runner import Runner
from mlfs.places.posix import PosixSource
from mlfs.tree.manifest import Manifest
from mlfs.tree.openat import open_beneath

log = logging.getLogger("mlfs.misses")

POOL = "misses"
# How long the kernel may remember that a name is not there. It costs a look-up in so many seconds and name; for as long
# a file that was added meanwhile goes unnoticed.
NEGATIVE_S = 5
# Looks at the source: so many at once after a pause, and then one in so many seconds.
BURST = 32
EVERY_S = 0.25
# Names that wait for a look, and those that are remembered once found.
MOST_WAITING = 64
MOST_FOUND = 1000
NAMED = 3


@dataclass(frozen=True, slots=True)
class MissStatistics:
    """The names that were found.

    Attributes:
        looks: at the source. added_since_scan: names that are there and not in the view. first_added: paths of some.
    """

    looks: int = 0
    added_since_scan: int = 0
    first_added: tuple[str, ...] = ()


class Misses:
    """Looks in the source for names that readers asked for in vain. Loop only; `run` must be running."""

    def __init__(self, manifest: Manifest, source: PosixSource, runner: Runner, mountpoint: str) -> None:
        self._manifest = manifest
        self._source = source
        self._runner = runner
        self._mountpoint = mountpoint
        self._waiting: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        self._found: dict[tuple[int, bytes], None] = {}
        self._looks = 0
        self._credit, self._credit_at_s = float(BURST), 0.0
        self._event = trio.Event()

    def missed(self, directory: int, name: bytes) -> None:
        """A name was looked up in a directory of the view, which does not have it."""
        if len(self._waiting) < MOST_WAITING and (directory, name) not in self._found:
            self._waiting[directory, name] = None
            self._event.set()

    def refreshed(self, top: int) -> None:
        """The view shows what is at the source now, below a directory."""
        for directory, name in list(self._found):
            at = directory
            while at not in (top, 0):
                at = self._manifest.parent_view[at]
            if at == top or self._manifest.lookup(directory, name) >= 0:
                del self._found[directory, name]

    def statistics(self) -> MissStatistics:
        first = tuple(self._path(*place) for place in list(self._found)[:NAMED])
        return MissStatistics(self._looks, len(self._found), first)

    def _path(self, directory: int, name: bytes) -> str:
        above = self._manifest.path(directory)
        return os.fsdecode(above + b"/" + name if above else name)

    async def run(self) -> None:
        while True:
            await self._event.wait()
            self._event = trio.Event()
            while self._waiting:
                await self._wait_for_turn()
                (directory, name), _ = self._waiting.popitem(last=False)
                self._looks += 1
                growths = self._manifest.growths
                there = await self._runner.run(POOL, self._is_there, directory, name)
                if there and growths == self._manifest.growths and len(self._found) < MOST_FOUND:
                    self._found[directory, name] = None
                    if len(self._found) <= NAMED:
                        path = self._path(directory, name)
                        log.warning("added since the scan: %s (mlfs refresh %s)", path, self._mountpoint)

    async def _wait_for_turn(self) -> None:
        now_s = trio.current_time()
        self._credit = min(float(BURST), self._credit + (now_s - self._credit_at_s) / EVERY_S)
        self._credit_at_s = now_s
        if self._credit < 1.0:
            await trio.sleep((1.0 - self._credit) * EVERY_S)
            self._credit, self._credit_at_s = 1.0, trio.current_time()
        self._credit -= 1.0

    def _is_there(self, directory: int, name: bytes) -> bool:
        """In a worker: whether the source has the name, in a directory that the scan could read."""
        manifest = self._manifest
        if directory in manifest.unreadable:
            return False  # it shows nothing, which is told otherwise
        above = manifest.path(directory)
        try:
            fd = open_beneath(self._source.root.fd, above, os.O_PATH | os.O_DIRECTORY)
            try:
                os.stat(name, dir_fd=fd, follow_symlinks=False)
            finally:
                os.close(fd)
        except (OSError, ValueError):
            return False
        # A source that tells no large letters from small ones has it under another name.
        alike = name.decode(errors="surrogateescape").casefold()
        return not any(
            manifest.name(child).decode(errors="surrogateescape").casefold() == alike
            for child in manifest.children(directory)
        )
