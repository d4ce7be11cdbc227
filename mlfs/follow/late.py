"""Reads of a job that came before the job was in force, by epoch.

Pure. In: when the job came into force, what it had been shown by then, when the reads came that it counts later. Out:
how many of the reads that it counts came too early to be fetched ahead by its order. Used by `mlfs.follow.job`.

A job that is found by its reads is shown these, and they count as predicted in its agreement, as they come in its
order. Some more of them wait in the engine's queue when the job comes into force.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from mlfs.follow.epochs_at_hand import EpochsAtHand
from mlfs.follow.loader_watch import UNTIMED
from mlfs.follow.score import Cell


class LateReads:
    """See the module.

    Attributes:
        by_epoch: as far as is known.
    """

    def __init__(self) -> None:
        self.by_epoch: Counter[int] = Counter()
        self._in_force_s = -math.inf

    def comes_into_force(self, now_s: float, cells: Mapping[tuple[int, int], Cell]) -> None:
        """From now on reads are fetched ahead. Args: cells: counts, by epoch and rank, of what the job was shown."""
        self._in_force_s = now_s
        for (epoch, _), cell in cells.items():
            if cell.observed:
                self.by_epoch[epoch] += cell.observed

    def read(self, at_s: float, position: int, epochs: EpochsAtHand) -> None:
        """A read was matched to a position. Reads that are only matched anew have no time: they were counted."""
        if at_s < self._in_force_s and at_s != UNTIMED:
            self.by_epoch[epochs.epoch_of(position)] += 1

    def go_on_from(self, before: LateReads) -> None:
        """Add what another job had, in whose place this one came."""
        self.by_epoch += before.by_epoch
