"""The jobs of the node: which job a read belongs to, which predicted uses are over, which epochs' orders are needed.

Pure. In: reads, jobs that come and go, orders of epochs. Out: samples whose last counted use is over, commands. How one
job is followed is the affair of `mlfs.follow`; a bug there costs that job its prediction and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from mlfs.follow.by_sample import NO_PID
from mlfs.follow.evidence import UNTIMED, Read
from mlfs.follow.job import NOTHING_YET, JobRun, Seen
from mlfs.follow.told_together import ToldTogether, are_together
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.scheduler.commands import (
    AnotherLeads,
    Command,
    CountReads,
    EpochBegan,
    EpochLeft,
    ForgetReads,
    JobFailed,
    LoadEpoch,
    Warn,
)
from mlfs.plan.scheduler.events import EpochKnown, Opened
from mlfs.plan.scheduler.job_record import JobRecord
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.rank_waits import RankReader, RankWaits
from mlfs.plan.scheduler.shards_ahead import ShardsAhead
from mlfs.plan.scheduler.states import SampleTable
from mlfs.plan.scheduler.strangers_ahead import StrangersAhead
from mlfs.plan.scheduler.window import Window

# As many as litdata opens ahead of the one that it comes to.
_OPENED_LATELY: Final = 4
# What may be told of together is a small part of an epoch: a process's opens of a file are one then.
PARTS_UNTOLD: Final = 8
# Those that were seen longest ago are forgotten: their workers are gone, mostly.
_MOST_PROCESSES: Final = 1024


class Following:
    """The jobs that are followed. It makes their records and drops them, and gives each read to the jobs.

    Attributes:
        records: the jobs' records by number, in the order in which the jobs came. Others may read them.
        jobs: the jobs' runs by name. It is made anew when a job comes or goes.
        rank_waits: which rank's readers have waited.
    """

    def __init__(
        self,
        table: SampleTable,
        window: Window,
        keeping: Keeping,
        strangers_ahead: StrangersAhead,
        shards: ShardsAhead,
        out: list[Command],
    ) -> None:
        self._table = table
        self._window = window
        self._shards = shards
        self._keeping = keeping
        self._strangers_ahead = strangers_ahead
        self._opening = Opening()
        self._told = ToldTogether()
        self._lately: OrderedDict[int, deque[int]] = OrderedDict()  # by process, the files that it opened last
        self._out = out
        self._last_number = 0
        self._opened_again = False  # by the readers of a job that was here
        self._last_s = self._single_s = UNTIMED  # of the last read, and of the last that did not simply go on
        self._records: dict[int, JobRecord] = {}
        self.records: Mapping[int, JobRecord] = self._records
        self.jobs: Mapping[str, JobRun] = {}
        self.rank_waits = RankWaits(self._records)

    # -- jobs come and go

    def install(self, run: JobRun) -> None:
        """A job begins: it was registered, adopted in place of another, or started again."""
        before = self.end(run.name)
        self._table.grow()
        for other in [run, *self.jobs.values()]:
            other.may_meet(len(self._table.state))
        self._last_number += 1
        job = JobRecord(self._last_number, run, before)
        self._records[job.number] = job
        self._opened_again |= run.opened_again
        self.jobs_changed()
        self._out.append(CountReads(run))
        self._ask_for_epochs(run)
        self.set_linger()

    def end(self, name: str) -> JobRecord | None:
        """Drop the record of the job of that name, if there is one, and return it."""
        job = self.named(name)
        if job is not None:
            self._over(job.uses.release())
            del self._records[job.number]
            self.jobs_changed()
            self._out.append(ForgetReads(name))
            self.set_linger()
        return job

    def jobs_changed(self) -> None:
        """Tell others which jobs there are, and which samples are read by jobs that have not read all that they will.

        A job that was given up still reads its samples, so copies of them are worth keeping.
        """
        jobs = self._records.values()
        self.jobs = {job.run.name: job.run for job in jobs}
        self._single_s = self._last_s
        self._keeping.jobs_read([job.member for job in jobs if not job.run.finished])

    def named(self, name: str) -> JobRecord | None:
        """The record of the job of that name, None where there is none."""
        return next((job for job in self._records.values() if job.run.name == name), None)

    def _record_of(self, run: JobRun) -> JobRecord | None:
        """The record of a job, None for one that has ended, or in whose place another has come."""
        return next((job for job in self._records.values() if job.run is run), None)

    def staged(self, most: int) -> list[int]:
        """Samples that are staged and will be read, the soonest needed first; at most so many.

        Without those that a reader has open now: if their pages are gone they are not staged again (`PagesLost`).
        """
        found: list[tuple[float, int]] = []
        for job in self._records.values():
            if job.run.predicting:
                found += job.uses.staged(self._table, most)
        return [sample for _, sample in sorted(found)[:most] if sample not in self._table.readers]

    def set_linger(self) -> None:
        """Used pages may fill the window exactly while no job's reads are predicted."""
        predicted = any(job.run.predicting and not job.run.finished for job in self._records.values())
        self._window.set_linger(not predicted)

    def broken(self, run: JobRun, error: Exception) -> None:
        """A bug showed in computing for a job: give the job up."""
        job = self._record_of(run)
        if job is not None:
            self._give_up(job, error)

    def _give_up(self, job: JobRecord, error: Exception) -> None:
        """A bug showed while the job was followed: it is predicted no more."""
        self._over(job.uses.release())
        job.run.give_up()
        self._out.append(JobFailed(job.run, error))
        self.set_linger()

    # -- epochs

    def _ask_for_epochs(self, run: JobRun) -> None:
        for epoch in run.wanted_epochs():
            run.epochs.asked(epoch)
            self._out.append(LoadEpoch(run, epoch))

    def epoch_known(self, known: EpochKnown) -> None:
        """An epoch's order was computed: match the reads that waited for it, and forget epochs that are over."""
        run, job = known.job, self._record_of(known.job)
        if job is None:
            return
        try:
            before = dict(run.epochs.at_hand)
            for epoch in run.add_epoch(known.streams):
                self._over(job.uses.forget_epoch(before[epoch]))
            for seen in run.release_held(self._others(job)):
                self._came(job, seen)
            self._ask_for_epochs(run)
        except Exception as error:
            self._give_up(job, error)

    def epoch_unknown(self, run: JobRun, epoch: int) -> None:
        """An epoch's order could not be computed: match the reads that waited for it without it."""
        job = self._record_of(run)
        if job is None:
            return
        run.epochs.failed(epoch)
        self._ask_for_epochs(run)
        for seen in run.release_held(self._others(job)):
            self._came(job, seen)

    # -- reads

    def read(self, reads: Sequence[Read]) -> None:
        """Have the jobs match reads of samples that are in place, in their order."""
        if not self._records:
            self.rank_waits.read([read.sample for read in reads], None)
            self._window.retire(*self._strangers_ahead.read(reads))
            return
        at, end, together = 0, len(reads), are_together(reads)
        self._last_s = reads[-1].at_s if reads else self._last_s
        while at < end:
            count = self._follow(reads[at:] if at else reads)
            if not count:
                self._single_s = reads[at].at_s
                if together:
                    self._read_untold(reads[at], partial(self._told.before, reads, at))
                self.read_one(reads[at])
            at += count or 1
        if together:
            self._told.add(reads)

    def most_untold(self, files: int) -> int:
        """How many reads may be told of together for all that is known of who reads: see `Scheduler.most_untold`."""
        if not self._records:
            return 2 * files // PARTS_UNTOLD  # they are only counted: one in a hundred is missing
        lengths = (job.run.epochs.first_length for job in self._records.values())
        return min(lengths) // PARTS_UNTOLD if self._last_s > self._single_s else 0

    def _read_untold(self, read: Read, told: Callable[[], Collection[int]]) -> None:
        """Have the jobs match what the process of a read has opened before it and nobody has told."""
        for job in list(self._records.values()):
            if not job.run.member[read.sample] or not job.run.predicting:
                continue
            try:
                for untold in job.run.untold_before(read, told):
                    self._came(job, job.run.observe(*untold, self._others(job)))
            except Exception as error:
                self._give_up(job, error)

    def _follow(self, reads: Sequence[Read]) -> int:
        """Have a job match the first of these reads, as many as are its alone and simply go on as it predicts. Returns
        how many.
        """
        jobs = [job for job in self._records.values() if job.run.member[reads[0].sample]]
        if len(jobs) != 1 or not jobs[0].run.predicting:
            return 0
        job = jobs[0]
        others = [other.member for other in self._records.values() if other is not job]
        if others:
            reads = list(takewhile(lambda read: not any(other[read.sample] for other in others), reads))
        sizes, count, over = self._table.sizes, 0, list[int]()
        try:
            stretches, given = job.run.follow(reads)
            over += job.uses.given_up(given)
            for stretch in stretches:
                _, rank, epoch, _, samples, positions, times = stretch
                over += job.uses.passed(rank, positions, samples)
                reader = RankReader(job.number, rank, stretch.process)
                waits_s = self.rank_waits.read(samples, reader)
                job.times.read(stretch.process)
                of_samples = [sizes[sample] for sample in samples]
                job.loads.read(rank, stretch.process, epoch.base, positions, times, waits_s, of_samples)
                count += len(samples)
        except Exception as error:
            self._give_up(job, error)
        self._over(over)
        return count

    def read_one(self, read: Read, waits: bool = False) -> None:
        """Have the jobs that read the sample match a read of it; learn from it where none of them follows it.

        Args:
            waits: whether the sample is not in place, so that the reader waits for it.
        """
        followed, coming, matched = False, NOTHING_YET, NOT_MATCHED
        counted: list[tuple[int, int]] = []
        again = self._is_in_blocks(read.sample) or (self._opened_again and read.sample < self._table.blocks.first)
        again = again and self._opens_again(read.sample, read.process)
        for job in list(self._records.values()):
            run = job.run
            if not run.member[read.sample]:
                continue
            try:
                if again and run.matcher.knows(read.process) and not run.matcher.is_next(read.sample, read.process):
                    counted.append((job.number, job.epoch))
                    followed = True
                    continue
                others = self._others(job) if len(self._records) > 1 else ()
                seen = run.observe(read.sample, read.process, read.parent, read.at_s, others)
                self._came(job, seen)
                match = seen.match
                if waits and not seen.apart:  # what the source gives for it counts then
                    counted.append((job.number, run.epochs.epoch_of(match.position) if match else job.epoch))
                if match is not None:
                    job.times.read(read.process)
                    index = run.epochs.index_at(match.position)
                    base = index.base if index is not None else -1
                    matched = Matched(RankReader(job.number, match.rank_index, read.process), match.position, base)
                    if run.predicting and index is not None and self._is_in_blocks(read.sample):
                        line = job.uses.line_of(match.rank_index, match.position)
                        self._shards.opened(read.sample, job.number, index.epoch, line)
                followed = followed or (run.predicting and not seen.apart)
                coming = seen if seen.coming else coming
            except Exception as error:
                self._give_up(job, error)
        if waits:
            self._opening.waits(read.sample, read.process, matched._replace(counted=tuple(counted)))
        else:
            self._goes_on(read.sample, read.process, read.at_s, matched)
        if not followed:
            self._window.retire(*self._strangers_ahead.read((read,), coming.coming))

    def opened(self, opened: Opened) -> None:
        """Count what is known of a read only now that its reader, who waited, goes on."""
        matched = self._opening.over(opened.sample, opened.process)
        for number, epoch in matched.counted if opened.source_bytes else ():
            if number in self._records:
                self._records[number].run.bytes_read.count_pfs(epoch, opened.source_bytes)
        self._goes_on(opened.sample, opened.process, opened.at_s, matched)
        self._tell_left()

    def refused(self, sample: int, process: int) -> None:
        self._opening.over(sample, process)
        self._tell_left()

    def _goes_on(self, sample: int, process: int, at_s: float, matched: Matched) -> None:
        """A reader has the sample open."""
        reader = matched.reader
        if reader is None and process != NO_PID:
            self.rank_waits.read_by_unknown(sample, process)
            return
        waits_s = self.rank_waits.read((sample,), reader)
        if reader is None or reader.process == NO_PID or matched.base < 0:
            return
        job = self._records.get(reader.job)
        if job is not None:
            positions, size_bytes = (matched.position,), self._table.sizes[sample]
            job.loads.read(reader.rank, reader.process, matched.base, positions, (at_s,), waits_s, (size_bytes,))

    def _others(self, job: JobRecord) -> list[JobRun]:
        return [other.run for other in self._records.values() if other is not job]

    def _came(self, job: JobRecord, seen: Seen) -> None:
        """Act on what a job made of a read."""
        if seen.given:
            self._over(job.uses.given_up(seen.given))
        if seen.match is not None:
            self._over(job.uses.passed(seen.match.rank_index, (seen.match.position,)))
        if seen.another_leads:
            self._out.append(AnotherLeads(job.run))

    def who_needs(self, sample: int) -> tuple[int, int] | None:
        """The number of a job that will read the sample by its prediction, and the epoch that it reads; or None."""
        if self._table.blocks.first <= sample < self._table.first_row:
            shard = self._shards.by_file.get(self._table.blocks.file_of(sample))
            return (shard.job, shard.epoch) if shard is not None else None
        for job in self._records.values():
            if job.run.predicting and not job.run.finished and job.run.member[sample]:
                return job.number, job.epoch
        return None

    def source_gave(self, sample: int, size_bytes: int) -> None:
        """The source gave bytes of a sample that was opened before: they count for the epoch that is being read."""
        for job in self._records.values():
            if job.run.member[sample]:
                job.run.bytes_read.count_pfs(job.epoch, size_bytes)

    def _is_in_blocks(self, sample: int) -> bool:
        return sample < self._table.blocks.first and bool(self._table.blocks.of(sample))

    def _opens_again(self, sample: int, process: int) -> bool:
        """Whether a process has opened a file just now or a little before.

        An open of a large file, or of one whose readers open it again, says nothing of the order then, unless it is
        the very next in it.
        """
        lately = self._lately.setdefault(process, deque(maxlen=_OPENED_LATELY))
        self._lately.move_to_end(process)
        if len(self._lately) > _MOST_PROCESSES:
            self._lately.popitem(last=False)
        if again := sample in lately:
            lately.remove(sample)
        lately.append(sample)
        return again

    def readers(self) -> int:
        """How many processes read for the jobs that are predicted, as far as is known."""
        runs = [job.run for job in self._records.values() if job.run.predicting and not job.run.finished]
        return sum(len(run.ranks.progress) * max(1, run.matcher.shape.workers) for run in runs)

    def _over(self, samples: Iterable[int]) -> None:
        """Uses that were counted ahead are over: they came, or were given up."""
        over = self._table.fulfil(samples)
        self._window.retire(*over)
        if self._shards.by_file:
            self.blocks_over(self._shards.ended(over))

    def blocks_over(self, blocks: Sequence[int]) -> None:
        """Uses of blocks that were counted ahead are over."""
        self._window.retire(*self._table.fulfil(blocks))

    # -- judging

    def judge(self, now_s: float, waited_s: float) -> None:
        """After reads: judge all predictions, and report epochs that begin and end.

        Args:
            waited_s: how long all readers have waited since the mount.
        """
        for job in list(self._records.values()):
            job.times.note(job.epoch, job.run.observed_here, now_s, waited_s)
            if job.run.given_up:
                continue
            try:
                self._judge(job, now_s)
            except Exception as error:
                self._give_up(job, error)
        self.set_linger()

    def _judge(self, job: JobRecord, now_s: float) -> None:
        run, uses, predicted = job.run, job.uses, job.run.predicting
        self._out.extend(Warn(f"job {run.name}: {said}") for said in run.judge(now_s))
        if run.predicting != predicted:
            self._over(uses.release())
        for rank in run.ranks.newly_silent():
            self._over(uses.leave_rank(rank, run.ranks.progress[rank].frontier))
        self._out.extend(EpochBegan(run, epoch) for epoch in run.ranks.epochs_begun())
        job.left.extend(run.ranks.epochs_ended())
        self._tell_left()
        self._ask_for_epochs(run)

    def _tell_left(self) -> None:
        """Tell of epochs that all ranks have left, and of which nobody waits for a sample."""
        for job in self._records.values():
            if job.left:
                awaited = [epoch for epoch in job.left if self._opening.is_awaited(job.number, epoch)]
                self._out.extend(EpochLeft(job.run, epoch) for epoch in job.left if epoch not in awaited)
                job.left[:] = awaited

    # -- for the status

    def loads(self, now_s: float) -> dict[str, JobLoad]:
        """By job, what its ranks' loaders do with their time. Jobs of which no whole batch was read yet are missing."""
        sizes = self._table.sizes
        return {
            job.run.name: job.loads.load({rank: job.coming_bytes(rank, sizes) for rank in job.loads.ranks}, now_s)
            for job in self._records.values()
            if job.loads.ranks
        }


# -- reads whose readers still wait for the sample

# Samples that processes wait for: far more than a node has threads that read. The oldest are forgotten.
MOST_WAITING = 4096


class Matched(NamedTuple):
    """A read, as it was matched.

    Attributes:
        reader: who reads for a job, None for nobody. position: linear. base: where its epoch begins, -1 where the
            epoch is not at hand.
        counted: each job that the read is counted for, by its record's number, and the epoch.
    """

    reader: RankReader | None = None
    position: int = -1
    base: int = -1
    counted: tuple[tuple[int, int], ...] = ()


NOT_MATCHED = Matched()


class Opening:
    """Reads that were matched, and whose readers still wait for the sample.

    In: reads as they were matched when readers asked, then the readers who go on or are refused. Out: what is counted
    only then. A read is matched when the reader asks, because a process with several threads asks in the order of its
    stream, and gets what it asks for in any order. How long he waited, and what the source gave for it, is known when
    he goes on.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[int, int], deque[Matched]] = OrderedDict()  # by sample and process

    def waits(self, sample: int, process: int, matched: Matched) -> None:
        self._waiting.setdefault((sample, process), deque(maxlen=MOST_WAITING)).append(matched)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    def over(self, sample: int, process: int) -> Matched:
        """The process waits no more. Returns what its read was matched to."""
        waiting = self._waiting.get((sample, process))
        if waiting is None:
            return NOT_MATCHED
        matched = waiting.popleft()
        if not waiting:
            del self._waiting[sample, process]
        return matched

    def is_awaited(self, number: int, epoch: int) -> bool:
        """Whether somebody waits for a sample of that epoch of the job with that number."""
        return any((number, epoch) in matched.counted for waiting in self._waiting.values() for matched in waiting)
