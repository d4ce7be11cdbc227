"""Finds the epoch of a registered job that begins with the reads that disagree, and what each process read first in it.

In: a job and its last opens, as they were counted. Out: the epoch, the opens since it began, the first reads. Called by
`mlfs.explain.correction`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfs.explain.data_sets import as_indices
from mlfs.explain.evidence import FEWEST_FITTING
from mlfs.explain.first_reads import MOST_FIRST_READS
from mlfs.explain.question import DataSet, reads_needed
from mlfs.follow.evidence import fits
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.orders.layouts.layout import SampleIds

# A process that idles, and many processes with few reads each, are waited for this many times as many reads.
_PATIENCE = 8


class Beginning(NamedTuple):
    """The epoch that begins with the reads that disagree, and what each process read first in it.

    Attributes:
        opens: none where the epoch began before all that is remembered.
        heads: the first reads of each process, as entries, in the order in which the processes began.
        passes: how many epochs went by since the last one that came as predicted.
    """

    epoch: int
    opens: list[Open]
    heads: list[list[int]]
    passes: int = 0

    def data_set(self, ids: SampleIds) -> DataSet:
        """The first reads as indices of the job's data set. A worker thread's work."""
        return as_indices(self.heads, ids.astype(np.int32))


class Beginnings:
    """The beginnings of epochs whose order is not known: each as many opens after the other as an epoch has.

    Attributes:
        passes: of the last one that was asked for (`latest`).
    """

    def __init__(self) -> None:
        self.passes = 0
        self._lost = (-1, 0)  # the first epoch that did not come as predicted, and how many opens were before it

    def latest(self, job: JobRun) -> Beginning:
        """The epoch that is being read, if the last one that came as predicted does not go on."""
        begun = self.peek(job)
        self.passes = begun.passes
        return begun

    def peek(self, job: JobRun) -> Beginning:
        """The same, which `another_began` does not take for asked."""
        begun, observed = beginning_of(job), job.score.observed
        if begun.epoch != self._lost[0]:
            self._lost = begun.epoch, observed - len(begun.opens)
        passes, count = self._passed(job)
        if not passes and count <= len(job.score.history):
            return begun
        opens = begun.opens[-count:] if 0 < count <= len(begun.opens) else []
        return Beginning(min(begun.epoch + passes, job.spec.epochs - 1), opens, _heads(opens), passes)

    def another_began(self, job: JobRun, opens: int) -> bool:
        """Whether a later epoch than at the last time has so many opens by now. Asked for each few reads: cheap."""
        if self._lost[0] < 0:
            return False
        passes, count = self._passed(job)
        return passes > self.passes and count >= opens

    def _passed(self, job: JobRun) -> tuple[int, int]:
        """Epochs that went by since the last one that came as predicted, and the opens of the one under way."""
        return divmod(job.score.observed - self._lost[1], job.ranks.epoch_reads)


def beginning_of(job: JobRun) -> Beginning:
    """The epoch after the last one that came as predicted, and what was read since that one's last open."""
    score = job.score
    fitting = [
        epoch
        for (epoch, rank), cell in score.cells.items()
        if rank >= 0 and cell.agreed >= FEWEST_FITTING and fits(cell.observed, cell.agreed)
    ]
    history = list(score.history)
    last = max(fitting, default=None)
    epoch, begun = job.spec.start_epoch, 0
    if last is not None:
        epoch = last + 1
        begun = _end_of(last, history)
    opens = history[begun:]
    return Beginning(min(epoch, job.spec.epochs - 1), opens, _heads(opens))


def _heads(opens: list[Open]) -> list[list[int]]:
    heads: dict[int, list[int]] = {}
    for opened in opens:
        head = heads.setdefault(opened.process, [])
        if len(head) < MOST_FIRST_READS:
            head.append(opened.entry)
    return list(heads.values())


def _end_of(epoch: int, history: list[Open]) -> int:
    """The number of opens up to the last one of an epoch that came as predicted.

    One open of the next epoch may lie by chance where this one begins: so an open counts whose process had come as
    predicted just before, at an earlier position.
    """
    end = 0
    before: dict[int, Open] = {}
    for number, opened in enumerate(history, 1):
        last = before.get(opened.process)
        before[opened.process] = opened
        if last is None or not (opened.agrees and last.agrees and opened.cell.epoch == last.cell.epoch == epoch):
            continue
        if opened.position > last.position:
            end = number
    return end


def processes_ready(beginning: Beginning, n_samples: int) -> int:
    """How many processes have read enough to tell where the epoch begins, if they read from its beginning."""
    needed = reads_needed(n_samples)
    return sum(len(head) >= needed for head in beginning.heads)


def enough(beginning: Beginning, n_samples: int) -> bool:
    """Whether a process has read enough to tell where its epoch begins, or so many have read that waiting is no use."""
    many = len(beginning.opens) >= _PATIENCE * reads_needed(n_samples)
    return many or processes_ready(beginning, n_samples) > 0
