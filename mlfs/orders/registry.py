"""Which samplers there are: the built-in ones, and those that other packages add.

In: `mlfs.orders.catalogue`, the entry points of group `mlfs.orders` (name: the sampler; object: an `OrderFactory`).
Out: names, the fields they read, and orders made by name. Called by `mlfs.job` and `mlfs.orders.streams`.

The built-in ones are listed in the package and not in its metadata, so that a source checkout works, and so that no
other package can change what a known name means.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from mlfs.errors import JobError
from mlfs.orders.catalogue import BUILT_IN
from mlfs.orders.catalogue.sampler import Sampler

if TYPE_CHECKING:
    from mlfs.job import JobSpec
    from mlfs.orders.order import Order, Resolve

GROUP = "mlfs.orders"


@cache
def _entry_points() -> dict[str, EntryPoint]:
    found = {point.name: point for point in entry_points(group=GROUP)}
    found.update({own.name: EntryPoint(own.name, own.factory, GROUP) for own in BUILT_IN})
    return found


def sampler_names() -> list[str]:
    """The names that a job's `sampler` may have: the built-in ones first."""
    own = [sampler.name for sampler in BUILT_IN]
    return own + sorted(set(_entry_points()) - set(own))


def built_in(name: str) -> Sampler | None:
    """The record of a built-in sampler; None for another package's, which may read any field."""
    return next((sampler for sampler in BUILT_IN if sampler.name == name), None)


def readers_of(field: str) -> list[str]:
    """The built-in samplers that read a field."""
    return [sampler.name for sampler in BUILT_IN if field in sampler.fields]


def build_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Order:
    """Make the order of a job.

    Args:
        spec: the job; its `sampler` says which order.
        n_samples: how long the data set is; dataset indices are 0 .. n_samples - 1.
        resolve: from a path to a dataset index, for samplers that read paths.

    Raises:
        JobError: the sampler is unknown, cannot be loaded, or cannot serve this job.
    """
    point = _entry_points().get(spec.sampler)
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
