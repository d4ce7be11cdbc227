"""Sentences on a job whose script does something else than was registered, and how to register it so.

In: numbers and changed fields. Out: sentences for `status` and the log, flags of `mlfs register`. Used by
`mlfs.follow.findings`, which notices that a job began with another epoch, and by `mlfs.explain`, which searches for all
other differences.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlfs.orders.order_file import IN_MEMORY

if TYPE_CHECKING:
    from mlfs.job import JobSpec

COUNTS_FROM_ONE = "this job counts its epochs from 1: each reads the order of the next one"
UNDER_WAY = "this job was under way, in epoch {epoch}, when it was registered"
NOT_SERVED = "this job reads its sampler's own order, not the served one: use mlfs.torch.ServedSampler"
OTHER_WORLD = "this job's world size is {other}, not {world}"
RESUMED = "this job was resumed elsewhere: it began with epoch {epoch}, not {start}"


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
    # The commonest slip of all is to leave it out: `train` beside `val`.
    said.append(f"root {spec.root}" if spec.root else "the whole data set")
    return ", ".join(said)


_WHERE_IT_WAS = ("start_epoch", "start_step")
_FILLED_IN = ("nodes",)  # by the mount; there is no flag for it


def register_flags(spec: JobSpec, way_out: str) -> str:
    """All flags of `mlfs register` that give a job as it was found to be from the start.

    Args:
        spec: the job from where it was found out; where that was is left out. way_out: the flags that differ.
    """
    given = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return flags_of(
        {
            name: value
            for name, value in given.items()
            if name not in _FILLED_IN and (name not in _WHERE_IT_WAS or flags_of({name: value}) in way_out)
        }
    )


def told_flags(spec: JobSpec) -> str:
    """All flags of `mlfs register` that give a job as it was told, where it began included."""
    return register_flags(spec, flags_of({name: getattr(spec, name) for name in _WHERE_IT_WAS}))


def flags_of(changes: Mapping[str, Any]) -> str:
    """The flags of `mlfs register` that give a job these fields from the start."""
    said = []
    for name, value in changes.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            said.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            said.append(f"--{flag}{'=' if words.startswith('-') else ' '}{shlex.quote(words)}")
    return " ".join(said)
