"""Decides who may see names in the control directory: those of a directory only who may list it, and all that lie above
it.

In: a reader of the control directory, entries of the manifest, strings that may be paths. Out: which of them he may
see. Root and whoever mounted see all, and are not asked about. Called by mountd.control.

Modes and owners are those that the mount shows. A directory with an ACL, or of which nobody has asked for one yet where
the source must not be waited for, is open to its owner only: nobody is shown too much, and some are shown less than
they could list.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.printable import printable
from mlfs.tree.manifest import ABSENT, ROOT, Manifest

Json = dict[str, object]
HIDDEN: Final = "(a path that you may not list)"
UNTOLD: Final = "the mount's log says why"
# Fields of a job that name files or directories.
PATH_FIELDS: Final = ("root", "manifest_file", "pattern", "order_file", "weights_file")
_LIST = 0o5


class Reader(NamedTuple):
    """The one who asks, as the kernel tells it; the process is 0 where it does not say."""

    uid: int
    gid: int
    pid: int

    def groups(self) -> frozenset[int]:
        """His groups: of /proc as well, if that is about the same user. The process waits for us meanwhile."""
        try:
            with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as file:
                fields = {key: values.split() for key, _, values in (line.partition(":") for line in file)}
            if int(fields["Uid"][3]) == self.uid:
                return frozenset({self.gid, *map(int, fields["Groups"])})
        except (OSError, KeyError, ValueError, IndexError):
            pass
        return frozenset({self.gid})


class Onlookers:
    """Decides which names a reader of the control directory may see.

    Args:
        has_acl: whether a directory has an ACL, by a look at the source maybe. may_have_acl: the same without a look.
    """

    def __init__(self, manifest: Manifest, has_acl: Callable[[int], bool], may_have_acl: Callable[[int], bool]) -> None:
        self._manifest = manifest
        self._has_acl = has_acl
        self._may_have_acl = may_have_acl

    def may_see(self, reader: Reader, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
        """By entry, whether the reader may know of it. In a worker: the source may be asked about ACLs."""
        lists = _Lists(self._manifest, reader, self._has_acl)
        above, which = np.unique(self._manifest.parent[entries], return_inverse=True)
        allowed = np.fromiter(map(lists, above.tolist()), np.bool_, len(above))
        seen: NDArray[np.bool_] = allowed[which]
        return seen

    def hidden(self, reader: Reader, paths: Iterable[object], ask: bool) -> list[str]:
        """The paths, relative to the source, that the reader may not know of; an object that is no text is no path.

        Args:
            ask: in a worker, where the source may be asked about ACLs.
        """
        lists = _Lists(self._manifest, reader, self._has_acl if ask else self._may_have_acl)

        def is_open(path: str) -> bool:
            entry = ABSENT if path.startswith("/") else self._manifest.find(os.fsencode(path))
            return entry == ROOT or (entry > ROOT and lists(self._manifest.parent_view[entry]))

        return [path for path in paths if isinstance(path, str) and path.strip("./") and not is_open(path)]


class _Lists:
    """Whether one reader may list directories, and all above them."""

    def __init__(self, manifest: Manifest, reader: Reader, has_acl: Callable[[int], bool]) -> None:
        self._manifest = manifest
        self._uid, self._groups = reader.uid, reader.groups()
        self._has_acl = has_acl
        self._known: dict[int, bool] = {}

    def __call__(self, directory: int) -> bool:
        way = []
        while directory not in self._known:
            way.append(directory)
            if directory == ROOT:
                break
            directory = self._manifest.parent_view[directory]
        allowed = self._known.get(directory, True)
        for entry in reversed(way):
            allowed = self._known[entry] = allowed and self._one(entry)
        return allowed

    def _one(self, directory: int) -> bool:
        mode, uid, gid, _ = self._manifest.rights(directory)
        if uid == self._uid:
            return mode >> 6 & _LIST == _LIST
        if self._has_acl(directory):
            return False
        return mode >> (3 if gid in self._groups else 0) & _LIST == _LIST


def masked(value: Json, hidden: Iterable[str], roots: Iterable[str] = ()) -> Json:
    """A JSON object without some paths, wherever they stand in its texts; its keys stay.

    Args:
        roots: directories below which the paths may be named, too.
    """
    shown = {text for path in hidden for text in (path, shlex.quote(path))}
    shown |= {printable(text) for text in shown}
    if not shown:
        return value
    longest_first = "|".join(map(re.escape, sorted(shown, key=len, reverse=True)))
    below = {text for root in roots for text in (root, printable(root))}
    begins = "|".join([r"(?<![\w/])", *(rf"(?<={re.escape(root)}/)" for root in sorted(below))])
    without: Json = _masked(value, re.compile(rf"(?:{begins})(?:{longest_first})(?![\w/])"))
    return without


def _masked(value: Any, hidden: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return hidden.sub(HIDDEN, value)
    if isinstance(value, Mapping):
        return {key: _masked(part, hidden) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(part, hidden) for part in value]
    return value
