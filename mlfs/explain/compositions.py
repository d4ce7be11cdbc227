"""Finds the orders that begin as a script has printed its own: all usual ones are tried, with the seeds that people
choose.

Pure. In: dataset indices, epoch by epoch, as one rank read them; what is known of the job. Out: the jobs that give
them, the likeliest first. Called by `mlfs.cli.explain`.

The first pass is compared first, as most orders have it in common: "seed+epoch" begins as "same" does. Only what fits
it is made as a job, and compared with all reads. The next pass follows where a list is longer than one; passes that do
not begin where the script's epochs do are a stream without an end, which is cut as the script has cut it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.fields import EPOCHS, Fields, job_of
from mlfs.explain.usual import GENERATORS, MOST_FOR_LOOPS, Seed, preset_of, usual_orders, usual_seeds
from mlfs.job.parse import COMPOSED, PUTS_TOGETHER
from mlfs.orders.order import build_order

_DEALINGS = ("strided", "padded", "contiguous", "batches", "alike")
# With one of these known, orders are tried too that take seconds each for so many samples.
_NAMED = {"sampler", "generator", "draw"}
# Of so many that a try takes tenths of a second, the less usual pairs of order and seed are left out otherwise: all
# that are tried of 1.3 million samples take a minute.
_MOST_BITS_OF_MANY = 8.0
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
    seeds = (Seed(0.0, known["seed"]),) if "seed" in known else usual_seeds()
    orders = list(usual_orders(n, seeds, len(epochs[0])))
    if not known.keys() & _NAMED:
        orders = [one for one in orders if n <= one.most and (n <= MOST_FOR_LOOPS or one.bits <= _MOST_BITS_OF_MANY)]
    tried = [jobs for order in orders for jobs in _jobs(order.orders, known)]
    found: list[Fields] = []
    for number, jobs in enumerate(tried, 1):
        if found and jobs[0].get("seed") != found[0].get("seed"):
            continue  # what fits by another seed as well fits by chance
        fit: list[Fields] = []
        if _gives(jobs[0], epochs, n, rank, passes=1):
            fit = [job for job in jobs if job not in found and _gives(job, epochs, n, rank)]
            fit = fit or [job for job in _endless(jobs, epochs) if _gives(job, epochs, n, rank)]
        found += fit
        yield Tried(number, len(tried), fit)


def _endless(jobs: Sequence[Fields], epochs: Sequence[Sequence[int]]) -> Iterator[Fields]:
    """The same orders as streams without an end, whose epochs are as long as those that were read."""
    for job in jobs:
        batch, length = int(str(job.get("batch_size", 1))), len(epochs[0])
        cut: Fields = {"epoch_steps": length // batch} if len(epochs) > 1 and length % batch == 0 else {}
        if job["sampler"] == COMPOSED and job.get("seeding") == "goes-on" and "endless" not in job:
            yield job | {"endless": True} | cut


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


def _gives(fields: Fields, epochs: Sequence[Sequence[int]], n: int, rank: int, passes: int = 0) -> bool:
    """Whether a job gives what was read, or its first passes do; not what is no job, or none of so many samples."""
    number = 0
    try:
        order = build_order(job_of(fields), n)
        for reads in epochs:
            at = 0
            while at < len(reads):
                stream = order.rank_stream(number, rank)[: len(reads) - at]
                if not len(stream) or not np.array_equal(stream, reads[at : at + len(stream)]):
                    return False
                number, at = number + 1, at + len(stream)
                if number == passes:
                    return True
        return True
    except JobError:
        return False
