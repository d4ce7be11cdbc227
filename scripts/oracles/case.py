"""One recorded case: what a library made of a job. Yielded by the modules beside it, written by record_orders.py."""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    """One job and what its ranks read.

    Attributes:
        job: the fields that a user would register, besides `epochs`.
        n_samples: length of the data set.
        shards: samples of each file that the data set lies in; None where each has its own.
        reads: (epoch, rank, dataset indices in read order), some of all.
    """

    job: dict[str, Any]
    n_samples: int
    reads: list[tuple[int, int, list[int]]]
    shards: list[int] | None = None
