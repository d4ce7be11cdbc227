"""Frozen figures of a job while it runs, for the status and the metrics of a mount.

Pure; made by `mlfs.follow.job`. Nothing here changes when the job goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mlfs.follow.agreement import Share, SharesByRank
from mlfs.follow.loader import LoaderStatistics


class JobState(StrEnum):
    """The state of a job, as `status` says it."""

    WAITING = "waiting for the first read"
    RUNNING = "running"
    DRIFTING = "prediction failing"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class FindingsStatistics:
    """Findings about the job; see `mlfs.follow.findings.Findings`.

    Attributes:
        order_unknown: opens by epoch that came before their order was known; `JobStatistics.share` leaves them out.
        flags: all flags of `mlfs register` that give the job as it was found to be.
    """

    known: tuple[str, ...] = field(metadata={"key": "found_out"})
    way_out: str
    counted_anew: int
    flags: str = field(default="", metadata={"key": None})
    order_unknown: Mapping[int, int] = field(default_factory=dict, metadata={"key": None})


@dataclass(frozen=True, slots=True)
class Stranger:
    """A family of processes that read a job's samples, and not for the job.

    Attributes:
        process: the first one. parent: of all of them, 0 where it is not known.
        name: of the program, "" where it ended before anybody asked.
        processes: how many there were. reads: of the job's samples. plain: in the order of the directories. again: in
            that of the job, while others read it: the same script, started twice.
    """

    process: int
    parent: int
    name: str
    processes: int
    reads: int
    plain: bool
    again: bool = False


@dataclass(frozen=True, slots=True)
class ReadersStatistics:
    """The readers of a job's samples; see `mlfs.follow.families`.

    Attributes:
        own: the processes that have proved to read for the job.
        strangers: those that were found, the one that has read most recently last.
    """

    own: tuple[int, ...] = ()
    strangers: tuple[Stranger, ...] = ()


@dataclass(frozen=True, slots=True)
class RankStatistics:
    """How far one local rank is.

    Attributes:
        rank: its number in the job.
        epoch: the epoch that it reads. position: how many samples of this epoch it has come past. length: of them all.
        reads_here: whether it reads through this mount.
        samples_per_s: how many it has read a second lately; 0.0 while that is not known.
    """

    rank: int
    epoch: int
    position: int
    length: int
    reads_here: bool
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """A job.

    Attributes:
        inferred: nobody registered the job, the reads told it. given_up: following it failed.
        share: of all observed opens, those that were predicted. recent: the same of the last opens.
        shares: the same by epoch, ascending, and by rank (`mlfs.follow.agreement.NO_RANK` among them).
        late_opens: by epoch, those among them that came before the job was in force.
        epochs: how many the job has. epoch: the one that the fastest rank reads.
        batch_files: files of a rank's batch, as far as reads have told.
        files_per_sample: files that one sample of the script consists of.
        stream_bytes: what the local ranks read in an epoch; 0 before an order is known. deviation_bytes: how far the
            sizes of their samples differ, as a standard deviation.
        pfs_bytes_by_epoch: what came from the PFS for each epoch, ascending.
        specification: the registration as it was understood, as JSON has it, and what is known of an order that mlfs
            serves (`JobStreams.served_figures`).
        readers: which processes read for it, and which are strangers to it.
    """

    name: str
    inferred: bool
    state: JobState
    given_up: bool
    share: Share
    recent: Share
    shares: Mapping[int, SharesByRank]
    loader: LoaderStatistics
    findings: FindingsStatistics
    epochs: int
    epoch: int
    ranks: tuple[RankStatistics, ...]
    batch_files: int
    files_per_sample: int
    stream_bytes: int
    pfs_bytes_by_epoch: Mapping[int, int]
    specification: Mapping[str, object]
    readers: ReadersStatistics
    late_opens: Mapping[int, int] = field(default_factory=dict)
    deviation_bytes: float = 0.0
