"""Tries the orders that the search for a seed does not find: those that are usual, with the seeds that people choose.

In: what was read first, as dataset indices. Out: a `Recipe`, jobs that begin as the reads do. Called by
`mlfs.explain.search` after the common seeds of torch. Each try makes a whole epoch's order, so there are few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd, log2
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.explain.chance import NEARLY_BITS, SEED_BITS, bits_near_the_start, bits_of_distinct
from mlfs.explain.confirm import begins_at, pattern_of, read_in_order
from mlfs.explain.fields import EPOCHS, Fields, job_of
from mlfs.explain.question import DataSet, read_in
from mlfs.explain.splits import SplitPart
from mlfs.explain.usual import FEWEST_IN_A_ROUND, UsualOrder, usual_orders, usual_seeds
from mlfs.job.parse import COMPOSED
from mlfs.orders.order import Indices, Resolve, build_order

# Their threads read in nearly the order that they are given.
OF_THREADS = ("keras", "tf-data")
STATEFUL = "torch-stateful"
MOST_BITS = 6.0
"""So unusual orders are tried early: 300 of milliseconds each, or of tenths of a second for a million samples."""

MOST_BITS_LATE = 10.0
"""And so unusual ones before the search gives up."""

QUICKLY_DRAWN: Final = 12_500
"""Of up to so many samples they are tried before all seeds are: it takes seconds, as an order takes milliseconds."""

FEW: Final = 200_000
"""Up to so many samples a whole order is drawn sooner than many ways of reading single words of it are looked at."""

# And so unusual ones in a part of a data set, of which there may be a hundred: the more usual the part, the more.
_FEWEST_BITS_OF_PARTS, _MOST_BITS_OF_PARTS = 2.0, 3.0

# Ranks of one node, and the first ones of others: each rank's stream is compared with each head.
_MOST_RANKS = 16
# The places where its workers begin tell which ranks are here, and their batch size. Processes of other ranks read some
# of a rank's samples too, but not so many in a row.
_TELLING_READS = 4
_LARGEST_WITH_GAPS = 512


Drawn = npt.NDArray[np.int32]


class Recipe(NamedTuple):
    """The usual orders that explain the reads.

    Attributes:
        data_set: its number among those that were asked about.
        orders: fields of jobs that begin alike, the likeliest first, without those of the data set.
    """

    data_set: int
    orders: Sequence[Fields]

    @property
    def fields(self) -> Fields:
        """Those of the likeliest job."""
        return self.orders[0]


def usual(n: int, hints: tuple[int, ...] = ()) -> list[UsualOrder]:
    """The orders that are tried early, the most usual first. `hints`: seeds that are likelier than popular ones."""
    return [order for order in _usual(n, hints, MOST_BITS) if not order.by_words]


def less_usual(n: int, hints: tuple[int, ...] = (), late: bool = False) -> list[UsualOrder]:
    """Those that are tried once nothing usual has explained the reads. Args: late: of a data set of many samples."""
    orders = _usual(n, hints, MOST_BITS_LATE) if late is (n > QUICKLY_DRAWN) else []
    return [order for order in orders if order.bits > MOST_BITS and not order.by_words]


def of_a_part(n: int, part: SplitPart, hints: tuple[int, ...]) -> list[UsualOrder]:
    """The loops, and torch's samplers, that are tried of a part of a data set: the more, the more usual the part is.

    No order of many samples is drawn that the search finds by single words."""
    if part.seed is None:
        most = MOST_BITS_LATE if n <= QUICKLY_DRAWN else MOST_BITS
        return [order for order in _usual(n, hints, most) if order.by_words and not order.is_loop]
    most = max(_FEWEST_BITS_OF_PARTS, min(_MOST_BITS_OF_PARTS, MOST_BITS - part.bits))
    orders = _usual(n, (part.seed, *hints), most)
    tried = [order for order in orders if (order.is_loop or order.by_words) and "seed" in order.orders[0]]
    return [order for order in tried if n <= FEW or not order.by_words]


def _usual(n: int, hints: tuple[int, ...], most: float) -> list[UsualOrder]:
    return [order for order in usual_orders(n, usual_seeds(hints), None, most) if n <= order.most]


def repeats_samples(fields: Fields) -> bool:
    """Whether repeated opens have yet to show how many ranks there are (`mlfs.explain.hypotheses`)."""
    return fields["sampler"] == "ra-sampler" and fields["world_size"] == 1


def explaining(
    data_sets: Sequence[DataSet], orders: Callable[[int], Sequence[UsualOrder]], cached: int = 0
) -> Iterator[Recipe | None]:
    """Try these orders: a None for each that does not explain the reads; the recipe that does comes last.

    Args:
        orders: gives those of a data set, by its length. cached: so many first samples may be drawn, and not read.
    """
    for n in dict.fromkeys(data_set.n for data_set in data_sets):
        alike = [(index, data_set) for index, data_set in enumerate(data_sets) if data_set.n == n]
        by_groups = {index: _ByGroups(data_set) for index, data_set in alike}
        for order in orders(n):
            fields = order.orders[0]
            common = None if "column" in fields else first_epoch(fields, n)
            for index, data_set in alike:
                epoch = by_groups[index].first_epoch(fields) if "column" in fields else common
                shape = None if epoch is None else _shape(fields, epoch, data_set, cached)
                if shape is not None:
                    largest, shape = _largest(fields, data_sets, cached) or (index, shape)
                    yield Recipe(largest, [fields | shape for fields in order.orders])
                    return
            yield None


def _largest(fields: Fields, data_sets: Sequence[DataSet], cached: int) -> tuple[int, Fields] | None:
    """The largest data set whose order begins as the reads do, and the shape of that: a buffer hides what comes later,
    such as the files of another directory. None for an order that has no buffer."""
    for index in sorted(range(len(data_sets)), key=lambda at: -data_sets[at].n) if "buffer_size" in fields else ():
        epoch = first_epoch(fields, data_sets[index].n)
        shape = None if epoch is None else _shape(fields, epoch, data_sets[index], cached)
        if shape is not None:
            return index, shape
    return None


FirstEpoch = tuple[Drawn, ...]
"""The reads of each of a job's ranks in its first epoch, as far as ranks are looked at. Thousands are kept."""


def first_epoch(fields: Fields, n: int) -> FirstEpoch | None:
    """The first epoch of an order; None for one of a version of mlfs without it, or not for so many samples."""
    kept = next((draw for most, draw in _DRAWN_BEFORE if n <= most), _draw)
    return kept(tuple(fields.items()), n)


class _Groups:
    """The directories of a data set's samples, as an order by them asks for them."""

    def __init__(self, groups: npt.NDArray[np.int32]) -> None:
        self._groups = groups

    def __call__(self, path: bytes) -> int:
        return -1

    def sizes(self) -> Indices:
        """No sizes are known here."""
        return np.zeros(len(self._groups), dtype=np.int64)

    def directories(self) -> Indices:
        """The number of each sample's directory."""
        return self._groups.astype(np.int64)


class _ByGroups:
    """The orders of one data set that draw so many samples of each directory.

    A round of them takes a call of the generator for each directory, thousands in an epoch. So the first directories
    are drawn by themselves, which orders of one seed have in common however many follow in a round.
    """

    def __init__(self, data_set: DataSet) -> None:
        self._data_set = data_set
        self._groups = None if data_set.groups is None else _Groups(data_set.groups)
        self._may_be_read: dict[tuple[object, object], bool] = {}

    def first_epoch(self, fields: Fields) -> FirstEpoch | None:
        """As the function does; None also for one that nobody reads from its start."""
        if self._groups is None:
            return None
        alike, n = (fields["seed"], fields["per_group"]), self._data_set.n
        if alike not in self._may_be_read:
            few = {"groups_at_once": FEWEST_IN_A_ROUND // int(str(fields["per_group"])), "num_samples": 1}
            begun = _draw(tuple({**fields, **few}.items()), n, self._groups)
            self._may_be_read[alike] = begun is not None and self._begins(begun[0])
        return _draw(tuple(fields.items()), n, self._groups) if self._may_be_read[alike] else None

    def _begins(self, drawn: Drawn) -> bool:
        """Whether some process has a rank's first two samples. No more ranks than half of these samples are tried."""
        heads = (head[:2] for head in read_in(drawn, self._data_set).heads)
        return any(len(places) == 2 and 0 <= places[0] < places[1] - places[0] for places in heads)


def _draw(fields: tuple[tuple[str, object], ...], n: int, resolve: Resolve | None = None) -> FirstEpoch | None:
    try:
        spec = job_of(dict(fields))
        order = build_order(spec, n, resolve)
        ranks = range(min(spec.world_size, _MOST_RANKS))
        return tuple(order.rank_stream(0, rank).astype(np.int32) for rank in ranks)
    except JobError:
        return None


# The same few orders are tried of all parts of a data set, and parts of one length come one after another
# (`mlfs.explain.search`). An order takes four bytes a sample, so fewer are kept of larger data sets: up to 70 MB.
_DRAWN_BEFORE: Final = tuple(
    (most, lru_cache(maxsize=kept)(_draw)) for most, kept in ((1 << 10, 1 << 14), (1 << 13, 1 << 11), (200_000, 64))
)


def _shape(fields: Fields, streams: FirstEpoch, data_set: DataSet, cached: int) -> Fields | None:
    """The fields that say how its ranks read an order, as far as they show; None unless some process reads its first
    epoch from the start. The first samples are `cached` only where something shows it: all reads are of others by
    chance too."""
    sampler, world = fields["sampler"], int(str(fields.get("world_size", 1)))
    if sampler == "hf-streaming" or fields.get("worker_dealing") == "parts":
        return _of_workers(streams[0], data_set, int(str(fields["num_workers"])))
    if sampler == COMPOSED:
        return _dealt(streams[0], data_set)
    threads = sampler in OF_THREADS
    read = [stream[stream >= cached] if cached else stream for stream in streams]
    begun = {head[0] for head in data_set.heads if head}
    if not threads and begun.isdisjoint(int(stream[0]) for stream in read if len(stream)):
        return None  # nobody reads a rank's first sample first, which most orders are told by
    read = [_without_repeats(stream) for stream in read]
    readers = [_RankReads(stream, data_set, threads, cached > 0) for stream in read]
    if not any(reader.proved for reader in readers):
        return None
    plain = _shape(fields, streams, data_set, 0) if cached and not _leaves_out(streams, data_set) else None
    if plain is not None:
        return plain
    found: Fields = {"epochs": EPOCHS, "world_size": world}
    if cached:
        found["cached_samples"] = cached
    ranks = [rank for rank, reader in enumerate(readers) if reader.here]
    if not threads and 2 * len(ranks) < world:
        found["ranks"] = ranks  # else the others are taken to be here, and not to have begun yet
    if sampler == STATEFUL:
        found["num_workers"] = readers[0].processes
    if threads or repeats_samples(fields):
        return found  # their reads show no batch
    batch = _batch_with_gaps(streams[0], data_set) if cached else max(reader.batch for reader in readers)
    if cached and batch:
        found["num_workers"] = len(data_set.heads)  # gaps hide it from those who follow the reads
    return found | ({"batch_size": batch} if batch else {})


def _of_workers(stream: Drawn, data_set: DataSet, workers: int) -> Fields | None:
    """The fields of a list of shards, of which each worker reads some; None unless workers read theirs from the start.

    A shard takes long, so the reads of all of them are evidence together.
    """
    bits = 0.0
    for places in map(list, read_in(stream, data_set).heads):
        pattern = pattern_of(places, places[0] % workers, workers) if places else None
        if pattern is not None and pattern.batch is None and places[0] < workers:
            bits += bits_of_distinct(data_set.n, pattern.matched)
    return {"epochs": EPOCHS, "world_size": 1, "batch_size": 1} if bits >= SEED_BITS else None


def _leaves_out(streams: Sequence[Drawn], data_set: DataSet) -> bool:
    """Whether a process that goes forward in one of the streams passes samples over within its batches."""
    heads = [list(head) for stream in streams for head in read_in(_without_repeats(stream), data_set).heads]
    forward = [places for places in heads if _bits_of_steps(places, data_set.n, gaps=True)]
    return any(pattern_of([place - places[0] for place in places], 0, 1) is None for places in forward)


def _batch_with_gaps(stream: Drawn, data_set: DataSet) -> int:
    """The batch size of a rank whose workers read a part of each batch only, powers of two before other sizes that fit
    as well; 0 where nothing shows it."""
    workers = len(data_set.heads)
    for batch in sorted(range(2, _LARGEST_WITH_GAPS), key=int.bit_count) if workers > 1 else ():
        turns = [{place // batch % workers for place in head} for head in read_in(stream, data_set).heads]
        if sum(map(len, turns)) == len(set().union(*turns)) == workers:
            return batch
    return 0


def _dealt(drawn: Drawn, data_set: DataSet) -> Fields | None:
    """The fields by which ranks read what one generator has drawn; None unless one of them does. Once the samples are
    numbered as they were drawn, the data set is read in their order."""
    finding = read_in_order(read_in(drawn, data_set))
    if finding is None or finding.bits < SEED_BITS:
        return None
    dealing: Fields = {"dealing": "contiguous" if finding.contiguous else "strided"} if finding.world > 1 else {}
    return {"epochs": EPOCHS} | finding.readers | dealing


def _without_repeats(stream: Drawn) -> Drawn:
    """A stream without samples that are read again at once, as the first reads have it."""
    return stream[np.flatnonzero(np.diff(stream, prepend=-1))]


class _RankReads:
    """The reads of processes in one rank's stream.

    Attributes:
        proved: whether one reads it from its start, so far that it is no chance. here: whether one seems to.
        processes: how many do.
        batch: the rank's batch size, 0 where nothing shows it.
    """

    def __init__(self, stream: Drawn, data_set: DataSet, threads: bool, gaps: bool) -> None:
        heads = [list(head) for head in read_in(stream, data_set).heads]
        patterns = [pattern for places in heads if (pattern := pattern_of(places, 0, 1)) is not None]
        proving = [one for one in patterns if bits_of_distinct(data_set.n, one.matched) >= SEED_BITS]
        beginnings = [start for places in heads if (start := begins_at(places, _TELLING_READS)) >= 0]
        forward = sum(_bits_of_steps(places, data_set.n, gaps) for places in heads)
        self.proved = bool(proving) or (forward >= SEED_BITS and any(0 in places[:1] for places in heads))
        if threads:
            bits = max((bits_near_the_start(places, data_set.n) for places in heads), default=0.0)
            self.proved = bits >= NEARLY_BITS
        self.processes, self.here = len(beginnings), bool(beginnings) or self.proved
        self.batch = next((one.batch for one in proving if one.batch), gcd(*beginnings))


def _bits_of_steps(places: list[int], n: int, gaps: bool) -> float:
    """The bits of a process that goes forward only: of its steps by one, and of others where batches have gaps. By
    chance a step is as short as it is in so many of n cases.

    Batches whose samples are repeated are not of one length either, when each sample is counted once.
    """
    steps = [after - before for before, after in pairwise(places[:-1])]
    forward = steps and places[0] >= 0 and min(steps) >= 1
    return sum(log2(n / step) - (step > 1) for step in steps if gaps or step == 1) if forward else 0.0
