"""What is known of a built-in sampler before its module is imported.

In: nothing. Out: the record `Sampler`. Filled in by the tables beside it, one for each family of frameworks; used by
`mlfs.job.samplers` (where is its order, may this field be given?).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Sampler(NamedTuple):
    """One sampler.

    Attributes:
        name: what a job calls it.
        factory: where its `OrderFactory` is, as "module:object".
        fields: the fields of a job that it reads, besides those that every job has (`mlfs.job.COMMON`). A field that
            is given and not read is refused: the user believes that it changes something.
        required: those without which it cannot tell the order.
        defaults: values for fields that were not given, where the framework's own default is not the job's.
    """

    name: str
    factory: str
    fields: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    defaults: Mapping[str, object] = {}


def fields(names: str) -> frozenset[str]:
    """A set of fields from their names with spaces between."""
    return frozenset(names.split())
