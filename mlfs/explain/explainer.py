"""Finds out what explains the reads that no job, or not the registered one, predicts; and has the engine follow it.

In: what the engine says of opens and jobs. Out: jobs installed in the engine, words for the status. Lives on the
daemon's loop; made before the engine, which is handed to `run`.

Whichever the case is, the way is the same: reads that don't fit make generators propose hypotheses, and the best one
comes into force by one rule and goes by another (`ruling` and `refuted` in `mlfs.follow.hypothesis`). `inference` does
that if nobody registered a job, and `correction` if a registered one is to be replaced. The two meet where no change of
a registration explains the reads: then these are explained as if nobody had registered anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mlfs.explain.correction import Corrections
from mlfs.explain.inference import Build, Inference
from mlfs.explain.port import Jobs
from mlfs.explain.statistics import ExplainerStatistics, InferenceState, InferenceStatistics
from mlfs.follow.evidence import Read
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open


class Explainer:
    """Hears of opens and jobs, and has the engine follow jobs that explain the reads better.

    Args:
        build: makes the data sets and orders that an unregistered mount's reads may be of; None forbids to guess what
            nobody registered (`--infer off`).
    """

    def __init__(self, build: Build | None) -> None:
        self._build = build
        # Both are there while `run` runs.
        self._inference: Inference | None = None
        self._corrections: Corrections | None = None
        self._offered: list[dict[str, object]] = []  # before that

    @property
    def infers(self) -> bool:
        """Whether it guesses what nobody has registered."""
        return self._build is not None

    async def run(self, jobs: Jobs) -> None:
        self._corrections = Corrections(jobs, None if self._build is None else self._explain_anew)
        if self._build is not None:
            self._inference = Inference(jobs, self._build)
        self.jobs_changed()  # some may have been registered before
        for fields in self._offered:
            self.offer(fields)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._corrections.run)
            if self._inference is not None:
                nursery.start_soon(self._inference.run)

    # -- what the engine says

    def opened(self, opens: Sequence[Read]) -> None:
        """Note opens, once the jobs that they belong to have counted them."""
        if self._inference is not None:
            self._inference.opened(opens)

    def digested(self, job: JobRun) -> None:
        if self._corrections is not None:
            self._corrections.digested(job)

    def jobs_changed(self) -> None:
        """Know the jobs that there are by now."""
        if self._corrections is not None:
            self._corrections.jobs_changed()
        if self._inference is not None:
            self._inference.jobs_changed()

    def offer(self, fields: dict[str, object]) -> None:
        """Try what explains the reads of another node, or explained those of the server before this one."""
        if self._inference is not None:
            self._inference.offer(fields)
        else:
            self._offered.append(fields)

    def _explain_anew(self, opens: Sequence[Open]) -> None:
        """Explain the first reads of an epoch to whose order a registered job does not lead."""
        if self._inference is not None:
            self._inference.begin_with(opens)

    # -- for the status

    def statistics(self) -> ExplainerStatistics:
        found = None if self._inference is None else self._inference.job_with_samples_of
        cases = self._corrections.statistics(found or (lambda job: None)) if self._corrections is not None else {}
        if self._inference is not None:
            return ExplainerStatistics(self._inference.statistics(), cases)
        state = InferenceState.OFF if self._build is None else InferenceState.WATCHING
        return ExplainerStatistics(InferenceStatistics(state), cases)
