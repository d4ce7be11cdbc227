"""The sampler "composed": an order put together from what a loop chooses; other samplers are such compositions.

In: a job's draw, generator, seeding, dealing, shard_first, num_samples, words_before, words_between, seed, drop_last.
Out: each rank's dataset indices. Made by `mlfs.orders.registry`; compositions with other names by
`mlfs.orders.script_shuffles` and `mlfs.orders.torch_distributed`.

An order is four choices: which generator draws (`mlfs.orders.generators`), how it is seeded in each epoch
(`mlfs.orders.seeding`), what is drawn with it (`mlfs.orders.draws`), and how that is dealt to the ranks
(`mlfs.orders.deal`). Every combination that makes sense is an order; one that makes none is refused, with what does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from mlfs.errors import JobError
from mlfs.orders.deal import DEALINGS
from mlfs.orders.draws import Draws, Kind
from mlfs.orders.generators import LIBRARIES, Generator
from mlfs.orders.jax_keys import JaxGenerator
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.permutation import TORCH_32BIT_LIMIT
from mlfs.orders.seeding import OF_KEYS, RULES, Seeding, seeding_of
from mlfs.orders.shuffle import MOST_ELEMENTS

if TYPE_CHECKING:
    from mlfs.job import JobSpec

# Where each rank draws for itself, what the last ranks have drawn stays at hand, within this much memory.
_DRAWN_BYTES: Final = 256 << 20
_BYTES_A_SAMPLE: Final = 4 * (EPOCHS_KEPT + 1)


class Parts(NamedTuple):
    """The choices that make an order.

    Attributes:
        generator: a name of `LIBRARIES`. dealing: a name of `DEALINGS`.
        shard_first: whether the data set is dealt first, and each rank draws of its own part.
        drawn: how many samples are drawn; None: all.
        words_before: words that others draw from a generator once it is made. words_between: the same after each draw.
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


class Composition:
    """An order of these parts.

    Raises:
        JobError: the parts do not go together, or the generator does not take the seed or so many samples.
    """

    def __init__(self, parts: Parts, spec: JobSpec, n_samples: int) -> None:
        check(parts, spec, n_samples)
        self._parts, self._spec, self._n = parts, spec, n_samples
        self._dealing = DEALINGS[parts.dealing]
        drawn = -(-n_samples // spec.world_size) if parts.shard_first else n_samples
        most = max(1, _DRAWN_BYTES // max(1, drawn * _BYTES_A_SAMPLE))
        self._draws_of = lru_cache(maxsize=most)(self._make_draws)

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank that reads most, the same in every epoch."""
        if self._parts.shard_first and self._parts.draw != "none":
            return self._count(self._dealt(self._n))
        return self._dealt(self._count(self._n))

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order."""
        if self._parts.draw == "none":
            return self._positions(self._count(self._n), rank)
        if self._parts.shard_first:
            mine = self._positions(self._n, rank)
            return mine[self._draws_of(rank, len(mine)).epoch(epoch)]
        drawing = rank if self._parts.seeding.tells_ranks_apart else 0
        drawn = self._draws_of(drawing, self._n).epoch(epoch)
        return drawn[self._positions(len(drawn), rank)].astype(np.int64)

    def _count(self, n: int) -> int:
        """How many are drawn of n."""
        count = self._parts.drawn
        return n if count is None else count if self._parts.draw == "with-replacement" else min(count, n)

    def _dealt(self, n: int) -> int:
        return self._dealing.length(n, self._spec.world_size, self._parts.drop_last, self._spec.batch_size)

    def _positions(self, n: int, rank: int) -> Indices:
        return self._dealing.positions(n, rank, self._spec.world_size, self._parts.drop_last, self._spec.batch_size)

    def _make_draws(self, rank: int, n: int) -> Draws:
        parts = self._parts

        def generator_of(before: Generator, epoch: int) -> Generator:
            return self._generator(before, epoch, rank)

        return Draws(
            n, parts.draw, self._count(n), self._made(self._spec.seed), generator_of,
            parts.seeding.goes_on, parts.words_between,
        )  # fmt: skip

    def _generator(self, before: Generator, epoch: int, rank: int) -> Generator:
        """The generator that an epoch draws with."""
        seeding, seed = self._parts.seeding, self._spec.seed
        if seeding.rule == "goes-on":
            return before
        if isinstance(before, JaxGenerator) and seeding.rule in OF_KEYS:
            return before if seeding.rule == "same" else before.split() if seeding.goes_on else before.fold_in(epoch)
        if seeding.rule == "[seed,epoch]":
            return self._made((seed, epoch))
        return self._made(seed if seeding.rule == "same" else seeding.number(seed, epoch, rank))

    def _made(self, seed: int | tuple[int, int]) -> Generator:
        """A generator of a seed, after the words that others draw first."""
        library = LIBRARIES[self._parts.generator]
        if isinstance(seed, int) and library.most is not None and seed > library.most:
            seed %= library.most + 1  # the script would end with an error: an epoch that is never read
        generator = library.make(seed)
        if self._parts.words_before:
            generator.skip(self._parts.words_before)
        return generator


def check(parts: Parts, spec: JobSpec, n_samples: int) -> None:
    """Refuse parts that make no order together.

    Raises:
        JobError: with the parts that go together.
    """
    library, seeding = LIBRARIES[parts.generator], parts.seeding
    most = TORCH_32BIT_LIMIT - 1 if parts.generator == "torch" else MOST_ELEMENTS
    if n_samples > most and parts.draw != "none":
        raise JobError(f"{n_samples} samples cannot be shuffled: the limit is {most}", 'narrow "root"', "root")
    low, high = library.least, library.most
    if (low is not None and spec.seed < low) or (high is not None and spec.seed > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        message = f'job field "seed" is {spec.seed}, must be {allowed} for the sampler "{spec.sampler}"'
        raise JobError(message, f"the generator {parts.generator} takes no other", "seed")
    if seeding.rule == "linear" and low is not None:
        ends = [(epoch, rank) for epoch in (0, spec.epochs - 1) for rank in (0, spec.world_size - 1)]
        least = min(seeding.number(spec.seed, *end) for end in ends)
        if least < low:
            hint = f"the generator {parts.generator} takes {low} or more, and gets {least}"
            raise JobError(f'job field "seeding" gives a seed of {least}', hint, "seeding")
    if library.has_keys != (seeding.rule in ("fold-in", "split")) and seeding.rule not in ("same", "linear"):
        right = f"one of {', '.join(OF_KEYS)}, or such as seed+epoch" if library.has_keys else "goes-on, or seed+epoch"
        why = "draws by keys, which no draw changes" if library.has_keys else "has no keys"
        raise _refused("seeding", seeding.rule, f"{right}: the generator {parts.generator} {why}")
    if seeding.rule == "[seed,epoch]" and not library.takes_pairs:
        raise _refused("seeding", seeding.rule, "such as seed+epoch: only numpy's generators take a sequence")
    if library.has_keys and (parts.words_before or parts.words_between):
        raise _refused("words_before", parts.words_before, "left out: nothing is drawn from a key but by its user")
    if parts.draw == "with-replacement" and parts.drawn is None:
        raise JobError('job field "num_samples" is missing: a draw with replacement needs it', "", "num_samples")


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
        )  # fmt: skip
        super().__init__(parts, spec, n_samples)
