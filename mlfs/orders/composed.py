"""The sampler "composed": an order put together from what a loop chooses; other samplers are such compositions.

In: a job's draw, generator, seeding, seed_drawn_by, seed_below, grouping, dealing, worker_dealing, shard_first,
endless, epoch_steps, num_samples, words_before, words_between, words_once, seed, drop_last, and the columns that it
names. Out: each rank's dataset indices. Made by `mlfs.orders.registry`; compositions with other names by
`mlfs.orders.script_shuffles` and `mlfs.orders.torch_samplers`.

An order is a few choices: which generator draws (`mlfs.orders.generators`), how it is seeded in each epoch
(`mlfs.orders.seeding`), what is drawn with it (`mlfs.orders.draws`) and put into groups (`mlfs.orders.grouping`),
whether passes make epochs or a stream without an end (`mlfs.orders.endless`), and how that is dealt to the ranks and
their workers (`mlfs.orders.deal`). Every combination that makes sense is an order; one that makes none is refused, with
what does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.columns import column_of, weights_for
from mlfs.orders.deal import DEALINGS, by_samples_to_workers
from mlfs.orders.draws import Column, Draws, EpochDraw, Kind, Values, drawing_of
from mlfs.orders.endless import Endless
from mlfs.orders.generators import LIBRARIES, Generator
from mlfs.orders.grouping import by_length, of_one_group
from mlfs.orders.jax_keys import JaxGenerator
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.passes import pass_number
from mlfs.orders.permutation import TORCH_32BIT_LIMIT, words_of_randperm
from mlfs.orders.seeding import OF_KEYS, RULES, Seeding, seeding_of
from mlfs.orders.shuffle import MOST_ELEMENTS

if TYPE_CHECKING:
    from mlfs.job import JobSpec

# Where each rank draws for itself, what the last ranks have drawn stays at hand, within this much memory.
_DRAWN_BYTES: Final = 256 << 20
_BYTES_A_SAMPLE: Final = 4 * (EPOCHS_KEPT + 1)
# Dealings of a stream without an end: a piece of it has no order's start to be filled up from.
_OF_ENDLESS: Final = ("strided", "batches", "first", "alike")
_OF_TORCH: Final = ("torch", "loader", "own", "shared", "sampler", "default")
# By kind of draw that not every generator makes, those that do, and the field that it needs.
_DRAWN_BY: Final[Mapping[Kind, tuple[str, ...]]] = {
    "weighted": ("torch", "loader", "numpy", "numpy-legacy", "python"),
    "repeat-factors": ("torch", "loader"),
    "per-group": ("numpy-legacy", "numpy"),
    "clips": ("torch", "loader"),
}
_NEEDED: Final[Mapping[Kind, str]] = {
    "with-replacement": "num_samples", "weighted": "weights_file", "repeat-factors": "weights_file",
    "per-group": "per_group", "clips": "per_group",
}  # fmt: skip
_REPLACES: Final = ("with-replacement", "weighted", "per-group")


class Parts(NamedTuple):
    """The choices that make an order.

    Attributes:
        generator: a name of `LIBRARIES`. dealing: a name of `DEALINGS`.
        shard_first: whether the data set is dealt first, and each rank draws of its own part.
        drawn: how many samples are drawn; None: all.
        words_before: words that others draw from a generator once it is made. words_between: the same after each draw.
            words_once: the same after the first.
        seed_drawn_by: the generator of the job's seed, which draws the seed of `generator` once, below `seed_below`.
        endless: whether passes follow one another without an end; an epoch is then `epoch_steps` steps.
        samples_by_worker: whether the workers of a loader take samples in turn, and not batches.
        grouping: "none", "by-length" (before it is dealt) or "batches" (of one group, by each rank).
    """

    generator: str
    seeding: Seeding
    draw: Kind = "permutation"
    dealing: str = "strided"
    shard_first: bool = False
    drawn: int | None = None
    drop_last: bool = False
    words_before: int = 0
    words_between: int = 0
    words_once: int = 0
    seed_drawn_by: str | None = None
    seed_below: int | None = None
    endless: bool = False
    epoch_steps: int | None = None
    samples_by_worker: bool = False
    grouping: str = "none"


class Composition:
    """An order of these parts.

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
        self._library = LIBRARIES[parts.generator]
        self._dealing = DEALINGS[parts.dealing]
        self._seed, self._words_before = spec.seed, parts.words_before
        if parts.seed_drawn_by is not None:
            self._seed = self._made(spec.seed, parts.seed_drawn_by).number(parts.seed_below)
            self._words_before = 0
        drawn = -(-n_samples // spec.world_size) if parts.shard_first else n_samples
        most = max(1, _DRAWN_BYTES // max(1, drawn * _BYTES_A_SAMPLE))
        self._draws_of = lru_cache(maxsize=most)(self._make_draws)
        self._stream_of = lru_cache(maxsize=most)(self._make_stream)

    @property
    def words_an_epoch(self) -> int | None:
        """Words of the generator from one epoch to the next; None where no number is known."""
        words = self._words(self._n)
        base = 0 if self._spec.persistent_workers else self._library.base_words
        return None if words is None else words + self._words_after(self._n) + base

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank that reads most, the same in every epoch."""
        parts = self._parts
        if parts.endless:
            return self._dealt(self._steps() * self._step())
        if parts.shard_first and parts.draw != "none":
            return self._count(self._dealt(self._n))
        dealt = self._dealt(self._count(self._n))
        return dealt - (dealt % self._spec.batch_size if parts.grouping == "batches" else 0)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order."""
        mine = self._of_rank(pass_number(self._spec, epoch), rank).astype(np.int64, copy=False)
        if self._group_of is not None:
            mine = of_one_group(mine, self._group_of, self._spec.batch_size)
        if self._parts.samples_by_worker:
            mine = mine[by_samples_to_workers(len(mine), self._spec.batch_size, self._spec.num_workers or 1)]
        return mine

    def _of_rank(self, epoch: int, rank: int) -> Values:
        parts = self._parts
        if parts.draw == "none" and not parts.endless:
            return self._positions(self._count(self._n), rank)
        if parts.shard_first:
            mine = self._positions(self._n, rank)
            return mine[self._draws_of(rank, len(mine)).epoch(epoch)]
        drawing = rank if parts.seeding.tells_ranks_apart else 0
        epochs = self._stream_of(drawing) if parts.endless else self._draws_of(drawing, self._n)
        drawn = epochs.epoch(epoch)
        return drawn[self._positions(len(drawn), rank)]

    def _count(self, n: int) -> int:
        """How many indices a pass has of n; of a kind that does not say it, about as many."""
        length = None if self._parts.draw == "none" else self._drawing(n).length
        return min(n, self._parts.drawn or n) if length is None else length

    def _dealt(self, n: int) -> int:
        return self._dealing.length(n, self._spec.world_size, self._parts.drop_last, self._spec.batch_size)

    def _positions(self, n: int, rank: int) -> Indices:
        return self._dealing.positions(n, rank, self._spec.world_size, self._parts.drop_last, self._spec.batch_size)

    # -- passes without an end

    def _step(self) -> int:
        """Reads of the stream that a step takes."""
        return self._spec.batch_size * (1 if self._parts.dealing in ("alike", "first") else self._spec.world_size)

    def _steps(self) -> int:
        """Steps of an epoch: as many as a pass has, unless told otherwise; each worker makes as many."""
        if self._parts.epoch_steps is not None:
            return self._parts.epoch_steps
        turn = (self._spec.num_workers or 1) if self._parts.samples_by_worker else 1
        return -(-self._count(self._n) // (self._step() * turn)) * turn

    def _make_stream(self, drawing: int) -> Endless:
        count, an_epoch = self._count(self._n), self._steps() * self._step()
        if self._parts.draw == "none":
            return Endless(lambda number: np.arange(count, dtype=np.int64), an_epoch, count)
        return Endless(self._draws_of(drawing, self._n).epoch, an_epoch, self._drawing(self._n).length)

    # -- draws and their generators

    def _drawing(self, n: int) -> EpochDraw:
        """The draw of an epoch from n samples, grouped where that comes before they are dealt."""
        parts, spec, column = self._parts, self._spec, self._column
        drawing = drawing_of(parts.draw, n, self._drawn(n), column, spec.per_group or 1, spec.groups_at_once)
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
        return parts.drawn if again else min(parts.drawn or n, n)

    def _words(self, n: int) -> int | None:
        return self._library.words(self._parts.draw, n, self._drawn(n) or n)

    def _words_after(self, n: int) -> int:
        """Words that are drawn in each epoch after what is read."""
        trails = self._library.trails and self._parts.draw not in _REPLACES
        if not trails or self._spec.trailing_permutation is False or (self._drawn(n) or n) % max(n, 1):
            return self._parts.words_between
        return self._parts.words_between + words_of_randperm(n)

    def _make_draws(self, rank: int, n: int) -> Draws:
        parts, base = self._parts, self._library.base_words

        def generator_of(before: Generator, epoch: int) -> tuple[Generator, Generator]:
            drawing = self._generator(before, epoch, rank)
            if words := (0 if epoch and self._spec.persistent_workers else base) + (parts.words_once * (epoch == 1)):
                drawing.skip(words)
            return drawing, drawing if parts.seeding.rule == "drawn" else before

        first, goes_on = self._made(self._seed), parts.seeding.goes_on
        words, after = self._words(n), self._words_after(n)

        def words_of(begin: int, end: int) -> int:
            """The same as `generator_of` and the draws, over many epochs."""
            begun = int(begin == 0) if self._spec.persistent_workers else end - begin
            once = parts.words_once if begin <= 1 < end else 0
            return (end - begin) * ((words or 0) + after) + begun * base + once

        leaps = words_of if parts.seeding.rule == "goes-on" else None
        return Draws(self._drawing(n), first, generator_of, goes_on, after, words, leaps)

    def _generator(self, before: Generator, epoch: int, rank: int) -> Generator:
        """The generator that an epoch draws with."""
        seeding, seed = self._parts.seeding, self._seed
        if seeding.rule == "goes-on":
            return before
        if seeding.rule == "drawn":
            return self._made(before.number(None))
        if isinstance(before, JaxGenerator) and seeding.rule in OF_KEYS:
            return before if seeding.rule == "same" else before.split() if seeding.goes_on else before.fold_in(epoch)
        if seeding.rule == "[seed,epoch]":
            return self._made((seed, epoch))
        return self._made(seed if seeding.rule == "same" else seeding.number(seed, epoch, rank))

    def _made(self, seed: int | tuple[int, int], name: str | None = None) -> Generator:
        """A generator of a seed, after the words that others draw first."""
        library = self._library if name is None else LIBRARIES[name]
        if isinstance(seed, int) and library.most is not None and seed > library.most:
            seed %= library.most + 1  # the script would end with an error: an epoch that is never read
        generator = library.make(seed)
        if self._words_before:
            generator.skip(self._words_before)
        return generator


def check(parts: Parts, spec: JobSpec, n_samples: int) -> None:
    """Refuse parts that make no order together.

    Raises:
        JobError: with the parts that go together.
    """
    library, seeding = LIBRARIES[parts.generator], parts.seeding
    most = TORCH_32BIT_LIMIT - 1 if parts.generator in _OF_TORCH else MOST_ELEMENTS
    if n_samples > most and parts.draw != "none":
        raise JobError(f"{n_samples} samples cannot be shuffled: the limit is {most}", 'narrow "root"', "root")
    seeded = parts.seed_drawn_by or parts.generator
    low, high = LIBRARIES[seeded].least, LIBRARIES[seeded].most
    if (low is not None and spec.seed < low) or (high is not None and spec.seed > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        message = f'job field "seed" is {spec.seed}, must be {allowed} for the sampler "{spec.sampler}"'
        raise JobError(message, f"the generator {seeded} takes no other", "seed")
    if seeding.rule == "linear" and library.least is not None:
        seed = 0 if parts.seed_drawn_by else spec.seed
        ends = [(epoch, rank) for epoch in (0, spec.epochs - 1) for rank in (0, spec.world_size - 1)]
        least = min(seeding.number(seed, *end) for end in ends)
        if least < library.least:
            hint = f"the generator {parts.generator} takes {library.least} or more, and gets {least}"
            raise JobError(f'job field "seeding" gives a seed of {least}', hint, "seeding")
    if library.has_keys != (seeding.rule in ("fold-in", "split")) and seeding.rule not in ("same", "linear"):
        right = f"one of {', '.join(OF_KEYS)}, or such as seed+epoch" if library.has_keys else "goes-on, or seed+epoch"
        why = "draws by keys, which no draw changes" if library.has_keys else "has no keys"
        raise _refused("seeding", seeding.rule, f"{right}: the generator {parts.generator} {why}")
    if parts.generator == "polars" and seeding.rule not in ("same", "linear"):
        raise _refused("seeding", seeding.rule, "same, or such as seed+epoch: each call of polars is seeded anew")
    if seeding.rule == "[seed,epoch]" and not library.takes_pairs:
        raise _refused("seeding", seeding.rule, "such as seed+epoch: only numpy's generators take a sequence")
    if (library.has_keys or parts.generator == "polars") and (parts.words_before or parts.words_between):
        raise _refused("words_before", parts.words_before, "left out: nothing else is drawn from this generator")
    _check_draw(parts, spec)
    if parts.draw == "weighted" and parts.generator in _OF_TORCH:
        check_weighted(parts.drawn or n_samples)
    if parts.seed_below is not None and parts.seed_drawn_by is None:
        raise _refused("seed_below", parts.seed_below, 'left out, or stand beside "seed_drawn_by": nothing is drawn')
    if (spec.passes_before or spec.passes_between) and (parts.endless or not seeding.goes_on):
        right = "left out: " + ("a stream has no passes" if parts.endless else "each epoch is seeded anew")
        raise _refused("passes_before" if spec.passes_before else "passes_between", "1 or more", right)
    _check_ends(parts, spec, n_samples)


def check_weighted(count: int) -> None:
    """Refuse a single draw by weights: torch.multinomial makes it in another way. Raises: JobError."""
    if count == 1:
        message = 'job field "num_samples" is 1: that order is not known'
        raise JobError(message, 'write it down and use "sampler": "explicit"', "num_samples")


def _check_draw(parts: Parts, spec: JobSpec) -> None:
    kind, by = parts.draw, _DRAWN_BY.get(parts.draw, (parts.generator,))
    if parts.generator not in by:
        raise _refused("generator", parts.generator, f"one of {', '.join(by)} for a draw {kind}")
    if parts.generator == "polars" and kind not in ("permutation", "shuffle", "none"):
        raise _refused("draw", kind, "permutation, shuffle or none for the generator polars")
    needed = _NEEDED.get(kind)
    if needed is not None and (parts.drawn if needed == "num_samples" else getattr(spec, needed)) is None:
        raise JobError(f'job field "{needed}" is missing: a draw {kind} needs it', "", needed)
    if kind == "repeat-factors" and not parts.endless:
        raise JobError('job field "endless" is missing: with repeat factors passes differ in length', "", "endless")
    grouped = parts.grouping != "none" or kind in ("per-group", "clips")
    if grouped and spec.column is None and spec.column_file is None:
        hint = "size, directory, or a column_file with a number a sample"
        raise JobError('job field "column" is missing: it says the group of a sample', hint, "column")
    by_column = grouped or kind in ("weighted", "repeat-factors")
    if parts.shard_first and by_column:
        raise _refused("shard_first", "true", f"left out: {'grouping' if grouped else kind} is over all samples")
    if grouped and kind in ("weighted", "repeat-factors"):
        raise _refused("grouping", parts.grouping, f"left out: the draw {kind} has a column of its own")
    if parts.grouping == "batches" and parts.endless:
        raise _refused("grouping", parts.grouping, "by-length, or left out: an endless stream has no last batches")


def _check_ends(parts: Parts, spec: JobSpec, n_samples: int) -> None:
    if parts.samples_by_worker and not spec.num_workers:
        raise JobError('job field "num_workers" is missing: samples are dealt to workers', "", "num_workers")
    if not parts.endless:
        if parts.epoch_steps is not None:
            raise _refused("epoch_steps", parts.epoch_steps, 'left out, or stand beside "endless": an epoch is a pass')
        return
    if LIBRARIES[parts.generator].base_words or LIBRARIES[parts.generator].trails:
        raise _refused("generator", parts.generator, "torch: a stream without an end has one iterator")
    if not n_samples:
        raise JobError("passes over no samples are no stream", 'is "root" or "layout" another?', "root")
    if parts.dealing not in _OF_ENDLESS:
        right = f"one of {', '.join(_OF_ENDLESS)}: an endless stream has no end to pad"
        raise _refused("dealing", parts.dealing, right)
    ends: tuple[tuple[str, bool], ...] = (("shard_first", parts.shard_first), ("drop_last", parts.drop_last))
    for field, given in ends:
        if given:
            raise _refused(field, "true", "left out: an endless stream is dealt as it comes, and has no last batch")
    workers = spec.num_workers or 1
    if parts.samples_by_worker and (parts.epoch_steps or 0) % workers:
        allowed = f"a multiple of num_workers ({workers}), among whom samples are dealt"
        raise _refused("epoch_steps", parts.epoch_steps, allowed)


def _refused(field: str, value: object, allowed: str) -> JobError:
    return JobError(f'job field "{field}" is "{value}", must be {allowed}', "", field)


class ComposedOrder(Composition):
    """The order that a job puts together itself."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        text = spec.seeding or "goes-on"
        seeding = seeding_of(text)
        if seeding is None:
            hint = f"{', '.join(RULES)}, or a sum of seed, epoch, rank and numbers such as 1000*seed+epoch"
            raise JobError(f'job field "seeding" is "{text}", must be one of {hint}', "", "seeding")
        parts = Parts(
            spec.generator or "torch", seeding, spec.draw or "permutation", spec.dealing or "strided",
            bool(spec.shard_first), spec.num_samples, spec.drop_last, spec.words_before or 0, spec.words_between or 0,
            spec.words_once or 0, spec.seed_drawn_by, spec.seed_below, bool(spec.endless), spec.epoch_steps,
            spec.worker_dealing == "samples", spec.grouping or "none",
        )  # fmt: skip
        check(parts, spec, n_samples)
        weighed = parts.draw in ("weighted", "repeat-factors")
        column = weights_for(spec, n_samples) if weighed else column_of(spec, n_samples, resolve)
        super().__init__(parts, spec, n_samples, column)
