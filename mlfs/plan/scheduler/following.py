"""The jobs of the node: which job a read belongs to, which predicted uses are over, which epochs' orders are needed.

Pure. In: reads, jobs that come and go, orders of epochs. Out: samples whose last counted use is over, commands. How one
job is followed is the affair of `mlfs.follow`; a bug there costs that job its prediction and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from mlfs.follow.job import JobRun, Seen
from mlfs.follow.nameless import NAMELESS
from mlfs.plan.scheduler.beside import Beside
from mlfs.plan.scheduler.commands import (
    Command,
    CountReads,
    EpochBegan,
    EpochLeft,
    ForgetReads,
    JobFailed,
    LoadEpoch,
    StartedAgain,
    Warn,
)
from mlfs.plan.scheduler.events import EpochKnown, Opened, ReadSeen
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.look_ahead import Uses
from mlfs.plan.scheduler.rank_loads import Reader
from mlfs.plan.scheduler.rank_waits import RankWaits
from mlfs.plan.scheduler.reading_times import ReadingTimes
from mlfs.plan.scheduler.states import SampleTable
from mlfs.plan.scheduler.window import Window


class Following:
    """See the module."""

    def __init__(
        self,
        table: SampleTable,
        window: Window,
        keeping: Keeping,
        reading_times: ReadingTimes,
        rank_waits: RankWaits,
        beside: Beside,
        out: list[Command],
    ) -> None:
        self._table = table
        self._window = window
        self._keeping = keeping
        self._reading_times = reading_times
        self._rank_waits = rank_waits
        self._beside = beside
        self._opening = Opening()
        self._left: list[EpochLeft] = []  # to be told once nobody waits for a sample of these epochs
        self._out = out
        self._jobs: dict[str, JobRun] = {}
        self._uses: dict[str, Uses] = {}
        self._members: dict[str, bytearray] = {}  # what each job reads: one that is given up says so no more
        self.jobs: Mapping[str, JobRun] = MappingProxyType(self._jobs)
        self.uses: Mapping[str, Uses] = MappingProxyType(self._uses)

    # -- jobs come and go

    def install(self, job: JobRun) -> None:
        """A job begins: it was registered, adopted in place of another, or started again."""
        self._leave(job.name)
        if not job.observed:  # it is no job that goes on
            self._rank_waits.begin_anew(job.name)
            self._opening.forget(job.name)
        self._rank_waits.loads.begin(job)
        self._jobs[job.name], self._uses[job.name], self._members[job.name] = job, Uses(job), job.member
        self._tell_members()
        self._out.append(CountReads(job))
        self._ask_for_epochs(job)
        self.set_linger()

    def end(self, name: str) -> None:
        """The job of that name, if there is one, has ended."""
        self._opening.forget(name)
        self._leave(name)

    def _leave(self, name: str) -> None:
        """Follow the job of that name no more."""
        self._left = [left for left in self._left if left.job.name != name]
        if self._jobs.pop(name, None) is None:
            return
        self._over(self._uses.pop(name).release())
        del self._members[name]
        self._tell_members()
        self._out.append(ForgetReads(name))
        self.set_linger()

    def _tell_members(self) -> None:
        """Have it known which samples jobs read that have not read all that they will, also those given up."""
        self._keeping.jobs_read([self._members[name] for name, job in self._jobs.items() if not job.finished])

    def staged(self, most: int) -> list[int]:
        """Samples that are staged and will be read, the soonest needed first; at most so many.

        Without those that a reader has open now: if their pages are gone they are not staged again (`PagesLost`).
        """
        found: list[tuple[float, int]] = []
        for uses in self.uses.values():
            if uses.job.predicting:
                found += uses.staged(self._table, most)
        return [sample for _, sample in sorted(found)[:most] if sample not in self._table.readers]

    def set_linger(self) -> None:
        """Used pages may fill the window exactly while no job's reads are predicted."""
        self._window.set_linger(not any(job.predicting and not job.finished for job in self._jobs.values()))

    def broken(self, job: JobRun, error: Exception) -> None:
        """A bug showed in computing for a job: give the job up."""
        if self._jobs.get(job.name) is job:
            self._give_up(job, error)

    def _give_up(self, job: JobRun, error: Exception) -> None:
        """A bug showed while the job was followed: it is predicted no more."""
        self._over(self._uses[job.name].release())
        job.give_up()
        self._out.append(JobFailed(job, error))
        self.set_linger()

    # -- epochs

    def _ask_for_epochs(self, job: JobRun) -> None:
        for epoch in job.wanted_epochs():
            job.epochs.asked(epoch)
            self._out.append(LoadEpoch(job, epoch))

    def epoch_known(self, known: EpochKnown) -> None:
        """An epoch's order was computed: match the reads that waited for it, and forget epochs that are over."""
        job = known.job
        if self._jobs.get(job.name) is not job:
            return
        try:
            uses, before = self._uses[job.name], dict(job.epochs.at_hand)
            for epoch in job.add_epoch(known.streams):
                self._over(uses.forget_epoch(before[epoch]))
            for seen in job.release_held(self._others(job)):
                self._came(job, seen)
            self._ask_for_epochs(job)
        except Exception as error:
            self._give_up(job, error)

    def epoch_unknown(self, job: JobRun, epoch: int) -> None:
        """An epoch's order could not be computed: match the reads that waited for it without it."""
        if self._jobs.get(job.name) is not job:
            return
        job.epochs.failed(epoch)
        self._ask_for_epochs(job)
        for seen in job.release_held(self._others(job)):
            self._came(job, seen)

    # -- reads

    def read(self, read: ReadSeen) -> None:
        """Have the jobs that read the sample match a read of it; learn from it where none of them follows it."""
        followed, coming, match, reader = False, Seen(None), None, None
        counted: list[tuple[str, int]] = []
        for job in list(self._jobs.values()):
            if not job.member[read.sample]:
                continue
            try:
                others = self._others(job) if len(self._jobs) > 1 else ()
                seen = job.observe(read.sample, read.process, read.parent, read.at_s, others)
                self._came(job, seen)
                if read.waits and not seen.apart:  # what the source gives for it counts then
                    epoch = job.epochs.epoch_of(seen.match.position) if seen.match else _epoch_of(job)
                    counted.append((job.name, epoch))
                if seen.match is not None:
                    self._reading_times.read(job.name, read.process)
                    match, reader = seen.match, Reader(job.name, seen.match.rank_index, read.process)
                followed = followed or (job.predicting and not seen.apart)
                coming = seen if seen.coming else coming
            except Exception as error:
                self._give_up(job, error)
        position = base = -1
        if match is not None and reader is not None:
            index = self._jobs[reader.job].epochs.index_at(match.position)
            position, base = match.position, index.base if index is not None else -1
        matched = Matched(reader, position, base, tuple(counted))
        if read.waits:
            self._opening.waits(read.sample, read.process, matched)
        else:
            self._goes_on(read.sample, read.at_s, matched)
        if not followed:
            self._read_beside(read, coming.coming)

    def opened(self, opened: Opened) -> None:
        """A reader who waited goes on: count what is known only now."""
        matched = self._opening.over(opened.sample, opened.process)
        for name, epoch in matched.counted if opened.source_bytes else ():
            if name in self._jobs:
                self._jobs[name].count_pfs(epoch, opened.source_bytes)
        self._goes_on(opened.sample, opened.at_s, matched)
        self._tell_left()

    def refused(self, sample: int, process: int) -> None:
        """A reader who waited gets an error."""
        self._opening.over(sample, process)
        self._tell_left()

    def _goes_on(self, sample: int, at_s: float, matched: Matched) -> None:
        """A reader has the sample open."""
        waited_s = self._rank_waits.read(sample, matched.reader)
        if matched.reader is not None and matched.reader.process != NAMELESS and matched.base >= 0:
            size_bytes = self._table.sizes[sample]
            self._rank_waits.loads.read(matched.reader, matched.position, matched.base, at_s, waited_s, size_bytes)

    def _read_beside(self, read: ReadSeen, coming: Sequence[int]) -> None:
        """A stranger has read, or somebody whose order nobody knows. `coming`: what he reads next, if a job says it."""
        if self._beside.read(read.sample):
            self._window.retire(read.sample)
        self._beside.goes_on_from(read.sample, read.process, read.at_s, coming)

    def _others(self, job: JobRun) -> list[JobRun]:
        return [other for other in self._jobs.values() if other is not job]

    def _came(self, job: JobRun, seen: Seen) -> None:
        """Act on what a job made of a read."""
        if seen.restarted:
            self._out.append(StartedAgain(job))
            return
        uses = self._uses[job.name]
        if seen.given:
            self._over(uses.given_up(seen.given))
        if seen.match is not None and (sample := uses.passed(seen.match)) >= 0 and self._table.fulfil(sample):
            self._window.retire(sample)

    def who_needs(self, sample: int) -> tuple[JobRun, int] | None:
        """A job that will read the sample by its prediction, and the epoch that it reads; None for nobody."""
        for job in self._jobs.values():
            if job.predicting and not job.finished and job.member[sample]:
                return job, _epoch_of(job)
        return None

    def coming_bytes(self, name: str, rank: int) -> int:
        """Bytes of the next whole batch of a local rank of a job; 0 where that is not known.

        An epoch's last batch may be smaller than the others, and nobody knows what follows it.
        """
        job = self._jobs[name]
        position = job.ranks.progress[rank].frontier
        index = job.epochs.index_at(position)
        if index is None:
            return 0
        offset = position - index.base
        coming = index.ids[rank][offset : offset + job.loader.batch_files].tolist()
        if len(coming) < job.loader.batch_files:
            return 0
        return sum(self._table.sizes[sample] for sample in coming if sample >= 0)

    def source_gave(self, sample: int, size_bytes: int) -> None:
        """The source gave bytes of a sample that was opened before: they count for the epoch that is being read."""
        for job in self._jobs.values():
            if job.member[sample]:
                job.count_pfs(_epoch_of(job), size_bytes)

    def _over(self, samples: Iterable[int]) -> None:
        """Uses that were counted ahead are over: they came, or were given up."""
        for sample in samples:
            if self._table.fulfil(sample):
                self._window.retire(sample)

    # -- judging

    def judge(self, now_s: float) -> None:
        """After reads: judge all predictions, and report epochs that begin and end."""
        for job in list(self._jobs.values()):
            if job.given_up:
                continue
            try:
                self._judge(job, now_s)
            except Exception as error:
                self._give_up(job, error)
        self.set_linger()

    def _judge(self, job: JobRun, now_s: float) -> None:
        uses, predicted = self._uses[job.name], job.predicting
        self._out.extend(Warn(f"job {job.name}: {said}") for said in job.judge(now_s))
        if job.predicting != predicted:
            self._over(uses.release())
        for rank in job.ranks.newly_silent():
            self._over(uses.leave_rank(rank, job.ranks.progress[rank].frontier))
        self._out.extend(EpochBegan(job, epoch) for epoch in job.ranks.epochs_begun())
        self._left += [EpochLeft(job, epoch) for epoch in job.ranks.epochs_ended()]
        self._tell_left()
        self._ask_for_epochs(job)

    def _tell_left(self) -> None:
        """Tell of epochs that all ranks have left, and of which nobody waits for a sample."""
        if not self._left:
            return
        over = [left for left in self._left if not self._opening.is_awaited(left.job.name, left.epoch)]
        self._left = [left for left in self._left if left not in over]
        self._out.extend(over)


def _epoch_of(job: JobRun) -> int:
    """The epoch that the job's fastest rank reads."""
    return job.epochs.epoch_of(max(rank.frontier for rank in job.ranks.progress))


# -- reads whose readers still wait for the sample

# Samples that processes wait for: far more than a node has threads that read. The oldest are forgotten.
MOST_WAITING = 4096


class Matched(NamedTuple):
    """A read, as it was matched.

    Attributes:
        reader: who reads for a job, None for nobody. position: linear. base: where its epoch begins, -1 where the
            epoch is not at hand.
        counted: each job that the read is counted for, by name, and the epoch.
    """

    reader: Reader | None = None
    position: int = -1
    base: int = -1
    counted: tuple[tuple[str, int], ...] = ()


class Opening:
    """What jobs made of reads whose readers still wait for the sample.

    In: reads as they were matched when readers asked, then the readers who go on or are refused. Out: what is counted
    only then. A read is matched when the reader asks, because a process with several threads asks in the order of its
    stream, and gets what it asks for in any order. How long he waited, and what the source gave for it, is known when
    he goes on.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[int, int], deque[Matched]] = OrderedDict()  # by sample and process

    def waits(self, sample: int, process: int, matched: Matched) -> None:
        """A process waits for a sample."""
        self._waiting.setdefault((sample, process), deque(maxlen=MOST_WAITING)).append(matched)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    def over(self, sample: int, process: int) -> Matched:
        """The process waits no more: what its read was matched to."""
        waiting = self._waiting.get((sample, process))
        if waiting is None:
            return Matched()
        matched = waiting.popleft()
        if not waiting:
            del self._waiting[sample, process]
        return matched

    def forget(self, name: str) -> None:
        """The job of that name has ended: nothing is counted for it any more."""
        for waiting in self._waiting.values():
            for at, matched in enumerate(waiting):
                reader = matched.reader if matched.reader is not None and matched.reader.job != name else None
                counted = tuple(one for one in matched.counted if one[0] != name)
                waiting[at] = matched._replace(reader=reader, counted=counted)

    def is_awaited(self, name: str, epoch: int) -> bool:
        """Whether somebody waits for a sample of that epoch of the job."""
        return any((name, epoch) in matched.counted for waiting in self._waiting.values() for matched in waiting)
