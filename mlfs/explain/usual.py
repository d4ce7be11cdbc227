"""The seeds and the orders that people choose, the most usual first: the one list of what is tried.

Pure. In: how long a data set is. Out: orders without their seeds, and seeds, each with its bits: how unusual it is, as
log2 of how many times as often the most usual one is chosen. Whoever tries orders takes the pairs of both by the sum of
their bits, as far as it can afford. Used by `mlfs.explain.recipes`, which compares them with the first reads of
processes, and by `mlfs.explain.compositions`, which compares them with what a script has printed.

Orders whose first epoch is the same stand together (`UsualOrder`): the first epoch is drawn once for all of them, and
the second one tells which of them it is. A sum such as 1000*seed+epoch needs no place of its own: it is the sum
seed+epoch with another seed.

The order of the seeds is that of a common sense of what stands in scripts: 42, the numbers that tutorials and
frameworks pass to `manual_seed`, years; then keyboard patterns and repeated digits. The bits of orders are no
measurements either: they say what is tried before what, and not what is believed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import log2
from typing import Final, NamedTuple

from mlfs.explain.fields import Fields
from mlfs.job.parse import COMPOSED

# -- seeds

POPULAR_SEEDS: Final = (
    42, 0, 1, 1234, 123, 2, 3, 1337,
    12345, 7, 10, 100, 2023, 2024, 2025, 2026,
    3407, 1000, 2022, 2021, 2020,
    2019, 2018, 43, 99, 111, 222, 256, 314, 333, 420, 456, 512, 555, 666, 777, 888, 999, 1024, 1111, 4321, 5678,
    31415, 54321, 123456, 654321, 1234567, 12345678, 123456789,
    4, 5, 6, 8, 9, 11, 12, 13, 17, 21, 31,
)  # fmt: skip

# The seed of an epoch is often the job's seed plus the epoch's number. A number up to this one is as likely to be an
# epoch of a run with seed 0 as a seed of its own.
LARGEST_SMALL_SEED: Final = 31

# How many are tried by each way of searching. Looking through what a generator hands out takes tenths of a second a
# seed for the first eight, which are looked through furthest, and less for the others.
FURTHEST_LOOKED_THROUGH: Final = 8
LOOKED_THROUGH: Final = 21

# Scripts multiply their seed to keep the seeds of epochs apart from those of other runs.
_FACTORS: Final = (1000, 100, 10_000)
_BITS_OF_A_FACTOR: Final = 5.0


class Seed(NamedTuple):
    """A seed, and how unusual it is."""

    bits: float
    seed: int


@lru_cache(maxsize=64)
def usual_seeds(hints: tuple[int, ...] = ()) -> tuple[Seed, ...]:
    """All seeds that people choose. `hints`: seeds that are likelier than any, such as those on a command line."""
    plain = [Seed(0.0, seed) for seed in hints]
    plain += [Seed(log2(place + 1), seed) for place, seed in enumerate(POPULAR_SEEDS)]
    usual = [one for one in plain if one.bits < log2(FURTHEST_LOOKED_THROUGH + 1)]
    multiplied = [Seed(bits + _BITS_OF_A_FACTOR, seed * factor) for bits, seed in usual for factor in _FACTORS]
    bits_of: dict[int, float] = {}
    for bits, seed in (*plain, *multiplied):
        bits_of[seed] = min(bits, bits_of.get(seed, bits))
    return tuple(sorted(Seed(bits, seed) for seed, bits in bits_of.items()))


# -- orders


class UsualOrder(NamedTuple):
    """Orders that begin alike.

    Attributes:
        bits: how unusual they are, together.
        orders: fields, the likeliest first; `usual_orders` gives them a seed.
        seeds: the only ones that are tried; None: those that people choose.
        by_words: whether `mlfs.explain.search` finds them sooner, by single words of torch's generator.
        most: samples beyond which a try takes longer than some tenths of a second.
    """

    bits: float
    orders: tuple[Fields, ...]
    seeds: tuple[int, ...] | None = None
    by_words: bool = False
    most: int = 1 << 62

    @property
    def is_loop(self) -> bool:
        """Whether they are loops of one's own, and no library's sampler."""
        return self.orders[0]["sampler"] == COMPOSED

    def seeded(self, seed: Seed) -> UsualOrder:
        orders = tuple(order | {"seed": seed.seed} for order in self.orders)
        return self._replace(bits=self.bits + seed.bits, orders=orders)


class _Loop(NamedTuple):
    """Loops of one's own that begin alike: all pairs of these rules of seeding and draws.

    Attributes:
        counted: whether how many samples are drawn changes the draw.
    """

    bits: float
    generator: str
    seedings: tuple[str, ...]
    draws: tuple[str, ...] = ("permutation", "shuffle")
    counted: bool = False
    most: int = 1 << 62


_EACH_EPOCH: Final = ("seed+epoch", "seed+1000*epoch", "seed+100*epoch", "seed+10*epoch")
_RULES: Final = ("goes-on", "same", *_EACH_EPOCH)
_AGAIN: Final = ("with-replacement",)
MOST_FOR_LOOPS: Final = 200_000
"""Samples up to which a loop of Python's own is tried, such as its sample: it takes a second for a million."""

# Samples of each label in pytorch-metric-learning's MPerClassSampler, without a batch size and with one.
_PER_GROUP: Final = (4, 2, 8, 5, 16)
_GROUPED_BATCHES: Final = (None, 32, 64, 128)
FEWEST_IN_A_ROUND: Final = 32
"""Samples with which all of their rounds begin alike: as many as the smallest batch has."""

_LOOPS: Final = (
    _Loop(0.0, "torch", ("seed+epoch", "goes-on", "same", *_EACH_EPOCH[1:])),
    # numpy fills a short sequence up with zeros: [seed, 0] is the seed.
    _Loop(1.0, "numpy", ("same", "goes-on", "seed+epoch", "[seed,epoch]", *_EACH_EPOCH[1:])),
    _Loop(1.0, "numpy-legacy", _RULES),
    _Loop(1.5, "python", _RULES, ("shuffle", "permutation")),
    _Loop(4.0, "python", _RULES, ("sample",), counted=True, most=MOST_FOR_LOOPS),
    _Loop(4.0, "polars", ("same", *_EACH_EPOCH), most=MOST_FOR_LOOPS),
    _Loop(6.0, "polars", ("same", *_EACH_EPOCH), ("sample",), counted=True, most=MOST_FOR_LOOPS),
    *(_Loop(4.0, "jax", rules) for rules in (("same", *_EACH_EPOCH), ("fold-in",), ("split",))),
    _Loop(5.0, "numpy-legacy", ("[seed,epoch]",)),
    _Loop(5.0, "torch", _RULES, _AGAIN, counted=True),
    _Loop(4.0, "numpy", _RULES, ("sample",), counted=True),
    *(_Loop(6.0, generator, _RULES, _AGAIN, counted=True) for generator in ("numpy", "numpy-legacy")),
    _Loop(6.0, "python", _RULES, _AGAIN, counted=True, most=MOST_FOR_LOOPS),
    _Loop(6.0, "jax", ("fold-in",), _AGAIN, counted=True),
)

GENERATORS: Final = frozenset(loop.generator for loop in _LOOPS)
"""Those of loops of one's own; samplers with names of their own take others."""

# What an epoch takes from torch's default generator beside its iterator's base_seed and its sampler's seed. Nothing;
# less, as workers that stay have one base_seed for all epochs; so it is with a validation loader's, too, in timm for
# one; a validation loader's base_seed in each epoch; that and its sampler's seed. Last: it is seeded anew.
_BETWEEN: Final[tuple[Fields, ...]] = (
    {"words_between": 0},
    {"words_between": 0, "persistent_workers": True},
    {"words_between": 0, "words_once": 2, "persistent_workers": True},
    {"words_between": 2},
    {"words_between": 4},
)
_GOES_ON: Final[Fields] = {"sampler": "torch-random", "generator": "default"}
_ANEW: Final[Fields] = {"sampler": COMPOSED, "generator": "default"}
WAYS_OF_DEFAULT: Final = (
    *(_GOES_ON | between for between in _BETWEEN), *(_ANEW | {"seeding": rule} for rule in ("seed+epoch", "same")),
)  # fmt: skip
# torchdata's loader with workers reads the second permutation of its generator: see `mlfs.orders.torch_samplers`.
_STATEFUL: Final[Fields] = {"sampler": "torch-stateful", "num_workers": 1}
# The buffer that Keras' data set draws from is eight batches long. 32 is its default.
_BATCHES_OF_KERAS: Final = (32, 16, 64)
# The buffers of shuffle() in scripts that follow the tutorials, beside one for all names. list_files(seed=...) shuffles
# like that.
_BUFFERS: Final = (1000, 1024, 10_000)
_WORLDS: Final = (1, 2, 4, 8)
# The ranks of a sampler that repeats its samples three times. One rank stands for two as well, and multiples of three
# are left out: see `mlfs.explain.hypotheses`. The largest first: a rank of eight reads what one of four might in
# batches of one.
_WORLDS_THAT_REPEAT: Final = (64, 32, 16, 8, 7, 5, 4, 1)
# DLIO's TensorFlow loader shuffles its list of files by its own seed, 123, plus the epoch's number, from 1: what the
# epoch before left is shuffled.
_DLIO: Final[Fields] = {"sampler": COMPOSED, "generator": "numpy-legacy", "seeding": "seed+epoch", "draw": "shuffle"}
_OF_DLIO: Final = UsualOrder(0.0, (_DLIO,), seeds=(124,))


def _samplers(n: int) -> Iterator[UsualOrder]:
    """Samplers that are no loops of one's own."""
    yield UsualOrder(1.0, WAYS_OF_DEFAULT, by_words=True)
    for generator in ("own", "shared"):
        yield UsualOrder(1.0, ({"sampler": "torch-random", "generator": generator},), by_words=True)
    yield UsualOrder(2.0, ({"sampler": "accelerate", "use_seedable_sampler": True},), by_words=True)
    yield UsualOrder(0.0, ({"sampler": "sequential"},), seeds=(), by_words=True)
    yield UsualOrder(2.0, ({"sampler": "grain"},))
    for generator in ("default", "shared", "own"):
        stateful = _STATEFUL | {"generator": generator}
        yield UsualOrder(2.0, (stateful, stateful | {"persistent_workers": True}))
    # model.fit on TensorFlow, then any loop.
    of_threads: list[Fields] = [{"sampler": "keras", "batch_size": batch} for batch in _BATCHES_OF_KERAS]
    of_threads += [{"sampler": "tf-data", "buffer_size": size} for size in (n, *_BUFFERS) if size <= n]
    for fields in of_threads:
        yield UsualOrder(2.0, (fields | {"passes_between": 1}, fields), most=MOST_FOR_LOOPS)
    for world in _WORLDS:
        of_ranks: Fields = {"world_size": world}
        yield UsualOrder(6.0, ({"sampler": "dali", "shuffle": True} | of_ranks,), seeds=())
        yield UsualOrder(6.0, ({"sampler": "dali", "shuffle_after_epoch": True} | of_ranks,), seeds=())
        if world > 1:  # else it is RandomState's, seeded with the epoch
            yield UsualOrder(6.0, ({"sampler": "paddle"} | of_ranks,), seeds=())
    for world in _WORLDS_THAT_REPEAT:
        repeated: Fields = {"sampler": "ra-sampler", "world_size": world}
        # timm's sampler with its own defaults is the one with seed 0.
        yield UsualOrder(6.0, (repeated, repeated | {"set_epoch": False}), seeds=(0,))


def _libraries() -> Iterator[UsualOrder]:
    """Compositions that libraries make; docs/clients.md says when each is found."""
    torch: Fields = {"sampler": COMPOSED, "generator": "torch"}
    # SpeechBrain and Ultralytics have seeds built in; SpeechBrain counts epochs from 1.
    yield UsualOrder(2.0, (torch | {"seeding": "seed+epoch+1"},), seeds=(563375142,))
    ultralytics: Fields = {"sampler": "torch-random", "generator": "shared", "persistent_workers": True}
    yield UsualOrder(2.0, (ultralytics,), seeds=(6148914691236517204,))
    # fastai, detectron2 with a seed in its configuration, ignite's DeterministicEngine.
    drawn: Fields = {"seed_drawn_by": "python", "seed_below": 1 << 32, "seeding": "drawn"}
    fastai: Fields = {"sampler": COMPOSED, "generator": "python", "draw": "sample"} | drawn
    yield UsualOrder(2.0, (fastai,), most=MOST_FOR_LOOPS)
    yield UsualOrder(3.0, (torch | {"endless": True, "seed_drawn_by": "numpy-legacy", "seed_below": 1 << 31},))
    for number, per_group in enumerate(_PER_GROUP):
        for batch in _GROUPED_BATCHES:
            grouped: Fields = {"sampler": COMPOSED, "generator": "numpy-legacy", "draw": "per-group"}
            grouped |= {"per_group": per_group, "column": "directory", "seeding": "goes-on"}
            grouped |= {} if batch is None else {"groups_at_once": max(1, batch // per_group)}
            yield UsualOrder(2.0 + number / 2, (grouped,), most=MOST_FOR_LOOPS)
    yield UsualOrder(3.0, (_ANEW | {"seeding": "seed+epoch", "seed_drawn_by": "torch", "seed_below": 10**9},))


# Worker processes that have a list of shards dealt to them.
_WORKERS: Final = (1, 2, 4, 8)
MOST_SHARDS: Final = 10_000
"""Files up to which a data set is tried as a list of shards: they are large."""


def _shards() -> Iterator[UsualOrder]:
    """Lists of shards that each worker shuffles for itself, or that are dealt to workers once they are shuffled."""
    for workers in _WORKERS:
        webdataset: Fields = {"sampler": COMPOSED, "generator": "python", "draw": "filling-buffer", "buffer_size": 100}
        webdataset |= {"worker_dealing": "parts", "num_workers": workers}
        ways = tuple(webdataset | {"seeding": rule} for rule in ("same", "seed+epoch"))
        yield UsualOrder(3.0, ways, most=MOST_SHARDS)
        streaming: Fields = {"sampler": "hf-streaming", "num_workers": workers}
        # Before numpy's permutations: a worker that reads ten shards at a time seems to be one of many ranks of those.
        yield UsualOrder(0.5, (streaming, streaming | {"set_epoch": False}), most=MOST_SHARDS)


def _loops(n: int, count: int) -> Iterator[UsualOrder]:
    """Loops of one's own; `count`: how many samples an epoch may have instead of all n."""
    for loop in _LOOPS:
        for drawn in dict.fromkeys((n, count)) if loop.counted else (None,):
            by_words = loop.generator == "torch" and not loop.counted
            bits = loop.bits + (drawn not in (None, n))
            yield UsualOrder(bits, _orders_of(loop, drawn), None, by_words, loop.most)


def _orders_of(loop: _Loop, drawn: int | None = None) -> tuple[Fields, ...]:
    parts: Fields = {"sampler": COMPOSED, "generator": loop.generator}
    parts |= {} if drawn is None else {"num_samples": drawn}
    return tuple(parts | {"draw": draw, "seeding": rule} for rule in loop.seedings for draw in loop.draws)


LOOPS_OF_TORCH: Final = _orders_of(_LOOPS[0])
"""Those that begin as torch's permutation does, from a generator with a seed."""


# By generator and seeding of a loop, how the sampler of that loop is dealt, and its fields.
_PRESETS: Final[Mapping[tuple[object, object], tuple[str, Fields]]] = {
    ("torch", "seed+epoch"): ("padded", {"sampler": "torch-distributed"}),
    ("torch", "same"): ("padded", {"sampler": "torch-distributed", "set_epoch": False}),
    ("python", "goes-on"): ("strided", {"sampler": "python-random"}),
    ("python", "seed+epoch"): ("strided", {"sampler": "python-random", "reseed": True}),
    ("numpy", "same"): ("contiguous", {"sampler": "hf-datasets"}),
    ("numpy", "goes-on"): ("strided", {"sampler": "numpy", "legacy": False}),
    ("numpy", "seed+epoch"): ("strided", {"sampler": "numpy", "legacy": False, "reseed": True}),
    ("numpy-legacy", "goes-on"): ("strided", {"sampler": "numpy", "legacy": True}),
    ("numpy-legacy", "seed+epoch"): ("strided", {"sampler": "numpy", "legacy": True, "reseed": True}),
}


def preset_of(fields: Fields) -> Fields:
    """The same order by the name that a sampler of it has; the fields themselves where there is none.

    Args:
        fields: of a loop, as parts. With one rank nothing has to be dealt.
    """
    parts = dict(fields)
    names = ("sampler", "generator", "draw", "seeding", "dealing", "num_samples")
    sampler, generator, draw, rule, dealing, count = (parts.pop(name, None) for name in names)
    dealt, preset = _PRESETS.get((generator, rule), ("", None))
    is_dealt = dealing == dealt or (dealing is None and parts.get("world_size", 1) == 1)
    draws = ("permutation",) if generator == "torch" else ("permutation", "shuffle")
    other = draw not in draws or count is not None or "worker_dealing" in parts
    if sampler != COMPOSED or preset is None or not is_dealt or other:
        return fields
    in_place = draw == "shuffle"
    return parts | preset | ({} if in_place is (generator == "python") else {"in_place": in_place})


# -- both


@lru_cache(maxsize=256)
def usual_orders(
    n: int, seeds: tuple[Seed, ...], count: int | None = None, most: float = 1 << 10
) -> tuple[UsualOrder, ...]:
    """All pairs of orders and seeds, the most usual first.

    Args:
        n: how long the data set is. seeds: that are tried, the most usual first. count: see `_loops`.
        most: bits of the most unusual pair.
    """
    found: list[UsualOrder] = []
    for one in (_OF_DLIO, *_loops(n, n if count is None else count), *_samplers(n), *_libraries(), *_shards()):
        tried = seeds if one.seeds is None else [Seed(0.0, seed) for seed in one.seeds]
        usual = bisect_right(tried, most - one.bits, key=lambda seed: seed.bits)
        found += [one.seeded(seed) for seed in tried[:usual]]
        if one.seeds == () and one.bits <= most:  # it takes no seed
            found.append(one)
    return tuple(sorted(found, key=lambda order: order.bits))
