"""An inferred job that is in force: do the reads still come as explained?

In: opens of the job's samples, one by one, after its matcher has counted the batch that they came in. Out: whether the
explanation is refuted, and the reads that do not fit it: the first of an epoch in another order. Made by
`mlfs.explain.inferred_jobs`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from mlfs.explain.evidence import FEWEST_FITTING, borne_out, refuted
from mlfs.explain.first_reads import FirstReads
from mlfs.explain.search_stages import COMMON_SEEDS
from mlfs.follow.evidence import JUDGED_OPENS, Read
from mlfs.follow.hypothesis import Hypothesis
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.score import REMEMBERED_OPENS
from mlfs.job import JobSpec
from mlfs.job.parse import COMPOSED

# Each generator that is tried further costs a search seconds.
MOST_GENERATORS = 6


class InferredJob:
    """One inferred job: the hypothesis in force, its rivals, and how well it does.

    Args:
        was_chosen: whether the first reads of an epoch have chosen this hypothesis from several.

    Attributes:
        hypothesis: the one in force. ranked: all that explain what was read first, this one included, best first.
        unfit: the reads since the last twelve in a row that came as explained. In the beginning of an epoch all of its
            first twelve: one of another epoch may lie by chance where this one begins, and no search finds one without
            its first read.
    """

    def __init__(
        self, job: JobRun, hypothesis: Hypothesis, ranked: Sequence[Hypothesis], was_chosen: bool = False
    ) -> None:
        self.job = job
        self.hypothesis = hypothesis
        self.ranked = ranked
        self.unfit = FirstReads()
        self._was_chosen = was_chosen
        self._counted = job.score.observed
        self._unseen: deque[Open] = deque(maxlen=REMEMBERED_OPENS)  # counted by the job, and not come here yet
        self._judged: deque[bool] = deque(maxlen=JUDGED_OPENS)
        self._first = job.spec.start_epoch
        self._epoch, self._opens_of_epoch = self._first, JUDGED_OPENS  # the last one that has begun
        self._half_read_at = job.epochs.timeline.base(self._first + 1) - job.streams.length(self._first) // 2

    def follow_all(self, opens: Sequence[Read]) -> bool:
        """Take note of opens if all came as explained, as in the middle of an epoch. Returns whether they did.

        The job has counted these opens and no others since it was looked at last, all of them as predicted.
        """
        score, count = self.job.score, len(opens)
        if score.observed - self._counted != count or self._unseen or self._opens_of_epoch <= JUDGED_OPENS:
            return False
        if self.job.evaluation.may_come or not all(self._judged) or len(score.history) < count:
            return False
        own, counted = self.job.readers.own, list(islice(reversed(score.history), count))
        for seen, (entry, process, _, _) in zip(reversed(counted), opens, strict=True):
            if seen.entry != entry or seen.process != process or not seen.agrees or process not in own:
                return False
        if counted and counted[0].cell.epoch != self._epoch:
            return False
        self._counted = score.observed
        self._judged.extend([True] * min(count, JUDGED_OPENS))
        self._opens_of_epoch += count
        if self.unfit.total:
            self.unfit = FirstReads()
        return True

    def follow(self, entry: int, process: int, parent: int) -> bool:
        """Take note of an open; True when it refutes the explanation."""
        evaluation = self.job.evaluation
        if evaluation.may_come and evaluation.is_by(process):
            self.unfit = FirstReads()
            return False
        opens = self._counts_of(entry, process)
        self._judged.extend([seen.agrees for seen in opens])
        if opens and all(self._judged):
            if opens[-1].cell.epoch > self._epoch:
                self._epoch, self._opens_of_epoch = opens[-1].cell.epoch, 0
                self.unfit = FirstReads()
            self._opens_of_epoch += len(opens)
            if self._opens_of_epoch > JUDGED_OPENS:
                if self.unfit.total:
                    self.unfit = FirstReads()
                return False
        self.unfit.add(entry, process, parent)
        return refuted(len(self._judged), sum(self._judged))

    def _counts_of(self, entry: int, process: int) -> list[Open]:
        """How the job has counted this open, and those before it that did not come here.

        The job has counted a whole batch of opens when the first of them comes here. None: the open is held back, while
        the order of an epoch is being computed. Several: others were held back until now.
        """
        score = self.job.score
        # How earlier opens were counted may have changed since: so the sum of those that agreed tells nothing.
        counted, self._counted = score.observed - self._counted, score.observed
        if counted:
            self._unseen.extend(score.history[at] for at in range(-min(counted, len(score.history)), 0))
        for at, seen in enumerate(self._unseen):
            if seen.entry == entry and seen.process == process:
                return [self._unseen.popleft() for _ in range(at + 1)]
        return []

    def learn(self, ranked: Sequence[Hypothesis]) -> None:
        """More became known of where the seed was drawn: these explain what was read first, best first."""
        self.ranked = ranked

    @property
    def last_epoch(self) -> int:
        """The last epoch that was read as explained, or where the reader is if there is none."""
        cells = self.job.score.cells.items()
        fitting = [
            epoch for (epoch, _), cell in cells if cell.agreed >= FEWEST_FITTING and 2 * cell.agreed > cell.observed
        ]
        return max(fitting, default=self.job.ranks.current_epochs()[1])

    @property
    def decided(self) -> bool:
        """Whether a second epoch has come as explained, or its first reads have chosen this explanation."""
        return self._was_chosen or self.last_epoch > self._first

    @property
    def fitted_by_chance(self) -> bool:
        """Whether it explained its first reads and hardly any of those since: none of its rivals is right either."""
        job = self.job
        lost_early = self.last_epoch == self._first and max(job.ranks.frontiers) < self._half_read_at
        return not self.decided and (lost_early or not borne_out(job.score.history))

    @property
    def walks(self) -> bool:
        """Whether it is explained by the order of the files, which is also that of the directories."""
        return self.job.spec.sampler == "sequential"

    @property
    def other_explanations(self) -> int:
        """How many other hypotheses explain what was read."""
        return 0 if self.decided else max(0, len(self.ranked) - 1)

    @property
    def drawn(self) -> bool:
        """Whether torch's default generator may have drawn the seed, as no person would choose it."""
        spec = self.job.spec
        large = spec.sampler == "torch-distributed" and spec.world_size == 1 and spec.seed >= COMMON_SEEDS
        return large or any(_goes_on_by_default(other.spec) for other in self.ranked)

    @property
    def generators(self) -> tuple[int, ...]:
        """Seeds of the default generator that may be right, the likeliest first: the right one goes on."""
        return tuple(dict.fromkeys(spec.seed for spec in self.drawings))[:MOST_GENERATORS]

    @property
    def drawings(self) -> list[JobSpec]:
        """Jobs by the default generator: the one in force if further epochs have borne it out, else its rivals too."""
        borne_out_by_another_epoch = self.last_epoch > self._first
        likely = [self.hypothesis] if borne_out_by_another_epoch else [self.hypothesis, *self.ranked]
        return [hypothesis.spec for hypothesis in likely if _goes_on_by_default(hypothesis.spec)]


def _goes_on_by_default(spec: JobSpec) -> bool:
    """Whether torch's default generator draws, and goes on from epoch to epoch."""
    return spec.generator == "default" and spec.sampler != COMPOSED
