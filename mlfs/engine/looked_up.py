"""Asks the source what else has changed of a file that has: the room that it takes, its other names (hard links).

In: an entry whose change was noticed, in a worker. Out: changes to adopt, its own and those of its other names, as they
are found by one look at each name. A name may lead to another file by now: which entries are names of one file is told
anew. A file may have very many names: some are looked at; the others stand alone from then on, and are found to have
changed when they are read. Called by `mlfs.engine.fetch`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mlfs.places.place import FileChange
from mlfs.places.posix import PosixSource
from mlfs.tree.attributes import attributes_of
from mlfs.tree.manifest import Manifest, clamp_ns

# Names that are looked at while a reader waits for one of them.
MOST_NAMES: Final = 256

Groups = Sequence[Sequence[int]]


class LookedUp:
    """Finds the changes that come with one: of the file itself, and of its other names.

    Args:
        regroup: called from the worker with the entries that are names of one file each: must have told
            `Manifest.hard_links` on the loop when it returns.
    """

    def __init__(self, manifest: Manifest, source: PosixSource, regroup: Callable[[Groups], None]) -> None:
        self._manifest = manifest
        self._source = source
        self._regroup = regroup

    def changes(self, entry: int, change: FileChange) -> Iterator[tuple[int, FileChange]]:
        """The change of the entry, and those of its other names."""
        names = self._manifest.hard_links.names_of(entry) or (entry,)
        found: dict[int, os.stat_result] = {}
        for name in (entry, *(name for name in names[:MOST_NAMES] if name != entry)):
            if name != entry and self._manifest.is_gone(name):
                continue  # a refresh took it out: what has its name now is not in the mount
            try:
                found[name] = self._source.stat(name)
            except OSError:
                continue  # it is gone, or the source does not answer: whoever opens it will hear of that
        if len(names) > 1:
            files: dict[tuple[int, ...], list[int]] = {}
            for name in names:
                status = found.get(name)
                files.setdefault((status.st_dev, status.st_ino) if status else (name,), []).append(name)
            self._regroup(list(files.values()))
        status = found.pop(entry, None)
        if status is not None and self._times(entry, status) == (change.size_bytes, change.mtime_ns, change.ctime_ns):
            change = change._replace(blocks=status.st_blocks)
        yield entry, change
        manifest = self._manifest
        for name, status in found.items():
            known = manifest.size_view[name], manifest.mtime_ns_view[name], manifest.ctime_ns_view[name]
            size, mtime_ns, ctime_ns = self._times(name, status)
            rights = attributes_of(status).rights  # where ctime proves nothing, nothing else tells that they changed
            same = known == (size, clamp_ns(mtime_ns), clamp_ns(ctime_ns)) and rights == manifest.rights(name)
            if stat.S_ISREG(status.st_mode) and not same:
                yield name, FileChange(size, mtime_ns, ctime_ns, rights, status.st_blocks)

    def _times(self, entry: int, status: os.stat_result) -> tuple[int, int, int]:
        return self._manifest.as_known(entry, attributes_of(status))[:3]
