"""Keeps which entries this mount has looked at in the source: with `--allow-other` the kernel is told of no other one.

In: entries that the kernel is about to be told of, and reads from the source, in worker threads. Out: the manifest with
modes and owners as the source has them now. Made by the engine, for the fetcher and the request handlers.

A scan has looked at all that it saw. A saved index has not: neither mode nor owner nor ACL moves the time of the
directory, by which an index is compared with the source. A look at a file is also one at the directories above
it, each once a second at most, as one of them may have been closed. A reader whose open led to
a look is not let in by what it found: all that is not as the kernel was told is dropped there before the answer, and
the answer has the kernel ask anew (ESTALE).

Without `--allow-other` only the user who mounted reads, whom the source itself would refuse: nothing is looked at.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mlfs.places.place import FileChange
from mlfs.places.posix import PosixSource
from mlfs.tree.attributes import attributes_of
from mlfs.tree.index import ScanReport
from mlfs.tree.manifest import ROOT, Manifest, clamp_ns

# A directory above what is read is looked at so often at most.
AGAIN_S: Final = 1.0
# Bits of an entry: it was looked at; it has no ACL, and (shifted by one) no default ACL.
SEEN: Final = 1
NO_ACL: Final = 2
ACLS: Final = (b"system.posix_acl_access", b"system.posix_acl_default")
# The answers of a source that has no such attribute, or none at all.
_NO_ATTRIBUTE: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM})
# Directories whose last look is remembered; then it begins anew, so that memory is bounded.
MOST_REMEMBERED: Final = 65_536


def seen_before(manifest: Manifest, scanned: ScanReport) -> NDArray[np.uint8]:
    """A byte an entry, 1 for what this mount has looked at while it made or compared its manifest."""
    if scanned.by:
        return np.zeros(len(manifest), dtype=np.uint8)
    if not scanned.reused:
        return np.full(len(manifest), SEEN, dtype=np.uint8)
    seen = np.zeros(len(manifest), dtype=np.uint8)
    seen[manifest.directories] = SEEN
    return seen


class Looks:
    """Looks at entries of the source, and remembers which were looked at.

    `look`, `way_to` and `was_read` run in worker threads, all else on the loop.

    Args:
        adopt: from a worker, takes over what a file or directory is now, in the manifest and in the kernel; the
            manifest's part calls `adopted`, on the loop.
        seen: a byte an entry, 1 for those that were looked at before the mount. None: nothing need be looked at.

    Attributes:
        needed: whether others may read.
        changes: how many differences were adopted so far.
    """

    def __init__(
        self,
        manifest: Manifest,
        source: PosixSource,
        adopt: Callable[[int, FileChange], None],
        clock: Callable[[], float],
        seen: NDArray[np.uint8] | None,
    ) -> None:
        self.needed = seen is not None
        self.changes = 0
        self._manifest = manifest
        self._source = source
        self._adopt = adopt
        self._clock = clock
        self._seen = np.zeros(0, dtype=np.uint8) if seen is None else seen.copy()
        self._looked_at_s: dict[int, float] = {}
        # By directory that was looked at: its change time, and, once that has moved, its ACLs.
        self._ctime_ns: dict[int, int] = {}
        self._acls: dict[int, tuple[bytes | None, ...]] = {}
        self._changed_at: dict[int, int] = {}  # by entry: the number of its last change
        if self.needed:  # at once for all entries that may come: a worker and the loop must not both make room
            self._room_for(len(manifest) - 1)
        if self.needed and not self.has_seen(ROOT):
            # The kernel asks about the root without a look-up, as soon as there is a mount.
            manifest.set_rights(ROOT, attributes_of(source.stat(ROOT)).rights)
            self._note(ROOT)

    def has_seen(self, entry: int) -> bool:
        """Whether the kernel may be told of the entry."""
        return not self.needed or (entry < len(self._seen) and bool(self._seen[entry] & SEEN))

    def seen_of(self, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`has_seen` of many entries."""
        if not self.needed:
            return np.ones(len(entries), dtype=np.bool_)
        seen = np.zeros(len(entries), dtype=np.bool_)
        known = entries < len(self._seen)
        seen[known] = self._seen[entries[known]] & SEEN != 0
        return seen

    def changed_since(self, entry: int, before: int) -> bool:
        """Whether the entry or a directory above was found to be another since there were `before` changes."""
        if self.changes == before:
            return False
        parents, changed_at = self._manifest.parent_view, self._changed_at
        while changed_at.get(entry, 0) <= before:
            if entry == ROOT:
                return False
            entry = parents[entry]
        return True

    def adopted(self, entry: int) -> None:
        """The manifest has what a look found."""
        if entry < len(self._seen):
            self._seen[entry] &= SEEN
        self._changed_at[entry] = self.changes + 1  # before the count, by which workers see that there is something
        self.changes += 1
        self._note(entry)

    def _note(self, entry: int) -> None:
        if self.needed:
            self._room_for(entry)
            self._seen[entry] |= SEEN

    def _room_for(self, entry: int) -> None:
        if entry >= len(self._seen):
            more = np.zeros(max(len(self._manifest), entry + 1) - len(self._seen), dtype=np.uint8)
            self._seen = np.concatenate((self._seen, more))

    def last_change(self, entry: int) -> int:
        """The number of the entry's last change, 0 for none."""
        return self._changed_at.get(entry, 0)

    def has_no_acl(self, entry: int, which: int) -> bool:
        """Whether the entry had no ACL of this kind (0: access, 1: default), and no change was found since."""
        return entry < len(self._seen) and bool(self._seen[entry] & NO_ACL << which)

    def note_no_acl(self, entry: int, which: int, last_change: int) -> None:
        """Note that the entry had no ACL at its last change."""
        if self.last_change(entry) == last_change:
            self._room_for(entry)
            self._seen[entry] |= NO_ACL << which

    def look(self, entries: Iterable[int]) -> OSError | None:
        """Look at entries that are not known yet, and at the directories above. Returns: the last failure."""
        failed = None
        for entry in entries:
            if self.has_seen(entry):
                continue
            try:
                self.above(entry)
                self._look_at(entry)
            except OSError as error:
                failed = error
        return failed

    def way_to(self, entry: int) -> None:
        """A file was read from the source: look at the directories above, where that is due. No error."""
        if self.needed:
            with suppress(OSError):
                self.above(entry)

    def was_read(self, entry: int) -> None:
        """All that it was found to be has been adopted."""
        if self.needed:
            self._note(entry)

    def above(self, entry: int) -> None:
        """Look at the directories above an entry, those that nobody has looked at for a second. Raises: OSError."""
        now_s, parents = self._clock(), self._manifest.parent_view
        above = []
        while entry != ROOT:
            entry = parents[entry]
            if now_s - self._looked_at_s.get(entry, -AGAIN_S) < AGAIN_S:
                break  # whoever looked at it has looked at those above it
            above.append(entry)
        for directory in reversed(above):
            self._look_at(directory)
            if len(self._looked_at_s) >= MOST_REMEMBERED:
                self._looked_at_s.clear()
            self._looked_at_s[directory] = now_s

    def _look_at(self, entry: int) -> None:
        manifest = self._manifest
        now = attributes_of(self._source.stat(entry))
        if stat.S_IFMT(now.mode) != stat.S_IFMT(manifest.mode_view[entry]):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if manifest.is_file(entry):
            now = manifest.as_known(entry, now)
        ctime_ns = clamp_ns(now.ctime_ns)
        if manifest.is_file(entry):
            known = manifest.size_view[entry], manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry]
            same = known == (now.size, clamp_ns(now.mtime_ns), ctime_ns)
        else:
            same = ctime_ns == self._ctime_ns.get(entry, manifest.ctime_ns_view[entry]) or self._has_same_acls(entry)
            self._ctime_ns[entry] = ctime_ns
        if same and now.rights[:3] == manifest.rights(entry)[:3]:
            self._note(entry)
            return
        self._adopt(entry, FileChange(now.size, now.mtime_ns, now.ctime_ns, now.rights))

    def _has_same_acls(self, directory: int) -> bool:
        """Whether a directory has the ACLs that it had. Its change time has moved, which is all that tells of another
        one, and moves with each name that comes or goes as well."""
        known = self._acls.get(directory)
        if known is None and all(self.has_no_acl(directory, which) for which in range(len(ACLS))):
            known = (None,) * len(ACLS)
        acls = self._acls[directory] = tuple(self.attribute(directory, name) for name in ACLS)
        return acls == known

    def attribute(self, entry: int, name: bytes) -> bytes | None:
        """An extended attribute of the source's; None where it has none of that name. Raises: OSError."""
        try:
            return self._source.attribute(entry, name)
        except OSError as error:
            if error.errno in _NO_ATTRIBUTE:
                return None
            raise
