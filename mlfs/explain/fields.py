"""Fields of jobs that nobody registered: hypotheses made of them, the part that gives the order.

Pure. In: fields as in a registration. Out: hypotheses. Used by all of `mlfs.explain`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache

from mlfs.errors import JobError
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.job import JobSpec, parse_job

Fields = dict[str, object]
"""Fields of a job, as in a registration."""

JOB_NAME = "inferred"
EPOCHS = 1000
"""Epochs of a job that nobody registered: more than anybody waits for, as nobody said how many there will be."""


_checked = lru_cache(maxsize=1024)(parse_job)


def job_of(fields: Fields) -> JobSpec:
    """The job of these fields. Thousands are tried that differ in the seed, which may be any number: what they have in
    common is checked once. Raises: JobError."""
    common = {name: value for name, value in fields.items() if name != "seed"}
    job = _checked(json.dumps({"name": JOB_NAME, "epochs": EPOCHS} | common))
    return job.model_copy(update={"seed": fields["seed"]}) if "seed" in fields else job


def proposed(ranked: Iterable[Fields], origin: Origin) -> list[Hypothesis]:
    """The hypotheses that these fields make, in their order, without those that are no job."""
    found = []
    for fields in ranked:
        try:
            found.append(Hypothesis(parse_job(fields), origin))
        except JobError:
            continue
    return found


def order_of(spec: JobSpec) -> JobSpec:
    """The part of a job that gives the order, without what the same reads may show otherwise later."""
    return spec.model_copy(update={"name": "", "batch_size": 1, "ranks": (), "start_epoch": 0, "start_step": 0})
