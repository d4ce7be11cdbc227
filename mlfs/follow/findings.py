"""What was found out about a job while it ran: in plain words, and as flags of `mlfs register`.

Pure. In: sentences of searches, the first reads of a job. Out: the sentences so far, the last one last. Used by
`mlfs.follow.job`. One thing is found out here: that the script begins with another epoch than the registered one. All
else is found by the searches of `mlfs.explain`, and handed over.
"""

from __future__ import annotations

from mlfs.follow.job_statistics import FindingsStatistics
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.sentences import COUNTS_FROM_ONE, RESUMED, flags_of
from mlfs.follow.timeline import Timeline

FEWEST_FIRST = 12
"""First opens that must all be predicted before they tell in which epoch the script began: more than chance makes."""
FEWEST_OF_RANK = 4
"""Predicted opens of a rank in the registered epoch, before the script counts as reading that epoch: in the order of a
later one some samples lie by chance where a worker of the registered one might begin."""


class Findings:
    """See the module.

    Args:
        start_epoch: the one that was registered.
        inferred: nobody registered the job: where it begins was found by its reads.

    Attributes:
        known: the sentences.
        way_out: flags of `mlfs register` that say the last one from the start; "" where there are none.
        counted_anew: opens that were counted anew when the last one was found.
    """

    def __init__(self, start_epoch: int, inferred: bool) -> None:
        self.known: list[str] = []
        self.way_out = ""
        self.counted_anew = 0
        self._start_epoch = start_epoch
        self._inferred = inferred
        self._begin_is_known = False

    def statistics(self) -> FindingsStatistics:
        """Frozen figures."""
        return FindingsStatistics(tuple(self.known), self.way_out, self.counted_anew)

    def began_elsewhere(self, matcher: StreamMatcher, timeline: Timeline) -> str:
        """Once, in words: the script's first reads are those of another epoch than the registered one. Else ""."""
        score = matcher.score
        if self._begin_is_known or score.agreement_of_last(FEWEST_FIRST) < 1.0 or score.agreed < FEWEST_FIRST:
            return ""
        start = self._start_epoch
        epochs = [e for (e, _), cell in score.cells.items() if cell.agreed >= FEWEST_OF_RANK or e > start]
        if not epochs:  # many ranks, each with few opens
            return ""
        self._begin_is_known = True
        epoch, base = min(epochs), timeline.base(min(epochs))
        begin = range(base, base + max(FEWEST_FIRST, matcher.shape.batch))
        if epoch <= start or self._inferred or not any(seen.position in begin for seen in score.history):
            return ""  # nothing else than registered, or it was under way already
        self.way_out = flags_of({"start_epoch": epoch})
        self.known.append(COUNTS_FROM_ONE if epoch == start + 1 else RESUMED.format(epoch=epoch, start=start))
        return self.known[-1]

    def go_on_from(self, before: Findings, said: str, way_out: str, counted_anew: int) -> None:
        """A search has found out `said` about the job that this one replaces; "" if there is nothing to say."""
        self.known = [*before.known, *filter(None, [said])]
        self.way_out = way_out
        self.counted_anew = counted_anew
