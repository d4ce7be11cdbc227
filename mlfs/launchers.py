"""What the environment of a launcher says: which rank a process is, and which ranks of a job are this node's.

Pure. In: environment variables of torchrun, Slurm, Open MPI, MPICH or Intel MPI. Out: numbers, where the variables are
there and go together. Three ask, and each asks for something else: a process for its own rank, `mlfs mount` for the
ranks of this node that it proposes to register, and `mlfs register --from-env` for those, or for what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from mlfs.errors import JobError
from mlfs.user_input import shortened

# -- which rank of how many a process is
#
# `mlfs.explain.launchers` asks about others' processes, and `mlfs.torch.sampler` about its own.

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


# -- a job's ranks: how many there are, and which of them are this node's


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


# -- the same for `mlfs register --from-env`, which says what is missing

_MOST_DIGITS = 9
_LAUNCHERS = {
    "torchrun": ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    "Slurm": ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID"),
}


def env_fields(environment: Mapping[str, str]) -> dict[str, Any]:
    """World size and this node's ranks from the launcher's variables. Raises JobError for what is missing or wrong."""
    missing: dict[str, list[str]] = {}
    for launcher, names in _LAUNCHERS.items():
        missing[launcher] = [name for name in names if not environment.get(name)]
        if not missing[launcher]:
            return _node_ranks(names, [environment[name] for name in names])
    # The launcher that has set most of its variables is the one that was used; its others are what is missing.
    launcher = min(missing, key=lambda name: len(missing[name]))
    absent = " and ".join(missing[launcher])
    message = f"--from-env: {absent} {'is' if len(missing[launcher]) == 1 else 'are'} not set"
    if len(missing[launcher]) == 3:
        message = "--from-env: neither torchrun's nor Slurm's variables are set"
    all_names = "; ".join(", ".join(names) for names in _LAUNCHERS.values())
    raise JobError(message, f"needed: {all_names}; or give --world-size and --ranks")


def _node_ranks(names: tuple[str, ...], texts: list[str]) -> dict[str, Any]:
    for name, text in zip(names, texts, strict=True):
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            said = f"--from-env: {name}={shortened(text)!r} is not a whole number that a launcher counts to"
            raise JobError(said, "or give --world-size and --ranks")
    world_size, per_node, node = (int(text) for text in texts)
    first = node * per_node
    if per_node < 1 or first + per_node > world_size:
        values = ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))
        message = f"--from-env: {values} do not go together"
        raise JobError(message, "nodes with different numbers of ranks need --world-size and --ranks")
    return {"world_size": world_size, "ranks": list(range(first, first + per_node))}
