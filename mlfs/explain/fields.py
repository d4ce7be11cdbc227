"""Fields of jobs that nobody registered: hypotheses made of them, the part that gives the order, a line in words.

Pure. In: fields as in a registration. Out: hypotheses, words. Used by all of `mlfs.explain`.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.errors import JobError
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.job import JobSpec, parse_job
from mlfs.orders.order_file import IN_MEMORY

Fields = dict[str, object]
"""Fields of a job, as in a registration."""

JOB_NAME = "inferred"
EPOCHS = 1000
"""Epochs of a job that nobody registered: more than anybody waits for, as nobody said how many there will be."""


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


def in_words(spec: JobSpec) -> str:
    """A job in a line for people: what was given of it."""
    if spec.order_file == IN_MEMORY:
        readers = f"{spec.num_workers} processes" if (spec.num_workers or 1) > 1 else "one process"
        return f"what {readers} read before, again in each epoch"
    given = spec.model_fields_set
    said = [spec.sampler, f"seed {spec.seed}"] if "seed" in given else [spec.sampler]
    if spec.generator is not None:
        said.append(f"{spec.generator} generator")
    said += [
        f"{name.replace('_', ' ')} {getattr(spec, name)}"
        for name in ("draw", "seeding", "words_before", "words_between", "words_once")
        if getattr(spec, name)
    ]
    said += ["a piece for each rank"] if spec.contiguous else []
    said += ["persistent workers"] if spec.persistent_workers else []
    switches = ("set_epoch", "trailing_permutation")
    said += [f"no {name.replace('_', ' ')}" for name in switches if getattr(spec, name) is False]
    said.append(f"world size {spec.world_size}")
    if "batch_size" in given:
        said.append(f"batch size {spec.batch_size}")
    return ", ".join(said)
