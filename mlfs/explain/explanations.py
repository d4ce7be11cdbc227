"""Makes hypotheses of what was found in the reads: all registrations that give the epoch that was read.

In: reads in the order of the files; a finding, and the draws of torch's default generator that may have given its seed;
a recipe. Out: hypotheses, the likeliest first. Called by `mlfs.explain.inference` in a worker thread. Several
registrations give the same first epoch; the second epoch's first reads choose between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from math import gcd
from typing import NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.explain.chance import NEXT_EPOCH_BITS
from mlfs.explain.confirm import Finding, begins_at, confirm_sequential, order_head, places_in, reads_otherwise, refine
from mlfs.explain.data_sets import Candidate, MakeSamples, as_indices, candidates_apart
from mlfs.explain.fields import EPOCHS, JOB_NAME, Fields, job_of, proposed
from mlfs.explain.first_reads import REPEATED_OPENS, FirstReads
from mlfs.explain.question import DataSet
from mlfs.explain.recipes import Recipe, repeats_samples
from mlfs.explain.screen import EpochPlaces, screen
from mlfs.explain.search_stages import COMMON_SEEDS, SAMPLER_SEED_WORD, Draw, WordsAsked
from mlfs.explain.usual import LOOPS_OF_TORCH, WAYS_OF_DEFAULT, preset_of
from mlfs.explain.word_search import place_nearby
from mlfs.explain.words import ONWARD
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.job import JobSpec
from mlfs.job.parse import COMPOSED
from mlfs.job.spec import DATA_FIELDS
from mlfs.launchers import Whose, whose
from mlfs.orders.generators import BASE_SEED_WORDS
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import Indices, build_order
from mlfs.orders.torch_samplers import REPEATS
from mlfs.tree.manifest import Manifest

# -- an epoch, by what is known of the epochs before it
#
# Several hypotheses explain a first epoch, and differ in the second one. So the first reads of the second one choose
# (`chosen`). If none of them fits, the script has drawn something in between from the generator that draws the epochs:
# a validation loader's seed, random crops in the main process. Then the epoch begins soon after the one before it, and
# a look at so few words takes tenths of a second (`goes_on`).
#
# It is done at an epoch's start, when every read counts: so the reads of all processes are evidence together, and only
# the head of an order is made where that is possible. Ten reads in all are enough if few processes made them.


class NextEpoch(NamedTuple):
    """A job that goes on with an epoch.

    Attributes:
        epoch: of the job, the one that has begun. was_chosen: whether it is one of those that explained the epoch
            before.
    """

    hypothesis: Hypothesis
    epoch: int
    was_chosen: bool


def next_epoch(
    ranked: Sequence[Hypothesis], drawings: Sequence[JobSpec], last: int, data_set: DataSet
) -> NextEpoch | None:
    """The job that goes on with an epoch by what explained those before it; None if its reads are nothing of that.

    Reading in the order of the files is left to those who look where it begins: each part of it goes on like it.

    Args:
        ranked: explain the epochs up to `last`. drawings: those of them that torch's default generator drew.
    """
    others = [hypothesis for hypothesis in ranked if hypothesis.spec.sampler != "sequential"]
    found = chosen([hypothesis.spec for hypothesis in others], data_set, (last + 1, last, 0))
    if found is not None:
        return NextEpoch(others[found[0]], found[1], True)
    return goes_on(drawings, last, data_set)


# -- one of those that explained the epoch before

# Wide enough for 16 workers with batches of 256.
_HEAD = 4096


def chosen(specs: Iterable[JobSpec], data_set: DataSet, epochs: Sequence[int]) -> tuple[int, int] | None:
    """The one whose order, in the first of these epochs, explains most of how the processes' reads begin, the first of
    those that explain as much: its number, and the epoch.

    The order that goes on comes before one that begins again: what repeats an epoch in each epoch does both. The end of
    the epoch before may be among the reads, which such an order explains too.
    """
    specs, read = list(specs), np.fromiter(data_set.read, dtype=np.int64)
    processes = np.repeat(np.arange(len(data_set.heads)), [len(head) for head in data_set.heads])
    for epoch in dict.fromkeys(epochs):
        best, most = -1, NEXT_EPOCH_BITS
        for number, spec in enumerate(specs):
            try:
                places = EpochPlaces.of(_streams(spec, data_set.n, epoch), data_set.n)
            except JobError:
                continue  # an order that mlfs cannot make for so many samples
            hits = screen(places._replace(samples=data_set.n), read, processes)
            if hits.bits > most or (hits.bits == most and best < 0):
                best, most = number, hits.bits
                if hits.explains_all:
                    break
        if best >= 0:
            return best, epoch
    return None


def _streams(spec: JobSpec, n: int, epoch: int) -> list[Indices]:
    """The stream of each rank, or worker that takes single samples: its beginning at least."""
    default = spec.sampler == "torch-random" and spec.generator == "default"
    if default or (spec.sampler == "torch-distributed" and spec.world_size == 1):
        seed = _drawn(spec, epoch) if default else spec.seed + (epoch if spec.set_epoch else 0)
        return [np.array(order_head(n, seed, 0, _HEAD), dtype=np.int64)]
    order, turns = build_order(spec, n), (spec.num_workers or 1) if spec.worker_dealing == "samples" else 1
    streams, step = [order.rank_stream(epoch, rank) for rank in spec.ranks], spec.batch_size * turns
    if spec.endless and epoch:  # the batch before may have the end of one pass and the beginning of the next
        ends, later = [order.rank_stream(epoch - 1, rank)[-step:] for rank in spec.ranks], np.array(streams)[:, :-step]
        streams = list(np.hstack([np.where(np.isin(ends, later), -1, ends), later]))  # of one pass alone
    return [stream[turn::turns] for stream in streams for turn in range(turns)]


def _drawn(spec: JobSpec, epoch: int) -> int:
    words = TorchWords(spec.seed)
    words.skip(passed_before(spec, epoch) + BASE_SEED_WORDS)
    return words.random_int64_seed()


# -- further on in the same generator

# A validation loader, or the random crops of some thousand images: looked at in an instant.
NEAR = 1 << 16
# Each takes that long: as many as one search finds at once when it is not known which generator is right.
MOST_GENERATORS = 16
SEED_WORDS = 2  # what a sampler's seed takes from the default generator, beside what its loader's iterator does


def goes_on(drawings: Sequence[JobSpec], last: int, data_set: DataSet) -> NextEpoch | None:
    """The job that goes on with the epoch that the reads begin; None if that is nowhere near.

    It has the earlier epochs too, where as many words lie between these: so it is registered for the next run. Else it
    begins with this one.

    Args:
        drawings: explain the epochs up to `last`, by torch's default generator.
    """
    known: dict[tuple[int, int], JobSpec] = {}
    for spec in drawings:
        known.setdefault((spec.seed, passed_before(spec, last)), spec)
    for low, high in ((0, NEAR), (NEAR, ONWARD)):
        for (seed, passed), spec in list(known.items())[:MOST_GENERATORS]:
            spans = ((passed + low, passed + high),)
            found = place_nearby(data_set, WordsAsked(seed, True, SAMPLER_SEED_WORD, spans))
            going_on = continued([spec], last, (Draw(seed, found.words),)) if found is not None else []
            if found is not None and going_on:
                given = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude={"words_once"})
                from_here = given | going_on[0]
                from_start = from_here | {"words_before": spec.words_before or 0}
                for hypothesis in proposed([from_start, from_here], Origin.EPOCH_BEFORE):
                    for epoch in (last + 1, 0):
                        if passed_before(hypothesis.spec, epoch) == found.words:
                            return NextEpoch(hypothesis, epoch, False)
    return None


def continued(drawings: Sequence[JobSpec], last: int, draws: Sequence[Draw]) -> list[Fields]:
    """The fields that say what a script draws between two epochs whose seeds one generator may have drawn.

    Args:
        drawings: explain the epochs up to `last`, by torch's default generator.
        draws: that may have given the seed of the epoch after it.

    Returns:
        fields to replace those of the explanation with; none if both epochs have no generator in common.
    """
    found: list[Fields] = []
    for spec in drawings:
        for seed, words in draws:
            passed = words - passed_before(spec, last)
            if seed == spec.seed and passed >= SEED_WORDS:
                found.append({"seed": seed, "words_before": words} | _step(passed))
    return [fields for at, fields in enumerate(found) if fields not in found[:at]]


def passed_before(spec: JobSpec, epoch: int) -> int:
    """Words that the default generator has given before an epoch: its `words_before` if it were the first."""
    step = (spec.words_between or 0) + SEED_WORDS + (0 if spec.persistent_workers else BASE_SEED_WORDS)
    return (spec.words_before or 0) + epoch * step + ((spec.words_once or 0) if epoch else 0)


def _step(words: int) -> Fields:
    """Fields of a job whose epoch takes so many words of its generator."""
    if words >= BASE_SEED_WORDS + SEED_WORDS:
        return {"words_between": words - BASE_SEED_WORDS - SEED_WORDS}
    return {"words_between": words - SEED_WORDS, "persistent_workers": True}


# -- what was found


def of_walk(
    manifest: Manifest,
    heads: Sequence[Sequence[int]],
    others: Sequence[Sequence[int]],
    needed: int,
    make_samples: MakeSamples,
) -> list[Hypothesis] | None:
    """The hypotheses of processes that walk the directories: none if somebody else reads the data set in another order,
    as who walks it is a stranger then; None if they walk no data set from its start.

    Args:
        heads: their first reads, as entries. others: the first reads of all others. needed: reads that show an order.
    """
    data_sets = candidates_apart(manifest, heads, needed, make_samples)
    finding = confirm_sequential([candidate.data_set for candidate in data_sets])
    if finding is None:
        return None
    candidate = data_sets[finding.data_set]
    if any(map(reads_otherwise, as_indices(others, candidate.ids).heads)):
        return []
    refined = refine(finding, as_indices(heads, candidate.ids))
    return _proposed(candidate, explanations(refined, ()), Origin.FILES)


class Before(NamedTuple):
    """The job that explained the epochs before.

    Attributes:
        drawings: those jobs that may have, by torch's default generator. last: the last epoch that was as explained.
    """

    spec: JobSpec | None = None
    drawings: Sequence[JobSpec] = ()
    last: int = 0


def of_finding(
    candidate: Candidate,
    finding: Finding,
    draws: Sequence[Draw],
    before: Before,
    reads: FirstReads,
    needed: int,
) -> list[Hypothesis]:
    """The hypotheses of a permutation that the reads of some process have shown.

    If the generator that drew the epochs before may have drawn this one as well, that it goes on comes first; and so
    does a sum of seed and epoch that gives the seeds of this epoch and of the one before.
    """
    refined = refine(finding, as_indices(reads.heads(needed), candidate.ids))
    opens = as_indices(reads.opens(), candidate.ids).heads
    ranked = explanations(refined, draws)
    going_on = [ranked[0] | more for more in continued(before.drawings, before.last, draws)]
    ranked = [*going_on, *_progressing(before, refined), *ranked]
    repeats = repeated(finding, opens)
    ranked = led_by(repeats, {"set_epoch": False}, ranked)
    readers = whose(reads.kin())
    # Half of the processes open their first samples twice: the others alone do not show who has which batch.
    of_ranks = None if repeats else dealt(refined, opens, readers)
    ranked = led_by(of_ranks, {"trailing_permutation": False}, ranked)
    if of_ranks is not None and finding.seed < COMMON_SEEDS:  # that a person chose, as HF's Trainer has it
        ranked.insert(0, ranked[0] | {"generator": None, "use_seedable_sampler": True})
    return _proposed(candidate, to_workers(ranked, readers))


def of_draws(candidate: Candidate, finding: Finding, draws: Sequence[Draw]) -> list[Hypothesis]:
    """The hypotheses of a permutation once it is known where its seed may have been drawn."""
    return _proposed(candidate, explanations(finding, draws))


def of_recipe(candidate: Candidate, recipe: Recipe, reads: FirstReads) -> list[Hypothesis]:
    readers, likeliest = whose(reads.kin()), recipe.fields
    orders = to_workers(recipe.orders, readers)
    is_one_stream = (likeliest["sampler"], likeliest.get("world_size")) == (COMPOSED, 1)
    if is_one_stream and "batch_size" in likeliest and not {"column", "worker_dealing"} & likeliest.keys():
        indices = as_indices(reads.opens(), candidate.ids)
        stream = build_order(job_of(likeliest), indices.n).rank_stream(0, 0)[:_HEAD_DEALT]
        of_ranks = ranks_of_batches(stream.tolist(), int(str(likeliest["batch_size"])), None, indices.heads, readers)
        orders = [fields | (of_ranks | {"dealing": "batches"} if of_ranks else {}) for fields in orders]
    orders = [preset_of(fields) for fields in orders]
    if repeats_samples(recipe.fields):
        indices = as_indices(reads.opens(), candidate.ids)
        found = repeated_permutation(indices.n, int(str(recipe.fields["seed"])), indices.heads)
        orders = [] if found is None else [fields | found for fields in orders]
    return _proposed(candidate, [{"name": JOB_NAME} | fields for fields in orders])


def _proposed(candidate: Candidate, ranked: Sequence[Fields], origin: Origin = Origin.SEARCH) -> list[Hypothesis]:
    return proposed((candidate.fields | fields for fields in ranked), origin)


def of_other_part(spec: JobSpec, heads: Sequence[Sequence[int]], make_samples: MakeSamples) -> list[Hypothesis]:
    """The hypotheses of processes that read, as it stands, what another job leaves of a data set that it has split.

    Args:
        spec: the other job. heads: the first reads of these processes, as entries.
    """
    data_set = spec.model_dump(mode="json", exclude_unset=True, include=set(DATA_FIELDS) - {"part", "without_part"})
    parts = {spec.without_part} if spec.without_part is not None else {*range(len(spec.split or ()))} - {spec.part}
    found: list[Hypothesis] = []
    for part in parts:
        fields: Fields = data_set | {"part": part}
        finding = confirm_sequential([as_indices(heads, make_samples(job_of(fields)))])
        if finding is not None:
            found += proposed((fields | ranked for ranked in explanations(finding, ())), Origin.FILES)
    return found


# -- a permutation, as torch's samplers make it


def explanations(finding: Finding, draws: Sequence[Draw]) -> list[Fields]:
    """Job fields without those of the data set, the likeliest first. All give the same first epoch."""
    common = _common(finding)
    if finding.seed < 0:
        return [common | {"sampler": "sequential"} | ({"contiguous": True} if finding.contiguous else {})]
    per_epoch = common | {"sampler": "torch-distributed", "seed": finding.seed}
    same_again = per_epoch | {"set_epoch": False}
    loops = [common | loop | {"seed": finding.seed} for loop in LOOPS_OF_TORCH]
    if finding.world > 1:
        endless = common | LOOPS_OF_TORCH[0] | {"seed": finding.seed, "seeding": "goes-on", "endless": True}
        strided = [loop | {"dealing": "strided"} for loop in loops]
        straddles = finding.batch is not None and finding.n % (finding.batch * finding.world) > 0
        return [per_epoch, same_again, *([endless, *strided] if straddles else [*strided, endless])]
    random = common | {"sampler": "torch-random"}
    if finding.words_before:
        shared = random | {"generator": "shared", "seed": finding.seed}
        others = ({"persistent_workers": True}, {"words_between": 2}, {"trailing_permutation": False})
        return [shared, *(shared | other for other in others)]
    own = random | {"generator": "own", "seed": finding.seed}
    once = own | {"trailing_permutation": False}  # torchdata's loader without workers, which may draw a base_seed
    chosen = [
        per_epoch,
        own,
        same_again,
        once,
        once | {"words_between": BASE_SEED_WORDS},
        *(loop for loop in loops if preset_of(loop) == loop),
    ]  # by a person: a small number
    drawn = [
        common | way | {"seed": seed, "words_before": before}
        for way in WAYS_OF_DEFAULT
        for seed, before in draws[:MOST_GENERATORS]
        if before >= 0
    ]
    drawn += [  # a sampler without a loader around it
        common | {"sampler": COMPOSED, "generator": "sampler", "seed": seed, "words_before": before + BASE_SEED_WORDS}
        for seed, before in draws[:MOST_GENERATORS]
    ]
    return chosen + drawn if finding.seed < COMMON_SEEDS and not draws else drawn + chosen


def _progressing(before: Before, finding: Finding) -> list[Fields]:
    """The loop that seeds a generator anew for each epoch, by a sum that gives the epoch before and this one."""
    spec = before.spec
    chosen = spec is not None and spec.sampler == "torch-distributed" and max(spec.seed, finding.seed) < COMMON_SEEDS
    if spec is None or not chosen or spec.world_size != finding.world or finding.words_before:
        return []
    step = finding.seed - spec.seed
    fields = _common(finding) | LOOPS_OF_TORCH[0] | {"seed": finding.seed, "seeding": f"seed+{step}*epoch"}
    return [fields | {"dealing": "padded"}] if step > 1 else []


def _common(finding: Finding) -> Fields:
    """The fields that do not hang on how the seed came about."""
    return {"name": JOB_NAME, "epochs": EPOCHS} | finding.readers


def led_by(found: Fields | None, other: Fields, ranked: list[Fields]) -> list[Fields]:
    """The explanations of a permutation, led by that which reads it in another way, where one was found, and by the
    same with other fields."""
    if found is None or not ranked:
        return ranked
    kept = {name: value for name, value in ranked[0].items() if name in ("name", "epochs")}
    return [kept | found, kept | found | other, *ranked]


# -- the same, dealt to several ranks in batches

# accelerate deals the batches of one permutation to the ranks as cards are dealt, so the workers of all ranks together
# read what the workers of one process would read. But a rank's workers are the children of its process, and know its
# rank from whatever launched them (`mlfs.launchers`). With two ranks of two workers each the batches 0 and 2 begin with
# children of one process, and the batches 1 and 3 with children of the other one. All ranks draw their permutations
# from one generator, which goes on from epoch to epoch (`mlfs.orders.torch_samplers`): so the seed of the first epoch
# gives all of them.

# So much of the permutation: wide enough for the first batches of 8 ranks with 8 workers each and batches of 256.
_HEAD_DEALT = 1 << 15


def dealt(finding: Finding, heads: Sequence[Sequence[int]], readers: Sequence[Whose]) -> Fields | None:
    """The fields by which several ranks read a permutation; None where nothing says that there is more than one.

    Args:
        heads: the dataset indices that each process opened first. readers: whose processes these are.
    """
    if finding.world != 1 or finding.seed < 0 or finding.words_before or finding.batch is None:
        return None
    order = order_head(finding.n, finding.seed, 0, _HEAD_DEALT)
    found = ranks_of_batches(order, finding.batch, finding.workers, heads, readers)
    return None if found is None else {"sampler": "accelerate", "generator": "own", "seed": finding.seed} | found


def ranks_of_batches(
    order: Sequence[int], batch_size: int, workers: int | None, heads: Sequence[Sequence[int]], readers: Sequence[Whose]
) -> Fields | None:
    """The ranks among which the batches of an order are dealt, as fields; None where nothing says that there are any.

    Args:
        workers: that seem to read all of it. heads, readers: as of `dealt`.
    """
    worlds = {reader.world for reader in readers}
    given = worlds.pop() if len(worlds) == 1 else 0  # by the launcher, the same to all processes
    begun: dict[int, list[int]] = {}
    for places, reader in zip(places_in(order, heads), readers, strict=True):
        start, rank = begins_at(places), reader.rank if given else reader.parent
        if (given or reader.parent) and start >= 0 and start % batch_size == 0:
            begun.setdefault(rank, []).append(start // batch_size)
    if given and any(batch % given != rank for rank, batches in begun.items() for batch in batches):
        return None
    # Between two batches of one rank's workers lies one batch of each other rank.
    apart = gcd(*(batch - batches[0] for batches in begun.values() for batch in batches))
    world = given or apart or len(begun)
    ranks = sorted(batches[0] % world for batches in begun.values()) if begun else []
    # One rank of several alone shows it by the batches of the others, which its workers leave out.
    fewest = 1 if given and workers and workers % given == 0 else 2
    if world < 2 or len(set(ranks)) < max(fewest, len(begun)):
        return None
    # Ranks that have not read yet are taken to be here when most of the others are.
    are_here = list(range(world)) if 2 * len(ranks) > world else ranks
    return {"world_size": world, "batch_size": batch_size, "ranks": are_here}


def to_workers(ranked: Sequence[Fields], readers: Sequence[Whose]) -> Sequence[Fields]:
    """The same orders, if those that seem to be ranks are one loader's workers, which take its samples in turn.

    They are copies of one process then, no launcher has told them that they are ranks, and they read no batches.
    """
    parents = [reader.parent for reader in readers if reader.is_copy and reader.world <= 1]
    workers = int(str(ranked[0].get("world_size", 1))) if ranked and "batch_size" not in ranked[0] else 1
    if workers == 1 or len(parents) < workers or parents.count(parents[0]) < len(parents):
        return ranked
    dealt_to_them: Fields = {"world_size": 1, "num_workers": workers, "worker_dealing": "samples"}
    found = [
        {name: value for name, value in fields.items() if name not in ("dealing", "ranks")} | dealt_to_them
        for fields in ranked
        if (fields["sampler"], fields["world_size"]) == (COMPOSED, workers) and fields.get("dealing") != "contiguous"
    ]
    return found or ranked


# -- the same, its samples repeated

# Repeated augmentation read by one or two ranks looks like a plain permutation, and is known by repeated opens. A
# sampler that repeats each sample three times and deals them to `world` ranks gives rank r the places r, r + world, r +
# 2 world, ... of "aaabbbccc...". One rank reads each sample three times in a row; of two ranks one reads a sample twice
# and the next one once, and the other the other way round. Without the repeats both read the permutation itself. Four
# ranks and more leave samples out, which no plain permutation does: those are found as any other sampler is
# (`recipes`). Three ranks, or a multiple of three, read what three runs side by side of a third of the ranks would
# read, and those are likelier.

_WORLDS_REPEATED = (1, 2)
# The second of two opens in a row is the next place of the stream, but at the end of a batch: 7 of 8 in batches of 8.
# In a plain permutation it is so in 2 of 3 at most, and if each file is opened twice in 3 of 4.
_LEAST_SHARE_REPEATED = 0.8
# So much of the permutation: wide enough for the first batches of 32 workers with batches of 512.
_HEAD_REPEATED = 1 << 13


def repeated(finding: Finding, opens: Sequence[Sequence[int]]) -> Fields | None:
    """The fields by which the opens are those of a sampler that repeats samples; None if they are not.

    Args:
        opens: the dataset indices that each process opened first, each as often as it was opened.
    """
    plain = finding.world == 1 and finding.seed >= 0 and not finding.words_before
    return repeated_permutation(finding.n, finding.seed, opens) if plain else None


def repeated_permutation(n: int, seed: int, opens: Sequence[Sequence[int]]) -> Fields | None:
    """Fields of repeated augmentation, if it explains the reads by torch's permutation of n samples by a seed."""
    heads = [head for head in opens if len(head) >= REPEATED_OPENS]
    place_of = {index: place for place, index in enumerate(order_head(n, seed, 0, _HEAD_REPEATED))}
    for world in _WORLDS_REPEATED:
        starts = [start for head in heads if (start := _start(head, place_of, world)) is not None]
        if starts and 2 * len(starts) >= len(heads):
            batch = gcd(*starts)
            fields: Fields = {"sampler": "ra-sampler", "seed": seed, "world_size": world}
            return fields | ({"batch_size": batch} if batch else {})
    return None


def _start(head: Sequence[int], place_of: Mapping[int, int], world: int) -> int | None:
    """The place of its rank's stream at which a process begins; None if it reads no rank's."""
    runs = [(place_of.get(index, -1), len(list(run))) for index, run in groupby(head)]
    for rank in range(world):
        places: list[int] = []
        for place, times in runs:
            # The first and the last place of the sample in the rank's stream.
            first, end = -((rank - REPEATS * place) // world), (REPEATS * (place + 1) - 1 - rank) // world
            following = places[-1] + 1 if places else -1
            # A reader who begins in the middle of a sample's repeats has the last ones of them.
            begin = following if first <= following <= end else max(first, end - times + 1)
            places += [at if place >= 0 and at <= end else -2 for at in range(begin, begin + times)]
        hits = sum(after == before + 1 for before, after in pairwise(places))
        if hits >= _LEAST_SHARE_REPEATED * (len(places) - 1) and places[0] >= 0:
            return places[0]
    return None
