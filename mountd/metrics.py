"""The metrics of a mount, as Prometheus reads them.

In: frozen figures (mountd.statistics). Out: text. Called by mountd.control.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mlfs.engine.statistics import EngineStatistics
from mlfs.follow.agreement import NO_RANK
from mlfs.follow.job_statistics import JobStatistics
from mlfs.stats import PAGE_CACHE, CounterStatistics, Tally
from mountd.statistics import MountStatistics


def metrics(now: MountStatistics) -> bytes:
    """Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(now))
    return generate_latest(registry)


class _Families(Collector):
    """All families of one moment."""

    def __init__(self, now: MountStatistics) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        engine = self._now.engine
        yield from _counters(engine.counters, engine.errors)
        yield from _places(engine)
        yield from _jobs(engine.jobs)
        rss_bytes = self._now.process.rss_bytes
        yield GaugeMetricFamily("mlfs_rss_bytes", "Resident memory of the daemon", value=rss_bytes)


def _counters(counters: CounterStatistics, failures: Mapping[str, int]) -> Iterator[Metric]:
    # What counts as staged when a file is opened stays so here: a counter must not fall.
    reads = CounterMetricFamily("mlfs_reads", "Opens by where the bytes were when the open came", labels=["route"])
    read_bytes = CounterMetricFamily("mlfs_read_bytes", "Bytes of those opens", labels=["route"])
    gone = CounterMetricFamily(
        "mlfs_reads_taken_back",
        "Opens from the page cache whose pages the kernel had taken back, by where they were answered",
        labels=["route"],
    )
    for route, tally in counters.all.reads.items():
        taken_back = counters.all.taken_back[route]
        opened = counters.all.staged if route == PAGE_CACHE else tally
        late = taken_back if route != PAGE_CACHE else Tally()
        reads.add_metric([route], opened.count - late.count)
        read_bytes.add_metric([route], opened.bytes - late.bytes)
        gone.add_metric([route], taken_back.count)
    fetches = CounterMetricFamily("mlfs_fetches", "Samples fetched by where from", labels=["route"])
    fetched = CounterMetricFamily("mlfs_fetched_bytes", "Bytes of those fetches", labels=["route"])
    for route, tally in counters.all.fetches.items():
        fetches.add_metric([route], tally.count)
        fetched.add_metric([route], tally.bytes)
    errors = CounterMetricFamily("mlfs_errors", "Failures by kind", labels=["kind"])
    for kind, count in failures.items():
        errors.add_metric([kind], count)
    stalls = counters.all.stalls
    yield from (reads, read_bytes, gone, fetches, fetched)
    yield CounterMetricFamily("mlfs_stalls", "Reads that had to wait", value=stalls.count)
    yield CounterMetricFamily("mlfs_stall_seconds", "Seconds readers waited", value=stalls.total_s)
    yield errors


def _places(engine: EngineStatistics) -> Iterator[Metric]:
    window_bytes = engine.scheduler.window_bytes
    yield GaugeMetricFamily("mlfs_staging_bytes", "Bytes in the staging window", value=window_bytes)
    used = GaugeMetricFamily("mlfs_tier_bytes", "Bytes held by a tier", labels=["tier"])
    for place in engine.places:
        used.add_metric([place.name], place.used_bytes)
    yield used


def _jobs(jobs: Iterable[JobStatistics]) -> Iterator[Metric]:
    agreement = GaugeMetricFamily("mlfs_agreement", "Share of opens that were predicted", labels=["job"])
    by_rank = GaugeMetricFamily(
        "mlfs_epoch_agreement", "Share of opens that were predicted, in a rank's latest epoch", labels=["job", "rank"]
    )
    epoch = GaugeMetricFamily("mlfs_epoch", "Epoch of a rank", labels=["job", "rank"])
    for job in jobs:
        if job.share.opens:
            agreement.add_metric([job.name], job.share.share)
        for rank in job.ranks:
            epoch.add_metric([job.name, str(rank.rank)], rank.epoch)
        latest = {rank: share.share for shares in job.shares.values() for rank, share in shares.items()}
        for number, share in sorted(latest.items()):
            if number != NO_RANK:
                by_rank.add_metric([job.name, str(number)], share)
    yield from (agreement, by_rank, epoch)
