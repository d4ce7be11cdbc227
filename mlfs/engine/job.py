"""A registered job while it runs: its streams, how far its ranks are, and how far ahead they have been looked at.

In: a specification and its streams (mlfs.orders), observed opens. Out: what to fetch next, which uses are over, and its
part of the status. Loop only, but for `load_epoch`, which is pure computing and may run in a worker thread.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams
from mlfs.plan.matching import EpochIndex, Match, StreamMatcher

RECOVERED = 0.75
RATE_SECONDS = 2.0
SHADOW_OPENS = 32
LOST_OPENS = 8
SHADOW_AGREEMENT = 0.8


class JobState(StrEnum):
    """What a job does, as `status` says it."""

    WAITING = "waiting for the first read"
    RUNNING = "running"
    DRIFTING = "prediction failing"
    FINISHED = "finished"


class JobRun:
    """One job.

    Invariants: frontier <= cursor for each rank; an epoch's `looked` byte of a position is 1 exactly while its use is
    counted in the table's pending uses.
    """

    def __init__(self, spec: JobSpec, streams: JobStreams, sizes: npt.NDArray[np.int64]) -> None:
        self.spec = spec
        self.streams = streams
        self.n_entries = len(sizes)
        self._sizes = sizes
        self.member = bytearray(self.n_entries)
        inside = streams.sample_ids[streams.sample_ids >= 0]
        np.frombuffer(self.member, dtype=np.uint8)[inside] = 1
        self.bases = [0]
        self.predicting = True
        self.finished = False
        self.inferred = False
        self.pfs_bytes_by_epoch: dict[int, int] = {}
        self.matcher = self._matcher_at_start()
        self.shadow: StreamMatcher | None = None
        self.cursors = [progress.frontier for progress in self.matcher.ranks]
        self.loading: set[int] = set()
        self._last_reads: dict[int, int] = {}
        self.stream_bytes = 0
        self.rates: dict[int, float] = {}
        self._rated: list[int] = []
        self._rated_at = 0.0

    # -- positions

    @property
    def start(self) -> int:
        """Linear position at which every rank begins."""
        step = min(self.spec.start_step * self.streams.batch_files, self.streams.length(self.spec.start_epoch))
        return self.base(self.spec.start_epoch) + step

    @property
    def end(self) -> int:
        """Linear position after the last epoch."""
        return self.base(self.spec.epochs)

    def _last_read(self, rank_index: int) -> int:
        """Linear position after the last sample of this mount that a rank reads; `end` while that is not known."""
        known = self._last_reads.get(rank_index)
        last = self.matcher.epochs.get(self.spec.epochs - 1)
        if known is None and last is not None:
            inside = np.flatnonzero(last.ids[rank_index] >= 0)
            known = self._last_reads[rank_index] = last.base + (int(inside[-1]) + 1 if len(inside) else 0)
        return self.end if known is None else known

    def base(self, epoch: int) -> int:
        """Linear position of an epoch's first sample."""
        while len(self.bases) <= epoch:
            self.bases.append(self.bases[-1] + self.streams.length(len(self.bases) - 1))
        return self.bases[epoch]

    def epoch_of(self, position: int) -> int:
        """The epoch a linear position lies in; the last one for the end."""
        index = self.index_at(position)
        if index is not None:
            return index.epoch
        epoch = 0
        while epoch + 1 < self.spec.epochs and self.base(epoch + 1) <= position:
            epoch += 1
        return epoch

    def index_at(self, position: int) -> EpochIndex | None:
        """The loaded epoch that a linear position lies in."""
        for index in self.matcher.epochs.values():
            if index.contains(position):
                return index
        return None

    def use_over(self, match: Match) -> int:
        """The use at a position is over: its entry if the use had been counted ahead, else -1."""
        index = self.index_at(match.position)
        offset = match.position - index.base if index else 0
        if index is None or not index.looked[match.rank_index][offset]:
            return -1
        index.looked[match.rank_index][offset] = 0
        return int(index.ids[match.rank_index][offset])

    # -- epochs in memory

    def current_epochs(self) -> tuple[int, int]:
        """Epochs of the slowest and of the fastest rank."""
        frontiers = [progress.frontier for progress in self.matcher.ranks]
        return self.epoch_of(min(frontiers)), self.epoch_of(max(frontiers))

    def missing_epochs(self) -> list[int]:
        """Epochs that should be loaded and are neither loaded nor being loaded."""
        low, high = self.current_epochs()
        wanted = range(max(self.spec.start_epoch, low - 1), min(high + 2, self.spec.epochs))
        return [e for e in wanted if e not in self.matcher.epochs and e not in self.loading]

    def load_epoch(self, epoch: int) -> EpochIndex:
        """Compute an epoch's order and its inverse (a worker thread's work)."""
        streams = [self.streams.epoch_ids(epoch, rank) for rank in self.spec.ranks]
        return EpochIndex(epoch, self.base(epoch), streams, self.n_entries)

    def add_epoch(self, index: EpochIndex) -> list[int]:
        """Take a loaded epoch into use, and let go of those that all ranks have left.

        Returns the entries of uses that were counted ahead in those and never came.
        """
        self.matcher.epochs[index.epoch] = index
        if not self.stream_bytes:
            self.stream_bytes = sum(int(self._sizes[ids[ids >= 0]].sum()) for ids in index.ids)
        low, _ = self.current_epochs()
        left = [e for e in self.matcher.epochs if e < low - 1 and e != self.spec.start_epoch]
        return [entry for epoch in left for entry in self.matcher.epochs.pop(epoch).outstanding().tolist()]

    # -- observed opens

    def observe(self, entry: int, pid: int, parent: int) -> tuple[list[Match], bool]:
        """Record an open of one of the job's samples.

        Returns the positions whose use is over now (the matched one first, then those given up), and whether the job
        turned out to have been started again from its beginning: then everything counted ahead must be released first.
        """
        match, expired = self.matcher.observe(entry, pid, parent)
        if self._shadow_leads(entry, pid, parent, match):
            return [], True
        if match is None:
            return [], False
        self.finished = all(p.frontier >= self._last_read(r) for r, p in enumerate(self.matcher.ranks))
        rank = match.rank_index
        self.cursors[rank] = max(self.cursors[rank], self.matcher.ranks[rank].frontier)
        return [match, *expired], False

    def restart(self) -> None:
        """Continue from where the second run of the script is."""
        if self.shadow is not None:
            self.shadow.epochs = self.matcher.epochs
            self.matcher, self.shadow = self.shadow, None
            self.cursors = [progress.frontier for progress in self.matcher.ranks]
            self.predicting, self.finished = True, False

    def judge(self) -> bool:
        """Update `predicting` from the agreement; True when it has just changed."""
        agreement = self.matcher.agreement
        before = self.predicting
        if self.predicting and self.matcher.drifting:
            self.predicting = False
        elif not self.predicting and agreement is not None and agreement >= RECOVERED:
            self.predicting = True
            self.cursors = [progress.frontier for progress in self.matcher.ranks]
        return self.predicting != before

    def release_ahead(self) -> list[int]:
        """Forget all uses counted ahead; returns their entries, once for each use."""
        entries = []
        for index in self.matcher.epochs.values():
            entries += index.outstanding().tolist()
            index.looked = [bytearray(index.length) for _ in index.ids]
        self.cursors = [progress.frontier for progress in self.matcher.ranks]
        return entries

    def count_pfs(self, epoch: int, size_bytes: int) -> None:
        """Attribute bytes read from the PFS to an epoch."""
        self.pfs_bytes_by_epoch[epoch] = self.pfs_bytes_by_epoch.get(epoch, 0) + size_bytes

    def rate(self, now_s: float) -> None:
        """Update how many samples a second each local rank reads (for `status`); called when something was read."""
        frontiers = [progress.frontier for progress in self.matcher.ranks]
        if not self._rated:
            self._rated, self._rated_at = frontiers, now_s
        elif now_s - self._rated_at >= RATE_SECONDS:
            passed = now_s - self._rated_at
            self.rates = {
                i: (new - old) / passed for i, (old, new) in enumerate(zip(self._rated, frontiers, strict=True))
            }
            self._rated, self._rated_at = frontiers, now_s

    @property
    def state(self) -> JobState:
        """In one word."""
        if not self.predicting:
            return JobState.DRIFTING
        if self.finished:
            return JobState.FINISHED
        return JobState.RUNNING if self.matcher.observed else JobState.WAITING

    def _matcher_at_start(self) -> StreamMatcher:
        length = self.streams.length(self.spec.start_epoch)
        return StreamMatcher(len(self.spec.ranks), self.streams.batch_files, self.start, length)

    def _shadow_leads(self, entry: int, pid: int, parent: int, match: Match | None) -> bool:
        """Whether opens that don't fit fit a second run of the script from the job's start.

        The shadow knows the first epoch only: it must not learn to follow the run that is under way.
        """
        if self.shadow is None:
            first = self.matcher.epochs.get(self.spec.start_epoch)
            lost = match is None or self._agreement_of_last(LOST_OPENS) == 0.0
            if first is None or not (lost and self.matcher.observed):
                return False
            self.shadow = self._matcher_at_start()
            self.shadow.epochs = {first.epoch: first}
        self.shadow.observe(entry, pid, parent)
        if len(self.shadow.recent) < SHADOW_OPENS:
            return False
        agreement = self.shadow.agreement or 0.0
        if agreement >= SHADOW_AGREEMENT and agreement > self._agreement_of_last(SHADOW_OPENS):
            return True
        self.shadow = None
        return False

    def _agreement_of_last(self, opens: int) -> float:
        last = list(self.matcher.recent)[-opens:]
        return sum(last) / len(last) if last else 0.0
