"""What a person should know of what is around a mount, in plain words: a daemon that died before this one,
readers in another pid namespace.

Pure. In: frozen figures (mountd.statistics). Out: lines, each with the way out. Called by mountd.status and, at the
start, by mountd.daemon.
"""

from __future__ import annotations

import shlex

from mlfs.printable import printable
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
    """That the daemon before this one died, and how to register again what is not `registered` by now."""
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
