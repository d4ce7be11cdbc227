"""How long a GPU's mini-batch takes to load with some number of threads on each route, and how far that is from ideal.

Pure. In: bytes by route, threads, throughput curves. Out: seconds. Called by `mlfs.plan.gpu_queues`.

Source: Lobster (Liu et al., ICPP'22), Section 4.3, equations 1 to 3. T_l, T_r and T_PFS are throughputs of one thread
while that many work. The curves of mlfs.plan.model are those of all threads together, so alpha T_l(alpha) is one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlfs.plan.model import Curve


class Routed(NamedTuple):
    """One value for each place a sample can come from: the node's cache, another node's, the PFS."""

    local: float
    remote: float
    pfs: float


class Throughputs(NamedTuple):
    """The aggregate throughput of each route by threads: alpha T_l(alpha), beta T_r(beta), gamma T_PFS(gamma)."""

    local: Curve
    remote: Curve
    pfs: Curve


def loading_s(size_bytes: Iterable[float], threads: Iterable[float], throughput: Iterable[Curve]) -> float:
    """T_L = B_HL / (alpha T_l(alpha)) + B_HR / (beta T_r(beta)) + B_M / (gamma T_PFS(gamma)) (eq. 1).

    All arguments are by route, as `Routed` and `Throughputs` have them. The time is infinite when bytes have to come by
    a route that has no thread.
    """
    total = 0.0
    for size, count, curve in zip(size_bytes, threads, throughput, strict=True):
        if size > 0:
            rate = float(curve.at(count)) if count > 0 else 0.0
            total += size / rate if rate > 0 else float("inf")
    return total


def gap_s(load_s: float, preprocess_s: float, train_s: float) -> float:
    """T_L + T_P - T_train, whose absolute value eq. 2 minimises for each GPU. Above 0 the GPU waits."""
    return load_s + preprocess_s - train_s


def spread_s(iteration_s: Sequence[float]) -> float:
    """|T_max - T_min| over the GPUs of a node, which eq. 3 minimises, as they all wait for the slowest."""
    return max(iteration_s) - min(iteration_s) if iteration_s else 0.0


def iteration_s(load_s: float, preprocess_s: float, train_s: float) -> float:
    """How long an iteration of one GPU takes when loading and preprocessing run beside training."""
    return max(load_s + preprocess_s, train_s)
