"""The scenario of a job that really runs, from the status of its mount: so what is measured can be held beside what the
simulator expects, and other policies and caches tried on it.

In: a status as `mlfs status --json` prints it, of a mount or saved. Out: a `Scenario` and what was measured. Called by
`mlfs.lab.commands.simulate`.

The status tells how many samples there are and how their sizes differ, what each cache holds and gives, how long
loaders work for a batch and how long a step takes. All nodes are taken to be like this one, and the order to be a new
permutation every epoch. How long a step computes nobody sees: the time from step to step stands for it, as computing
takes that long at most (`mlfs.plan.loader_load.step_compute_s`).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mlfs.errors import ConfigError
from mlfs.lab.sim.expected import LEAST_WORK_S, Loaders
from mlfs.lab.sim.scenario import MOST_SAMPLES, Scenario
from mlfs.measure.refine import DISK_BYTES_PER_S, MEMORY_BYTES_PER_S
from mlfs.plan.loader_load import step_compute_s
from mlfs.plan.model import MB
from mlfs.plan.rank_load import Imbalance, RankLoad, StepLimit

# Epochs after the second are alike for the policy that mounts have.
MOST_EPOCHS = 5
# A network over which nothing has come yet is taken to have 10 Gbit/s.
NETWORK_BYTES_PER_S = 1.25e9
STAGING_THREADS = 4

Model = TypeVar("Model", bound=BaseModel)

Count = Annotated[int, Field(ge=0, le=1 << 62)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Bytes = Annotated[float, Field(ge=0, le=2.0**62, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    """The rest of the status is not asked for here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _RankLoad(_Part):
    workers: Annotated[int, Field(ge=1, le=1 << 20)]
    batches: Count
    batch_bytes: Bytes
    waiting_s: Seconds
    preprocess_s: Seconds
    handing_s: float
    idle_s: float
    step_s: Seconds
    next_s: Seconds
    limit: StepLimit
    reader_trains: bool = False


class _Load(_Part):
    ranks: dict[int, _RankLoad] = {}
    imbalance: Share | None = None
    imbalanced_steps: Share | None = None
    steps: Count = 0


class _Rank(_Part):
    epoch: Count
    samples_per_epoch: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]


class _Sizes(_Part):
    mean: Annotated[float, Field(gt=0, le=2.0**62)]
    deviation: Bytes = 0.0


class _Specification(_Part):
    world_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1


class _Epoch(_Part):
    reading_s: Seconds


class _Job(_Part):
    name: str
    epochs: Annotated[int, Field(ge=1)]
    ranks: Annotated[list[_Rank], Field(min_length=1)]
    sample_bytes: _Sizes
    load: _Load
    spec: _Specification
    time_by_epoch: dict[int, _Epoch] = {}
    pfs_bytes_by_epoch: dict[int, Count] = {}


class _Tier(_Part):
    name: str
    kind: str = Field(alias="class")
    capacity_bytes: Bytes
    passed_over: bool = False


class _Rates(_Part):
    refined: list[tuple[float, Annotated[float, Field(gt=0, le=1e15)]]] = []

    @property
    def best(self) -> float:
        """The most that the place gives, in bytes a second; 0 where that is not known."""
        return max((rate for _, rate in self.refined), default=0.0)


class _Peers(_Part):
    nodes: Annotated[int, Field(ge=1, le=32767)]


class _Staging(_Part):
    capacity_bytes: Bytes


class _Status(_Part):
    mountpoint: str
    jobs: list[_Job]
    tiers: list[_Tier] = []
    rates: dict[str, _Rates] = {}
    peers: Annotated[_Peers | None, BeforeValidator(lambda peers: peers or None)] = None
    staging: _Staging


class EpochMeasured(NamedTuple):
    """One epoch that is over, measured: seconds, and bytes from the source for this node."""

    seconds: float
    pfs_bytes: int


class Like(NamedTuple):
    """A job that really runs.

    Attributes:
        job: its name. epochs: how many it has; the scenario has a few of them.
        ranks: what each rank's loader does, `rank` being the rank's number.
        uneven: how unevenly they load, over the last `steps` steps; None where no two ranks were seen in the same ones.
        measured: of the first epoch and the last that is over.
        peers_bytes_per_s: what this node gets from all others together.
    """

    job: str
    epochs: int
    scenario: Scenario
    ranks: list[RankLoad]
    uneven: Imbalance | None
    steps: int
    measured: dict[int, EpochMeasured]
    peers_bytes_per_s: float

    @property
    def loaders(self) -> Loaders | None:
        """How loaders work, as means; None where there are not two ranks that have read something."""
        return Loaders.of(self.ranks)


def like(status: Any, name: str | None = None) -> Like:
    """Make the scenario of a job from the status of its mount.

    Args:
        name: of the job; None: the one of which most batches were seen.

    Raises:
        ConfigError: it is no status, has no such job, or has not seen enough of it.
    """
    checked = _checked(_Status, status, "this is no status of a mount", "mlfs status MOUNT --json prints one")
    jobs = [job for job in checked.jobs if name in (None, job.name)]
    if not jobs:
        raise ConfigError("no such job is followed there" if name else "no job is followed there", "see mlfs status")
    job = max(jobs, key=lambda job: sum(rank.batches for rank in job.load.ranks.values()))
    ranks = _loads(job)
    if not ranks:
        hint = "ask again while it trains, once it has begun an epoch and read some batches of it"
        raise ConfigError(f"job {job.name}: too few batches were seen to say anything", hint)
    load, over = job.load, min(rank.epoch for rank in job.ranks)
    known = load.imbalance is not None and load.imbalanced_steps is not None
    return Like(
        job.name, job.epochs, _scenario(checked, job, ranks), ranks,
        Imbalance(load.imbalance or 0.0, load.imbalanced_steps or 0.0) if known else None, load.steps,
        {
            epoch: EpochMeasured(job.time_by_epoch[epoch].reading_s, job.pfs_bytes_by_epoch.get(epoch, 0))
            for epoch in dict.fromkeys((0, over - 1))
            if epoch < over and epoch in job.time_by_epoch
        },
        _rate(checked, "peers") or NETWORK_BYTES_PER_S,
    )  # fmt: skip


def _loads(job: _Job) -> list[RankLoad]:
    """Each rank's loader, for ranks that have read some batches."""
    return [
        RankLoad(
            number, of.workers, of.batches, of.batch_bytes, of.waiting_s, of.preprocess_s, of.handing_s, of.idle_s,
            of.step_s, of.next_s, limit=of.limit, reader_trains=of.reader_trains,
        )
        for number, of in sorted(job.load.ranks.items())
        if of.batch_bytes > 0 and of.step_s > 0
    ]  # fmt: skip


def _scenario(status: _Status, job: _Job, ranks: list[RankLoad]) -> Scenario:
    here, world = len(job.ranks), max(job.spec.world_size, len(job.ranks))
    of_nodes = -(-world // here)
    nodes = of_nodes if status.peers else 1
    batch_bytes = float(np.mean([rank.batch_bytes for rank in ranks]))
    batch = max(1, round(batch_bytes / job.sample_bytes.mean))
    computes_s = max(step_compute_s(ranks), LEAST_WORK_S)
    works_s = max(float(np.mean([rank.own_s for rank in ranks])), LEAST_WORK_S)
    source = _rate(status, "pfs")
    if not source:
        raise ConfigError("the bandwidth of the source is not known yet", "ask again once it was read from")
    staging = {"1": MEMORY_BYTES_PER_S / MB}
    classes = [
        {"name": tier.name, "capacity": tier.capacity_bytes, "read_MBps": _gives(status, tier) / MB, "threads": 1}
        for tier in status.tiers
        if not tier.passed_over
    ]
    # This node gets its share of the source while the others read as well.
    cluster = {
        "nodes": nodes, "gpus": here, "compute_MBps": here * batch_bytes / computes_s / MB,
        "preprocess_MBps": here * batch_bytes / works_s / MB,
        "network_MBps": (_rate(status, "peers") or NETWORK_BYTES_PER_S) / MB,
        "pfs_MBps": nodes * source / MB, "node_pfs_MBps": source / MB, "classes": classes,
        "staging": {
            "name": "staging", "capacity": status.staging.capacity_bytes, "read_MBps": staging,
            "threads": max(here, STAGING_THREADS),
        },
    }  # fmt: skip
    samples = min(MOST_SAMPLES, max(rank.samples_per_epoch for rank in job.ranks) * world)
    epochs = min(job.epochs, MOST_EPOCHS)
    fields = {
        "title": f"job {job.name} of {status.mountpoint}" + (f", {epochs} epochs" if epochs < job.epochs else ""),
        "cluster": cluster,
        "data": {"samples": samples, "mean": job.sample_bytes.mean, "deviation": job.sample_bytes.deviation},
        "job": {"epochs": epochs, "batch": here * batch, "of_nodes": of_nodes // nodes},
    }
    hint = "mlfs simulate SCENARIO.toml takes any numbers"
    return _checked(Scenario, fields, f"job {job.name}: what was measured cannot be simulated", hint)


def _rate(status: _Status, place: str) -> float:
    return status.rates.get(place, _Rates()).best


def _gives(status: _Status, tier: _Tier) -> float:
    return _rate(status, tier.name) or (MEMORY_BYTES_PER_S if tier.kind == "ram" else DISK_BYTES_PER_S)


def _checked(kind: type[Model], value: Any, said: str, hint: str) -> Model:
    """The value as that kind. Raises ConfigError with the first thing that is wrong with it."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"{said}: {f'{where}: ' if where else ''}{problem['msg']}", hint) from None
