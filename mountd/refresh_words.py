"""What a status says of a source that has changed its form, and of the last refresh.

Pure. In: frozen figures. Out: plain dicts, and lines for people. Called by mountd.status.
"""

from __future__ import annotations

from dataclasses import asdict

from mountd.statistics import MountStatistics

ADDED = "added since the scan: {first}{more} (`mlfs refresh {mountpoint}` shows what is at the source now)"
OUTDATED = (
    "job {name}: registered over {samples:,} samples, the data set has {now:,} now, or others: it goes on in the order"
    " of those that it was registered with (mlfs register it anew when the script reads the new ones)"
)
LOST = (
    "job {name}: registered over {samples:,} samples, and its data set cannot be found any more: {why} (mlfs register"
    " it anew when the script reads another one)"
)
FAILED = "the last refresh of {path} failed: {remark}"


def refresh_status(now: MountStatistics) -> dict[str, object]:
    """The last refresh, and what was found at the source and is not in the view."""
    missed = {"added_since_scan": now.misses.added, "first_added": list(now.misses.first), "looks": now.misses.looks}
    return asdict(now.refresh) | missed


def refresh_words(now: MountStatistics) -> list[str]:
    """What a person should know of it."""
    said = [now.about.links] if now.about.links else []
    if now.misses.added:
        more = now.misses.added - len(now.misses.first)
        others = f" and {more:,} more" if more > 0 else ""
        about = {"first": ", ".join(now.misses.first), "more": others, "mountpoint": now.about.mountpoint}
        said.append(ADDED.format(**about))
    if now.refresh.state == "failed":
        where = f"{now.about.mountpoint}/{now.refresh.path}" if now.refresh.path else now.about.mountpoint
        said.append(FAILED.format(path=where, remark=now.refresh.remark))
    said += [(OUTDATED if job.now >= 0 else LOST).format(**asdict(job)) for job in now.refresh.outdated]
    return said
