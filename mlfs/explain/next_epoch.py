"""Where the next epoch of a registered job begins, when its script draws another number of words in each epoch.

In: a job whose sampler draws from one generator, its reads as they were counted. Out: words drawn before an epoch:
computed, once the epoch before has ended, where what augmentation draws is known (`mlfs.explain.augmentation`); else
shown by its first reads (`mlfs.explain.foresight`). Used by `mlfs.explain.correction`.

Both are made ready in the middle of each epoch, as long as it may be that the amounts change: one process reads and
augments by itself, or they have changed before. Who was read as told for several epochs is believed.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from mlfs.explain.augmentation import Augmentation, NextPlace
from mlfs.explain.evidence import SURE_SHARE
from mlfs.explain.foreseen import Generator
from mlfs.explain.foresight import Foresight
from mlfs.explain.image_sizes import ImageSizes
from mlfs.explain.misfit import LAST_OPENS
from mlfs.explain.port import Workers
from mlfs.explain.words import drawing_of, words_before
from mlfs.follow.job import JobRun
from mlfs.orders.placed import PlacedOrder

# Epochs that came as told before nobody expects another amount any more: the first one tells nothing of amounts, and
# the second may be the one from which whoever registers the job has taken its number.
BELIEVED_AFTER = 3
# Epochs whose places are looked at: what the last ones drew tells best.
LAST_EPOCHS = 16
POOL = "foresee"


class Begun(NamedTuple):
    """An epoch that has begun, or is about to.

    Attributes:
        words: drawn before it. computed: its number, where nothing of it need be read to know that; else None.
    """

    words: int
    computed: int | None = None


class NextEpoch:
    """See the module. One object is for one job, in the order in which it is followed.

    Args:
        before: of the job that this one goes on from: what was got ready for this epoch holds while it is read.
    """

    def __init__(self, job: JobRun, sizes: ImageSizes, before: NextEpoch | None = None) -> None:
        self._job = job
        self._sizes = sizes
        self._prepared = job.spec.start_epoch  # the last epoch that the job is ready for, or getting ready
        self._foresight: Foresight | None = None if before is None else before._foresight
        self._computed: NextPlace | None = None  # of the epoch after `_prepared`, if that is beyond doubt
        self._heard = 0  # reads that were counted, up to the last one that was looked at

    @property
    def wants_foresight(self) -> bool:
        """Whether it is time to get ready for the next epoch."""
        job, spec = self._job, self._job.spec
        epoch = self._prepared
        if epoch + 1 >= spec.epochs or job.matcher.ranks[0].frontier < self._middle_of(epoch):
            return False
        if job.score.agreement_of_last(LAST_OPENS) < SURE_SHARE:
            return False  # it is not this epoch that is read
        changes = isinstance(job.streams.order, PlacedOrder)
        may_change = changes or (job.matcher.shape.workers <= 1 and epoch - spec.start_epoch < BELIEVED_AFTER)
        return may_change and spec.world_size == 1 and not spec.weights_file and job.streams.sample_ids.ndim == 1

    def _middle_of(self, epoch: int) -> int:
        return self._job.epochs.timeline.base(epoch) + self._job.streams.length(epoch) // 2

    async def foresee(self, runner: Workers) -> None:
        """Get ready for it."""
        job, epoch = self._job, self._prepared
        self._prepared += 1
        n_samples = len(job.streams.sample_ids)
        drawing, self._computed = await runner.run(POOL, drawing_of, job.spec, n_samples), None
        if drawing is None:
            return
        order = job.streams.order
        first = min(order.drawn_before) if isinstance(order, PlacedOrder) else job.spec.start_epoch
        epochs = range(max(first, epoch + 1 - LAST_EPOCHS), epoch + 1)
        places = tuple(words_before(job, drawing, before) for before in epochs)
        foresight = Foresight(job.streams.sample_ids, [Generator(drawing.seed, drawing.seeded, drawing.ahead, places)])
        self._heard, self._foresight = job.score.observed, foresight
        await foresight.prepare(runner)
        if drawing.is_default_generators and len(places) > 1 and job.matcher.shape.workers <= 1:
            augmentation = Augmentation(self._sizes, job.spec, job.streams.sample_ids, drawing.seed, drawing.an_epoch)
            place = await runner.run(POOL, augmentation.next_place, places)
            if place is not None and place.is_proved and place.words != words_before(job, drawing, epoch + 1):
                self._computed = place

    def heard(self) -> Begun | None:
        """The epoch that has begun, as the reads since the last call show, or that is about to, as was computed.

        It is told once. None while nothing tells.
        """
        job, before, computed = self._job, self._heard, self._computed
        self._heard = job.score.observed
        if computed is not None and job.matcher.ranks[0].frontier >= job.epochs.timeline.base(self._prepared):
            self._computed = None
            return Begun(computed.words, self._prepared)
        if self._foresight is None or self._heard <= before:
            return None
        found = None
        for seen in list(islice(reversed(job.score.history), self._heard - before))[::-1]:
            place = self._foresight.read(seen.entry, seen.process, seen.agrees)
            found = Begun(place.words) if place is not None else found
        return found
