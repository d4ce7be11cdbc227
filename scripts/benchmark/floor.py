"""The least that a FUSE file system and a prefetcher cost on this machine: what scripts/bench compares mlfs with.

    python scripts/benchmark/floor.py serve SOURCE MOUNTPOINT    serves until unmounted, then says what it was asked for
    python scripts/benchmark/floor.py unasked SOURCE MOUNTPOINT  the same, and no OPEN is answered
    python scripts/benchmark/floor.py pass SOURCE MOUNTPOINT    passes OPENs and READs on, until it is unmounted
    python scripts/benchmark/floor.py push SOURCE MOUNTPOINT THREADS    prints samples a second, CPU us a sample, of it
                                                                        kernel, and ends
    python scripts/benchmark/floor.py move SOURCE MOUNTPOINT PROCESSES    the same

serve: a bare pyfuse3 file system. The first OPEN of a file has a worker thread read it from the source and push it;
later ones are answered at once. Nothing is checked, counted or kept. unasked: all files are pushed before, and the
kernel, which gets ENOSYS for the first OPEN, sends nothing any more: what its FUSE itself costs a reader. pass: each
READ is a pread by the loop itself, which waits for it: no other one would be served while a source hangs. push: plain
loops of open, pread, close, push and a copy into a memfd, in threads of a process that does nothing else. move: the
same loops in processes, each of which writes the notifications to /dev/fuse by itself, as movers do, without a server
that tells them anything. In: a directory of samples. Out: numbers for scripts/benchmark/one_mount.py, which runs all.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import stat
import struct
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

import pyfuse3
import trio

LARGEST_BYTES = 1 << 20
STORED, NOTIFY_STORE = struct.Struct("=IiQQQII"), 4  # linux/fuse.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


class Bare(pyfuse3.Operations):
    """The tree of a directory as it is at the start, flat in memory; inode n is path n - 1."""

    supports_dot_lookup = False

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
        self.paths = [b""]
        self.children: dict[int, list[int]] = {1: []}
        self.inodes = {b"": 1}
        self.found = [os.stat(source)]
        self.pushed: set[int] = set()
        self.asked = {"opens": 0, "reads": 0}
        self.opens: SimpleQueue[tuple[int, trio.lowlevel.Task]] = SimpleQueue()
        for directory, directories, files in os.walk(os.fsencode(source)):
            above = self.inodes[os.path.relpath(directory, os.fsencode(source)).removeprefix(b".")]
            for name in sorted(directories + files):
                self._add(above, os.path.join(self.paths[above - 1], name))

    def _add(self, above: int, path: bytes) -> None:
        self.paths.append(path)
        self.inodes[path] = inode = len(self.paths)
        self.found.append(os.stat(path, dir_fd=self.source))
        self.children[above].append(inode)
        if stat.S_ISDIR(self.found[-1].st_mode):
            self.children[inode] = []

    def read_source(self, inode: int) -> bytes:
        """The whole file."""
        fd = os.open(self.paths[inode - 1], os.O_RDONLY, dir_fd=self.source)
        try:
            return os.pread(fd, LARGEST_BYTES, 0)
        finally:
            os.close(fd)

    def work(self, token: trio.lowlevel.TrioToken) -> None:
        """What the worker thread does: read what is opened first, push it, and let the reader go on."""
        while True:
            inode, task = self.opens.get()
            pyfuse3.notify_store(inode, 0, self.read_source(inode))
            self.pushed.add(inode)
            token.run_sync_soon(trio.lowlevel.reschedule, task)

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        entry, found = pyfuse3.EntryAttributes(), self.found[inode - 1]
        for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_atime_ns", "st_mtime_ns", "st_ctime_ns"):
            setattr(entry, name, getattr(found, name))
        entry.st_ino = inode
        entry.entry_timeout = entry.attr_timeout = 86400.0
        return entry

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        inode = self.inodes.get(os.path.join(self.paths[parent_inode - 1], bytes(name)))
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self._attributes(inode)

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._attributes(inode)

    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        """Answer for whoever mounts an overlay on top, who wants the longest name."""
        found = pyfuse3.StatvfsData()
        found.f_namemax = 255
        return found

    async def opendir(self, inode: int, ctx: Any) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: Any) -> None:
        for number, inode in enumerate(self.children[fh][start_id:], start_id + 1):
            name = os.path.basename(self.paths[inode - 1])
            if not pyfuse3.readdir_reply(token, name, self._attributes(inode), number):
                return

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        self.asked["opens"] += 1
        if inode not in self.pushed:
            self.opens.put((inode, trio.lowlevel.current_task()))
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    async def read(self, fh: int, offset: int, length: int) -> bytes:
        """Answer for pages that the kernel took back: this is rare, so it may block the loop."""
        self.asked["reads"] += 1
        return self.read_source(fh)[offset : offset + length]

    async def flush(self, fh: int) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def release(self, fh: int) -> None:
        pass


class Unasked(Bare):
    """The same, whose files are read without a request once their pages are there."""

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        self.asked["opens"] += 1
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def read(self, fh: int, offset: int, length: int) -> bytes:
        """Answer for pages that the kernel took back. The binding does not say of which file: they are empty."""
        self.asked["reads"] += 1
        return bytes(length)

    def stage(self, mountpoint: str) -> None:
        """Push all files."""
        for inode, found in enumerate(self.found, 1):
            if stat.S_ISREG(found.st_mode):
                os.stat(os.path.join(os.fsencode(mountpoint), self.paths[inode - 1]))  # the kernel must know its inode
                pyfuse3.notify_store(inode, 0, self.read_source(inode))


class Passed(Bare):
    """The same, which keeps nothing: each OPEN opens the source's file, and each READ is one of it."""

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        self.asked["opens"] += 1
        return pyfuse3.FileInfo(fh=os.open(self.paths[inode - 1], os.O_RDONLY, dir_fd=self.source), keep_cache=True)

    async def read(self, fh: int, offset: int, length: int) -> bytes:
        self.asked["reads"] += 1
        return os.pread(fh, length, offset)

    async def release(self, fh: int) -> None:
        os.close(fh)


def push_all(bare: Bare, mountpoint: str, workers_wanted: int, in_processes: bool) -> None:
    """Push all files and print the rate. The pages and the memfd are new, as those of a daemon are."""
    files = [inode for inode, found in enumerate(bare.found, 1) if stat.S_ISREG(found.st_mode)]
    for inode in files:
        os.stat(os.path.join(os.fsencode(mountpoint), bare.paths[inode - 1]))  # the kernel must know its inode
    arena, room = os.memfd_create("floor"), sum(bare.found[inode - 1].st_size + 4096 for inode in files)
    shares = [
        (bare, files[number::workers_wanted], arena, number * (room // 4096) * 4096) for number in range(workers_wanted)
    ]
    if in_processes:
        _move_all(shares, len(files))
        return
    workers = [threading.Thread(target=_push, args=share) for share in shares]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    _tell(len(files), seconds, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)
    os.close(arena)


def _tell(files: int, seconds: float, user_s: float, kernel_s: float) -> None:
    print(files / seconds, (user_s + kernel_s) / files * 1e6, kernel_s / files * 1e6, flush=True)


def _push(bare: Bare, share: list[int], arena: int, offset: int) -> None:
    for inode in share:
        data = bare.read_source(inode)
        pyfuse3.notify_store(inode, 0, data)
        os.pwrite(arena, data, offset)
        offset += -(-len(data) // 4096) * 4096


def _move_all(shares: list[tuple[Bare, list[int], int, int]], files: int) -> None:
    began = time.perf_counter()
    pids = []
    for share in shares:
        pid = os.fork()
        if not pid:
            _move(*share)
            os._exit(0)
        pids.append(pid)
    spent = [os.wait4(pid, 0)[2] for pid in pids]
    seconds = time.perf_counter() - began
    _tell(files, seconds, sum(one.ru_utime for one in spent), sum(one.ru_stime for one in spent))


def _move(bare: Bare, share: list[int], arena: int, offset: int) -> None:
    (fuse,) = (int(fd) for fd in os.listdir("/proc/self/fd") if _is_fuse(fd))
    for inode in share:
        data = bare.read_source(inode)
        head = STORED.pack(STORED.size + len(data), NOTIFY_STORE, 0, inode, 0, len(data), 0)
        os.writev(fuse, [head, data])
        os.pwrite(arena, data, offset)
        offset += -(-len(data) // 4096) * 4096


def _is_fuse(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse"
    except FileNotFoundError:  # of the listing itself
        return False


async def _serve(bare: Bare, then: Any, ends: bool) -> None:
    token = trio.lowlevel.current_trio_token()
    threading.Thread(target=bare.work, args=(token,), daemon=True).start()

    def beside() -> None:
        try:
            then()
        finally:
            if ends:
                token.run_sync_soon(pyfuse3.terminate)

    threading.Thread(target=beside, daemon=True).start()
    await pyfuse3.main(min_tasks=8, max_tasks=99)


def main() -> int:
    part, source, mountpoint, *rest = sys.argv[1:]
    for option, value in ((M_MMAP_THRESHOLD, 16 << 20), (M_TRIM_THRESHOLD, 32 << 20)):  # as the daemon has it
        ctypes.CDLL(None).mallopt(option, value)
    bare = {"unasked": Unasked, "pass": Passed}.get(part, Bare)(source)
    pyfuse3.init(bare, mountpoint, {"fsname=bare", "default_permissions"})
    unmounted = part not in ("push", "move")

    def begin() -> None:
        if isinstance(bare, Unasked):
            bare.stage(mountpoint)
        print("serves", flush=True)
        if not unmounted:
            push_all(bare, mountpoint, int(rest[0]), part == "move")

    try:
        trio.run(_serve, bare, begin, not unmounted)
    finally:
        pyfuse3.close(unmount=not unmounted)
    if unmounted:
        print(json.dumps(bare.asked), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
