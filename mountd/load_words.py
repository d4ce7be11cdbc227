"""What a job's loaders do with their time, as JSON and in one sentence.

Pure. In: frozen figures (mlfs.plan.loader_load, mountd.expected_loads). Out: plain values, words. Called by
mountd.status and mountd.headline.
"""

from __future__ import annotations

from mlfs.follow.job_statistics import JobStatistics
from mlfs.plan.loader_load import JobLoad, Limit, RankLoad
from mlfs.units import format_duration
from mountd.expected_loads import Expected

Json = dict[str, object]

# Loaders that take less for a batch are those of a script that only reads: there is nothing to win for training.
LEAST_WORK_S = 0.01

PREPROCESSING = (
    "reads do not wait, but the loader does: {of} works all the time, {work} for a batch; mlfs advise workers"
    " --from-mount {mountpoint} says how many workers would help"
)

# So much larger a share of uneven steps than is expected is worth a sentence: over some tens of steps chance makes a
# difference of a tenth.
FAR_SHARE = 0.2
# Ranks whose loading times differ less are alike: what is late then is another one from step to step.
SLOWER = 1.25

UNEVEN = "more steps are uneven than the sizes of files and the places where they lie explain: {why}"
WAITS = "reads of {slow} wait {long} for a batch, those of {fast} {short}"
SLOW_WORKERS = (
    "a worker of {slow} works {long} for a batch, one of {fast} {short}; its preprocessing may have more to do, or"
    " something else takes its cores"
)
FEWER_WORKERS = "{slow} has fewer workers than {fast}: {few} and {more}"
SCATTER = (
    "no rank is slower than others for long; the time of a batch changes with something else, such as what augmentation"
    " does to it, or other processes on the cores"
)


def load_status(job: JobStatistics, load: JobLoad | None, expected: Expected | None) -> Json:
    """What the job's loaders do with their time, by rank, and how unevenly; empty before a batch was read."""
    if load is None:
        return {}
    return {
        "imbalance": round(load.imbalance.apart, 6),
        "imbalanced_steps": round(load.imbalance.steps, 6),
        "steps": load.steps,
        "simulated": expected_status(expected),
        "uneven_because": uneven_words(job, load, expected),
        "straggler": job.ranks[load.straggler].rank if load.straggler >= 0 else None,
        "pace": [[workers, seconds] for workers, seconds in sorted(load.pace.items())],
        "ranks": {
            str(job.ranks[of.rank].rank): {
                "limit": str(of.limit),
                "workers": of.workers,
                "batches": of.batches,
                "batch_bytes": round(of.batch_bytes),
                "waiting_s": round(of.waiting_s, 6),
                "preprocess_s": round(of.preprocess_s, 6),
                "handing_s": round(of.handing_s, 6),
                "idle_s": round(of.idle_s, 6),
                "step_s": round(of.step_s, 6),
                "next_s": round(of.next_s, 6),
            }
            for of in load.ranks
        },
    }


def expected_status(expected: Expected | None) -> Json | None:
    """What the simulator expects of the job; None where that cannot be told."""
    if expected is None:
        return None
    return {
        "imbalance": round(expected.imbalance.apart, 6),
        "imbalanced_steps": round(expected.imbalance.steps, 6),
        "epoch": expected.epoch,
        "steps": expected.steps,
    }


def uneven_words(job: JobStatistics, load: JobLoad, expected: Expected | None) -> str:
    """Where many more steps are uneven than is expected: what the simulator does not know of, and may be why."""
    if expected is None or load.imbalance.steps - expected.imbalance.steps < FAR_SHARE:
        return ""
    slow, fast = max(load.ranks, key=_load_s), min(load.ranks, key=_load_s)
    if slow.load_s < LEAST_WORK_S:
        return ""
    if slow.load_s < SLOWER * fast.load_s:
        return UNEVEN.format(why=SCATTER)
    return UNEVEN.format(why=_why_slower(job, slow, fast))


def _why_slower(job: JobStatistics, slow: RankLoad, fast: RankLoad) -> str:
    """Why one rank loads for longer than another, in words: what makes most of the difference."""
    names = {"slow": f"rank {job.ranks[slow.rank].rank}", "fast": f"rank {job.ranks[fast.rank].rank}"}
    if slow.load_s - slow.own_s - (fast.load_s - fast.own_s) > slow.own_s - fast.own_s:
        return WAITS.format(**names, long=format_duration(slow.waiting_s), short=format_duration(fast.waiting_s))
    long_s, short_s = slow.own_s * slow.workers, fast.own_s * fast.workers
    if slow.workers < fast.workers and long_s < SLOWER * short_s:
        return FEWER_WORKERS.format(**names, few=slow.workers, more=fast.workers)
    return SLOW_WORKERS.format(**names, long=format_duration(long_s), short=format_duration(short_s))


def _load_s(rank: RankLoad) -> float:
    return rank.load_s


def preprocessing_words(load: JobLoad | None, job: JobStatistics, mountpoint: str) -> str:
    """Where preprocessing is what the steps of some rank wait for: that it is, and what to do; else nothing.

    Of one process that nobody called a worker nothing is said: it may be the training loop that computes.
    """
    is_worker = bool(job.loader.num_workers.value)
    ranks = load.ranks if load is not None else ()
    busy = [of for of in ranks if of.limit is Limit.PREPROCESSING and (is_worker or of.workers > 1)]
    if not busy:
        return ""
    slowest = max(busy, key=lambda of: of.next_s)
    if slowest.work_s < LEAST_WORK_S:
        return ""
    processes = f"each of the {slowest.workers} workers" if slowest.workers > 1 else "the one process"
    whose = f"of rank {job.ranks[slowest.rank].rank}" if len(job.ranks) > 1 else "that loads"
    return PREPROCESSING.format(of=f"{processes} {whose}", work=format_duration(slowest.work_s), mountpoint=mountpoint)
