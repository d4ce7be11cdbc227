"""What a status says of staged pages that the machine takes back.

Pure. In: frozen figures of the engine. Out: lines for people. Called by mountd.status.
"""

from __future__ import annotations

from mlfs.engine.statistics import EngineStatistics
from mlfs.units import format_size

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
    """That the machine takes staged pages back, in plain words, if it does so often enough to matter."""
    watch, late, opens = engine.page_watch, engine.counters.errors.get("pages_taken_back", 0), all_opens(engine)
    if watch.taken_back <= TAKEN_BACK_SHARE * watch.looked_at and late <= TAKEN_BACK_SHARE * opens:
        return []
    told = {"noticed": watch.taken_back, "looked_at": watch.looked_at, "late": late, "opens": opens}
    return [TAKEN_BACK.format(**told)]


def shrunk(engine: EngineStatistics) -> list[str]:
    """That the staging window is smaller than was asked for, and why."""
    now, full = engine.scheduler.window_capacity_bytes, engine.scheduler.window_full_bytes
    if now >= full:
        return []
    told = {"now": format_size(now), "full": format_size(full), "noticed": engine.page_watch.taken_back}
    return [SHRUNK.format(**told)]


def all_opens(engine: EngineStatistics) -> int:
    """Opens since the mount, by whatever route they were answered."""
    return sum(tally.count for tally in engine.counters.all.reads.values())
