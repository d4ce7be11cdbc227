"""Says in plain words what a person should know of what is around a mount: a daemon that died before this one, readers
in another pid namespace.

Pure. In: frozen figures (mountd.statistics). Out: lines, each with the way out. Called by mountd.status and, at the
start, by mountd.daemon.
"""

from __future__ import annotations

import shlex

from mlfs.engine.statistics import EngineStatistics
from mlfs.printable import printable
from mlfs.units import format_size
from mountd.life_note import Died
from mountd.statistics import MountStatistics

# So long a mount tells that the daemon before it died; what was registered with that one is told until it is again.
TOLD_S = 3600.0

DIED = "the daemon that served {mountpoint} before this one (process {pid}) died{lost}"
NAMELESS = (
    "readers are in another pid namespace than this mount's daemon ({opens:,} opens), so nobody can tell them apart:"
    " they are followed by what they read alone, and nothing is found out or corrected by it; start the daemon in"
    " theirs (docker run --pid=host; in Kubernetes hostPID: true, or shareProcessNamespace: true for a sidecar)"
)
LOST = "; what was registered with it is lost: {ways}"


def died_words(died: Died, mountpoint: str, registered: frozenset[str] = frozenset()) -> str:
    """Says that the daemon before this one died, and how to register again what is not `registered` by now."""
    ways = [
        f"mlfs register {shlex.quote(mountpoint)} {flags}"
        for name, flags in died.jobs.items()
        if name not in registered
    ]
    lost = LOST.format(ways="; ".join(ways)) if ways else ""
    return printable(DIED.format(mountpoint=mountpoint, pid=died.pid, lost=lost))


def surroundings_words(now: MountStatistics) -> list[str]:
    """All that is to be said."""
    said, opens = [], now.engine.nameless_opens
    died, registered = now.about.died, frozenset(job.name for job in now.engine.jobs if not job.inferred)
    if died is not None and (now.process.uptime_s < TOLD_S or died.jobs.keys() - registered):
        said.append(died_words(died, now.about.mountpoint, registered))
    if opens:
        said.append(NAMELESS.format(opens=opens))
    return said


# -- what a status says of staged pages that the machine takes back
#
# In: frozen figures of the engine. Out: lines for people.

TAKEN_BACK = (
    "this machine takes staged pages back before they are read: mlfs noticed {noticed:,} of {looked_at:,} samples that"
    " it looked at and staged them again, and {late:,} of {opens:,} reads came before that; with more memory, a smaller"
    " --staging, or without a daemon that reclaims page cache this would not happen"
)
SHRUNK = (
    "the staging window is {now} instead of {full}, as staged pages are taken back ({noticed:,} so far); it grows again"
    " when none are: give this cgroup or machine more memory, or mount with a smaller --ram or --staging"
)
# Less than that happens anywhere now and then.
TAKEN_BACK_SHARE = 0.01


def taken_back(engine: EngineStatistics) -> list[str]:
    """Says that the machine takes staged pages back, if it does so often enough to matter."""
    watch, late, opens = engine.page_watch, engine.counters.errors.get("pages_taken_back", 0), all_opens(engine)
    if watch.taken_back <= TAKEN_BACK_SHARE * watch.looked_at and late <= TAKEN_BACK_SHARE * opens:
        return []
    told = {"noticed": watch.taken_back, "looked_at": watch.looked_at, "late": late, "opens": opens}
    return [TAKEN_BACK.format(**told)]


def shrunk(engine: EngineStatistics) -> list[str]:
    """Says that the staging window is smaller than was asked for, and why."""
    now, full = engine.scheduler.window_capacity_bytes, engine.scheduler.window_full_bytes
    if now >= full:
        return []
    told = {"now": format_size(now), "full": format_size(full), "noticed": engine.page_watch.taken_back}
    return [SHRUNK.format(**told)]


def all_opens(engine: EngineStatistics) -> int:
    """Opens since the mount, by whatever route they were answered."""
    return sum(tally.count for tally in engine.counters.all.reads.values())
