"""Finds where an epoch begins in the words of the generator that has drawn the epochs before it.

In: explanations of the epochs before by torch's default generator, the first reads of an epoch that none of them
predicted. Out: fields of a job that begins with it. Called by `mlfs.explain.inferred_jobs` in a worker thread.

What a script draws between two epochs is often not known before the second one, and random crops in the main process
draw another number of words in each. But an epoch begins soon after the one before it: a look at so few words takes
tenths of a second, and some ten reads tell the place.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfs.explain.explanations import continued, passed_before
from mlfs.explain.fields import Fields
from mlfs.explain.question import DataSet
from mlfs.explain.search_stages import SAMPLER_SEED_WORD, Draw, WordsAsked
from mlfs.explain.word_search import place_nearby

# A validation loader, or the random crops of some thousand images: looked at in an instant.
NEAR = 1 << 16
# Random crops of a hundred thousand images: some tenths of a second.
ONWARD = 1 << 20
# Each takes that long: as many as one search tells at once when it is not known which generator is right.
MOST_GENERATORS = 16


def goes_on(lost: Sequence[Fields], epoch: int, data_set: DataSet) -> Fields | None:
    """The fields of a job that begins with the epoch that the reads begin; None if it is nowhere near.

    Args:
        lost: explanations, by the default generator, of the epochs up to `epoch`.
        data_set: the first reads of each process.
    """
    known: dict[tuple[int, int], Fields] = {}
    for fields in lost:
        known.setdefault((int(str(fields["seed"])), passed_before(fields, epoch)), fields)
    for low, high in ((0, NEAR), (NEAR, ONWARD)):
        for (seed, last), fields in list(known.items())[:MOST_GENERATORS]:
            spans = ((last + low, last + high),)
            found = place_nearby(data_set, WordsAsked(seed, True, SAMPLER_SEED_WORD, spans))
            going_on = continued([fields], epoch, (Draw(seed, found.words),)) if found is not None else []
            if going_on:
                return {name: value for name, value in fields.items() if name != "words_once"} | going_on[0]
    return None
