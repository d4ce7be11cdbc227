"""Computes how many GPUs and how many parameter servers a training run needs: the lemmas of Zou et al. as functions.

Pure. In: plain numbers. Out: plain numbers. Called by mlfs.lab.commands.advise.

Source: Zou et al., Distributed Training Large-Scale Deep Architectures (2017), Lemma 3.1 (from Amdahl's law, its
appendix A.1) and Lemma 3.2. R is T_O / T_C, overhead that is not hidden over computing time, of one GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


# -- when more nodes stop helping: time of an epoch by number of nodes, for three ways to load
#
# In: rates, in units of data a second (bytes, or samples), and shares. Out: seconds.
#
# Source: Yang and Cong, Accelerating Data Loading in Deep Neural Network Training (2019), equations 1 to 8. V and U are
# rates of one node; R, R_c and R_b are those of all nodes together.


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """The paper's Section III-A notation.

    Attributes:
        data: D, the data of an epoch.
        train_rate: V, how fast one node trains.
        storage_rate: R, what the storage system gives to all nodes together.
        preprocess_rate: U, how fast one node preprocesses.
        remote_rate: R_c, what all nodes together get from remote caches.
        balance_rate: R_b, the rate at which batches are balanced, of all nodes together.

    Raises:
        ValueError: a value is not above 0.
    """

    data: float
    train_rate: float
    storage_rate: float
    preprocess_rate: float = math.inf
    remote_rate: float = math.inf
    balance_rate: float = math.inf

    def __post_init__(self) -> None:
        for name in ("data", "train_rate", "storage_rate", "preprocess_rate", "remote_rate", "balance_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")

    def training_s(self, nodes: int) -> float:
        """D / (p V) (eq. 1)."""
        return self.data / (nodes * self.train_rate)

    def io_s(self) -> float:
        """D / R, whatever the number of nodes (eq. 2)."""
        return self.data / self.storage_rate

    def preprocessing_s(self, nodes: int) -> float:
        """D / (p U) (eq. 3)."""
        return self.data / (nodes * self.preprocess_rate)

    def loading_s(self, nodes: int, io_s: float | None = None) -> float:
        """I/O and preprocessing, one after the other (eq. 4); `io_s` of eq. 7 or 8 in place of eq. 2's."""
        return (self.io_s() if io_s is None else io_s) + self.preprocessing_s(nodes)

    def crossover_nodes(self) -> float:
        """Training takes longer than I/O while p <= R / V (eq. 5)."""
        return self.storage_rate / self.train_rate

    def epoch_s(self, nodes: int) -> float:
        """The true cost: D / (p V) for p <= R / V, else D / R (eq. 6)."""
        return max(self.training_s(nodes), self.io_s())

    def cached_io_s(self, nodes: int, cached_share: float) -> float:
        """Distributed caching: (1-a) D/R + a D/R_c (p-1)/p (eq. 7).

        Args:
            cached_share: a (alpha), how much of the data the caches of all nodes hold together, 0 to 1.
        """
        _check_share(cached_share)
        remote_s = cached_share * self.data / self.remote_rate * (nodes - 1) / nodes
        return (1 - cached_share) * self.data / self.storage_rate + remote_s

    def local_io_s(self, cached_share: float, moved_share: float) -> float:
        """Locality-aware loading: (1-a) D/R + (a D / R_b) b (eq. 8).

        Args:
            moved_share: b (beta), how much of what is cached moves to balance the batches, 0 to 1.
        """
        _check_share(cached_share)
        _check_share(moved_share)
        balance_s = cached_share * self.data / self.balance_rate * moved_share
        return (1 - cached_share) * self.data / self.storage_rate + balance_s


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"a share of {share}, must be 0 to 1")
