"""The sentence that the status of a mount begins with: whether training waits for data, because of what, what to do.

Pure. In: frozen figures (mountd.statistics). Out: one sentence. Called by mountd.status.

How much training waits is told from its readers: the share of its time that a reader waits, on average. Workers read
ahead of the training loop, so this is the most that training can have lost.

The bytes that the source would have to give follow from the same share. It gave so many bytes in an epoch's time;
without the waiting the epoch would have taken less time by that share, for the same bytes. The way to end the waiting
follows from that: in the time that an epoch takes without waiting the source can give so many bytes, and the others
have to be kept on this node (docs/model.md: the slowest of the resources that work side by side rules).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mlfs.engine.statistics import EngineStatistics
from mlfs.explain.statistics import InferenceState
from mlfs.follow.job_statistics import JobState, JobStatistics
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.loader_workers import Advice, Loader, advise, surely_loads
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.rank_load import NOTABLE_WORK_S, RankLoad, StepLimit
from mlfs.plan.scheduler.reading_times import EpochTime, ReadingTime
from mlfs.units import format_duration, format_size
from mountd.messages import ahead_by_rule, ahead_without_prediction, all_opens, gone
from mountd.statistics import MountStatistics

# Readers always wait a little: for the first samples of all, and when an epoch begins. Less than that is no reason to
# do anything.
LITTLE_SHARE = 0.02
# An epoch tells of itself after so long. Before that it is the epoch before that tells, if there was one.
FEWEST_S = 2.0
# With fewer reads that came as predicted, those that did not are the likely reason to wait.
GOOD_AGREEMENT = 0.9
# With more staged pages than that taken back before they were read, this is the likely reason.
MANY_TAKEN_BACK = 0.05
# A place that gives at least this share of its best known bandwidth is taken to be at its limit.
AT_LIMIT = 0.5
# A place that gives less than this share of an epoch's bytes is not what readers wait for.
NOTABLE = 0.02
# A staging window is full when no sample of usual size fits into what is left of it.
FULL_WINDOW = 0.9

NOTHING_READ = "nothing was read yet, and no job is registered: mlfs register tells mlfs what training will read"
NO_JOB = "readers waited {waited} in all: no job is registered, so {ahead}; mlfs register tells what training will read"
SEARCHING = (
    "readers waited {waited} in all: {ahead} while mlfs looks for the order of the reads; mlfs"
    " register tells it at once"
)


def headline(now: MountStatistics) -> str:
    """The sentence with which the status begins."""
    engine = now.engine
    if said := gone(now):
        return said
    if now.strict_order and (found := now.audit.findings):
        others = f", and {len(found) - 1} more" if len(found) > 1 else ""
        return f"the order of reads is not as it should be: {found[0].sentence}{others}"
    if not engine.jobs:
        return _without_job(now)
    reading, cases = engine.scheduler.reading, now.explainer.cases
    # If another job explains the reads of one that was registered wrongly, training is that other job.
    explained = {name for name, case in cases.items() if case.instead is not None}
    jobs = [job for job in engine.jobs if job.name not in explained] or engine.jobs
    times = [(job, reading.get(job.name, ReadingTime())) for job in jobs]
    job, time = max(times, key=lambda one: _urgency(*one))
    said = _of_job(now, job, time)
    return f"job {job.name}: {said}" if len(jobs) > 1 else said


def _without_job(now: MountStatistics) -> str:
    if not all_opens(now.engine):
        return NOTHING_READ
    searching = now.explainer.inference.state is InferenceState.SEARCHING
    waited = _seconds(now.engine.counters.all.stalls.total_s)
    if searching:
        return SEARCHING.format(waited=waited, ahead=ahead_by_rule(now.engine))
    return NO_JOB.format(waited=waited, ahead=ahead_without_prediction(now.engine, now.explainer))


def _urgency(job: JobStatistics, time: ReadingTime) -> tuple[bool, bool, float]:
    """The job that the sentence is about: one that cannot be followed, else one that reads, else any."""
    epoch = _telling(time)
    lost = job.given_up or job.state is JobState.DRIFTING
    return lost, job.state is JobState.RUNNING, epoch.waited_share if epoch is not None else 0.0


def _telling(time: ReadingTime) -> EpochTime | None:
    """The epoch that tells how it goes: the last one that was read for long enough."""
    return next((epoch for epoch in reversed(time.epochs) if epoch.reading_s >= FEWEST_S), None) or (
        time.epochs[-1] if time.epochs else None
    )


def _of_job(now: MountStatistics, job: JobStatistics, time: ReadingTime) -> str:
    """The sentence about one job."""
    engine = now.engine
    if job.given_up:
        return "mlfs failed to follow the job, so nothing is fetched ahead: register it again (the log says why)"
    if job.state is JobState.DRIFTING:
        ahead = ahead_without_prediction(engine, now.explainer, job.name)
        return (
            f"{ahead}, because {_percent(1 - job.recent.share)} of the last"
            f" {job.recent.opens} reads were not as registered: register what the script does"
        )
    epoch = _telling(time)
    if epoch is None:
        ready = sum(ahead.samples for ahead in engine.ahead[job.name])
        # A job that runs was found from reads that are over, or another server has just taken over.
        begun = job.state is not JobState.WAITING
        none_yet = "no read has come since the order is known" if begun else "training has not begun to read"
        return f"{none_yet}; {ready:,} samples are ready"
    since_start = EpochTime(epoch.epoch, time.reading_s, time.stalled_s, max(one.readers for one in time.epochs), 0)
    whole = since_start.waited_share
    if job.state is JobState.FINISHED:
        return f"training has read everything, and waited {_percent(whole)} of the time"
    share = epoch.waited_share
    if share < LITTLE_SHARE:
        load = engine.loads.get(job.name)
        if said := preprocessing_words(load, job, now.about.mountpoint, now.process.processors):
            return said
        if whole < LITTLE_SHARE:
            return f"training waited {_percent(whole)} of the time; nothing to do"
        return f"epoch {epoch.epoch} waits {_percent(share)}, and all epochs so far {_percent(whole)}; nothing to do"
    verb = "waits" if epoch is time.epochs[-1] else "waited"
    return f"epoch {epoch.epoch} {verb} {_percent(share)}: {_why(engine, job, epoch)}"


def _why(engine: EngineStatistics, job: JobStatistics, epoch: EpochTime) -> str:
    """Because of what readers wait in an epoch, and what would end it: the first reason that is borne out."""
    needs = _Needs.of(job, epoch)
    return (
        _source_hangs(engine, epoch)
        or _taken_back(engine)
        or _unpredicted(job)
        or _passed_over(engine)
        or _disk_at_limit(engine, needs)
        or _source_at_limit(engine, job, epoch, needs)
        or _window_full(engine)
        or "neither the source nor a disk is at its limit; mlfs status shows how far ahead samples are ready"
    )


class _Needs(NamedTuple):
    """The needs of an epoch without waiting.

    Attributes:
        read_share: the share of the epoch's samples that was read so far.
        compute_s: the whole epoch's time without waiting.
    """

    read_share: float
    compute_s: float

    @classmethod
    def of(cls, job: JobStatistics, epoch: EpochTime) -> _Needs:
        samples = sum(rank.length for rank in job.ranks if rank.reads_here)
        read_share = min(1.0, epoch.samples / samples) if samples else 1.0
        return cls(read_share, epoch.reading_s * (1 - epoch.waited_share) / max(read_share, 1e-9))


def _source_hangs(engine: EngineStatistics, epoch: EpochTime) -> str:
    times, worst_s = engine.counters.errors.get("source_timeout", 0), engine.counters.epoch.stalls.worst_s
    if not times or worst_s < epoch.stalled_s / 4:
        return ""
    return f"the source did not answer in time, {times} times, and a reader waited {_seconds(worst_s)}; look after it"


def _taken_back(engine: EngineStatistics) -> str:
    times = engine.counters.errors.get("pages_taken_back", 0)
    opens = all_opens(engine)
    if not times or times < MANY_TAKEN_BACK * opens:
        return ""
    return (
        f"the machine took the pages of {times:,} of {opens:,} reads back before they were read; it needs more memory,"
        " or a smaller --staging, or no daemon that reclaims page cache"
    )


def _unpredicted(job: JobStatistics) -> str:
    if not job.recent.opens or job.recent.share >= GOOD_AGREEMENT:
        return ""
    way_out = f"mlfs register with {job.findings.way_out}" if job.findings.way_out else "register what the script does"
    return f"only {_percent(job.recent.share)} of the last {job.recent.opens} reads were as predicted; {way_out}"


def _passed_over(engine: EngineStatistics) -> str:
    slow = [place.name for number, place in enumerate(engine.places, 1) if engine.scheduler.routing.passed_over[number]]
    return f"{', '.join(slow)} is slower than the source and is not used; a faster disk would help" if slow else ""


def _source_at_limit(engine: EngineStatistics, job: JobStatistics, epoch: EpochTime, needs: _Needs) -> str:
    """The bytes that the source gives and would have to give, and how much more must be kept for that not to matter."""
    brought = job.pfs_bytes_by_epoch.get(epoch.epoch, 0)
    if not brought:
        return ""
    if brought < NOTABLE * job.stream_bytes * needs.read_share or epoch.waited_share >= 1 or not epoch.reading_s:
        return ""
    gives = brought / epoch.reading_s
    speeds = engine.speeds.places.get(PlaceKind.SOURCE.value)
    best = max((rate for _, rate in speeds.refined), default=0.0) if speeds is not None else 0.0
    if gives < AT_LIMIT * best:
        return (
            f"the source gives {_rate(gives)} of the {_rate(best)} that it can give, and readers wait for each file;"
            " more --pfs-threads may help"
        )
    needed = gives / (1 - epoch.waited_share)
    said = f"the source gives {_rate(gives)} of the {_rate(needed)} needed"
    is_first = epoch.epoch == min(job.pfs_bytes_by_epoch)
    later = engine.bound_bytes(job.stream_bytes)  # what the source has to give in an epoch after the first
    missing = later if is_first else min(later, round(brought / max(needs.read_share, 1e-9)))
    more = round(missing - gives * needs.compute_s)
    if more > 0:
        flag = "--lmdb" if any(place.kind is PlaceKind.LMDB for place in engine.places) else "--ssd"
        when = " from the next epoch on" if is_first else ""
        return f"{said}; {format_size(more)} more of {flag} would end it{when}"
    share = "nothing" if not later else f"only {format_size(later)} of {format_size(job.stream_bytes)}"
    return f"{said}; nothing to do: in the next epoch {share} comes from there"


def _disk_at_limit(engine: EngineStatistics, needs: _Needs) -> str:
    """The disk that rules how long an epoch takes, if what readers need is more than it can give."""
    loading = engine.speeds.loading
    if loading is None or loading.rules not in loading.class_bytes or loading.seconds <= needs.compute_s:
        return ""
    read = loading.class_bytes[loading.rules]
    gives, needed = read / loading.seconds, read / needs.compute_s if needs.compute_s else 0.0
    more = format_size(round(read - gives * needs.compute_s))
    return f"{loading.rules} gives {_rate(gives)} of the {_rate(needed)} needed; {more} more of --ram would end it"


def _window_full(engine: EngineStatistics) -> str:
    used, capacity = engine.scheduler.window_bytes, engine.scheduler.window_capacity_bytes
    if used < FULL_WINDOW * capacity:
        return ""
    return f"the staging window of {format_size(capacity)} is full; a larger --staging would help"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"


def _rate(bytes_per_s: float) -> str:
    return f"{format_size(round(bytes_per_s))}/s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"


# -- how many workers a job's loaders should have, where preprocessing is what training waits for
#
# In: frozen figures (mlfs.plan.loader_load). Out: numbers, and a sentence.

PREPROCESSING = "reads do not wait, but the loader does: {who} works all the time, {work} for a batch"
BY_ITSELF = "reads do not wait, but training does: {who} loads by itself, {work} for a batch"
SAYS_MORE = "{what}; {more}; mlfs advise workers --from-mount {mountpoint} says more"
# The gain ends where training itself is the limit, also while a training step's time is not known.
GAINS = "num_workers {workers} would make steps {up_to}{gain:.1f} times as fast"
GAINS_NOTHING = "more workers would gain nothing on {processors}"


class Advised(NamedTuple):
    """The advice for a job.

    Attributes:
        loaders: of its ranks, `rank` being the rank's number. busy: the rank of those that preprocess all the time that
            is slowest.
    """

    loaders: tuple[Loader, ...]
    advice: Advice
    busy: RankLoad


def advised(job: JobStatistics, load: JobLoad | None, processors: int) -> Advised | None:
    """How many workers the ranks should have; None where preprocessing is not what some rank's steps wait for.

    Nothing is said of one process that nobody called a worker (`surely_loads`).
    """
    workers = job.loader.num_workers.value
    ranks = load.ranks if load is not None else ()
    busy = [of for of in ranks if of.limit is StepLimit.PREPROCESSING and surely_loads(of.workers, workers)]
    slowest = max(busy, key=lambda of: of.next_s, default=None)
    if load is None or slowest is None or slowest.work_s < NOTABLE_WORK_S:
        return None
    loaders = tuple(
        replace(Loader.of(of), rank=job.ranks[of.rank].rank) for of in ranks if of.limit is not StepLimit.UNKNOWN
    )
    return Advised(loaders, advise(loaders, processors, load.pace), slowest)


def preprocessing_words(load: JobLoad | None, job: JobStatistics, mountpoint: str, processors: int) -> str:
    """A sentence where preprocessing is what the steps of some rank wait for: that it is, and what to do; else
    nothing."""
    of = advised(job, load, processors)
    if of is None or load is None or not load.reads_now:
        return ""
    by_itself, several = of.busy.reader_trains, len(job.ranks) > 1
    if by_itself:
        who = "the training process"
    else:
        who = f"each of the {of.busy.workers} workers" if of.busy.workers > 1 else "the one process"
    if several:
        who += f" of rank {job.ranks[of.busy.rank].rank}"
    elif not by_itself and of.busy.workers == 1:
        who += " that loads"
    what = (BY_ITSELF if by_itself else PREPROCESSING).format(who=who, work=format_duration(of.busy.work_s))
    return SAYS_MORE.format(what=what, more=_gain_words(of, processors), mountpoint=mountpoint)


def _gain_words(of: Advised, processors: int) -> str:
    """How many workers which rank should have, and what that gains."""
    if not of.advice.is_worth_it:
        return GAINS_NOTHING.format(processors=f"{processors} processor{'s' if processors > 1 else ''}")
    by_rank = list(zip(of.loaders, of.advice.workers, strict=True))
    if len({(count, loader.workers) for loader, count in by_rank}) == 1:
        loader, count = by_rank[0]
        workers = f"{count} (now {loader.workers})" if loader.workers else f"{count} beside it"
    else:
        each = [f"{count} for rank {loader.rank} (now {loader.workers})" for loader, count in by_rank]
        workers = f"{', '.join(each[:-1])} and {each[-1]}"
    up_to = "up to " if of.advice.train_s is None else ""
    return GAINS.format(workers=workers, up_to=up_to, gain=of.advice.gain)
