"""Scenarios: a cluster, a data set and a job, from a TOML file or by a shipped name.

In: a path or a name. Out: a frozen `Scenario`. Called by `mlfs simulate` and the tests. Pydantic checks the fields; an
error is one line with the nearest right name.
"""

from __future__ import annotations

import os
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mlfs.errors import ConfigError, SourceError
from mlfs.lab.sim.gpu_queues import GpuNode
from mlfs.plan.model import MB, Curve, Floats, PerformanceModel, StorageClass
from mlfs.units import parse_size
from mlfs.user_input import MOST_TOML_BYTES, InputError, nearest, parse_toml, read_bytes

SHIPPED = "scenarios"
# Fields of a registered job that a scenario must not give, as they follow from its cluster and its job.
FOLLOW = ("epochs", "batch_size", "world_size", "ranks", "start_epoch", "start_step", "loader_drop_last")


def _size(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("write a size, for example 120GB")
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(parse_size(value))
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _capacity(value: object) -> float | tuple[float, ...]:
    """A size, or a list of them."""
    sizes = tuple(_size(size) for size in value) if isinstance(value, list) else (_size(value),)
    if not sizes or not 0 <= min(sizes) <= max(sizes) <= _MOST_BYTES:
        raise ValueError("write a size from 0, or a list of them, one for each node")
    return sizes if isinstance(value, list) else sizes[0]


def _in_range(rates: list[float]) -> bool:
    return all(_LEAST_MBPS <= rate <= _MOST_MBPS for rate in rates)


def _curve(value: object) -> dict[float, float]:
    points: dict[float, float] = {}
    try:
        if isinstance(value, dict):
            points = {float(count): float(rate) for count, rate in value.items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            points = {1.0: float(value)}
    except (TypeError, ValueError, OverflowError):
        points = {}
    rates = list(points.values())
    if not points or not 0 < min(points) <= max(points) <= _MOST_BYTES or not _in_range(rates):
        said = "write a number of MB/s, or points such as { 1 = 66, 4 = 146 }, all above 0"
        raise ValueError(f"{said}, and rates from {_LEAST_MBPS:g} to {_MOST_MBPS:g}")
    return points


def _portfolio(value: object) -> float | dict[float, dict[float, float]]:
    """A rate, points by threads, or points by threads for several sample sizes."""
    if isinstance(value, int | float) and not isinstance(value, bool) and _in_range([value]):
        return float(value)
    if not isinstance(value, dict) or not value:
        raise ValueError("write a number of MB/s above 0, or points by threads such as { 2 = 300, 4 = 600, ... }")
    by_size = value if any(isinstance(points, dict) for points in value.values()) else {1.0: value}
    portfolio = {_size(size): _curve(points) for size, points in by_size.items()}
    if any(len(points) < 4 for points in portfolio.values()):
        raise ValueError("points by threads: two lines are fitted to them, which needs four at least")
    return portfolio


# The most that can be simulated: arrays of so many samples fit a machine, and so many reads a gigabyte or two and a
# day. Sizes and rates beyond these are slips of the pen, and would leave the range of what is computed with them.
MOST_SAMPLES = 100_000_000
MOST_READS = 2_000_000_000
_MOST_THREADS = 1 << 16
_LEAST_MBPS, _MOST_MBPS = 1e-6, 1e12
_MOST_BYTES = 2.0**63

Bytes = Annotated[float, BeforeValidator(_size), Field(ge=0, le=_MOST_BYTES)]
Threads = Annotated[int, Field(ge=1, le=_MOST_THREADS)]
Capacity = Annotated[float | tuple[float, ...], BeforeValidator(_capacity)]
MBps = Annotated[float, Field(ge=_LEAST_MBPS, le=_MOST_MBPS)]
CurveMBps = Annotated[dict[float, float], BeforeValidator(_curve)]
PortfolioMBps = Annotated[float | dict[float, dict[float, float]], BeforeValidator(_portfolio)]


class _Table(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True)


class StagingTable(_Table):
    """The staging buffer of each node."""

    name: str
    capacity: Bytes
    read_MBps: CurveMBps
    write_MBps: CurveMBps | None = None
    threads: Threads


class ClassTable(_Table):
    """A storage class of each node; `capacity` is one size for all nodes, or a list with one for each node."""

    name: str
    capacity: Capacity
    read_MBps: CurveMBps
    write_MBps: CurveMBps | None = None
    threads: Threads

    def capacities_bytes(self, nodes: int) -> tuple[float, ...]:
        return self.capacity if isinstance(self.capacity, tuple) else (self.capacity,) * nodes

    @property
    def mean_bytes(self) -> float:
        """The mean of all nodes' capacities."""
        return sum(self.capacity) / len(self.capacity) if isinstance(self.capacity, tuple) else self.capacity


class ClusterTable(_Table):
    """The cluster (NoPFS, Table 2). The compute and preprocessing rates are those of all GPUs of a node together."""

    nodes: int = Field(ge=1, le=32767)
    gpus: int = Field(default=1, ge=1, le=1024)
    compute_MBps: MBps
    preprocess_MBps: PortfolioMBps
    preprocess_threads: int = Field(default=0, ge=0, le=_MOST_THREADS)
    network_MBps: MBps
    pfs_MBps: CurveMBps
    node_pfs_MBps: MBps = float("inf")
    staging: StagingTable
    classes: list[ClassTable] = []

    @model_validator(mode="after")
    def _threads(self) -> ClusterTable:
        if self.gpus > self.staging.threads:
            raise ValueError(f"{self.gpus} GPUs need as many staging threads at least, not {self.staging.threads}")
        if isinstance(self.preprocess_MBps, dict) != bool(self.preprocess_threads):
            raise ValueError("preprocess_threads and points of preprocess_MBps by threads must be given together")
        for index, table in enumerate(self.classes):
            sizes = len(table.capacities_bytes(self.nodes))
            if sizes != self.nodes:
                said = "write one size for all, or one for each node"
                raise ValueError(f"classes.{index}.capacity: {sizes} sizes for {self.nodes} nodes: {said}")
        return self


class DataTable(_Table):
    """The data set: normally distributed sizes, cut at 0, or the sizes of a real one."""

    samples: int = Field(default=0, ge=0)
    mean: Bytes = 0.0
    deviation: Bytes = 0.0
    source: str = ""

    @model_validator(mode="after")
    def _either(self) -> DataTable:
        if bool(self.source) == bool(self.samples):
            raise ValueError("give either source, a directory, or samples and mean")
        if self.samples and self.mean <= 0:
            raise ValueError("mean: the mean size must be above 0")
        return self


class JobTable(_Table):
    """The job: `batch` is one node's. `order`: fields of a registered job; without it, a permutation each epoch.

    of_nodes: the data set is dealt to so many times the cluster's nodes, and what the others read is none of the
    cluster's business: they are no peers of it.
    """

    epochs: int = Field(ge=1, le=10_000)
    batch: int = Field(ge=1, le=MOST_SAMPLES)
    drop_last: bool = False
    of_nodes: int = Field(default=1, ge=1, le=1_000_000)
    order: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _follows(self) -> JobTable:
        for name in FOLLOW if self.order is not None else ():
            if name in (self.order or {}):
                raise ValueError(f"order.{name}: leave it out, as it follows from the scenario")
        if self.order is not None and self.of_nodes > 1:
            raise ValueError("of_nodes: leave it out where order is given, which all nodes read")
        return self


class Scenario(_Table):
    """A cluster, a data set and a job."""

    title: str = ""
    note: str = ""
    seed: int = Field(default=0, ge=0)
    cluster: ClusterTable
    data: DataTable
    job: JobTable

    @property
    def model(self) -> PerformanceModel:
        cluster, job = self.cluster, self.job
        classes = [table for table in cluster.classes if table.mean_bytes > 0]
        by_class = [table.capacities_bytes(cluster.nodes) for table in classes]
        differ = any(len(set(sizes)) > 1 for sizes in by_class)
        return PerformanceModel(
            nodes=cluster.nodes,
            epochs=job.epochs,
            global_batch=job.batch * cluster.nodes,
            drop_last=job.drop_last,
            compute_bytes_per_s=cluster.compute_MBps * MB,
            preprocess_bytes_per_s=self._preprocess_bytes_per_s(),
            network_bytes_per_s=cluster.network_MBps * MB,
            pfs=_to_curve(cluster.pfs_MBps),
            staging=_to_class(cluster.staging, cluster.staging.capacity),
            classes=tuple(_to_class(table, table.mean_bytes) for table in classes),
            node_pfs_bytes_per_s=cluster.node_pfs_MBps * MB,
            capacities_by_node=tuple(zip(*by_class, strict=True)) if differ else (),
        )

    @property
    def node(self) -> GpuNode:
        """A node's GPUs and how they preprocess, which the performance model does not know."""
        cluster, points = self.cluster, self.cluster.preprocess_MBps
        curves = {size: _to_curve(curve) for size, curve in points.items()} if isinstance(points, dict) else {}
        return GpuNode(cluster.gpus, curves, cluster.preprocess_threads)

    def _preprocess_bytes_per_s(self) -> float:
        """beta; where it was measured by threads and sizes, that of the configured threads and the nearest size."""
        rate = self.cluster.preprocess_MBps
        if not isinstance(rate, dict):
            return rate * MB
        return self.node.preprocess_bytes_per_s(self.data.mean, self.cluster.preprocess_threads)

    def check_extent(self) -> None:
        """Raise ConfigError for more than can be simulated."""
        samples, reads = self.data.samples, self.data.samples * self.job.epochs
        if samples > MOST_SAMPLES or reads > MOST_READS:
            most = f"{MOST_SAMPLES:,} samples and {MOST_READS:,} reads can be simulated"
            raise ConfigError(f"{samples:,} samples in {self.job.epochs:,} epochs: {most}", "give --shrink N")
        step = self.job.batch * self.cluster.nodes
        if step > MOST_SAMPLES:
            said = f"job.batch: {self.job.batch:,} on {self.cluster.nodes:,} nodes are {step:,} samples a step"
            raise ConfigError(said, f"{MOST_SAMPLES:,} can be simulated")

    def sizes_bytes(self) -> Floats:
        """Sizes of all samples in whole bytes, shape (F,). Raises SourceError for a source that cannot be read."""
        if self.data.source:
            return source_sizes(self.data.source)
        generator = np.random.default_rng([self.seed, 1 << 33])
        sizes = generator.normal(self.data.mean, self.data.deviation, self.data.samples)
        return np.rint(np.maximum(sizes, 0.0))

    def resized(self, capacities: list[str]) -> Scenario:
        """The same scenario with other capacities of its first classes, the same for all nodes. Raises ConfigError for
        what is no size.
        """
        tables = list(self.cluster.classes)
        for index, capacity in enumerate(capacities):
            size_bytes = float(parse_size(capacity, what="capacity"))
            tables[index] = tables[index].model_copy(update={"capacity": size_bytes})
        return self.model_copy(update={"cluster": self.cluster.model_copy(update={"classes": tables})})

    def shrunk(self, factor: int) -> Scenario:
        """The same scenario with `factor` times fewer samples and less storage: the proportions stay
        (docs/simulator.md).

        Rates and batches are kept, so times shrink by the factor; the staging buffer keeps its size in steps.
        """
        classes = []
        for table in self.cluster.classes:
            sizes = table.capacity
            less = tuple(size / factor for size in sizes) if isinstance(sizes, tuple) else sizes / factor
            classes.append(table.model_copy(update={"capacity": less}))
        return self.model_copy(
            update={
                "cluster": self.cluster.model_copy(update={"classes": classes}),
                "data": self.data.model_copy(update={"samples": max(1, self.data.samples // factor)}),
            }
        )


def _to_curve(points: dict[float, float]) -> Curve:
    return Curve(tuple((count, rate * MB) for count, rate in sorted(points.items())))


def _to_class(table: StagingTable | ClassTable, capacity_bytes: float) -> StorageClass:
    read = _to_curve(table.read_MBps)
    write = _to_curve(table.write_MBps) if table.write_MBps else read
    return StorageClass(table.name, capacity_bytes, read, write, table.threads)


def source_sizes(source: str) -> Floats:
    """Sizes of all files below a directory, by the index that `mlfs mount` keeps."""
    from mlfs.tree.index import default_index_path, manifest_for

    path = os.path.realpath(source)
    try:
        source_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SourceError(f"{source}: {error.strerror}", "data.source names a directory of samples") from None
    try:
        manifest, _ = manifest_for(source_fd, path, default_index_path(path))
    finally:
        os.close(source_fd)
    sizes: Floats = manifest.columns()["size"][manifest.files].astype(np.float64)
    if not len(sizes):
        raise SourceError(f"{source}: no files", "data.source names a directory of samples")
    return sizes


def shipped_folder() -> Traversable:
    """The folder of the scenarios that come with mlfs."""
    return resources.files("mlfs.lab.sim") / SHIPPED


def shipped_names() -> list[str]:
    """Names of the scenarios that come with mlfs."""
    names = [entry.name for entry in shipped_folder().iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load(name: str) -> Scenario:
    """The scenario of that file or shipped name. Raises ConfigError: one line with the nearest right name."""
    if "/" not in name and not name.endswith(".toml"):
        if name not in shipped_names():
            raise ConfigError(f"no scenario {name!r}", nearest_of(name, shipped_names()))
        text = (shipped_folder() / f"{name}.toml").read_bytes()
    else:
        try:
            text = read_bytes(name, MOST_TOML_BYTES)
        except OSError as error:
            hint = f"a TOML file, or one of {', '.join(shipped_names())}"
            raise ConfigError(f"{name}: {error.strerror}", hint) from None
    return parse(text, name)


def parse(text: str | bytes, name: str) -> Scenario:
    """The scenario of a TOML text; `name` is for the error."""
    try:
        return Scenario.model_validate(parse_toml(text))
    except InputError as error:
        raise ConfigError(f"{name}: {error}") from None
    except ValidationError as error:
        # An unknown key says more than the missing one that it was meant to be.
        problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        raise _refusal(problems[0], name) from None


def _refusal(problem: Any, name: str) -> ConfigError:
    """One line for pydantic's first complaint."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        table: Any = Scenario
        for part in problem["loc"][:-1]:
            if not isinstance(part, int):
                table = _TABLES.get(part, table)
        return ConfigError(
            f"{name}: unknown key {where}", nearest_of(str(problem["loc"][-1]), list(table.model_fields))
        )
    said = "is missing" if problem["type"] == "missing" else problem["msg"].removeprefix("Value error, ")
    return ConfigError(f"{name}: {where}: {said}" if where else f"{name}: {said}", "see docs/simulator.md")


_TABLES: dict[str, Any] = {
    "cluster": ClusterTable,
    "data": DataTable,
    "job": JobTable,
    "staging": StagingTable,
    "classes": ClassTable,
}


def nearest_of(name: str, names: list[str]) -> str:
    """A hint: the nearest right name, or all of them."""
    return nearest(name, names) or f"one of {', '.join(names)}"
