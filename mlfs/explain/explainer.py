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

from mlfs.explain.correction import CorrectionSearch
from mlfs.explain.inference import Build, Inference
from mlfs.explain.port import Jobs
from mlfs.explain.statistics import ExplainerStatistics, InferenceState, InferenceStatistics
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.nameless import NAMELESS


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
        if self._inference is not None and process != NAMELESS:  # what nobody can tell apart shows no order
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

    def offer(self, fields: dict[str, object]) -> None:
        """See Observer."""
        if self._inference is not None:
            self._inference.offer(fields)

    def _explain_anew(self, opens: Sequence[Open]) -> None:
        """A registered job does not lead to the order of these reads, the first of an epoch."""
        if self._inference is not None:
            self._inference.begin_with(opens)

    def _explained_instead(self, job: JobRun) -> JobRun | None:
        """The job that nobody registered and that has the order of a registered job's reads."""
        return None if self._inference is None else self._inference.job_with_samples_of(job)

    # -- for the status

    def statistics(self) -> ExplainerStatistics:
        """Frozen figures."""
        cases = self._corrections.statistics(self._explained_instead) if self._corrections is not None else {}
        if self._build is None:
            return ExplainerStatistics(InferenceStatistics(InferenceState.OFF), cases)
        if self._inference is None:
            return ExplainerStatistics(InferenceStatistics(InferenceState.WATCHING), cases)
        return ExplainerStatistics(self._inference.statistics(), cases)
