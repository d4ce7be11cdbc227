"""A manifest with room: entries can be added and taken out while the mount serves (`mlfs refresh`).

In: a manifest as it was scanned; later, growths that `mlfs.tree.refresh` has worked out. Out: a `Manifest` whose
entries keep their numbers for good. New ones stand behind the others, and the children of a directory that has changed
are a list of their own, sorted by name like all. Entries that have not changed are answered from the same range as
before.

Every array has room from the beginning, so that all who hold a view of one (the scheduler, the request handlers) see
the new entries without being told. Memory that nobody has written to is not taken from the machine. An entry that is
not in use has mode 0: it is no file, no directory, and nobody's child.

An entry that is gone keeps its attributes, for readers who hold it open. It comes back under its number when something
of its kind comes back under its name.

Growths are applied on the loop (`grow`); worker threads read meanwhile. So names and attributes are written before the
list that leads to them.
"""

from __future__ import annotations

import base64
import pickle
import uuid
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfs.tree.manifest import ABSENT, COLUMNS, Manifest, offsets_dtype

# Columns that have not one value for each entry.
_OTHERS: Final = frozenset(
    {"first_child", "name_offset", "names", "link", "target_offset", "targets", "device", "device_rdev", "linked",
     "linked_first", "unreadable", "unreadable_errno"}
)  # fmt: skip
PER_ENTRY: Final = tuple(name for name in COLUMNS if name not in _OTHERS)
# So many entries may come at least, and a quarter of what is there. Tables beside this have some bytes for each.
FEWEST_ROOM: Final = 65_536


class Growth(NamedTuple):
    """The changes of a manifest, worked out for the manifest as it is.

    Attributes:
        columns: of the new entries, by the names of PER_ENTRY; their parents are entries of the grown manifest.
        names: all names, those of the new entries behind the others. ends: where each of the new ones ends.
        links, devices: of new entries: their number, and target or st_rdev.
        children: of each directory whose list changes.
        gone, back: entries that are taken out, and that come back. gone_names: by parent and name, what was taken out.
        rights: attributes of entries that are no regular files, as a row of PER_ENTRY without the parent.
        unreadable: the directories that cannot be listed, of all, and what that fails with.
        linked: entries that are names of one file each, where that has changed.
    """

    columns: Mapping[str, NDArray[Any]]
    names: bytes
    ends: NDArray[np.uint64]
    links: Sequence[tuple[int, bytes]]
    devices: Sequence[tuple[int, int]]
    children: Mapping[int, memoryview]
    gone: frozenset[int]
    back: frozenset[int]
    gone_names: Mapping[tuple[int, bytes], int]
    rights: Mapping[int, Mapping[str, int]]
    unreadable: Mapping[int, int]
    linked: Sequence[Sequence[int]]


def packed(growth: Growth) -> str:
    """A growth as a text, for another process of this program."""
    children = {entry: np.asarray(listed) for entry, listed in growth.children.items()}
    return base64.b64encode(pickle.dumps((growth._replace(children={}), children))).decode("ascii")


def unpacked(text: str) -> Growth:
    """The growth that `packed` has made a text of; from nobody else."""
    growth, children = pickle.loads(base64.b64decode(text))
    whole: Growth = growth._replace(children={entry: listed.data for entry, listed in children.items()})
    return whole


def _with_room(column: NDArray[Any], size: int, fill: int = 0, dtype: str | None = None) -> NDArray[Any]:
    wide = np.zeros(size, dtype=dtype or column.dtype)
    wide[: len(column)] = column
    if fill:
        wide[len(column) :] = fill
    return wide


class GrowingManifest(Manifest):
    """A manifest that entries can be added to. `len()` counts the places of all entries that may come.

    Args:
        scanned: the tree; its arrays are copied.
        room: how many entries may come.

    Attributes:
        growths: how often the tree has changed its form.
    """

    def __init__(self, scanned: Manifest, room: int | None = None) -> None:
        old, used = scanned.columns(), len(scanned)
        size = used + (max(FEWEST_ROOM, used // 4) if room is None else room)
        columns = old | {name: _with_room(old[name], size) for name in PER_ENTRY}
        columns["first_child"] = _with_room(old["first_child"], size + 1, used)
        dtype = offsets_dtype(4 * len(old["names"]))
        columns["name_offset"] = _with_room(old["name_offset"], size + 1, len(old["names"]), dtype)
        self._used = used
        self._listed: dict[int, memoryview] = {}
        self._gone_names: dict[tuple[int, bytes], int] = {}
        self.growths = 0
        super().__init__(columns, scanned.vanished, scanned.problems, scanned.times)

    @property
    def used(self) -> int:
        """The number that the next new entry gets."""
        return self._used

    @property
    def room(self) -> int:
        """How many entries may still come."""
        return len(self) - self._used

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays of the entries that are in use, or were."""
        found, used = super().columns(), self._used
        found |= {name: found[name][:used] for name in PER_ENTRY}
        return found | {name: found[name][: used + 1] for name in ("first_child", "name_offset")}

    def fingerprint(self) -> str:
        """A tree that was refreshed has one of its own: no other node numbers its entries alike."""
        return f"refreshed-{uuid.uuid4()}" if self.growths else super().fingerprint()

    def is_file(self, entry: int) -> bool:
        # An entry that was taken out is no file any more.
        return super().is_file(entry) and entry not in self.gone

    def is_dir(self, entry: int) -> bool:
        return super().is_dir(entry) and entry not in self.gone

    def _of_type(self, file_type: int) -> NDArray[np.uint32]:
        found = super()._of_type(file_type)
        if self.gone:
            found = found[~np.isin(found, np.fromiter(self.gone, dtype=np.uint32, count=len(self.gone)))]
        return found

    def children(self, entry: int) -> Sequence[int]:
        """A range, but for a directory that has changed."""
        listed = self._listed.get(entry)
        return super().children(entry) if listed is None else listed

    def lookup(self, parent: int, name: bytes) -> int:
        listed = self._listed.get(parent)
        if listed is None:
            return super().lookup(parent, name)
        at = bisect_left(listed, name, key=self.name)
        return listed[at] if at < len(listed) and self.name(listed[at]) == name else ABSENT

    def gone_at(self, parent: int, name: bytes) -> int:
        """The entry that was taken out of a directory under that name, -1 if there is none."""
        return self._gone_names.get((parent, name), ABSENT)

    def grow(self, growth: Growth) -> None:
        """Take over what has changed. No growth may have come between this one's making and now."""
        first, count = self._used, len(growth.ends)
        if count > self.room:
            raise ValueError("there is no room for so many entries")
        for name in PER_ENTRY:
            getattr(self, name)[first : first + count] = growth.columns[name]
        self.name_offset[first + 1 : first + count + 1] = growth.ends
        self._name_bytes = growth.names
        self.names = np.frombuffer(growth.names, dtype=np.uint8)
        self._add_links(growth.links)
        self._add_devices(growth.devices)
        self._used += count
        for entry, row in growth.rights.items():
            for name, value in row.items():
                getattr(self, name)[entry] = value
        self._set_unreadable(growth.unreadable)
        self.hard_links.refreshed(growth.linked)
        self.gone.difference_update(growth.back)
        for place in [place for place, entry in self._gone_names.items() if entry in growth.back]:
            del self._gone_names[place]
        self._listed.update(growth.children)
        self.gone.update(growth.gone)
        self._gone_names.update(growth.gone_names)
        self.__dict__.pop("files", None)
        self.__dict__.pop("total_bytes", None)
        self.growths += 1

    def _add_links(self, links: Sequence[tuple[int, bytes]]) -> None:
        """Links that stand there already stay where they are, so whoever looks meanwhile finds them."""
        if links:
            ends = len(self.targets) + np.cumsum([len(target) for _, target in links])
            blob = b"".join(target for _, target in links)
            self.targets = np.concatenate([self.targets, np.frombuffer(blob, dtype=np.uint8)])
            self.target_offset = np.concatenate([self.target_offset, ends]).astype(offsets_dtype(len(self.targets)))
            self.link = np.concatenate([self.link, np.array([entry for entry, _ in links], dtype=np.uint32)])
            self._link_view = self.link.data

    def _add_devices(self, devices: Sequence[tuple[int, int]]) -> None:
        if devices:
            entries, numbers = zip(*devices, strict=True)
            self.device_rdev = np.concatenate([self.device_rdev, np.array(numbers, dtype=np.uint64)])
            self.device = np.concatenate([self.device, np.array(entries, dtype=np.uint32)])
            self._device_view = self.device.data
