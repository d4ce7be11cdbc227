"""Computes how long each GPU loads in each step, and how unevenly: of a simulated run, and of a job that really runs.

Pure. In: an epoch's reads counted (`EpochBytes`), what the cluster gives (`Loading`), how long a step computes. Out:
seconds of each lane, and the imbalance. Called by mlfs.lab.sim.run and mlfs.lab.sim.expected.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.lab.sim.clock import Loading
from mlfs.lab.sim.tally import EpochBytes
from mlfs.plan.imbalance import Imbalance, imbalance
from mlfs.plan.model import Floats


class StepLoads(NamedTuple):
    """The loads of an epoch's steps.

    Attributes:
        lanes: seconds that each lane of each GPU works for each step, shape (T, L, N * M).
        imbalance: of the GPUs: the lanes of one work side by side, so it loads as long as its slowest one.
    """

    lanes: Floats
    imbalance: Imbalance


def step_loads(loading: Loading, counted: EpochBytes, compute_s: Floats | float) -> StepLoads:
    """The seconds for which each GPU loads in each step, and the imbalance.

    Args: compute_s: shape (T, N * M), or one number for all.
    """
    lanes = loading.lanes(counted)
    return StepLoads(lanes, imbalance(lanes.max(axis=1), compute_s))
