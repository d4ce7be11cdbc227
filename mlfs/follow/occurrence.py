"""Finds where an entry occurs in the loaded epochs.

Pure. In: an entry and the loaded epochs. Out: the entry's occurrences: one for each time that a local rank is to read
it. Used by `mlfs.follow.tracker` for each open that is not simply the next one of its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mlfs.follow.epoch_index import EpochIndex


class Occurrence(NamedTuple):
    """One reading of an entry that an order foresees: a rank, an epoch, and the index in the rank's stream of it."""

    rank_index: int
    epoch: EpochIndex
    offset: int

    @property
    def position(self) -> int:
        """Linear position."""
        return self.epoch.base + self.offset

    @property
    def x(self) -> int:
        """Places between the beginning of the epoch's reading and this; negative before it (resumed runs)."""
        return self.offset - self.epoch.begin


def occurrences(epochs: Mapping[int, EpochIndex], entry: int) -> list[Occurrence]:
    """All occurrences of an entry, in the order in which the epochs were loaded."""
    found = []
    for index in epochs.values():
        for code in index.codes(entry):
            rank_index, offset = divmod(code, index.length)
            found.append(Occurrence(rank_index, index, offset))
    return found
