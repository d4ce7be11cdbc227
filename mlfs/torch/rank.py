"""Which rank of how many this process is.

In: torch.distributed, else the variables that launchers set. Out: rank and world size. Called by `sampler`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.distributed as dist

from mlfs.told_ranks import told_rank


def rank_and_world_size(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The initialized process group's, else the launcher's, else those of a process alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return told_rank(environment) or (0, 1)
