"""Counts opens by where their bytes really came from.

In: opens, as they are answered; READ requests for pages that the kernel does not have. Out: the mount's counters. Used
by mlfs.engine.opens and mlfs.engine.ranges, on the loop.

An open of a staged file counts as a read from the page cache: the kernel answers its reads and tells nobody. If it has
taken the pages back it sends a READ. So a READ tells that the open was answered from elsewhere after all, and the open
is counted there instead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlfs.plan.place_kind import PlaceKind
from mlfs.stats import PAGE_CACHE, Counters

# Files remembered as brought for a reader. Their READs come at once; one that was forgotten is counted a bit wrong.
MOST_REMEMBERED = 1 << 14


class CountedOpens:
    """Counts each open once, by the place that answered it.

    Args:
        sizes: bytes by entry.
    """

    def __init__(self, sizes: memoryview, counters: Counters) -> None:
        self._sizes = sizes
        self._counters = counters
        self._brought: dict[int, None] = {}  # entries whose last open does not count as one from the page cache
        self._told: dict[int, None] = {}  # entries whose open was told of, and counted, before any READ
        self._asked: dict[int, PlaceKind | None] = {}  # whose open is not told yet: what brought it, if it is here

    def staged(self, entry: int) -> None:
        """A reader opens a file whose pages are in place. The path of every staged open."""
        if entry in self._brought:
            del self._brought[entry]
        self._counters.read(PAGE_CACHE, self._sizes[entry])

    def told(self, entries: Sequence[int], free: Collection[int] = ()) -> None:
        """Opens are told of behind them, and not by requests: a READ may have said before that it is of one of them.

        They are counted now, or when that READ is answered: as the kernel tells the next server what this one has not
        heard, an open that counts before it is told would count twice.

        Args:
            free: files that nobody has open any more: the next READ of one is of another open.
        """
        asked, told, sizes = self._asked, self._told, self._sizes
        for entry in asked.keys() & entries if asked else ():
            kind = asked.pop(entry)
            entries = list(entries)
            entries.remove(entry)
            if kind is not None:
                self._counters.read(kind, sizes[entry])
        self._counters.read(PAGE_CACHE, sum(map(sizes.__getitem__, entries)), len(entries))
        closed = set(free)
        for entry in told.keys() & closed:
            del told[entry]
        told.update(dict.fromkeys(entry for entry in entries if entry not in closed))
        while len(told) > MOST_REMEMBERED:
            del told[next(iter(told))]

    def asked(self, entry: int) -> bool:
        """The first READ of an open that was not made by a request; whether that was not told before, and counted."""
        if entry in self._told:
            del self._told[entry]
            return False
        self._asked[entry] = None
        if len(self._asked) > MOST_REMEMBERED:
            del self._asked[next(iter(self._asked))]
        return True

    def asked_in_vain(self, entry: int, is_untold: bool) -> None:
        """Such an open is counted as one that is staged and whose pages are gone."""
        if is_untold and entry in self._asked:
            del self._asked[entry]  # to be told, and counted then
        elif is_untold:
            self._counters.read(PAGE_CACHE, self._sizes[entry])

    def asked_and_brought(self, entry: int, kind: PlaceKind, is_untold: bool) -> None:
        """The bytes of such an open came from there. Args: is_untold: what `asked` has said."""
        if is_untold and entry in self._asked:
            self._asked[entry] = kind
        elif is_untold:
            self._counters.read(kind, self._sizes[entry])
        else:
            self._counters.taken_back(kind, 1, self._sizes[entry])

    def brought(self, entry: int, kind: PlaceKind) -> None:
        """A reader who waited goes on. `kind`: from where the bytes came for him."""
        self._counters.read(kind, self._sizes[entry])
        self._remember(entry)

    def _remember(self, entry: int) -> None:
        self._brought[entry] = None
        if len(self._brought) > MOST_REMEMBERED:
            del self._brought[next(iter(self._brought))]

    def staged_range(self, size_bytes: int) -> None:
        """A reader has gone through pages of a large file that were in place."""
        self._counters.handed_out(PAGE_CACHE, size_bytes)

    def direct(self, kind: PlaceKind, staged_bytes: int = 0) -> None:
        """A reader opens a file that he reads by ranges: `ranged` counts its bytes, but for those that are in place."""
        self._counters.read(PAGE_CACHE if staged_bytes else kind, staged_bytes)
        if kind is PlaceKind.SOURCE and not staged_bytes:
            self._counters.fetch(kind, 0)

    def ranged(self, kind: PlaceKind, size_bytes: int) -> None:
        """Bytes of such a file were handed out."""
        self._counters.handed_out(kind, size_bytes)

    def gave(self, kind: PlaceKind, size_bytes: int) -> None:
        """A place gave bytes that no fetch counts."""
        self._counters.gave(kind, size_bytes)

    def answered_elsewhere(self, entry: int, kind: PlaceKind) -> None:
        """The kernel had taken a file's pages back: the file was read from there."""
        if entry in self._brought:
            del self._brought[entry]
        elif entry not in self._asked:
            self._counters.taken_back(kind, 1, self._sizes[entry])

    def range_answered_elsewhere(self, entry: int, kind: PlaceKind, offset: int, size_bytes: int) -> None:
        """Count a part of a file whose pages the kernel had taken back. The first part of a file stands for its
        open."""
        if entry not in self._brought and entry not in self._asked:
            self._counters.taken_back(kind, int(offset == 0), size_bytes)
