"""A hypothesis: a job as it may be, with another specification than the one in force; and the rule that installs it.

Pure. In: what generators propose, and how reads came. Out: rulings. Used by all of `mlfs.explain`.

Generators only propose, the likeliest first: the variants of a registration (`screen`), the place in its generator's
words at which an epoch begins (`words`), the order of the files, a seed or another sampler (`explanations`), the epochs
before (`next_epoch`), another node. Each has paid in bits for the choice that it had (`evidence`). `mlfs.follow`
itself knows what else may be true of a job with the specification in force, such as that its script was started again.

A registered job and one that nobody registered differ in what they begin with. Somebody has said that the first one is
right: it is in force before any read, and what is to take its place must be borne out by reads that it was not searched
with. The second one begins at nothing: it takes nobody's place, and is in force as soon as it is no chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from mlfs.errors import JobError
from mlfs.explain.evidence import JUDGED_OPENS, MOST_FURTHER_OPENS, confirmed, fits
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import JobStreams

Fields = dict[str, object]
"""Fields of a job, as in a registration."""

JOB_NAME = "inferred"
EPOCHS = 1000
"""Epochs of a job that nobody registered: more than anybody waits for, as nobody said how many there will be."""


class Origin(Enum):
    """The generator that proposed a hypothesis."""

    VARIANT = auto()
    """Another registration, the best of some hundred that mistakes make."""

    PLACE = auto()
    """An epoch of a registered job that begins elsewhere in its generator's words."""

    FILES = auto()
    """The order of the files."""

    SEARCH = auto()
    """A seed, or a sampler that is not torch's, of all that were tried."""

    EPOCH_BEFORE = auto()
    """What explained the epochs before goes on so."""

    NODE = auto()
    """What explains the reads of another node."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A job as it may be, from where its reads are.

    Attributes:
        streams: of the job, if somebody has made them already; those of a `PLACE` know what its specification cannot
            say.
        sentence: what the script does otherwise than was registered; "" where nobody registered a job.
        changes: fields that register it so; None for a field that is as it was registered after all.
        families: the numbers of the families of readers whose opens it explains; None: all.
    """

    spec: JobSpec
    origin: Origin
    streams: JobStreams | None = None
    sentence: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    families: frozenset[int] | None = None


class Fit(NamedTuple):
    """Opens, and how many of them came as a hypothesis says."""

    opens: int = 0
    fitting: int = 0

    def with_more(self, opens: int, fitting: int) -> Fit:
        """With further opens."""
        return Fit(self.opens + opens, self.fitting + fitting)


class Ruling(Enum):
    """The reads' answer to whether a hypothesis takes a registered job's place."""

    WAITS = auto()
    INSTALL = auto()
    REFUTED = auto()
    REGISTERED_STANDS = auto()


def ruling(found: Hypothesis, shown: Fit, further: Fit, registered: Fit | None) -> Ruling:
    """The rule that installs, where a registered job is in force: whether a hypothesis takes its place.

    Args:
        shown: of all opens of the epoch, those included that the hypothesis was found by. further: of those since.
        registered: of the same further opens, by the job that is in force; None where its count says nothing.
    """
    if found.origin is Origin.PLACE:  # no other of millions of orders begins so: further opens have nothing to add
        return Ruling.INSTALL if fits(*shown) else Ruling.REFUTED
    stands = registered is not None and fits(*registered) and further.fitting <= registered.fitting
    if stands and further.opens >= JUDGED_OPENS:
        return Ruling.REGISTERED_STANDS  # where neither predicts anything, neither stands
    if confirmed(*further):
        return Ruling.INSTALL
    return Ruling.REFUTED if further.opens >= MOST_FURTHER_OPENS else Ruling.WAITS


# -- specifications


def proposed(ranked: Iterable[Fields], origin: Origin) -> list[Hypothesis]:
    """The hypotheses that these fields make, in their order, without those that are no job."""
    found = []
    for fields in ranked:
        try:
            found.append(Hypothesis(parse_job(fields), origin))
        except JobError:
            continue
    return found


def order_of(spec: JobSpec) -> JobSpec:
    """The part of a job that gives the order, without what the same reads may show otherwise later."""
    return spec.model_copy(update={"name": "", "batch_size": 1, "ranks": (), "start_epoch": 0, "start_step": 0})


def in_words(spec: JobSpec) -> str:
    """A job in a line for people: what was given of it."""
    given = spec.model_fields_set
    said = [spec.sampler, f"seed {spec.seed}"] if "seed" in given else [spec.sampler]
    if spec.generator is not None:
        said.append(f"{spec.generator} generator")
    said += [
        f"{name.replace('_', ' ')} {getattr(spec, name)}"
        for name in ("words_before", "words_between", "words_once")
        if getattr(spec, name)
    ]
    said += ["a piece for each rank"] if spec.contiguous else []
    said += ["persistent workers"] if spec.persistent_workers else []
    switches = ("set_epoch", "trailing_permutation")
    said += [f"no {name.replace('_', ' ')}" for name in switches if getattr(spec, name) is False]
    said.append(f"world size {spec.world_size}")
    if "batch_size" in given:
        said.append(f"batch size {spec.batch_size}")
    return ", ".join(said)
