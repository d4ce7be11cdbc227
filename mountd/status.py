"""The status of a mount as JSON, and its messages in plain words.

Pure. In: frozen figures (mountd.statistics), as mountd.metrics has. Out: plain dicts. Called by mountd.control.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from mlfs.engine.peering import PeeringStatistics
from mlfs.engine.statistics import EngineStatistics
from mlfs.explain.statistics import (
    WHY_UNKNOWN,
    CaseStatistics,
    ExplainerStatistics,
    InferenceState,
    InferenceStatistics,
)
from mlfs.follow.agreement import NO_RANK, of_rank, whole
from mlfs.follow.job import GAVE_UP
from mlfs.follow.job_statistics import JobState, JobStatistics, RankStatistics
from mlfs.follow.loader import Known, LoaderStatistics
from mlfs.follow.strangers_seen import in_words, strangers_to_all
from mlfs.plan.placement import pfs_bound_bytes
from mlfs.plan.scheduler.look_ahead import Ahead
from mlfs.plan.scheduler.neighbours import NeighboursStatistics
from mlfs.plan.scheduler.reading_times import EpochTime, ReadingTime
from mlfs.plan.scheduler.warming import WarmingState
from mlfs.stats import SpanStatistics, StallStatistics
from mlfs.units import format_size
from mountd.headline import ahead_without_prediction, headline
from mountd.load_words import load_status
from mountd.source_words import refresh_status, refresh_words, source_words
from mountd.statistics import MountStatistics
from mountd.surroundings_words import all_opens, shrunk, surroundings_words, taken_back

Json = dict[str, object]

MISSING_PREDICTION = (
    "job {name}: reads don't come in the registered order (agreement {percent:.0f} % of the last {opens}); nothing is"
    " fetched ahead. Likely: {likely} (mlfs register again with what the script does; mlfs order SOURCE prints what a"
    " registration expects)."
)
EXPLAINED_OTHERWISE = (
    "job {name}: reads don't come in the registered order ({told}), but in this one: {true}. They are fetched ahead by"
    " that; to say so from the start: mlfs register {mountpoint} {flags}"
)
SEARCHING_WORDS = "job {name}: looking for where its epoch begins in the {stage}: {tried:,} of {of:,}"
INFERRED = (
    "no job is registered: the order of reads was inferred from what was read first, and may prove wrong (mlfs register"
    " tells it for sure; mount with --infer off to forbid guessing)"
)
PASSED_OVER = (
    "{name} is slower than the source ({tier:.3g} and {source:.3g} MB/s) and readers wait: while that lasts, its"
    " samples are read from the source ({size} so far, on top of the bound)"
)
NO_JOB = "no job is registered: reads are served as they come, and {ahead} (mlfs register)"
REFUSES = (
    "{name} takes no more copies ({refusal}, {errors:,} errors): such samples come from the source; free some space"
    " there, or mount with a smaller size for it"
)
SHORT_OF = "short of {resource}, {times:,} times: {what}; this costs speed: {way_out}"
FAILED = (
    "the task of {task} failed {times:,} times and was begun again (last: {error}); this costs speed, and reads stay"
    " right: please report it with the log"
)
WARMING_UP = "the caches are being filled (mlfs warmup): {done:,} of {whole:,} samples were looked after so far"
CHANGED = "{files} files changed at the source since the scan; readers got the new content"
FOUND_OUT = "job {name}: {what} (found out from the reads; the last {opens} opens before were counted anew{way_out})"
WAY_OUT = "; {differing} would have said so: mlfs register {mountpoint} {flags}"
WITHOUT_NUMBA = "numpy (pip install 'mlfs[fast]' makes it eight times as fast)"
# Epochs of which the agreement is shown, the last ones: a job of a million short epochs has a status that can be read.
SHOWN_EPOCHS = 100


def status(now: MountStatistics) -> Json:
    """Everything that `mlfs status` shows."""
    about, engine = now.about, now.engine
    scheduler, counters, tree = engine.scheduler, engine.counters, engine.tree
    return {
        "headline": headline(now),
        "version": now.process.version,
        "pid": now.process.pid,
        "source": about.source,
        "mountpoint": about.mountpoint,
        "state": "draining" if scheduler.stopped else "serving",
        "uptime_s": round(now.process.uptime_s, 3),
        "messages": [
            *source_words(now),
            *surroundings_words(now),
            *refresh_words(now),
            *messages(engine, now.explainer, about.mountpoint),
        ],
        "pages": {"looked_at": engine.page_watch.looked_at, "taken_back": engine.page_watch.taken_back},
        "inference": inference_status(now.explainer.inference),
        "jobs": [
            job_status(
                job,
                engine.ahead[job.name],
                scheduler.reading.get(job.name, ReadingTime()),
                now.explainer.cases.get(job.name, CaseStatistics()),
                scheduler.rank_waits.get(job.name, {}),
            )
            | {"load": load_status(job, engine.loads.get(job.name), now.process.processors)}
            for job in engine.jobs
        ],
        "strangers": strangers_status(engine.jobs),
        "neighbours": neighbours_status(scheduler.neighbours),
        "opens": all_opens(engine),
        "reads": {"all": reads_status(counters.all), "epoch": reads_status(counters.epoch)},
        "fetches": {
            route: {"count": tally.count, "bytes": tally.bytes}
            for route, tally in counters.all.fetches.items()
            if tally.count
        },
        "epochs": [epoch_status(span) for span in (*counters.past, counters.epoch)],
        "stalls": stalls_status(counters.all.stalls) | {"epoch": stalls_status(counters.epoch.stalls)},
        "pfs": pfs_status(engine),
        "tiers": tiers_status(engine),
        "warming": asdict(scheduler.warming) | {"state": str(scheduler.warming.state)},
        "rates": rates_status(engine),
        "plan": plan_status(engine),
        "peers": peers_status(engine.peering, engine.scheduler.peers_missed),
        "staging": {
            "capacity_bytes": scheduler.window_capacity_bytes,
            "used_bytes": scheduler.window_bytes,
            "asked_bytes": scheduler.window_full_bytes or scheduler.window_capacity_bytes,
        },
        "manifest": {"files": tree.files, "bytes": tree.bytes, "how": about.how, "changed": tree.changed_files},
        "refresh": refresh_status(now),
        "under_way": {**engine.under_way, "directories_to_list": now.primer.waiting},
        "errors": engine.errors,
        "source_state": source_status(now),
        "failed_reads": failed_reads_status(now),
        "requests": dict(now.channel.requests),
        "memory": {"rss_bytes": now.process.rss_bytes},
    }


# -- words


def messages(engine: EngineStatistics, explainer: ExplainerStatistics, mountpoint: str) -> list[str]:
    """What a person should know, in plain words; each thing once, however many jobs it is said of."""
    said, cases = passed_over(engine), explainer.cases
    if not engine.jobs:
        said.append(NO_JOB.format(ahead=ahead_without_prediction(engine, explainer)))
    for job in engine.jobs:
        if job.given_up:
            said.append(f"job {job.name}: {GAVE_UP}")
            continue
        if job.inferred:
            said.append(INFERRED)
        if job.findings.known:
            differing, flags = job.findings.way_out, job.findings.flags
            way_out = WAY_OUT.format(differing=differing, mountpoint=mountpoint, flags=flags) if differing else ""
            told = {"what": job.findings.known[-1], "opens": job.findings.counted_anew, "way_out": way_out}
            said.append(FOUND_OUT.format(name=job.name, **told))
        case = cases.get(job.name, CaseStatistics())
        if case.attempt is not None:
            words = {"stage": case.attempt.stage, "tried": case.attempt.tried, "of": case.attempt.of}
            said.append(SEARCHING_WORDS.format(name=job.name, **words))
        if case.instead is not None:
            true = {"told": case.instead.registered, "true": case.instead.true, "flags": case.instead.flags}
            said.append(EXPLAINED_OTHERWISE.format(name=job.name, mountpoint=mountpoint, **true))
        elif job.state == JobState.DRIFTING:
            about = {"percent": 100 * job.recent.share, "opens": job.recent.opens, "likely": case.likely}
            said.append(MISSING_PREDICTION.format(name=job.name, **about))
    said += taken_back(engine) + shrunk(engine)
    said += [REFUSES.format(**asdict(place)) for place in engine.places if place.refusal]
    said += [SHORT_OF.format(**asdict(one)) for one in engine.shortages]
    said += [FAILED.format(**asdict(one)) for one in engine.faults]
    warming = engine.scheduler.warming
    if warming.state is WarmingState.RUNNING:
        parts = (warming.there, warming.fetched, warming.no_room, warming.not_kept, warming.failed)
        said.append(WARMING_UP.format(done=sum(one.samples for one in parts), whole=warming.whole.samples))
    if engine.tree.changed_files:
        said.append(CHANGED.format(files=engine.tree.changed_files))
    return list(dict.fromkeys(said))


def passed_over(engine: EngineStatistics) -> list[str]:
    """Tiers that are slower than the source, in plain words."""
    said, routing = [], engine.scheduler.routing
    size = format_size(engine.counters.by_choice.bytes)
    for number, place in enumerate(engine.places, 1):
        found = routing.found[number]
        if routing.passed_over[number] and found is not None:
            tier, source = found.tier_bytes_per_s / 1e6, found.source_bytes_per_s / 1e6
            said.append(PASSED_OVER.format(name=place.name, tier=tier, source=source, size=size))
    return said


def inference_status(inference: InferenceStatistics) -> Json:
    """The search for the order of an unregistered mount."""
    said: Json = {"state": str(inference.state)}
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
    if inference.explanation:
        said |= {"explanation": inference.explanation, "other_explanations": inference.other_explanations}
    return said


# -- jobs


def job_status(
    job: JobStatistics,
    ahead: tuple[Ahead, ...],
    reading: ReadingTime,
    case: CaseStatistics,
    waits: Mapping[int, float],
) -> Json:
    """One job's part of the status. `waits`: how long each rank's readers have waited, by its index."""
    return {
        "name": job.name,
        "inferred": job.inferred,
        "state": str(job.state),
        "agreement": job.share.share,
        "agreement_recent": job.recent.share,
        "recent_opens": job.recent.opens,
        "agreed_opens": job.share.agreed,
        "observed_opens": job.share.opens,
        "agreement_by_epoch": agreement_by_epoch(job),
        "opens_in_unknown_order": {str(epoch): opens for epoch, opens in sorted(job.findings.order_unknown.items())},
        "loader": loader_status(job.loader),
        "reading_s": round(reading.reading_s, 6),
        "stalled_s": round(reading.stalled_s, 6),
        "time_by_epoch": {str(epoch.epoch): time_status(epoch) for epoch in reading.epochs},
        "found_out": list(job.findings.known),
        "way_out": job.findings.way_out,
        "counted_anew": job.findings.counted_anew,
        "searching": case.searching,
        "searches": case.searches,
        "epochs": job.epochs,
        "ranks": [
            rank_status(job, rank, of, waits.get(index, 0.0))
            for index, (rank, of) in enumerate(zip(job.ranks, ahead, strict=True))
        ],
        "sample_bytes": sample_status(job),
        "pfs_bytes_by_epoch": {str(epoch): size_bytes for epoch, size_bytes in job.pfs_bytes_by_epoch.items()},
        "spec": dict(job.specification),
    }


def sample_status(job: JobStatistics) -> Json:
    """How large the samples are that the ranks here read. Sizes of one sample's files are taken to be independent."""
    files, of_a_sample = sum(rank.length for rank in job.ranks), job.files_per_sample
    return {
        "mean": round(job.stream_bytes / max(1, files) * of_a_sample),
        "deviation": round(job.deviation_bytes * of_a_sample**0.5),
    }


def time_status(epoch: EpochTime) -> Json:
    """How long an epoch was read, and the share of that time that a reader waited."""
    return {
        "reading_s": round(epoch.reading_s, 6),
        "stalled_s": round(epoch.stalled_s, 6),
        "waited_share": round(epoch.waited_share, 6),
        "samples": epoch.samples,
    }


def strangers_status(jobs: Sequence[JobStatistics]) -> list[Json]:
    """Who reads the samples of jobs, and for none of them, in words too; those that read last stand last."""
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
    """What comes after what, where no job follows the reads."""
    return {
        "reads": learned.reads,
        "shares": {rule.name.lower(): round(share, 6) for rule, share in learned.shares},
        "used": learned.used.name.lower() if learned.used is not None else None,
        "words": learned.words,
    }


def agreement_by_epoch(job: JobStatistics) -> Json:
    """Share of each epoch's opens that were predicted, in all and by rank; opens of no rank count in the first only.

    Late opens came before the job was in force: they told its order, and count as predicted since.
    """
    told: Json = {}
    for epoch, shares in list(job.shares.items())[-SHOWN_EPOCHS:]:
        together = whole(shares.values())
        told[str(epoch)] = {
            "agreement": together.share,
            "agreed_opens": together.agreed,
            "observed_opens": together.opens,
            "late_opens": min(job.late_opens.get(epoch, 0), together.agreed),
            "ranks": {str(rank): share.share for rank, share in shares.items() if rank != NO_RANK},
        }
    return told


def loader_status(loader: LoaderStatistics) -> Json:
    """How the processes of a rank share its stream: each number, and where it is known from."""

    def known(number: Known) -> Json:
        return {"value": number.value, "from": number.origin}

    bounds = {"at_least": loader.depth_at_least, "at_most": loader.depth_at_most}
    return {
        "readers": loader.readers,
        "batch_size": known(loader.batch_size),
        "num_workers": known(loader.num_workers),
        "prefetch_depth": known(loader.prefetch_depth) | bounds,
        "early": loader.early,
    }


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


# -- the source


def source_status(now: MountStatistics) -> Json:
    """Whether the source's file system is there, and which calls on it hang."""
    root, source = now.source.root, now.source
    return {
        "state": str(root.state),
        "error": root.error,
        "since_s": round(root.since_s, 3),
        "opened_again": root.opened_again,
        "hanging": source.hanging,
        "hanging_s": round(source.longest_s, 3),
        "hanging_path": source.path,
        "mtime_proves": source.times.mtime,
        "ctime_proves": source.times.ctime,
        "directory_times_prove": not source.times.directories,
        "unsized_files": source.unsized,
    }


def failed_reads_status(now: MountStatistics) -> Json:
    """Reads that failed for readers, and what the last one was about."""
    failed = now.read_failures
    last = {"error": failed.error, "path": failed.path, "ago_s": round(failed.ago_s, 3)}
    return {"count": failed.count, "last": last if failed.count else None}


# -- bytes and places


def reads_status(span: SpanStatistics) -> Json:
    """Reads by route."""
    return {route: {"reads": tally.count, "bytes": tally.bytes} for route, tally in span.reads.items()}


def epoch_status(span: SpanStatistics) -> Json:
    """What was read in one epoch, by route, and how long readers waited in it."""
    reads = {route: {"reads": tally.count, "bytes": tally.bytes} for route, tally in span.reads.items() if tally.count}
    return {"reads": reads, "stalls": stalls_status(span.stalls)}


def stalls_status(stalls: StallStatistics) -> Json:
    """How long readers waited."""
    return {"count": stalls.count, "total_s": round(stalls.total_s, 6), "worst_s": round(stalls.worst_s, 6)}


def pfs_status(engine: EngineStatistics) -> Json:
    """Bytes read from the PFS, beside the least that any cache of this size could do with."""
    by_epoch: dict[int, int] = {}
    for job in engine.jobs:
        for number, size_bytes in job.pfs_bytes_by_epoch.items():
            by_epoch[number] = by_epoch.get(number, 0) + size_bytes
    epoch = max((job.epoch for job in engine.jobs), default=0)
    stream_bytes = sum(job.stream_bytes for job in engine.jobs)
    capacity_bytes = sum(place.capacity_bytes for place in engine.places)
    return {
        "total_bytes": engine.counters.all.fetches["pfs"].bytes,
        "by_choice_bytes": engine.counters.by_choice.bytes,
        "epoch_bytes": by_epoch.get(epoch, 0),
        "bound_bytes": pfs_bound_bytes(stream_bytes, capacity_bytes),
        "epoch": epoch,
        "by_epoch": {str(number): size_bytes for number, size_bytes in sorted(by_epoch.items())},
    }


def tiers_status(engine: EngineStatistics) -> list[Json]:
    """How full each storage class is."""
    held, left = engine.scheduler.keeping.held, engine.scheduler.routing.passed_over
    return [
        {
            "name": place.name,
            "class": str(place.kind),
            "capacity_bytes": place.capacity_bytes,
            "used_bytes": place.used_bytes,
            "samples": held[number],
            "errors": place.errors,
            "passed_over": left[number],
        }
        for number, place in enumerate(engine.places, 1)
    ]


def rates_status(engine: EngineStatistics) -> Json:
    """Bandwidth of each place by lanes: measured while the mount runs, calibrated before, and refined from both.

    So for all other nodes together, once anything came from them.
    """
    peers = {"peers": engine.speeds.peers} if engine.speeds.peers is not None else {}
    return {
        name: {
            "measured": [[point.lanes, round(point.bytes_per_s)] for point in speeds.measured],
            "calibrated": [[round(lanes), round(rate)] for lanes, rate in speeds.calibrated],
            "refined": [[round(lanes), round(rate)] for lanes, rate in speeds.refined],
        }
        for name, speeds in {**engine.speeds.places, **peers}.items()
    }


def peers_status(peering: PeeringStatistics, missed: int) -> Json | None:
    """The other nodes; None where no agent (`mlfs peers`) speaks for this one.

    Args:
        missed: samples that were asked of them and had to come from somewhere else.
    """
    if peering.node < 0:
        return None
    return {
        **{name: getattr(peering, name) for name in ("node", "nodes", "agent", "keeper", "silent", "joined")},
        "lost": list(peering.lost),
        "away": list(peering.away),
        "view": peering.view,
        "refused": {str(node): why for node, why in peering.refused.items()},
        "wanted": peering.wanted,
        "missed": missed,
        "under_way": peering.under_way,
        "members": [
            asdict(member) | {"lost_s": None if member.lost_s is None else round(member.lost_s, 1)}
            for member in peering.members
        ],
    }


def plan_status(engine: EngineStatistics) -> Json:
    """What the node keeps, and how long an epoch after the first takes to load at least, as far as that is known."""
    keeping, loading = engine.scheduler.keeping, engine.speeds.loading
    kind = "most read" if keeping.planned else "first read, first kept"
    if keeping.about.get("evicts"):
        kind = "needed soonest"
    said: Json = {"keeps": kind, "being_counted": list(engine.planner.being_counted), **keeping.about}
    if loading is not None:
        busy = {name: round(seconds, 3) for name, seconds in loading.busy_s.items() if seconds}
        said["loading"] = {"epoch_s": round(loading.seconds, 3), "rules": loading.rules, "busy_s": busy}
    return said
