"""Reads what processes were launched with: which rank one is, which ranks of a job are this node's, which seeds it has.

In: environment variables of torchrun, Slurm, Open MPI, MPICH or Intel MPI, and command lines. Out: numbers, where the
variables are there and go together. A process of a user's asks for its own rank (`mlfs.torch`), a search for an order
asks for those of the processes that read and for the seeds that they were given, and the command asks for the ranks of
this node, which `mlfs mount` proposes to register and `mlfs register --from-env` registers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mlfs.errors import JobError
from mlfs.user_input import shortened


class _Launcher(NamedTuple):
    """The variables of a launcher.

    Attributes:
        world: the number of ranks. rank, local: a process's number among all of them, and among those of its node.
        here: the ranks of a node. node: the node's number, from which its ranks follow where no process's are there.
    """

    name: str
    world: str
    rank: str
    local: str
    here: str
    node: str = ""


# torchrun comes first and Slurm last: whatever Slurm has started starts the others in a job, and its variables are
# there then too, those of the batch script or of the node. All number the ranks of a node in a row, unless they are
# told to deal them out.
_LAUNCHERS = (
    _Launcher("torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Launcher("MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Launcher("Slurm", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID"),
)  # fmt: skip
# More digits than these are no number of ranks, and would be a long list of them.
_MOST_DIGITS = 7


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


# -- which rank of how many a process is


def told_rank(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world size by the first launcher whose variables are there and go together; None where none's do."""
    for of in _LAUNCHERS:
        rank, world = _number(environment, of.rank), _number(environment, of.world)
        if rank is not None and world is not None and rank < world:
            return rank, world
    return None


class Whose(NamedTuple):
    """Whose process one is. Its launcher's word is a hint: its reads have to confirm it.

    Attributes:
        parent: its parent process, 0 where that is not known.
        rank, world: which rank it reads for, of how many; -1 and 0 where nothing tells.
        is_copy: whether it runs what its parent runs, as a loader's workers do. Launchers start ranks as programs.
    """

    parent: int
    rank: int = -1
    world: int = 0
    is_copy: bool = False


_MOST_WORDS_BYTES = 1 << 20


def whose(kin: Sequence[tuple[int, int]]) -> list[Whose]:
    """Whose processes these are, each given with its parent. It reads /proc, so call it in a worker thread.

    A loader's workers have the environment of their rank. Nothing but the launchers' variables is looked at.
    """
    found = []
    for process, parent in kin:
        environment = dict(os.fsdecode(word).split("=", 1) for word in _words(process, "environ") if b"=" in word)
        command = _words(process, "cmdline")
        is_copy = bool(command) and command == _words(parent, "cmdline")
        found.append(Whose(parent, *(told_rank(environment) or (-1, 0)), is_copy))
    return found


def _words(process: int, name: str) -> list[bytes]:
    """The words in a file of a process's; none where it has ended, or belongs to somebody else."""
    try:
        with Path(f"/proc/{process}/{name}").open("rb") as file:
            return file.read(_MOST_WORDS_BYTES).split(b"\0")
    except OSError:
        return []


# -- seeds on the command lines of processes, as in `train.py --seed 3141592653`
#
# A search tries them before others; the reads have to confirm them like any other.


# A seed from a command line is looked at further than popular ones: a second or two for each.
MOST_SEEDS = 4
# A rank's workers have the command line of their parent, so these are more than enough.
_MOST_PROCESSES = 16
_LOW_WORD = 0xFFFFFFFF  # all that torch takes of a seed
_SEED = re.compile(r"(?<![\w.])-?\d{1,20}(?![\w.])")


def seeds_on_command_lines(pids: Sequence[int]) -> tuple[int, ...]:
    """At most four: those that are called a seed, then other numbers too large for a batch size or number of epochs. It
    reads /proc, as `whose` does."""
    named: list[int] = []
    large: list[int] = []
    for pid in pids[:_MOST_PROCESSES]:
        words = [word.decode("utf-8", "replace") for word in _words(pid, "cmdline")]
        for before, word in pairwise(["", *words]):
            found = [int(number) & _LOW_WORD for number in _SEED.findall(word)]
            if "seed" in f"{before} {word}".lower():
                named += found
            else:
                large += [number for number in found if number >= 1 << 16]
    return tuple(dict.fromkeys((*named, *large)))[:MOST_SEEDS]


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


def ranks_seen(environment: Mapping[str, str]) -> Ranks | None:
    """The words of the first launcher whose variables are there; None where none's are, or they don't go together."""
    for of in _LAUNCHERS:
        world, rank, local, here, node = (_number(environment, name) for name in of[1:])
        first = None
        if of.name == "Slurm":
            first, here = _slurm_node(environment, world or 0, node)
        elif here is not None and rank is not None and local is not None:
            first = rank - local
        elif here is not None and node is not None:
            first = node * here
        if world is not None and first is not None and here is not None:
            return Ranks(of.name, world, first, here) if here >= 1 and 0 <= first <= world - here else None
    return None


def _slurm_node(environment: Mapping[str, str], world: int, node: int | None) -> tuple[int | None, int | None]:
    """The first rank of a node and how many it has. Slurm says the tasks of each, `4(x2),3`; or one number for all."""
    if world == 1:
        return 0, 1
    if node is None:
        return None, None
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    tasks: list[int] = []
    for word in text.split(","):
        found = re.fullmatch(r"(\d{1,7})(?:\(x(\d{1,7})\))?", word, re.ASCII)
        if found is None or len(tasks) + int(found[2] or 1) > world:  # more nodes than ranks: it says something else
            tasks = []
            break
        tasks += [int(found[1])] * int(found[2] or 1)
    if not world or sum(tasks) != world:
        each = _number(environment, "SLURM_NTASKS_PER_NODE")
        return (None, None) if each is None else (node * each, each)
    return (sum(tasks[:node]), tasks[node]) if node < len(tasks) else (None, None)


def env_fields(environment: Mapping[str, str]) -> dict[str, Any]:
    """World size and this node's ranks, for `mlfs register --from-env`. Raises JobError for what is missing."""
    ranks = ranks_seen(environment)
    if ranks is not None:
        return {"world_size": ranks.world_size, "ranks": list(range(ranks.first, ranks.first + ranks.here))}
    # The launcher that has set most of what it has to set, and what is missing of that.
    needed = max(
        ([of.world, of.here, of.node] if of.node else [of.world, of.rank, of.local, of.here] for of in _LAUNCHERS),
        key=lambda names: sum(bool(environment.get(name)) for name in names),
    )
    missing = [name for name in needed if not environment.get(name)]
    if len(missing) == len(needed):
        message = "--from-env: neither torchrun's nor Slurm's variables are set, nor those of a process under mpirun"
        raise JobError(message, "give --world-size and --ranks")
    if missing:
        message = f"--from-env: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"
        raise JobError(message, f"needed: {', '.join(needed)}; or give --world-size and --ranks")
    for name in needed:
        if _number(environment, name) is None:
            text = shortened(environment[name])
            said = f"--from-env: {name}={text!r} is not a whole number that a launcher counts to"
            raise JobError(said, "or give --world-size and --ranks")
    values = ", ".join(f"{name}={environment[name]}" for name in needed)
    hint = "nodes with different numbers of ranks need --world-size and --ranks"
    raise JobError(f"--from-env: {values} do not go together", hint)
