"""Divides a node's threads: how many load for each GPU, how many preprocess (Lobster 2022, Sections 4.1 to 4.4).

Pure. In: what each GPU's next batch has to load by route, what a route gives to some number of threads, the batch's
preprocessing and training time. Out: threads for each GPU, for any number of nodes and steps at once. Called by
`mlfs.lab.sim.gpu_queues` and, for the workers of a loader that was seen at work, by `mlfs.plan.loader_workers`.

The paper has a GPU's loading time near to its training time (eq. 1, 2), and a node's GPUs near to each other (eq. 3):

    T_L = B_HL / (alpha T_l(alpha)) + B_HR / (beta T_r(beta)) + B_M / (gamma T_PFS(gamma))
    minimise |T_L + T_P - T_train| for each GPU, and |T_max - T_min| over a node's GPUs
    a GPU is predicted to be late where T_L + T_P - T_train >= tau

1. Preprocessing (4.1), once an epoch: the fewest threads within 2 % of the least time by the best two lines. Then,
   while T_L + T_P > T_train for the usual batch, one thread goes to loading.
2. No GPU of the node is late (4.2): threads stand in proportion to the queues' bytes.
3. Some GPU is late (4.4), Algorithm 1: for each GPU that is off by tau or more a binary search for its threads.

The paper leaves some things open. Here T_l(alpha) is the throughput of one thread; alpha, beta and gamma are one
number; in Algorithm 1 line 5 is about the size of T_dif, line 18 keeps the smaller gap, lines 12 to 15 go by
T_train - T_L - T_P and the newest L_th, and l_min is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlfs.plan.model import Curve, Floats

Threads = npt.NDArray[np.int64]

# tau, as a share of the training time: a GPU that is late by less does not count as late. The paper says that it "can
# be fine-tuned as needed".
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class PiecewiseLinear:
    """Seconds to preprocess a sample, or a byte of it, by number of threads, as the best two lines (Section 4.1).

    Attributes:
        split: the number of threads up to which the first line holds.
        lines: (intercept, slope) of each, in seconds.
    """

    split: float
    lines: tuple[tuple[float, float], tuple[float, float]]

    @classmethod
    def fit(cls, threads: npt.ArrayLike, seconds: npt.ArrayLike) -> PiecewiseLinear:
        """The pair of lines with the least squares, over all splits with at least two measurements on each side.

        Raises:
            ValueError: fewer than four measurements.
        """
        xs, ys = _ascending(threads, seconds)
        if len(xs) < 4:
            raise ValueError(f"{len(xs)} measurements: two lines need four at least")
        cut, _ = _best_cut(xs, ys, 2)
        return cls._two(xs, ys, cut)

    @classmethod
    def fit_cautiously(cls, xs: npt.ArrayLike, seconds: npt.ArrayLike, side: int, left: float) -> PiecewiseLinear:
        """One line with the least squares, or two where they are clearly better.

        Args:
            side: how many measurements each of two lines needs.
            left: two lines are clearly better if they leave at most this share of the squares that one line leaves.
        """
        xs, ys = _ascending(xs, seconds)
        if len(xs) >= 2 * side:
            cut, share = _best_cut(xs, ys, side)
            if share <= left:
                return cls._two(xs, ys, cut)
        one = _line(xs, ys)
        return cls(math.inf, (one, one))

    @classmethod
    def _two(cls, xs: Floats, ys: Floats, cut: int) -> PiecewiseLinear:
        return cls(float(xs[cut - 1] + xs[cut]) / 2, (_line(xs[:cut], ys[:cut]), _line(xs[cut:], ys[cut:])))

    def at(self, threads: float) -> float:
        """Seconds for a sample with that many threads; never negative."""
        intercept, slope = self.lines[0 if threads <= self.split else 1]
        return max(0.0, intercept + slope * threads)


def _line(xs: Floats, ys: Floats) -> tuple[float, float]:
    """(intercept, slope) of the line with the least squares."""
    centred = xs - xs.mean()
    spread = float((centred * centred).sum())
    slope = float((centred * (ys - ys.mean())).sum()) / spread if spread else 0.0
    return float(ys.mean()) - slope * float(xs.mean()), slope


def _ascending(xs: npt.ArrayLike, ys: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Measurements in the order of x."""
    xs, ys = np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)
    order = np.argsort(xs)
    return xs[order], ys[order]


def _best_cut(xs: Floats, ys: Floats, side: int) -> tuple[int, float]:
    """How many of the measurements the first of two lines is fitted to, and which share of one line's squares is left.

    Args:
        xs: ascending. side: how many measurements each line has at least.
    """
    xs, ys = xs - xs.mean(), ys - ys.mean()
    sums = np.stack([np.ones(len(xs)), xs, ys, xs * xs, xs * ys, ys * ys]).cumsum(axis=1)
    left = sums[:, side - 1 : len(xs) - side]
    both = _squares(left) + _squares(sums[:, -1:] - left)
    best, one = int(both.argmin()), float(_squares(sums[:, -1]))
    return side + best, float(both[best]) / one if one > 0 else 1.0


def _squares(sums: Floats) -> Floats:
    """The squares that the best line leaves of some measurements. Args: of 1, x, y, xx, xy and yy, shape (6, ...)."""
    count, x, y, xx, xy, yy = sums
    spread, along, height = xx - x * x / count, xy - x * y / count, yy - y * y / count
    # Rounding leaves a little of the difference where all x are the same.
    slanted = spread > 1e-12 * np.maximum(xx, 1e-300)
    squares: Floats = height - np.where(slanted, along * along / np.where(slanted, spread, 1.0), 0.0)
    return squares


def preprocessing_threads(seconds_with: Callable[[float], float], most: int, tolerance: float = 0.02) -> int:
    """The fewest threads, up to `most`, that are at most `tolerance` slower than the best number of threads."""
    seconds = [seconds_with(count) for count in range(1, most + 1)]
    good = min(seconds) * (1 + tolerance)
    return 1 + next(index for index, value in enumerate(seconds) if value <= good)


def rates_by_threads(rates: Sequence[Curve], most: int) -> Floats:
    """Shape (most + 1, R): bytes per second of each route by number of threads, 0 to `most`."""
    return np.stack([curve.at(np.arange(most + 1)) for curve in rates], axis=-1)


def load_s(route_bytes: Floats, table: Floats, threads: Threads) -> Floats:
    """Seconds to load each GPU's batch: local, remote and PFS bytes, one after the other by all its threads (eq. 1).

    Args:
        route_bytes: (..., R).
        table: that of `rates_by_threads`.
        threads: (...), at least 1 each.
    """
    return np.asarray((route_bytes / table[threads]).sum(axis=-1))


def assign(
    batches: Floats,
    rates: Sequence[Curve],
    preprocess_s: Floats,
    train_s: float | Floats,
    most: int,
    tolerance_s: float,
) -> Threads:
    """Algorithm 1: loading threads for each GPU of a node, so that |T_L + T_P - T_train| is least (eq. 2).

    Args:
        batches: (..., M, R) bytes by route of each GPU's batch; leading axes are nodes and steps, each for itself.
        rates: the aggregate bandwidth of each route by number of threads.
        preprocess_s: (..., M).
        train_s: (...), the training time of one step.
        most: T_L, how many threads a node has for loading, at least M.
        tolerance_s: tau; a GPU that is off by less keeps its share in proportion to its queue.

    Returns:
        (..., M), each at least 1, together at most `most`. If the GPUs of a node want more, they get what lets them end
        at the same time (eq. 3).

    Raises:
        ValueError: fewer threads than GPUs.
    """
    gpus = batches.shape[-2]
    if most < gpus:
        raise ValueError(f"{most} threads for {gpus} GPUs: each needs one at least")
    table = rates_by_threads(rates, most)
    wanted = in_proportion(batches.sum(axis=-1), most)
    taken_s = load_s(batches, table, wanted)
    work = wanted * taken_s
    allowed_s = np.asarray(train_s)[..., None] - preprocess_s
    off = np.abs(taken_s - allowed_s) >= tolerance_s
    wanted[off] = _search(batches[off], table, allowed_s[off], most)
    over = wanted.sum(axis=-1) > most
    wanted[over] = in_proportion(work[over], most)
    return wanted


def _search(batches: Floats, table: Floats, allowed_s: Floats, most: int) -> Threads:
    """The numbers of threads, 1 to `most`, whose loading times are nearest to `allowed_s`; the fewest of equal ones.

    It is a binary search, for more threads do not take longer as long as aggregate bandwidths do not fall. A route that
    gets slower with more threads ends the search early, as the paper's window of recorded differences does.

    Args:
        batches: (K, R).
        allowed_s: (K,).

    Returns:
        (K,).
    """
    low, high = np.ones(len(batches), dtype=np.int64), np.full(len(batches), most, dtype=np.int64)
    best = low.copy()
    least = np.abs(load_s(batches, table, best) - allowed_s)
    while (searching := low <= high).any():
        middle = np.where(searching, (low + high) // 2, best)
        late = load_s(batches, table, middle) - allowed_s
        better = (np.abs(late) < least) | ((np.abs(late) == least) & (middle < best))
        best, least = np.where(better, middle, best), np.where(better, np.abs(late), least)
        low = np.where(searching & (late > 0), middle + 1, low)
        high = np.where(searching & (late <= 0), middle - 1, high)
    return best


def in_proportion(weights: Floats, total: int) -> Threads:
    """`total` divided in proportion to the weights (..., M), at least 1 each; equally where all weights are 0."""
    return topped_up(np.ones(weights.shape, dtype=np.int64), weights, total)


def topped_up(dealt: Threads, weights: Floats, total: int) -> Threads:
    """Add threads to `dealt`, one by one, until all of `total` are dealt.

    Each one goes to the GPU that has the most weight for each thread that it has, of equal ones to the lower. So the
    largest weight / threads, which is the time of the slowest queue, becomes as small as whole threads can make it
    (Adams's method of apportionment).

    Args:
        dealt: (..., M), at least 1 each.
        weights: (..., M), not negative.
    """
    gpus = weights.shape[-1]
    counts = dealt.reshape(-1, gpus).copy()
    weight = weights.reshape(-1, gpus)
    weight = np.where(weight.any(axis=1, keepdims=True), weight, 1.0)
    left = total - counts.sum(axis=1)
    while len(rows := np.flatnonzero(left > 0)):
        counts[rows, (weight[rows] / counts[rows]).argmax(axis=1)] += 1
        left[rows] -= 1
    return counts.reshape(dealt.shape)
