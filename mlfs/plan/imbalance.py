"""Measures how unevenly GPUs load, as Lobster does (Liu et al., ICPP'22, Section 5.3).

Pure. In: how long each GPU's batch takes to load in each step, and how long a step computes. Out: two shares. Called by
`mlfs.lab.sim.run`, `mlfs.lab.sim.detailed.run` and `mlfs.plan.loader_load`, so that what a mount measures and
what the simulator predicts are the same figure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlfs.plan.model import Floats


class Imbalance(NamedTuple):
    """How unevenly GPUs load.

    Attributes:
        apart: the mean over steps of (slowest - fastest) / slowest loading time.
        steps: the share of steps in which loading takes longer than computing on some GPUs and not on others.
    """

    apart: float = 0.0
    steps: float = 0.0


def imbalance(load_s: Floats, compute_s: Floats | float) -> Imbalance:
    """How unevenly GPUs load; nothing but zeros where there is no step.

    Args:
        load_s: shape (T, GPUs). compute_s: the same, or one number for all.
    """
    if not load_s.size:
        return Imbalance()
    slowest, fastest = load_s.max(axis=1), load_s.min(axis=1)
    late = load_s > compute_s
    apart = (slowest - fastest) / np.maximum(slowest, 1e-300)
    return Imbalance(float(apart.mean()), float((late.any(axis=1) & ~late.all(axis=1)).mean()))
