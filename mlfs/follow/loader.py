"""What is known of a job's loader, and where it is known from, for the status.

In: a running job. Out: plain numbers and words. Called by the mount's status. A number is registered by the user,
inferred together with the seed, learned from the opens, or not known.
"""

from __future__ import annotations

from mlfs.follow.job import JobRun

REGISTERED, INFERRED, LEARNED, UNKNOWN = "registered", "inferred", "learned", "unknown"

Json = dict[str, object]


def loader_of(job: JobRun) -> Json:
    """How the processes of a rank share its stream.

    Each of batch_size, num_workers and prefetch_depth has a `value` (None while it is not known), and `from` says where
    it is known from. The depth has its bounds as well: `at_least`, and `at_most` once the workers were seen to wait.
    `readers` are the processes that take batches in turns, None where whoever is free takes the next one; `early` says
    how many places before its turn a sample may be opened.
    """
    shape, depth = job.loader.known()

    def known(learned: int | None, field: str) -> Json:
        if learned is not None:
            return {"value": learned, "from": LEARNED}
        value = getattr(job.spec, field) if field in job.spec.model_fields_set else None
        origin = INFERRED if job.inferred else REGISTERED
        return {"value": value, "from": UNKNOWN if value is None else origin}

    shared, per_sample = shape.workers > 1, job.streams.files_per_sample
    batch = shape.batch // per_sample if shape.workers != 1 and shape.batch % per_sample == 0 else None
    bounds: Json = {"at_least": depth.at_least, "at_most": depth.at_most}
    return {
        "readers": shape.workers or None,
        "batch_size": known(batch, "batch_size"),
        "num_workers": known(shape.workers if shared else None, "num_workers"),
        "prefetch_depth": known(depth.exact, "prefetch_factor") | bounds,
        "early": job.matcher.shape.slack - 1,
    }
