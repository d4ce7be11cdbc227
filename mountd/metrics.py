"""The metrics of a mount, as Prometheus reads them.

In: frozen figures (mountd.statistics). Out: text. Called by mountd.control. `metrics_of` is the list of them all, and
docs/metrics.md the same table for people: a name that was once in it keeps its meaning, its unit and its labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from mlfs.follow.agreement import NO_RANK
from mlfs.places.source_statistics import RootState
from mlfs.printable import printable
from mlfs.stats import PAGE_CACHE
from mountd.statistics import MountStatistics

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector
else:
    Collector = object  # prometheus_client is imported by the first who reads metrics, beside the loop: see `metrics`


class Metric(NamedTuple):
    """A metric. All have the label `mountpoint` too, since a machine may have several mounts.

    Attributes:
        name: as it is exported; that of a counter ends in _total.
        unit: "1" for what has none.
        values: what it is now: a number, or numbers by the values of its labels (one label's value stands alone).
    """

    name: str
    unit: str
    meaning: str
    values: float | Mapping[str, float] | Mapping[tuple[str, str], float] | Mapping[tuple[str, str, str], float]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`counter`: it only grows while the mount lives. `gauge`: it is what it is now."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def family(self, mountpoint: str) -> Family:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self.meaning, labels=("mountpoint", *self.labels))
        for labels, value in self.values.items() if isinstance(self.values, Mapping) else [((), self.values)]:
            own = (labels,) if isinstance(labels, str) else labels
            family.add_metric([printable(label) for label in (mountpoint, *own)], value)
        return family


def metrics_of(now: MountStatistics) -> list[Metric]:
    process, engine, source, counted = now.process, now.engine, now.source, now.engine.counters.all
    window, reading = engine.scheduler, engine.scheduler.reading
    # A file that counts as staged when it is opened stays so, though its pages were taken back: a counter must not
    # fall.
    opened = {
        route: (counted.staged.count, counted.staged.bytes)
        if route == PAGE_CACHE
        else (tally.count - counted.taken_back[route].count, tally.bytes - counted.taken_back[route].bytes)
        for route, tally in counted.reads.items()
    }
    loads = [(job, engine.loads[job.name]) for job in engine.jobs if job.name in engine.loads]
    load_s = {
        (job.name, str(job.ranks[of.rank].rank), part): seconds
        for job, load in loads
        for of in load.ranks
        for part, seconds in (
            ("waiting", of.waiting_s), ("preprocessing", of.preprocess_s), ("handing", of.handing_s),
            ("idle", of.idle_s),
        )
    }  # fmt: skip
    uneven = {job.name: load.imbalance for job, load in loads if load.compares}
    latest = {
        (job.name, str(rank)): share.share
        for job in engine.jobs
        for rank, share in sorted({rank: one for of in job.shares.values() for rank, one in of.items()}.items())
        if rank != NO_RANK
    }
    return [
        Metric(
            "mlfs_info", "1", "Always 1; says what is mounted, and by which mlfs",
            {(now.about.source, process.version): 1}, ("source", "version"),
        ),
        Metric("mlfs_uptime_seconds", "seconds", "Time since the mount", process.uptime_s),
        Metric("mlfs_rss_bytes", "bytes", "Resident memory of the daemon", process.rss_bytes),
        Metric(
            "mlfs_process_rss_bytes", "bytes", "Resident memory of each process of the mount",
            {one.name: one.rss_bytes for one in now.processes}, ("process",),
        ),
        Metric(
            "mlfs_process_cpu_seconds", "seconds", "What each process of the mount has computed since it was started",
            {one.name: one.cpu_s for one in now.processes}, ("process",),
        ),
        Metric(
            "mlfs_process_restarts_total", "times", "Times that a process of the mount was started again",
            {one.name: one.restarts for one in now.processes}, ("process",),
        ),
        Metric(
            "mlfs_reads_total", "opens", "Opens by where the bytes were when the open came",
            {route: count for route, (count, _) in opened.items()}, ("route",),
        ),
        Metric(
            "mlfs_read_bytes_total", "bytes", "Bytes of those opens",
            {route: size_bytes for route, (_, size_bytes) in opened.items()}, ("route",),
        ),
        Metric(
            "mlfs_reads_taken_back_total", "opens",
            "Opens from the page cache whose pages the kernel had taken back, by where they were answered",
            {route: tally.count for route, tally in counted.taken_back.items()}, ("route",),
        ),
        Metric(
            "mlfs_fetches_total", "samples", "Samples fetched, by where from",
            {route: tally.count for route, tally in counted.fetches.items()}, ("route",),
        ),
        Metric(
            "mlfs_fetched_bytes_total", "bytes", "Bytes of those fetches",
            {route: tally.bytes for route, tally in counted.fetches.items()}, ("route",),
        ),
        Metric("mlfs_stalls_total", "reads", "Reads that had to wait", counted.stalls.count),
        Metric(
            "mlfs_stall_seconds_total", "seconds", "Time that readers waited, all together", counted.stalls.total_s
        ),
        Metric("mlfs_failed_reads_total", "reads", "Reads that failed for readers", now.read_failures.count),
        Metric(
            "mlfs_crashes_total", "requests", "Requests that failed as servers had crashed at them", now.crashes.count
        ),
        Metric(
            "mlfs_source_there", "1", "1 while the source's file system is there, 0 while it is gone",
            source.root.state is RootState.THERE,
        ),
        Metric(
            "mlfs_source_opened_again_total", "times", "Times that the source was gone or hung, and was found again",
            source.root.opened_again,
        ),
        Metric(
            "mlfs_source_hanging_seconds", "seconds", "Time that the source has not answered; 0 below two seconds",
            source.hanging_s,
        ),
        Metric("mlfs_errors_total", "failures", "Failures that were survived, by kind", engine.errors, ("kind",)),
        Metric("mlfs_staging_bytes", "bytes", "Bytes in the staging window", window.window_bytes),
        Metric(
            "mlfs_staging_capacity_bytes", "bytes", "Most bytes that the staging window may have",
            window.window_capacity_bytes,
        ),
        Metric(
            "mlfs_tier_bytes", "bytes", "Bytes held by a tier",
            {place.name: place.used_bytes for place in engine.places}, ("tier",),
        ),
        Metric(
            "mlfs_tier_capacity_bytes", "bytes", "Most bytes that a tier may hold",
            {place.name: place.capacity_bytes for place in engine.places}, ("tier",),
        ),
        Metric(
            "mlfs_job_reading_seconds_total", "seconds", "Time from a job's first read to its last one",
            {name: time.reading_s for name, time in reading.items()}, ("job",),
        ),
        Metric(
            "mlfs_job_stalled_seconds_total", "seconds", "Time in which a job's readers waited, all together",
            {name: time.stalled_s for name, time in reading.items()}, ("job",),
        ),
        Metric(
            "mlfs_rank_load_seconds", "seconds",
            "Where a loader's process spends the time of one batch, as a mean of the last batches",
            load_s, ("job", "rank", "part"),
        ),
        Metric(
            "mlfs_imbalance", "ratio", "How far apart the ranks' loading times of a step are, of the slowest's",
            {name: of.apart for name, of in uneven.items()}, ("job",),
        ),
        Metric(
            "mlfs_imbalanced_steps", "ratio", "Share of the last steps in which some ranks load too long, not all",
            {name: of.steps for name, of in uneven.items()}, ("job",),
        ),
        Metric(
            "mlfs_agreement", "ratio", "Share of a job's opens that were predicted",
            {job.name: job.share.share for job in engine.jobs if job.share.opens}, ("job",),
        ),
        Metric(
            "mlfs_epoch_agreement", "ratio", "The same in the latest epoch of which a rank has read",
            latest, ("job", "rank"),
        ),
        Metric(
            "mlfs_epoch", "epoch", "The epoch that a rank is in, from 0",
            {(job.name, str(rank.rank)): rank.epoch for job in engine.jobs for rank in job.ranks}, ("job", "rank"),
        ),
    ]  # fmt: skip


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

    def collect(self) -> Iterator[Family]:
        return (one.family(self._now.about.mountpoint) for one in metrics_of(self._now))
