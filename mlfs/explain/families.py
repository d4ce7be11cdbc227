"""Opens by the family of the process that made them, while it is not known whose they are.

Pure. In: a job, which knows its readers' kin, and opens that it counted. Out: a number for each family, opens of some
families, families whose opens came as predicted. Used by `mlfs.explain.correction`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.explain.evidence import JUDGED_OPENS, SURE_SHARE
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.trial import Key


class Families:
    """Numbers the families that read a job's samples, in the order in which they are asked for."""

    def __init__(self, job: JobRun) -> None:
        self._readers = job.readers
        self._numbers: dict[Key, int] = {}

    def number_of(self, opened: Open) -> int:
        """The number of the family of a process that opened something."""
        key = self._readers.key_of(opened.process, opened.parent)
        return self._numbers.setdefault(key, len(self._numbers))

    def of(self, opens: Iterable[Open], numbers: frozenset[int] | None) -> list[Open]:
        """Those that these families made; None: all."""
        return [opened for opened in opens if numbers is None or self.number_of(opened) in numbers]

    def but(self, opens: Iterable[Open], numbers: frozenset[int] | None) -> list[Open]:
        """Those that other families made; None: none."""
        return [opened for opened in opens if numbers is not None and self.number_of(opened) not in numbers]

    def fitting(self, history: Iterable[Open]) -> frozenset[int] | None:
        """The families most of whose opens came as predicted; None where that is true of all."""
        opens: dict[int, list[bool]] = {}
        for opened in history:
            opens.setdefault(self.number_of(opened), []).append(opened.agrees)
        fit = (
            number
            for number, agrees in opens.items()
            if len(agrees) >= JUDGED_OPENS // 2 and sum(agrees) >= SURE_SHARE * len(agrees)
        )
        found = frozenset(fit)
        return None if len(found) == len(opens) else found
