"""Looks up which rank of how many a process reads for, as the program that launched the script has told it.

In: processes and their parents. Out: a `Whose` of each. Called by `mlfs.explain.inference` in a worker thread, as it
reads /proc. What is found is a hint: the reads have to confirm it.

torchrun, mpirun and srun tell a process its rank in its environment, and a loader's workers have the environment of
their rank. Nothing but these variables is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mlfs.launchers import told_rank

_MOST_BYTES = 1 << 20


class Whose(NamedTuple):
    """Whose process one is.

    Attributes:
        parent: its parent process, 0 where that is not known.
        rank, world: which rank it reads for, of how many; -1 and 0 where nothing tells.
    """

    parent: int
    rank: int = -1
    world: int = 0


def whose(kin: Sequence[tuple[int, int]]) -> list[Whose]:
    """Whose processes these are, each given with its parent."""
    return [Whose(parent, *_told(process)) for process, parent in kin]


def _told(process: int) -> tuple[int, int]:
    try:
        with Path(f"/proc/{process}/environ").open("rb") as file:
            words = file.read(_MOST_BYTES).split(b"\0")
    except OSError:
        return -1, 0  # the process has ended, or belongs to somebody else
    variables = dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)
    return told_rank(variables) or (-1, 0)
