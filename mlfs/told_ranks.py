"""Which rank of how many a process is, as the launcher that started it has told it.

Pure. In: environment variables. Out: rank and world size. Called by `mlfs.explain.launchers` about others' processes,
and by `mlfs.torch.sampler` about its own.
"""

from __future__ import annotations

from collections.abc import Mapping

# Of the rank, and of the number of ranks. torchrun's come first, and Slurm's last: whatever Slurm has started starts
# the others in a job, and its variables are there then too, those of the batch script or of the node.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def told_rank(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world size by the first launcher whose variables are there and go together; None where none's do."""
    for rank, world_size in _VARIABLES:
        told = [environment.get(name, "") for name in (rank, world_size)]
        if all(text.isascii() and text.isdecimal() for text in told) and int(told[0]) < int(told[1]):
            return int(told[0]), int(told[1])
    return None
