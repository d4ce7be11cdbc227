"""Merges two measurements of a place's bandwidth: the curve from before the mount, and what the mount measures.

Pure. In: points of the earlier curve, and the mount's points with their weights. Out: the refined curve, with which
plans are made. Called by mlfs.measure.speeds.

The earlier curve tells the shape: how bandwidth grows with lanes. A mount measures today's level, but only at the few
numbers of lanes that it uses. So what it measures moves the whole curve: the ratio of measured to earlier bandwidth,
weighted by how much was measured, is interpolated over the lanes. Let f be the earlier curve, and m_n the rate measured
at n lanes from b_n batches. The ratio r_n = m_n / f(n), held near the ratios' median, has the weight b_n / (b_n + 16):

    g(p) = f(p) * exp(i(log p)),   i: linear between the points (log n, b_n / (b_n + 16) * log r_n), flat beyond

So nothing measured gives f, much measured gives m_n at n, and numbers of lanes that were not tried move with their
neighbours. The refined g does not fall where f does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mlfs.plan.model import Curve, Floats

Points = Sequence[tuple[float, float]]  # lanes, bytes a second of all of them together

# The earlier curve weighs as much as so many batches. With fewer, one odd batch would move plans; with more, a file
# system that has become slower since the calibration would be planned with as it was for long.
PRIOR_BATCHES = 16.0
# A measurement weighs at most as much as so many batches, so that the weights of two numbers of lanes stay comparable
# in a mount that lasts for weeks.
MOST_BATCHES = 1024.0
# A place that was never measured is taken to give this: the order of magnitude of a copy in memory, and of a SATA SSD.
MEMORY_BYTES_PER_S = 10e9
DISK_BYTES_PER_S = 500e6
# A ratio counts as if it were at most so many times above or below the median of all: the place does not change by more
# from one number of lanes to another, so what lies farther off is a measurement that went wrong.
FARTHEST = 4.0


class Measured(NamedTuple):
    """The rate of a place with `lanes` lanes, all of them together, and how many batches tell it."""

    lanes: int
    bytes_per_s: float
    batches: int = 1


def refine(earlier: Points, measured: Sequence[Measured]) -> tuple[tuple[float, float], ...]:
    """The points of the refined curve.

    Args:
        earlier: points of the earlier curve, lanes ascending; may be empty.
        measured: what the mount measured, in any order, each number of lanes at most once.

    Returns:
        Points with ascending lanes and bandwidths above 0; `earlier` itself when nothing usable was measured. More
        lanes never give less than fewer, unless the earlier curve falls: then its shape is kept.
    """
    seen = sorted(m for m in measured if m.lanes > 0 and m.batches > 0 and _usable(m.bytes_per_s))
    if not seen:
        return tuple((float(count), float(rate)) for count, rate in earlier)
    lanes = np.array([m.lanes for m in seen], dtype=np.float64)
    rates = np.array([m.bytes_per_s for m in seen])
    batches = np.minimum([m.batches for m in seen], MOST_BATCHES)
    if not earlier:
        return _points(lanes, _never_falling(np.log(rates), batches))
    curve = Curve(tuple((float(count), float(rate)) for count, rate in earlier))
    ratios = _without_outliers(np.log(rates / curve.at(lanes)), batches) * (batches / (batches + PRIOR_BATCHES))
    counts = np.union1d([count for count, _ in curve.points], lanes)
    moved = np.log(curve.at(counts)) + np.interp(np.log(counts), np.log(lanes), ratios)
    if all(later >= before for (_, before), (_, later) in pairwise(curve.points)):
        weights = PRIOR_BATCHES + np.array([float(batches[lanes == count].sum()) for count in counts])
        moved = _never_falling(moved, weights)
    return _points(counts, moved)


def best(points: Points) -> float:
    """The bandwidth of the best point; 0 without points."""
    return max((rate for _, rate in points), default=0.0)


def _usable(bytes_per_s: float) -> bool:
    return math.isfinite(bytes_per_s) and bytes_per_s > 0


def _points(counts: Floats, logs: Floats) -> tuple[tuple[float, float], ...]:
    return tuple((float(count), float(rate)) for count, rate in zip(counts, np.exp(logs), strict=True))


def _without_outliers(logs: Floats, weights: Floats) -> Floats:
    """The values, each moved to within FARTHEST of their weighted median."""
    order = np.argsort(logs, kind="stable")
    middle = int(np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2))
    median = logs[order][min(middle, len(logs) - 1)]
    return np.clip(logs, median - math.log(FARTHEST), median + math.log(FARTHEST))


def _never_falling(values: Floats, weights: Floats) -> Floats:
    """The nearest sequence that does not fall: neighbours that do get their weighted mean (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean value, weight, how many values
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            last, last_weight, last_count = blocks.pop()
            mean = (mean * total + last * last_weight) / (total + last_weight)
            total, count = total + last_weight, count + last_count
        blocks.append((mean, total, count))
    return np.concatenate([np.full(count, value) for value, _, count in blocks])
