"""A job whose sampler draws from one generator: where in that generator's words an epoch may begin, and what follows.

In: a registered job, the place at which an epoch was found to begin. Out: where to look for an epoch, a `Hypothesis`.
Called by `mlfs.explain.correction`; `mlfs.explain.word_search` looks.

Such an order rests on three numbers: the seed, the words that were drawn before the first epoch (`words_before`: a
model that was made first) and those that others draw in each epoch (`words_between`: a validation loader, random crops
in the main process). Whoever registers a job knows the seed, and seldom the other two.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from math import log2

from mlfs.explain.screen import changed_job
from mlfs.explain.variants import switches
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.job.names import built_in
from mlfs.orders.composed import Composition, WordsDrawn
from mlfs.orders.order import EPOCHS_KEPT, Indices, Order, build_order
from mlfs.orders.streams import JobStreams


class PlacedOrder:
    """An order whose epochs begin at known places in the words of a generator.

    A script that draws another number of words in each epoch reads so: random crops in the main process do, for one. An
    epoch before which so many words were drawn has the order that the first epoch of a job has with these
    `words_before`. Epochs that are not known are taken to go on from those before them by equal steps.

    Args:
        drawn_before: words drawn before the beginning of an epoch, by epoch; at least one.
        step: words from one epoch to the next, while only one is known.

    Attributes:
        drawn_before: as given. first: the order before which no word was drawn.
    """

    def __init__(self, spec: JobSpec, n_samples: int, drawn_before: Mapping[int, int], step: int) -> None:
        self.drawn_before = dict(sorted(drawn_before.items()))
        self._spec = spec
        self._n_samples = n_samples
        self._step = step
        self._beginning_at = lru_cache(maxsize=EPOCHS_KEPT)(self._make)
        self.first = self._make(0)

    def words_before(self, epoch: int) -> int:
        """Words drawn before an epoch: known, or by equal steps from the epochs known before it."""
        known = [at for at in self.drawn_before if at <= epoch][-2:] or [min(self.drawn_before)]
        step = self._step
        if len(known) == 2:
            before, last = known
            step = (self.drawn_before[last] - self.drawn_before[before]) // (last - before)
        return max(0, self.drawn_before[known[-1]] + (epoch - known[-1]) * step)

    def stream_length(self, epoch: int) -> int:
        """Samples per rank, the same in every epoch."""
        return self.first.stream_length(0)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The dataset indices in read order."""
        return self._beginning_at(self.words_before(epoch)).rank_stream(0, rank)

    def _make(self, words: int) -> Order:
        return build_order(self._spec.model_copy(update={"words_before": words}), self._n_samples)


def drawing_of(order: Order) -> WordsDrawn | None:
    """How an order's epochs are drawn; None for one that does not begin at such a place, and for an order of mlfs."""
    first = order.first if isinstance(order, PlacedOrder) else order
    return first.words_drawn if isinstance(first, Composition) else None


# -- where an epoch begins

# Looked at in a thread, for each hypothesis at once: a tenth of a second around where the epoch should begin, and some
# tenths from where the last one was. Random crops of a million images differ by some thousand words between two epochs.
AROUND = 1 << 17
ONWARD = 1 << 20
# Looked at by a process of its own, in some seconds: a model of 64 million parameters, or as many words in an epoch.
FAR = 1 << 26

BEFORE = "this job draws {words} words from its generator before the first epoch, not {given}"
BETWEEN = "this job draws {words} words from its generator between two epochs, not {given}"
CHANGING = (
    "this job draws another number of words from its generator in each epoch (random crops in the main process do):"
    " each epoch's order is found from its first reads"
)

Spans = tuple[tuple[int, int], ...]


def whereabouts(job: JobRun, drawing: WordsDrawn, epoch: int) -> tuple[Spans, Spans]:
    """The places near where an epoch should begin, and where else it may, as numbers of words drawn before it: (first,
    last + 1), the likeliest first."""
    expected = words_before(job, drawing, epoch)
    last = words_before(job, drawing, epoch - 1) if epoch > job.spec.start_epoch else 0
    again = [(place, place + 1) for place in sorted(_known(job).values())[:1]]  # the script was started again
    near = (*again, (max(0, expected - AROUND), expected + AROUND), (last, last + ONWARD))
    return near, ((last, last + FAR), (0, last)) if last else ((0, FAR),)


def _known(job: JobRun) -> Mapping[int, int]:
    """Words drawn before epochs, as reads have shown."""
    order = job.streams.order
    return order.drawn_before if isinstance(order, PlacedOrder) else {}


def words_before(job: JobRun, drawing: WordsDrawn, epoch: int) -> int:
    """Words drawn before an epoch, as the job has it."""
    order, spec = job.streams.order, job.spec
    if isinstance(order, PlacedOrder):
        return order.words_before(epoch)
    return (spec.words_before or 0) + epoch * (drawing.an_epoch + (spec.words_between or 0))


def switched(job: JobRun, drawing: WordsDrawn, epoch: int, words: int) -> Hypothesis | None:
    """The job whose loader itself takes just as many words from the epoch before to this one, by one of its switches.

    Nobody draws less than nothing: an epoch that begins earlier than the registered loader alone would have it says
    that the loader takes fewer words (persistent workers, epochs that are left before the sampler's end).
    """
    spec, sampler = job.spec, built_in(job.spec.sampler)
    step = words - words_before(job, drawing, epoch - 1) if epoch > spec.start_epoch else drawing.an_epoch
    if sampler is None or not 0 < step < drawing.an_epoch:
        return None
    for variant in switches(spec.model_dump(), sampler.fields):
        made = changed_job(spec, job.streams, {**variant.changes, "start_epoch": epoch, "start_step": 0})
        if made is None or made[0].generator != spec.generator:
            continue
        other = drawing_of(made[1].order)
        if other is not None and other.an_epoch + (spec.words_between or 0) == step:
            changes = {name: value for name, value in variant.changes.items() if getattr(spec, name) != value}
            return Hypothesis(made[0], Origin.PLACE, made[1], variant.sentence, changes, choice_bits=log2(FAR))
    return None


def moved(job: JobRun, drawing: WordsDrawn, epoch: int, words: int, registered: JobSpec) -> Hypothesis | None:
    """The job with an epoch that begins after so many words, from that epoch on."""
    known, start = dict(_known(job)), job.spec.start_epoch
    if known and epoch > min(known) and known[min(known)] == words:
        epoch = min(known)  # the script was started again
    for before in {start, epoch - 1} if epoch > start else ():
        known.setdefault(before, words_before(job, drawing, before))
    known = {at: begun for at, begun in sorted(known.items()) if at < epoch} | {epoch: words}

    given = {"words_before": registered.words_before or 0, "words_between": registered.words_between or 0}
    true = _in_numbers(known, drawing, given["words_between"])
    if "words_between" not in true:
        sentence = CHANGING
    elif true["words_between"] != given["words_between"]:
        sentence = BETWEEN.format(words=true["words_between"], given=given["words_between"])
    else:
        sentence = BEFORE.format(words=true["words_before"], given=given["words_before"])
    # None for what is as registered after all, or what no number says: neither is registered otherwise.
    differing = {name: true[name] if true.get(name, value) != value else None for name, value in given.items()}
    fields = {name: getattr(registered, name) if value is None else value for name, value in differing.items()}
    made = changed_job(job.spec, job.streams, fields | {"start_epoch": epoch, "start_step": 0})
    if made is None:
        return None
    spec, streams = made
    if drawing.an_epoch:
        order = PlacedOrder(spec, len(streams.sample_ids), known, drawing.an_epoch + given["words_between"])
        streams = JobStreams(spec, streams.sample_ids, order)
    return Hypothesis(spec, Origin.PLACE, streams, sentence, differing, choice_bits=log2(FAR))


def _in_numbers(known: Mapping[int, int], drawing: WordsDrawn, given_between: int) -> dict[str, int]:
    """`words_before` and `words_between` by which epochs begin as is known, without those that no number tells.

    Args:
        known: words drawn before epochs, in the order of the epochs.
    """
    first = min(known)
    steps = {(known[b] - known[a]) / (b - a) for a, b in pairwise(known)}
    between = round(steps.pop()) - drawing.an_epoch if len(steps) == 1 else given_between if not steps else -1
    before = known[first] - first * (drawing.an_epoch + between)
    if between >= 0 and before >= 0:
        return {"words_before": before, "words_between": between}
    return {"words_before": known[0]} if 0 in known else {}
