"""Strangers to all jobs of a mount, as the status shows them.

Pure. In: frozen figures of the running jobs, each with who is a stranger to it. Out: strangers to all of them, and a
sentence for each. Called by the mount's status.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.follow.job_statistics import JobStatistics, Stranger


def strangers_to_all(jobs: Iterable[JobStatistics]) -> list[Stranger]:
    """Those that no job follows. A stranger to several jobs is told of once, as the one who saw most of him."""
    followed = [job for job in jobs if not job.given_up]
    own = {process for job in followed for process in job.readers.own}
    found: dict[int, Stranger] = {}
    for job in followed:
        for stranger in job.readers.strangers:
            before = found.get(stranger.process)
            if stranger.process not in own and (before is None or stranger.reads > before.reads):
                found[stranger.process] = stranger
    return list(found.values())


def in_words(stranger: Stranger) -> str:
    """The reader, how much he reads and in which order: "cp (pid 123) reads 1,200 files in directory order"."""
    order = "in directory order" if stranger.plain else "in no order that mlfs knows"
    if stranger.again:
        order = "in the job's order, as the same script would that was started twice: only the first run is followed"
    files = "1 file" if stranger.reads == 1 else f"{stranger.reads:,} files"
    if not stranger.parent:
        return f"processes that ended at once read {files} {order}"
    who = f"{stranger.name or 'a process'} (pid {stranger.process})"
    if stranger.processes == 1:
        return f"{who} reads {files} {order}"
    return f"{who} and {stranger.processes - 1:,} more of its kin read {files} {order}"
