"""Keeps the last reads of a mount for the auditor (`mlfs.audit`), which judges them when somebody asks, when jobs end,
and when readers pause.

In: reads from the engine (a `mlfs.engine.mount_jobs.Listener`). Out: the audit. Which run and rank a process is of is
looked up here, once a process: in the environment that a launcher gave it, and by whose worker it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from typing import NamedTuple

import trio

from mlfs.audit.findings import audit
from mlfs.audit.reads import KeptReads, Kin, ReadLog
from mlfs.audit.report import Audit, Kind
from mlfs.engine.digest import kin_of, name_of
from mlfs.engine.runner import Runner
from mlfs.follow.by_sample import NO_PID
from mlfs.follow.evidence import Read
from mlfs.launchers import told_rank
from mlfs.processes import begun_ticks

log = logging.getLogger("mlfs.audit")

# The pool of the thread that judges, which takes seconds for millions of reads.
POOL = "audit"
# It looks so often whether readers pause, and judges if they have read half as much again since it did: all that is
# judged is three times what is read, however long a job is. A strict mount judges so while they read, too.
LOOK_EVERY_S = 5.0
MANY_MORE = 1.5
# Of no more reads while nobody asks: to judge them takes some 130 bytes and 2.5 us of a core each, for a moment. A
# server that is killed for that memory would be followed by one that has the same reads.
MOST_UNASKED = 1 << 20
# The name that torch gives to the worker processes of a DataLoader.
WORKER_NAME = "pt_data_worker"
# Python runs these in a process that multiprocessing has spawned (or multiprocess, which is the same with another
# pickle), and in the one from which it forks the others, which is a child of whoever asks for them.
SPAWNED, FORK_SERVER = b"from multiprocess", b".forkserver import "


class ReadsAtHand(NamedTuple):
    """The reads in a file in memory, which goes from process to process.

    Attributes:
        fd: the file. came, forgotten: see `mlfs.audit.reads.KeptReads`. readers: as they were noted. note: keeps a
            further one.
    """

    fd: int
    came: int
    forgotten: int
    readers: Sequence[Sequence[int]]
    note: Callable[[Sequence[int]], None]

    def kept(self) -> KeptReads:
        """The same for the log of reads."""
        known = [(process, Kin(run, rank, began)) for process, run, rank, began in self.readers]
        file = FileIO(self.fd, "r+", closefd=False)
        return KeptReads(file, self.came, self.forgotten, known, lambda process, place: self.note([process, *place]))


class Auditor:
    """The reads of a mount that can be audited.

    Args:
        runner: has the thread that judges. at_hand: where reads are kept for another process, and what one has left.

    Attributes:
        is_strict: what is found is an error of the mount's. last: the last audit.
    """

    def __init__(self, runner: Runner, is_strict: bool = False, at_hand: ReadsAtHand | None = None) -> None:
        self.is_strict = is_strict
        self.last = Audit()
        self._runner = runner
        self._log = ReadLog(place_of, kept=at_hand.kept() if at_hand is not None else None)
        self._logged: set[tuple[int, Kind]] = set()  # by run
        self._judged = 0  # reads, when it last looked

    @property
    def count(self) -> int:
        return self._log.count

    def noted(self) -> tuple[int, int]:
        """How many reads came so far, and how many of them are not kept: for the process that comes after this one."""
        return self._log.count, self._log.forgotten

    @property
    def keeps_all(self) -> bool:
        """Whether no read is too long ago to be judged."""
        return self._log.forgotten == 0

    def opened(self, opens: Sequence[Read]) -> None:
        self._log.add(opens)

    def installed(self, job: object) -> None:
        """A job was installed, which is no matter here."""

    async def judge(self) -> Audit:
        """Judge the reads so far. They go on meanwhile, so they are copied here, on the loop."""
        self._judged, reads = self.count, self._log.copy()
        audited = await self._runner.run(POOL, lambda: audit(reads.reads()))
        self.last = audited
        for fault in audited.findings if self.is_strict else ():
            if (fault.run, fault.kind) not in self._logged:
                self._logged.add((fault.run, fault.kind))
                log.error("process %d: %s: %s (to mend it: %s)", fault.run, fault.kind, fault.sentence, fault.mend)
        return audited

    async def run(self) -> None:
        """Judge again and again, for as long as the mount lives: jobs that nobody has registered have no end."""
        last = 0
        while True:
            await trio.sleep(LOOK_EVERY_S)
            count = self.count
            pause, many_more = count == last, count >= MANY_MORE * self._judged
            unasked = pause and many_more and self.keeps_all and count <= MOST_UNASKED
            due = pause or many_more if self.is_strict else unasked
            if due and count != self._judged:
                await self.judge()
            last = count


def place_of(process: int, parent: int) -> Kin | None:
    """The run and the rank of a process; None for one that the kernel does not name.

    A worker is of its parent's rank: torch names its workers, others have the command line that their parent has, or
    one of multiprocessing's. Ranks that a launcher started are of one run, and so are those that a script has spawned
    by multiprocessing, as torch's does: these have workers of their own, or are connected to each other. Any other
    process is a run by itself, and so is the only rank of a launcher: a batch script may start one after the other.
    """
    if process == NO_PID:
        return None
    began, told, command = begun_ticks(process), told_rank(_environment_of(process)), _command_of(process)
    if (now := kin_of(process)[1]) > 1:
        parent = now  # its number may have been another process's when it was asked for its parent
    if FORK_SERVER in _command_of(parent):
        parent = kin_of(parent)[1]
    is_torchs, is_spawned = name_of(process).startswith(WORKER_NAME), SPAWNED in command
    works = is_torchs or command == _command_of(parent) or (is_spawned and not _is_connected(process))
    of_rank = parent if works and parent > 1 else process
    if told is not None and told[1] > 1:
        return Kin(kin_of(of_rank)[1], told[0], began)
    spawner = kin_of(of_rank)[1] if SPAWNED in _command_of(of_rank) else 0
    return Kin(spawner if spawner > 1 else of_rank, -of_rank, began)


def _is_connected(process: int) -> bool:
    """Whether a process has a connection of TCP, as ranks have to each other and workers of a loader have not."""
    sockets = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                sockets.add(os.readlink(f"/proc/{process}/fd/{name}").removeprefix("socket:[").removesuffix("]"))
        for table in "tcp", "tcp6":
            with suppress(OSError), open(f"/proc/{process}/net/{table}") as lines:
                if any(line.split()[9] in sockets for line in lines):
                    return True
    return False


def _command_of(process: int) -> bytes:
    """The command line of a process; b"" where it is gone."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as command:
            return command.read()
    except OSError:
        return b""


def _environment_of(process: int) -> Mapping[str, str]:
    """The environment with which a process was started; empty where it may not be read.

    Slurm tells whatever a batch script starts that it is the first of all tasks. Only srun starts these, in steps.
    """
    try:
        with open(f"/proc/{process}/environ", "rb") as environment:
            pairs = (pair.decode(errors="replace").partition("=") for pair in environment.read().split(b"\0"))
            found = {name: value for name, _, value in pairs}
    except OSError:
        return {}
    is_batch = "SLURM_JOB_ID" in found and "SLURM_STEP_ID" not in found
    return {name: value for name, value in found.items() if not (is_batch and name.startswith("SLURM_"))}
