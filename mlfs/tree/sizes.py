"""Files that have another number of bytes than their size says, as far as that was noticed.

In: what reads of the source have found (`mlfs.places.posix`). Out: which files have to be read as the source gives
them, past all caches, since the kernel would cut or pad them to their size. A manifest has one of these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsized:
    """How many files were found whose size is not the number of their bytes, and the first of them, -1 for none."""

    count: int = 0
    first: int = -1


class UnsizedFiles:
    """See the module. From any thread."""

    def __init__(self) -> None:
        self._files: dict[int, None] = {}

    def __contains__(self, entry: object) -> bool:
        return entry in self._files

    def note(self, entry: int) -> bool:
        """Its size is not the number of its bytes. Whether that is new."""
        new = entry not in self._files
        self._files[entry] = None
        return new

    def forget(self, entry: int) -> None:
        """Its size is right again."""
        self._files.pop(entry, None)

    def statistics(self) -> Unsized:
        """Frozen figures."""
        files = tuple(self._files)
        return Unsized(len(files), files[0] if files else -1)
