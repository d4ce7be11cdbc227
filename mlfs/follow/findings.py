"""Findings about a job while it ran: in plain words, and as flags of `mlfs register`.

Pure. In: sentences of searches, the first reads of a job. Out: the sentences so far, the last one last. Used by
`mlfs.follow.job`. One thing is found out here: that the script begins with another epoch than the registered one. All
else is found by the searches of `mlfs.explain`, and handed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from mlfs.follow.epochs_at_hand import Timeline
from mlfs.follow.job_statistics import FindingsStatistics
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.score import Cell
from mlfs.follow.sentences import COUNTS_FROM_ONE, RESUMED, flags_of

FEWEST_FIRST = 12
"""First opens that must all be predicted before they tell in which epoch the script began: more than chance makes."""
FEWEST_OF_RANK = 4
"""Predicted opens of a rank in the registered epoch, before the script counts as reading that epoch: in the order of a
later one some samples lie by chance where a worker of the registered one might begin."""


def epochs_in_unknown_order(cells: Mapping[tuple[int, int], Cell]) -> dict[int, int]:
    """Opens of each epoch most of whose opens were not predicted.

    Args:
        cells: counts by epoch and local rank index.
    """
    opens: Counter[int] = Counter()
    agreed: Counter[int] = Counter()
    for (epoch, _), cell in cells.items():
        opens[epoch] += cell.observed
        agreed[epoch] += cell.agreed
    return {epoch: count for epoch, count in opens.items() if 2 * agreed[epoch] < count}


class Findings:
    """All that was found out about one job while it ran.

    Args:
        start_epoch: the one that was registered.
        inferred: nobody registered the job: where it begins was found by its reads.

    Attributes:
        known: the sentences.
        way_out: flags of `mlfs register` that say the last one from the start; "" where there are none.
        counted_anew: opens that were counted anew when the last one was found.
        order_unknown: opens by epoch that came before their order was known. Agreement leaves them out.
    """

    def __init__(self, start_epoch: int, inferred: bool) -> None:
        self.known: list[str] = []
        self.way_out = ""
        self.counted_anew = 0
        self.order_unknown: dict[int, int] = {}
        self._start_epoch = start_epoch
        self._inferred = inferred
        self._begin_is_known = False
        self._first_epoch = -1  # that was seen to be read

    def statistics(self, flags: str) -> FindingsStatistics:
        """Frozen figures. Args: all flags that register the job as it was found to be."""
        return FindingsStatistics(tuple(self.known), self.way_out, self.counted_anew, flags, dict(self.order_unknown))

    def were(self, known: list[str], way_out: str) -> None:
        """Another process has found this out."""
        self.known, self.way_out = known, way_out

    def began_elsewhere(self, matcher: StreamMatcher, timeline: Timeline) -> str:
        """Once, in words: the script's first reads are those of another epoch than the registered one. Else ""."""
        score = matcher.score
        if self._begin_is_known or self._inferred or matcher.lacks_pids:
            return ""
        if score.agreement_of_last(FEWEST_FIRST) < 1.0 or score.agreed < FEWEST_FIRST:
            return ""
        start = self._start_epoch
        if self._first_epoch < 0:
            epochs = {start for (e, _), cell in score.cells.items() if e == start and cell.agreed >= FEWEST_OF_RANK}
            epochs.update(seen.cell.epoch for seen in islice(reversed(score.history), FEWEST_FIRST))
            self._first_epoch = min(epochs)
        epoch, base = self._first_epoch, timeline.base(self._first_epoch)
        a_round = matcher.shape.batch * max(1, matcher.shape.workers)
        begin = range(base, base + max(FEWEST_FIRST, a_round))
        seen_to_begin = any(seen.position in begin for seen in score.history)
        self._begin_is_known = epoch <= start or seen_to_begin or max(seen.cell.epoch for seen in score.history) > epoch
        if epoch <= start or not seen_to_begin:
            return ""  # nothing else than registered, or it was under way already, or the first batch is held up
        self.way_out = flags_of({"start_epoch": epoch})
        self.known.append(COUNTS_FROM_ONE if epoch == start + 1 else RESUMED.format(epoch=epoch, start=start))
        return self.known[-1]

    def go_on_from(
        self,
        before: Findings,
        said: str,
        way_out: str,
        counted_anew: int,
        order_unknown: Mapping[int, int],
        now: int,
    ) -> None:
        """A search has found out `said` about the job that this one replaces; "" if there is nothing to say.

        Args:
            order_unknown: opens by epoch that came before their order was known. now: the epoch that is read: what
                seemed to be of a later one was of none.
        """
        opens = Counter(before.order_unknown)
        for epoch, count in order_unknown.items():
            opens[min(epoch, now)] += count
        self.order_unknown = dict(opens)
        self.known = [*(known for known in before.known if known != said), *filter(None, [said])]
        self.way_out = way_out
        self.counted_anew = counted_anew
