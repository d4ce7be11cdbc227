"""What a job's loaders do with their time, as JSON and in one sentence.

Pure. In: frozen figures (mlfs.plan.loader_load). Out: plain values, words. Called by mountd.status and mountd.headline.
"""

from __future__ import annotations

from mlfs.follow.job_statistics import JobStatistics
from mlfs.plan.loader_load import JobLoad, Limit
from mlfs.units import format_duration

Json = dict[str, object]

# Loaders that take less for a batch are those of a script that only reads: there is nothing to win for training.
LEAST_WORK_S = 0.01

PREPROCESSING = (
    "reads do not wait, but the loader does: {of} works all the time, {work} for a batch; mlfs advise workers"
    " --from-mount {mountpoint} says how many workers would help"
)


def load_status(job: JobStatistics, load: JobLoad | None) -> Json:
    """What the job's loaders do with their time, by rank, and how unevenly; empty before a batch was read."""
    if load is None:
        return {}
    return {
        "imbalance": round(load.imbalance.apart, 6),
        "imbalanced_steps": round(load.imbalance.steps, 6),
        "steps": load.steps,
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
