"""Tries the samplers that are not torch's, each with the seeds that people choose.

In: what was read first, as dataset indices. Out: a `Recipe`, fields of a job, when one explains the reads. Called by
`mlfs.explain.search` after the common seeds of torch. Each try makes a whole epoch's order, so there are few of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.confirm import pattern_of
from mlfs.explain.evidence import bits_of_distinct
from mlfs.explain.fields import EPOCHS, JOB_NAME, Fields
from mlfs.explain.popular import POPULAR_SEEDS, WHOLE_ORDERS
from mlfs.explain.question import FEWEST_BITS, DataSet
from mlfs.job import parse_job
from mlfs.orders.registry import build_order

_WORLDS = (1, 2, 4, 8)
# Python's shuffle is a loop: a second for a million samples.
_MOST_FOR_PYTHON = 200_000


class Recipe(NamedTuple):
    """An explanation.

    Attributes:
        data_set: its number among those that were asked about. fields: those of a job, without those of the data set.
    """

    data_set: int
    fields: Fields


def recipes(n: int, told: Sequence[int] = ()) -> Iterator[Fields]:
    """The fields that are tried, the likeliest first. `told`: seeds that are likelier than popular ones."""
    for seed in dict.fromkeys((*told, *POPULAR_SEEDS[:WHOLE_ORDERS])):
        yield {"sampler": "hf-datasets", "seed": seed}
        yield {"sampler": "numpy", "seed": seed, "legacy": True}
        yield {"sampler": "numpy", "seed": seed, "legacy": False}
        yield {"sampler": "grain", "seed": seed}
        yield {"sampler": "keras", "seed": seed}
        if n <= _MOST_FOR_PYTHON:
            yield {"sampler": "python-random", "seed": seed}
    for world in _WORLDS:
        yield {"sampler": "dali", "shuffle": True, "world_size": world}
        yield {"sampler": "dali", "shuffle_after_epoch": True, "world_size": world}
        yield {"sampler": "paddle", "world_size": world}
        yield {"sampler": "timm-repeat-aug", "world_size": world}
        yield {"sampler": "ra-sampler", "world_size": world}


def same_first_epoch(fields: Fields) -> list[Fields]:
    """The recipes that give the same first epoch as this one.

    They differ in the second: the generator goes on, or begins again, or what is shuffled already is shuffled again.
    """
    sampler = fields["sampler"]
    if sampler not in ("hf-datasets", "numpy", "python-random"):
        return []
    numpy = sampler == "hf-datasets" or (sampler == "numpy" and not fields["legacy"])
    plain = {key: value for key, value in fields.items() if key not in ("sampler", "legacy")}
    both: list[Fields] = [{"sampler": "hf-datasets"}, {"sampler": "numpy", "legacy": False}]
    same = both if numpy else [{key: fields[key] for key in ("sampler", "legacy") if key in fields}]
    others: tuple[Fields, ...] = ({}, {"reseed": True}, {"in_place": True})
    return [plain | one | other for other in others for one in same]


def explaining(data_sets: Sequence[DataSet], told: Sequence[int] = ()) -> Iterator[Recipe | None]:
    """Try all recipes: a None for each that does not explain the reads; the recipe that does comes last."""
    for index, data_set in enumerate(data_sets):
        for fields in recipes(data_set.n, told):
            explained = _tried(fields, data_set)
            yield None if explained is None else Recipe(index, explained)
            if explained is not None:
                return


def _tried(fields: Fields, data_set: DataSet) -> Fields | None:
    """The fields, with the batch size if it shows, when some process reads the first epoch of rank 0 from its start."""
    try:
        spec = parse_job({"name": JOB_NAME, "epochs": EPOCHS, **fields})
        stream = build_order(spec, data_set.n).rank_stream(0, 0)
    except JobError:
        return None  # of a version of mlfs without it, or not for so many samples
    wanted = np.unique(np.fromiter((value for head in data_set.heads for value in head), dtype=np.int64))
    at = np.flatnonzero(np.isin(stream, wanted))
    position_of = dict(zip(stream[at][::-1].tolist(), at[::-1].tolist(), strict=True))
    for head in data_set.heads:
        pattern = pattern_of([position_of.get(value, -1) for value in head], 0, 1)
        if pattern is not None and bits_of_distinct(data_set.n, pattern.matched) >= FEWEST_BITS:
            known = {} if pattern.batch is None else {"batch_size": pattern.batch}
            return {"epochs": EPOCHS, "world_size": 1} | fields | known
    return None
