"""Computes how many GPUs and how many parameter servers a training run needs: the lemmas of Zou et al. as functions.

Pure. In: plain numbers. Out: plain numbers. Called by mlfs.lab.commands.advise.

Source: Zou et al., Distributed Training Large-Scale Deep Architectures (2017), Lemma 3.1 (from Amdahl's law, its
appendix A.1) and Lemma 3.2. R is T_O / T_C, overhead that is not hidden over computing time, of one GPU.
"""

from __future__ import annotations

import math

# The error of rounding that is forgiven: 2 * 180 * 4 / (125 * 2) in floats must not become one more server.
_EPSILON = 1e-9
# A number of GPUs above this is a slip of the pen.
MOST_GPUS = 10**9


def _whole_above(value: float) -> int:
    return math.ceil(value - _EPSILON * max(1.0, abs(value)))


def efficiency(overhead: float, gpus: int) -> float:
    """Efficiency of `gpus` GPUs: (1 + R) / (1 + G R), the speed-up over G (Lemma 3.1).

    Raises:
        ValueError: the overhead is negative or not a number, or there is no GPU.
    """
    _check_overhead(overhead)
    _check_gpus(gpus)
    if overhead > 1:  # so that a huge one does not overflow
        return (1 / overhead + 1) / (1 / overhead + gpus)
    return (1 + overhead) / (1 + gpus * overhead)


def speedup(overhead: float, gpus: int) -> float:
    """How many times as fast as one GPU: G (1 + R) / (1 + G R)."""
    return gpus * efficiency(overhead, gpus)


def most_overhead(wanted_efficiency: float, gpus: int) -> float:
    """The largest R at which `gpus` GPUs have the wanted efficiency: (1 - a) / (a G - 1) (eq. 12).

    It is infinite for an efficiency of 1/G and below, as no overhead makes G GPUs slower than one.

    Raises:
        ValueError: the efficiency is not above 0 and at most 1, or there is no GPU.
    """
    _check_gpus(gpus)
    if not 0 < wanted_efficiency <= 1:
        raise ValueError(f"an efficiency of {wanted_efficiency:g} cannot be: it lies above 0 and is at most 1")
    if wanted_efficiency == 1:
        return 0.0 if gpus > 1 else math.inf
    if wanted_efficiency * gpus <= 1:
        return math.inf
    return (1 - wanted_efficiency) / (wanted_efficiency * gpus - 1)


def most_speedup(overhead: float) -> float:
    """The speed-up that no number of GPUs reaches: (1 + R) / R, the limit for many."""
    _check_overhead(overhead)
    return math.inf if overhead == 0 else (1 + overhead) / overhead


def gpus_for_speedup(overhead: float, wanted: float) -> int:
    """The fewest GPUs with that speed-up: G (1 + R) / (1 + G R) >= s, so G >= s / (1 + R - s R).

    Raises:
        ValueError: no number of GPUs is enough, or what is wanted is no speed-up.
    """
    _check_overhead(overhead)
    if not (math.isfinite(wanted) and wanted > 0):
        raise ValueError(f"a speed-up of {wanted:g} cannot be: it lies above 0")
    if wanted > MOST_GPUS:
        raise ValueError(f"a speed-up of {wanted:g} would need more than {MOST_GPUS:g} GPUs")
    room = 1 + overhead - wanted * overhead
    if room <= _EPSILON:
        limit = most_speedup(overhead)
        raise ValueError(
            f"a speed-up of {wanted:g} cannot be reached: with R = {overhead:g} it stays below {limit:.4g}"
        )
    return max(1, _whole_above(wanted / room))


def parameter_servers(parameter_bytes: float, workers: int, bandwidth: float, compute_s: float) -> int:
    """The fewest parameter servers that hide the traffic: ceil(2 S_p N_w / (B_ps T_C)) (Lemma 3.2).

    Args:
        parameter_bytes: S_p, what is pushed and pulled in a round.
        workers: N_w.
        bandwidth: B_ps, of one server, in bytes a second.
        compute_s: T_C, the computing time of a round.

    Raises:
        ValueError: a value is not above 0.
    """
    named = {"parameter size": parameter_bytes, "workers": workers, "bandwidth": bandwidth, "compute time": compute_s}
    for name, value in named.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}: {value:g} cannot be, it must lie above 0")
    return max(1, _whole_above(2 * parameter_bytes * workers / (bandwidth * compute_s)))


def overhead_from_stalls(stall_s: float, wall_s: float, gpus: int) -> float:
    """R = T_O / T_C from the stalls of a run; the mount counts the stalls of all its ranks together.

    Each of G GPUs ran for `wall_s` and stalled stall_s / G on average, so T_O = stall_s / G and T_C = wall_s - T_O.
    Ranks that wait for each other hide each other's stalls, and the result is an upper bound then.

    Raises:
        ValueError: nothing ran, or all of the time (or more) were stalls, so that T_C is not known.
    """
    if gpus < 1 or not wall_s > 0 or stall_s < 0:
        raise ValueError(f"{stall_s:g} s of stalls in {wall_s:g} s on {gpus} GPUs say nothing")
    waited = stall_s / gpus
    if waited >= wall_s:
        raise ValueError(
            f"{stall_s:.4g} s of stalls of {gpus} GPUs in {wall_s:.4g} s leave no time to compute in: "
            "readers that prefetch wait in parallel"
        )
    return waited / (wall_s - waited)


def _check_gpus(gpus: int) -> None:
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs: at least one is needed")
    if gpus > MOST_GPUS:
        raise ValueError(f"{gpus} GPUs: there are at most {MOST_GPUS:g}")


def _check_overhead(overhead: float) -> None:
    if not (math.isfinite(overhead) and overhead >= 0):
        raise ValueError(f"an overhead ratio of {overhead:g} cannot be: it is T_O / T_C, 0 or more")
