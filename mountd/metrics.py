"""The metrics of a mount, as Prometheus reads them.

In: frozen figures (mountd.statistics). Out: text. Called by mountd.control. `METRICS` has them all, and docs/metrics.md
the same table for people: a name that was once in it keeps its meaning, its unit and its labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlfs.engine.statistics import EngineStatistics
from mlfs.follow.agreement import NO_RANK
from mlfs.follow.job_statistics import JobStatistics
from mlfs.places.source_statistics import RootState
from mlfs.plan.loader_load import JobLoad
from mlfs.printable import printable
from mlfs.stats import PAGE_CACHE, CounterStatistics, Tally
from mountd.statistics import MountStatistics

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
else:
    Collector = object  # prometheus_client is imported by the first who reads metrics, beside the loop: see `metrics`

# A value of the metric: its name, the values of its own labels, the value.
_Value = tuple[str, tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric. All have the label `mountpoint` too, since a machine may have several mounts.

    Attributes:
        name: as it is exported; that of a counter ends in _total.
        unit: "1" for what has none.
    """

    name: str
    unit: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def kind(self) -> str:
        """`counter`: it only grows while the mount lives. `gauge`: it is what it is now."""
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS = (
    Definition("mlfs_info", "1", ("source", "version"), "Always 1; says what is mounted, and by which mlfs"),
    Definition("mlfs_uptime_seconds", "seconds", (), "Time since the mount"),
    Definition("mlfs_rss_bytes", "bytes", (), "Resident memory of the daemon"),
    Definition("mlfs_reads_total", "opens", ("route",), "Opens by where the bytes were when the open came"),
    Definition("mlfs_read_bytes_total", "bytes", ("route",), "Bytes of those opens"),
    Definition(
        "mlfs_reads_taken_back_total",
        "opens",
        ("route",),
        "Opens from the page cache whose pages the kernel had taken back, by where they were answered",
    ),
    Definition("mlfs_fetches_total", "samples", ("route",), "Samples fetched, by where from"),
    Definition("mlfs_fetched_bytes_total", "bytes", ("route",), "Bytes of those fetches"),
    Definition("mlfs_stalls_total", "reads", (), "Reads that had to wait"),
    Definition("mlfs_stall_seconds_total", "seconds", (), "Time that readers waited, all together"),
    Definition("mlfs_failed_reads_total", "reads", (), "Reads that failed for readers"),
    Definition("mlfs_source_there", "1", (), "1 while the source's file system is there, 0 while it is gone"),
    Definition(
        "mlfs_source_opened_again_total", "times", (), "Times that the source was gone or hung, and was found again"
    ),
    Definition(
        "mlfs_source_hanging_seconds", "seconds", (), "Time that the source has not answered; 0 below two seconds"
    ),
    Definition("mlfs_errors_total", "failures", ("kind",), "Failures that were survived, by kind"),
    Definition("mlfs_staging_bytes", "bytes", (), "Bytes in the staging window"),
    Definition("mlfs_staging_capacity_bytes", "bytes", (), "Most bytes that the staging window may have"),
    Definition("mlfs_tier_bytes", "bytes", ("tier",), "Bytes held by a tier"),
    Definition("mlfs_tier_capacity_bytes", "bytes", ("tier",), "Most bytes that a tier may hold"),
    Definition("mlfs_job_reading_seconds_total", "seconds", ("job",), "Time from a job's first read to its last one"),
    Definition(
        "mlfs_job_stalled_seconds_total", "seconds", ("job",), "Time in which a job's readers waited, all together"
    ),
    Definition(
        "mlfs_rank_load_seconds",
        "seconds",
        ("job", "rank", "part"),
        "Where a loader's process spends the time of one batch, as a mean of the last batches",
    ),
    Definition(
        "mlfs_imbalance", "ratio", ("job",), "How far apart the ranks' loading times of a step are, of the slowest's"
    ),
    Definition(
        "mlfs_imbalanced_steps", "ratio", ("job",), "Share of the last steps in which some ranks load too long, not all"
    ),
    Definition("mlfs_agreement", "ratio", ("job",), "Share of a job's opens that were predicted"),
    Definition(
        "mlfs_epoch_agreement", "ratio", ("job", "rank"), "The same in the latest epoch of which a rank has read"
    ),
    Definition("mlfs_epoch", "epoch", ("job", "rank"), "The epoch that a rank is in, from 0"),
)


def metrics(now: MountStatistics) -> bytes:
    """Prometheus text."""
    # The library brings an HTTP server and a reader of e-mail, which each start of a mount would wait for.
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(now))
    return generate_latest(registry)


class _Families(Collector):
    """All families of one moment."""

    def __init__(self, now: MountStatistics) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = self._now
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for one in METRICS:
            family = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
            families[one.name] = family(one.name, one.meaning, labels=("mountpoint", *one.labels))
        told = (
            _mount(now), _source(now), _counters(now.engine.counters, now.engine.errors), _places(now.engine),
            _jobs(now.engine),
        )  # fmt: skip
        for values in told:
            for name, labels, value in values:
                families[name].add_metric([printable(label) for label in (now.about.mountpoint, *labels)], value)
        yield from families.values()


def _mount(now: MountStatistics) -> Iterator[_Value]:
    yield "mlfs_info", (now.about.source, now.process.version), 1
    yield "mlfs_uptime_seconds", (), now.process.uptime_s
    yield "mlfs_rss_bytes", (), now.process.rss_bytes


def _source(now: MountStatistics) -> Iterator[_Value]:
    root = now.source.root
    yield "mlfs_failed_reads_total", (), now.read_failures.count
    yield "mlfs_source_there", (), int(root.state is RootState.THERE)
    yield "mlfs_source_opened_again_total", (), root.opened_again
    yield "mlfs_source_hanging_seconds", (), now.source.longest_s


def _counters(counters: CounterStatistics, failures: Mapping[str, int]) -> Iterator[_Value]:
    # What counts as staged when a file is opened stays so here: a counter must not fall.
    for route, tally in counters.all.reads.items():
        taken_back = counters.all.taken_back[route]
        opened = counters.all.staged if route == PAGE_CACHE else tally
        late = taken_back if route != PAGE_CACHE else Tally()
        yield "mlfs_reads_total", (route,), opened.count - late.count
        yield "mlfs_read_bytes_total", (route,), opened.bytes - late.bytes
        yield "mlfs_reads_taken_back_total", (route,), taken_back.count
    for route, tally in counters.all.fetches.items():
        yield "mlfs_fetches_total", (route,), tally.count
        yield "mlfs_fetched_bytes_total", (route,), tally.bytes
    for kind, count in failures.items():
        yield "mlfs_errors_total", (kind,), count
    yield "mlfs_stalls_total", (), counters.all.stalls.count
    yield "mlfs_stall_seconds_total", (), counters.all.stalls.total_s


def _places(engine: EngineStatistics) -> Iterator[_Value]:
    yield "mlfs_staging_bytes", (), engine.scheduler.window_bytes
    yield "mlfs_staging_capacity_bytes", (), engine.scheduler.window_capacity_bytes
    for place in engine.places:
        yield "mlfs_tier_bytes", (place.name,), place.used_bytes
        yield "mlfs_tier_capacity_bytes", (place.name,), place.capacity_bytes


def _jobs(engine: EngineStatistics) -> Iterator[_Value]:
    for name, time in engine.scheduler.reading.items():
        yield "mlfs_job_reading_seconds_total", (name,), time.reading_s
        yield "mlfs_job_stalled_seconds_total", (name,), time.stalled_s
    for job in engine.jobs:
        yield from _load(job, engine.loads.get(job.name))
        if job.share.opens:
            yield "mlfs_agreement", (job.name,), job.share.share
        for rank in job.ranks:
            yield "mlfs_epoch", (job.name, str(rank.rank)), rank.epoch
        latest = {rank: share.share for shares in job.shares.values() for rank, share in shares.items()}
        for number, share in sorted(latest.items()):
            if number != NO_RANK:
                yield "mlfs_epoch_agreement", (job.name, str(number)), share


def _load(job: JobStatistics, load: JobLoad | None) -> Iterator[_Value]:
    for of in load.ranks if load is not None else ():
        parts = {
            "waiting": of.waiting_s, "preprocessing": of.preprocess_s, "handing": of.handing_s, "idle": of.idle_s,
        }  # fmt: skip
        for name, seconds in parts.items():
            yield "mlfs_rank_load_seconds", (job.name, str(job.ranks[of.rank].rank), name), seconds
    if load is not None and load.compares:
        yield "mlfs_imbalance", (job.name,), load.imbalance.apart
        yield "mlfs_imbalanced_steps", (job.name,), load.imbalance.steps
