"""Frozen figures of a job while it runs, for the status and the metrics of a mount.

Pure; made by `mlfs.follow.job`. Nothing here changes when the job goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mlfs.follow.agreement import Share, SharesByRank
from mlfs.follow.depth import Depth
from mlfs.follow.shape import Shape
from mlfs.job import JobSpec

# -- what is known of the loader, and where it is known from

REGISTERED, INFERRED, LEARNED, UNKNOWN = "registered", "inferred", "learned", "unknown"


@dataclass(frozen=True, slots=True)
class Known:
    """A number, None while it is not known, and where it is known from."""

    value: int | None
    origin: str = field(metadata={"key": "from"})


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """How the processes of a rank share its stream.

    Attributes:
        readers: the processes that take batches in turns, None where whoever is free takes the next one.
        depth_at_least, depth_at_most: bounds of the prefetch depth; the second is None until workers were seen to wait.
        early: how many places before its turn a sample may be opened.
    """

    readers: int | None
    batch_size: Known
    num_workers: Known
    prefetch_depth: Known
    depth_at_least: int = field(metadata={"key": None})
    depth_at_most: int | None = field(metadata={"key": None})
    early: int


def loader_of(
    spec: JobSpec,
    inferred: bool,
    files_per_sample: int,
    shape: Shape,
    depth: Depth,
    slack: int,
    shape_is_learned: bool,
) -> LoaderStatistics:
    """The facts of a job's loader, each with where it is known from.

    Args:
        inferred: whether nobody registered the job.
        files_per_sample: files that one sample of the script consists of.
        shape, depth: as the reads tell them; the shape's batch is 0 while it is not known.
        slack: the shape's slack as the matcher has it.
        shape_is_learned: whether reads told the shape; else it is what was registered, or a default.
    """

    def known(seen: int | None, field: str) -> Known:
        value = getattr(spec, field) if field in spec.model_fields_set else None
        if seen is not None and seen != value:
            return Known(seen, LEARNED)
        return Known(value, UNKNOWN if value is None else INFERRED if inferred else REGISTERED)

    batch = workers = None
    if shape_is_learned:
        batch = shape.batch // files_per_sample if shape.workers != 1 and shape.batch % files_per_sample == 0 else None
        workers = shape.workers if shape.workers > 1 else None
    return LoaderStatistics(
        readers=shape.workers or None,
        batch_size=known(batch, "batch_size"),
        num_workers=known(workers, "num_workers"),
        prefetch_depth=known(depth.exact, "prefetch_factor"),
        depth_at_least=depth.at_least,
        depth_at_most=depth.at_most,
        early=slack - 1,
    )


# -- the job, its readers and its ranks


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
        proved: the processes that have proved to read for the job.
        strangers: those that were found, the one that has read most recently last.
    """

    proved: tuple[int, ...] = ()
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


# -- strangers to all jobs of a mount, and a sentence for each


def strangers_to_all(jobs: Iterable[JobStatistics]) -> list[Stranger]:
    """Those that no job follows. A stranger to several jobs is told of once, as the one who saw most of him."""
    followed = [job for job in jobs if not job.given_up]
    proved = {process for job in followed for process in job.readers.proved}
    found: dict[int, Stranger] = {}
    for job in followed:
        for stranger in job.readers.strangers:
            before = found.get(stranger.process)
            if stranger.process not in proved and (before is None or stranger.reads > before.reads):
                found[stranger.process] = stranger
    return list(found.values())


def in_words(stranger: Stranger) -> str:
    """The reader, how much he reads and in which order: "cp (pid 123) reads 1,200 files in directory order"."""
    order = "in directory order" if stranger.plain else "in no order that mlfs knows"
    if stranger.again:
        order = "in the job's order, as the same script would that was started twice: only the first run is followed"
    files = "1 file" if stranger.reads == 1 else f"{stranger.reads:,} files"
    if not stranger.parent:
        return f"processes that ended at once read {files} {order}"
    who = f"{stranger.name or 'a process'} (pid {stranger.process})"
    if stranger.processes == 1:
        return f"{who} reads {files} {order}"
    return f"{who} and {stranger.processes - 1:,} more of its kin read {files} {order}"
