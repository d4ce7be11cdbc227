"""A source that lies, for tests: a real mounted file system over a local directory, as scripts/slow_source.py is one.

    python scripts/source_lies.py BACKING MOUNTPOINT [--foreground] [other flags of slow_source.py]

In: a directory. Out: the same tree with the same bytes, and attributes or listings that are not what they should be.
File systems that are in use do each of these things. Which of them, and below which path, says a line that is written
to `.slow_source_control`; the other lines that slow_source.py takes are taken as well, and it counts as that does:

    {"lie": {"path": "a/b", "ctime": "now"}}     a file, or all that lies below a directory; "" is everything
    {"truth": {"path": "a/b"}}                   no lie that was told for exactly this path any more

A rule has any of these fields; of two rules for one file the one of the longer path counts, for each field:

    mtime, ctime   of files: "now" at each look, "alternating" among three values, "moved" by each read
    directories    times of directories: "now" at each look, "none" (0), "alike" (one for all), "moved" when they are
                   opened to be listed, "frozen" as they were when they were first looked at
    size           of files that are not empty: "zero"; a number of bytes that is added to the size (-5: too small)
    listing        a number: the listing fails half-way with this errno. listed: the same, at once
    cached_s       so many seconds the kernel takes attributes and names for what they were, whatever is there
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import Counter
from typing import Any, Final

import pyfuse3
from slow_source import CONTROL_NAME, STATS_NAME, SlowSource, main

FIELDS: Final = frozenset({"mtime", "ctime", "directories", "size", "listing", "listed", "cached_s"})
ALIKE_NS: Final = 1_000_000_000 * 10**9
_STEP_NS: Final = 1_500_000_000


class LyingSource(SlowSource):
    """See the module."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rules: dict[str, dict[str, Any]] = {}
        self._looked: Counter[str] = Counter()
        self._reads: Counter[str] = Counter()
        self._frozen: dict[str, tuple[int, int]] = {}

    def _obey(self, orders: dict[str, Any]) -> None:
        if "lie" in orders:
            rule = dict(orders["lie"])
            path = rule.pop("path")
            if not rule or not FIELDS.issuperset(rule):
                raise ValueError(f"no such lie: {rule}")
            self._rules.setdefault(path, {}).update(rule)
        elif "truth" in orders:
            self._rules.pop(orders["truth"]["path"], None)
        else:
            super()._obey(orders)

    def _lie(self, path: str, field: str) -> Any:
        """What the rule of the longest path says; None where the truth is told."""
        while True:
            value = self._rules.get(path, {}).get(field)
            if value is not None or not path:
                return value
            path = os.path.dirname(path)

    # -- attributes

    def _attributes(self, path: bytes) -> pyfuse3.EntryAttributes:
        attr = super()._attributes(path)
        if path in (STATS_NAME, CONTROL_NAME):
            return attr
        shown = os.fsdecode(path)
        cached_s = self._lie(shown, "cached_s")
        if cached_s is not None:
            attr.entry_timeout = attr.attr_timeout = float(cached_s)
        if stat.S_ISDIR(attr.st_mode):
            self._lie_of_directory(shown, attr)
        elif stat.S_ISREG(attr.st_mode):
            self._looked[shown] += 1
            for name in ("mtime", "ctime"):
                field = f"st_{name}_ns"
                setattr(attr, field, self._time(shown, self._lie(shown, name), getattr(attr, field)))
            size = self._lie(shown, "size")
            if size is not None and attr.st_size:
                attr.st_size = 0 if size == "zero" else max(0, attr.st_size + int(size))
        return attr

    def _time(self, path: str, lie: str | None, true_ns: int) -> int:
        if lie == "now":
            return time.time_ns()
        if lie == "alternating":
            return true_ns + _STEP_NS * (self._looked[path] % 3)
        if lie == "moved":
            return true_ns + _STEP_NS * self._reads[path]
        return true_ns

    def _lie_of_directory(self, path: str, attr: pyfuse3.EntryAttributes) -> None:
        lie = self._lie(path, "directories")
        times = attr.st_mtime_ns, attr.st_ctime_ns
        if lie == "now":
            times = time.time_ns(), time.time_ns()
        elif lie == "none":
            times = 0, 0
        elif lie == "alike":
            times = ALIKE_NS, ALIKE_NS
        elif lie == "moved":
            moved_ns = _STEP_NS * self.counts.listed_by_path[path]
            times = times[0] + moved_ns, times[1] + moved_ns
        elif lie == "frozen":
            times = self._frozen.setdefault(path, times)
        attr.st_mtime_ns, attr.st_ctime_ns = times

    # -- listings and reads

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        number = self._lie(os.fsdecode(self._path(inode)), "listed")
        if number is not None:
            raise pyfuse3.FUSEError(int(number))
        return await super().opendir(inode, ctx)

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        inode, names = self._listings[fh]
        number = self._lie(os.fsdecode(self._path(inode)), "listing")
        if number is None:
            await super().readdir(fh, start_id, token)
            return
        half = (len(names) + 1) // 2
        if start_id >= half:
            raise pyfuse3.FUSEError(int(number))
        for index in range(start_id, half):
            attr = self._attributes(self._child(inode, names[index]))
            if not pyfuse3.readdir_reply(token, names[index], attr, index + 1):
                return

    async def read(self, fh: int, off: int, size: int) -> bytes:
        data: bytes = await super().read(fh, off, size)
        self._reads[self._handles[fh].path] += 1
        return data


if __name__ == "__main__":
    sys.exit(main(LyingSource))
