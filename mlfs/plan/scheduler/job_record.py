"""A job's record: all that the scheduler knows of one job.

Pure. Each part of the scheduler has a slot in the record for its own knowledge of a job, and keeps nothing of the job
anywhere else. So a job that ends is forgotten by dropping its record, which `mlfs.plan.scheduler.following` does. A
fetch that is under way for a job, a reader who waits, a file that is open: they name the job by the record's number. If
one of them comes to its end after the job did, there is no record of that number any more, and nothing is counted.
"""

from __future__ import annotations

from mlfs.follow.job import JobRun
from mlfs.plan.scheduler.look_ahead import Uses
from mlfs.plan.scheduler.rank_loads import RankLoads
from mlfs.plan.scheduler.reading_times import ReadingTimes


class JobRecord:
    """One job: its run, and a slot for each part of the scheduler.

    Args:
        number: one that no job has had.
        before: the record of the job of the same name in whose place this one comes.

    Attributes:
        number: a job that goes on keeps the number that it had.
        run: tells which reads are the job's, and how far its ranks are.
        member: by sample, whether the job reads it. A run that was given up says so no more.
        uses: the uses that are counted ahead.
        loads: what the ranks' loaders do with their time. times: how long the job reads.
        waited_s: by index of the rank, how long its readers have waited. Ranks that never waited are missing.
        left: epochs that all ranks have left and of which somebody waits for a sample.
    """

    __slots__ = ("left", "loads", "member", "number", "run", "times", "uses", "waited_s")

    def __init__(self, number: int, run: JobRun, before: JobRecord | None = None) -> None:
        self.number, self.times, self.waited_s = number, ReadingTimes(), dict[int, float]()
        if before is not None and run.observed:  # the job goes on: it has another run, or its script was started again
            self.number, self.times, self.waited_s = before.number, before.times, before.waited_s
        self.run = run
        self.member = run.member
        self.uses = Uses(run, self.number)
        self.loads: RankLoads = RankLoads(run, before.loads if before is not None else None)
        self.left: list[int] = []

    @property
    def epoch(self) -> int:
        """The epoch that the fastest rank reads."""
        return self.run.epochs.epoch_of(max(rank.frontier for rank in self.run.ranks.progress))

    def waited(self, rank: int, seconds: float) -> None:
        self.waited_s[rank] = self.waited_s.get(rank, 0.0) + seconds

    def coming_bytes(self, rank: int, sizes: memoryview) -> int:
        """Bytes of the next whole batch of a local rank; 0 where that is not known.

        An epoch's last batch may be smaller than the others, and nobody knows what follows it.
        """
        run, position = self.run, self.run.ranks.progress[rank].frontier
        index = run.epochs.index_at(position)
        if index is None:
            return 0
        offset = position - index.base
        coming = index.ids[rank][offset : offset + run.loader.batch_files].tolist()
        if len(coming) < run.loader.batch_files:
            return 0
        return sum(sizes[sample] for sample in coming if sample >= 0)
