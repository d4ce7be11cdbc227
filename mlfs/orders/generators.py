"""The generators of random numbers that scripts shuffle with, each by the draws that a loop makes of it.

In: a seed; a rule as a job's `seeding` has it, such as "seed+epoch". Out: permutations, shuffles and samples, bit for
bit as the library draws them; what the generator of an epoch is made from. Called by `mlfs.orders.composed` and the
samplers that go on with one generator. A generator that is deep-copied goes on from the same state, and so does its
copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mlfs.job.refusals import refuse
from mlfs.orders.counters import JaxGenerator, op_seeds, pass_seeds, shuffle_pass
from mlfs.orders.cpp_random import Mt64Words, index_shuffle, std_shuffle
from mlfs.orders.mt19937 import PythonGenerator, TorchWords, next_randperm, words_of_randperm
from mlfs.orders.order import Indices
from mlfs.orders.polars import PolarsGenerator
from mlfs.orders.shuffle import Permutation, Shuffles
from mlfs.orders.stopping import stop_if_asked

Weights = npt.NDArray[np.float64]
Seed = int | tuple[int, int]
"""A number, or two: numpy's sequence of a seed and an epoch, or the seeds of one of TensorFlow's operations."""
BASE_SEED_WORDS: Final = 2
"""Words that each iterator of a DataLoader draws as base_seed, before its sampler draws anything: from the loader's
generator, or from the default one. With persistent workers there is one iterator for all epochs."""

_WORD: Final = 1 << 32
_LONG: Final = (1 << 64) - 1
TORCH_SHORT_RANGE: Final = 1 << 28
"""Below it torch.randint takes a word of 32 bits, else two. ATen/core/DistributionsHelper.h."""
_USUAL_BELOW: Final = 1 << 31
_FLOAT_MASK: Final = (1 << 24) - 1
# Words are passed over in portions of little memory; between two of them a computation that nobody waits for ends.
_SKIPPED_AT_ONCE: Final = 1 << 18


class Generator(Protocol):
    """A generator as a loop uses it; some have a part of these draws alone, which `mlfs.orders.composed` checks."""

    def shuffle(self, x: Permutation, /) -> None:
        """Shuffle the array in place."""

    def permutation(self, n: int, /) -> Permutation:
        """Shuffle 0 .. n-1, as the library's own function for that does."""

    def sample(self, n: int, count: int, /) -> Indices | Permutation:
        """Draw `count` of 0 .. n-1 without replacement, as the library's own function for that does."""

    def choices(self, n: int, count: int, /) -> Indices:
        """Draw `count` of 0 .. n-1 with replacement, as the library's own function for that does."""

    def weighted(self, weights: Weights, count: int, /) -> Indices:
        """Draw `count` with replacement, each as often as its weight says."""

    def uniform(self, count: int, /) -> npt.NDArray[np.floating]:
        """Draw numbers from 0 to 1."""

    def number(self, below: int | None, /) -> int:
        """Draw the seed of another generator, below a number; None: as the library's users mostly draw it."""

    def buffer(self, n: int, size: int, /) -> Indices | Permutation:
        """Shuffle 0 .. n-1 by a buffer of so many, as the library's own function for that does."""

    def skip(self, words: int, /) -> None:
        """Pass over words of 32 bits that others draw."""


@runtime_checkable
class Keyed(Protocol):
    """A generator that no draw changes: a loop makes one for each epoch from it."""

    def fold_in(self, data: int) -> Generator:
        """Make the generator of a number."""


# -- torch's draws by weights: the running sum as doubles, divided by the whole, its last entry 1; for each draw 53 bits
# of a 64-bit word, high half first, and the first entry that is not below

WORDS_A_DRAW: Final = 2
_MANTISSA_BITS: Final = 53


def uniform_of(high: npt.NDArray[np.uint32], low: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """The numbers in [0, 1) that pairs of words make, of the shape of either. ATen/core/TransformationHelper.h."""
    whole = (high.astype(np.uint64) << np.uint64(32)) | low
    return (whole & np.uint64((1 << _MANTISSA_BITS) - 1)).astype(np.float64) * 2.0**-_MANTISSA_BITS


def running_sum(weights: Weights) -> npt.NDArray[np.float64]:
    """Up to which number in [0, 1] each sample is drawn: the first one whose entry is not below the number."""
    sums = np.cumsum(weights)
    sums /= sums[-1]
    sums[-1] = 1.0
    return sums


class _Permutes:
    """A generator that is made for one permutation, which no draw changes; and what permutes as such a one does."""

    def __init__(self, permute: Callable[[int, int], Permutation | Indices], seed: int) -> None:
        self._permute, self._seed = permute, seed

    def permutation(self, n: int, /) -> Permutation | Indices:
        """The permutation of 0 .. n-1."""
        return self._permute(n, self._seed)

    def shuffle(self, x: Permutation, /) -> None:
        """The same of any elements: x[:] = x[torch.randperm(len(x))], for one."""
        x[:] = x[self.permutation(len(x))]


class Torch(_Permutes):
    """torch.Generator: `randperm` is its shuffle, and its sample the beginning of that."""

    def __init__(self, seed: int) -> None:
        self._words = TorchWords(seed)

    def _drawing(self) -> TorchWords:
        """The words of which a permutation, or numbers below another, are made."""
        return self._words

    def permutation(self, n: int, /) -> Permutation:
        """torch.randperm(n)."""
        return next_randperm(n, self._drawing())

    def sample(self, n: int, count: int, /) -> Indices | Permutation:
        """torch.randperm(n)[:count]; of more than there are, of one permutation after another."""
        words = self._drawing()
        parts = [next_randperm(n, words)[: count - at] for at in range(0, max(count, 1), max(n, 1))]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def choices(self, n: int, count: int, /) -> Indices:
        """torch.randint(n, (count,))."""
        if n < TORCH_SHORT_RANGE:
            return (self._drawing().take(count) % np.uint32(max(n, 1))).astype(np.int64)
        high, low = self._drawing().take(2 * count).reshape(count, 2).T.astype(np.uint64)
        return ((high << np.uint64(32) | low) % np.uint64(n)).astype(np.int64)

    def weighted(self, weights: Weights, count: int, /) -> Indices:
        """torch.multinomial(weights, count, replacement=True). ATen/native/cpu/MultinomialKernel.cpp."""
        drawn = self._words.take(WORDS_A_DRAW * count).reshape(count, WORDS_A_DRAW)
        return np.searchsorted(running_sum(weights), uniform_of(drawn[:, 0], drawn[:, 1]), side="left")

    def uniform(self, count: int, /) -> npt.NDArray[np.floating]:
        """torch.rand(count): 24 bits of a word."""
        return (self._words.take(count) & np.uint32(_FLOAT_MASK)).astype(np.float32) * np.float32(2.0**-24)

    def number(self, below: int | None, /) -> int:
        """torch.empty((), dtype=torch.int64).random_(), as far as torch reads a seed; else torch.randint(below)."""
        if below is None:
            return self._words.random_int64_seed()
        return int(self.choices(below, 1)[0])

    def buffer(self, n: int, size: int, /) -> Indices | Permutation:
        """The datapipe shuffle() of a DataLoader: its iterator draws a seed for the pipes and base_seed."""
        high, low = TorchWords(self.number(None)).take(2).tolist()
        self.skip(BASE_SEED_WORDS)
        return PythonGenerator((high << 32 | low) & (_LONG >> 1)).buffer(n, size)

    def skip(self, words: int, /) -> None:
        """Pass over words."""
        self._words.skip(words)


class _OwnSeed(Torch):
    """The generator of a RandomSampler that was given none: each draw is that of a generator of its own, seeded by it.

    Weighted draws, which other samplers make, are its own.
    """

    def _drawing(self) -> TorchWords:
        return TorchWords(self.number(None))


class _Numpy(Shuffles):
    """numpy.random.default_rng. RandomState calls some of its functions by other names: `_NumpyLegacy` has those."""

    # By name: a copy of the object must call its own generator.
    _make, _below = "default_rng", "integers"

    def __init__(self, seed: Seed) -> None:
        self._rng: Any = getattr(np.random, self._make)(seed)

    def shuffle(self, x: Permutation, /) -> None:
        """rng.shuffle(x)."""
        self._rng.shuffle(x)

    def sample(self, n: int, count: int, /) -> Indices | Permutation:
        """rng.choice(n, count, replace=False)."""
        return np.asarray(self._rng.choice(n, count, replace=False))

    def choices(self, n: int, count: int, /) -> Indices:
        """rng.integers(n, size=count); rng.choice(n, count) is the same."""
        return np.asarray(getattr(self._rng, self._below)(n, size=count))

    def weighted(self, weights: Weights, count: int, /) -> Indices:
        """rng.choice(n, count, p=weights / weights.sum())."""
        return np.asarray(self._rng.choice(len(weights), count, p=weights / weights.sum()))

    def number(self, below: int | None, /) -> int:
        """rng.integers(below); 2**31 is the usual one."""
        return int(getattr(self._rng, self._below)(below or _USUAL_BELOW))

    def buffer(self, n: int, size: int, /) -> Indices | Permutation:
        """datasets' IterableDataset.shuffle: a full buffer is shuffled, and half of it handed out.

        Source: datasets/iterable_dataset.py, BufferShuffledExamplesIterable (datasets 5.2).
        """
        held, left = np.empty(0, dtype=np.int32), np.arange(n, dtype=np.int32)
        parts = [held]
        while len(held) or len(left):
            held, left = np.append(held, left[: size - len(held)]), left[size - len(held) :]
            self.shuffle(held)
            handed_out = size - size // 2 if len(held) == size else len(held)
            parts.append(held[:handed_out])
            held = held[handed_out:]
        return np.concatenate(parts)

    def skip(self, words: int, /) -> None:
        """Pass over words; default_rng has 64 bits, and draws of 32 take them in pairs."""
        for start in range(0, words, _SKIPPED_AT_ONCE):
            stop_if_asked()
            getattr(self._rng, self._below)(0, _WORD, min(_SKIPPED_AT_ONCE, words - start), dtype=np.uint32)


class _NumpyLegacy(_Numpy):
    """numpy.random.RandomState."""

    _make, _below = "RandomState", "randint"
    # np.random.choice(n, count, replace=False), which pandas' sample calls, is the beginning of a permutation.
    sample = Shuffles.sample


class _Tensorflow:
    """The shuffle of tf.data, of the seeds that an operation has; no draw changes them."""

    def __init__(self, seed: Seed) -> None:
        self._seeds = seed if isinstance(seed, tuple) else op_seeds(seed, None)

    def fold_in(self, data: int) -> _Tensorflow:
        """The shuffle of a pass, with reshuffle_each_iteration."""
        return _Tensorflow(pass_seeds(self._seeds, data))

    def buffer(self, n: int, size: int, /) -> Permutation:
        """shuffle(size)."""
        return shuffle_pass(n, size, self._seeds)


class Library(NamedTuple):
    """A library's generator.

    Attributes:
        make: gives the generator of a seed, which may have a part of the draws alone.
        least, most: the seeds that the library takes; None has no bound.
        takes_pairs: whether a seed may be a sequence of two numbers.
        has_keys: whether it draws by keys, which no draw changes, so that no words are taken of it.
        is_fresh: whether each draw has a generator of its own.
        base_words: words that a DataLoader takes of it for each of its iterators.
        worker_words: words that it takes more of it for those that have workers.
        trails: whether its sampler permutes once more when it comes to its end.
        words: how many words a draw takes, by its kind, of how many, how many; None where that is not known.
    """

    make: Callable[..., Any]
    least: int | None = None
    most: int | None = None
    takes_pairs: bool = False
    has_keys: bool = False
    is_fresh: bool = False
    base_words: int = 0
    worker_words: int = 0
    trails: bool = False
    words: Callable[[str, int, int], int | None] = lambda kind, n, count: None


def _words_of_torch(kind: str, n: int, count: int) -> int | None:
    once = words_of_randperm(n)
    drawn = {"with-replacement": count, "weighted": WORDS_A_DRAW * count, "sample": -(-count // max(n, 1)) * once}
    return once if kind == "permutation" else drawn.get(kind)


def _words_of_seeding(kind: str, n: int, count: int) -> int | None:
    return BASE_SEED_WORDS if kind in ("permutation", "shuffle", "sample", "with-replacement") else None


def _words_of_datapipe(kind: str, n: int, count: int) -> int | None:
    return 2 * BASE_SEED_WORDS if kind == "buffer" else None


def _permuting(permute: Callable[[int, int], Permutation | Indices], most: int | None = None) -> Library:
    return Library(partial(_Permutes, permute), least=0, most=most, is_fresh=True)


LIBRARIES: Final[Mapping[str, Library]] = {
    # torch.manual_seed, torch.Generator: ATen/native/TensorFactories.cpp (torch 2.13)
    "torch": Library(Torch, words=_words_of_torch),
    # The same where a DataLoader takes words of it as well: SubsetRandomSampler, WeightedRandomSampler and others
    "loader": Library(Torch, base_words=BASE_SEED_WORDS, words=_words_of_torch),
    # RandomSampler(generator=g), DataLoader(shuffle=True, generator=g); RandomSampler() without a DataLoader around it,
    # DataLoader(shuffle=True) after torch.manual_seed: torch/utils/data/sampler.py
    "own": Library(Torch, trails=True, words=_words_of_torch),
    "shared": Library(Torch, base_words=BASE_SEED_WORDS, trails=True, words=_words_of_torch),
    "sampler": Library(_OwnSeed, words=_words_of_seeding),
    "default": Library(_OwnSeed, base_words=BASE_SEED_WORDS, words=_words_of_seeding),
    # numpy.random.default_rng; numpy.random.seed, RandomState, pandas and sklearn: numpy/random (numpy 2.4; called)
    "numpy": Library(_Numpy, least=0, takes_pairs=True),
    "numpy-legacy": Library(_NumpyLegacy, least=0, most=_WORD - 1, takes_pairs=True),
    "python": Library(PythonGenerator),
    "jax": Library(JaxGenerator, least=-(1 << 31), most=_WORD - 1, has_keys=True),
    "polars": Library(PolarsGenerator, least=0, most=_LONG, is_fresh=True),
    # DataLoader over an IterDataPipe with shuffle(): torch/utils/data/graph_settings.py, datapipes/iter
    "datapipe": Library(Torch, worker_words=BASE_SEED_WORDS, words=_words_of_datapipe),
    "tensorflow": Library(_Tensorflow, has_keys=True),
    # std::shuffle with std::mt19937, std::mt19937_64
    "cpp": _permuting(lambda n, seed: std_shuffle(n, TorchWords(seed), 32)),
    "cpp-64": _permuting(lambda n, seed: std_shuffle(n, Mt64Words(seed), 64)),
    "grain": _permuting(index_shuffle, most=_WORD - 1),
}
"""Each library by the name that a job gives it. Modules of their own have the sources of the others."""


def check_seed(generator: str, seed: int, field: str, whom: str) -> None:
    """Refuse a seed that a generator does not take. Raises: JobError."""
    low, high = LIBRARIES[generator].least, LIBRARIES[generator].most
    if (low is not None and seed < low) or (high is not None and seed > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        refuse(field, seed, f"{allowed} for {whom}", f"the generator {generator} takes no other")


# -- how the generator of an epoch is seeded: it goes on from the epoch before, or is made anew from a number
#
# | rule | the generator of an epoch | in a script |
# | --- | --- | --- |
# | goes-on | that of the epoch before, as it was left | seeded once, before the first epoch |
# | same | made anew from the seed | `default_rng(seed).permutation(n)` in each epoch |
# | seed+epoch | made anew from that number, or from another sum | `manual_seed(seed + epoch)` |
# | [seed,epoch] | made anew from the sequence of both | `default_rng([seed, epoch])` |
# | fold-in | jax.random.fold_in(key, epoch) | jax, tf.data |
# | split | key, subkey = jax.random.split(key): the subkey | jax |
# | drawn | made anew from a number that the generator of the epoch before draws | fastai |
#
# A sum has terms of seed, epoch, rank, worker and numbers, each with a factor: seed+epoch-1, 1000*seed+epoch,
# seed+epoch+rank. A "fold-in" is jax's, or the new seeds that a shuffle of tf.data draws in each pass.

RULES: Final = ("goes-on", "same", "[seed,epoch]", "fold-in", "split", "drawn")
OF_KEYS: Final = ("same", "fold-in", "split")
_TERM: Final = re.compile(r"([+-]?)(?:(\d+)\*)?(seed|epoch|rank|worker|\d+)(?:\*(\d+))?")
_LARGEST: Final = 1 << 64


class Seeding(NamedTuple):
    """A rule, taken apart.

    Attributes:
        rule: one of RULES, or "linear".
        seed, epoch, rank, worker, constant: factors of the linear rule.
    """

    rule: str
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    worker: int = 0
    constant: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether an epoch's generator follows from that of the epoch before."""
        return self.rule in ("goes-on", "split", "drawn")

    def number(self, seed: int, epoch: int, rank: int, worker: int = 0) -> int:
        """The number that an epoch's generator is made from, by a linear rule."""
        return self.seed * seed + self.epoch * epoch + self.rank * rank + self.worker * worker + self.constant


GOES_ON: Final = Seeding("goes-on")
SAME: Final = Seeding("same")
RESEEDED: Final = Seeding("linear", seed=1, epoch=1)
BY_EPOCH: Final = Seeding("linear", epoch=1)
"""The usual ones."""


def seeding_of(text: str) -> Seeding | None:
    """The rule that a text says; None where it says none."""
    text = re.sub(r"\s", "", text)
    if text in RULES:
        return Seeding(text)
    factors, at = {"seed": 0, "epoch": 0, "rank": 0, "worker": 0, "constant": 0}, 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None or (at and not term[1]):
            return None
        sign, before, name, after = term.groups()
        number = int(before or 1) * int(after or 1) * (-1 if sign == "-" else 1)
        if name.isdigit():
            number, name = number * int(name), "constant"
        factors[name] += number
        at = term.end()
    if (not factors["seed"] and not factors["epoch"]) or any(abs(factor) >= _LARGEST for factor in factors.values()):
        return None
    return Seeding("linear", **factors)
