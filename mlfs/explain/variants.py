"""Other things that a script may do than was registered: other fields of the same job, and how it is said.

Pure. In: a registered job's fields. Out: `Variant`s, the likeliest first: single mistakes, then two at once,
made of the single ones. `mlfs.explain.screen` tries them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mlfs.explain.usual import LARGEST_SMALL_SEED, POPULAR_SEEDS
from mlfs.follow.sentences import COUNTS_FROM_ONE, NOT_SERVED, OTHER_WORLD, RESUMED, flags_of
from mlfs.job.parse import COMPOSED

# Another seed and another epoch can give the same order. So the popular seeds are tried in two parts: see `variants`.
SMALL_SEEDS = tuple(seed for seed in POPULAR_SEEDS if 0 < seed <= LARGEST_SMALL_SEED)
LIKED_SEEDS = tuple(seed for seed in POPULAR_SEEDS if seed not in SMALL_SEEDS)
WORLD_SIZES = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 256, 512, 1024)
# Ranks of a node that read the same order: as many orders of the whole data set are made and compared.
MOST_ALIKE = 8
TORCH_SAMPLERS = ("torch-distributed", "torch-random", "torch-stateful", "sequential")
DEALING_SAMPLERS = ("accelerate", "hf-trainer")
GENERATORS = ("default", "own", "shared")
# Fields of samplers that are true or false, and have no sentence of their own.
SWITCHES = (
    "legacy", "reseed", "in_place", "use_seedable_sampler", "split_batches", "replacement",
    "contiguous", "shuffle_after_epoch", "stick_to_shard", "reshuffle_each_iteration", "shard_first",
)  # fmt: skip
OTHER_RANKS = "other ranks than the registered ones read through this mount"
# Two mistakes at once are tried as long as the product of their rarities is no larger: a thousand pairs or so.
LARGEST_PRODUCT = 256
# A run that was resumed in a later epoch is not looked for.
MOST_EPOCHS = 1 << 16
ANY_RARITY = 1 << 30


class Variant(NamedTuple):
    """Another registration, and what its user is told if it proves right.

    Attributes:
        changes: fields in place of the registered ones.
        sentence: what the job does, in plain words.
        epoch: the epoch to look at; None for the one that is being read.
        rarity: the likeliest ones have 2, others more. It says which pairs are worth a trial.
        mistakes: how many there are. Each was chosen among all that there are, and pays for that choice.
    """

    changes: Mapping[str, Any]
    sentence: str
    epoch: int | None = None
    rarity: int = 2
    mistakes: int = 1

    def adds_to(self, other: Variant | None) -> bool:
        """Whether it is another one, with one more mistake."""
        return other is not None and other.changes.items() < self.changes.items()


def pairs(
    fields: Mapping[str, Any],
    singles: Sequence[Variant],
    reads_of: Callable[[str], Collection[str]],
    half_right: Callable[[], Variant | None],
) -> Iterator[Variant]:
    """Registrations with two mistakes at once, the likeliest first: a mistake in a registration that has one already.

    Args:
        fields: the registered job, defaults included. singles: its `variants`.
        reads_of: the fields that a sampler reads.
        half_right: the single one that explains some of the reads, if any does: asked once, when all have been tried.
    """
    half = half_right()
    found: list[Variant] = []
    tried: set[frozenset[tuple[str, Any]]] = set()
    for one in singles:
        if one is not half and 2 * one.rarity > LARGEST_PRODUCT:
            continue
        changed = {**fields, **one.changes}
        for other in variants(changed, reads_of(str(changed["sampler"])), LARGEST_PRODUCT // one.rarity):
            changes = {**one.changes, **other.changes}
            named = frozenset(changes.items())
            if len(changes) < len(one.changes) + len(other.changes) or named in tried:
                continue
            tried.add(named)
            epoch, rarity = other.epoch if one.epoch is None else one.epoch, one.rarity * other.rarity
            found.append(Variant(changes, f"{one.sentence}; {other.sentence}", epoch, rarity, mistakes=2))
    yield from sorted(found, key=lambda both: (not both.adds_to(half), both.rarity))


def variants(fields: Mapping[str, Any], reads: Collection[str], rarest: int = ANY_RARITY) -> Iterator[Variant]:
    """Other registrations that mistakes make, the likeliest first.

    Args:
        fields: the registered job, defaults included.
        reads: the fields that its sampler reads.
        rarest: what is rarer is left out.
    """
    if fields["start_epoch"]:  # it was to be resumed, and began anew
        sentence = RESUMED.format(epoch=0, start=fields["start_epoch"])
        yield Variant({"start_epoch": 0, "start_step": 0}, sentence, 0)
    if fields["serve"] is not None:
        yield Variant({"serve": None, "level": None, "nodes": None}, NOT_SERVED)
        yield from _placed(_epochs(fields), 4, rarest)
        return  # whoever reads the served order is told it by the mount: nothing else can be mistaken
    if fields["start_step"]:
        sentence = f"this job reads its first epoch from the beginning, not from step {fields['start_step']}"
        yield Variant({"start_step": 0}, sentence)
    yield from switches(fields, reads)
    seed = fields["seed"]
    if "seed" in reads:
        yield Variant({"seed": seed + 1}, COUNTS_FROM_ONE)
        either = f"this job's seed is {seed - 1}, not {seed}, or each of its epochs has the order of the one before"
        yield Variant({"seed": seed - 1}, either)
    yield from _placed(_ranks(fields, reads), 2, rarest)
    # A seed that people like is likelier than a resumed run, and that is likelier than a small number as a seed.
    yield from _placed(_seeds(fields, reads, LIKED_SEEDS), 2, rarest)
    yield from _placed(_epochs(fields), 4, rarest)
    yield from _placed(_seeds(fields, reads, SMALL_SEEDS), 4, rarest)
    yield from _samplers(fields)


def _placed(of_a_kind: Iterator[Variant], rarity: int, rarest: int) -> Iterator[Variant]:
    """Mistakes of one kind, each rarer than the one before. Args: rarity: of the first."""
    for place, variant in enumerate(of_a_kind, 1):
        if rarity * place > rarest:
            return
        yield variant._replace(rarity=rarity * place)


def _seeds(fields: Mapping[str, Any], reads: Collection[str], seeds: Collection[int]) -> Iterator[Variant]:
    for seed in seeds:
        if "seed" in reads and seed != fields["seed"]:
            yield Variant({"seed": seed}, f"this job's seed is {seed}, not {fields['seed']}")


def _epochs(fields: Mapping[str, Any]) -> Iterator[Variant]:
    """Runs that were resumed elsewhere."""
    start = fields["start_epoch"]
    for epoch in range(1, min(fields["epochs"], MOST_EPOCHS)):
        if epoch != start:
            sentence = RESUMED.format(epoch=epoch, start=start)
            yield Variant({"start_epoch": epoch, "start_step": 0}, sentence, epoch)


def _samplers(fields: Mapping[str, Any]) -> Iterator[Variant]:
    """torch's other samplers, with the same fields as far as they read them."""
    registered = fields["sampler"]
    for sampler in TORCH_SAMPLERS if registered in TORCH_SAMPLERS else ():
        if sampler != registered:
            yield Variant({"sampler": sampler}, f'the sampler of this job is "{sampler}", not "{registered}"')


def switches(fields: Mapping[str, Any], reads: Collection[str]) -> Iterator[Variant]:
    """Registrations in which something that a sampler does or does not do is the other way round."""
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
    if "generator" in reads:
        for generator in GENERATORS:
            if generator != fields["generator"]:
                yield Variant({"generator": generator}, f'this job\'s generator is "{generator}"')
        if fields["sampler"] == "torch-random" and fields["generator"] in (None, "default"):
            for rule in ("seed+epoch", "same"):
                anew: dict[str, Any] = {"sampler": COMPOSED, "generator": "default", "seeding": rule}
                yield Variant(anew, f"this job seeds torch's generator anew in each epoch: seeding is {rule}")
        stay = not fields["persistent_workers"]
        words = "persistent" if stay else "not persistent"
        yield Variant({"persistent_workers": stay}, f"the loader of this job is another one: its workers are {words}")
    if "trailing_permutation" in reads:
        ends = fields["trailing_permutation"] is False
        words = "reads each epoch to the sampler's end" if ends else "leaves each epoch before the sampler's end"
        yield Variant({"trailing_permutation": ends}, f"this job {words}: trailing_permutation is {str(ends).lower()}")
    for name in SWITCHES:
        for value in (True, False) if name in reads else ():  # a field that is not given is one of both
            if value is not fields[name]:
                yield Variant({name: value}, f"this job reads as registered with {flags_of({name: value})}")


def _ranks(fields: Mapping[str, Any], reads: Collection[str]) -> Iterator[Variant]:
    """Other ranks, other world sizes; the ranks are those that turn out to read."""
    world = fields["world_size"]
    if len(fields["ranks"] or range(world)) < world:
        yield Variant({"ranks": None}, OTHER_RANKS)
    # Each rank reads the same by a generator of the script's own: a script that has no sampler for ranks.
    alike = "generator" in reads and fields["sampler"] not in DEALING_SAMPLERS
    most = MOST_ALIKE if alike else max(WORLD_SIZES)
    for other in WORLD_SIZES:
        if other != world and other <= most:
            sentence = OTHER_WORLD.format(other=other, world=world)
            yield Variant({"world_size": other, "ranks": None}, sentence)
