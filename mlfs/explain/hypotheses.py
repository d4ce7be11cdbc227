"""Makes hypotheses of what was found in the reads: all registrations that give the epoch that was read.

In: reads in the order of the files; a finding, and the draws of torch's default generator that may have given its seed;
a recipe. Out: hypotheses, the likeliest first. Called by `mlfs.explain.inference` in a worker thread. Several
registrations give the same first epoch; the second epoch's first reads choose between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from math import gcd
from typing import NamedTuple

from mlfs.explain.confirm import Finding, begins_at, confirm_sequential, order_head, places_in, reads_otherwise, refine
from mlfs.explain.data_sets import Candidate, MakeSamples, as_indices, candidates_apart
from mlfs.explain.fields import EPOCHS, JOB_NAME, Fields, job_of, proposed
from mlfs.explain.first_reads import REPEATED_OPENS, FirstReads
from mlfs.explain.next_epoch import MOST_GENERATORS, continued
from mlfs.explain.recipes import Recipe, repeats_samples
from mlfs.explain.search_stages import COMMON_SEEDS, Draw
from mlfs.explain.usual import LOOPS_OF_TORCH, WAYS_OF_DEFAULT, preset_of
from mlfs.follow.hypothesis import Hypothesis, Origin
from mlfs.job import JobSpec
from mlfs.job.parse import COMPOSED
from mlfs.job.spec import DATA_FIELDS
from mlfs.launchers import Whose, whose
from mlfs.orders.generators import BASE_SEED_WORDS
from mlfs.orders.order import build_order
from mlfs.orders.torch_samplers import REPEATS
from mlfs.tree.manifest import Manifest

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
    return _proposed(candidate, ranked_fields(refined, ()), Origin.FILES)


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
    ranked = ranked_fields(refined, draws)
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
    return _proposed(candidate, ranked_fields(finding, draws))


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
            found += proposed((fields | ranked for ranked in ranked_fields(finding, ())), Origin.FILES)
    return found


# -- a permutation, as torch's samplers make it


def ranked_fields(finding: Finding, draws: Sequence[Draw]) -> list[Fields]:
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
    """The fields of a permutation's hypotheses, led by those that read it in another way, where such were found, and by
    the same with other fields."""
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
