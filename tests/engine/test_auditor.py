"""Which run and rank the auditor takes a process for: by the environment of a launcher, and by who has started whom.
And when it looks by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mlfs.audit.report import Audit
from mlfs.engine import auditor as auditing
from mlfs.engine.auditor import LOOK_EVERY_S, Auditor, place_of
from mlfs.follow.evidence import Read

# Ranks that a script spawns, one of which has a worker; and a process that is spawned and has no connection.
SPAWNS = """
import json, multiprocessing, os, socket, sys

def rank(with_worker, said, main):
    listens = socket.create_server(("127.0.0.1", 0))
    worker = os.fork() if with_worker else -1
    if worker:
        said.put(["first" if with_worker else "second", os.getpid(), worker])
    main.poll(None)  # until it is gone

def helper(said, main):
    said.put(["helper", os.getpid(), -1])
    main.poll(None)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    said, (_, main) = spawn.SimpleQueue(), spawn.Pipe()
    for what, given in (rank, (True, said, main)), (rank, (False, said, main)), (helper, (said, main)):
        spawn.Process(target=what, args=given).start()
    print(json.dumps([said.get() for _ in range(3)]), flush=True)
    sys.stdin.read()
"""


@contextmanager
def started(environment: Mapping[str, str]) -> Iterator[int]:
    """A process with that in its environment: its pid."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # its environment can be read now: an exec puts it there late
            yield process.pid
        finally:
            process.kill()


def rank_of(rank: int, world: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world)}


def placed(process: int, parent: int) -> tuple[int, int]:
    """Its run and its rank."""
    place = place_of(process, parent)
    assert place is not None
    return place.run, place.rank


def test_ranks_of_one_launcher_are_of_one_run() -> None:
    with started(rank_of(0, 2)) as one, started(rank_of(1, 2)) as other:
        run = os.getpid()
        assert [placed(process, run) for process in (one, other)] == [(run, 0), (run, 1)]


def test_scripts_that_a_batch_script_starts_one_after_the_other_are_runs_by_themselves() -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    for told in rank_of(0, 1), slurm:
        with started(told) as one, started(told) as other:
            assert [placed(process, os.getpid()) for process in (one, other)] == [(one, -one), (other, -other)]
    with started(slurm | {"SLURM_STEP_ID": "0"}) as task:
        assert placed(task, os.getpid()) == (os.getpid(), 0)


def test_ranks_that_a_script_spawns_are_of_one_run(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            said = {name: (pid, worker) for name, pid, worker in json.loads(process.stdout.readline())}
            (first, worker), (second, _), (helper, _) = said["first"], said["second"], said["helper"]
            run = process.pid
            assert placed(first, run) == placed(worker, first) == (run, -first)
            assert placed(second, run) == (run, -second)
            assert placed(helper, run) == (run, -run)
        finally:
            process.kill()


def test_what_nobody_has_registered_is_judged_when_readers_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Audit] = []

    class Runner:
        async def run(self, pool: str, work: Any) -> Audit:
            looks.append(work())
            return looks[-1]

    async def body() -> None:
        auditor = Auditor(Runner())  # type: ignore[arg-type]
        reads = [Read(sample, os.getpid(), 1, 0.0) for sample in range(100)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(auditor.run)
            for _ in range(6):
                auditor.opened(reads[:50])
                await trio.sleep(LOOK_EVERY_S / 2)
            assert not looks, "they read"
            await trio.sleep(10 * LOOK_EVERY_S)
            assert [job.samples for job in auditor.last.jobs] == [50]
            auditor.opened(reads)
            await trio.sleep(10 * LOOK_EVERY_S)
            assert len(looks) == 1, "not half as much again"
            auditor.opened(reads)
            await trio.sleep(10 * LOOK_EVERY_S)
            assert len(looks) == 2
            monkeypatch.setattr(auditing, "MOST_UNASKED", 1_000)
            auditor.opened(reads * 8)
            await trio.sleep(10 * LOOK_EVERY_S)
            assert len(looks) == 2, "too many for what nobody asks for"
            nursery.cancel_scope.cancel()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))
