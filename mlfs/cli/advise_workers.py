"""What `mlfs advise workers` prints: how many loader workers each rank should have, and what that gains.

In: the status of a mount, or of one of its jobs. Out: numbers and lines. Called by mlfs.cli.advise. ConfigError where
the mount has not seen enough.
"""

from __future__ import annotations

from typing import Any

from mlfs.advise.workers import Advice, Loader, advise
from mlfs.errors import ConfigError
from mlfs.plan.loader_load import Limit
from mlfs.shown import part, parts_of
from mlfs.units import format_duration

# A smaller gain is not worth another start of a training script.
LITTLE = 0.05
UNKNOWN_STEP = (
    "how long a training step takes is not known while the loader is the limit (--step TIME tells it): so many workers"
    " are advised as reach the peak of preprocessing, and the gain ends where training itself is the limit"
)


def answer(
    status: dict[str, Any], name: str | None, processors: int, step_s: float | None
) -> tuple[dict[str, Any], list[str]]:
    """The numbers, and what they say.

    Args:
        name: of the job; None: the one that is loaded most.
        step_s: how long a training step takes, where the user knows it.
    """
    job = _job(status, name)
    load = part(job, "load")
    ranks = {rank: of for rank, of in part(load, "ranks").items() if of.get("limit") != str(Limit.UNKNOWN)}
    if not ranks:
        hint = "ask again while it trains, once it has begun an epoch and read some batches of it"
        raise ConfigError(f"job {job.get('name')}: too few batches were seen to say anything", hint)
    told = part(part(job, "loader"), "num_workers").get("value")
    loaders = [_loader(int(rank), of, told, step_s) for rank, of in ranks.items()]
    advice = advise(loaders, processors, {int(count): float(pace) for count, pace in parts_of(load, "pace")})
    numbers = {
        "job": job.get("name"),
        "processors": processors,
        "limits": {rank: of["limit"] for rank, of in ranks.items()},
        "workers_now": {str(loader.rank): loader.workers for loader in loaders},
        "workers": dict(zip(ranks, advice.workers, strict=True)),
        "train_s": advice.train_s,
        "step_now_s": advice.now_s,
        "step_s": advice.step_s,
        "gain": advice.gain,
    }
    lines = [f"job {job.get('name')}, {processors} processors:", *(_line(rank, of) for rank, of in ranks.items())]
    if len({str(loader.workers) for loader in loaders}) == 1 and told is None and loaders[0].workers == 1:
        lines.append("  (one process loads: if it is the training process itself, register the job with num-workers 0)")
    return numbers, [*lines, *_words(advice, loaders, {str(of["limit"]) for of in ranks.values()})]


def _job(status: dict[str, Any], name: str | None) -> dict[str, Any]:
    jobs = [job for job in parts_of(status, "jobs") if name in (None, job.get("name"))]
    if not jobs:
        raise ConfigError("no such job is followed there" if name else "no job is followed there", "see mlfs status")
    return max(jobs, key=lambda job: sum(of.get("batches", 0) for of in part(part(job, "load"), "ranks").values()))


def _loader(rank: int, of: dict[str, Any], told: int | None, step_s: float | None) -> Loader:
    """A rank's loader; where the training process loads by itself, what follows a batch is the training step."""
    work_s, after_s = of["preprocess_s"] + of["handing_s"], of["handing_s"] + of["idle_s"]
    if told == 0:
        return Loader(rank, 0, of["preprocess_s"], of["waiting_s"], of["step_s"], after_s if step_s is None else step_s)
    if step_s is None and of["limit"] == str(Limit.TRAINING):
        step_s = of["step_s"]
    return Loader(rank, of["workers"], work_s, of["waiting_s"], of["step_s"], step_s)


def _line(rank: str, of: dict[str, Any]) -> str:
    times = {key: format_duration(of[f"{key}_s"]) for key in ("preprocess", "handing", "waiting", "idle", "step")}
    return (
        f"  rank {rank}: {of['workers']} processes load; each preprocesses {times['preprocess']} for a batch, takes"
        f" {times['handing']} to put it together, waits {times['waiting']} for reads and is idle for {times['idle']};"
        f" a batch comes every {times['step']}, and the limit is {of['limit']}"
    )


def _words(advice: Advice, loaders: list[Loader], limits: set[str]) -> list[str]:
    if Limit.READS in limits:
        return ["loaders wait for reads more than they work: more workers are no cure (mlfs status says what would be)"]
    workers = ", ".join(
        f"rank {loader.rank}: {count} (now {loader.workers})"
        for loader, count in zip(loaders, advice.workers, strict=True)
    )
    lines = [f"workers by Algorithm 1: {workers}"]
    step, was = format_duration(advice.step_s), format_duration(advice.now_s)
    if advice.train_s is None:
        return [*lines, f"a step then takes {step} instead of {was}: {advice.gain:.1f} times as fast", UNKNOWN_STEP]
    lines[0] += f", for a training step of {format_duration(advice.train_s)}"
    if advice.gain <= 1 + LITTLE:
        return [*lines, "training is the limit: more workers gain nothing, and so many would do"]
    return [*lines, f"a step then takes {step} instead of {was}: {advice.gain:.1f} times as fast"]
