"""Keeps how far the ranks of a job are that read through this mount, and which of them nobody reads here.

Pure. In: what the matcher knows of each rank's progress, the epochs at hand. Out: the epochs that the ranks are in,
those that they have come to and have left, how fast they read, whether all is read. Used by `mlfs.follow.job`; one
object is for one run of the script.

A job that was registered without saying which ranks read here is taken to have all of them here. Those that are still
where they began, when others are further ahead than any loader reads out of order, are *silent*: another node reads
for them. Nobody waits for a silent rank. If it begins to read after all, it counts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import numpy as np

from mlfs.follow.epochs_at_hand import EpochsAtHand
from mlfs.follow.evidence import SURE_STREAK, fits
from mlfs.follow.job_statistics import RankStatistics
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.progress import RankProgress
from mlfs.job import JobSpec

RATE_SECONDS = 2.0
"""A rate is taken over at least so long: a loader reads batch by batch, so over less it would jump up and down."""


class LocalRanks:
    """The ranks of one job that read through this mount, and how far each is.

    Args:
        matcher: matches the reads of this run of the script.
        silent: ranks that are known to be silent from a run before.

    Attributes:
        finished: whether all ranks that are not silent have read all.
    """

    def __init__(self, spec: JobSpec, epochs: EpochsAtHand, matcher: StreamMatcher, silent: Iterable[int] = ()) -> None:
        self.finished = False
        self._spec = spec
        self._epochs = epochs
        self._matcher = matcher
        self._silent = set(silent)
        self._begun = self._ended = spec.start_epoch  # see `epochs_begun` and `epochs_ended`
        self._last_reads: dict[int, int] = {}  # see `_last_read`
        self._last_begins: int | None = None  # where the last epoch does: no rank has read all before
        self._samples_per_s = [0.0] * len(matcher.ranks)
        self._rated_at: tuple[float, Sequence[int]] = 0.0, ()  # when that was taken last, and where the ranks were

    @property
    def progress(self) -> Sequence[RankProgress]:
        """How far each rank is, by its index among the local ranks."""
        return self._matcher.ranks

    @property
    def silent(self) -> Set[int]:
        """Indexes of ranks that nobody reads here."""
        return self._silent

    @property
    def frontiers(self) -> list[int]:
        """The next position of each rank that is not silent."""
        return [progress.frontier for rank, progress in enumerate(self.progress) if rank not in self._silent]

    @property
    def epoch_reads(self) -> int:
        """Reads that an epoch has here: of the ranks that have read as predicted; of all while none has.

        Reads in another order lie in silent ranks, too: `silent` does not tell.
        """
        count = len(self.progress)
        if not self._are_told:
            cells = self._matcher.score.cells.items()
            read = {
                rank for (_, rank), cell in cells if cell.agreed >= SURE_STREAK and fits(cell.observed, cell.agreed)
            }
            count = len(read - {-1}) or count
        return max(1, self._epochs.first_length * count)

    def current_epochs(self) -> tuple[int, int]:
        """Epochs of the slowest and of the fastest rank."""
        frontiers = self.frontiers
        return self._epochs.epoch_of(min(frontiers)), self._epochs.epoch_of(max(frontiers))

    def note_rates(self, now_s: float) -> None:
        """Something was read, and the ranks are here by now: how fast they have come so far."""
        since_s, before = self._rated_at
        if before and now_s - since_s < RATE_SECONDS:
            return
        frontiers = [progress.frontier for progress in self.progress]
        if before:
            both = zip(before, frontiers, strict=True)
            self._samples_per_s = [(new - old) / (now_s - since_s) for old, new in both]
        self._rated_at = now_s, frontiers

    def statistics(self) -> tuple[RankStatistics, ...]:
        """Frozen figures of each rank."""
        return tuple(self._statistics_of(index) for index in range(len(self.progress)))

    def _statistics_of(self, index: int) -> RankStatistics:
        frontier, timeline = self.progress[index].frontier, self._epochs.timeline
        epoch = self._epochs.epoch_of(frontier)
        return RankStatistics(
            rank=self._spec.ranks[index],
            epoch=epoch,
            position=frontier - timeline.base(epoch),
            length=timeline.streams.length(epoch),
            reads_here=index not in self._silent,
            samples_per_s=self._samples_per_s[index],
        )

    @property
    def _are_told(self) -> bool:
        """Whether the registration says which ranks read here."""
        return "ranks" in self._spec.model_fields_set or len(self.progress) == 1

    # -- reads

    def read(self, rank_index: int, frontier: int) -> None:
        """A rank has read, and reads next at `frontier`."""
        if self._last_begins is None:
            self._last_begins = self._epochs.timeline.base(self._spec.epochs - 1)
        if frontier >= self._last_begins and frontier >= self._last_read(rank_index):
            self.finished = all(
                progress.frontier >= self._last_read(rank)
                for rank, progress in enumerate(self.progress)
                if rank not in self._silent
            )
        if rank_index in self._silent:  # it is read here after all: its epochs have not ended yet
            self._silent.discard(rank_index)
            self.finished = False
            self._ended = self._epochs.epoch_of(self.progress[rank_index].floor)

    def _last_read(self, rank_index: int) -> int:
        """Position after the last sample of this mount that a rank reads; the job's end while that is not known."""
        known = self._last_reads.get(rank_index)
        last = self._epochs.last
        if known is None and last is not None:
            inside = np.flatnonzero(last.ids[rank_index] >= 0)
            known = self._last_reads[rank_index] = last.base + (int(inside[-1]) + 1 if len(inside) else 0)
        return self._epochs.end if known is None else known

    def newly_silent(self) -> list[int]:
        """Ranks that turn out to be silent now. None are where the user said which ranks read here."""
        if self._are_told:
            return []
        start = self._epochs.timeline.start
        if max(self.frontiers) - start <= self._matcher.lag:
            return []
        silent = {rank for rank, progress in enumerate(self.progress) if progress.frontier == start} - self._silent
        self._silent |= silent
        return sorted(silent)

    # -- epochs that begin and end

    def epochs_begun(self) -> range:
        """Epochs that the fastest rank has come to since this was last asked."""
        begun = range(self._begun + 1, self.current_epochs()[1] + 1)
        self._begun = max(self._begun, begun.stop - 1)
        return begun

    def epochs_ended(self) -> range:
        """Epochs that all ranks have left since this was last asked."""
        ended = range(self._ended, self._spec.epochs if self.finished else self.current_epochs()[0])
        self._ended = max(self._ended, ended.stop)
        return ended

    def go_on_from(self, before: LocalRanks) -> None:
        """A finding that was told by the ranks of the job that this one replaces is not told again."""
        self._begun = max(self._begun, before._begun)
        self._ended = max(self._ended, before._ended)
