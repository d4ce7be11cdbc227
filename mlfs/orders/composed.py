"""The sampler "composed": an order put together from what a loop chooses; other samplers are such compositions.

In: a job's draw, generator, seeding, seed_drawn_by, seed_below, grouping, dealing, worker_dealing, shard_first,
endless, epoch_steps, num_samples, words_before, words_between, words_once, seed, drop_last, and the columns that it
names. Out: each rank's dataset indices. Made by `mlfs.orders.order`; compositions with other names by
`mlfs.orders.libraries` and `mlfs.orders.torch_samplers`.

An order is a few choices: which generator draws, and how it is seeded in each epoch (`mlfs.orders.generators`); what is
drawn with it and put into groups, and whether passes make epochs or a stream without an end (`mlfs.orders.draws`); and
how that is dealt to the ranks and their workers (`mlfs.orders.deal`). Every combination that makes sense is an order;
one that makes none is refused, with what does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import product
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import numpy as np

from mlfs.errors import JobError
from mlfs.job.parse import COMPOSED
from mlfs.job.refusals import refuse, show
from mlfs.orders.counters import JaxGenerator
from mlfs.orders.deal import DEALINGS, in_turn
from mlfs.orders.draws import Column, Draws, Endless, EpochDraw, Kind, Values, by_length, drawing_of, of_one_group
from mlfs.orders.generators import (
    LIBRARIES,
    OF_KEYS,
    RULES,
    Generator,
    Keyed,
    Library,
    Seed,
    Seeding,
    check_seed,
    seeding_of,
)
from mlfs.orders.mt19937 import MOST_OF_TORCH, words_of_randperm
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.order_file import column_of, weights_for
from mlfs.orders.shuffle import MOST_ELEMENTS

if TYPE_CHECKING:
    from mlfs.job import JobSpec

# The draws of the last ranks stay at hand where each draws for itself, within this much memory.
_DRAWN_BYTES: Final = 256 << 20
_BYTES_A_SAMPLE: Final = 4 * (EPOCHS_KEPT + 1)
# A pass takes some tens of microseconds at least, and nobody reads before it has come to the one that he reads.
_MOST_PASSES: Final = 10_000
# Dealings of a stream without an end: a piece of it has no order's start to be filled up from.
_OF_ENDLESS: Final = ("strided", "batches", "first", "alike")
_OF_TORCH: Final = ("torch", "loader", "own", "shared", "sampler", "default")
_LOOPS: Final = (*_OF_TORCH, "numpy", "numpy-legacy", "python", "jax")
_PERMUTING: Final = tuple(name for name in LIBRARIES if name not in ("datapipe", "tensorflow"))
# By kind of draw that not every generator makes, those that do, and the field that it needs.
_DRAWN_BY: Final[Mapping[Kind, tuple[str, ...]]] = {
    "permutation": _PERMUTING,
    "shuffle": _PERMUTING,
    "sample": (*_LOOPS, "polars"),
    "sorted-sample": (*_LOOPS, "polars"),
    "with-replacement": _LOOPS,
    "weighted": ("torch", "loader", "numpy", "numpy-legacy", "python"),
    "repeat-factors": ("torch", "loader"),
    "per-group": ("numpy-legacy", "numpy"),
    "clips": ("torch", "loader"),
    "buffer": ("python", "numpy", "datapipe", "tensorflow"),
    "filling-buffer": ("python",),
    "blocks": (*_LOOPS, "polars"),
}
_NEEDED: Final[Mapping[Kind, str]] = {
    "with-replacement": "num_samples", "weighted": "weights_file", "repeat-factors": "weights_file",
    "per-group": "per_group", "clips": "per_group", "blocks": "block_size",
    "buffer": "buffer_size", "filling-buffer": "buffer_size",
}  # fmt: skip
# Fields that a draw of another kind does not read.
OF_DRAW: Final = ("buffer_size", "block_size")
_REPLACES: Final = ("with-replacement", "weighted", "per-group")


class Parts(NamedTuple):
    """The choices that make an order. Those named as a job's field are that field, see `mlfs.job.spec.JobSpec`.

    Attributes:
        reads: how many samples a rank reads of those that it is dealt; None: all.
        seed: in place of the job's. library: in place of the generator's.
        names: gives the samples that positions stand for, by epoch; None: a position is a sample.
        turns: whether each rank reads in the next epoch what the next rank read in this one.
    """

    generator: str
    seeding: Seeding
    draw: Kind = "permutation"
    dealing: str = "strided"
    shard_first: bool = False
    num_samples: int | None = None
    drop_last: bool = False
    words_before: int = 0
    words_between: int = 0
    words_once: int = 0
    seed_drawn_by: str | None = None
    seed_below: int | None = None
    endless: bool = False
    epoch_steps: int | None = None
    worker_dealing: str = "batches"
    grouping: str = "none"
    repeats: float = 1
    reads: int | None = None
    seed: Seed | None = None
    library: Library | None = None
    names: Callable[[int, Values], Values] | None = None
    turns: bool = False


class WordsDrawn(NamedTuple):
    """How a sampler draws an epoch's order from the generator of the job's seed.

    Attributes:
        seed: of that generator.
        seeded: whether one of its words seeds a permutation; else its words make the permutation themselves.
        ahead: words between those counted by `words_before` and that word, or the first of those.
        an_epoch: words from one epoch to the next, `words_between` left out; 0 where no later epoch hangs on them.
    """

    seed: int
    seeded: bool
    ahead: int
    an_epoch: int


class Composition:
    """An order of these parts.

    Args:
        n_samples: how many there are to draw from.
        column: a number for each of them, by which draws weigh or group.

    Raises:
        JobError: the parts do not go together, or the generator does not take the seed or so many samples.
    """

    def __init__(self, parts: Parts, spec: JobSpec, n_samples: int, column: Column | None = None) -> None:
        check(parts, spec, n_samples)
        if parts.draw == "repeat-factors" and column is not None and float(np.sum(column)) < 1:
            hint = "a factor says how often a pass has a sample: detectron2's are 1 or more"
            raise JobError("the repeat factors add up to less than 1: passes have no samples", hint, "weights_file")
        self._parts, self._spec, self._n, self._column = parts, spec, n_samples, column
        self._group_of = None
        if parts.grouping == "batches" and column is not None:
            self._group_of = np.unique(column, return_inverse=True)[1]
        self._library = parts.library or LIBRARIES[parts.generator]
        self._dealing = DEALINGS[parts.dealing]
        self._seed, self._words_before = spec.seed if parts.seed is None else parts.seed, parts.words_before
        if parts.seed_drawn_by is not None:
            self._seed = self._made(self._seed, LIBRARIES[parts.seed_drawn_by]).number(parts.seed_below)
            self._words_before = 0
        drawn = -(-n_samples // spec.world_size) if parts.shard_first else n_samples
        most = max(1, _DRAWN_BYTES // max(1, drawn * _BYTES_A_SAMPLE))
        self._draws_of = lru_cache(maxsize=most)(self._make_draws)
        self._stream_of = lru_cache(maxsize=most)(self._make_stream)

    @property
    def words_drawn(self) -> WordsDrawn | None:
        """How a sampler of torch's draws an epoch; None where that does not begin at a place in its seed's words."""
        parts, words, base = self._parts, self._words(self._n), self._library.base_words
        drawn = parts.generator in _OF_TORCH and parts.draw in ("permutation", "sample", "weighted")
        if not drawn or words is None or parts.seeding.rule != "goes-on" or self._spec.sampler == COMPOSED:
            return None
        if parts.seed_drawn_by is not None:  # one word seeds a generator for all epochs
            return None if base else WordsDrawn(self._spec.seed, True, 1, 0)
        seeded = parts.generator == "default"
        words += self._words_after(self._n) - parts.words_between + (0 if self._spec.persistent_workers else base)
        return WordsDrawn(self._spec.seed, seeded, base + seeded, words)

    def stream_length(self, epoch: int) -> int:
        parts = self._parts
        if parts.endless:
            return self._dealt(self._steps() * self._step())
        if parts.shard_first and parts.draw != "none":
            return self._count(self._dealt(self._n))
        dealt = self._dealt(self._count(self._n))
        if parts.worker_dealing == "parts" and parts.drop_last:
            return dealt - dealt % (self._spec.num_workers or 1)
        return dealt - (dealt % self._spec.batch_size if parts.grouping == "batches" else 0)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        parts, batch, number = self._parts, self._spec.batch_size, pass_number(self._spec, epoch)
        workers = self._spec.num_workers or 1
        rank = (rank + epoch) % self._spec.world_size if parts.turns else rank
        if parts.worker_dealing == "parts":
            mine = in_turn([self._of_rank(number, rank, worker) for worker in range(workers)], batch)
        else:
            mine = self._of_rank(number, rank)
        if self._group_of is not None:
            mine = of_one_group(mine, self._group_of, batch)
        if parts.worker_dealing == "samples":
            mine = in_turn([mine[worker::workers] for worker in range(workers)], batch)
        return (mine if parts.names is None else parts.names(epoch, mine)).astype(np.int64, copy=False)

    def _of_rank(self, epoch: int, rank: int, worker: int | None = None) -> Values:
        parts = self._parts
        if parts.draw == "none" and not parts.endless and worker is None:
            return self._positions(self._count(self._n), rank)
        drawing = rank if parts.seeding.rank else 0, (worker or 0) if parts.seeding.worker else 0
        if (parts.shard_first and not self._is_whole(self._n)) or worker is not None:
            mine = self._positions(self._n, rank)
            if worker is not None:
                mine = mine[self._positions(len(mine), worker, self._spec.num_workers)]
            return mine if parts.draw == "none" else mine[self._draws_of(*drawing, len(mine)).epoch(epoch)]
        epochs = self._stream_of(drawing[0]) if parts.endless else self._draws_of(*drawing, self._n)
        drawn = epochs.epoch(epoch)
        return drawn if self._is_whole(len(drawn)) else drawn[self._positions(len(drawn), rank)]

    def _is_whole(self, n: int) -> bool:
        """Whether n positions are read as they come, by one rank."""
        return self._spec.world_size == 1 == self._parts.repeats and self._dealt(n) == n

    def _count(self, n: int) -> int:
        """How many indices a pass has of n; of a kind that does not say it, about as many."""
        length = None if self._parts.draw == "none" else self._drawing(n).length
        return min(n, self._parts.num_samples or n) if length is None else length

    def _dealt(self, n: int) -> int:
        n = n if self._parts.repeats == 1 else ceil(n * self._parts.repeats)
        dealt = self._dealing.length(n, self._spec.world_size, self._parts.drop_last, self._spec.batch_size)
        return dealt if self._parts.reads is None else min(dealt, self._parts.reads)

    def _positions(self, n: int, rank: int, world_size: int | None = None) -> Indices:
        repeats, world_size = self._parts.repeats, world_size or self._spec.world_size
        places = n if repeats == 1 else ceil(n * repeats)
        mine = self._dealing.positions(places, rank, world_size, self._parts.drop_last, self._spec.batch_size)
        mine = mine[: self._parts.reads]
        if float(repeats).is_integer():
            return mine if repeats == 1 else mine // int(repeats)
        return np.floor_divide(mine, repeats).astype(np.int64)

    # -- passes without an end

    def _step(self) -> int:
        """Reads of the stream that a step takes."""
        return self._spec.batch_size * (1 if self._parts.dealing in ("alike", "first") else self._spec.world_size)

    def _steps(self) -> int:
        """Steps of an epoch: as many as a pass has, unless told otherwise; each worker makes as many."""
        if self._parts.epoch_steps is not None:
            return self._parts.epoch_steps
        turn = (self._spec.num_workers or 1) if self._parts.worker_dealing == "samples" else 1
        return -(-self._count(self._n) // (self._step() * turn)) * turn

    def _make_stream(self, drawing: int) -> Endless:
        count, an_epoch = self._count(self._n), self._steps() * self._step()
        if self._parts.draw == "none":
            return Endless(lambda number: np.arange(count, dtype=np.int64), an_epoch, count)
        return Endless(self._draws_of(drawing, 0, self._n).epoch, an_epoch, self._drawing(self._n).length)

    # -- draws and their generators

    def _drawing(self, n: int) -> EpochDraw:
        """The draw of an epoch from n samples, grouped where that comes before they are dealt."""
        parts, spec, column = self._parts, self._spec, self._column
        drawing = drawing_of(parts.draw, n, self._drawn(n), column, spec)
        if parts.grouping != "by-length" or column is None:
            return drawing
        together = spec.group_batch or spec.batch_size

        def draw(generator: Generator, last: Values) -> tuple[Values, Values]:
            values, kept = drawing.draw(generator, last)
            return by_length(values, column, together), kept

        return drawing._replace(draw=draw)

    def _drawn(self, n: int) -> int | None:
        """How many are drawn of n samples; None: as many as there are."""
        parts = self._parts
        again = parts.draw in _REPLACES or (parts.generator in _OF_TORCH and not parts.shard_first)
        return parts.num_samples if again else min(parts.num_samples or n, n)

    def _words(self, n: int) -> int | None:
        return self._library.words(self._parts.draw, n, self._drawn(n) or n)

    def _words_after(self, n: int) -> int:
        """Words that are drawn in each epoch after what is read."""
        between = self._parts.words_between + (self._library.worker_words if self._spec.num_workers else 0)
        trails = self._library.trails and self._parts.draw not in _REPLACES
        if not trails or self._spec.trailing_permutation is False or (self._drawn(n) or n) % max(n, 1):
            return between
        return between + words_of_randperm(n)

    def _make_draws(self, rank: int, worker: int, n: int) -> Draws:
        parts, base = self._parts, self._library.base_words

        def generator_of(before: Generator, epoch: int) -> tuple[Generator, Generator]:
            drawing = self._generator(before, epoch, rank, worker)
            if words := (0 if epoch and self._spec.persistent_workers else base) + (parts.words_once * (epoch == 1)):
                drawing.skip(words)
            return drawing, drawing if parts.seeding.rule == "drawn" else before

        words, after = self._words(n), self._words_after(n)

        def words_of(begin: int, end: int) -> int:
            """The same as `generator_of` and the draws, over many epochs."""
            begun = int(begin == 0) if self._spec.persistent_workers else end - begin
            once = parts.words_once if begin <= 1 < end else 0
            return (end - begin) * ((words or 0) + after) + begun * base + once

        leaps = words_of if words is not None and parts.seeding.rule == "goes-on" else None
        first = partial(self._made, self._seed)
        return Draws(self._drawing(n), first, generator_of, parts.seeding.goes_on, after, leaps)

    def _generator(self, before: Generator, epoch: int, rank: int, worker: int) -> Generator:
        seeding, seed = self._parts.seeding, self._seed
        if seeding.rule == "goes-on":
            return before
        if seeding.rule == "drawn":
            return self._made(before.number(None))
        if seeding.rule == "split" and isinstance(before, JaxGenerator):
            return cast("Generator", before.split())
        if seeding.rule in OF_KEYS and isinstance(before, Keyed):
            return before.fold_in(epoch) if seeding.rule == "fold-in" else before
        if seeding.rule == "same" or isinstance(seed, tuple):
            return self._made(seed)
        return self._made(
            (seed, epoch) if seeding.rule == "[seed,epoch]" else seeding.number(seed, epoch, rank, worker)
        )

    def _made(self, seed: Seed, library: Library | None = None) -> Generator:
        """A generator of a seed, after the words that others draw first."""
        library = library or self._library
        if isinstance(seed, int) and library.most is not None and seed > library.most:
            seed %= library.most + 1  # the script would end with an error: an epoch that is never read
        generator: Generator = library.make(seed)
        if self._words_before:
            generator.skip(self._words_before)
        return generator


def check(parts: Parts, spec: JobSpec, n_samples: int) -> None:
    """Refuse parts that make no order together.

    Raises:
        JobError: with the parts that go together.
    """
    most = MOST_OF_TORCH if parts.generator in _OF_TORCH else MOST_ELEMENTS
    if n_samples > most and parts.draw != "none":
        named = spec.sampler != COMPOSED
        field = "shuffle" if named and spec.reads("shuffle") else "sampler" if named else "root"
        way_out = {"shuffle": ', or set "shuffle": false', "sampler": ', or use "sampler": "sequential"'}.get(field, "")
        message = f"{n_samples} samples cannot be shuffled: the limit is {most}"
        raise JobError(message, f'narrow "root"{way_out}', field)
    if parts.endless and not n_samples:
        raise JobError("passes over no samples are no stream", 'is "root" or "layout" another?', "root")
    _check_seeding(parts, spec)
    _check_draw(parts, spec)
    _check_ends(parts, spec)


def _refuse(wrong: object, field: str, value: object, allowed: str) -> None:
    """Refuse what is wrong; a value of None is one that is missing."""
    if wrong:
        what = "missing:" if value is None else f"{show(value)}, must be"
        raise JobError(f'job field "{field}" is {what} {allowed}', "", field)


def _check_seeding(parts: Parts, spec: JobSpec) -> None:
    name, library, rule = parts.generator, LIBRARIES[parts.generator], parts.seeding.rule
    if parts.seed is None:
        check_seed(parts.seed_drawn_by or name, spec.seed, "seed", f'the sampler "{spec.sampler}"')
    if rule == "linear" and library.least is not None and parts.seed is None:
        seed = 0 if parts.seed_drawn_by else spec.seed
        last = (spec.epochs - 1, spec.world_size - 1, max(1, spec.num_workers or 1) - 1)
        least = min(parts.seeding.number(seed, *end) for end in product(*((0, end) for end in last)))
        right = f"larger: the generator {name} takes {library.least} or more, and gets {least}"
        _refuse(least < library.least, "seeding", spec.seeding, right)
    right = "left out: how its workers go on is not known"
    _refuse(name == "datapipe" and spec.persistent_workers, "persistent_workers", True, right)
    of_keys, free = rule in ("fold-in", "split"), rule in ("same", "linear")
    keys = f"one of {', '.join(OF_KEYS)}, or such as seed+epoch: the generator {name} draws by keys"
    right = keys if library.has_keys else f"goes-on, or seed+epoch: the generator {name} has no keys"
    _refuse(library.has_keys != of_keys and not free, "seeding", rule, right)
    _refuse(rule == "split" and name == "tensorflow", "seeding", rule, "fold-in: a new seed in each pass")
    right = f"same, or such as seed+epoch: each call of {name} is seeded anew"
    _refuse(library.is_fresh and not free, "seeding", rule, right)
    right = "such as seed+epoch: only numpy's generators take a sequence"
    _refuse(rule == "[seed,epoch]" and not library.takes_pairs, "seeding", rule, right)
    for field in ("words_before", "words_between", "words_once") if library.has_keys or library.is_fresh else ():
        words = getattr(parts, field)
        _refuse(words, field, words, "left out: nothing else is drawn from this generator")
    right = 'left out, or stand beside "seed_drawn_by": nothing is drawn'
    _refuse(parts.seed_below is not None and parts.seed_drawn_by is None, "seed_below", parts.seed_below, right)
    right = "left out: " + ("a stream has no passes" if parts.endless else "each epoch is seeded anew")
    counted = parts.seeding.goes_on or (name == "tensorflow" and rule == "fold-in")
    for field in ("passes_before", "passes_between") if spec.sampler == COMPOSED else ():
        passes = getattr(spec, field)
        _refuse(passes and (parts.endless or not counted), field, passes, right)
    if (spec.passes_before or 0) > _MOST_PASSES and not library.has_keys and not library.words("permutation", 9, 9):
        allowed = f"0 to {_MOST_PASSES}: each pass is shuffled after the one before it"
        _refuse(True, "passes_before", spec.passes_before, allowed)


def _check_draw(parts: Parts, spec: JobSpec) -> None:
    kind, by = parts.draw, _DRAWN_BY.get(parts.draw, (parts.generator,))
    kinds = ", ".join(kind for kind, names in _DRAWN_BY.items() if parts.generator in names)
    right = f"one of {', '.join(by)} for a draw {kind}; {parts.generator} draws {kinds}"
    _refuse(parts.generator not in by, "generator", parts.generator, right)
    needed = _NEEDED.get(kind)
    if needed is not None:
        value = getattr(parts if needed == "num_samples" else spec, needed)
        _refuse(value is None, needed, None, f"a draw {kind} needs it")
    for field in OF_DRAW:
        given, readers = getattr(spec, field), [kind for kind, needs in _NEEDED.items() if needs == field]
        wrong = spec.sampler == COMPOSED and given is not None and kind not in readers
        _refuse(wrong, field, given, f"left out, or stand beside a draw that reads it: {', '.join(readers)}")
    _refuse(
        kind == "repeat-factors" and not parts.endless, "endless", None, "with repeat factors passes differ in length"
    )
    grouped = parts.grouping != "none" or kind in ("per-group", "clips")
    columns = "it says the group of a sample (size, directory, or a column_file with a number a sample)"
    _refuse(grouped and spec.column is None and spec.column_file is None, "column", None, columns)
    weighed = kind in ("weighted", "repeat-factors")
    right = f"left out: {'grouping' if grouped else kind} is over all samples"
    _refuse(parts.shard_first and (grouped or weighed), "shard_first", True, right)
    right = f"left out: the draw {kind} has a column of its own"
    _refuse(grouped and weighed, "grouping", parts.grouping, right)
    right = "by-length, or left out: an endless stream has no last batches"
    _refuse(parts.grouping == "batches" and parts.endless, "grouping", parts.grouping, right)
    if kind == "weighted" and parts.generator in _OF_TORCH and parts.num_samples == 1:
        refuse("num_samples", 1, "more: that order is not known", 'write it down and use "sampler": "explicit"')


def _check_ends(parts: Parts, spec: JobSpec) -> None:
    workers, steps = spec.num_workers or 0, parts.epoch_steps
    by_workers = parts.worker_dealing != "batches"
    _refuse(by_workers and not workers, "num_workers", None, f"{parts.worker_dealing} are dealt to workers")
    apart = parts.worker_dealing == "parts"
    _refuse(
        parts.seeding.worker and not apart, "worker_dealing", parts.worker_dealing, 'parts, for a seed with "worker"'
    )
    if apart:
        right = "one of strided, contiguous, pieces: each worker draws of its own part"
        _refuse(parts.dealing not in ("strided", "contiguous", "pieces"), "dealing", parts.dealing, right)
        _refuse(parts.num_samples, "num_samples", parts.num_samples, "left out: each worker reads all of its part")
        grouped = parts.grouping != "none" or parts.draw in ("weighted", "repeat-factors", "per-group", "clips")
        _refuse(grouped, "worker_dealing", "parts", "batches or samples: draws by a column are over all samples")
        _refuse(parts.endless, "worker_dealing", "parts", "batches or samples: the parts of workers have ends")
    beside = "shard_first" if parts.shard_first else "worker_dealing" if apart else "endless" if parts.endless else ""
    right = f"left out: it does not go with {beside}"
    _refuse(parts.repeats != 1 and beside, "repeats", parts.repeats, right)
    if not parts.endless:
        _refuse(steps is not None, "epoch_steps", steps, 'left out, or stand beside "endless": an epoch is a pass')
        return
    library = LIBRARIES[parts.generator]
    iterates = library.base_words or library.trails
    _refuse(iterates, "generator", parts.generator, "torch: a stream without an end has one iterator")
    right = f"one of {', '.join(_OF_ENDLESS)}: an endless stream has no end to pad"
    _refuse(parts.dealing not in _OF_ENDLESS, "dealing", parts.dealing, right)
    right = "left out: an endless stream is dealt as it comes, and has no last batch"
    _refuse(parts.shard_first, "shard_first", True, right)
    _refuse(parts.drop_last, "drop_last", True, right)
    right = f"a multiple of num_workers ({workers}), among whom samples are dealt"
    _refuse(by_workers and (steps or 0) % max(1, workers), "epoch_steps", steps, right)


class ComposedOrder(Composition):
    """The order that a job puts together itself."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        text = spec.seeding or "goes-on"
        seeding = seeding_of(text)
        if seeding is None:
            right = (
                f"one of {', '.join(RULES)}, or a sum of seed, epoch, rank, worker and numbers such as 1000*seed+epoch"
            )
            refuse("seeding", text, right)
        whole = n_samples * (spec.copies or 1)
        given = spec.model_dump(include=set(Parts._fields) - {"seed", "seeding"}, exclude_none=True)
        parts = Parts(**{"generator": "torch", "seeding": seeding} | given)
        if whole != n_samples:
            parts = parts._replace(names=lambda epoch, positions: positions % max(1, n_samples))
        check(parts, spec, whole)
        weighed = parts.draw in ("weighted", "repeat-factors")
        column = weights_for(spec, n_samples) if weighed else column_of(spec, n_samples, resolve)
        column = None if column is None else np.tile(column, spec.copies or 1)
        super().__init__(parts, spec, whole, column)


def pass_number(spec: JobSpec, epoch: int) -> int:
    """The number, from 0, of the pass that the epoch reads: a loop may begin passes that it does not read."""
    return (spec.passes_before or 0) + epoch * (1 + (spec.passes_between or 0))
