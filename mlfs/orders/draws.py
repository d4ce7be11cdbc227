"""One generator draws in each epoch: a permutation, a shuffle of the last one, a sample, by weights, of groups.

In: how the generator of an epoch is made, and what is drawn with it. Out: each epoch's indices. Called by
`mlfs.orders.composed`. Indices that were drawn may be put into groups of samples that are alike; passes may make a
stream without an end, as samplers of iteration-based trainers give them.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.orders.generators import Generator
from mlfs.orders.order import EPOCHS_KEPT

if TYPE_CHECKING:
    from mlfs.job import JobSpec

# The memory for states of old epochs. One epoch in so many is kept, so that going back costs at most this many. With a
# smaller stride the same memory would reach less far.
_KEPT_BYTES: Final = 64 << 20
_STRIDE: Final = 16
_USUAL_FIRST: Final = 100  # of webdataset's shuffle
_STATE_BYTES: Final = 64 << 10  # what a generator and its object take at most

Kind = Literal[
    "permutation", "shuffle", "sample", "with-replacement", "weighted", "repeat-factors", "per-group", "clips",
    "sorted-sample", "buffer", "filling-buffer", "blocks", "none",
]  # fmt: skip
"""The kinds of draws; with "none" nothing is drawn, and no `Draws` is made."""
Values = npt.NDArray[np.signedinteger[Any]]
Column = npt.NDArray[np.float64]


class EpochDraw(NamedTuple):
    """A draw as it is made in each epoch.

    Attributes:
        draw: gives the indices, and what the next epoch's draw goes on with, from the generator and what it goes on
            with itself.
        begin: what the first epoch's draw goes on with; empty where draws need none.
        length: how many indices an epoch has; None where that is drawn too.
    """

    draw: Callable[[Generator, Values], tuple[Values, Values]]
    begin: Values
    length: int | None


_NOTHING: Final = np.empty(0, dtype=np.int32)


def drawing_of(kind: Kind, n: int, count: int | None, column: Column | None, spec: JobSpec) -> EpochDraw:
    """The draw of a kind, from 0 .. n-1.

    Args:
        count: how many are drawn, all by default; of a permutation and a shuffle the first ones are read.
        column: a number for each of them: its weight, or its group.
        spec: the job, for the sizes that a draw has beside: per_group, groups_at_once, buffer_size, block_size.
    """
    most = n if count is None else min(count, n)
    if kind == "shuffle":
        return EpochDraw(lambda generator, last: _shuffled(generator, last, most), np.arange(n, dtype=np.int32), most)
    drawn, size = n if count is None else count, spec.buffer_size or 1
    block, first, per_group = spec.block_size or 1, spec.buffer_first or _USUAL_FIRST, spec.per_group or 1
    if kind == "per-group" and column is not None:
        return _per_group(column, per_group, spec.groups_at_once, drawn)
    if kind == "repeat-factors" and column is not None:
        return EpochDraw(lambda generator, last: (_repeated(generator, column), last), _NOTHING, None)
    if kind == "clips" and column is not None:
        lengths = np.diff(np.flatnonzero(np.r_[True, column[1:] != column[:-1], True]))
        clips = int(np.minimum(lengths, per_group).sum())
        return EpochDraw(lambda generator, last: (_clips(generator, lengths, per_group), last), _NOTHING, clips)
    weights = np.empty(0) if column is None else column
    draws: Mapping[str, tuple[Callable[[Any], Values], int]] = {
        "permutation": (lambda generator: generator.permutation(n)[:most], most),
        "sample": (lambda generator: generator.sample(n, drawn), drawn),
        "sorted-sample": (lambda generator: np.sort(generator.sample(n, drawn)), drawn),
        "with-replacement": (lambda generator: generator.choices(n, drawn), drawn),
        "weighted": (lambda generator: generator.weighted(weights, drawn), drawn),
        "buffer": (lambda generator: generator.buffer(n, size)[:most], most),
        "filling-buffer": (lambda generator: generator.filling_buffer(n, size, first)[:most], most),
        "blocks": (lambda generator: _blocks(generator, n, block)[:most], most),
    }
    draw, length = draws[kind]
    return EpochDraw(lambda generator, last: (draw(generator), last), _NOTHING, length)


def _blocks(generator: Generator, n: int, size: int) -> Values:
    """Blocks of samples that follow each other, in a permutation's order."""
    size = max(1, min(size, n))
    numbers = generator.permutation(-(-n // size))
    kind: Any = np.int32 if n < 1 << 30 else np.int64  # the last block may reach beyond n
    samples: Values = (numbers.astype(kind)[:, None] * size + np.arange(size, dtype=kind)).reshape(-1)
    missing = -n % size  # from the last block
    end = (int(np.argmax(numbers)) + 1) * size if missing else 0
    return np.delete(samples, slice(end - missing, end)) if missing else samples


def _shuffled(generator: Generator, last: Values, count: int) -> tuple[Values, Values]:
    values = last.astype(np.int32)
    generator.shuffle(values)
    return values[:count], values


def _repeated(generator: Generator, factors: Column) -> Values:
    """Each index as often as its factor says, a fraction by chance, shuffled.

    Source: detectron2/data/samplers/distributed_sampler.py, RepeatFactorTrainingSampler.
    """
    whole, part = np.trunc(factors), factors.astype(np.float32) - np.trunc(factors).astype(np.float32)
    times = whole.astype(np.int64) + (generator.uniform(len(factors)) < part)
    indices = np.repeat(np.arange(len(factors), dtype=np.int32), times)
    return indices[generator.permutation(len(indices))]


def _clips(generator: Generator, lengths: npt.NDArray[np.intp], most: int) -> Values:
    """At most so many of each run of indices, all of them shuffled.

    Source: torchvision/datasets/samplers/clip_sampler.py, RandomClipSampler.
    """
    starts = np.cumsum(lengths) - lengths
    runs = zip(starts.tolist(), lengths.tolist(), strict=True)
    indices = np.concatenate([generator.permutation(length)[:most] + start for start, length in runs])
    return indices[generator.permutation(len(indices))]


def places_of(numbers: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """By number, the places at which it stands, ascending. Numbers are small."""
    return np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])


def _per_group(groups: Column, per_group: int, at_once: int | None, count: int) -> EpochDraw:
    """So many of each of some groups, again and again; the groups are shuffled in place before each round.

    Source: pytorch_metric_learning/samplers/m_per_class_sampler.py.
    """
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    by_group = places_of(group_of)
    begin = np.argsort(first).astype(np.int32)  # in the order in which they come up
    a_round = per_group * (len(begin) if at_once is None else min(at_once, len(begin)))
    rounds = max(1, count // a_round)

    def draw(generator: Generator, last: Values) -> tuple[Values, Values]:
        order, drawn = last.astype(np.int32), list[Values]()
        for _ in range(rounds):
            generator.shuffle(order)
            for group in order[: a_round // per_group].tolist():
                members = by_group[group]
                few = len(members) < per_group
                at = (generator.choices if few else generator.sample)(len(members), per_group)
                drawn.append(members[at])
        return np.concatenate(drawn), order

    return EpochDraw(draw, begin, rounds * a_round)


class _State(NamedTuple):
    """After an epoch: the generator, what the next draw goes on with, and what was drawn, as long as it is kept."""

    generator: Generator
    kept: Values
    values: Values


class Draws:
    """The draws of one generator in each epoch.

    An epoch is drawn from the nearest earlier one whose state is kept: one of the last few, or a sixteenth one. Epochs
    of which it is known how many words they take are passed over instead.

    Args:
        drawing: what is drawn.
        first: makes the generator before the first epoch.
        generator: makes the generator of an epoch from the one that the epoch before left, and says which one of both
            the next epoch goes on with.
        goes_on: whether that of the epoch before counts.
        words_between: words that others draw from the generator in each epoch, after this draw.
        words_of: all words that the epochs from one up to another take; None where that is not known, or an epoch may
            have another generator.
    """

    def __init__(
        self,
        drawing: EpochDraw,
        first: Callable[[], Generator],
        generator: Callable[[Generator, int], tuple[Generator, Generator]],
        goes_on: bool,
        words_between: int = 0,
        words_of: Callable[[int, int], int] | None = None,
    ) -> None:
        self._draw, self._generator = drawing.draw, generator
        self._words_between = words_between
        self._depends = goes_on or bool(len(drawing.begin))
        self._words_of = None if len(drawing.begin) else words_of
        self._first = first if self._depends else cache(first)  # no draw changes it then
        self._begin = drawing.begin
        self._most_old = _KEPT_BYTES // max(drawing.begin.nbytes, _STATE_BYTES)
        self._old: dict[int, _State] = {}
        self._recent: OrderedDict[int, _State] = OrderedDict()
        self._lock = Lock()

    def epoch(self, epoch: int) -> Values:
        """The indices that the epoch reads, read-only."""
        with self._lock:
            if epoch not in self._recent:
                self._recent[epoch] = self._after(epoch)
            self._recent.move_to_end(epoch)
            while len(self._recent) > EPOCHS_KEPT + 1:
                self._recent.popitem(last=False)
            return self._recent[epoch].values

    def _after(self, epoch: int) -> _State:
        known = max((one for one in (*self._recent, *self._old) if one < epoch and self._depends), default=-1)
        state = self._recent.get(known) or self._old.get(known)
        # A copy of what is kept goes on: that may be drawn from again.
        state = _State(self._first(), self._begin, _NOTHING) if state is None else _copy_of(state)
        if self._words_of is not None and known + 1 < epoch:  # a job may begin with its millionth epoch
            state.generator.skip(self._words_of(known + 1, epoch))
            known = epoch - 1
        for number in range(known + 1 if self._depends else epoch, epoch + 1):
            state = self._advance(state, number)
            if self._depends and number % _STRIDE == 0 and len(self._old) < self._most_old:
                self._old[number] = state._replace(values=_NOTHING)
                state = _copy_of(state) if number < epoch else state
        return state

    def _advance(self, before: _State, epoch: int) -> _State:
        drawing, left = self._generator(before.generator, epoch)  # that it draws with, and that is left behind it
        values, kept = self._draw(drawing, before.kept)
        if self._words_between:
            drawing.skip(self._words_between)
        values.flags.writeable = False
        return _State(left, kept, values)


def _copy_of(state: _State) -> _State:
    return state._replace(generator=copy.deepcopy(state.generator))


# -- samples that are alike put together


_BATCHES_SORTED_TOGETHER: Final = 50
_FEWEST_PORTIONS: Final = 4


def by_length(order: Values, lengths: Column, batch_size: int) -> Values:
    """Portions of some batches each sorted from the longest sample to the shortest, the longest of all in front.

    Source: transformers/trainer_pt_utils.py, get_length_grouped_indices (transformers 5.13).
    """
    portion = batch_size * max(1, min(len(order) // (batch_size * _FEWEST_PORTIONS), _BATCHES_SORTED_TOGETHER))
    number = np.arange(len(order)) // portion
    grouped = order[np.lexsort((-lengths[order], number))]
    if len(grouped):
        longest = int(np.argmax(lengths[grouped[::portion]])) * portion
        grouped[[0, longest]] = grouped[[longest, 0]]
    return grouped


def of_one_group(order: Values, group_of: npt.NDArray[np.intp], batch_size: int) -> Values:
    """Batches of one group each, in the order in which they become full; what is left is filled up, largest first.

    Args: group_of: the number of each sample's group, in the order of what they are grouped by.

    Source: torchvision references/detection/group_by_aspect_ratio.py, GroupedBatchSampler (commit 775e7604).
    """
    batches: list[tuple[int, Values]] = []
    rests: list[tuple[int, int, Values]] = []
    for places in places_of(group_of[order]):
        full = len(places) // batch_size * batch_size
        batches += [(int(batch[-1]), batch) for batch in places[:full].reshape(-1, batch_size)]
        if full < len(places):
            missing = batch_size - (len(places) - full)
            rests.append((full - len(places), int(places[full]), np.append(places[full:], np.resize(places, missing))))
    wanted = len(order) // batch_size
    chosen = [batch for _, batch in sorted(batches, key=lambda one: one[0])]
    chosen += [rest for *_, rest in sorted(rests, key=lambda one: one[:2])][: wanted - len(chosen)]
    return order[np.concatenate(chosen)] if chosen else order[:0]


# -- passes that follow one another without an end


class Endless:
    """One stream without an end, in which a batch may have the end of one pass and the beginning of the next.

    It knows no epochs: an epoch of the job is so many steps of it, and begins with a whole batch.

    Args:
        a_pass: the dataset indices of a pass, by its number; passes may differ in length.
        length: reads of an epoch.
        pass_length: of every pass, where all are alike.
    """

    def __init__(
        self, a_pass: Callable[[int], npt.NDArray[np.signedinteger]], length: int, pass_length: int | None
    ) -> None:
        self._pass, self._length, self._pass_length = a_pass, length, pass_length
        self._begins = [0]
        self._lock = Lock()
        self.epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._cut)

    def _cut(self, epoch: int) -> npt.NDArray[np.signedinteger]:
        """The reads of an epoch, shape (length,)."""
        at, stop, parts = epoch * self._length, (epoch + 1) * self._length, []
        while at < stop:
            number, begin = self._pass_at(at)
            part = self._pass(number)[at - begin : stop - begin]
            parts.append(part)
            at += len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _pass_at(self, place: int) -> tuple[int, int]:
        """The number of the pass that a place of the stream belongs to, and where that begins."""
        if self._pass_length is not None:
            number = place // self._pass_length
            return number, number * self._pass_length
        with self._lock:
            while self._begins[-1] <= place:
                self._begins.append(self._begins[-1] + len(self._pass(len(self._begins) - 1)))
            number = bisect_right(self._begins, place) - 1
            return number, self._begins[number]
