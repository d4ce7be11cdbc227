"""Strangers to all jobs of a mount, as the status shows them.

Pure. In: running jobs, each with who is a stranger to it. Out: strangers to all of them, and a sentence for each.
Called by the mount's status.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.follow.job import JobRun
from mlfs.follow.strangers import Stranger


def strangers_to_all(jobs: Iterable[JobRun]) -> list[Stranger]:
    """Those that no job follows. Who is a stranger to several jobs is told of once, as the one who saw most of him."""
    followed = [job for job in jobs if not job.given_up]
    own = {process for job in followed for process in job.readers.own}
    found: dict[int, Stranger] = {}
    for job in followed:
        for stranger in job.readers.strangers():
            before = found.get(stranger.process)
            if stranger.process not in own and (before is None or stranger.reads > before.reads):
                found[stranger.process] = stranger
    return list(found.values())


def in_words(stranger: Stranger) -> str:
    """Who reads how much in which order: "cp (pid 123) reads 1,200 files in directory order"."""
    name = stranger.name or "a process that has ended"
    others = f" and {stranger.processes - 1:,} more of its kin" if stranger.processes > 1 else ""
    verb = "read" if others else "reads"
    order = "in directory order" if stranger.plain else "in no order that mlfs knows"
    files = "1 file" if stranger.reads == 1 else f"{stranger.reads:,} files"
    return f"{name} (pid {stranger.process}){others} {verb} {files} {order}"
