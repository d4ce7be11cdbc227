"""Which run and rank the auditor takes a process for, by the environment that a launcher gave it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mlfs.audit.reads import Kin
from mlfs.engine.auditor import place_of


@contextmanager
def started(rank: int, world: int) -> Iterator[int]:
    """A process that a launcher has started: its pid."""
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_ranks_of_one_launcher_are_of_one_run() -> None:
    with started(0, 2) as one, started(1, 2) as other:
        run = os.getpid()
        assert [place_of(process, run) for process in (one, other)] == [Kin(run, 0), Kin(run, 1)]


def test_scripts_that_a_batch_script_starts_one_after_the_other_are_runs_by_themselves() -> None:
    with started(0, 1) as one, started(0, 1) as other:
        assert [place_of(process, os.getpid()) for process in (one, other)] == [Kin(one, one), Kin(other, other)]
