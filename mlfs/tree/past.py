"""Keeps the attributes of a file's earlier contents for as long as somebody may ask for them.

In: what `Manifest.update` replaces. Out: the same, by entry and generation. A reader who holds the file open as it was
sees its old size; the kernel, which knows each content as an inode of its own, says when it has forgotten one. Called
by `mlfs.tree.manifest`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Of contents that the kernel never knew it never says that it has forgotten them: the oldest go.
MOST: Final = 65_536


class Past(NamedTuple):
    """The attributes of a content, as stat(2) had them."""

    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    blocks: int
    mtime_ns: int
    ctime_ns: int
    first_name: int  # see mlfs.tree.hard_links
    first_generation: int


class PastContents:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._past: dict[tuple[int, int], Past] = {}

    def __len__(self) -> int:
        """The number of contents that are remembered."""
        return len(self._past)

    def keep(self, entry: int, generation: int, attributes: Past) -> None:
        """Keeps a generation of the entry that the source has no more."""
        self._past[entry, generation] = attributes
        if len(self._past) > self._most:
            del self._past[next(iter(self._past))]

    def of(self, entry: int, generation: int) -> Past | None:
        """The attributes that the entry had; None where they are forgotten."""
        return self._past.get((entry, generation))

    def forget(self, entry: int, generation: int) -> None:
        """Forget attributes that nobody can ask for any more."""
        self._past.pop((entry, generation), None)
