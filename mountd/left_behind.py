"""Descriptors and a journal, which a server leaves to the one that comes after it, should it die.

In: what happens in a mount that another server has to know. Out: the same, read by that other server; a new holder when
the holder dies. `mountd.holder` is the other end. Made and used by mountd.daemon.

Kept are the descriptor of /dev/fuse, the source's directory (a mount may cover its path), the list of files as this
mount numbers it, the memory of the RAM tier, the locks of disks' directories, and files in memory: the journal, a line
for each fact, in their order; the places, which the jobs have come to, written over again and again; the last reads
(mlfs.engine.read_trail); those that the auditor keeps; and before Linux 6.9 requests that are under way. A line that is
torn, as its writer was killed, is left out.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import trio

from mlfs.engine import read_trail
from mlfs.engine.auditor import ReadsAtHand
from mlfs.engine.digest import Uncounted
from mlfs.engine.read_trail import ReadTrail
from mlfs.engine.runner import Runner
from mlfs.follow.job import JobRun
from mlfs.processes import LOADED, name_of
from mountd import wire
from mountd.holder import DEATHS_WITH_MEMORY, LONGEST_WORDS_BYTES, STEADY_S, TABLES, StandsBy, Start
from mountd.inodes import FIRST_VIRTUAL, entry_of
from mountd.mounts import MountEntry

log = logging.getLogger("mlfs.daemon")

# FUSE_NOTIFY_RESEND: without it, the server itself has to keep what it has begun.
FIRST_KERNEL = (6, 9)
# A holder that cannot be started now, as memory is short, may be later.
AGAIN_S = 5.0
SLOT_BYTES = 1 << 20
BEAT_S = 1.0
# On a busy machine; who asked for it waits a little longer (mlfs.cli.upgrade).
LOADED_S = 60
# How far behind the jobs' places may be: some dozens of reads of a fast loader, which no server will see again.
MOVES_S = 0.02


def gives_again(release: str) -> bool:
    """Whether a kernel gives requests again that a dead server had read. Args: release: as uname(2) says."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= FIRST_KERNEL


# -- the journal, and the places


class Journal:
    """Facts in their order. It is written from any thread.

    Args:
        fd: of the journal that another server has left; None: a new one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("mlfs-journal", os.MFD_CLOEXEC) if fd is None else fd
        self._lock = threading.Lock()
        self._end = 0
        for line in self._lines():
            self._end += len(line) + 1
        os.ftruncate(self.fd, self._end)

    def note(self, kind: str, value: object) -> None:
        """Add a fact. A machine without memory for it has the mount go on: it is lacking only if the server dies."""
        line = _checked(json.dumps([kind, value]).encode()) + b"\n"
        with self._lock, suppress(OSError):
            if os.pwrite(self.fd, line, self._end) == len(line):
                self._end += len(line)  # else the next fact takes its place: behind a torn one none would be found

    def facts(self) -> Iterator[tuple[str, Any]]:
        for line in self._lines():
            kind, value = json.loads(line[_SUM_BYTES:])
            yield kind, value

    def _lines(self) -> Iterator[bytes]:
        for line in os.pread(self.fd, os.fstat(self.fd).st_size, 0).split(b"\n"):
            if not _is_whole(line):
                return
            yield line


class JobPlaces:
    """The last value of what changes all the time: written in turn to two slots, so that one of them is whole. It hears
    of reads and jobs, as a `mlfs.engine.mount_jobs.Listener`, and so knows when there is another one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._moves = trio.Event()
        self.fd = os.memfd_create("mlfs-places", os.MFD_CLOEXEC) if fd is None else fd
        self._number = self._last()[0]

    def opened(self, opens: object) -> None:
        self._moves.set()

    def installed(self, job: object) -> None:
        self._moves.set()

    def counted(self) -> None:
        """Something else was."""
        self._moves.set()

    async def moved(self) -> None:
        """Wait until jobs have read or begun since the last call."""
        await self._moves.wait()
        self._moves = trio.Event()
        await trio.sleep(MOVES_S)

    def write(self, value: object, past: str = "null") -> None:
        """Keep this value, and one that was made JSON before. The latter is left out if both are too long; a value
        that is too long by itself leaves the last one in its place."""
        for there in (past, "null"):
            line = _checked(f"[{self._number + 1}, {json.dumps(value)}, {there}]".encode())
            if len(line) < SLOT_BYTES:
                with suppress(OSError):
                    os.pwrite(self.fd, line + b"\n", (self._number + 1) % 2 * SLOT_BYTES)
                    self._number += 1
                return

    def read(self) -> tuple[Any, Any]:
        """The value that was kept last, None before the first; and the past, None where there is none."""
        return self._last()[1:]

    def _last(self) -> tuple[int, Any, Any]:
        found: list[tuple[int, Any, Any]] = [(0, None, None)]
        for slot in (0, 1):
            line = os.pread(self.fd, SLOT_BYTES, slot * SLOT_BYTES).partition(b"\n")[0]
            if _is_whole(line):
                found.append(tuple(json.loads(line[_SUM_BYTES:])))
        return max(found, key=lambda one: one[0])


_SUM_BYTES = 9


def _checked(text: bytes) -> bytes:
    return b"%08x " % zlib.crc32(text) + text


def _is_whole(line: bytes) -> bool:
    return len(line) > _SUM_BYTES and line[:_SUM_BYTES] == _checked(line[_SUM_BYTES:])[:_SUM_BYTES]


# -- requests that are under way, where the kernel does not give them again
#
# In: the descriptor of /dev/fuse. Out: the requests of it, and in another server those that this one has not answered.

# The head of a request and a name of the 1,024 bytes that older kernels let through. Only commands are longer.
NOTED_BYTES = 1280
NOTES_AT_ONCE = 256


class UnderWay:
    """Has requests lie in memory that outlives the process, from before they count as read until they are answered.

    The kernel writes a request there itself. One that is answered and not taken out yet, as the server died, is
    answered again, which the kernel ignores.

    Args:
        fd: of a file in memory, which may be another server's. start: where they lie in it, to its end.
    """

    def __init__(self, fd: int, start: int) -> None:
        self._fd, self._end = fd, start
        self._free: list[memoryview] = []
        self._taken: dict[int, memoryview] = {}
        while self._end < os.fstat(fd).st_size:
            self._map_more()

    def _map_more(self) -> None:
        size_bytes = NOTES_AT_ONCE * NOTED_BYTES
        os.posix_fallocate(self._fd, self._end, size_bytes)
        memory = memoryview(mmap.mmap(self._fd, size_bytes, offset=self._end))
        self._end += size_bytes
        for start in range(0, size_bytes, NOTED_BYTES):
            note = memory[start : start + NOTED_BYTES]
            unique: int = wire.U64.unpack_from(note, wire.UNIQUE)[0]
            if unique:
                self._taken[unique] = note
            else:
                self._free.append(note)

    def left(self) -> dict[int, bytes]:
        """The requests that are not answered, by number, the first one first, and cut at NOTED_BYTES."""
        notes = {unique: self._taken[unique] for unique in sorted(self._taken)}
        return {
            unique: bytes(note[: max(wire.U32.unpack_from(note)[0], wire.REQUEST.size)])
            for unique, note in notes.items()
        }

    def readv(self, fd: int, buffers: Sequence[bytearray | memoryview]) -> int:
        """Read a request, as os.readv(2) does. The first buffer has NOTED_BYTES. Raises: OSError."""
        if not self._free:
            self._map_more()
        note = self._free.pop()  # workers put others back meanwhile
        try:
            size_bytes = os.readv(fd, [note, *buffers[1:]])
        except OSError:
            self._free.append(note)
            raise
        buffers[0][:] = note
        _, kind, unique = wire.NUMBERED.unpack_from(note)
        self._taken[unique] = note
        if kind in wire.UNANSWERED:
            self.answered(unique)
        return size_bytes

    def answered(self, unique: int) -> None:
        """From any thread: a request needs no answer any more."""
        note = self._taken.pop(unique, None)
        if note is not None:
            wire.U64.pack_into(note, wire.UNIQUE, 0)
            self._free.append(note)


# -- requests at which servers die
#
# In: the requests that the kernel gives again, as servers before this one have read them and died. Out: which of them
# are answered alone, and which not at all, which the status says. A server that crashed has died of one of them, which
# shows when each is answered while no other is. One that was killed need not have: somebody kills servers while the
# source is slow. So that counts only once it came more often than the RAM tier is kept, of which the memory may lack.

CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSYS", "SIGTRAP"})
# Who gets an error may ask again and again, and the file may be mended meanwhile: he is refused at once for a second,
# then each time for twice as long as before, and for no longer than this.
FIRST_REFUSED_S, REFUSED_S = 1.0, 2 * STEADY_S
# So many crashes within that time are not all those of requests that are found: what is fetched ahead may be at fault.
MOST_CRASHES = 5


class Asked(NamedTuple):
    """The question of a request, whoever sends it and whenever. offset: of a READ, 0 for others."""

    kind: int
    inode: int
    offset: int


@dataclass(frozen=True, slots=True)
class CrashStatistics:
    """Requests that were answered with EIO, as servers had crashed at them.

    Attributes:
        request, path, ago_s: of the last one: its kind, the file or directory that it was about, how long ago.
    """

    count: int = field(default=0, metadata={"key": None})
    request: str = ""
    path: str = ""
    ago_s: float = field(default=0.0, metadata={"digits": 3})


class Suspects:
    """Remembers requests, by their numbers, over the servers that die.

    Args:
        why: how the server before this one ended. tell: tells the holder that this one begins to answer, and that the
            deaths so far are explained.

    Attributes:
        refused: what was answered with EIO: how often, and when for the last time; the last one last.
        are_judged: set once those are answered that may be at fault.
    """

    def __init__(self, journal: Journal, why: str, tell: Callable[[str], None] = lambda _: None) -> None:
        self._journal = journal
        self._tell = tell
        self.refused: dict[Asked, tuple[int, float]] = {}
        self._crashed = why.rpartition(" ")[2] in CRASHES or why.startswith("ended")  # a failure of its own
        self.are_judged = trio.Event()
        crashes: list[float] = []
        self._before: set[int] = set()  # given again to the server before this one
        deaths: dict[int, int] = {}  # by the request that was answered alone meanwhile
        alone = 0
        for kind, value in journal.facts():
            if kind == "alone":
                alone = value
            elif kind == "again":
                self._before = set(value)
            elif kind == "deaths":
                deaths[value[0]] = value[1]
            elif kind == "crash":
                crashes.append(value)
            elif kind == "refused":
                self._refused(Asked(*value[0]), value[1])
                crashes.clear()  # they are explained
        if self._crashed:
            crashes.append(time.monotonic())
            journal.note("crash", crashes[-1])
        self._crashes = sum(at_s > time.monotonic() - REFUSED_S for at_s in crashes)
        if alone:
            deaths[alone] = deaths.get(alone, 0) + (1 if not self._crashed else DEATHS_WITH_MEMORY + 1)
            journal.note("deaths", [alone, deaths[alone]])
            journal.note("alone", 0)
        self._guilty = {request for request, count in deaths.items() if count > DEATHS_WITH_MEMORY}

    def given_again(self, requests: Collection[int]) -> tuple[list[int], list[int]]:
        """Requests that the kernel gives again: those to be answered alone, and those of which a server has died."""
        self._tell("answers")
        self._journal.note("again", [*requests])
        guilty = [one for one in requests if one in self._guilty]
        alone = [one for one in requests if (self._crashed or one in self._before) and one not in self._guilty]
        return alone, guilty

    async def may_fetch_ahead(self) -> None:
        """Wait until all are judged: a server that crashes at what it fetches ahead is no sign of who waits. One that
        comes after many crashes serves for a while before that."""
        await self.are_judged.wait()
        if self._crashes >= MOST_CRASHES:
            log.error("servers crash again and again: nothing is fetched ahead for %d s", REFUSED_S)
            await trio.sleep(REFUSED_S)

    def begins(self, request: int) -> None:
        """It is answered now, and no other one is."""
        self._journal.note("alone", request)

    def is_answered(self) -> None:
        """The server lives on."""
        self._journal.note("alone", 0)

    def refuse(self, asked: Asked) -> None:
        """It is answered with EIO."""
        now_s = time.monotonic()
        self._refused(asked, now_s)
        self._journal.note("refused", [asked, now_s])
        self._crashes = 0
        self._tell("explained")

    def _refused(self, asked: Asked, at_s: float) -> None:
        self.refused[asked] = self.refused.pop(asked, (0, 0.0))[0] + 1, at_s

    def refuses(self, asked: Asked) -> bool:
        """Whether that was refused just now."""
        if asked not in self.refused:
            return False
        times, at_s = self.refused[asked]
        return time.monotonic() < at_s + min(REFUSED_S, FIRST_REFUSED_S * (1 << (times - 1)))

    def statistics(self, path: Callable[[int], bytes]) -> CrashStatistics:
        """Args: path: the path of an entry, relative to the source."""
        if not self.refused:
            return CrashStatistics()
        (kind, inode, _), (_, at_s) = list(self.refused.items())[-1]
        where = os.fsdecode(path(entry_of(inode))) if inode < FIRST_VIRTUAL else ".mlfs"
        name = wire.NAMES.get(kind, f"request {kind}")
        count = sum(times for times, _ in self.refused.values())
        return CrashStatistics(count, name, where, time.monotonic() - at_s)


# -- what was left


class Facts(NamedTuple):
    """The facts that never change while a mount lives.

    Attributes:
        generation: of its inodes (mountd.wire.entry). mounted: the mount. started: in seconds since 1970.
        how, links: see `mountd.view.TreeView`.
    """

    generation: int
    mounted: MountEntry
    started: float
    how: str
    links: str

    def noted(self) -> dict[str, Any]:
        entry = {name: [*one] if isinstance(one, frozenset) else one for name, one in self.mounted._asdict().items()}
        return self._asdict() | {"mounted": entry, "tables": TABLES}


def _entry_of(options: list[str], propagation: list[str], **others: Any) -> MountEntry:
    return MountEntry(options=frozenset(options), propagation=frozenset(propagation), **others)


class LeftBehind:
    """The things that the server before this one left.

    Attributes:
        suspects: judges requests of which servers may have died.
        fuse, source, index: descriptors. ram: those of the RAM tier (mlfs.places.ram); none where it begins empty.
        locks: of disks' directories (mlfs.places.cache_directory).
        opens: that by which the kernel tells of opens (mountd.silent), -1 for none. channel: its name and why it is
            that; None where that was not decided, or nothing but the default. servers: the processes that have served
            it so far, where they could be told of what they open.
        facts: see `Facts`. commands: the directory of the mount for commands, None where there is none.
        changes: of files, and as texts growths of the tree (mlfs.tree.growing.packed), in their order.
        agent: see `mlfs.engine.context.Cluster`.
        jobs: by name, as they were registered. places: the jobs', found ones among them, as `mountd.control` has
            written them. counters: `mlfs.stats.Counters.noted`; None where nothing was read. past: what was counted in
            epochs that have ended. audited: of the auditor's reads, how many came and how many of them are not kept.
            readers: each process that they are of, with its place in a run. noted: of the reads that were noted, how
            many jobs had counted, and how many were counted by place. beside: `mountd.statistics.MountParts.counted`.
    """

    def __init__(
        self, kept: Mapping[str, int], journal: Journal, places: JobPlaces, why: str, tell: Callable[[str], None]
    ) -> None:
        self.suspects = Suspects(journal, why, tell)
        self.fuse, self.source, self.index = kept["fuse"], kept["source"], kept["index"]
        self.ram = [fd for name, fd in kept.items() if name.startswith("ram")]
        self.locks = [fd for name, fd in kept.items() if name.startswith("lock")]
        self.opens = kept.get("opens", -1)
        self.commands: str | None = None
        self.channel: tuple[str, str] | None = None
        self.servers: list[int] = []
        self.changes: list[Any] = []
        self.jobs: dict[str, str] = {}
        now, past = places.read()
        last = now or {"jobs": {}, "counters": None, "audited": [0, 0], "noted": [0, 0]}
        self.past: dict[str, Any] = past or {"jobs": {}, "epochs": []}
        self.places: dict[str, Any] = last["jobs"]
        self.counters: dict[str, Any] | None = last["counters"]
        self.audited: list[int] = last["audited"]
        self.noted: list[int] = last.get("noted", [0, 0])  # there was none in other forms of what is left
        self.beside: dict[str, Any] = last.get("beside", {})
        self.agent: list[tuple[int, int]] = []
        self.readers: list[list[int]] = []
        for kind, value in journal.facts():
            if kind == "mount":
                if value.pop("tables") != TABLES:
                    raise ValueError("mlfs was changed on the disk: this version cannot read what the server has left")
                self.facts = Facts(**value | {"mounted": _entry_of(**value["mounted"])})
            elif kind == "commands":
                self.commands = value
            elif kind == "channel":
                self.channel = tuple(value)
            elif kind == "server":
                self.servers.append(value)
            elif kind in ("change", "growth"):
                self.changes.append(value)
            elif kind == "jobs":
                self.jobs = value
            elif kind == "agent":
                self.agent = [(pid, begun) for pid, begun in value]
            elif kind == "reader":
                self.readers.append(value)

    def of_job(self, job: JobRun) -> list[Mapping[str, Any]]:
        """The notes of a job that begins here, if it is the same but for where it begins: once."""
        place, begins = self.places.get(job.name), {"start_epoch": None, "start_step": None}
        if place is None or json.loads(place["spec"]) | begins != json.loads(job.spec.to_json()) | begins:
            return []
        past = self.past["jobs"].pop(job.name, None)
        return [*([past] if past else []), self.places.pop(job.name)["noted"]]


# -- the server's end of what holds it


def is_there(stands_by: StandsBy) -> bool:
    """Whether it has its end of the channel open, which nobody else has."""
    end = select.poll()
    end.register(stands_by.channel, 0)
    return not end.poll(0)


class Holding:
    """The server's connection to its holder, and what it leaves there.

    Attributes:
        journal, places: of this mount. makes_way: whether another server is being loaded, for which this one will end.
        left: by the server before this one; None for the first one.
        restarts: how often a server of this mount was started again. why: how the one before this ended; "" for the
            first.
    """

    def __init__(self, start: Start) -> None:
        self._config = start.config
        self._channel = start.channel
        self._kept = dict(start.kept)
        self.restarts, self.why, self._holder_restarts = start.restarts, start.why, start.holder_restarts
        self._holder = start.holder
        self._started: subprocess.Popen[bytes] | None = None
        self._serves = False
        self._renewed = trio.Event()
        self.makes_way = False
        self._stand_by = [*start.forked]  # and those that the holder tells of
        for fd in self._kept.values():
            os.set_inheritable(fd, False)
        self.journal, self.places = Journal(self._kept.get("journal")), JobPlaces(self._kept.get("places"))
        self._reads = self._kept.get("reads", -1)
        if self._reads < 0:
            self._reads = os.memfd_create("mlfs-reads", os.MFD_CLOEXEC)
        self.left = LeftBehind(self._kept, self.journal, self.places, self.why, self._tell) if self._kept else None

    @property
    def holder(self) -> int:
        """The holder's process."""
        return self._holder

    def lives(self) -> tuple[tuple[str, int, int, str], ...]:
        """The processes, the server last: name, number, how often it was started again, how the one before it ended."""
        stands_by = ((f"standby-{number}", pid, 0, "") for number, pid in enumerate(self._loaded()))
        return (
            ("holder", self._holder, self._holder_restarts, "died" if self._holder_restarts else ""),
            *stands_by,
            ("server", os.getpid(), self.restarts, self.why),
        )

    def _loaded(self) -> list[int]:
        """The processes that stand by and have loaded all."""
        return [one.pid for one in self._stand_by if is_there(one) and name_of(one.pid) == LOADED]

    def uncounted(self) -> Uncounted:
        """The reads that the server before this one has noted and not counted, and where those to come are noted."""
        # Behind the slots of the places. It has its memory now: a machine that lacks it kills who writes there later.
        os.posix_fallocate(self.places.fd, 2 * SLOT_BYTES, read_trail.SIZE_BYTES)
        trail = ReadTrail(memoryview(mmap.mmap(self.places.fd, read_trail.SIZE_BYTES, offset=2 * SLOT_BYTES)))
        if self.left is None:
            return Uncounted(trail)
        by_jobs, by_place = self.left.noted
        return Uncounted(trail, by_jobs, by_place, takes_over=True)

    def under_way(self) -> UnderWay | None:
        """The requests that are not answered; None where the kernel keeps them itself."""
        behind = 2 * SLOT_BYTES + read_trail.SIZE_BYTES
        return None if gives_again(platform.release()) else UnderWay(self.places.fd, behind)

    def audited(self) -> ReadsAtHand:
        """The reads that servers before this one have left to the auditor, and where those to come are kept."""
        count, forgotten = self.left.audited if self.left is not None else (0, 0)
        readers = self.left.readers if self.left is not None else []
        return ReadsAtHand(self._reads, count, forgotten, readers, partial(self.journal.note, "reader"))

    def keep(self, descriptors: Mapping[str, int]) -> None:
        """Leave these to whoever comes after, with the journal, the places and the reads."""
        own = {"journal": self.journal.fd, "places": self.places.fd, "reads": self._reads}
        self._kept = {**descriptors, **own}
        self._hand_over()

    def _hand_over(self) -> None:
        if self._kept:
            self._tell("keep " + " ".join(self._kept), [*self._kept.values()])

    @property
    def is_followed(self) -> bool:
        """Whether another server takes the mount over when this one dies."""
        return (self._serves or self.left is not None) and bool(self._kept)

    async def beat(self) -> None:
        """Tell the holder all the time that the loop goes round."""
        while True:
            with suppress(OSError):  # it has died, or is stopped and does not hear
                socket.send_fds(self._channel, [b"alive"], [], socket.MSG_DONTWAIT)
            await trio.sleep(BEAT_S)

    def renew(self, config: str) -> None:
        """Have the servers to come load what lies on the disk now, with this config; this one makes way for them."""
        self._config, self.makes_way = config, True
        fd = os.memfd_create("mlfs-config", os.MFD_CLOEXEC)
        os.write(fd, config.encode("ascii"))
        os.lseek(fd, 0, os.SEEK_SET)
        self._stand_by = []  # what has the old code ends with the holder
        self._tell("renew", [fd])
        os.close(fd)
        self._renewed.set()

    async def make_way(self) -> None:
        """End this process once another one stands by for a renewed mount, and has loaded all that it needs."""
        while True:
            await self._renewed.wait()
            self._renewed = trio.Event()
            with trio.move_on_after(LOADED_S):
                while not self._loaded():
                    await trio.sleep(0.1)
                log.info("another server takes this mount over, as it was told to")
                self._tell("way")
                os.kill(os.getpid(), signal.SIGKILL)
            self.makes_way = False
            log.error("the server that was to take this mount over has not loaded in %d s: this one goes on", LOADED_S)

    def let_go(self) -> None:
        """Nobody is to come after this server: it ends the mount, or what it would leave is not the whole of it."""
        self._kept = {}
        self._tell("keep")

    def stand_alone(self) -> None:
        """Have the holder end what stands by, in the place of which this process may have threads; wait for that."""
        self._tell("alone")
        while select.select([self._channel], [], [], AGAIN_S)[0]:
            if self._channel.recv(LONGEST_WORDS_BYTES) in (b"alone", b""):
                return

    def serves(self) -> None:
        """Say that the mount answers."""
        self._serves = True
        self._tell("serving")

    def over(self, code: int) -> None:
        """Say that this process ends by itself, with that exit code. One that could not take the mount over says
        nothing: another one may."""
        if self._serves or not self._kept:
            self._tell(f"over {code}")

    def _tell(self, words: str, fds: list[int] | None = None) -> None:
        with suppress(OSError):  # it has died: the next one is told anew
            socket.send_fds(self._channel, [words.rstrip(" ").encode("ascii")], fds or [])

    async def watch(self, runner: Runner, another: Callable[[], None]) -> None:
        """Start another holder whenever it dies, for as long as the mount lives. `another` is told of each."""
        while True:
            await trio.lowlevel.wait_readable(self._channel)
            with suppress(OSError):  # of a connection whose other end is gone
                said, fds, _, _ = socket.recv_fds(self._channel, LONGEST_WORDS_BYTES, 1)
                if fds:
                    self._stand_by = [one for one in self._stand_by if is_there(one)]
                    self._stand_by.append(StandsBy(int(said.split()[1]), socket.socket(fileno=fds[0])))
                if said:
                    continue  # also the answer to `stand_alone`, for which nobody has waited so long
            log.warning("the holder (process %d) died: starting another one", self._holder)
            try:
                await runner.run("look", self._start_another)
                another()
            except OSError as error:
                log.warning("no holder can be started now: %s", error)
                await trio.sleep(AGAIN_S)

    def _start_another(self) -> None:
        """In a worker. Raises: OSError."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = os.memfd_create("mlfs-config")
        try:
            os.pwrite(config, self._config.encode("ascii"), 0)
            flags = {
                "--config-fd": config, "--channel-fd": theirs.fileno(), "--server": os.getpid(),
                "--restarts": self.restarts, "--holder-restarts": self._holder_restarts + 1,
            }  # fmt: skip
            words = [str(word) for flag in flags.items() for word in flag]
            started = subprocess.Popen(
                [sys.executable, "-m", "mountd", *words], stdin=subprocess.DEVNULL, cwd="/", start_new_session=True,
                pass_fds=(config, theirs.fileno()),
            )  # fmt: skip
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
            os.close(config)
        before, self._channel = self._channel, mine
        before.close()
        if self._started is not None:
            self._started.wait()
        self._started = started
        self._holder, self._holder_restarts = started.pid, self._holder_restarts + 1
        for one in self._stand_by:
            if is_there(one):
                self._tell(f"standby {one.pid}", [one.channel.fileno()])
        self._hand_over()
        if self._serves:
            self._tell("serving")
