"""A job whose sampler draws from one generator: where in that generator's words an epoch may begin, and what follows.

In: a registered job, the place at which an epoch was found to begin. Out: where to look for an epoch, a `Correction`.
Called by `mlfs.explain.correction`; `mlfs.explain.word_search` looks.

Such an order rests on three numbers: the seed, the words that were drawn before the first epoch (`words_before`: a
model that was made first) and those that others draw in each epoch (`words_between`: a validation loader, random crops
in the main process). Whoever registers a job knows the seed, and seldom the other two.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from mlfs.explain.first_place import first_place
from mlfs.explain.screen import Correction, changed_job
from mlfs.explain.search_stages import SAMPLER_SEED_WORD
from mlfs.explain.variants import switches
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.orders.placed import PlacedOrder
from mlfs.orders.registry import build_order, built_in
from mlfs.orders.streams import JobStreams
from mlfs.orders.torch_random import RandomOrder

# Looked at in a thread, for each hypothesis at once: a tenth of a second around where the epoch should begin, and some
# tenths from where the last one was. Random crops of a million images differ by some thousand words between two epochs.
AROUND = 1 << 17
ONWARD = 1 << 20
# Looked at by a process of its own, in some seconds: a model of 64 million parameters, or as many words in an epoch.
FAR = 1 << 26

BEFORE = "this job draws {words} words from its generator before the first epoch, not {told}"
BETWEEN = "this job draws {words} words from its generator between two epochs, not {told}"
CHANGING = (
    "this job draws another number of words from its generator in each epoch (random crops in the main process do):"
    " each epoch's order is found from its first reads"
)

Spans = tuple[tuple[int, int], ...]


class Drawing(NamedTuple):
    """How a sampler draws an epoch's order from the generator of the job's seed.

    Attributes:
        seed: of that generator.
        seeded: whether one of its words seeds a permutation; else its words make the permutation themselves.
        ahead: words between those counted by `words_before` and that word, or the first of those.
        an_epoch: words from one epoch to the next, `words_between` left out; 0 where no later epoch hangs on them.
    """

    seed: int
    seeded: bool
    ahead: int
    an_epoch: int


def drawing_of(spec: JobSpec, n_samples: int) -> Drawing | None:
    """See `Drawing`; None for a sampler whose order does not begin at such a place, and for an order of mlfs."""
    if spec.serve is not None:
        return None
    if spec.sampler == "torch-random" and not spec.replacement:
        order = build_order(spec, n_samples)
        an_epoch = order.words_an_epoch - (spec.words_between or 0) if isinstance(order, RandomOrder) else 0
        if spec.generator == "default":
            return Drawing(spec.seed, True, SAMPLER_SEED_WORD, an_epoch)
        return Drawing(spec.seed, False, 2 if spec.generator == "shared" else 0, an_epoch)
    if (
        spec.sampler in ("accelerate", "hf-trainer")
        and spec.shuffle
        and not spec.use_seedable_sampler
        and spec.generator != "own"
    ):
        if spec.world_size == 1:
            return Drawing(spec.seed, True, SAMPLER_SEED_WORD, 2 if spec.persistent_workers else 4)
        return Drawing(spec.seed, True, 1, 0)  # of the generator that all ranks share
    place = first_place(spec, n_samples)
    return None if place is None else Drawing(spec.seed, place.seeded, place.ahead, place.an_epoch)


class Whereabouts(NamedTuple):
    """Where the order of an epoch may begin, as numbers of words drawn before it: (first, last + 1).

    Attributes:
        near: where it should be. far: where else it may be.
    """

    near: Spans
    far: Spans


def whereabouts(job: JobRun, drawing: Drawing, epoch: int) -> Whereabouts:
    """The places to look at for an epoch, the likeliest first."""
    expected = words_before(job, drawing, epoch)
    last = words_before(job, drawing, epoch - 1) if epoch > job.spec.start_epoch else 0
    again = [(place, place + 1) for place in sorted(_known(job).values())[:1]]  # the script was started again
    near = (*again, (max(0, expected - AROUND), expected + AROUND), (last, last + ONWARD))
    return Whereabouts(near, ((last, last + FAR), (0, last)) if last else ((0, FAR),))


def _known(job: JobRun) -> Mapping[int, int]:
    """Words drawn before epochs, as reads have told."""
    order = job.streams.order
    return order.drawn_before if isinstance(order, PlacedOrder) else {}


def words_before(job: JobRun, drawing: Drawing, epoch: int) -> int:
    """Words drawn before an epoch, as the job has it."""
    order, spec = job.streams.order, job.spec
    if isinstance(order, PlacedOrder):
        return order.words_before(epoch)
    return (spec.words_before or 0) + epoch * (drawing.an_epoch + (spec.words_between or 0))


def switched(job: JobRun, drawing: Drawing, epoch: int, words: int) -> Correction | None:
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
        other = drawing_of(made[0], len(job.streams.sample_ids))
        if other is not None and other.an_epoch + (spec.words_between or 0) == step:
            told = {name: value for name, value in variant.changes.items() if getattr(spec, name) != value}
            return Correction(*made, variant.sentence, told)
    return None


def moved(job: JobRun, drawing: Drawing, epoch: int, words: int, told: JobSpec) -> Correction | None:
    """The job with an epoch that begins after so many words, from that epoch on.

    Args:
        told: the job as it was registered.
    """
    known, start = dict(_known(job)), job.spec.start_epoch
    if known and epoch > min(known) and known[min(known)] == words:
        epoch = min(known)  # the script was started again
    for before in {start, epoch - 1} if epoch > start else ():
        known.setdefault(before, words_before(job, drawing, before))
    known = {at: begun for at, begun in sorted(known.items()) if at < epoch} | {epoch: words}

    as_told = {"words_before": told.words_before or 0, "words_between": told.words_between or 0}
    true = _in_numbers(known, drawing, as_told["words_between"])
    if "words_between" not in true:
        sentence = CHANGING
    elif true["words_between"] != as_told["words_between"]:
        sentence = BETWEEN.format(words=true["words_between"], told=as_told["words_between"])
    else:
        sentence = BEFORE.format(words=true["words_before"], told=as_told["words_before"])
    # None for what is as it was told after all, or what no number tells: neither is registered otherwise.
    differing = {name: true[name] if true.get(name, value) != value else None for name, value in as_told.items()}
    fields = {name: getattr(told, name) if value is None else value for name, value in differing.items()}
    made = changed_job(job.spec, job.streams, fields | {"start_epoch": epoch, "start_step": 0})
    if made is None:
        return None
    spec, streams = made
    if drawing.an_epoch:
        order = PlacedOrder(spec, len(streams.sample_ids), known, drawing.an_epoch + as_told["words_between"])
        streams = JobStreams(spec, streams.sample_ids, order)
    return Correction(spec, streams, sentence, differing)


def _in_numbers(known: Mapping[int, int], drawing: Drawing, told_between: int) -> dict[str, int]:
    """`words_before` and `words_between` by which epochs begin as is known, without those that no number tells.

    Args:
        known: words drawn before epochs, in the order of the epochs.
    """
    first = min(known)
    steps = {(known[b] - known[a]) / (b - a) for a, b in pairwise(known)}
    between = round(steps.pop()) - drawing.an_epoch if len(steps) == 1 else told_between if not steps else -1
    before = known[first] - first * (drawing.an_epoch + between)
    if between >= 0 and before >= 0:
        return {"words_before": before, "words_between": between}
    return {"words_before": known[0]} if 0 in known else {}
