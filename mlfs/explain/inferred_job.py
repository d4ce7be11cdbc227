"""An inferred job that is in use: do the reads still come as explained?

In: opens of the job's samples, one by one, after its matcher has counted the batch that they came in. Out: whether the
explanation has failed, and the reads that do not fit it: the first of an epoch in another order. Made by
`mlfs.explain.inferred_jobs`.
"""

from __future__ import annotations

from collections import deque

from mlfs.explain.evidence import JUDGED_OPENS, refuted
from mlfs.explain.fields import Fields
from mlfs.explain.first_reads import FirstReads
from mlfs.explain.search_stages import COMMON_SEEDS
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.score import REMEMBERED_OPENS

# An epoch counts as read in the explained order from so many opens on that came as predicted, if most of them did.
FEWEST_OPENS = 8
# Each generator that is tried further costs a search seconds.
MOST_GENERATORS = 6


class InferredJob:
    """One inferred job: the explanation in use, and how well it does.

    Attributes:
        fields: the explanation in use. alternatives: all that explain what was read first, best first.
        unfit: the reads since the last twelve in a row that came as explained. In the beginning of an epoch all of its
            first twelve: one of another epoch may lie by chance where this one begins, and no search finds one without
            its first read.
        lost_after: once the reads don't come as explained any more, the explanation's last epoch that did.
        was_chosen: whether the first reads of an epoch have chosen this explanation from several.
        first_epoch: the first one that came as explained; the job may have been installed at the end of it.
    """

    def __init__(
        self,
        job: JobRun,
        fields: Fields,
        alternatives: list[Fields],
        was_chosen: bool = False,
        first_epoch: int | None = None,
    ) -> None:
        self.job = job
        self.fields = fields
        self.alternatives = alternatives
        self.unfit = FirstReads()
        self.lost_after = 0
        self.was_chosen = was_chosen
        self.first_epoch = job.spec.start_epoch if first_epoch is None else first_epoch
        self._read_others = first_epoch is not None
        self._counted = job.score.observed
        self._untold: deque[Open] = deque(maxlen=REMEMBERED_OPENS)  # counted by the job, and not told of here yet
        self._judged: deque[bool] = deque(maxlen=JUDGED_OPENS)
        self._epoch, self._opens_of_epoch = job.spec.start_epoch, JUDGED_OPENS  # the last one that has begun
        start = job.spec.start_epoch
        self._half_read_at = job.epochs.timeline.base(start + 1) - job.streams.length(start) // 2

    def follow(self, entry: int, process: int, parent: int) -> bool:
        """Take note of an open; True when it is clear that the explanation is wrong by now (see `refuted`)."""
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
        """How the job has counted this open, and those before it that were not told of.

        The job has counted a whole batch of opens when the first of them is told of here. None: the open is held back,
        while the order of an epoch is being computed. Several: others were held back until now.
        """
        score = self.job.score
        # How earlier opens were counted may have changed since: so the sum of those that agreed tells nothing.
        counted, self._counted = score.observed - self._counted, score.observed
        if counted:
            self._untold.extend(score.history[at] for at in range(-min(counted, len(score.history)), 0))
        for at, seen in enumerate(self._untold):
            if seen.entry == entry and seen.process == process:
                return [self._untold.popleft() for _ in range(at + 1)]
        return []

    def give_up(self) -> None:
        """The explanation has failed."""
        self.lost_after = self.last_epoch()

    def learn_alternatives(self, alternatives: list[Fields]) -> None:
        """More became known of where the seed was drawn: these explain what was read first, best first."""
        self.alternatives = alternatives

    def last_epoch(self) -> int:
        """The last epoch that was read as explained, or where the reader is if there is none."""
        cells = self.job.score.cells.items()
        fitting = [
            epoch for (epoch, _), cell in cells if cell.agreed >= FEWEST_OPENS and 2 * cell.agreed > cell.observed
        ]
        before = self.first_epoch if self.first_epoch < self.job.spec.start_epoch else None
        return max(fitting, default=self.job.ranks.current_epochs()[1] if before is None else before)

    def reads_others_next(self, process: int, parent: int) -> bool:
        """Whether a read of other files is the script's first one after the first epoch: it validates then.

        True once, and only while the generator is known from which a validation loader draws, too.
        """
        job = self.job
        if self._read_others or self.decided or self.fields.get("generator") != "default" or job.spec.start_epoch:
            return False
        left = job.streams.length(0) - min(progress.frontier for progress in job.matcher.ranks)
        if not 0 <= left < max(1, job.spec.batch_size):  # the loader may drop the last batch
            return False
        self._read_others = bool(job.readers.own) and job.readers.are_the_jobs(process, parent, job.matcher)
        return self._read_others

    def with_validation(self, persistent: bool) -> list[Fields]:
        """The explanations, those first by which a validation loader draws its base_seed: once, or in each epoch."""
        drawn: Fields = {"words_once": 2, "persistent_workers": True} if persistent else {"words_between": 2}
        right = {name: self.fields.get(name) for name in ("seed", "words_before")} | drawn
        first = [fields for fields in self.alternatives if right.items() <= fields.items()]
        return [*first, *(fields for fields in self.alternatives if fields not in first)] if first else []

    @property
    def decided(self) -> bool:
        """Whether a second epoch has come as explained, or its first reads have chosen this explanation."""
        return self.was_chosen or self.last_epoch() > self.first_epoch

    @property
    def lost_early(self) -> bool:
        """Whether not even half of its first epoch came as explained: its first reads fit by chance."""
        job = self.job
        return self.last_epoch() == job.spec.start_epoch and max(job.ranks.frontiers) < self._half_read_at

    @property
    def walks(self) -> bool:
        """Whether it is explained by the order of the files, which is also that of the directories."""
        return self.fields["sampler"] == "sequential"

    @property
    def others(self) -> int:
        """How many other explanations fit what was read."""
        return 0 if self.decided else max(0, len(self.alternatives) - 1)

    @property
    def drawn(self) -> bool:
        """Whether torch's default generator may have drawn the seed, as no person would choose it."""
        seed, one = int(str(self.fields.get("seed", 0))), self.fields.get("world_size") == 1
        large = self.fields["sampler"] == "torch-distributed" and one and seed >= COMMON_SEEDS
        return large or any(fields.get("generator") == "default" for fields in self.alternatives)

    @property
    def generators(self) -> tuple[int, ...]:
        """Seeds of the default generator that may be right, the likeliest first: the right one goes on."""
        seeds = (int(str(fields["seed"])) for fields in self.drawings)
        return tuple(dict.fromkeys(seeds))[:MOST_GENERATORS]

    @property
    def drawings(self) -> list[Fields]:
        """Explanations by the default generator: the one in use if further epochs have borne it out, else all."""
        decided = self.lost_after > self.first_epoch
        explanations = [self.fields] if decided else [self.fields, *self.alternatives]
        return [fields for fields in explanations if fields.get("generator") == "default"]
