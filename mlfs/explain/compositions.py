"""Finds the orders that begin as a script has printed its own: all usual ones are tried, with the seeds that people
choose.

Pure. In: dataset indices, epoch by epoch, as one rank read them; what is known of the job. Out: the jobs that give
them, the likeliest first. Called by `mlfs.cli.explain`.

The first epoch is compared first, as most orders have it in common: "seed+epoch" begins as "same" does. Only what fits
it is made as a job, and compared with all epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.fields import EPOCHS, Fields
from mlfs.explain.usual import GENERATORS, Seed, preset_of, usual_orders, usual_seeds
from mlfs.job import parse_job
from mlfs.job.parse import COMPOSED, PUTS_TOGETHER
from mlfs.orders.registry import build_order

_DEALINGS = ("strided", "padded", "contiguous", "batches", "alike")
FEWEST_READS = 8
"""Reads of an epoch that tell its order: fewer are those of many orders."""


class Tried(NamedTuple):
    """One trial, of orders that begin alike.

    Attributes:
        number, of: which one this is, and how many there are.
        found: the jobs among them that give all that was read.
    """

    number: int
    of: int
    found: list[Fields]


def explaining(epochs: Sequence[Sequence[int]], n: int, known: Mapping[str, Any], rank: int = 0) -> Iterator[Tried]:
    """Try all jobs that agree with what is known, the most usual first.

    Args:
        epochs: the dataset indices that one rank has read, from its first epoch on; of each the beginning will do.
        n: how long the data set is.
        known: fields of the job, for which nothing else is tried.
    """
    seeds = [Seed(0.0, known["seed"])] if "seed" in known else usual_seeds()
    tried = [jobs for order in usual_orders(n, seeds, len(epochs[0])) for jobs in _jobs(order.orders, known)]
    found: list[Fields] = []
    for number, jobs in enumerate(tried, 1):
        if found and jobs[0].get("seed") != found[0].get("seed"):
            continue  # what fits by another seed as well fits by chance
        begins = _gives(jobs[0], epochs[:1], n, rank)
        fit = [job for job in jobs if job not in found and _gives(job, epochs, n, rank)] if begins else []
        found += fit
        yield Tried(number, len(tried), fit)


def _jobs(orders: Sequence[Fields], known: Mapping[str, Any]) -> Iterator[list[Fields]]:
    """The jobs of orders that begin alike, as far as they agree with what is known; those that are dealt alike."""
    common: Fields = {"name": "explained", **known, "epochs": max(known.get("epochs", 0), EPOCHS)}
    several = known.get("world_size", 1) > 1 and orders[0]["sampler"] == COMPOSED
    dealings = _DEALINGS if several else (None,)
    by_parts = known.keys() & PUTS_TOGETHER or known.get("sampler") == COMPOSED or known.get("generator") in GENERATORS
    for dealing in dealings:
        dealt: Fields = {"dealing": dealing} if dealing is not None else {}
        jobs = [common | order | dealt for order in orders]
        named = jobs if by_parts else list(map(preset_of, jobs))
        agreeing = [job for job in named if known.items() <= job.items()]
        if agreeing:
            yield agreeing


def _gives(fields: Fields, epochs: Sequence[Sequence[int]], n: int, rank: int) -> bool:
    """Whether a job gives what was read; not what is no job, or none of so many samples."""
    try:
        order = build_order(parse_job(fields), n)
        return all(
            np.array_equal(order.rank_stream(epoch, rank)[: len(reads)], reads) for epoch, reads in enumerate(epochs)
        )
    except JobError:
        return False
