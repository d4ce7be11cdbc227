"""Looks at the source, in worker threads, for the kernel: at extended attributes, and before it is told of an entry.

In: an entry and a name. Out: the value, as the source has it now, or an OSError for the kernel. Called by the request
handlers. With `--allow-other` the kernel asks for the ACL of whatever it checks for somebody who does not own it: once,
until a look at the entry finds a change. An entry that was found to have no ACL is not asked about again until then.

ENOSYS is never among the answers: the kernel would take it for the whole mount, and for good.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np
import trio

from mlfs.engine.looks import ACLS, Looks
from mlfs.engine.runner import Runner
from mlfs.places.posix import PosixSource
from mlfs.tree.manifest import ROOT, Manifest, ids_of

T = TypeVar("T")

# So many entries are looked at in one go where they are asked about in a row.
AHEAD: Final = 64
# Others are not shown: what a file server means by them is not enforced here, and `trusted.` is for root alone.
_SHOWN: Final = (b"user.", b"security.")


def is_shown(name: bytes) -> bool:
    """Whether the mount shows attributes of that name."""
    return name.startswith(_SHOWN) or name in ACLS


class ExtendedAttributes:
    """Answers requests for extended attributes from the source.

    Args:
        limit_s: how long the source has for an answer.
    """

    def __init__(
        self, manifest: Manifest, source: PosixSource, looks: Looks, runner: Runner, limit_s: float
    ) -> None:  # fmt: skip
        self._manifest = manifest
        self._source = source
        self._looks = looks
        self._runner = runner
        self._limit_s = limit_s
        self._next = -1  # the entry that somebody would ask about next who goes on in a directory

    def is_absent(self, entry: int, name: bytes) -> bool:
        """Whether it is known without a look at the source that the entry has no such attribute."""
        return not is_shown(name) or (name in ACLS and self._looks.has_no_acl(entry, ACLS.index(name)))

    def has_acl(self, entry: int) -> bool:
        """In a worker: whether the entry has an ACL, by a look at the source where that is not known."""
        try:
            return not self.is_absent(entry, ACLS[0]) and self._looks.attribute(entry, ACLS[0]) is not None
        except OSError:
            return True

    def may_have_acl(self, entry: int) -> bool:
        """Whether the entry may have an ACL: it is not known to have none. Nothing is looked at."""
        return not self.is_absent(entry, ACLS[0])

    async def value(self, entry: int, name: bytes) -> bytes:
        """Raises: OSError; ENODATA where there is none of that name."""
        value = await self._acl(entry, name) if name in ACLS else await self._ask(self._looks.attribute, entry, name)
        if value is None:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return value

    async def _acl(self, entry: int, name: bytes) -> bytes | None:
        """An ACL; of the next entries as well where one after the other is asked about, as `ls -l` does."""
        in_a_row, self._next = entry == self._next, entry + 1
        entries = range(entry, min(entry + AHEAD, self._manifest.used) if in_a_row else entry + 1)
        last = [self._looks.last_change(each) for each in entries]
        value, without = await self._ask(self._acls, entries, name)
        for each in without:
            self._looks.note_no_acl(each, ACLS.index(name), last[each - entry])
        self._next = entries.stop if in_a_row else self._next
        return value

    def _acls(self, entries: range, name: bytes) -> tuple[bytes | None, list[int]]:
        """The ACL of the first of these entries, and which of them have none."""
        value = self._looks.attribute(entries[0], name)
        without = [] if value is not None else [entries[0]]
        for entry in entries[1:]:
            try:
                if self._looks.attribute(entry, name) is None:
                    without.append(entry)
            except OSError:
                break  # whoever asks for it will hear
        return value, without

    async def names(self, entry: int) -> bytes:
        """The names, each with a zero byte behind it. Raises: OSError."""
        return b"".join(name + b"\0" for name in await self._ask(self._source.attribute_names, entry) if is_shown(name))

    async def _ask(self, call: Callable[..., T], *args: object) -> T:
        try:
            return await self._runner.run_within(self._limit_s, POOL, call, *args)
        except trio.TooSlowError:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None


# -- before the kernel is told of an entry for the first time
#
# In: entries that a LOOKUP or a listing is about to tell of. Out: nothing, once they have been looked at; OSError.

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
