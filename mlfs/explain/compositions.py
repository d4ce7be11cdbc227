"""Which orders begin as a script has printed its own: all compositions are tried, with the seeds that people choose.

Pure. In: dataset indices, epoch by epoch, as one rank read them; what is known of the job. Out: the jobs that give
them, the likeliest first. Called by `mlfs.cli.explain`.

The first epoch is compared first, as most compositions have it in common: "seed+epoch" begins as "same" does. Only what
fits it is made as a job, and compared with all epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.fields import EPOCHS, Fields
from mlfs.explain.popular import POPULAR_SEEDS
from mlfs.job import parse_job
from mlfs.job.parse import COMPOSED
from mlfs.orders.registry import build_order

# By generator, its rules of seeding and kinds of draws. Those that begin alike stand together, the usual one first. A
# sample by torch, RandomState or jax is the beginning of a permutation.
_SUMS = ["seed+epoch", "same", "1000*seed+epoch", "100*seed+epoch", "10000*seed+epoch"]
_PERMUTED, _SAMPLED, _REPLACED = ["permutation", "shuffle"], ["sample"], ["with-replacement"]
_SEEDINGS: Mapping[str, tuple[list[str], ...]] = {
    "torch": (["goes-on", *_SUMS],),
    "numpy": (["goes-on", *_SUMS], ["[seed,epoch]"]),
    "numpy-legacy": (["goes-on", *_SUMS], ["[seed,epoch]"]),
    "python": (["goes-on", *_SUMS],),
    "jax": (_SUMS, ["fold-in"], ["split"]),
}
_DRAWS: Mapping[str, tuple[list[str], ...]] = {
    "torch": (_PERMUTED, _REPLACED),
    "numpy": (_PERMUTED, _SAMPLED, _REPLACED),
    "numpy-legacy": (_PERMUTED, _REPLACED),
    "python": (_PERMUTED, _SAMPLED, _REPLACED),
    "jax": (_PERMUTED, _REPLACED),
}
_DEALINGS = ("strided", "padded", "contiguous", "batches", "alike")
# Samplers that are no compositions, with what their own scripts leave open.
_SAMPLERS: tuple[Fields, ...] = (
    {"sampler": "torch-distributed"},
    {"sampler": "torch-random", "generator": "default"},
    {"sampler": "torch-random", "generator": "default", "persistent_workers": True},
    {"sampler": "torch-random", "generator": "default", "words_between": 2},
    {"sampler": "torch-random", "generator": "own"},
    {"sampler": "torch-random", "generator": "shared"},
    {"sampler": "accelerate", "use_seedable_sampler": True},
    {"sampler": "hf-datasets"},
    {"sampler": "grain"},
)
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
    """Try all jobs that agree with what is known, the likeliest seeds first.

    Args:
        epochs: the dataset indices that one rank has read, from its first epoch on; of each the beginning will do.
        n: how long the data set is.
        known: fields of the job, for which nothing else is tried.
    """
    seeds = [known["seed"]] if "seed" in known else list(POPULAR_SEEDS)
    found = False
    for number, seed in enumerate(seeds):
        groups = list(_alike(known, n, len(epochs[0]), seed))
        for at, group in enumerate(groups, 1):
            begins = _gives(group[0], epochs[:1], n, rank)
            fit = [one for one in group if _gives(one, epochs, n, rank)] if begins else []
            found = found or bool(fit)
            yield Tried(number * len(groups) + at, len(seeds) * len(groups), fit)
        if found:
            return  # what fits by another seed as well fits by chance


def _alike(known: Mapping[str, Any], n: int, count: int, seed: int) -> Iterator[list[Fields]]:
    """Jobs with one first epoch each."""
    common: Fields = {"name": "explained", **known, "seed": seed, "epochs": max(known.get("epochs", 0), EPOCHS)}
    if not known.keys() & {"draw", "seeding", "dealing"}:
        for sampler in _SAMPLERS:
            if all(known.get(name, value) == value for name, value in sampler.items()):
                yield [common | sampler]
        if seed == POPULAR_SEEDS[0] or "seed" in known:
            yield [{name: value for name, value in common.items() if name != "seed"} | {"sampler": "sequential"}]
    if known.get("sampler", COMPOSED) != COMPOSED:
        return
    dealings = [known["dealing"]] if "dealing" in known else list(_DEALINGS)
    if known.get("world_size", 1) == 1:
        del dealings[1:]
    beginnings = [
        (generator, dealing, draws, seedings)
        for generator in ([known["generator"]] if known.get("generator") in _DRAWS else _DRAWS)
        for dealing in dealings
        for draws in ([[known["draw"]]] if "draw" in known else _DRAWS[generator])
        for seedings in ([[known["seeding"]]] if "seeding" in known else _SEEDINGS[generator])
    ]
    for generator, dealing, draws, seedings in beginnings:
        # What was printed may be an epoch's beginning or all of it, and how many are drawn changes some draws.
        drawn = [n, count] if draws[0] in ("sample", "with-replacement") and count != n else [n]
        for number in [known["num_samples"]] if "num_samples" in known else drawn:
            fields = common | {"sampler": COMPOSED, "generator": generator, "dealing": dealing}
            if number != n or "num_samples" in known or draws[0] == "with-replacement":
                fields["num_samples"] = number
            yield [fields | {"draw": draw, "seeding": seeding} for draw, seeding in product(draws, seedings)]


def _gives(fields: Fields, epochs: Sequence[Sequence[int]], n: int, rank: int) -> bool:
    """Whether a job gives what was read; not what is no job, or none of so many samples."""
    try:
        order = build_order(parse_job(fields), n)
        return all(
            np.array_equal(order.rank_stream(epoch, rank)[: len(reads)], reads) for epoch, reads in enumerate(epochs)
        )
    except JobError:
        return False
