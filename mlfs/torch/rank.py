"""Which rank of how many this process is.

In: torch.distributed, else the variables that launchers set. Out: rank and world size. Called by `sampler`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.distributed as dist

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
)


def rank_and_world_size(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The initialized process group's, else the launcher's, else those of a process alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for rank, world_size in _LAUNCHERS:
        texts = environment.get(rank, ""), environment.get(world_size, "")
        if all(text.isdecimal() for text in texts):
            return int(texts[0]), int(texts[1])
    return 0, 1
