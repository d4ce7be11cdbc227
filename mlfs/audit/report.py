"""The words of the auditor: numbers of each epoch, faults, and reasons why something cannot be judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The faults that the auditor knows."""

    SAME_ORDER = "same-order-each-epoch"
    REPLAYED = "epoch-replayed"
    RANKS_ALIKE = "ranks-read-alike"
    WORKERS_ALIKE = "workers-read-alike"
    MISSING = "samples-missing"
    REPEATED = "samples-repeated"
    SKIPS = "resume-skips"
    REPEATS = "resume-repeats"
    HARDLY_SHUFFLED = "hardly-shuffled"
    UNEQUAL = "ranks-unequal"


@dataclass(frozen=True, slots=True)
class ScriptFault:
    """A fault of a script.

    Attributes:
        run: the process of the run that has it. epoch: counted from the run's first one. count: samples or reads that
            it is about. sentence: what was seen, with the likely cause. mend: the line that mends it.
    """

    kind: Kind
    run: int
    epoch: int
    count: int
    sentence: str
    mend: str


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """An epoch in numbers.

    Attributes:
        reads: of all ranks. by_none: samples that the job reads in another epoch, and that nobody read in this one.
            by_one: samples that one rank read. by_several: that several did. shuffled: how far from the listing the
            ranks' orders are, 0 to 1 (`mlfs.audit.orders.shuffled_by`). fewest, most: reads of the ranks that have
            fewest and most. is_over: whether the epoch is over.
    """

    epoch: int
    reads: int
    by_none: int
    by_one: int
    by_several: int
    shuffled: float
    fewest: int
    most: int
    is_over: bool


@dataclass(frozen=True, slots=True)
class JobAudit:
    """The reads of one loader of a run: the training, or an evaluation that has workers of its own.

    Attributes:
        run: the process of the run. ranks, readers: how many ranks read, and by how many processes. samples: that it
            read so far. epochs: none where the reads do not show where one ends. unjudged: why something cannot be
            judged, in sentences.
    """

    run: int
    ranks: int
    readers: int
    samples: int
    epochs: tuple[EpochAudit, ...]
    unjudged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """All that was found in the reads of a mount.

    Attributes:
        forgotten: reads that were too long ago. unknown: reads by processes that the kernel does not name.
    """

    jobs: tuple[JobAudit, ...] = ()
    findings: tuple[ScriptFault, ...] = ()
    forgotten: int = 0
    unknown: int = 0
