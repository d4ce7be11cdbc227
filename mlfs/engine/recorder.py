"""Tells a recording command of each open: who opened what and when.

In: a FIFO that the command reads (`mlfs record`), opens from the engine. Out: one JSON array a line, [seconds, pid,
parent, path]; a line {"lost": n} where the command was too slow for n of them. It ends when the command says so (then
it gets what is left) or closes the FIFO. Made by mountd.control. Writing is done in a worker thread: a command that
hangs holds nobody up.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Sequence

import trio

from mlfs.engine.runner import Runner
from mlfs.follow.evidence import Read

log = logging.getLogger("mlfs.engine")

POOL = "record"
MOST_WAITING = 1 << 18
_COLLECT_S = 0.05


class Recorders:
    """The recordings of a mount: a mlfs.engine.mount_jobs.Listener. `run` must be running.

    Args:
        paths: of entries. clock: seconds, monotone.
    """

    def __init__(
        self, paths: Callable[[Sequence[int]], Iterable[bytes]], runner: Runner, clock: Callable[[], float]
    ) -> None:
        self._paths = paths
        self._runner = runner
        self._clock = clock
        self._recordings: dict[str, _Recording] = {}
        self._nursery: trio.Nursery | None = None

    def opened(self, opens: Sequence[Read]) -> None:
        """Files were opened: their lines are written soon."""
        for recording in self._recordings.values():
            for opened in opens:
                recording.opened(self._clock(), opened.sample, opened.process, opened.parent)

    def installed(self, job: object) -> None:
        """See Listener: no matter here."""

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def start(self, fifo: str) -> None:
        """Begin a recording. Raises OSError when nobody reads the FIFO, or it is none."""
        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._nursery is None or not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a FIFO")
        os.set_blocking(fd, True)
        self._recordings[fifo] = recording = _Recording(self._paths, self._runner, fd)
        self._nursery.start_soon(self._record, fifo, recording)

    def end(self, fifo: str) -> None:
        """Write what is left and close the FIFO."""
        recording = self._recordings.get(fifo)
        if recording is not None:
            recording.end()

    async def _record(self, fifo: str, recording: _Recording) -> None:
        try:
            await recording.run()
        except (OSError, RuntimeError, MemoryError) as error:  # the command is gone, or something is lacking here
            log.info("a recording ended: %s", error)
        finally:
            del self._recordings[fifo]
        # Not when cancelled: a thread may still write, and the number may be another file's then.
        os.close(recording.fd)


class _Recording:
    """The recording of one command."""

    def __init__(self, paths: Callable[[Sequence[int]], Iterable[bytes]], runner: Runner, fd: int) -> None:
        self.fd = fd
        self._paths = paths
        self._runner = runner
        self._ending = False
        self._wanted = trio.Event()
        self._waiting: list[tuple[float, int, int, int]] = []
        self._lost = 0

    def opened(self, at_s: float, entry: int, process: int, parent: int) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._lost += 1
            return
        self._waiting.append((at_s, process, parent, entry))
        self._wanted.set()

    def end(self) -> None:
        """Write what is left, and no more."""
        self._ending = True
        self._wanted.set()

    async def run(self) -> None:
        """Write until told to end. Raises OSError when the command is gone."""
        while True:
            await self._wanted.wait()
            if not self._ending:
                await trio.sleep(_COLLECT_S)
            self._wanted = trio.Event()
            ending = self._ending
            batch, self._waiting, lost, self._lost = self._waiting, [], self._lost, 0
            await self._runner.run(POOL, self._write, batch, lost)
            if ending:
                return

    def _write(self, batch: list[tuple[float, int, int, int]], lost: int) -> None:
        paths = self._paths([entry for *_, entry in batch])
        lines = [
            json.dumps([round(time_s, 6), pid, parent, os.fsdecode(path)])
            for (time_s, pid, parent, _), path in zip(batch, paths, strict=True)
        ]
        if lost:
            lines.append(json.dumps({"lost": lost}))
        text = memoryview("".join(line + "\n" for line in lines).encode("ascii"))
        while text:
            text = text[os.write(self.fd, text) :]
