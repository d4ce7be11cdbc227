"""Makes the order of a job, by the name of its sampler.

In: a job, the length of its data set. Out: an `Order`. Called by `mlfs.orders.streams`, `mlfs.lab.sim.order` and
`mlfs.explain.recipes`. Which samplers there are, the built-in ones and those that other packages add, is
`mlfs.job.names`; whoever makes orders finds those names here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfs.errors import JobError
from mlfs.job.names import built_in, readers_of, sampler_factories, sampler_names

if TYPE_CHECKING:
    from mlfs.job import JobSpec
    from mlfs.orders.order import Order, Resolve

__all__ = ["build_order", "built_in", "readers_of", "sampler_names"]


def build_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Order:
    """Make the order of a job.

    Args:
        spec: the job; its `sampler` says which order.
        n_samples: how long the data set is; dataset indices are 0 .. n_samples - 1.
        resolve: from a path to a dataset index, for samplers that read paths.

    Raises:
        JobError: the sampler is unknown, cannot be loaded, or cannot serve this job.
    """
    point = sampler_factories().get(spec.sampler)
    if point is None:
        raise JobError(
            f'job field "sampler" is "{spec.sampler}", must be one of {", ".join(sampler_names())}', "", "sampler"
        )
    try:
        factory = point.load()
    except Exception as error:  # whatever another package does when it is imported
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        hint = f"it comes from {point.value}; repair or remove that package"
        raise JobError(f'the sampler "{spec.sampler}" cannot be loaded: {reason}', hint, "sampler") from error
    order: Order = factory(spec, n_samples, resolve)
    return order
