"""The status of a mount as JSON and as Prometheus metrics.

In: the engine's state. Out: plain dicts and text, made when somebody reads them. Called by mountd.control, on the loop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import mlfs
from mlfs.engine.engine import Engine
from mlfs.explain.explainer import Explainer
from mlfs.follow.agreement import by_epoch, of_rank, whole
from mlfs.follow.job import GAVE_UP, JobRun, JobState
from mlfs.follow.loader import loader_of
from mlfs.plan.placement import pfs_bound_bytes
from mlfs.plan.scheduler.states import State
from mlfs.units import format_size
from mountd.prime_inodes import InodePrimer

Json = dict[str, object]

MISSING_PREDICTION = (
    "job {name}: reads don't come in the registered order (agreement {percent:.0f} % of the last {opens}); nothing is"
    " fetched ahead. Likely: another seed, set_epoch not called, another world size or batch size, or shuffle off"
    " (mlfs register again with what the script does; mlfs order SOURCE prints what a registration expects)."
)
INFERRED = (
    "no job is registered: the order of reads was inferred from what was read first, and may prove wrong (mlfs register"
    " tells it for sure; mount with --infer off to forbid guessing)"
)

PASSED_OVER = (
    "{name} is slower than the source ({tier:.3g} and {source:.3g} MB/s) and readers wait: while that lasts, its"
    " samples are read from the source ({size} so far, on top of the bound)"
)
FOUND_OUT = "job {name}: {what} (found out from the reads; the last {opens} opens before were counted anew{way_out})"
WAY_OUT = "; to say so from the start: mlfs register with {flags}"
SHOWN_EPOCHS = 100


@dataclass(frozen=True, slots=True)
class About:
    """What never changes while a mount lives."""

    source: str
    mountpoint: str
    how: str
    started: float
    requests: Callable[[], dict[str, int]]


def status(engine: Engine, about: About, explainer: Explainer, primer: InodePrimer) -> Json:
    """Everything `mlfs status` shows."""
    now, counters = engine.scheduler.statistics(), engine.counters
    return {
        "version": mlfs.__version__,
        "pid": os.getpid(),
        "source": about.source,
        "mountpoint": about.mountpoint,
        "state": "draining" if now.stopped else "serving",
        "uptime_s": round(time.time() - about.started, 3),
        "messages": messages(engine),
        "inference": explainer.status(),
        "jobs": [job_status(engine, explainer, job) for job in engine.jobs.values()],
        "reads": {"all": counters.all.as_dict()["reads"], "epoch": counters.epoch.as_dict()["reads"]},
        "fetches": counters.all.as_dict()["fetches"],
        "stalls": counters.all.stalls.as_dict() | {"epoch": counters.epoch.stalls.as_dict()},
        "pfs": pfs_status(engine),
        "tiers": tiers_status(engine),
        "rates": rates_status(engine),
        "plan": plan_status(engine),
        "staging": {"capacity_bytes": now.window_capacity_bytes, "used_bytes": now.window_bytes},
        "manifest": {
            "files": engine.manifest.n_files,
            "bytes": engine.manifest.total_bytes,
            "how": about.how,
            "changed": engine.changed_files,
        },
        "under_way": engine.under_way() | {"directories_to_list": primer.waiting()},
        "errors": dict(counters.errors),
        "requests": about.requests(),
        "memory": {"rss_bytes": rss_bytes()},
    }


def passed_over(engine: Engine) -> list[str]:
    """Tiers that are slower than the source, in plain words."""
    said, routing = [], engine.scheduler.statistics().routing
    for number, place in enumerate(engine.places):
        found = routing.found[number]
        if routing.left[number] and found is not None:
            rates = (found.tier_bytes_per_s / 1e6, found.source_bytes_per_s / 1e6)
            size = format_size(engine.counters.by_choice.bytes)
            said.append(PASSED_OVER.format(name=place.name, tier=rates[0], source=rates[1], size=size))
    return said


def messages(engine: Engine) -> list[str]:
    """What a person should know, in plain words."""
    said = passed_over(engine)
    if not engine.jobs:
        said.append("no job is registered: reads are served as they come, nothing is fetched ahead (mlfs register)")
    for job in engine.jobs.values():
        if job.given_up:
            said.append(f"job {job.spec.name}: {GAVE_UP}")
            continue
        if job.inferred:
            said.append(INFERRED)
        if job.findings.known:
            way_out = WAY_OUT.format(flags=job.findings.way_out) if job.findings.way_out else ""
            told = {"what": job.findings.known[-1], "opens": job.findings.counted_anew, "way_out": way_out}
            said.append(FOUND_OUT.format(name=job.spec.name, **told))
        if job.state == JobState.DRIFTING:
            percent = 100 * (job.score.agreement or 0.0)
            opens = job.score.recent_opens
            said.append(MISSING_PREDICTION.format(name=job.spec.name, percent=percent, opens=opens))
    if engine.changed_files:
        said.append(f"{engine.changed_files} files changed at the source since the scan; readers got the new content")
    return said


def job_status(engine: Engine, explainer: Explainer, job: JobRun) -> Json:
    """One job's part of the status."""
    score = job.score
    return {
        "name": job.spec.name,
        "inferred": job.inferred,
        "state": str(job.state),
        "agreement": round(score.agreed / score.observed, 6) if score.observed else 0.0,
        "agreement_recent": round(score.agreement or 0.0, 6),
        "observed_opens": score.observed,
        "agreement_by_epoch": agreement_by_epoch(job),
        "loader": loader_of(job),
        "reading_s": round(engine.rates.reading_s(job.spec.name), 6),
        "stalled_s": round(engine.rates.stalled_s(job.spec.name), 6),
        "found_out": job.findings.known,
        "way_out": job.findings.way_out,
        "counted_anew": job.findings.counted_anew,
        "searching": explainer.searching(job.spec.name),
        "searches": explainer.searches(job.spec.name),
        "epochs": job.spec.epochs,
        "ranks": [rank_status(engine, job, index) for index in range(len(job.spec.ranks))],
        "pfs_bytes_by_epoch": {str(epoch): n for epoch, n in sorted(job.bytes_read.pfs_by_epoch.items())},
        "spec": job.spec.understood(),
    }


def agreement_by_epoch(job: JobRun) -> Json:
    """Share of each epoch's opens that were predicted, in all and by rank; opens of no rank count in the first only."""
    return {
        str(epoch): {
            "agreement": round(whole(shares).share, 6),
            "observed_opens": whole(shares).opens,
            "ranks": {str(rank): round(share.share, 6) for rank, share in sorted(shares.items()) if rank >= 0},
        }
        for epoch, shares in sorted(by_epoch(job).items())[-SHOWN_EPOCHS:]
    }


def rank_status(engine: Engine, job: JobRun, index: int) -> Json:
    """How far one rank is, and how far ahead of it samples are staged."""
    progress = job.matcher.ranks[index]
    epoch = job.epochs.epoch_of(progress.frontier)
    length = max(1, job.streams.length(epoch))
    offset = progress.frontier - job.epochs.timeline.base(epoch)
    batch = job.streams.batch_files
    samples, staged_bytes = staged_ahead(engine, job, index)
    rate = job.rates.by_rank.get(index, 0.0)
    return {
        "rank": job.spec.ranks[index],
        "epoch": epoch,
        "step": min(offset, length) // batch,
        "position": offset,
        "samples_per_epoch": length // job.streams.files_per_sample,
        "steps_per_epoch": -(-length // batch),
        "agreement": round(of_rank(job, index), 6),
        "reads_here": index not in job.ranks.silent,
        "ahead": {
            "samples": samples,
            "bytes": staged_bytes,
            "seconds": round(samples / rate, 3) if rate > 0 else None,
        },
    }


def staged_ahead(engine: Engine, job: JobRun, index: int) -> tuple[int, int]:
    """Samples and bytes that lie in the page cache for the rank, from its next read on without a gap.

    What was read out of turn leaves no gap: it is not read again.
    """
    progress = job.matcher.ranks[index]
    position, samples, total = progress.frontier, 0, 0
    uses = engine.scheduler.uses.get(job.name)
    cursor = uses.cursors[index] if uses is not None else position
    state, sizes = engine.scheduler.table.state, engine.samples.sizes
    while position < cursor:
        epoch = job.epochs.index_at(position)
        if epoch is None:
            break
        for entry in epoch.ids[index][position - epoch.base : cursor - epoch.base].tolist():
            if entry >= 0 and not progress.is_done(position):
                if state[entry] not in (State.STAGED, State.RECENT):
                    return samples, total
                samples += 1
                total += sizes[entry]
            position += 1
    return samples, total


def pfs_status(engine: Engine) -> Json:
    """Bytes read from the PFS, beside the least that any cache of this size could do with."""
    capacity = sum(place.capacity_bytes for place in engine.places.storing)
    by_epoch: dict[int, int] = {}
    stream_bytes = 0
    epoch = 0
    for job in engine.jobs.values():
        for number, count in job.bytes_read.pfs_by_epoch.items():
            by_epoch[number] = by_epoch.get(number, 0) + count
        epoch = max(epoch, job.ranks.current_epochs()[1])
        stream_bytes += job.bytes_read.stream_bytes
    return {
        "total_bytes": engine.counters.all.fetches["pfs"].bytes,
        "by_choice_bytes": engine.counters.by_choice.bytes,
        "epoch_bytes": by_epoch.get(epoch, 0),
        "bound_bytes": pfs_bound_bytes(stream_bytes, capacity),
        "epoch": epoch,
        "by_epoch": {str(number): count for number, count in sorted(by_epoch.items())},
    }


def tiers_status(engine: Engine) -> list[Json]:
    """How full each storage class is."""
    held_by, left = engine.scheduler.table.held_by, engine.scheduler.statistics().routing.left
    return [
        {
            "name": place.name,
            "class": str(place.kind),
            "capacity_bytes": place.capacity_bytes,
            "used_bytes": place.used_bytes,
            "samples": held_by.count(number),
            "errors": place.errors,
            "passed_over": left[number],
        }
        for number, place in enumerate(engine.places.storing, 1)
    ]


def rates_status(engine: Engine) -> Json:
    """Bandwidth of each place by lanes: measured while the mount runs, calibrated before, and refined from both."""
    rates = engine.rates
    return {
        name: {
            "measured": [[lanes, round(rate)] for lanes, rate, _ in rates.measured(pool)],
            "calibrated": [[lanes, round(rate)] for lanes, rate in engine.limits.calibrated.get(name, ())],
            "refined": [[round(lanes), round(rate)] for lanes, rate in engine.speeds.points(name)],
        }
        for name, pool in engine.speeds.places.items()
    }


def plan_status(engine: Engine) -> Json:
    """What the node keeps: what comes first, or what it reads most."""
    keeping = engine.scheduler.statistics().keeping
    kind = "most read" if keeping.planned else "first read, first kept"
    return {"keeps": kind, "being_counted": engine.planner.being_counted, **keeping.about} | loading_status(engine)


def loading_status(engine: Engine) -> Json:
    """How long an epoch after the first takes to load at least, and what rules; nothing while that is not known."""
    left = engine.scheduler.statistics().routing.left[1 : 1 + len(engine.places.storing)]
    loading = engine.speeds.loading(sum(job.bytes_read.stream_bytes for job in engine.jobs.values()), left)
    if loading is None:
        return {}
    busy = {name: round(seconds, 3) for name, seconds in loading.busy_s.items() if seconds}
    return {"loading": {"epoch_s": round(loading.seconds, 3), "rules": loading.rules, "busy_s": busy}}


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _EngineCollector(Collector):
    """Turns the counters into Prometheus families."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        engine = self.engine
        reads = CounterMetricFamily("mlfs_reads", "Opens by where the bytes were", labels=["route"])
        read_bytes = CounterMetricFamily("mlfs_read_bytes", "Bytes of those opens", labels=["route"])
        for route, tally in engine.counters.all.reads.items():
            reads.add_metric([route], tally.count)
            read_bytes.add_metric([route], tally.bytes)
        fetches = CounterMetricFamily("mlfs_fetches", "Samples fetched by where from", labels=["route"])
        fetched = CounterMetricFamily("mlfs_fetched_bytes", "Bytes of those fetches", labels=["route"])
        for route, tally in engine.counters.all.fetches.items():
            fetches.add_metric([route], tally.count)
            fetched.add_metric([route], tally.bytes)
        yield from (reads, read_bytes, fetches, fetched)
        stalls = engine.counters.all.stalls
        yield CounterMetricFamily("mlfs_stalls", "Reads that had to wait", value=stalls.count)
        yield CounterMetricFamily("mlfs_stall_seconds", "Seconds readers waited", value=stalls.total_s)
        errors = CounterMetricFamily("mlfs_errors", "Failures by kind", labels=["kind"])
        for kind, count in engine.counters.errors.items():
            errors.add_metric([kind], count)
        yield errors
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        window_bytes = self.engine.scheduler.statistics().window_bytes
        yield GaugeMetricFamily("mlfs_staging_bytes", "Bytes in the staging window", value=window_bytes)
        used = GaugeMetricFamily("mlfs_tier_bytes", "Bytes held by a tier", labels=["tier"])
        for tier in tiers_status(self.engine):
            used.add_metric([str(tier["name"])], float(str(tier["used_bytes"])))
        yield used
        agreement = GaugeMetricFamily("mlfs_agreement", "Share of opens that were predicted", labels=["job"])
        by_rank = GaugeMetricFamily(
            "mlfs_epoch_agreement",
            "Share of opens that were predicted, in a rank's latest epoch",
            labels=["job", "rank"],
        )
        epoch = GaugeMetricFamily("mlfs_epoch", "Epoch of a rank", labels=["job", "rank"])
        for job in self.engine.jobs.values():
            if job.score.observed:
                agreement.add_metric([job.spec.name], job.score.agreed / job.score.observed)
            for rank, progress in zip(job.spec.ranks, job.matcher.ranks, strict=True):
                epoch.add_metric([job.spec.name, str(rank)], job.epochs.epoch_of(progress.frontier))
            latest = {rank: share.share for _, of in sorted(by_epoch(job).items()) for rank, share in of.items()}
            for rank, share in sorted(latest.items()):
                if rank >= 0:
                    by_rank.add_metric([job.spec.name, str(rank)], share)
        yield agreement
        yield by_rank
        yield epoch
        yield GaugeMetricFamily("mlfs_rss_bytes", "Resident memory of the daemon", value=rss_bytes())


def metrics(engine: Engine) -> bytes:
    """Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_EngineCollector(engine))
    return generate_latest(registry)
