"""Prints how many loader workers each rank should have, and what that gains: `mlfs advise workers`.

In: the status of a mount, or of one of its jobs. Out: numbers and lines. Called by mlfs.lab.commands.advise.
ConfigError where the mount has not seen enough.
"""

from __future__ import annotations

from typing import Any

from mlfs.errors import ConfigError
from mlfs.plan.loader_workers import Advice, Loader, advise, surely_loads
from mlfs.plan.rank_load import RankLoad, StepLimit
from mlfs.shown import StatusPart, count_of, is_number, number
from mlfs.units import format_duration

ONE_PROCESS = "one process reads for each rank, and nobody said whether it is a worker or the training process itself"
ONE_PROCESS_HINT = (
    "register the job with --num-workers 0 if the training process loads by itself, else with --num-workers 1"
)
UNKNOWN_STEP = (
    "how long a training step takes cannot be told from reads while the loader is the limit (--step TIME tells it):"
    " so many workers are advised as preprocess fastest together, and steps become no shorter than training itself"
)
NO_CURE = "{ranks} for reads more than they work: more workers are no cure there (mlfs status says what would be)"
TRAINING = "training is the limit: loading keeps up with these workers, and more gain nothing"
NO_GAIN = "more workers are not expected to gain anything on {processors}"


def answer(
    status: dict[str, Any], name: str | None, processors: int, step_s: float | None
) -> tuple[dict[str, Any], list[str]]:
    """The numbers, and what they say.

    Args:
        name: of the job; None: the one that is loaded most.
        step_s: how long a training step takes, where the user knows it.
    """
    job = _job(StatusPart(status), name)
    ranks = [_rank_load(int(rank), of) for rank, of in job.load.ranks.items()]
    ranks = [rank for rank in ranks if rank.limit is not StepLimit.UNKNOWN]
    if not ranks:
        raise ConfigError(f"job {job.name}: too few batches were seen to say anything", _what_helps(job))
    in_each = job.loader.num_workers.value
    if not any(surely_loads(rank.workers, in_each if is_number(in_each) else None) for rank in ranks):
        raise ConfigError(f"job {job.name}: {ONE_PROCESS}", ONE_PROCESS_HINT)
    loaders = [Loader.of(rank, step_s) for rank in ranks]
    advice = advise(loaders, processors, {int(count): float(pace) for count, pace in job.load.pace})
    numbers = {
        "job": job.name,
        "processors": processors,
        "limits": {str(rank.rank): str(rank.limit) for rank in ranks},
        "workers_now": {str(loader.rank): loader.workers for loader in loaders},
        "workers": {str(loader.rank): count for loader, count in zip(loaders, advice.workers, strict=True)},
        "train_s": advice.train_s,
        "step_now_s": advice.now_s,
        "step_s": advice.step_s,
        "gain": advice.gain,
    }
    available = count_of(processors, "processor", "processors")
    lines = [f"job {job.name}, {available}:", *map(_line, ranks)]
    return numbers, [*lines, *_words(advice, loaders, available)]


def _job(status: StatusPart, name: str | None) -> StatusPart:
    jobs = [job for job in status.jobs if name in (None, job.name)]
    if not jobs:
        raise ConfigError("no such job is followed there" if name else "no job is followed there", "see mlfs status")
    busiest: StatusPart = max(jobs, key=lambda job: sum(number(of.batches) for _, of in job.load.ranks.items()))
    return busiest


def _rank_load(rank: int, of: StatusPart) -> RankLoad:
    """A rank's loader, as a status has it."""
    return RankLoad(
        rank,
        of.workers,
        of.batches,
        of.batch_bytes,
        of.waiting_s,
        of.preprocess_s,
        of.handing_s,
        of.idle_s,
        of.step_s,
        of.next_s,
        limit=StepLimit(of.limit),
        reader_trains=bool(of.reader_trains),
    )


def _what_helps(job: StatusPart) -> str:
    """Words on how the mount can see more of a loader than it has seen."""
    batch = job.loader.batch_size.value
    if not is_number(batch):
        return "how large its batches are is not known: register it with --batch-size"
    if batch == 1:
        return "batches of one file tell nothing; if they are larger, register it with that --batch-size"
    return "ask again while it trains, once it has begun an epoch and read some batches of it"


def _line(rank: RankLoad) -> str:
    preprocess, handing, waiting, idle, step = map(
        format_duration, (rank.preprocess_s, rank.handing_s, rank.waiting_s, rank.idle_s, rank.step_s)
    )
    if rank.reader_trains:
        said = (
            f"the training process loads by itself; it preprocesses {preprocess} for a batch, waits {waiting} for"
            f" reads, trains for {handing} and waits {idle} for other ranks"
        )
    else:
        processes = count_of(rank.workers, "process loads", "processes load")
        said = (
            f"{processes}; each preprocesses {preprocess} for a batch, takes {handing} to put it together, waits"
            f" {waiting} for reads and is idle for {idle}"
        )
    return f"  rank {rank.rank}: {said}; a batch comes every {step}, and the limit is {rank.limit}"


def _words(advice: Advice, loaders: list[Loader], available: str) -> list[str]:
    advised = [(loader, count) for loader, count in zip(loaders, advice.workers, strict=True) if not loader.waits]
    waiting = [f"rank {loader.rank}" for loader in loaders if loader.waits]
    if not advised:
        return [NO_CURE.format(ranks="loaders wait")]
    lines = ["workers by Algorithm 1: "]
    lines[0] += ", ".join(f"rank {loader.rank}: {count} (now {loader.workers})" for loader, count in advised)
    if advice.train_s is not None:
        lines[0] += f", for a training step of {format_duration(advice.train_s)}"
    if not advice.is_worth_it:
        lines.append(TRAINING if advice.keeps_up else NO_GAIN.format(processors=available))
    else:
        step, was = format_duration(advice.step_s), format_duration(advice.now_s)
        lines.append(f"a step then takes {step} instead of {was}: {advice.gain:.1f} times as fast")
        if advice.train_s is None:
            lines.append(UNKNOWN_STEP)
    if waiting:
        lines.append(NO_CURE.format(ranks=f"workers of {', '.join(waiting)} wait"))
        lines.append("steps gain by more workers of the other ranks only as far as these reads let them")
    return lines
