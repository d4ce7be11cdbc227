"""Finds out what explains the reads that no job, or not the registered one, predicts; and has the engine follow it.

In: what the engine tells of opens and jobs (`mlfs.explain.port.Observer`). Out: jobs installed in the engine, words for
the status. Lives on the daemon's loop; made before the engine, which is handed to `run`.

Whichever the case is, the way is the same: reads that don't fit give hypotheses, those are screened with what was read,
and what is left is installed if reads that it was not found by bear it out. An unregistered mount has nothing to lose:
there a finding is installed at once, and taken back if the next reads contradict it (`inference`). A registered job is
replaced only after further opens have confirmed what was found (`correction`).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mlfs.explain.causes import likely_causes
from mlfs.explain.correction import CorrectionSearch
from mlfs.explain.inference import Build, Inference, InferenceState
from mlfs.explain.port import Jobs
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open


class Explainer:
    """Implements `mlfs.explain.port.Observer`.

    Args:
        build: makes the data sets and orders that an unregistered mount's reads may be of; None forbids to guess what
            nobody registered (`--infer off`).
    """

    def __init__(self, build: Build | None) -> None:
        self._build = build
        # Both are there while `run` runs.
        self._inference: Inference | None = None
        self._corrections: CorrectionSearch | None = None

    async def run(self, jobs: Jobs) -> None:
        """See Observer."""
        self._corrections = CorrectionSearch(jobs, None if self._build is None else self._explain_anew)
        if self._build is not None:
            self._inference = Inference(jobs, self._build, self._corrections.is_set_aside)
        self.jobs_changed()  # some may have been registered before
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._corrections.run)
            if self._inference is not None:
                nursery.start_soon(self._inference.run)

    # -- what the engine tells

    def opened(self, entry: int, process: int, parent: int) -> None:
        """See Observer."""
        if self._inference is not None:
            self._inference.opened(entry, process, parent)

    def digested(self, job: JobRun) -> None:
        """See Observer."""
        if self._corrections is not None:
            self._corrections.digested(job)

    def jobs_changed(self) -> None:
        """See Observer."""
        if self._corrections is not None:
            self._corrections.jobs_changed()
        if self._inference is not None:
            self._inference.jobs_changed()

    def explains_restart(self, job: JobRun) -> bool:
        """See Observer."""
        return self._corrections is not None and self._corrections.explains_restart(job)

    def _explain_anew(self, opens: Sequence[Open]) -> None:
        """A registered job does not lead to the order of these reads, the first of an epoch."""
        if self._inference is not None:
            self._inference.begin_with(opens)

    # -- for the status

    def searching(self, name: str) -> bool:
        """See Observer."""
        case = self._corrections.case(name) if self._corrections is not None else None
        return case is not None and case.searching

    def searches(self, name: str) -> int:
        """See Observer."""
        case = self._corrections.case(name) if self._corrections is not None else None
        return 0 if case is None else case.searches

    def likely_causes(self, job: JobRun) -> str:
        """Why the job's reads may not come as registered: what was not looked at yet, the likeliest first."""
        case = self._corrections.case(job.spec.name) if self._corrections is not None else None
        return likely_causes(job.spec, frozenset() if case is None else case.looked_at)

    def search_under_way(self, name: str) -> dict[str, object]:
        """How far the search is that looks for the job's order in its generator's words; empty while there is none."""
        case = self._corrections.case(name) if self._corrections is not None else None
        return {} if case is None or case.attempt is None else case.attempt.status()

    def explained_instead(self, job: JobRun) -> JobRun | None:
        """The job that nobody registered and that has the order of a registered job's reads."""
        if self._inference is None or self._corrections is None or not self._corrections.is_set_aside(job):
            return None
        return self._inference.job_with_samples_of(job)

    def status(self) -> dict[str, object]:
        """What inferring is at, as part of the mount's status."""
        if self._build is None:
            return {"state": str(InferenceState.OFF)}
        if self._inference is None:
            return {"state": str(InferenceState.WATCHING), "searches": 0}
        return self._inference.status()
