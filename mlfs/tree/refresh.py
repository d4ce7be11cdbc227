"""Compares a new scan of a tree with the manifest of a mount, and says what has changed.

In: the manifest of a mount, a directory of it, and a manifest that was just scanned below that directory. Out: a
`Difference`: the form of the tree as a growth of the manifest, and the files that have other attributes. Pure; called
in a worker thread by `mountd.refreshing`, while readers go on with the manifest as it was.

Also here: the manifest of a mount renumbered as a scan numbers it (`as_scanned`), which is what is saved for the next
mount.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.tree.growing import PER_ENTRY, GrowingManifest, Growth
from mlfs.tree.manifest import ABSENT, ROOT, Manifest, ids_of, offsets_dtype

_ATTRIBUTES = tuple(name for name in PER_ENTRY if name != "parent")
_TYPE = stat.S_IFMT(0xFFFFFFFF)


class Difference(NamedTuple):
    """The changes below a directory.

    Attributes:
        growth: the form of the tree, and attributes of what is no regular file.
        changed: regular files whose attributes are others now, and those that come back: entry of the mount's manifest,
            entry of the scanned one.
        names: by directory, the names in it that came or went or stand for something else.
        directories: those of whom anything is to be told to the kernel.
        added, gone: how many entries came, those that came back among them, and how many went.
        others: how many entries that are no regular files have another mode or owner.
    """

    growth: Growth
    changed: list[tuple[int, int]]
    names: dict[int, list[bytes]]
    directories: set[int]
    added: int
    gone: int
    others: int


def difference(manifest: GrowingManifest, top: int, scanned: Manifest) -> Difference:
    """Compare the tree below the directory `top` with what `scanned` saw there."""
    return _Comparison(manifest, scanned).run(top)


def _names(manifest: Manifest, entries: Sequence[int]) -> list[bytes]:
    if isinstance(entries, range):
        return manifest.names_of(entries.start, entries.stop)
    return [manifest.name(entry) for entry in entries]


class _Comparison:
    """One comparison: pairs of directories, one of the mount and one that was scanned, until none is left."""

    def __init__(self, manifest: GrowingManifest, scanned: Manifest) -> None:
        self._old, self._new = manifest, scanned
        self._pairs: list[tuple[int, int]] = []
        self._came: list[tuple[int, int]] = []  # scanned entries that are new, and their parents' new numbers
        self._children: dict[int, memoryview] = {}
        self._gone: set[int] = set()
        self._back: set[int] = set()
        self._gone_names: dict[tuple[int, bytes], int] = {}
        self._rights: dict[int, dict[str, int]] = {}
        self._changed: list[tuple[int, int]] = []
        self._told: dict[int, list[bytes]] = {}
        self._live = np.full(len(scanned), ABSENT, dtype=np.int64)  # the number in the mount of each scanned entry
        self._unreadable = _errors(manifest)
        self._unread_now = _errors(scanned)
        before, now = manifest.times, scanned.times
        proved = {"mtime_ns": before.mtime and now.mtime, "ctime_ns": before.ctime and now.ctime}
        self._unproved = [name for name, proves in proved.items() if not proves]

    def run(self, top: int) -> Difference:
        self._attributes(np.array([top]), np.array([ROOT]))
        self._pairs.append((top, ROOT))
        while self._pairs:
            self._compare(*self._pairs.pop())
        growth = self._growth()
        directories = set(self._rights) | set(self._told)
        back = frozenset(self._back)
        others = sum(
            any(row[name] != getattr(self._old, name)[entry] for name in ("mode", "uid", "gid"))
            for entry, row in self._rights.items()
        )
        return Difference(
            growth, self._changed, self._told, directories, len(self._came) + len(back), len(growth.gone), others
        )

    def _compare(self, directory: int, scanned: int) -> None:
        if scanned in self._unread_now:
            # An earlier look is more than nothing: what it saw stays.
            if not len(self._old.children(directory)):
                self._unreadable[directory] = self._unread_now[scanned]
            return
        self._unreadable.pop(directory, None)
        before, now = self._old.children(directory), self._new.children(scanned)
        names_before, names_now = _names(self._old, before), _names(self._new, now)
        if names_before == names_now:
            kept = self._alike(ids_of(before), ids_of(now))
            if kept.all():
                self._keep(ids_of(before), ids_of(now))
                return
        known = dict(zip(names_before, before, strict=True))
        children, names, both = [], [], []
        for name, entry in zip(names_now, now, strict=True):
            at = known.get(name, ABSENT)
            if at >= 0 and self._same_kind(at, entry):
                del known[name]
                both.append((at, entry))
            else:
                at = self._comes(directory, name, entry)
                names.append(name)
            children.append(at)
        for name, entry in known.items():
            self._goes(directory, name, entry)
        self._told[directory] = [*names, *(known.keys() - set(names))]
        self._children[directory] = np.array(children, dtype=np.uint32).data
        if both:
            pairs = np.array(both, dtype=np.int64)
            self._keep(pairs[:, 0], pairs[:, 1])

    def _alike(self, before: NDArray[np.int64], now: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each pair of entries, whether they are alike: links of one target, devices of one number."""
        kinds = self._old.mode[before] & _TYPE
        same: NDArray[np.bool_] = kinds == self._new.mode[now] & _TYPE
        for at in np.flatnonzero((kinds != stat.S_IFREG) & (kinds != stat.S_IFDIR) & same).tolist():
            same[at] = self._same_kind(int(before[at]), int(now[at]))
        return same

    def _same_kind(self, before: int, now: int) -> bool:
        kind = self._old.mode_view[before] & _TYPE
        if kind != self._new.mode_view[now] & _TYPE:
            return False
        if kind == stat.S_IFLNK:
            return self._old.target(before) == self._new.target(now)
        return self._old.rdev(before) == self._new.rdev(now)

    def _keep(self, before: NDArray[np.int64], now: NDArray[np.int64]) -> None:
        """Entries that are there as before: those with other attributes are noted, directories are gone into."""
        self._live[now] = before
        self._attributes(before, now)
        inside = np.flatnonzero(self._old.mode[before] & _TYPE == stat.S_IFDIR)
        self._pairs += zip(before[inside].tolist(), now[inside].tolist(), strict=True)

    def _attributes(self, before: NDArray[np.int64], now: NDArray[np.int64]) -> None:
        differ = np.zeros(len(before), dtype=np.bool_)
        for name in _ATTRIBUTES:
            other = getattr(self._old, name)[before] != getattr(self._new, name)[now]
            if name in self._unproved:
                other &= self._old.mode[before] & _TYPE != stat.S_IFREG
            differ |= other
        for entry, seen in zip(before[differ].tolist(), now[differ].tolist(), strict=True):
            if stat.S_ISREG(self._old.mode_view[entry]):
                self._changed.append((entry, seen))
            else:
                self._rights[entry] = self._row(seen)

    def _row(self, scanned: int) -> dict[str, int]:
        return {name: int(getattr(self._new, name)[scanned]) for name in _ATTRIBUTES}

    def _comes(self, directory: int, name: bytes, scanned: int) -> int:
        """The number of an entry that is not in the manifest now."""
        gone = self._old.gone_at(directory, name)
        self._live[scanned] = self._old.used + len(self._came)
        if gone >= 0 and self._same_kind(gone, scanned):
            self._back.add(gone)
            self._live[scanned] = gone
            self._attributes(np.array([gone]), np.array([scanned]))
            if stat.S_ISDIR(self._old.mode_view[gone]):
                self._pairs.append((gone, scanned))
            return gone
        entry = self._old.used + len(self._came)
        self._came.append((scanned, directory))
        if stat.S_ISDIR(self._new.mode_view[scanned]):
            self._pairs_of_new(entry, scanned)
        return entry

    def _pairs_of_new(self, top: int, scanned_top: int) -> None:
        """All that is below a directory that is new."""
        todo = [(top, scanned_top)]
        while todo:
            directory, scanned = todo.pop()
            if scanned in self._unread_now:
                self._unreadable[directory] = self._unread_now[scanned]
            children = self._new.children(scanned)
            first = self._old.used + len(self._came)
            self._came.extend((child, directory) for child in children)
            self._live[ids_of(children)] = np.arange(first, first + len(children))
            self._children[directory] = np.arange(first, first + len(children), dtype=np.uint32).data
            for number, child in enumerate(children, first):
                if stat.S_ISDIR(self._new.mode_view[child]):
                    todo.append((number, child))

    def _goes(self, directory: int, name: bytes, top: int) -> None:
        todo = [(directory, name, top)]
        while todo:
            parent, name, entry = todo.pop()
            self._gone.add(entry)
            self._gone_names[parent, name] = entry
            self._unreadable.pop(entry, None)
            children = self._old.children(entry)
            if len(children):
                names = _names(self._old, children)
                self._told[entry] = names
                todo += ((entry, name, child) for name, child in zip(names, children, strict=True))
                self._children[entry] = np.zeros(0, dtype=np.uint32).data

    def _growth(self) -> Growth:
        came = np.array([scanned for scanned, _ in self._came], dtype=np.int64)
        columns: dict[str, NDArray[Any]] = {name: getattr(self._new, name)[came] for name in _ATTRIBUTES}
        columns["parent"] = np.array([parent for _, parent in self._came], dtype=np.uint32)
        names = [self._new.name(scanned) for scanned in came.tolist()]
        before = self._old.names.tobytes()
        ends = len(before) + np.cumsum([len(name) for name in names], dtype=np.uint64)
        numbered = [(number, int(scanned)) for number, scanned in enumerate(came.tolist(), self._old.used)]
        modes = columns["mode"] & _TYPE
        links = [numbered[at] for at in np.flatnonzero(modes == stat.S_IFLNK).tolist()]
        devices = [numbered[at] for at in np.flatnonzero((modes == stat.S_IFCHR) | (modes == stat.S_IFBLK)).tolist()]
        return Growth(
            columns,
            before + b"".join(names),
            ends,
            [(number, self._new.target(scanned)) for number, scanned in links],
            [(number, self._new.rdev(scanned)) for number, scanned in devices],
            self._children,
            frozenset(self._gone),
            frozenset(self._back),
            self._gone_names,
            self._rights,
            self._unreadable,
            self._linked(),
        )

    def _linked(self) -> list[list[int]]:
        """Entries that are names of one file each, where the mount's manifest says otherwise.

        Names where nobody has looked now stay as they are.
        """
        links = self._old.hard_links
        groups: dict[int, list[int]] = {}
        for scanned, first in zip(self._new.linked.tolist(), self._new.linked_first.tolist(), strict=True):
            groups.setdefault(first, []).append(int(self._live[scanned]))
        now = [sorted(names) for names in groups.values()]
        known = links.known
        if known:
            here = set(self._live[self._live >= 0].tolist())
            alone = (known & here) - {name for names in now for name in names}
            now += [[entry] for entry in sorted(alone)]
            looked = here | self._gone
            now = [names for names in now if all(looked.issuperset(links.names_of(name)) for name in names)]
        return [names for names in now if list(links.names_of(names[0]) or names[:1]) != names]


def as_scanned(manifest: Manifest) -> Manifest:
    """The tree of a manifest numbered as a scan numbers it: breadth-first, children in a row."""
    order, at = [ROOT], 0
    while at < len(order):
        order += manifest.children(order[at])
        at += 1
    ids = np.array(order, dtype=np.int64)
    number = np.zeros(len(manifest), dtype=np.int64)
    number[ids] = np.arange(len(ids))
    columns: dict[str, NDArray[Any]] = {name: getattr(manifest, name)[ids] for name in PER_ENTRY}
    columns["parent"] = number[columns["parent"]].astype(np.uint32)
    counts = np.bincount(columns["parent"][1:], minlength=len(ids))
    columns["first_child"] = np.concatenate([[1], 1 + np.cumsum(counts)]).astype(np.uint32)
    names = [manifest.name(entry) for entry in order]
    blob = b"".join(names)
    columns["names"] = np.frombuffer(blob, dtype=np.uint8)
    ends = np.cumsum([len(name) for name in names])
    columns["name_offset"] = np.concatenate([[0], ends]).astype(offsets_dtype(len(blob)))
    kinds = columns["mode"] & _TYPE
    links = np.flatnonzero(kinds == stat.S_IFLNK)
    targets = [manifest.target(int(ids[at])) for at in links.tolist()]
    columns["link"] = links.astype(np.uint32)
    columns["targets"] = np.frombuffer(b"".join(targets), dtype=np.uint8)
    target_ends = np.cumsum([len(target) for target in targets]).astype(np.int64)
    columns["target_offset"] = np.concatenate([[0], target_ends]).astype(offsets_dtype(len(columns["targets"])))
    devices = np.flatnonzero((kinds == stat.S_IFCHR) | (kinds == stat.S_IFBLK))
    columns["device"] = devices.astype(np.uint32)
    columns["device_rdev"] = np.array([manifest.rdev(int(ids[at])) for at in devices.tolist()], dtype=np.uint64)
    here = np.zeros(len(manifest), dtype=np.bool_)
    here[ids] = True
    columns |= _linked(manifest.hard_links.first_of_each(ids))
    still = np.flatnonzero(here[manifest.unreadable])
    unreadable = number[manifest.unreadable[still]]
    sorted_ = np.argsort(unreadable)
    columns["unreadable"] = unreadable[sorted_].astype(np.uint32)
    columns["unreadable_errno"] = manifest.unreadable_errno[still][sorted_]
    return Manifest(columns, times=manifest.times)


def _errors(manifest: Manifest) -> dict[int, int]:
    """The errors of directories that could not be listed."""
    return dict(zip(manifest.unreadable.tolist(), manifest.unreadable_errno.tolist(), strict=True))


def _linked(first: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The columns of hard links, of what stands for the file of each entry."""
    _, groups, counts = np.unique(first, return_inverse=True, return_counts=True)
    groups = groups.reshape(-1)
    lowest = np.full(len(counts), len(first), dtype=np.int64)
    np.minimum.at(lowest, groups, np.arange(len(first)))
    linked = np.flatnonzero(counts[groups] > 1)
    return {"linked": linked.astype(np.uint32), "linked_first": lowest[groups][linked].astype(np.uint32)}
