"""The status of a mount as JSON.

Pure. In: frozen figures (mountd.statistics), as mountd.metrics has. Out: plain dicts. Called by mountd.control.

A figure is declared once, in the record of the part that counts it: the field's name with its unit is the key, and
`as_json` makes the JSON. So a part that counts something more adds a field to its record. The rest of this module is
put together from several parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from mlfs.engine.statistics import EngineStatistics
from mlfs.explain.statistics import WHY_UNKNOWN, CaseStatistics, InferenceState, InferenceStatistics
from mlfs.follow.agreement import NO_RANK, of_rank, whole
from mlfs.follow.job_statistics import JobState, JobStatistics, RankStatistics, in_words, strangers_to_all
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.scheduler.look_ahead import Ahead
from mlfs.plan.scheduler.neighbours import NeighboursStatistics
from mlfs.plan.scheduler.reading_times import ReadingTime
from mlfs.stats import Tally
from mountd.headline import advised, headline
from mountd.messages import all_opens, messages
from mountd.statistics import MountStatistics

Json = dict[str, Any]

WITHOUT_NUMBA = "numpy (pip install 'mlfs[fast]' makes it eight times as fast)"
# Epochs of which the agreement is shown, the last ones: a job of a million short epochs has a status that can be read.
SHOWN_EPOCHS = 100
# Jobs of which the auditor's numbers are shown: each process that looks at a few files is one.
SHOWN_AUDITS = 16
_MICROSECONDS = 6


@cache
def _shown(kind: type[Any]) -> Sequence[tuple[str, str, int | None]] | None:
    """The fields of a kind of record that are shown, each with its key and the digits of its numbers; None: no record.

    It is asked for each value of a status, 150 times.
    """
    if not is_dataclass(kind):
        return None
    shown = []
    for one in fields(kind):
        key = one.metadata.get("key", one.name)
        if key is not None:
            usual = _MICROSECONDS if one.name.endswith("_s") else None
            shown.append((one.name, key, one.metadata.get("digits", usual)))
    return shown


def as_json(value: object, digits: int | None = None) -> Any:
    """A record as JSON has it: its fields by their names, and the same of records in it.

    A field's metadata may have `key`, the name to show it by, which is None for a field that is not shown; and `digits`
    of its numbers. Times (`_s`) have six digits if nothing else is said, and other numbers all.
    """
    kind: Any = type(value)
    shown = _shown(kind)
    if shown is not None:
        return {key: as_json(getattr(value, name), of) for name, key, of in shown}
    if isinstance(value, Mapping):
        return {str(key): as_json(one, digits) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(one, digits) for one in value]
    return round(value, digits or None) if isinstance(value, float) and digits is not None else value


def status(now: MountStatistics) -> Json:
    """Everything that `mlfs status` shows."""
    about, engine, source, failed = now.about, now.engine, now.source, now.read_failures
    scheduler, counters = engine.scheduler, engine.counters
    return {
        "headline": headline(now),
        "version": now.process.version,
        "pid": now.process.pid,
        "processes": as_json(now.processes),
        "source": about.source,
        "mountpoint": about.mountpoint,
        "state": "draining" if scheduler.stopped else "serving",
        "uptime_s": round(now.process.uptime_s, 3),
        "messages": messages(now),
        "pages": as_json(engine.page_watch),
        "inference": inference_status(now.explainer.inference),
        "jobs": [job_status(now, job) for job in engine.jobs],
        "strangers": strangers_status(engine.jobs),
        "neighbours": neighbours_status(scheduler.neighbours),
        "opens": all_opens(engine),
        "reads": {"all": reads_status(counters.all.reads), "epoch": reads_status(counters.epoch.reads)},
        "fetches": as_json({route: tally for route, tally in counters.all.fetches.items() if tally.count}),
        "epochs": [
            {
                "reads": reads_status({route: tally for route, tally in span.reads.items() if tally.count}),
                "stalls": as_json(span.stalls),
            }
            for span in (*counters.past, counters.epoch)
        ],
        "stalls": as_json(counters.all.stalls) | {"epoch": as_json(counters.epoch.stalls)},
        "pfs": pfs_status(engine),
        "tiers": [
            as_json(place)
            | {"samples": scheduler.keeping.held[number], "passed_over": scheduler.routing.passed_over[number]}
            for number, place in enumerate(engine.places, 1)
        ],
        "no_room": {"samples": scheduler.keeping.no_room, "bytes": scheduler.keeping.no_room_bytes},
        "warming": as_json(scheduler.warming),
        "rates": rates_status(engine),
        "plan": plan_status(engine),
        "peers": as_json(engine.peering) | {"missed": scheduler.peers_missed} if engine.peering.node >= 0 else None,
        "staging": {
            "capacity_bytes": scheduler.window_capacity_bytes,
            "used_bytes": scheduler.window_bytes,
            "asked_bytes": scheduler.window_full_bytes or scheduler.window_capacity_bytes,
        },
        "manifest": as_json(engine.tree) | {"how": about.how},
        "refresh": as_json(now.refresh) | as_json(now.misses),
        "under_way": {**engine.under_way, "directories_to_list": now.directories_to_list},
        "errors": engine.errors,
        "source_state": {
            **as_json(source.root),
            **as_json(source),
            **as_json(source.times),
            "directory_times_prove": not source.times.directories,
        },
        "audit": audit_status(now),
        "failed_reads": {"count": failed.count, "last": as_json(failed) if failed.count else None},
        "crashes": {"count": now.crashes.count, "last": as_json(now.crashes) if now.crashes.count else None},
        "channel": as_json(now.channel),
        "requests": as_json(now.requests),
        "memory": {"rss_bytes": now.process.rss_bytes},
    }


def audit_status(now: MountStatistics) -> Json:
    """The auditor's last look: the jobs with the most samples, and their last epochs."""
    shown = sorted(now.audit.jobs, key=lambda job: job.samples, reverse=True)[:SHOWN_AUDITS]
    jobs = (replace(job, epochs=job.epochs[-SHOWN_EPOCHS:]) for job in now.audit.jobs if job in shown)
    return {**as_json(replace(now.audit, jobs=tuple(jobs))), "strict_order": now.strict_order}


def inference_status(inference: InferenceStatistics) -> Json:
    """The search for the order of an unregistered mount."""
    said: Json = {"state": inference.state}
    if inference.state is InferenceState.OFF:
        return said
    said["searches"] = inference.searches
    if inference.state is InferenceState.UNKNOWN:
        said["why"] = WHY_UNKNOWN
    attempt = inference.attempt
    if attempt is not None:
        said |= {
            "stage": attempt.stage,
            "seeds_tried": attempt.tried,
            "seeds": attempt.of,
            "share": round(attempt.tried / attempt.of, 6),
            "remaining_s": None if attempt.remaining_s is None else round(attempt.remaining_s),
            "with": "numba" if attempt.compiled else WITHOUT_NUMBA,
        }
    if inference.hypothesis:
        said |= {"hypothesis": inference.hypothesis, "alternatives": inference.alternatives}
    return said


# -- jobs


def job_status(now: MountStatistics, job: JobStatistics) -> Json:
    """A job, from what each part knows of it."""
    scheduler = now.engine.scheduler
    reading = scheduler.reading.get(job.name, ReadingTime())
    waits, ahead = scheduler.rank_waits.get(job.name, {}), now.engine.ahead[job.name]
    files = sum(rank.length for rank in job.ranks)
    return {
        "name": job.name,
        "inferred": job.inferred,
        "state": job.state,
        "agreement": job.share.share,
        "agreement_recent": job.recent.share,
        "recent_opens": job.recent.opens,
        "agreed_opens": job.share.agreed,
        "observed_opens": job.share.opens,
        "agreement_by_epoch": agreement_by_epoch(job),
        "loader": as_json(job.loader)
        | {
            "prefetch_depth": as_json(job.loader.prefetch_depth)
            | {"at_least": job.loader.depth_at_least, "at_most": job.loader.depth_at_most}
        },
        **as_json(reading),
        "time_by_epoch": {
            str(epoch.epoch): as_json(epoch) | {"waited_share": round(epoch.waited_share, 6)}
            for epoch in reading.epochs
        },
        **as_json(job.findings),
        "opens_in_unknown_order": as_json(dict(sorted(job.findings.order_unknown.items()))),
        **as_json(now.explainer.cases.get(job.name, CaseStatistics())),
        "epochs": job.epochs,
        "ranks": [
            rank_status(job, rank, ready, waits.get(index, 0.0))
            for index, (rank, ready) in enumerate(zip(job.ranks, ahead, strict=True))
        ],
        # Of the ranks here. The sizes of one sample's files are taken to be independent.
        "sample_bytes": {
            "mean": round(job.stream_bytes / max(1, files) * job.files_per_sample),
            "deviation": round(job.deviation_bytes * job.files_per_sample**0.5),
        },
        "pfs_bytes_by_epoch": as_json(job.pfs_bytes_by_epoch),
        "spec": dict(job.specification),
        "load": load_status(job, now.engine.loads.get(job.name), now.process.processors),
    }


def agreement_by_epoch(job: JobStatistics) -> Json:
    """Share of each epoch's opens that were predicted, in all and by rank; opens of no rank count in the first only.

    Late opens came before the job was in force: they gave its order away, and count as predicted since.
    """
    shown: Json = {}
    for epoch, shares in list(job.shares.items())[-SHOWN_EPOCHS:]:
        together = whole(shares.values())
        shown[str(epoch)] = {
            "agreement": together.share,
            "agreed_opens": together.agreed,
            "observed_opens": together.opens,
            "late_opens": min(job.late_opens.get(epoch, 0), together.agreed),
            "ranks": {str(rank): share.share for rank, share in shares.items() if rank != NO_RANK},
        }
    return shown


def rank_status(job: JobStatistics, rank: RankStatistics, ahead: Ahead, waited_s: float) -> Json:
    """How far one rank is, how far ahead of it samples are staged, and how long its readers have waited in all."""
    length = max(1, rank.length)
    seconds = round(ahead.samples / rank.samples_per_s, 3) if rank.samples_per_s > 0 else None
    return {
        "rank": rank.rank,
        "epoch": rank.epoch,
        "step": min(rank.position, length) // job.batch_files,
        "position": rank.position,
        "samples_per_epoch": length // job.files_per_sample,
        "steps_per_epoch": -(-length // job.batch_files),
        "agreement": of_rank(job.shares, rank.rank).share,
        "reads_here": rank.reads_here,
        "waited_s": round(waited_s, 6),
        "ahead": {"samples": ahead.samples, "bytes": ahead.bytes, "seconds": seconds},
    }


def load_status(job: JobStatistics, load: JobLoad | None, processors: int) -> Json:
    """The job's loaders and their time, by rank, and how unevenly they load; empty before a batch was read.

    How unevenly is None where no two ranks were seen in the same steps.
    """
    if load is None:
        return {}
    is_late = load.straggler >= 0 and job.state is not JobState.FINISHED
    of = advised(job, load, processors)
    advice = of and {
        "workers": {str(loader.rank): count for loader, count in zip(of.loaders, of.advice.workers, strict=True)},
        "gain": round(of.advice.gain, 6),
    }
    return {
        "imbalance": round(load.imbalance.apart, 6) if load.compares else None,
        "imbalanced_steps": round(load.imbalance.steps, 6) if load.compares else None,
        "steps": load.steps,
        "straggler": job.ranks[load.straggler].rank if is_late else None,
        "advice": advice,
        "pace": [[workers, seconds] for workers, seconds in sorted(load.pace.items())],
        "ranks": {str(job.ranks[rank.rank].rank): as_json(rank) for rank in load.ranks},
    }


def strangers_status(jobs: Sequence[JobStatistics]) -> list[Json]:
    """The readers of jobs' samples who read for none of them, in words too; those that read last stand last."""
    return [
        {
            "name": one.name,
            "pid": one.process,
            "processes": one.processes,
            "reads": one.reads,
            "plain": one.plain,
            "words": in_words(one),
        }
        for one in strangers_to_all(jobs)
    ]


def neighbours_status(learned: NeighboursStatistics) -> Json:
    """The rules by which one file comes after another, where no job follows the reads."""
    return {
        "reads": learned.reads,
        "shares": {rule.name.lower(): round(share, 6) for rule, share in learned.shares},
        "used": learned.used.name.lower() if learned.used is not None else None,
        "words": learned.words,
    }


# -- bytes and places


def reads_status(reads: Mapping[str, Tally]) -> Json:
    """Reads by route."""
    return {route: {"reads": tally.count, "bytes": tally.bytes} for route, tally in reads.items()}


def pfs_status(engine: EngineStatistics) -> Json:
    """Bytes read from the PFS, beside the least that any cache of this size could do with."""
    by_epoch: dict[int, int] = {}
    for job in engine.jobs:
        for number, size_bytes in job.pfs_bytes_by_epoch.items():
            by_epoch[number] = by_epoch.get(number, 0) + size_bytes
    epoch = max((job.epoch for job in engine.jobs), default=0)
    return {
        "total_bytes": engine.counters.all.fetches["pfs"].bytes,
        "by_choice_bytes": engine.counters.by_choice.bytes,
        "epoch_bytes": by_epoch.get(epoch, 0),
        "bound_bytes": engine.bound_bytes(sum(job.stream_bytes for job in engine.jobs)),
        "epoch": epoch,
        "by_epoch": as_json(dict(sorted(by_epoch.items()))),
    }


def rates_status(engine: EngineStatistics) -> Json:
    """Bandwidth of each place by lanes: measured while the mount runs, calibrated before, and refined from both.

    So for all other nodes together, once anything came from them.
    """
    peers = {"peers": engine.speeds.peers} if engine.speeds.peers is not None else {}
    return {
        name: {"measured": [[point.lanes, round(point.bytes_per_s)] for point in speeds.measured]} | as_json(speeds)
        for name, speeds in {**engine.speeds.places, **peers}.items()
    }


def plan_status(engine: EngineStatistics) -> Json:
    """The samples that the node keeps, and how long an epoch after the first takes to load at least, as far as that is
    known."""
    keeping, loading = engine.scheduler.keeping, engine.speeds.loading
    kind = "most read" if keeping.planned else "first read, first kept"
    if keeping.about.get("evicts"):
        kind = "needed soonest"
    said: Json = {"keeps": kind, "being_counted": list(engine.planner.being_counted), **keeping.about}
    if loading is not None:
        busy = {name: round(seconds, 3) for name, seconds in loading.busy_s.items() if seconds}
        said["loading"] = {"epoch_s": round(loading.seconds, 3), "rules": loading.rules, "busy_s": busy}
    return said
