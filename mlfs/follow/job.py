"""A registered job while it runs: its streams, how far its ranks are, and how far ahead they have been looked at.

In: a specification and its streams (mlfs.orders), observed opens. Out: what to fetch next, which uses are over, and its
part of the status. Loop only, but for `load_epoch`, which is pure computing and may run in a worker thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import StrEnum

import numpy as np

from mlfs.follow.depth import DepthWatch
from mlfs.follow.epoch_index import EpochIndex, Ids, Match
from mlfs.follow.matching import Open, StreamMatcher
from mlfs.follow.progress import RankProgress
from mlfs.follow.sentences import COUNTS_FROM_ONE, RESUMED, flags_of
from mlfs.follow.shape import Shape
from mlfs.follow.timeline import Timeline
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams
from mlfs.plan.scheduler.followed import Seen

RECOVERED = 0.75
RATE_SECONDS = 2.0
SHADOW_OPENS = 32
LOST_OPENS = 8
SHADOW_AGREEMENT = 0.8
LOADED_AHEAD = 2048
MOST_EPOCHS_AHEAD = 32
MOST_HELD = 4096
FEWEST_FIRST = 12
GAVE_UP = "mlfs failed to follow this job (the log says how); its reads are served as they come: register it again"
SMALL_TREE = 1 << 16
UNTIMED = -1.0


class JobState(StrEnum):
    """What a job does, as `status` says it."""

    WAITING = "waiting for the first read"
    RUNNING = "running"
    DRIFTING = "prediction failing"
    FINISHED = "finished"


HELD = Seen(None)


class JobRun:
    """One job.

    Attributes:
        inferred: nobody registered the job, the reads told it.
        given_up: whether following it failed: an open of its samples is nothing to it any more.
        known: what was found out while it ran, in plain words, the last one last.
        way_out: flags of `mlfs register` that say the last one from the start.
        counted_anew: opens before the last adoption that were counted anew against what was adopted.
        loading, unknown: epochs whose order is being computed; whose order could not be.
        elsewhere: indexes of ranks that nobody reads here, though the job was registered for all of them.
        held: opens that wait for the order of an epoch that is being computed.
        depth: how many batches the loader's workers are handed ahead.
    """

    def __init__(self, spec: JobSpec, streams: JobStreams, sizes: Ids, inferred: bool = False) -> None:
        self.spec = spec
        self.streams = streams
        self.timeline = Timeline(spec, streams)
        self.n_entries = len(sizes)
        self._sizes = sizes
        self.member = bytearray(self.n_entries)
        inside = streams.sample_ids[streams.sample_ids >= 0]
        np.frombuffer(self.member, dtype=np.uint8)[inside] = 1
        self.predicting, self.finished = True, False
        self.inferred, self.given_up = inferred, False
        self.known: list[str] = []
        self.way_out = ""
        self.pfs_bytes_by_epoch: dict[int, int] = {}
        self.matcher = self._matcher_at_start()
        self.shadow: StreamMatcher | None = None
        self.loading: set[int] = set()
        self.unknown: set[int] = set()
        self.held: deque[tuple[int, int, int, float]] = deque()
        self.depth = DepthWatch(spec.start_epoch)
        self._others_processes: set[int] = set()
        self.elsewhere: set[int] = set()
        self._near_end, self._waits_from = True, 0
        self.counted_anew = 0
        self.shadow_is_kin = self.told_begin = False
        self._begun = self._ended = spec.start_epoch
        self._last_reads: dict[int, int] = {}
        self.stream_bytes = 0
        self.rates: dict[int, float] = {}
        self._rated: list[int] = []
        self._rated_at = 0.0

    # -- what the scheduler asks for (mlfs.plan.scheduler.followed.FollowedJob)

    @property
    def name(self) -> str:
        """As registered."""
        return self.spec.name

    @property
    def observed(self) -> int:
        """Reads that were counted."""
        return self.matcher.observed

    @property
    def batch_files(self) -> int:
        """Samples of a rank's batch."""
        return self.streams.batch_files

    @property
    def first_length(self) -> int:
        """Samples a rank of the first epoch."""
        return self.streams.length(self.spec.start_epoch)

    @property
    def ranks_at(self) -> Sequence[RankProgress]:
        """How far each local rank is."""
        return self.matcher.ranks

    @property
    def silent_ranks(self) -> Set[int]:
        """Local ranks that nobody reads here."""
        return self.elsewhere

    @property
    def epochs_at_hand(self) -> Mapping[int, EpochIndex]:
        """The epochs whose order is known and needed."""
        return self.matcher.epochs

    # -- positions

    @property
    def end(self) -> int:
        """Linear position after the last epoch."""
        return self.timeline.end

    def base(self, epoch: int) -> int:
        """Linear position of an epoch's first sample."""
        return self.timeline.base(epoch)

    def _last_read(self, rank_index: int) -> int:
        """Linear position after the last sample of this mount that a rank reads; `end` while that is not known."""
        known = self._last_reads.get(rank_index)
        last = self.matcher.epochs.get(self.spec.epochs - 1)
        if known is None and last is not None:
            inside = np.flatnonzero(last.ids[rank_index] >= 0)
            known = self._last_reads[rank_index] = last.base + (int(inside[-1]) + 1 if len(inside) else 0)
        return self.end if known is None else known

    def epoch_of(self, position: int) -> int:
        """The epoch a linear position lies in; the last one for the end."""
        index = self.index_at(position)
        return index.epoch if index is not None else self.timeline.epoch_of(position)

    def index_at(self, position: int) -> EpochIndex | None:
        """The loaded epoch that a linear position lies in."""
        for index in self.matcher.epochs.values():
            if index.contains(position):
                return index
        return None

    # -- epochs in memory

    def _frontiers(self) -> list[int]:
        """Of the ranks that read here."""
        return [p.frontier for i, p in enumerate(self.matcher.ranks) if i not in self.elsewhere]

    def current_epochs(self) -> tuple[int, int]:
        """Epochs of the slowest and of the fastest rank."""
        frontiers = self._frontiers()
        return self.epoch_of(min(frontiers)), self.epoch_of(max(frontiers))

    def _wanted_epochs(self) -> range:
        """From the one before the slowest rank's to the one after the fastest's, and further where epochs are short."""
        low, high = self.current_epochs()
        stop = high + 2
        if self.n_entries <= SMALL_TREE:
            enough = self.base(high) + LOADED_AHEAD
            while stop < min(self.spec.epochs, high + MOST_EPOCHS_AHEAD) and self.base(stop) < enough:
                stop += 1
        return range(max(self.spec.start_epoch, low - 1), min(stop, self.spec.epochs))

    def missing_epochs(self) -> list[int]:
        """Epochs that should be loaded and are neither loaded nor being loaded."""
        if self.given_up:
            return []
        there = self.matcher.epochs.keys() | self.loading | self.unknown
        return [epoch for epoch in self._wanted_epochs() if epoch not in there]

    def load_epoch(self, epoch: int) -> EpochIndex:
        """Compute an epoch's order and its inverse (a worker thread's work)."""
        streams = [self.streams.epoch_ids(epoch, rank) for rank in self.spec.ranks]
        return EpochIndex(epoch, self.base(epoch), streams, self.n_entries, self.timeline.begin(epoch))

    def wanted_epochs(self) -> list[int]:
        """See FollowedJob: one after the other, for reads that come early wait for the next one."""
        return [] if self.loading else self.missing_epochs()[:1]

    def epoch_asked(self, epoch: int) -> None:
        """See FollowedJob."""
        self.loading.add(epoch)

    def epoch_unknown(self, epoch: int) -> None:
        """See FollowedJob."""
        self.loading.discard(epoch)
        self.unknown.add(epoch)

    def add_epoch(self, index: EpochIndex) -> list[int]:
        """Take a loaded epoch into use, and let go of those that all ranks have left: returns these."""
        self.loading.discard(index.epoch)
        self.matcher.epochs[index.epoch] = index
        if not self.stream_bytes:
            self.stream_bytes = sum(int(self._sizes[ids[ids >= 0]].sum()) for ids in index.ids)
        self._look_for_the_end()
        low, _ = self.current_epochs()
        left = [e for e in self.matcher.epochs if e < low - 1 and e != self.spec.start_epoch]
        for epoch in left:
            del self.matcher.epochs[epoch]
        return left

    def began_elsewhere(self) -> str:
        """Once, in words: the script's first reads are those of another epoch than the registered one. Else ""."""
        if self.told_begin or self.matcher.agreement_of_last(FEWEST_FIRST) < 1.0 or self.matcher.agreed < FEWEST_FIRST:
            return ""
        start = self.spec.start_epoch
        epochs = [e for (e, _), cell in self.matcher.cells.items() if cell.agreed >= 4 or e > start]
        if not epochs:  # many ranks, each with few opens
            return ""
        self.told_begin = True
        epoch = min(epochs)
        begin = range(self.base(epoch), self.base(epoch) + max(FEWEST_FIRST, self.matcher.shape.batch))
        if epoch <= start or self.inferred or not any(seen.position in begin for seen in self.matcher.history):
            return ""  # nothing else than registered, or it was under way already
        self.way_out = flags_of({"start_epoch": epoch})
        self.known.append(COUNTS_FROM_ONE if epoch == start + 1 else RESUMED.format(epoch=epoch, start=start))
        return self.known[-1]

    def epochs_begun(self) -> range:
        """Epochs that the fastest rank has come to since this was last asked."""
        begun = range(self._begun + 1, self.current_epochs()[1] + 1)
        self._begun = max(self._begun, begun.stop - 1)
        return begun

    def epochs_ended(self) -> range:
        """Epochs that all ranks have left since this was last asked."""
        ended = range(self._ended, self.spec.epochs if self.finished else self.current_epochs()[0])
        self._ended = max(self._ended, ended.stop)
        return ended

    # -- observed opens

    def observe(
        self, sample: int, process: int, parent: int, at_s: float = UNTIMED, others: Iterable[JobRun] = ()
    ) -> Seen:
        """Record a read of one of the job's samples, and when it came.

        If it fits nothing, and an epoch that it may belong to is being computed, it is held (see `release_held`).
        Where jobs have samples in common, reads of a process that surely reads for another job count for nothing.
        """
        if others and self._reads_for_another(process, others):
            return HELD
        waits = self.held or (self._near_end and self._may_be_of_a_coming_epoch(sample, process))
        if waits and len(self.held) < MOST_HELD:
            self.held.append((sample, process, parent, at_s))
            return HELD
        return self._observe(sample, process, parent, at_s)

    def _reads_for_another(self, process: int, jobs: Iterable[JobRun]) -> bool:
        """Whether another job predicts what a process opens, and this one does not."""
        others = self._others_processes
        if self.matcher.follows(process) or not any(job.matcher.follows(process) for job in jobs):
            others.discard(process)
            return False
        if process not in others:
            if len(others) >= MOST_HELD:
                others.clear()
            others.add(process)
            self.matcher.disown(process)
        return True

    def _may_be_of_a_coming_epoch(self, entry: int, process: int) -> bool:
        """Whether the open, of a rank near the end of what is loaded, may lie behind that."""
        coming = max(self.matcher.epochs, default=self.spec.start_epoch - 1) + 1
        if coming >= self.spec.epochs or coming in self.unknown:
            return False
        return not self.matcher.fits(entry, process)

    def _look_for_the_end(self) -> None:
        """Update whether a rank may come to the end of what is loaded with its next opens."""
        loaded = self.base(max(self.matcher.epochs, default=self.spec.start_epoch - 1) + 1)
        self._waits_from = loaded - self.matcher.lag - 1
        self._near_end = max(self._frontiers()) >= self._waits_from

    def release_held(self, others: Iterable[JobRun] = ()) -> list[Seen]:
        """An epoch was loaded: match the reads that waited for it."""
        held, self.held = self.held, deque()
        return [self.observe(*opened, others) for opened in held]

    def replay(self, opens: Iterable[Open]) -> None:
        """Match opens that were observed before this job began."""
        for opened in opens:
            self._observe(opened.entry, opened.process, opened.parent)

    def take_counts(self, other: JobRun, opens: Sequence[Open], said: str = "", way_out: str = "") -> None:
        """Go on with the counts of a job of which `said` was found out, but for the opens that were counted anew."""
        old, mine = other.matcher, self.matcher
        old.forget(opens)
        for (epoch, index), cell in old.cells.items():
            rank = other.spec.ranks[index] if index >= 0 else -1
            place = self.spec.ranks.index(rank) if rank in self.spec.ranks else -1
            mine.count(epoch, place, cell.observed, cell.agreed)
        self.pfs_bytes_by_epoch = dict(other.pfs_bytes_by_epoch)
        self.known, self.way_out = [*other.known, *filter(None, [said])], way_out
        self.counted_anew = len(opens)
        self._ended = max(self._ended, other._ended)
        self._begun = max(self._begun, other._begun)

    def _observe(self, entry: int, process: int, parent: int, at_s: float = UNTIMED) -> Seen:
        before = self.matcher.agreed
        match, given = self.matcher.observe(entry, process, parent)
        if self.depth.epoch >= 0:
            self._watch_depth(entry, process, match, at_s)
        unfit = self.matcher.agreed <= before
        if (unfit or self.shadow is not None) and self._shadow_leads(entry, process, parent, match):
            return Seen(None, (), True)
        if match is None:
            return Seen(None, given)
        rank, frontier = match.rank_index, self.matcher.ranks[match.rank_index].frontier
        if frontier >= self._last_read(rank):
            self._look_at_the_end()
        if frontier >= self._waits_from:
            self._near_end = True
        if rank in self.elsewhere:
            self._reads_here_after_all(rank)
        return Seen(match, given)

    def _reads_here_after_all(self, rank_index: int) -> None:
        """A rank that nobody seemed to read for has begun: its epochs have not ended yet."""
        self.elsewhere.discard(rank_index)
        self.finished = False
        self._ended = self.epoch_of(self.matcher.ranks[rank_index].floor)

    def _watch_depth(self, entry: int, process: int, match: Match | None, at_s: float) -> None:
        """Have an epoch's first opens tell how far ahead the workers read."""
        watch = self.depth
        if at_s == UNTIMED:
            watch.missed()
            return
        if match is not None and match.position >= self.base(watch.epoch + 1):
            watch.next_epoch(watch.epoch + 1, *self.loader())
        if match is not None and self.base(watch.epoch) <= match.position < self.base(watch.epoch + 1):
            offset = match.position - self.base(watch.epoch)
            watch.opened(match.rank_index, offset - self.timeline.begin(watch.epoch), process, at_s)
        elif match is None and watch.epoch == self.spec.start_epoch:  # the loader's shape is not known yet
            index = self.matcher.epochs.get(watch.epoch)
            code = index.code.item(entry) if index is not None else -1
            if index is not None and code >= 0:
                watch.opened(code // index.length, code % index.length - index.begin, process, at_s)

    def loader(self) -> tuple[Shape, int]:
        """The loader's shape, its batch 0 while that is not known, and how many samples of an epoch it reads."""
        shape, length = self.matcher.shape, self.matcher.stream_length
        if shape.workers == 1:
            told = "batch_size" in getattr(self.spec, "model_fields_set", ())
            shape = shape._replace(batch=self.streams.batch_files if told else 0)
        epoch = self.depth.epoch
        return shape, self.streams.length(epoch) - self.timeline.begin(epoch) if epoch >= 0 else length

    def _look_at_the_end(self) -> None:
        self.finished = all(
            p.frontier >= self._last_read(r) for r, p in enumerate(self.matcher.ranks) if r not in self.elsewhere
        )

    def restart(self) -> None:
        """Continue from where the second run of the script is."""
        if self.shadow is not None:
            self.shadow.epochs = self.matcher.epochs
            self.matcher, self.shadow = self.shadow, None
            self.predicting, self.finished = True, False
            self.depth = DepthWatch(self.spec.start_epoch)
            self.depth.missed()
            self._begun = self._ended = self.spec.start_epoch

    def newly_silent(self) -> list[int]:
        """Local ranks that nobody reads here, where nobody said which do: those that were not known before."""
        if "ranks" in getattr(self.spec, "model_fields_set", ("ranks",)) or len(self.matcher.ranks) == 1:
            return []
        start = self.timeline.start
        if max(self._frontiers()) - start <= self.matcher.lag:
            return []
        silent = {i for i, p in enumerate(self.matcher.ranks) if p.frontier == start} - self.elsewhere
        self.elsewhere |= silent
        return sorted(silent)

    def judge(self, now_s: float) -> list[str]:
        """Update `predicting` from the agreement; in words, what has changed that a person should know."""
        self._rate(now_s)
        agreement = self.matcher.agreement
        before = self.predicting
        if self.predicting and self.matcher.drifting:
            self.predicting = False
        elif not self.predicting and (agreement is None or agreement >= RECOVERED):  # None: all were another job's
            self.predicting = True
        said = [str(self.state)] if self.predicting != before else []
        elsewhere = self.began_elsewhere()
        return [*said, elsewhere] if elsewhere else said

    def forget_restart(self) -> None:
        """What seemed to be a second run of the script is something else."""
        self.shadow = None

    def give_up(self) -> None:
        """Predict nothing and look at nothing any more."""
        self.given_up, self.predicting = True, False
        self.member = bytearray(self.n_entries)
        self.held.clear()

    def resized(self, entry: int, more_bytes: int) -> None:
        """A sample changed its size at the source."""
        if self.member[entry] and self.stream_bytes:
            self.stream_bytes += more_bytes * len(self.spec.ranks) // self.spec.world_size

    def count_pfs(self, epoch: int, size_bytes: int) -> None:
        """Attribute bytes read from the PFS to an epoch."""
        self.pfs_bytes_by_epoch[epoch] = self.pfs_bytes_by_epoch.get(epoch, 0) + size_bytes

    def _rate(self, now_s: float) -> None:
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
        workers, batch = getattr(self.spec, "num_workers", None), self.streams.batch_files
        shape = Shape(batch, workers) if workers and workers > 1 else None
        # torch's workers take whole batches; one sample each in turn would be the sign of another world size.
        torch = getattr(self.spec, "sampler", "").startswith("torch")
        return StreamMatcher(
            len(self.spec.ranks), batch, self.timeline.start, length, shape, None, batch == 1 or not torch, torch
        )

    def _shadow_leads(self, entry: int, process: int, parent: int, match: Match | None) -> bool:
        """Whether opens that don't fit fit a second run of the script from the job's start.

        The shadow knows the first epoch only: it must not learn to follow the run that is under way.
        """
        if self.shadow is None:
            first = self.matcher.epochs.get(self.spec.start_epoch)
            lost = match is None or self.matcher.agreement_of_last(LOST_OPENS) == 0.0
            if first is None or not (lost and self.matcher.observed):
                return False
            self.shadow = self._matcher_at_start()
            self.shadow_is_kin = any(
                seen.agrees and (seen.process == process or (parent and seen.parent == parent))
                for seen in self.matcher.history
            )
            self.shadow.assume_loader_of(self.matcher)
            self.shadow.epochs = {first.epoch: first}
        self.shadow.observe(entry, process, parent)
        if self.shadow.observed < SHADOW_OPENS:
            return False
        agreement = self.shadow.agreement or 0.0
        if agreement >= SHADOW_AGREEMENT and agreement > self.matcher.agreement_of_last(SHADOW_OPENS):
            return True
        self.shadow = None
        return False
