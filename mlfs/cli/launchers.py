"""What the environment of a launcher says of a job's ranks: how many there are, and which of them are this node's.

Pure. In: environment variables of torchrun, Slurm, Open MPI, MPICH or Intel MPI. Out: `Ranks`, or None where no
launcher is seen or its variables do not go together. Used by `mlfs.cli.mount`, for the registration that it proposes;
`mlfs register --from-env` asks for more and says what is missing (`mlfs.cli.register`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Ranks(NamedTuple):
    """The ranks of a job, and those of this node: so many from the first one on."""

    launcher: str
    world_size: int
    first: int
    here: int

    @property
    def flags(self) -> str:
        """The flags of `mlfs register` that say so."""
        last = self.first + self.here - 1
        return f"--world-size {self.world_size} --ranks {self.first}{f'-{last}' if last > self.first else ''}"


# What each launcher sets: its name, the world's size, a process's rank in it and on its node, ranks of the node. All
# number the ranks of a node in a row, unless they are told to deal them out.
_BY_PROCESS = (
    ("torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)  # fmt: skip


def ranks_seen(environment: Mapping[str, str]) -> Ranks | None:
    """What the first launcher says whose variables are there; torchrun comes first, as Slurm often starts it."""
    for launcher, world, rank, local_rank, here in _BY_PROCESS:
        numbers = [_number(environment, name) for name in (world, rank, local_rank, here)]
        if None not in numbers:
            world_size, number, local, count = (number or 0 for number in numbers)
            return _checked(Ranks(launcher, world_size, number - local, count))
    node = _number(environment, "GROUP_RANK")
    world_size, here_count = (_number(environment, name) or 0 for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if node is not None and world_size:
        return _checked(Ranks("torchrun", world_size, node * here_count, here_count))
    return _by_slurm(environment)


def _by_slurm(environment: Mapping[str, str]) -> Ranks | None:
    """Slurm says of each node how many tasks it has: `4(x2),3`; or one number for all nodes."""
    world_size, node = _number(environment, "SLURM_NTASKS"), _number(environment, "SLURM_NODEID")
    if not world_size:
        return None
    if world_size == 1:
        return Ranks("Slurm", 1, 0, 1)
    if node is None:
        return None
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    tasks = _tasks_of_nodes(text, most=world_size)
    if sum(tasks) != world_size:
        each = _number(environment, "SLURM_NTASKS_PER_NODE") or 0
        tasks = [each] * (node + 1)
    if node >= len(tasks):
        return None
    return _checked(Ranks("Slurm", world_size, sum(tasks[:node]), tasks[node]))


def _tasks_of_nodes(text: str, most: int) -> list[int]:
    """The tasks of each node; nothing for a text that says something else, or names more nodes than `most`."""
    tasks: list[int] = []
    for word in text.split(","):
        found = re.fullmatch(r"(\d{1,7})(?:\(x(\d{1,7})\))?", word, re.ASCII)
        if found is None or len(tasks) + int(found[2] or 1) > most:
            return []
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


def _checked(ranks: Ranks) -> Ranks | None:
    good = ranks.here >= 1 and ranks.first >= 0 and ranks.first + ranks.here <= ranks.world_size
    return ranks if good else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,7}", text, re.ASCII) else None
