"""Makes the kernel know the files of a directory before they are opened, or pages are pushed for them.

In: directories of registered jobs, and those whose files are looked up one by one. Out: inodes and dentries in the
kernel, by listing the directory once through our own mount, from a worker thread; the channel gives that listing the
files' attributes, which it leaves out of all others (mountd.dirents). Without it the first push of every file costs a
look-up, as does its first open. A failure costs nothing else. Made by the daemon; called by the request handlers and
when a job is registered.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import trio

from mlfs.engine.runner import Runner
from mlfs.follow.job import JobRun
from mlfs.tree.manifest import Manifest
from mountd.commands_mount import detached

log = logging.getLogger("mlfs.inodes")

# A reader who looked up so many files of a directory one by one will want the others, too.
ENOUGH_LOOKUPS = 8
# A larger directory is not listed because of look-ups: these few files may be all that somebody wants of it.
MOST_CHILDREN = 20_000
# Directories whose look-ups are counted at once; then counting begins anew, so that memory is bounded.
MOST_COUNTED = 65_536


class InodePrimer:
    """Lists directories through the mount, so that the kernel knows their files.

    Attributes:
        thread: the native id of the thread that lists, None when none does: its listings get attributes. (0 is what the
            kernel calls each reader in another pid namespace.)

    Args:
        mountpoint: absolute path of the mount.
    """

    def __init__(self, manifest: Manifest, mountpoint: bytes, runner: Runner) -> None:
        self.manifest = manifest
        self.thread: int | None = None
        self._mountpoint = mountpoint
        self._runner = runner
        self._paused = False
        self._lookups: dict[int, int] = {}
        self._wanted: dict[int, None] = {}  # in order, each once
        self._event = trio.Event()
        self._listing = 0

    def looked_up(self, directory: int) -> None:
        count = self._lookups.get(directory, 0) + 1
        self._lookups[directory] = count
        if count == ENOUGH_LOOKUPS:
            if len(self.manifest.children(directory)) <= MOST_CHILDREN:
                self._want(directory)
            else:
                self._lookups[directory] = 0
        if len(self._lookups) > MOST_COUNTED:
            self._lookups.clear()

    def pause(self, pause: bool) -> None:
        """List nothing for now (an unmount must not find us inside); or go on."""
        self._paused = pause

    def opened(self, opens: object) -> None:
        """See mlfs.engine.mount_jobs.Listener. Opens change nothing here."""

    def installed(self, job: JobRun) -> None:
        """A job will read its files (those inside of the mount)."""
        samples, rows = job.streams.sample_ids, self.manifest.rows
        of_rows = rows.columns(np.unique(samples[samples >= rows.first]))[0]
        inside = np.concatenate([samples[(samples >= 0) & (samples < rows.first)], np.unique(of_rows)])
        for directory in dict.fromkeys(self.manifest.parent[inside].tolist()):
            self._want(directory)

    def _want(self, directory: int) -> None:
        self._wanted[directory] = None
        self._event.set()

    def waiting(self) -> int:
        """Directories that are still to be listed, the one that is listed now included."""
        return len(self._wanted) + self._listing

    async def run(self) -> None:
        while True:
            await self._event.wait()
            self._event = trio.Event()
            while self._wanted:
                directory = next(iter(self._wanted))
                del self._wanted[directory]
                self._lookups.pop(directory, None)
                if not self._paused:
                    self._listing = 1
                    try:
                        await self._runner.run("inodes", self._list, directory)
                    finally:
                        self._listing = 0

    def _list(self, directory: int) -> None:
        self.thread = threading.get_native_id()
        path = self.manifest.path(directory)
        try:
            with _root(self._mountpoint) as root:
                fd = os.open(b"./" + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
                try:
                    with os.scandir(fd) as listing:
                        for _ in listing:
                            if self._paused:
                                return
                finally:
                    os.close(fd)
        except OSError as error:
            log.debug("listing %r: %s", path, error)
        finally:
            self.thread = None


@contextmanager
def _root(mountpoint: bytes) -> Iterator[int]:
    """A descriptor of the mount's root by which a listing keeps nobody from unmounting, if this user may have one."""
    try:
        root = detached(mountpoint)
    except OSError:
        root = os.open(mountpoint, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root
    finally:
        os.close(root)
