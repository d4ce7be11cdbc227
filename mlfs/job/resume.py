"""The place where a run goes on, as its user knows it: an epoch and samples done, or what a sampler has saved.

Pure. In: the field "resume" of a registration. Out: its start_epoch and start_step, and what to say of them. Called by
`mlfs.job.parse`, by the control file for its note, and by the command line, which reads a state from its file.

Which numbers count is read off the libraries: mlfs.torch.ServedSampler goes on behind `index` samples of each of
`num_replicas` ranks; torchdata 0.11's StatefulDataLoader behind `samples_yielded` of its rank, or, where its batch
sampler is another one, behind `_sampler_iter_yielded` batches; its StatefulDistributedSampler behind `yielded` samples.
Batches since a snapshot (`_steps_since_snapshot`) are read again, so they are not counted. litdata's epochs count from
1, and its StreamingDataLoader goes on behind `num_samples_yielded` of each rank or, with another shape, behind
`sample_in_epoch` of all (`mlfs.orders.litdata_resume`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from mlfs.job.refusals import refuse
from mlfs.job.spec import JobSpec

RESUME: Final = "resume"
DESCRIPTION: Final = (
    'an epoch, an epoch and the samples of it that all ranks have done, as "12:43520", or the state_dict() of a'
    " ServedSampler, StatefulDataLoader, StatefulDistributedSampler or litdata's StreamingDataLoader"
)
_OF_A_RANK, _BATCHES = ("samples_yielded", "yielded"), ("_sampler_iter_yielded",)
_SHAPE = ("world_size", "num_workers", "batch_size")
_INITIAL = tuple(f"initial_{name}" for name in (*_SHAPE, "num_nodes"))
_LITDATA = ("current_epoch", "num_samples_yielded", "sample_in_epoch", *_SHAPE, *_INITIAL)
_DEALT_ANEW = ("resume_mode", "elastic")
_LOOKED_AT = ("epoch", "index", "num_replicas", *_OF_A_RANK, *_BATCHES, *_LITDATA, _DEALT_ANEW[0])
# What is in these is the data set's own, whatever its names are.
_NOT_THE_SAMPLERS = frozenset({"_worker_snapshots", "dataset_state", "fetcher_state"})
_EPOCH_AND_SAMPLES = re.compile(r"([0-9]{1,9})(?::([0-9]{1,15}))?")


def is_place(text: str) -> bool:
    """Whether it is EPOCH or EPOCH:SAMPLES, and no file's name."""
    return _EPOCH_AND_SAMPLES.fullmatch(text) is not None


def place_in(state: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of a saved state that are looked at, by name, wherever in it they are; the outermost of a name."""
    found: dict[str, int] = {}
    parts = deque[Mapping[str, Any]]([state])
    while parts:
        for name, value in parts.popleft().items():
            if isinstance(value, Mapping) and name not in _NOT_THE_SAMPLERS:
                parts.append(value)
            elif name in _LOOKED_AT and type(value) is int and value >= 0:  # true is none
                found.setdefault(name, value)
            elif (name, value) == _DEALT_ANEW:
                found[name] = 1
    return found


def beginning(resume: object, given: Mapping[str, Any], spec: JobSpec) -> dict[str, Any]:
    """The fields that say where the run goes on.

    Args:
        resume: the field's value. given: the job's fields as they were given. spec: the same, checked.

    Raises:
        JobError: the value says no place, or another field says one as well.
    """
    if "start_step" in given:
        refuse(RESUME, resume, "given without start_step", "samples are counted here, and steps there")
    epoch, samples = _epoch_and_samples(resume, spec)
    if epoch is None and "start_epoch" not in given:
        refuse(RESUME, resume, "a state with its epoch", "this one does not say it: give start_epoch besides")
    if epoch is not None and "start_epoch" in given:
        refuse(RESUME, resume, "given without start_epoch", "it says the epoch itself")
    if place := _of_litdata(resume, spec):
        return _behind_litdata(place, spec)
    epoch = spec.start_epoch if epoch is None else epoch
    return {"start_epoch": epoch, "start_step": samples // (spec.batch_size * spec.world_size)}


def words_of_resume(resume: object, spec: JobSpec) -> list[str]:
    """Says so where the samples done are no whole steps of the run that comes."""
    samples = 0 if resume is None or _of_litdata(resume, spec) else _epoch_and_samples(resume, spec)[1]
    step = spec.batch_size * spec.world_size
    if not samples % step:
        return []
    done = f"{samples:,} samples are {samples // step:,} steps of {step:,} and {samples % step:,} samples"
    return [f"{done}: the job is expected to go on behind the last whole step"]


def _epoch_and_samples(resume: object, spec: JobSpec) -> tuple[int | None, int]:
    """The epoch, None where it is not said, and the samples of it that all ranks together have done."""
    if isinstance(resume, Mapping):
        place = place_in(resume)
        epoch, world = place.get("epoch"), spec.world_size
        if _of_litdata(resume, spec):
            return place["current_epoch"], 0
        if "index" in place:
            return epoch, place["index"] * place.get("num_replicas", world)
        for names, each in (_OF_A_RANK, 1), (_BATCHES, spec.batch_size):
            for name in names:
                if name in place:
                    return epoch, place[name] * each * world
    elif isinstance(resume, (int, str)) and (said := _EPOCH_AND_SAMPLES.fullmatch(str(resume))):
        return int(said[1]), int(said[2] or 0)
    refuse(RESUME, resume, DESCRIPTION)


def _of_litdata(resume: object, spec: JobSpec) -> dict[str, int]:
    """The numbers of its state, none where it is another's."""
    place = place_in(resume) if spec.sampler == "litdata" and isinstance(resume, Mapping) else {}
    return place if {"current_epoch", "num_samples_yielded"} <= place.keys() else {}


def _behind_litdata(place: Mapping[str, int], spec: JobSpec) -> dict[str, Any]:
    """The epoch, and where in it the run left off: with another shape what is left is dealt anew from there."""
    now = (spec.world_size, spec.num_workers or 1, spec.group_batch or 1)
    saved = tuple(place.get(name, value) for name, value in zip(_SHAPE, now, strict=True))
    began = tuple(place.get(name, value) for name, value in zip(_INITIAL, saved, strict=False))
    yielded = place["num_samples_yielded"]
    done = place.get("sample_in_epoch", yielded * saved[0])
    if not done:  # nothing of the epoch was read
        return {"start_epoch": place["current_epoch"]}
    if saved != now:
        yielded = 0
    elif _DEALT_ANEW[0] in place:
        done -= yielded * saved[0]
    else:  # so it is, too, with worker processes: they do not tell that they were dealt to anew
        done, began = 0, now
    nodes = place.get(_INITIAL[-1], 1) if spec.physical_nodes else 1
    epoch = max(0, place["current_epoch"] - 1)
    return {"start_epoch": epoch, "left_off": (epoch, done, yielded, *began, nodes)}
