"""How long a GPU's mini-batch takes to load with some number of threads on each route, and how far that is from ideal.

Pure. In: bytes by route, threads, throughput curves. Out: seconds. Called by `mlfs.plan.gpu_queues`.

Source: Lobster (Liu et al., ICPP'22), Section 4.3, equations 1 and 2. T_l, T_r and T_PFS are throughputs of one thread
while that many work. The curves of mlfs.plan.model are those of all threads together, so alpha T_l(alpha) is one call.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.plan.model import Curve


def loading_s(size_bytes: Iterable[float], threads: Iterable[float], throughput: Iterable[Curve]) -> float:
    """T_L = B_HL / (alpha T_l(alpha)) + B_HR / (beta T_r(beta)) + B_M / (gamma T_PFS(gamma)) (eq. 1).

    All arguments are by route: the node's cache, other nodes', the PFS. The time is infinite when bytes have to come by
    a route that has no thread.

    Args:
        throughput: of all threads of the route together: alpha T_l(alpha), beta T_r(beta), gamma T_PFS(gamma).
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
