"""Says in plain words what a person should know of a mount: each thing that is wrong, with the way out.

Pure. In: frozen figures (mountd.statistics). Out: lines. Called by mountd.status and mountd.headline; mountd.daemon
says some of them at the start.
"""

from __future__ import annotations

import errno
import os
import shlex
from dataclasses import asdict

from mlfs.engine.statistics import EngineStatistics
from mlfs.explain.statistics import CaseStatistics, ExplainerStatistics, InferenceState
from mlfs.follow.job import GAVE_UP
from mlfs.follow.job_statistics import JobState, JobStatistics
from mlfs.places.source_statistics import RootState, SourceStatistics
from mlfs.plan.scheduler.warming import WarmingState
from mlfs.printable import printable
from mlfs.units import format_size
from mountd.runtime import Died
from mountd.silent import TELLS_NO_NAMES
from mountd.statistics import MountStatistics

# A daemon that died, a file system that was mounted again, or a read that failed, is spoken of for so long: who looks
# after it has seen it. The jobs of a daemon that died are, until they are registered again.
RECENT_S = 3600.0


DISORDER = "{kind}: {sentence} (to mend it: {mend})"


def messages(now: MountStatistics) -> list[str]:
    """All of them; none where all is well."""
    return [
        *source_messages(now),
        *surroundings(now),
        *refresh_messages(now),
        *(DISORDER.format(kind=one.kind, sentence=one.sentence, mend=one.mend) for one in now.audit.findings),
        *engine_messages(now.engine, now.explainer, now.about.mountpoint),
    ]


def engine_messages(engine: EngineStatistics, explainer: ExplainerStatistics, mountpoint: str) -> list[str]:
    """Those on jobs, places and pages, each once, however many jobs it is said of."""
    said = passed_over(engine)
    if not engine.jobs:
        said.append(NO_JOB.format(ahead=ahead_without_prediction(engine, explainer)))
    elif all(job.inferred for job in engine.jobs):
        said.append(INFERRED)
    for job in engine.jobs:
        said += job_messages(job, explainer.cases.get(job.name, CaseStatistics()), mountpoint)
    if engine.peering.node < 0 and engine.peering.keeper:
        said.append(AGENT_GONE.format(keeper=engine.peering.keeper, mountpoint=mountpoint))
    said += taken_back(engine) + shrunk(engine)
    said += [REFUSES.format(**asdict(place)) for place in engine.places if place.refusal]
    said += [SHORT_OF.format(**asdict(one)) for one in engine.shortages]
    said += [TASK_FAILED.format(**asdict(one)) for one in engine.faults]
    warming = engine.scheduler.warming
    if warming.state is WarmingState.RUNNING:
        parts = (warming.there, warming.fetched, warming.no_room, warming.not_kept, warming.failed)
        said.append(WARMING_UP.format(done=sum(one.samples for one in parts), whole=warming.whole.samples))
    if engine.tree.changed_files:
        count = engine.tree.changed_files
        said.append(CHANGED.format(files="1 file" if count == 1 else f"{count:,} files"))
    return list(dict.fromkeys(said))


AGENT_GONE = (
    "the agent of mlfs peers (process {keeper}) is gone and this node alone: MPI lets no other one into that job"
    " (`mlfs peers {mountpoint}` on all nodes joins them again, beside what runs)"
)

# -- jobs

MISSING_PREDICTION = (
    "job {name}: reads don't come in the registered order (agreement {percent:.0f} % of the last {opens}); nothing is"
    " fetched ahead. Likely: {likely} (mlfs register again with what the script does; mlfs order SOURCE prints what a"
    " registration expects)."
)
EXPLAINED_OTHERWISE = (
    "job {name}: reads don't come in the registered order ({registered}), but in this one: {true}. They are fetched"
    " ahead by that; to say so from the start: mlfs register {mountpoint} {flags}"
)
SEARCHING_WORDS = "job {name}: looking for where its epoch begins in the {stage}: {tried:,} of {of:,}"
INFERRED = (
    "no job is registered: the order of reads was inferred from what was read first, and may prove wrong (mlfs register"
    " tells it for sure; mount with --infer off to forbid guessing)"
)
NO_JOB = "no job is registered: reads are served as they come, and {ahead} (mlfs register)"
FOUND_OUT = "job {name}: {what} (found out from the reads; the last {opens} opens before were counted anew{way_out})"
WAY_OUT = "; {differing} would have said so: mlfs register {mountpoint} {flags}"


def job_messages(job: JobStatistics, case: CaseStatistics, mountpoint: str) -> list[str]:
    """Says what is found out of a job, or wrong with it."""
    if job.given_up:
        return [f"job {job.name}: {GAVE_UP}"]
    said, found = list[str](), job.findings
    if found.known:
        way_out = WAY_OUT.format(differing=found.way_out, mountpoint=mountpoint, flags=found.flags)
        words = {"what": found.known[-1], "opens": found.counted_anew, "way_out": way_out if found.way_out else ""}
        said.append(FOUND_OUT.format(name=job.name, **words))
    if case.attempt is not None:
        at = case.attempt
        said.append(SEARCHING_WORDS.format(name=job.name, stage=at.stage, tried=at.tried, of=at.of))
    if case.instead is not None:
        said.append(EXPLAINED_OTHERWISE.format(name=job.name, mountpoint=mountpoint, **asdict(case.instead)))
    elif job.state == JobState.DRIFTING:
        words = {"percent": 100 * job.recent.share, "opens": job.recent.opens, "likely": case.likely}
        said.append(MISSING_PREDICTION.format(name=job.name, **words))
    return said


def ahead_without_prediction(engine: EngineStatistics, explainer: ExplainerStatistics, job: str = "") -> str:
    """Says what is fetched ahead while no prediction is believed, and whether another one is looked for."""
    said = ahead_by_rule(engine)
    case = explainer.cases.get(job)
    is_looking = explainer.inference.state in (InferenceState.WATCHING, InferenceState.SEARCHING)
    is_looking = is_looking or (case is not None and case.instead is None)
    return f"{said} yet, as mlfs is looking for the order of the reads" if is_looking else said


def ahead_by_rule(engine: EngineStatistics) -> str:
    """Says what is fetched ahead of readers whom no job follows."""
    rule = engine.scheduler.neighbours.used
    return "nothing is fetched ahead" if rule is None else f"only {rule} is fetched ahead"


# -- the node's own places and pages

PASSED_OVER = (
    "{name} is slower than the source ({tier:.3g} and {source:.3g} MB/s) and readers wait: while that lasts, its"
    " samples are read from the source ({size} so far, on top of the bound)"
)
REFUSES = (
    "{name} takes no more copies ({refusal}, {errors:,} errors): such samples come from the source; free some space"
    " there, or mount with a smaller size for it"
)
SHORT_OF = "short of {resource}, {times:,} times: {what}; this costs speed: {way_out}"
TASK_FAILED = (
    "the task of {task} failed {times:,} times and was begun again (last: {error}); this costs speed, and reads stay"
    " right: please report it with the log"
)
WARMING_UP = "the caches are being filled (mlfs warmup): {done:,} of {whole:,} samples were looked after so far"
CHANGED = "{files} changed at the source since the scan; readers got the new content"
TAKEN_BACK = (
    "this machine takes staged pages back before they are read: mlfs noticed {noticed:,} of {looked_at:,} samples that"
    " it looked at and staged them again, and {late:,} of {opens:,} reads came before that; with more memory, a smaller"
    " --staging, or without a daemon that reclaims page cache this would not happen"
)
# Less than that happens anywhere now and then.
TAKEN_BACK_SHARE = 0.01
SHRUNK = (
    "the staging window is {now} instead of {full}, as staged pages are taken back ({noticed:,} so far); it grows again"
    " when none are: give this cgroup or machine more memory, or mount with a smaller --ram or --staging"
)


def passed_over(engine: EngineStatistics) -> list[str]:
    """Tiers that are slower than the source."""
    said, routing = [], engine.scheduler.routing
    size = format_size(engine.counters.by_choice.bytes)
    for number, place in enumerate(engine.places, 1):
        found = routing.found[number]
        if routing.passed_over[number] and found is not None:
            tier, source = found.tier_bytes_per_s / 1e6, found.source_bytes_per_s / 1e6
            said.append(PASSED_OVER.format(name=place.name, tier=tier, source=source, size=size))
    return said


def taken_back(engine: EngineStatistics) -> list[str]:
    """Says that the machine takes staged pages back, if it does so often enough to matter."""
    watch, late, opens = engine.page_watch, engine.counters.errors.get("pages_taken_back", 0), all_opens(engine)
    if watch.taken_back <= TAKEN_BACK_SHARE * watch.looked_at and late <= TAKEN_BACK_SHARE * opens:
        return []
    return [TAKEN_BACK.format(noticed=watch.taken_back, looked_at=watch.looked_at, late=late, opens=opens)]


def shrunk(engine: EngineStatistics) -> list[str]:
    """Says that the staging window is smaller than was asked for, and why."""
    now, full = engine.scheduler.window_capacity_bytes, engine.scheduler.window_full_bytes
    if now >= full:
        return []
    return [SHRUNK.format(now=format_size(now), full=format_size(full), noticed=engine.page_watch.taken_back)]


def all_opens(engine: EngineStatistics) -> int:
    """Opens since the mount, by whatever route they were answered."""
    return sum(tally.count for tally in engine.counters.all.reads.values())


# -- what is around the mount: a daemon that died before this one, readers in another pid namespace

DIED = "the daemon that served {mountpoint} before this one (process {pid}) died{lost}"
LOST_JOBS = "; what was registered with it is lost: {ways}"
NAMELESS = (
    "readers are in another pid namespace than this mount's daemon ({opens:,} opens), so nobody can tell them apart:"
    " they are followed by what they read alone, and nothing is found out or corrected by it; start the daemon in"
    " theirs (docker run --pid=host; in Kubernetes hostPID: true, or shareProcessNamespace: true for a sidecar)"
)


NO_NAMES = (
    "only root is told which process opens a file without a request ({opens:,} opens), so readers cannot be told apart:"
    " they are followed by what they read alone, and nothing is found out or corrected by it; mlfs mount --channel open"
    " tells them apart"
)
LOST_OPENS = (
    "the kernel has lost opens that it should have told of ({lost:,} times), as this server was too slow: jobs were"
    " followed by what was left; mlfs mount --channel open hears of each"
)


def surroundings(now: MountStatistics) -> list[str]:
    said, opens = [], now.engine.nameless_opens
    died, registered = now.about.died, frozenset(job.name for job in now.engine.jobs if not job.inferred)
    if died is not None and (now.process.uptime_s < RECENT_S or died.jobs.keys() - registered):
        said.append(died_before(died, now.about.mountpoint, registered))
    if opens:
        without = NO_NAMES if now.channel.why == TELLS_NO_NAMES else NAMELESS
        said.append(without.format(opens=opens))
    if now.channel.lost:
        said.append(LOST_OPENS.format(lost=now.channel.lost))
    return said


def died_before(died: Died, mountpoint: str, registered: frozenset[str] = frozenset()) -> str:
    """Says that the daemon before this one died, and how to register again what is not `registered` by now."""
    ways = [
        f"mlfs register {shlex.quote(mountpoint)} {flags}"
        for name, flags in died.jobs.items()
        if name not in registered
    ]
    lost = LOST_JOBS.format(ways="; ".join(ways)) if ways else ""
    return printable(DIED.format(mountpoint=mountpoint, pid=died.pid, lost=lost))


# -- the source, and reads that failed

GONE = "the source {source} has been gone for {since} ({error}): what is cached is served, other reads fail; {way_out}"
OTHER = (
    "what is at {source} now is not the source that was mounted, which has been gone for {since} ({error}): what is"
    " cached is served, other reads fail; {way_out}"
)
MOUNT_IT_AGAIN = "mount it there again, and reads go on"
COVERED = (
    "this mount covers its path, so: mlfs unmount {mountpoint}, mount the source again, and mlfs mount {mountpoint}"
)
OPENED_AGAIN = (
    "the source's file system was gone or hung, and was found again {ago} ago ({times} in all): reads go on by"
    " it; look after it if that happens often"
)
HANGS = (
    "the source has not answered for {longest}, of {path}{others}: readers get an error after --source-timeout, twice;"
    " look after {source}"
)
READ_FAILED = "{reads} failed, the last one {ago} ago: {path}: {error}; {way_out}"
UNREADABLE = (
    "{which} of {source} could not be read by the scan, so nothing in there is in the mount, and a listing fails as it"
    " did there ({error}): {way_out}, then: mlfs refresh {mountpoint}"
)
NOT_ALLOWED = "give yourself the right to read (chmod, or mount as another user)"
DOES_NOT_WORK = "look after the file system of the source, in its log and the kernel's"
MOVES = (
    "{times} of the files of {source} moves while nothing changes (the file system makes it up), so it is left out of"
    " comparisons: a file that is changed is noticed by {left}; to see such changes, mount again"
)
MOVE_BOTH = MOVES.replace("moves", "move").replace("makes it", "makes them").replace("it is left", "they are left")
DIRECTORIES = (
    "the times of the directories of {source} do not tell whether an entry has come or gone ({why}), so a saved list of"
    " files proves nothing: each mount scans the source anew"
)
ALL_EMPTY = (
    "all {files} files of {source} have size 0: if that is wrong, what they have is read past the caches, straight from"
    " the source; mount it with a client that knows the sizes, for anything to be cached"
)
UNSIZED = (
    "{files} of {source} (the first: {path}) have another number of bytes than their size says: they are read past the"
    " caches, straight from the source, and never fetched ahead"
)
CRASHED = (
    "servers crashed at {requests}, the last time {ago} ago: {request} of {path}: each was answered with an error after"
    " the second crash, and so was whoever asked again soon; please report it with the log, and do without that file or"
    " read it below {source}"
)
READ_FAILED_WAY_OUT = "read it below {source} to see whether the source gives it"
READ_FAILED_COVERED = "the log says more of the source"


def unreadable(count: int, first: str, source: str, mountpoint: str, number: int) -> str:
    """Says that directories of the source could not be read when it was scanned. `number`: the first one's errno."""
    which = f"the directory {first}" if count == 1 else f"{count:,} directories (the first of them: {first})"
    way_out = NOT_ALLOWED if number in (errno.EACCES, errno.EPERM) else DOES_NOT_WORK
    error = os.strerror(number)
    said = UNREADABLE.format(which=which, source=source, error=error, way_out=way_out, mountpoint=mountpoint)
    return printable(said)


def doubts(now: SourceStatistics, source: str) -> list[str]:
    """Says what of the source's words is not so."""
    said, times, shown = [], now.times, printable(source)
    lying = [name for name, proves in (("mtime", times.mtime), ("ctime", times.ctime)) if not proves]
    if lying:
        left = "its size alone" if len(lying) > 1 else f"its size and {'ctime' if lying[0] == 'mtime' else 'mtime'}"
        moves = MOVE_BOTH if len(lying) > 1 else MOVES
        said.append(moves.format(times=" and ".join(lying), source=shown, left=left))
    if times.directories:
        said.append(DIRECTORIES.format(source=shown, why=times.directories))
    if now.unsized_files:
        files = "a file" if now.unsized_files == 1 else f"{now.unsized_files:,} files"
        words = UNSIZED if now.unsized_files > 1 else UNSIZED.replace(" (the first: {path}) have", " ({path}) has")
        said.append(words.format(files=files, source=shown, path=printable(now.first_unsized)))
    return said


def no_sizes(files: int, total_bytes: int, source: str) -> list[str]:
    """Says that no file has a size, of a source that has files."""
    return [ALL_EMPTY.format(files=f"{files:,}", source=printable(source))] if files and not total_bytes else []


def source_messages(now: MountStatistics) -> list[str]:
    """Says what is wrong with the source; nothing where all is well."""
    root, source = now.source.root, printable(now.about.source)
    said = []
    if now.about.unreadable:
        of = now.about
        said.append(unreadable(of.unreadable, of.first_unreadable, of.source, of.mountpoint, of.unreadable_errno))
    said += doubts(now.source, now.about.source)
    said += no_sizes(now.engine.tree.files, now.engine.tree.bytes, now.about.source)
    if root.state is not RootState.THERE:
        way_out = COVERED.format(mountpoint=printable(now.about.mountpoint)) if root.covered else MOUNT_IT_AGAIN
        words = OTHER if root.state is RootState.OTHER else GONE
        said.append(words.format(source=source, error=root.error, since=duration_words(root.since_s), way_out=way_out))
    elif root.opened_again and root.opened_s < RECENT_S:
        said.append(OPENED_AGAIN.format(ago=duration_words(root.opened_s), times=_times(root.opened_again)))
    if now.source.hanging:
        others = f" (and {now.source.hanging - 1} other reads)" if now.source.hanging > 1 else ""
        path, longest = printable(now.source.hanging_path), duration_words(now.source.hanging_s)
        said.append(HANGS.format(source=source, longest=longest, path=path, others=others))
    failed = now.read_failures
    if failed.count and failed.ago_s < RECENT_S and failed.path != now.crashes.path:
        way_out = READ_FAILED_COVERED if root.covered else READ_FAILED_WAY_OUT.format(source=source)
        about = {"reads": _reads(failed.count), "ago": duration_words(failed.ago_s), "error": failed.error}
        said.append(READ_FAILED.format(path=printable(failed.path), way_out=way_out, **about))
    crashed = now.crashes
    if crashed.count:
        about = {"requests": _requests(crashed.count), "ago": duration_words(crashed.ago_s), "request": crashed.request}
        said.append(CRASHED.format(path=printable(crashed.path), source=source, **about))
    return said


def gone(now: MountStatistics) -> str:
    """The first sentence of the status while the source is gone; empty while it is there."""
    root = now.source.root
    if root.state is RootState.THERE:
        return ""
    return f"the source has been gone for {duration_words(root.since_s)}: reads of what is not cached fail (see below)"


def duration_words(seconds: float) -> str:
    """A time of this length, as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _requests(count: int) -> str:
    return "a request" if count == 1 else f"{count:,} requests"


def _reads(count: int) -> str:
    return "a read" if count == 1 else f"{count:,} reads"


# -- a source that has changed its form, and the last refresh

ADDED = "added since the scan: {first}{more} (`mlfs refresh {mountpoint}` shows what is at the source now)"
OUTDATED = (
    "job {name}: registered over {samples:,} samples, the data set has {now:,} now, or others: it goes on in the order"
    " of those that it was registered with (mlfs register it anew when the script reads the new ones)"
)
DATASET_LOST = (
    "job {name}: registered over {samples:,} samples, and its data set cannot be found any more: {why} (mlfs register"
    " it anew when the script reads another one)"
)
REFRESH_FAILED = "the last refresh of {path} failed: {remark}"


def refresh_messages(now: MountStatistics) -> list[str]:
    """Says what was found at the source and is not in the view, and how the last refresh ended."""
    said = [now.about.links] if now.about.links else []
    if now.misses.added_since_scan:
        more = now.misses.added_since_scan - len(now.misses.first_added)
        others = f" and {more:,} more" if more > 0 else ""
        about = {"first": ", ".join(now.misses.first_added), "more": others, "mountpoint": now.about.mountpoint}
        said.append(ADDED.format(**about))
    if now.refresh.state == "failed":
        where = f"{now.about.mountpoint}/{now.refresh.path}" if now.refresh.path else now.about.mountpoint
        said.append(REFRESH_FAILED.format(path=where, remark=now.refresh.remark))
    said += [(OUTDATED if job.now >= 0 else DATASET_LOST).format(**asdict(job)) for job in now.refresh.outdated]
    return said
