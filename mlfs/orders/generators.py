"""The generators of random numbers that scripts shuffle with, each by the draws that a loop makes of it.

In: a seed. Out: permutations, shuffles and samples, bit for bit as the library draws them. Called by
`mlfs.orders.composed` and the samplers that go on with one generator. A generator that is deep-copied goes on from the
same state, and so does its copy.

| name | library | source |
| --- | --- | --- |
| torch | torch.Generator, torch.manual_seed | ATen/native/TensorFactories.cpp (torch 2.13) |
| default | DataLoader(shuffle=True) after torch.manual_seed | torch/utils/data/sampler.py: RandomSampler |
| shared | DataLoader(shuffle=True, generator=g) | the same |
| numpy | numpy.random.default_rng | numpy/random/_generator.pyx (numpy 2.4; called) |
| numpy-legacy | numpy.random.seed, RandomState; pandas, sklearn | numpy/random/mtrand.pyx (frozen: NEP 19) |
| python | random.seed, random.Random | Lib/random.py (Python 3.11 to 3.14) |
| jax | jax.random.key, PRNGKey | jax/_src/prng.py, random.py (jax 0.5 and later) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np

from mlfs.orders.jax_keys import JaxGenerator
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import Indices
from mlfs.orders.permutation import next_randperm
from mlfs.orders.python_mt import PythonGenerator
from mlfs.orders.shuffle import Permutation
from mlfs.orders.stopping import stop_if_asked
from mlfs.orders.torch_generator import BASE_SEED_WORDS

Seed = int | tuple[int, int]
"""A number, or numpy's sequence of a seed and an epoch."""

_WORD: Final = 1 << 32
TORCH_SHORT_RANGE: Final = 1 << 28
"""Below it torch.randint takes a word of 32 bits, else two. ATen/core/DistributionsHelper.h."""
_USUAL_BELOW: Final = 1 << 31
_SKIPPED_AT_ONCE: Final = 1 << 18


class Shuffler(Protocol):
    """A generator that shuffles an array in place; numpy's own are such."""

    def shuffle(self, x: Permutation, /) -> None:
        """Shuffle the array in place."""


class Generator(Shuffler, Protocol):
    """A generator as a loop uses it."""

    def permutation(self, n: int, /) -> Permutation:
        """Shuffle 0 .. n-1, as the library's own function for that does."""

    def sample(self, n: int, count: int, /) -> Indices | Permutation:
        """Draw `count` of 0 .. n-1 without replacement, as the library's own function for that does."""

    def choices(self, n: int, count: int, /) -> Indices:
        """Draw `count` of 0 .. n-1 with replacement, as the library's own function for that does."""

    def number(self, below: int | None, /) -> int:
        """Draw the seed of another generator, below a number; None: as the library's users mostly draw it."""

    def skip(self, words: int, /) -> None:
        """Pass over words of 32 bits that others draw."""


def shuffled(generator: Shuffler, n: int) -> Permutation:
    """0 .. n-1, shuffled: in most libraries that is a permutation."""
    values = np.arange(n, dtype=np.int32)
    generator.shuffle(values)
    return values


def _portions(words: int) -> Iterator[int]:
    """Words in portions that need little memory; between two of them a computation that nobody waits for ends."""
    for start in range(0, words, _SKIPPED_AT_ONCE):
        stop_if_asked()
        yield min(_SKIPPED_AT_ONCE, words - start)


class _Torch:
    """torch.Generator: `randperm` is its shuffle, and its sample the beginning of that."""

    def __init__(self, seed: int) -> None:
        self._words = TorchWords(seed)

    def shuffle(self, x: Permutation, /) -> None:
        """x[:] = x[torch.randperm(len(x))]."""
        x[:] = x[next_randperm(len(x), self._words)]

    def permutation(self, n: int, /) -> Permutation:
        """torch.randperm(n)."""
        return next_randperm(n, self._words)

    def sample(self, n: int, count: int, /) -> Permutation:
        """torch.randperm(n)[:count]."""
        return self.permutation(n)[:count]

    def choices(self, n: int, count: int, /) -> Indices:
        """torch.randint(n, (count,))."""
        return (self._words.take(count) % np.uint32(max(n, 1))).astype(np.int64)

    def number(self, below: int | None, /) -> int:
        """torch.empty((), dtype=torch.int64).random_(), as far as torch reads a seed; else torch.randint(below)."""
        if below is None:
            return self._words.random_int64_seed()
        if below < TORCH_SHORT_RANGE:
            return int(self._words.take(1)[0]) % below
        high, low = self._words.take(2).tolist()
        return int((high << 32 | low) % below)

    def skip(self, words: int, /) -> None:
        """Pass over words."""
        self._words.skip(words)


class _Seeding:
    """The generator of a DataLoader with shuffle=True: each draw is that of a generator of its own, which it seeds."""

    def __init__(self, seed: int) -> None:
        self._seeds = _Torch(seed)

    def _own(self) -> _Torch:
        return _Torch(self._seeds.number(None))

    def shuffle(self, x: Permutation, /) -> None:
        """x[:] = x[list(RandomSampler(x))]."""
        self._own().shuffle(x)

    def permutation(self, n: int, /) -> Permutation:
        """RandomSampler(range(n))."""
        return self._own().permutation(n)

    def sample(self, n: int, count: int, /) -> Permutation:
        """RandomSampler(range(n), num_samples=count)."""
        return self._own().sample(n, count)

    def choices(self, n: int, count: int, /) -> Indices:
        """RandomSampler(range(n), replacement=True, num_samples=count)."""
        return self._own().choices(n, count)

    def number(self, below: int | None, /) -> int:
        """As torch's."""
        return self._seeds.number(below)

    def skip(self, words: int, /) -> None:
        """Pass over words."""
        self._seeds.skip(words)


class _Numpy:
    """numpy.random.default_rng."""

    def __init__(self, seed: Seed) -> None:
        self._rng = np.random.default_rng(seed)

    def shuffle(self, x: Permutation, /) -> None:
        """rng.shuffle(x)."""
        self._rng.shuffle(x)

    def permutation(self, n: int, /) -> Permutation:
        """rng.permutation(n)."""
        return shuffled(self, n)

    def sample(self, n: int, count: int, /) -> Indices:
        """rng.choice(n, count, replace=False)."""
        return self._rng.choice(n, count, replace=False)

    def choices(self, n: int, count: int, /) -> Indices:
        """rng.integers(n, size=count); rng.choice(n, count) is the same."""
        return self._rng.integers(n, size=count)

    def number(self, below: int | None, /) -> int:
        """rng.integers(below); 2**31 is the usual one."""
        return int(self._rng.integers(below or _USUAL_BELOW))

    def skip(self, words: int, /) -> None:
        """Pass over words: the generator has 64 bits, and draws of 32 take them in pairs."""
        for count in _portions(words):
            self._rng.integers(_WORD, size=count, dtype=np.uint32)


class _NumpyLegacy:
    """numpy.random.RandomState."""

    def __init__(self, seed: Seed) -> None:
        self._rng = np.random.RandomState(seed)

    def shuffle(self, x: Permutation, /) -> None:
        """np.random.shuffle(x)."""
        self._rng.shuffle(x)

    def permutation(self, n: int, /) -> Permutation:
        """np.random.permutation(n)."""
        return shuffled(self, n)

    def sample(self, n: int, count: int, /) -> Indices:
        """np.random.choice(n, count, replace=False), the beginning of a permutation; pandas' sample calls it."""
        return self._rng.permutation(n)[:count]

    def choices(self, n: int, count: int, /) -> Indices:
        """np.random.randint(n, size=count); np.random.choice(n, count) is the same."""
        return self._rng.randint(n, size=count)

    def number(self, below: int | None, /) -> int:
        """np.random.randint(below); 2**31 is the usual one."""
        return int(self._rng.randint(below or _USUAL_BELOW))

    def skip(self, words: int, /) -> None:
        """Pass over words."""
        for count in _portions(words):
            self._rng.randint(0, _WORD, count, dtype=np.uint32)


class Library(NamedTuple):
    """A library's generator.

    Attributes:
        make: gives the generator of a seed.
        least, most: the seeds that the library takes; None has no bound.
        takes_pairs: whether a seed may be a sequence of two numbers.
        has_keys: whether it draws by keys, which no draw changes, so that no words are taken of it.
        base_words: words that a DataLoader takes of it for each of its iterators.
        trails: whether its sampler permutes once more when it comes to its end.
    """

    make: Callable[..., Generator]
    least: int | None = None
    most: int | None = None
    takes_pairs: bool = False
    has_keys: bool = False
    base_words: int = 0
    trails: bool = False


LIBRARIES: Final[Mapping[str, Library]] = {
    "torch": Library(_Torch),
    "default": Library(_Seeding, base_words=BASE_SEED_WORDS),
    "shared": Library(_Torch, base_words=BASE_SEED_WORDS, trails=True),
    "numpy": Library(_Numpy, least=0, takes_pairs=True),
    "numpy-legacy": Library(_NumpyLegacy, least=0, most=_WORD - 1, takes_pairs=True),
    "python": Library(PythonGenerator),
    "jax": Library(JaxGenerator, least=-(1 << 31), most=_WORD - 1, has_keys=True),
}
"""Each library by the name that a job gives it."""
