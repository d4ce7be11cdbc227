"""Checks a seed against all that was read first, and learns from that of ranks, workers and batch size.

In: a seed that passed the search's tests, the way of reading that it passed them for, all first reads. Out: a
`Finding`, or None for a seed that passed by chance. Called by `mlfs.explain.search`; `mlfs.explain.hypotheses`
refines the finding with further reads, and asks here whether the files are read in their own order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from mlfs.explain.chance import SEED_BITS, bits_of_distinct
from mlfs.explain.question import FEWEST_READS, DataSet, Reading, step
from mlfs.orders.mt19937 import TorchWords

# So much of an order is made at most, whatever world size and workers a hypothesis has: it takes a tenth of a second.
_FURTHEST = 1 << 16
# The share of steps forward among a process' reads by which it may read in the order of the files: half is chance.
_FORWARD_SHARE = 0.8
# A process that shows so many places, one after the other, does not read elsewhere.
_FEWEST_IN_A_ROW = 3
# Worlds of which a node may see half of the ranks or more, each of which reads a piece of the data set.
_WORLDS_IN_PIECES = (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64)


class Finding(NamedTuple):
    """The order that reads have shown, but for how its seed came about.

    Attributes:
        data_set: its number among those that were asked about. n: how many samples it has.
        seed: of the permutation's generator, 0 to 2^32 - 1; -1 where there is no permutation.
        words_before: how many words were drawn from that generator before the permutation.
        world: how many ranks there are. ranks: those that were seen reading.
        batch: of a rank, None where no gap tells it. workers: of a rank, None where nothing tells their number.
        bits: how much evidence there is; the choice of hypotheses is not taken off.
        contiguous: whether each rank reads a piece of the data set, in the order of the files.
        part: fields that say which part of the data set is read, if it is not all of it; `n` and indices are its.
    """

    data_set: int
    n: int
    seed: int
    words_before: int
    world: int
    ranks: tuple[int, ...]
    batch: int | None
    workers: int | None
    bits: float
    contiguous: bool = False
    part: Mapping[str, object] = {}

    @property
    def readers(self) -> dict[str, object]:
        """Fields of a job that say who reads: ranks that have not read yet, too, if most others have."""
        fields: dict[str, object] = {"world_size": self.world}
        if self.world > 1:
            are_here = 2 * len(self.ranks) >= self.world
            fields["ranks"] = list(range(self.world)) if are_here else list(self.ranks)
        return fields if self.batch is None else fields | {"batch_size": self.batch}


def order_head(n: int, seed: int, words_before: int, count: int) -> list[int]:
    """The first `count` values of torch.randperm(n), after `words_before` words of the generator.

    Swaps are kept in a dict, so it takes time for `count` values and not for n.
    """
    count = min(count, n)
    moved: dict[int, int] = {}
    head = []
    for i, word in enumerate(TorchWords(seed).take(words_before + count)[words_before:].tolist()):
        target = i + word % (n - i) if i < n - 1 else i
        head.append(moved.get(target, target))
        moved[target] = moved.pop(i, i)
    return head


def confirm(seed: int, reading: Reading, data_set: DataSet, fewest_bits: float = SEED_BITS) -> Finding | None:
    """Check all first reads of the process that may have read so, then learn from the other processes.

    Args:
        fewest_bits: what they must tell; less will do where fewer seeds were tried.
    """
    h, n = reading, data_set.n
    values = data_set.heads[h.head][h.skipped :]
    furthest = h.rank + h.world * (step(len(values), h.batch, h.workers) + 1)
    places = places_in(order_head(n, seed, h.words_before, min(_FURTHEST, 8 * furthest + 4096)), data_set.heads)
    pattern = pattern_of(places[h.head][h.skipped :], h.rank, h.world)
    if pattern is None or (bits := bits_of_distinct(n, pattern.matched)) < fewest_bits:
        return None
    batch, workers, ranks = learn(places, h.world)
    ranks = tuple(sorted({*ranks, h.rank}))
    return Finding(
        h.data_set, n, seed, h.words_before, h.world, ranks, pattern.batch or batch, pattern.workers or workers, bits
    )


def confirm_sequential(data_sets: Sequence[DataSet]) -> Finding | None:
    """The data set that some process reads from its start in the order of its samples, if there is one.

    The largest is taken of several: a process that reads the first class's files may go on to the second class. A data
    set that another process reads in another order is shuffled, and a process that walks it beside that is a stranger.
    """
    by_size = sorted(range(len(data_sets)), key=lambda index: -data_sets[index].n)
    for index in by_size:
        if any(map(reads_otherwise, data_sets[index].heads)):
            continue
        found = read_in_order(data_sets[index])
        if found is not None:
            return found._replace(data_set=index)
    return None


def read_in_order(data_set: DataSet) -> Finding | None:
    """How ranks read a data set in the order of its samples, if some process does from the start. Others may read
    beside it."""
    n, heads = data_set.n, data_set.heads
    for values in heads:
        world = values[1] - values[0] if len(values) > 1 else 0
        pattern = pattern_of(list(values), values[0] % world, world) if 0 < world <= values[0] + world else None
        if pattern is not None and pattern.matched >= FEWEST_READS - 1:
            pieces = _pieces(data_set) if world == 1 else None
            if pieces is not None:
                return pieces
            batch, workers, ranks = learn(heads, world)
            bits = bits_of_distinct(n, pattern.matched)
            return Finding(0, n, -1, 0, world, ranks, pattern.batch or batch, pattern.workers or workers, bits)
    return None


def reads_otherwise(values: Sequence[int]) -> bool:
    """Whether a process reads in another order than that of the files, by its first reads as dataset indices."""
    forward = sum(after > before for before, after in pairwise(values))
    return len(values) >= FEWEST_READS and forward < _FORWARD_SHARE * (len(values) - 1)


def _pieces(data_set: DataSet) -> Finding | None:
    """Ranks that read a piece each, if at least two of them are seen to begin, and nobody begins otherwise.

    One of a rank's workers begins where its piece does, and the others one or more batches behind it. Few ranks of many
    may as well be workers whose batches are as long as a piece: half of the ranks must be here.
    """
    n, heads = data_set.n, data_set.heads
    starts = [start for head in heads if (start := begins_at(head)) >= 0]
    best: tuple[int, Finding] | None = None
    for world in _WORLDS_IN_PIECES:
        places = [divmod(start, -(-n // world)) for start in starts]
        begun = {rank for rank, behind in places if behind == 0}
        furthest = max((behind for _, behind in places), default=0)
        plausible = 2 * len(begun) >= max(4, world) and begun == {rank for rank, _ in places}
        if plausible and (best is None or furthest < best[0]):
            batch = gcd(*(behind for _, behind in places))
            workers = furthest // batch + 1 if batch else None
            bits = bits_of_distinct(n, sum(map(len, heads)))
            ranks = tuple(sorted(begun))
            best = furthest, Finding(0, n, -1, 0, world, ranks, batch or None, workers, bits, contiguous=True)
    return best[1] if best is not None else None


def refine(finding: Finding, data_set: DataSet) -> Finding:
    """Add to the finding what first reads that came since tell of ranks, batch and workers."""
    if finding.contiguous:
        return (_pieces(data_set) or finding)._replace(data_set=finding.data_set)
    heads: Sequence[Sequence[int]] = data_set.heads
    if finding.seed >= 0:
        heads = places_in(order_head(data_set.n, finding.seed, finding.words_before, _FURTHEST), heads)
    batch, workers, ranks = learn(heads, finding.world)
    ranks = tuple(sorted({*ranks, *finding.ranks}))
    return finding._replace(batch=finding.batch or batch, workers=finding.workers or workers, ranks=ranks)


class Pattern(NamedTuple):
    """How one process reads its rank's stream: batch and workers, where a gap between reads tells them.

    Attributes:
        matched: how many reads are as the pattern has it.
    """

    batch: int | None
    workers: int | None
    matched: int


def pattern_of(places: list[int], rank: int, world: int) -> Pattern | None:
    """The pattern in the places of a process' first reads; None unless it begins where its rank's stream does.

    All reads must fit but the last one: the process may have gone on to something else.
    """
    if any(place < 0 or (place - rank) % world for place in places[:-1]):
        return None
    steps = [(place - rank) // world for place in places[:-1]]
    run = next((i for i in range(1, len(steps)) if steps[i] != i), len(steps))
    if not steps or steps[0] != 0:
        return None
    if run == len(steps):
        return Pattern(None, None, run)
    if steps[run] % run or steps[run] <= run:
        return None
    workers = steps[run] // run
    fits = all(at == step(i, run, workers) for i, at in enumerate(steps))
    return Pattern(run, workers, len(steps)) if fits else None


def begins_at(places: Sequence[int], reads: int = _FEWEST_IN_A_ROW) -> int:
    """The place from which a process' first reads go on step by step; -1 where they do not."""
    first = list(places[:reads])
    in_a_row = len(first) >= _FEWEST_IN_A_ROW and first == list(range(first[0], first[0] + len(first)))
    return first[0] if in_a_row else -1


def places_in(order: Sequence[int], heads: Sequence[Sequence[int]]) -> list[list[int]]:
    """The first reads of each process as places in the beginning of an order; -1 for what is not in it."""
    place_of = {value: place for place, value in enumerate(order)}
    return [[place_of.get(value, -1) for value in head] for head in heads]


def learn(heads: Sequence[Sequence[int]], world: int) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Batch, workers (None where nothing tells) and ranks, from the first places that all processes read.

    Workers start at multiples of the batch; within a process the first gap is behind a batch.
    """
    ranks: set[int] = set()
    starts: list[int] = []
    for head in heads:
        places = head[:3]
        if len(places) < 3 or min(places) < 0 or len({place % world for place in places}) > 1:
            continue
        if world > 1 and not places[0] < places[1] < places[2]:
            continue  # of another order: its residues agree by chance
        ranks.add(places[0] % world)
        starts.append(places[0] // world)
    batch = gcd(*starts) if any(starts) else 0
    return (batch, max(starts) // batch + 1, tuple(sorted(ranks))) if batch else (None, None, tuple(sorted(ranks)))
