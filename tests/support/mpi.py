"""Real MPI ranks on this machine: the launcher that lies beside the tests' Python (the wheel mpich)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def mpiexec(ranks: int) -> list[str]:
    """The words that start so many ranks of what follows; a rank that dies does not take the others along."""
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert launcher is not None, "the tests need an MPI: pip install mpich"
    return [launcher, "-disable-auto-cleanup", "-n", str(ranks)]
