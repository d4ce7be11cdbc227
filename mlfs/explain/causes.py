"""Says in words why a registered job's reads do not come as it says: what has not been looked at yet, or what is true.

In: a job, what was looked at in vain, what was found. Out: words for the status. Called by `mlfs.explain.correction`.
"""

from __future__ import annotations

from collections.abc import Set
from enum import Enum, auto

from mlfs.explain.fields import in_words
from mlfs.explain.words import drawing_of
from mlfs.follow.job import JobRun
from mlfs.follow.sentences import register_flags
from mlfs.job import JobSpec
from mlfs.job.names import built_in


class LookedAt(Enum):
    """Something that a search may have looked at."""

    WORDS = auto()
    VARIANTS = auto()


def likely_causes(job: JobRun, looked_at: Set[LookedAt]) -> str:
    """The likeliest causes that were not looked at, the likeliest first."""
    causes = []
    if LookedAt.WORDS not in looked_at and drawing_of(job.streams.order) is not None:
        causes.append(
            "random numbers drawn before the first epoch, by a model that was made for one, or between two epochs"
            " (--words-before, --words-between)"
        )
    own = built_in(job.spec.sampler)
    fields = own.fields if own is not None else frozenset()
    if LookedAt.VARIANTS not in looked_at:
        if "seed" in fields:
            causes.append("another seed")
        if "set_epoch" in fields:
            causes.append("set_epoch not called")
        causes.append("another world size")
        causes.append("shuffle off")
    causes.append("another sampler, data set or layout than registered")
    causes.append("an order that no seed gives")
    return ", ".join(causes)


def registered_and_true(registered: JobSpec, true: JobSpec) -> tuple[str, str, str]:
    """The registration in words, what the reads say instead, and the flags of `mlfs register` that say that."""
    named = true.model_copy(update={"name": registered.name, "epochs": registered.epochs})
    return in_words(registered), in_words(true), register_flags(named, "")
