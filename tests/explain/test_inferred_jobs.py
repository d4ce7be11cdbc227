"""The inferred jobs of a mount: which of them a finding is about."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from mlfs.explain.confirm import Finding
from mlfs.explain.inferred_jobs import InferredJobs
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.orders.order import build_order
from mlfs.orders.streams import JobStreams

N = 40


def found(seed: int) -> Finding:
    return Finding(0, N, seed, 0, 1, (0,), None, None, 99.0)


def inferred_from(finding: Finding, name: str) -> JobRun:
    """The job of a permutation that torch's default generator drew, as the likeliest hypothesis says."""
    fields = {"name": name, "sampler": "torch-random", "world_size": 1, "epochs": 9}
    drawn = parse_job(fields | {"generator": "default", "seed": 1, "words_before": finding.seed % 100})
    other = parse_job(fields | {"generator": "own", "seed": finding.seed})
    ranked = [Hypothesis(spec, Origin.SEARCH) for spec in (drawn, other)]
    streams = JobStreams(drawn, np.arange(N), build_order(drawn, N))
    job = JobRun(drawn, streams, np.full(N, 10, dtype=np.int64), ranked[0])
    job.comes_into_force(ranked, was_chosen=False)
    return job


@pytest.mark.parametrize("number", [0, 1])
def test_draws_go_to_the_job_that_has_the_seed_which_they_give(number: int) -> None:
    """A loader to train with and one to validate with both draw theirs from torch's default generator."""
    seeds = (3_000_000_007, 3_000_000_019)
    findings = [found(seed) for seed in seeds]
    jobs = InferredJobs(cast(Any, None), cast(Any, None))
    for name, finding in zip(("inferred", "inferred-2"), findings, strict=True):
        jobs.in_force[name] = inferred_from(finding, name)
    assert jobs.with_seed_of(findings[number]) is list(jobs.in_force.values())[number]
    assert jobs.with_seed_of(found(12)) is None
