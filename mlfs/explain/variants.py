"""What else a script may do than what was registered: other fields of the same job, and how it is said.

Pure. In: a registered job's fields. Out: `Variant`s, the likeliest first. `mlfs.explain.screen` tries them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from mlfs.explain.popular import LARGEST_SMALL_SEED, POPULAR_SEEDS
from mlfs.follow.sentences import COUNTS_FROM_ONE, NOT_SERVED, RESUMED

# Another seed and another epoch can give the same order. So the popular seeds are tried in two parts: see `variants`.
SMALL_SEEDS = tuple(seed for seed in POPULAR_SEEDS if 0 < seed <= LARGEST_SMALL_SEED)
LIKED_SEEDS = tuple(seed for seed in POPULAR_SEEDS if seed not in SMALL_SEEDS)
WORLD_SIZES = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 256, 512, 1024)
# Ranks of a node that read the same order: as many orders of the whole data set are made and compared.
MOST_ALIKE = 8
TORCH_SAMPLERS = ("torch-distributed", "torch-random", "torch-stateful", "sequential")
DEALING_SAMPLERS = ("accelerate", "hf-trainer")
GENERATORS = ("default", "own", "shared")


class Variant(NamedTuple):
    """Another registration, and what its user is told if it proves right.

    Attributes:
        changes: fields in place of the registered ones.
        sentence: what the job does, in plain words.
        epoch: the epoch to look at; None for the one that is being read.
    """

    changes: Mapping[str, Any]
    sentence: str
    epoch: int | None = None


def variants(fields: Mapping[str, Any], reads: Collection[str]) -> Iterator[Variant]:
    """Other registrations that mistakes make, the likeliest first.

    Args:
        fields: the registered job, defaults included.
        reads: the fields that its sampler reads.
    """
    if fields["serve"] is not None:
        yield Variant({"serve": None, "level": None, "nodes": None}, NOT_SERVED)
        yield from _epochs(fields)
        return  # whoever reads the served order is told it by the mount: nothing else can be mistaken
    if fields["start_step"]:
        sentence = f"this job reads its first epoch from the beginning, not from step {fields['start_step']}"
        yield Variant({"start_step": 0}, sentence)
    yield from switches(fields, reads)
    seed = fields["seed"]
    if "seed" in reads:
        yield Variant({"seed": seed + 1}, COUNTS_FROM_ONE)
        yield Variant({"seed": seed - 1}, "this job reads each epoch in the order of the one before")
    yield from _ranks(fields, reads)
    # A seed that people like is likelier than a resumed run, and that is likelier than a small number as a seed.
    yield from _seeds(fields, reads, LIKED_SEEDS)
    yield from _epochs(fields)
    yield from _seeds(fields, reads, SMALL_SEEDS)
    yield from _samplers(fields)


def _seeds(fields: Mapping[str, Any], reads: Collection[str], seeds: Collection[int]) -> Iterator[Variant]:
    for seed in seeds:
        if "seed" in reads and seed != fields["seed"]:
            yield Variant({"seed": seed}, f"this job's seed is {seed}, not {fields['seed']}")


def _epochs(fields: Mapping[str, Any]) -> Iterator[Variant]:
    """Runs that were resumed elsewhere."""
    start = fields["start_epoch"]
    for epoch in range(fields["epochs"]):
        if epoch != start:
            sentence = RESUMED.format(epoch=epoch, start=start)
            yield Variant({"start_epoch": epoch, "start_step": 0}, sentence, epoch)


def _samplers(fields: Mapping[str, Any]) -> Iterator[Variant]:
    """torch's other samplers, with the same fields as far as they read them."""
    registered = fields["sampler"]
    for sampler in TORCH_SAMPLERS if registered in TORCH_SAMPLERS else ():
        if sampler == registered:
            continue
        sentence = f'the sampler of this job is "{sampler}", not "{registered}"'
        yield Variant({"sampler": sampler}, sentence)
        if sampler == "torch-random":
            for generator in GENERATORS:
                yield Variant({"sampler": sampler, "generator": generator}, f'{sentence}, generator "{generator}"')


def switches(fields: Mapping[str, Any], reads: Collection[str]) -> Iterator[Variant]:
    """What a sampler does or does not do: registrations in which one of these is the other way round."""
    if "set_epoch" in reads:
        calls = fields["set_epoch"]
        no = "this job does not call set_epoch: every epoch reads the same order"
        yes = "this job calls set_epoch: every epoch reads another order"
        yield Variant({"set_epoch": not calls}, no if calls else yes)
    if "shuffle" in reads:
        shuffles = fields["shuffle"]
        yield Variant({"shuffle": not shuffles}, "this job does not shuffle" if shuffles else "this job shuffles")
    if "drop_last" in reads:
        drops = fields["drop_last"]
        words = "pads the last step" if drops else "drops the last, incomplete step"
        yield Variant({"drop_last": not drops}, f"this job's sampler {words}")
    if fields["sampler"] == "torch-random":
        for generator in GENERATORS:
            for persistent in (False, True):
                changes = {"generator": generator, "persistent_workers": persistent}
                if any(fields.get(name) != value for name, value in changes.items()):
                    words = "persistent" if persistent else "not persistent"
                    yield Variant(changes, f'this job\'s generator is "{generator}" and its workers are {words}')
        ends = fields.get("trailing_permutation") is False
        words = "reads each epoch to the sampler's end" if ends else "leaves each epoch before the sampler's end"
        yield Variant({"trailing_permutation": ends}, f"this job {words}: trailing_permutation is {str(ends).lower()}")


def _ranks(fields: Mapping[str, Any], reads: Collection[str]) -> Iterator[Variant]:
    """Other ranks, other world sizes; the ranks are those that turn out to read."""
    world = fields["world_size"]
    if len(fields["ranks"]) < world:
        yield Variant({"ranks": None}, "other ranks than the registered ones read through this mount")
    # Where a generator of the script's own is read, each rank reads the same: a script that has no sampler for ranks.
    alike = "generator" in reads and fields["sampler"] not in DEALING_SAMPLERS
    most = MOST_ALIKE if alike else max(WORLD_SIZES)
    for other in WORLD_SIZES:
        if other != world and other <= most:
            sentence = f"this job's world size is {other}, not {world}"
            yield Variant({"world_size": other, "ranks": None}, sentence)
