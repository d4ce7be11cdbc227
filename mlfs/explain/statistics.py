"""Explaining in figures: frozen figures of the search for an unregistered order, and for each job.

Made by `mlfs.explain.explainer` and its parts, for the status of a mount.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

WHY_UNKNOWN = (
    "its seed comes from the operating system (a tf.data shuffle without one), or it takes more than a seed (weights, a"
    " buffer): give the script a seed and register it, or record a run; docs/following.md says what is not found"
)


class InferenceState(StrEnum):
    """Inferring in a word, as `status` says it."""

    OFF = "off"
    IDLE = "a job is registered"
    WATCHING = "watching the first reads"
    SEARCHING = "searching"
    LOCKED = "locked on"
    UNKNOWN = "no order that mlfs knows explains the reads"


@dataclass(frozen=True, slots=True)
class AttemptStatistics:
    """The progress of a search for a seed.

    Attributes:
        stage: which seeds are being tried. tried: how many of them were. of: how many there are.
        remaining_s: how long trying the others takes, None while that is not known.
        compiled: whether compiled code tries them.
    """

    stage: str
    tried: int
    of: int
    remaining_s: float | None
    compiled: bool


@dataclass(frozen=True, slots=True)
class InferenceStatistics:
    """The search for the order of an unregistered mount.

    Attributes:
        searches: how many were made.
        attempt: where the search under way is, None without one.
        hypothesis: what explains the reads, in words; "" while nothing does.
        alternatives: how many others explain the same reads.
    """

    state: InferenceState
    searches: int = 0
    attempt: AttemptStatistics | None = None
    hypothesis: str = ""
    alternatives: int = 0


@dataclass(frozen=True, slots=True)
class Instead:
    """The hypothesis of a registered job's reads once it was set aside.

    Attributes:
        registered: in words. true: what the reads say. flags: of `mlfs register`, that say it.
    """

    registered: str
    true: str
    flags: str


@dataclass(frozen=True, slots=True)
class CaseStatistics:
    """The searches for what a registered job does otherwise than it was registered.

    Attributes:
        attempt: where the search is that looks through the words of the job's generator, None without one.
        likely: why its reads may not come as registered: what was not looked at, in words.
        instead: what explains its reads, if no other registration of it did.
    """

    searching: bool = False
    searches: int = 0
    attempt: AttemptStatistics | None = field(default=None, metadata={"key": None})
    likely: str = field(default="", metadata={"key": None})
    instead: Instead | None = field(default=None, metadata={"key": None})


@dataclass(frozen=True, slots=True)
class ExplainerStatistics:
    """Both searches; `cases` by the job's name."""

    inference: InferenceStatistics
    cases: Mapping[str, CaseStatistics]
