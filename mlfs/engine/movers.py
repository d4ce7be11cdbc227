"""Movers: processes beside the server that fetch files ahead of the readers, so that a node uses its cores.

In: a lane's batch, from its thread. Out: pages pushed, copies in the RAM class or the SSD class, and what is left to
the lane itself. A mover is a lane's arm: the lane decides, the mover reads, compares, pushes and writes. A lane that
finds no mover free does all by itself.

Movers whose number nobody has said are started once they are worth it: small mounts have none. A mover that dies costs
its batch, which the lane fetches again; another one is started. The process itself is `mountd.mover`, what is said
`mlfs.engine.moves`.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple

import trio

from mlfs.engine import moves
from mlfs.engine.context import Context
from mlfs.engine.moves import Move, Words
from mlfs.places.place import SharedPlace
from mlfs.places.posix import PosixSource
from mlfs.plan.scheduler.events import Helped

log = logging.getLogger("mlfs.engine")

# The thread that starts movers. It lives as long as the server, as movers die with the thread that started them.
POOL = "movers"
# A mover that dies is followed by another one, after a pause that becomes longer with each in a row.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
STEADY_S = 10.0
# How often it is looked which file a mover is at that takes long.
LOOK_MS = 500
_ONE = (1).to_bytes(8, sys.byteorder)  # as eventfds want it


# Further ones would wait for the server: it computes for a file two fifths of what a mover does, on two cores.
MOST_BY_CORES = 4
# Movers are worth their start once lanes have computed so much, beyond this share of a core: that is some 3,000 files,
# and more than 200 a second. A start takes as much as 500 files, and a mover saves a sixth of what a file takes.
WORTH_S, WORTH_SHARE = 0.3, 0.02


def by_cores(processors: int) -> int:
    """How many movers a mount has where nobody has said it: the server and the readers have the other half."""
    return min(MOST_BY_CORES, processors // 2)


class WorthStarting:
    """Whether lanes compute so much that movers are worth their start. Pure: a bucket that leaks."""

    def __init__(self) -> None:
        self._computed_s = self._at_s = 0.0

    def is_reached(self, computed_s: float, now_s: float) -> bool:
        """Lanes have computed for another `computed_s`."""
        self._computed_s = max(0.0, self._computed_s - WORTH_SHARE * (now_s - self._at_s)) + computed_s
        self._at_s = now_s
        return self._computed_s >= WORTH_S


class MoverKind(NamedTuple):
    """The processes to be started.

    Attributes:
        wanted: how many. at_once: or once they are worth it. start: starts one, which has this end of its channel.
        shared: the places that they write to and read from, whose descriptors `mlfs.engine.moves.Move` counts.
        restarts: how often each was started again by the servers before this one. told: on the loop, of each start.
    """

    wanted: int
    at_once: bool
    start: Callable[[socket.socket], subprocess.Popen[bytes]]
    shared: Sequence[SharedPlace]
    restarts: Sequence[int] = ()
    told: Callable[[], None] = lambda: None


class MoverTimes(NamedTuple):
    """The seconds of a batch that a mover computed or waited for a processor, and that it wrote to memory."""

    busy_s: float = 0.0
    keeping_s: float = 0.0


class MoverChannel:
    """One process, and the server's end of its channel. A lane's thread has it for a batch.

    Args:
        pages: the descriptor by which pages are pushed.
    """

    def __init__(self, kind: MoverKind, source: PosixSource, pages: int) -> None:
        self._source = source
        self._words = Words()
        # Closed with this object, and no sooner: the loop may be about to write to it when the mover has died.
        self._wake = open(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+b", buffering=0)  # noqa: SIM115
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = kind.start(theirs)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self._ready = select.poll()
        self._ready.register(self._channel, select.POLLIN)
        self._ready.register(self._wake, select.POLLIN)
        self._root_number = -1
        with suppress(OSError):  # it has died: the first batch will tell
            of = [(fd, one.tier.shared_secret) for one in kind.shared for fd in one.tier.shared_fds]
            hello = moves.introduction([secret for _, secret in of])
            socket.send_fds(self._channel, [hello], [self._words.fd, pages, *(fd for fd, _ in of)])
        self._words.close_fd()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def begin(self) -> None:
        """In a lane's thread, before a batch: nothing is said of it yet."""
        self._words.clear()

    def move(
        self, batch: Sequence[Move], entries: Sequence[int], came: Callable[[int], None],
        look_up: Callable[[int], None],
    ) -> MoverTimes:  # fmt: skip
        """In a lane's thread: have files moved; `outcome` tells what became of each.

        Args:
            entries: of the files. came: told the number of a file that has come, and that somebody waits for.
            look_up: has the kernel know a file.

        Raises: OSError, where the process has died.
        """
        source = self._source
        asks_source = not all(move.is_copied for move in batch)
        with source.at_work(entries[0]) if asks_source else nullcontext():
            try:
                self._give_root()
                self._channel.send(moves.packed(batch))
                while (said := self._hear(entries, came, look_up, asks_source)) is None:
                    pass
                return said
            except BaseException:
                self._process.kill()  # before anybody gives back what it reads and writes
                raise
            finally:
                outcomes = zip(batch, self.outcomes(), strict=False)
                read = [one.known.size for one, outcome in outcomes if outcome & moves.READ]
                source.count(len(read), sum(read))

    def _hear(
        self, entries: Sequence[int], came: Callable[[int], None], look_up: Callable[[int], None], asks_source: bool
    ) -> MoverTimes | None:
        """Wait for what the mover says next, or a reader; the times, once the batch is over. Raises: OSError."""
        ready = self._ready.poll(LOOK_MS)
        if not ready and asks_source:
            self._source.is_at(entries[max(0, bytes(self._words.begun).rfind(1))])
        for fd, _ in ready:
            if fd == self._wake.fileno():
                self._wake.read(8)
                for number in range(len(entries)):
                    if self._words.waited[number] and self._words.outcome[number]:
                        came(number)
                continue
            message = self._channel.recv(64)
            if not message:
                raise OSError(errno.ECONNRESET, "it has died")
            if message[:1] == moves.OVER:
                return MoverTimes(*moves.seconds_of(message))
            if message[:1] == moves.UNKNOWN:
                look_up(message[1])
                self._channel.send(moves.LOOKED_UP)
            else:
                came(message[1])
        return None

    def _give_root(self) -> None:
        number = self._source.root.number
        if number != self._root_number:
            socket.send_fds(self._channel, [moves.ROOT], [self._source.root.fd])
            self._root_number = number

    def outcomes(self) -> bytes:
        """The end of each file of the batch, as `mlfs.engine.moves` has it; 0: it is not over."""
        return bytes(self._words.outcome)

    def failed(self) -> bytes:
        """The errno with which a place has refused a copy of each, 0 for none."""
        return bytes(self._words.failed)

    def take_back(self, number: int) -> bool:
        """On the loop: somebody waits for a file. Whether the mover has not begun it, and will not.

        If it has, the lane's thread tells of it as soon as it has come.
        """
        self._words.waited[number] = 1
        if not self._words.begun[number]:
            return True
        self._wake.write(_ONE)
        return False

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self) -> None:
        """In a lane's thread: it has died, or is not wanted any more."""
        self._process.kill()
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


class Movers:
    """The movers of a mount, which lanes take and give back.

    Attributes:
        restarts: how often each was started again.
    """

    def __init__(self, context: Context, source: PosixSource, kind: MoverKind) -> None:
        self._step = context.step
        self._clock = context.clock
        self._runner = context.runner
        self._shortages = context.shortages
        self._source = source
        self._kind = kind
        self._pages = -1
        self._all: list[MoverChannel | None] = [None] * kind.wanted
        self.restarts = [*kind.restarts, *[-1] * kind.wanted][: kind.wanted]
        self._idle: list[MoverChannel] = []
        self._lacks = trio.Event()
        self._worth = None if kind.at_once else WorthStarting()  # until they are
        self._ended = False

    def begin(self, pages: int) -> None:
        """On the loop: the mount serves; pages are pushed by this descriptor."""
        self._pages = pages
        if self._worth is None:
            self._lacks.set()

    def saw(self, computed_s: float) -> None:
        """On the loop: a lane has computed so long for a batch that a mover could have had."""
        if self._worth is not None and self._pages >= 0 and self._worth.is_reached(computed_s, self._clock()):
            self._worth = None
            self._lacks.set()

    def lives(self) -> list[tuple[str, int, int, str]]:
        """Each mover's name, process, how often it was started again, and how the one before it ended."""
        lives = zip(self._all, self.restarts, strict=True)
        return [
            (f"mover-{number}", mover.pid, restarts, "died" if restarts else "")
            for number, (mover, restarts) in enumerate(lives)
            if mover is not None
        ]

    async def run(self) -> None:
        """Have as many as are wanted run, for as long as the mount lives."""
        pause_s = 0.0
        while True:
            await self._lacks.wait()
            await trio.sleep(pause_s)
            self._lacks = trio.Event()
            began_s, is_said = trio.current_time(), False
            while None in self._all and not self._ended:
                try:
                    mover = await self._runner.run(POOL, MoverChannel, self._kind, self._source, self._pages)
                except OSError as error:
                    if not (self._shortages.noticed(error) or is_said):
                        log.warning("no mover can be started now, and lanes fetch without: %s", error)
                    is_said = True
                    await trio.sleep(LONGEST_PAUSE_S)
                    continue
                number = self._all.index(None)
                self._all[number] = mover
                self.restarts[number] += 1
                self._kind.told()
                self._idle.append(mover)
                self._step(Helped(len(self._all) - self._all.count(None)))
            await self._lacks.wait()
            is_steady = trio.current_time() - began_s > STEADY_S
            pause_s = FIRST_PAUSE_S if is_steady else min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s))

    def take(self) -> MoverChannel | None:
        """In a lane's thread: a mover that has nothing to do, None where there is none. `give_back` or `lost` has to
        follow."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give_back(self, mover: MoverChannel) -> None:
        """In a lane's thread: its batch is over."""
        self._idle.append(mover)

    def lost(self, mover: MoverChannel, why: BaseException) -> None:
        """In a lane's thread: it has died, and its files are fetched again; another one is started."""
        log.warning("mover %d: %s: another one is started", mover.pid, why)
        mover.end()
        self._runner.post(self._lost, mover)

    def _lost(self, mover: MoverChannel) -> None:
        self._all[self._all.index(mover)] = None
        self._lacks.set()

    def end(self) -> None:
        """On the loop: the mount ends, and no mover shall have its descriptor."""
        self._ended = True
        for mover in self._all:
            if mover is not None:
                mover.kill()
