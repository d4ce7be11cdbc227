"""A matcher that expects a job's reads from the job's start, with what the registration tells of the loader.

Pure. In: a specification and its streams, the epochs at hand. Out: a matcher that has seen nothing. Used by
`mlfs.follow.job`, for the script's first run and for each one after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import LearnedLoader, Shape
from mlfs.follow.timeline import Timeline
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams


def matcher_at_start(
    spec: JobSpec,
    streams: JobStreams,
    timeline: Timeline,
    epochs: Mapping[int, EpochIndex],
    like: LearnedLoader | None = None,
) -> StreamMatcher:
    """See the module.

    Args:
        epochs: those that a read may belong to. Their owner adds and removes.
        like: what was learned of the loader from other reads.
    """
    workers, batch = spec.num_workers, streams.batch_files
    # torch's workers take whole batches; one sample each in turn would be the sign of another world size.
    torch = spec.sampler.startswith("torch")
    return StreamMatcher(
        len(spec.ranks),
        batch,
        timeline.start,
        streams.length(spec.start_epoch),
        epochs,
        shape=Shape(batch, workers) if workers and workers > 1 else None,
        single=batch == 1 or not torch,
        one_rank=torch,
        like=like,
    )
