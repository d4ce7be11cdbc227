"""How many threads load for each GPU of a node, and how many preprocess (Lobster 2022, Sections 4.1-4.4).

Pure. In: what each GPU's next batch has to load by route, what a route gives to some number of threads, the batch's
preprocessing and training time. Out: threads for each GPU. Called by whoever plans per-GPU queues; the simulator's
nodes load as a whole, where it makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlfs.plan.loading import gap_s, loading_s
from mlfs.plan.model import Curve, Floats

Threads = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PiecewiseLinear:
    """Seconds to preprocess a sample by number of threads: two lines that meet the measurements best (Section 4.1).

    Attributes:
        split: up to this many threads the first line holds. lines: (intercept, slope) of each, seconds.
    """

    split: float
    lines: tuple[tuple[float, float], tuple[float, float]]

    @classmethod
    def fit(cls, threads: npt.ArrayLike, seconds: npt.ArrayLike) -> PiecewiseLinear:
        """The least-squares pair of lines over all places to split; two measurements on each side at least.

        Raises:
            ValueError: fewer than four measurements.
        """
        xs, ys = np.asarray(threads, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        order = np.argsort(xs)
        xs, ys = xs[order], ys[order]
        if len(xs) < 4:
            raise ValueError(f"{len(xs)} measurements: two lines need four at least")
        best: tuple[float, PiecewiseLinear] | None = None
        for cut in range(2, len(xs) - 1):
            (left, error_left), (right, error_right) = _line(xs[:cut], ys[:cut]), _line(xs[cut:], ys[cut:])
            if best is None or error_left + error_right < best[0]:
                best = error_left + error_right, cls(float(xs[cut - 1] + xs[cut]) / 2, (left, right))
        assert best is not None
        return best[1]

    def at(self, threads: float) -> float:
        """Seconds a sample with that many threads, never negative."""
        intercept, slope = self.lines[0 if threads <= self.split else 1]
        return max(0.0, intercept + slope * threads)


def _line(xs: Floats, ys: Floats) -> tuple[tuple[float, float], float]:
    centred = xs - xs.mean()
    spread = float((centred * centred).sum())
    slope = float((centred * (ys - ys.mean())).sum()) / spread if spread else 0.0
    intercept = float(ys.mean()) - slope * float(xs.mean())
    return (intercept, slope), float(((ys - intercept - slope * xs) ** 2).sum())


def preprocessing_threads(model: PiecewiseLinear, most: int, tolerance: float = 0.02) -> int:
    """The fewest threads, up to `most`, that preprocess within `tolerance` of as fast as any number does."""
    seconds = [model.at(count) for count in range(1, most + 1)]
    good = min(seconds) * (1 + tolerance)
    return 1 + next(index for index, value in enumerate(seconds) if value <= good)


def nearest_model(models: dict[float, PiecewiseLinear], size_bytes: float) -> PiecewiseLinear:
    """Of a portfolio by sample size, the model of the nearest size (Section 4.1)."""
    return models[min(models, key=lambda known: (abs(known - size_bytes), known))]


def load_s(route_bytes: Floats, rates: Sequence[Curve], threads: int) -> float:
    """Eq. 1: seconds to load one GPU's batch: local, remote and PFS bytes, each by `threads` threads in turn.

    Args:
        route_bytes: (R,). rates: aggregate bandwidth of each route by number of threads; 0 threads load nothing, ever.
    """
    return loading_s(route_bytes.tolist(), [threads] * len(rates), rates)


def assign(
    batches: Floats, rates: Sequence[Curve], preprocess_s: Floats, train_s: float, most: int, tolerance_s: float
) -> Threads:
    """Algorithm 1: loading threads for each GPU of a node, so that |T_L + T_P - T_train| is least (eq. 2).

    Args:
        batches: (M, R) bytes by route of each GPU's batch. rates: as in `load_s`.
        preprocess_s: (M,). train_s: of one step. most: T_L, threads that the node has for loading, at least M.
        tolerance_s: tau: a GPU that is off by less keeps its share in proportion to its queue.

    Returns:
        (M,), each at least 1, together at most `most`: where the GPUs want more, each gets its part of it.

    Raises:
        ValueError: fewer threads than GPUs.
    """
    gpus = len(batches)
    if most < gpus:
        raise ValueError(f"{most} threads for {gpus} GPUs: each needs one at least")
    queued = batches.sum(axis=1)
    wanted = in_proportion(queued, most)
    for gpu in range(gpus):
        late = gap_s(load_s(batches[gpu], rates, int(wanted[gpu])), float(preprocess_s[gpu]), train_s)
        if abs(late) >= tolerance_s:
            wanted[gpu] = _search(batches[gpu], rates, train_s - preprocess_s[gpu], most)
    return wanted if wanted.sum() <= most else in_proportion(wanted.astype(np.float64), most)


def _search(batch: Floats, rates: Sequence[Curve], allowed_s: float, most: int) -> int:
    """The number of threads, 1 to `most`, whose loading time is nearest to `allowed_s`; the fewest of equals.

    Binary search: aggregate bandwidths do not fall with threads, so loading time does not rise. A route that gets
    slower with more threads ends the search early, as the paper's window of recorded differences does.
    """
    low, high = 1, most
    best, least = 1, abs(load_s(batch, rates, 1) - allowed_s)
    while low <= high:
        middle = (low + high) // 2
        late = load_s(batch, rates, middle) - allowed_s
        if abs(late) < least or (abs(late) == least and middle < best):
            best, least = middle, abs(late)
        if late > 0:
            low = middle + 1
        else:
            high = middle - 1
    return best


def in_proportion(weights: Floats, total: int) -> Threads:
    """`total` dealt in proportion to the weights, at least 1 each; largest remainders first, ties to the lower."""
    n = len(weights)
    whole = float(weights.sum())
    exact = (total - n) * (weights / whole if whole else np.full(n, 1.0 / n))
    dealt: Threads = np.floor(exact).astype(np.int64)
    rest = total - n - int(dealt.sum())
    dealt[np.argsort(-(exact - dealt), kind="stable")[:rest]] += 1
    return dealt + 1
