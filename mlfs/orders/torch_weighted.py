"""The sampler "torch-weighted": torch.utils.data.WeightedRandomSampler with replacement, bit for bit.

In: a job's weights_file, seed, generator, num_samples, words_before, words_between and persistent_workers. Out: the
dataset indices, the same for every rank. Made by `mlfs.orders.registry`.
Source: torch/utils/data/sampler.py; ATen/native/cpu/MultinomialKernel.cpp (torch 2.13): the running sum of the weights
as doubles, divided by the whole, its last entry set to 1; for each draw 53 bits of a 64-bit word, high half first, and
the first entry that is not below. Draws without replacement follow another rule (vectorised exponentials): they need
the sampler "explicit".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.one_stream import OneStream
from mlfs.orders.order import Indices, Resolve
from mlfs.orders.order_file import read_weights
from mlfs.orders.torch_generator import EpochWords

if TYPE_CHECKING:
    from mlfs.job import JobSpec

WORDS_A_DRAW: Final = 2
_MANTISSA_BITS: Final = 53


class WeightedOrder(OneStream):
    """num_samples draws an epoch, each sample with its weight's probability.

    Raises:
        JobError: the file cannot be used, or torch would not draw by this rule.
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        super().__init__(spec.num_samples or n_samples)
        if spec.replacement is False or self._length == 1:
            field = "replacement" if spec.replacement is False else "num_samples"
            message = f'job field "{field}" is {"false" if field == "replacement" else 1}: that order is not known'
            raise JobError(message, 'write it down and use "sampler": "explicit"', field)
        weights = read_weights(str(spec.weights_file))
        if len(weights) != n_samples:
            message = f"the weights file {spec.weights_file!r} has {len(weights)} weights for {n_samples} samples"
            raise JobError(message, "write one weight for each sample, in the data set's order", "weights_file")
        self._cumulative = running_sum(weights, str(spec.weights_file))
        self._words = EpochWords(spec, WORDS_A_DRAW * self._length)

    def _draw_epoch(self, epoch: int) -> Indices:
        uniform = draw_uniform(self._length, self._words.at(epoch))
        return np.searchsorted(self._cumulative, uniform, side="left").astype(np.int64)


def draw_uniform(count: int, words: TorchWords) -> npt.NDArray[np.float64]:
    """Uniform doubles in [0, 1) as ATen/core/TransformationHelper.h makes them, shape (count,)."""
    pairs = words.take(WORDS_A_DRAW * count).reshape(count, WORDS_A_DRAW)
    return uniform_of(pairs[:, 0], pairs[:, 1])


def uniform_of(high: npt.NDArray[np.uint32], low: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """The numbers that pairs of words make, of the shape of either."""
    whole = (high.astype(np.uint64) << np.uint64(32)) | low
    return (whole & np.uint64((1 << _MANTISSA_BITS) - 1)).astype(np.float64) * 2.0**-_MANTISSA_BITS


def running_sum(weights: npt.NDArray[np.float64], path: str) -> npt.NDArray[np.float64]:
    """Up to which number in [0, 1] each sample is drawn: the first one whose entry is not below the number.

    Raises:
        JobError: these are no weights; `path` is the file that they come from.
    """
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        message = f"the weights file {path!r}: weight {bad[0]} (from 0) is {weights[bad[0]]}"
        raise JobError(message, "weights are numbers, 0 or more", "weights_file")
    sums = np.cumsum(weights)
    if not 0 < sums[-1] < np.inf:
        raise JobError(f"the weights file {path!r}: the weights add up to {sums[-1]}", "", "weights_file")
    sums /= sums[-1]
    sums[-1] = 1.0
    return sums
