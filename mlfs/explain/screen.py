"""Finds the variant of a registered job that explains its opens, if any does: all are tried, the likeliest first.

In: a job's specification and streams, the opens that disagree. Out: a `Hypothesis`, the job to go on with. Called by
`mlfs.explain.correction` in a worker thread. The result explains the opens better than chance could; opens that it was
not searched with have to confirm it.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from math import log2
from time import thread_time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import MlfsError
from mlfs.explain.chance import bits_of_hits
from mlfs.explain.variants import OTHER_RANKS, Variant, pairs, variants
from mlfs.follow.epoch_index import first_codes
from mlfs.follow.evidence import JUDGED_SAMPLES, LEAST_BITS, SURE_SHARE, Read
from mlfs.follow.hypothesis import Hypothesis, Origin, beyond_chance
from mlfs.follow.matching import Open
from mlfs.follow.sentences import COUNTS_FROM_ONE, OTHER_WORLD, RESUMED, UNDER_WAY
from mlfs.job import COMMON, JobSpec, parse_job
from mlfs.job.names import built_in
from mlfs.orders.order import Order, build_order
from mlfs.orders.streams import JobStreams

Numbers = npt.NDArray[np.int64]

# Workers that take single samples in turn step by their number. torch's loaders seldom have more than 64.
MOST_STRIDE = 64
# How far apart two opens of one process may lie in the right order if its threads race: a batch, four batches.
REACHES = (16, 64)
# The right order explains more than this share of the steps whatever the loader does; what explains less and is no
# chance either is the right order of another epoch in part, or padding.
LEAST_SHARE = 0.4
# Two mistakes need more: where two runs read at once, so many registrations explain the reads of one of them.
LEAST_SHARE_OF_A_PAIR = 0.6
# Beyond so many samples whose order was computed, a search is no small one: it yields to everybody else.
SMALL_SEARCH = 5_000_000
# And beyond so many it ends: they take some 40 s of a core.
LONGEST_SEARCH = 400_000_000
# Two mistakes at once are tried for so long, as this thread's time, singles included: some orders take milliseconds.
LONGEST_FOR_PAIRS_S = 1.5
# Nobody knows where a script that is noticed so far into an epoch began to count its batches.
NEAR_THE_BEGINNING = 256
# A script that begins an epoch shows one of its first 16 samples among the opens that disagree.
SEEN_BEGINNING = 16
# Or the first sample of a batch, where the worker that has an earlier one was held up: of so many workers at most.
MOST_WORKERS = 16
# A rank is read by a family of which it has this share of the reads: fewer lie in its stream by chance.
LEAST_OF_RANK = 0.15
# Fields that say from where in an order a job is read.
PLACE = frozenset({"start_epoch", "start_step"})
# Fields in which a run may differ that comes back on other nodes: it goes on in the order of the epochs before.
OF_THE_WORLD = frozenset({"world_size", "ranks"})
# Opens by which a family of processes is told from others: three steps, of which chance makes none in most orders.
FEWEST_OF_FAMILY = 4


class Hits(NamedTuple):
    """How well an epoch's order explains some opens.

    Attributes:
        bits: how much evidence the hits are, see `mlfs.explain.chance`.
        share: of the opens that could hit.
        exact: whether the hits follow one upon the other, and not only near one another.
        ranks: indexes of the ranks that were hit.
        first: the lowest index in its rank's stream that was hit.
    """

    bits: float
    share: float
    exact: bool
    ranks: tuple[int, ...]
    first: int

    @property
    def explains_all(self) -> bool:
        """Whether it leaves nothing to explain: what is only near may lack a world size."""
        return self.exact and self.share >= SURE_SHARE


NO_HITS = Hits(0.0, 0.0, False, (), 0)


class Evidence(NamedTuple):
    """Opens that may be of one script: those of all processes, or of one family of them.

    Attributes:
        families: whose they are.
    """

    entries: Numbers
    processes: Numbers
    families: frozenset[Hashable]


class Screened(NamedTuple):
    """A variant, the epoch in which it was compared with the opens, how well it did, and the job that it makes.

    Attributes:
        bits: those with which it began and those of its score.
        goes_on: whether it also has the epoch before, which was read as predicted.
    """

    score: Hits
    variant: Variant
    epoch: int
    spec: JobSpec
    streams: JobStreams
    families: frozenset[Hashable]
    bits: float
    goes_on: bool


class EpochPlaces(NamedTuple):
    """The places of entries in an epoch's order.

    Attributes:
        code: by entry, the rank's index * length + the place in its stream; -1 for entries that no rank reads.
        samples: how many different ones the epoch has. Ranks may read the same ones.
    """

    code: Numbers
    length: int
    samples: int

    @classmethod
    def of(cls, streams: Sequence[Numbers] | Numbers, n_entries: int) -> EpochPlaces:
        """Those of an epoch in which each rank reads one of these streams."""
        ids = np.full((len(streams), max(map(len, streams))), -1, dtype=np.int64)
        for row, stream in zip(ids, streams, strict=True):
            row[: len(stream)] = stream
        code = first_codes(ids.reshape(-1), n_entries).astype(np.int64)
        return cls(code, ids.shape[1], int(np.count_nonzero(code >= 0)))


class EpochBefore(NamedTuple):
    """The last epoch that came as the job in force predicts. A script that has read it does not change its ways.

    Attributes:
        epoch: as the job in force counts. passes: epochs read since, but for the one that is to be explained.
    """

    epoch: int
    passes: int


def evidence_of(opens: Sequence[Open], families: Sequence[Hashable]) -> list[Evidence]:
    """The opens of all processes together, and where these are of several families, those of each one alone.

    Args:
        families: of each open, that of its process; empty: all are of one.
    """
    entries, processes = columns(opens)
    counts = Counter(families)
    together = Evidence(entries, processes, frozenset(counts))
    alone = []
    for family in (one for one, count in counts.items() if len(counts) > 1 and count >= FEWEST_OF_FAMILY):
        own = np.array([one == family for one in families])
        alone.append(Evidence(entries[own], processes[own], frozenset({family})))
    return [together, *alone]


def find_correction(
    spec: JobSpec, streams: JobStreams, opens: list[Open], epochs: list[int], n_entries: int, round_: int = 1,
    families: Sequence[Hashable] = (), before: EpochBefore | None = None,
) -> Hypothesis | None:  # fmt: skip
    """The variant that explains the opens best, None when none does better than chance could.

    It need not explain the opens of all families of processes where several read: the others are strangers. One that
    explains the epoch before as well, which the job in force has explained, comes before all that do not: in each
    epoch some other seed has its order.

    Args:
        epochs: which the opens may belong to, the likeliest first. Those before the first one had been read already.
        n_entries: how many entries the mount has. round_: positions that all workers of a rank read in one round.
        families: of each open, that of its process; empty: all are of one.
        before: None where the job in force has explained no epoch.
    """
    evidence = evidence_of(opens, families)
    fields, reads = spec.model_dump(), _fields_of(spec.sampler)
    singles = list(variants(fields, reads))
    # The cost of each choice of a mistake, in bits, and that of the epoch and of the families.
    of_a_mistake, prior_bits = log2(max(2, len(singles))), -log2(len(evidence) * len(epochs))
    in_force = {epoch: streams.ids_of_ranks(epoch, spec.ranks) for epoch in epochs}
    as_registered = [ids for epoch, ids in in_force.items() if epoch >= epochs[0]]
    unchanged = changed_job(spec, streams, {}) if spec.serve is None else None
    # By changed fields, but for those of a place: an order that goes on from epoch to epoch is drawn once.
    orders = {} if unchanged is None else {frozenset[tuple[str, str]](): unchanged[1].order}
    best: Screened | None = None
    half: Screened | None = None  # the best of the single ones
    computed, begun_s = 0, thread_time()
    scored: dict[tuple[int, ...], tuple[Hits, frozenset[Hashable]] | None] = {}  # several variants have one order

    def half_right() -> Variant | None:
        """The mistake that explains some of the opens: another one beside it may explain the others."""
        return half.variant if half is not None and beyond_chance(half.bits) else None

    for variant in chain(singles, pairs(fields, singles, _fields_of, half_right)):
        if variant.mistakes > 1 and best is not None and best.goes_on and best.score.explains_all:
            break  # one mistake explains it
        is_late = thread_time() > begun_s + LONGEST_FOR_PAIRS_S
        if computed > LONGEST_SEARCH or (is_late and variant.mistakes > 1 and not variant.adds_to(half_right())):
            break
        of_order = frozenset((name, str(value)) for name, value in variant.changes.items() if name not in PLACE)
        other = changed_job(spec, streams, variant.changes, orders.get(of_order))
        if orders and other is not None and len(orders) * len(streams.sample_ids) < SMALL_SEARCH:
            orders.setdefault(of_order, other[1].order)
        tried = epochs if variant.mistakes == 1 else epochs[:2]  # there are many pairs, and the first two are likelier
        for epoch in tried if variant.epoch is None else [variant.epoch]:
            if other is None or epoch >= other[0].epochs or other[1].length(epoch) < JUDGED_SAMPLES:
                continue  # a rank that reads so little is not judged
            ids = other[1].ids_of_ranks(epoch, other[0].ranks)
            was_small = computed <= SMALL_SEARCH
            computed += len(streams.sample_ids)
            if was_small and computed > SMALL_SEARCH:
                _yield_to_everybody()
            is_single = variant.mistakes == 1
            begins_elsewhere = is_single and (variant.epoch is not None or "start_step" in variant.changes)
            same = [*as_registered, in_force[epoch]] if epoch in in_force else as_registered
            if not begins_elsewhere and any(_agree(ids, registered) for registered in same):
                continue  # not what sets the script apart
            order = (*ids.shape, hash(ids.tobytes()))
            if order not in scored:
                scored[order] = _best_of(EpochPlaces.of(ids, n_entries), evidence)
            screened = scored[order]
            if screened is None or (not is_single and screened[0].share < LEAST_SHARE_OF_A_PAIR):
                continue
            bits = screened[0].bits + prior_bits - variant.mistakes * of_a_mistake
            comes_back = variant.changes.keys() <= OF_THE_WORLD and before is not None and epoch >= before.epoch
            goes_on = beyond_chance(bits) and (
                before is None or comes_back or _goes_on(before, streams, other[1], epoch)
            )
            if best is None or (goes_on, bits) > (best.goes_on, best.bits):
                best = Screened(screened[0], variant, epoch, *other, screened[1], bits, goes_on)
                half = best if is_single else half
        if best is not None and best.goes_on and best.score.exact and best.bits > 2 * LEAST_BITS:
            break  # beyond doubt, and the likelier variants come first
    if best is None or not beyond_chance(best.bits):
        return None
    return _correction(best, spec, round_, before)


def _fields_of(sampler: str) -> Collection[str]:
    own = built_in(sampler)
    return own.fields if own is not None else ()


def find_ranks(
    spec: JobSpec, streams: JobStreams, reads: Sequence[Sequence[Read]], epochs: Sequence[int], first: int,
    n_entries: int,
) -> Hypothesis | None:  # fmt: skip
    """The job with those ranks besides that strangers read for; None where they read for no rank of its world.

    Args:
        reads: the last ones of each family of strangers. epochs: that the ranks are in, and the one after them.
        first: the place in the first of these epochs that the registered ranks have not left.
    """
    others = [rank for rank in range(spec.world_size) if rank not in spec.ranks]
    every, found, choice_bits = [*others, *spec.ranks], set[int](), log2(len(reads) * len(epochs))
    for epoch in epochs:
        # A family that reads for ranks of another world reads as much of the registered ones' samples.
        places = EpochPlaces.of(streams.ids_of_ranks(epoch, every), n_entries)
        for family in reads:
            entries, processes = columns(family)
            score = screen(places, entries, processes)
            if score.share < LEAST_SHARE or not beyond_chance(score.bits - choice_bits):
                continue
            codes = places.code[entries]
            counts = np.bincount(codes[codes >= 0] // places.length, minlength=len(every))
            found |= {every[at] for at in np.flatnonzero(counts >= LEAST_OF_RANK * len(family)).tolist()}
            first = min(first, score.first) if epoch == epochs[0] else first
    if found <= set(spec.ranks):
        return None
    ranks = sorted({*spec.ranks, *found})
    step = first // streams.batch_files if first > NEAR_THE_BEGINNING else 0
    made = changed_job(spec, streams, {"ranks": ranks, "start_epoch": epochs[0], "start_step": step})
    said = f"this mount is read by {_named(ranks)}, not by {_named(spec.ranks)}"
    if made is None:
        return None
    return Hypothesis(made[0], Origin.PLACE, made[1], said, {"ranks": ranks}, choice_bits=choice_bits)


def find_world(
    spec: JobSpec, streams: JobStreams, reads: Sequence[Sequence[Read]], epochs: Sequence[int], n_entries: int
) -> tuple[Hypothesis, list[int]] | None:
    """The job dealt to another number of ranks, and which families read for these; None where they read otherwise.

    In the order of all ranks, a rank's samples stand as far from one another as there are ranks. Workers that take
    single samples in turn look the same, so nothing is said where batches are not known to have more.

    Args:
        reads: the last ones of each family of strangers. epochs: that they may be of.
    """
    whole = changed_job(spec, streams, {"world_size": 1, "ranks": None})
    if whole is None or streams.batch_files == 1 or spec.serve is not None:
        return None
    most = len(streams.sample_ids) // JUDGED_SAMPLES
    choice_bits = log2(len(reads) * len(epochs))
    for epoch in epochs[: max(1, LONGEST_SEARCH // len(streams.sample_ids))]:
        families = [columns(family) for family in reads]
        in_whole = EpochPlaces.of(whole[1].ids_of_ranks(epoch, (0,)), n_entries).code
        worlds = {_usual_step(in_whole, *of_family) for of_family in families} - {0, spec.world_size}
        begins = {"start_epoch": epoch, "start_step": 0}  # a rank that comes later may begin before those that read
        for world in sorted(one for one in worlds if one <= most):
            made = changed_job(spec, streams, {"world_size": world, "ranks": None, **begins})
            if made is None:
                continue
            places = EpochPlaces.of(made[1].ids_of_ranks(epoch, range(world)), n_entries)
            scores = [screen(places, *of_family) for of_family in families]
            fitting = [
                at
                for at, score in enumerate(scores)
                if score.exact and score.share >= LEAST_SHARE and score.bits - choice_bits > 2 * LEAST_BITS
            ]
            if not fitting:
                continue
            changes: dict[str, Any] = {"world_size": world}
            if "ranks" in spec.model_fields_set:
                changes["ranks"] = sorted({rank for at in fitting for rank in scores[at].ranks})
                made = changed_job(spec, streams, changes | begins)
            if made is not None:
                said = OTHER_WORLD.format(other=world, world=spec.world_size)
                found = Hypothesis(made[0], Origin.PLACE, made[1], said, changes, choice_bits=choice_bits)
                return found, fitting
    return None


def columns(reads: Sequence[Read] | Sequence[Open]) -> tuple[Numbers, Numbers]:
    """Entries and processes of reads."""
    entries, processes = np.array([read[:2] for read in reads], dtype=np.int64).reshape(-1, 2).T
    return entries, processes


def _usual_step(places: Numbers, entries: Numbers, processes: Numbers) -> int:
    """The most usual step forward from one read of a process to its next; 0 where there is none."""
    order = np.argsort(processes, kind="stable")
    at, process = places[entries[order]], processes[order]
    steps = np.diff(at)[(process[1:] == process[:-1]) & (at[1:] >= 0) & (at[:-1] >= 0)]
    values, counts = np.unique(steps[steps > 0], return_counts=True)
    return int(values[counts.argmax()]) if len(values) else 0


def _agree(one: Numbers, other: Numbers) -> bool:
    """Whether each rank reads the same in both, but for samples that one of them leaves out at the end."""
    shorter = min(one.shape[1], other.shape[1])
    return len(one) == len(other) and np.array_equal(one[:, :shorter], other[:, :shorter])


def _goes_on(before: EpochBefore, streams: JobStreams, others: JobStreams, epoch: int) -> bool:
    """Whether another registration, by which the opens are of an epoch, has the order of the epoch before as well."""
    spec, other = streams.spec, others.spec
    if other.world_size != spec.world_size:
        return False
    known = streams.ids_of_ranks(before.epoch, spec.ranks)
    # One that reads more ranks' samples goes on in the epoch itself.
    tried = [one for one in (epoch - 1 - before.passes, epoch) if one >= 0 and (one < epoch or one == before.epoch)]
    return any(_agree(others.ids_of_ranks(one, spec.ranks), known) for one in tried)


def _best_of(places: EpochPlaces, evidence: Sequence[Evidence]) -> tuple[Hits, frozenset[Hashable]] | None:
    """How well an epoch's order explains the opens of those families of which it explains enough; None for none."""
    together, *alone = evidence
    fitting = [one for one in alone if screen(places, one.entries, one.processes).share >= LEAST_SHARE]
    families = frozenset[Hashable]().union(*(one.families for one in fitting))
    if not alone or families == together.families:
        score = screen(places, together.entries, together.processes)
        return (score, together.families) if score.share >= LEAST_SHARE else None
    if not fitting:
        return None
    # A process is of one family, so the opens need not be in the order of time among families.
    entries, processes = (np.concatenate(of_all) for of_all in zip(*(one[:2] for one in fitting), strict=True))
    return screen(places, entries, processes), families


def screen(places: EpochPlaces, entries: Numbers, processes: Numbers) -> Hits:
    """Score an epoch's order against opens in the order of time.

    Two opens in a row of one process count: in the right order the second is the first's successor, but at the end of a
    batch; or a constant stride away (workers that take single samples in turn); or near (threads).
    """
    known = places.code[entries] >= 0
    order = np.argsort(processes[known], kind="stable")
    codes, process = places.code[entries[known]][order], processes[known][order]
    if len(codes) < 2 or not places.length:
        return NO_HITS
    ranks, offsets = np.divmod(codes, places.length)
    pairs = process[1:] == process[:-1]
    steps = np.where(ranks[1:] == ranks[:-1], np.diff(offsets), 0)[pairs]
    best = NO_HITS
    for hits, ways, exact in _options(steps):
        count, total = int(np.count_nonzero(hits)), len(steps)
        # Half as much again: reads of distinct samples are not quite independent.
        bits = bits_of_hits(count, total, min(0.99, 1.5 * ways / max(2, places.samples)))
        if bits > best.bits:
            hit = np.flatnonzero(pairs)[hits]
            seen = tuple(np.unique(ranks[hit]).tolist())
            best = Hits(bits, count / total, exact, seen, int(offsets[hit].min()))
    return best


def _options(steps: Numbers) -> Iterator[tuple[npt.NDArray[np.bool_], int, bool]]:
    """Which steps hit, in how many ways a step could have, and whether they are exact."""
    yield steps == 1, 1, True
    strides = steps[(steps > 1) & (steps <= MOST_STRIDE)]
    if len(strides):
        yield steps == np.bincount(strides).argmax(), MOST_STRIDE, False
    for reach in REACHES:
        yield (np.abs(steps) <= reach) & (steps != 0), 2 * reach, False


def _yield_to_everybody() -> None:
    """This thread works when nobody else does (a thread has a niceness of its own on Linux)."""
    if threading.current_thread() is not threading.main_thread():
        os.nice(19)


def changed_job(
    spec: JobSpec, streams: JobStreams, changes: Mapping[str, Any], order: Order | None = None
) -> tuple[JobSpec, JobStreams] | None:
    """The job with other fields; None when there is no such job. Args: order: of its sampler, if somebody made it."""
    given = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True) | {"name": spec.name}
    sampler = built_in(str(changes.get("sampler", spec.sampler)))
    fields = {name: value for name, value in given.items() if name not in changes}
    fields |= {name: value for name, value in changes.items() if value is not None}
    if sampler is not None:
        fields = {name: value for name, value in fields.items() if name in COMMON or name in sampler.fields}
    fields.pop("preset", None)
    try:
        other = parse_job(fields)
        made = streams.around(order or build_order(other, len(streams.sample_ids), None), other)
        made.length(other.start_epoch)
        return other, made
    except (MlfsError, ValueError, OSError):
        return None


def _correction(best: Screened, registered: JobSpec, round_: int, before: EpochBefore | None) -> Hypothesis | None:
    """The job to go on with: from where the opens are, for the ranks that read."""
    score, variant, epoch, spec, streams, families, bits, goes_on = best
    # The batches count from where the loader began: from the epoch's beginning, unless that is far away.
    # So they do where a rank has not been seen, which may begin before those that have.
    all_seen = len(score.ranks) == len(spec.ranks)
    first = score.first - score.first % round_ if score.first > NEAR_THE_BEGINNING and all_seen else 0
    changes: dict[str, object] = {"start_epoch": epoch, "start_step": first // streams.batch_files}
    sentence = variant.sentence
    register = {name: value for name, value in variant.changes.items() if name != "start_step" or registered.start_step}
    if goes_on and before is not None and variant.epoch is not None and variant.mistakes > 1:
        # It began as many epochs earlier as were read.
        began = epoch - (before.epoch + before.passes + 1 - registered.start_epoch)
        register["start_epoch"] = began
        said, start = RESUMED.format(epoch=epoch, start=registered.start_epoch), registered.start_epoch
        sentence = sentence.replace(said, RESUMED.format(epoch=began, start=start))
    batch = max(1, streams.batch_files)
    begins_a_batch = score.first % batch == 0 and score.first < MOST_WORKERS * batch
    in_its_middle = score.first >= max(round_, SEEN_BEGINNING) and not begins_a_batch
    if in_its_middle and not ("ranks" in variant.changes or registered.start_step):
        if sentence == COUNTS_FROM_ONE and epoch + 1 < registered.epochs:  # the same order by the seed as registered
            epoch, spec = epoch + 1, registered
            changes["start_epoch"] = epoch
        if variant.epoch is not None or sentence == COUNTS_FROM_ONE:
            sentence, register = UNDER_WAY.format(epoch=epoch), {}
    if "ranks" in registered.model_fields_set and "ranks" in variant.changes:
        ranks = [best.spec.ranks[index] for index in score.ranks]
        if goes_on and before is not None and "world_size" not in variant.changes:  # these have just read as predicted
            ranks = sorted({*ranks, *registered.ranks})
        changes["ranks"] = register["ranks"] = ranks
        if "world_size" not in variant.changes:
            said = f"this mount is read by {_named(ranks)}, not by {_named(registered.ranks)}"
            sentence = sentence.replace(OTHER_RANKS, said)
    made = changed_job(spec, streams, changes)
    if made is None:
        return None
    return Hypothesis(made[0], Origin.VARIANT, made[1], sentence, register, families, score.bits - bits)


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks[:8])
