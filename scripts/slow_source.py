"""A slow storage system for tests, the demo and the benchmark: a real mounted file system over a local directory.

    python scripts/slow_source.py BACKING MOUNTPOINT --open-latency 2ms --bandwidth 100M [--foreground] [--stats FILE]

In: a directory, a latency per open, a bandwidth that all reads share. Out: the same tree, read-only, at MOUNTPOINT, as
a parallel file system behind a network would serve it: opens wait, each on its own; reads queue for the bandwidth; the
kernel caches no data (direct_io), so every read comes here and is counted. Metadata is cheap.

Two virtual files stand in the root and in no listing. `.slow_source_stats` gives {"opens", "bytes", "failed",
"waiting", "by_path": {path: opens}, "bytes_by_path": {path: bytes}, "listed_by_path": {path: opens of the directory},
"looked_up_by_path": {path: lookups of the name}, "most_looks": looks at attributes that were under way at once}: an
open counts when it arrives, also one that is made to fail; bytes are those handed out; waiting are the requests that
hang now. `.slow_source_control` takes one JSON object a line:

    {"fail": {"path": "a/b", "errno": 5, "times": 2, "op": "open"}}   op: open (default), read, any; path "*": all files
    {"hang": {"path": "a", "op": "list"}}       list: of a directory, which `any` leaves alone
    {"hang": {"path": "a/b", "op": "any"}}      requests for it wait until {"release": {"path": "a/b"}}
    {"latency_s": 0.01}  {"look_latency_s": 0.01}  {"read_latency_s": 0.01}  {"bandwidth_bytes_s": 1e8}
    {"reset_counts": true}

A line that is none of these fails in write(2) with EINVAL. `fusermount3 -u MOUNTPOINT` or SIGTERM ends it; SIGUSR1 and
the end write the statistics to --stats FILE. Without --foreground the command returns once the mount serves.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyfuse3
import trio

STATS_NAME = b".slow_source_stats"
CONTROL_NAME = b".slow_source_control"
EVERY_FILE = "*"
# A timer wakes up late, by up to the millisecond that epoll counts in. If one transfer waited too long, the next waits
# less, by up to this much: a few such delays. So the bandwidth is right on average, and idle time is not saved up.
MAX_CREDIT_S = 0.005
# More tasks than readers: a request that sleeps must not keep the next one from being accepted.
MAX_REQUESTS = 1000


class SharedBandwidth:
    """A link that transfers one after the other: each waits for the virtual time at which its last byte is through."""

    def __init__(self, bytes_s: float) -> None:
        self.bytes_s = bytes_s  # 0: no limit
        self._next_free_s = 0.0
        self._credit_s = 0.0

    async def transfer(self, length: int) -> None:
        if self.bytes_s <= 0 or length == 0:
            return
        now = time.monotonic()
        start = max(now - self._credit_s, self._next_free_s)
        self._credit_s = 0.0
        self._next_free_s = end = start + length / self.bytes_s
        if end > now:
            await trio.sleep(end - now)
        late = time.monotonic() - end
        self._credit_s = min(MAX_CREDIT_S, max(0.0, late))


@dataclass
class Counts:
    """What was asked of the source, in all and for each path."""

    opens: int = 0
    bytes: int = 0
    failed: int = 0
    waiting: int = 0
    most_looks: int = 0
    by_path: Counter[str] = field(default_factory=Counter)
    bytes_by_path: Counter[str] = field(default_factory=Counter)
    listed_by_path: Counter[str] = field(default_factory=Counter)
    looked_up_by_path: Counter[str] = field(default_factory=Counter)

    def opened(self, path: str) -> None:
        self.opens += 1
        self.by_path[path] += 1

    def handed_out(self, path: str, length: int) -> None:
        self.bytes += length
        self.bytes_by_path[path] += length

    def reset(self) -> None:
        """Reset all counts but `waiting`: those requests still wait."""
        self.opens = self.bytes = self.failed = self.most_looks = 0
        self.by_path.clear()
        self.bytes_by_path.clear()
        self.listed_by_path.clear()
        self.looked_up_by_path.clear()

    def as_json(self) -> str:
        return json.dumps(vars(self)) + "\n"


@dataclass
class Fault:
    """A fault: requests fail with `errno`, so many `times`, or hang until `released` is set."""

    path: str
    op: str
    errno: int = 0
    times: int = 0
    released: trio.Event | None = None

    def matches(self, path: str, op: str) -> bool:
        return self.path in (path, EVERY_FILE) and (self.op == op or (self.op == "any" and op != "list"))


class Faults:
    """The faults that were asked for through the control file. Each request is checked against them first."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._failing: list[Fault] = []
        self._hanging: list[Fault] = []

    def fail(self, path: str, errno: int, times: int = 1, op: str = "open") -> None:
        self._failing.append(Fault(path, _known_op(op), errno=int(errno), times=int(times)))

    def hang(self, path: str, op: str = "any") -> None:
        self._hanging.append(Fault(path, _known_op(op), released=trio.Event()))

    def release(self, path: str) -> None:
        """Let the requests that hang go on, for exactly this path; "*" is for all."""
        ended = [fault for fault in self._hanging if path in (fault.path, EVERY_FILE)]
        self._hanging = [fault for fault in self._hanging if fault not in ended]
        for fault in ended:
            assert fault.released is not None
            fault.released.set()

    async def check(self, path: str, op: str) -> None:
        for fault in [fault for fault in self._hanging if fault.matches(path, op)]:
            assert fault.released is not None
            self._counts.waiting += 1
            try:
                await fault.released.wait()
            finally:
                self._counts.waiting -= 1
        for fault in self._failing:
            if fault.times > 0 and fault.matches(path, op):
                fault.times -= 1
                self._counts.failed += 1
                raise pyfuse3.FUSEError(fault.errno)


def _known_op(op: str) -> str:
    if op not in ("open", "read", "list", "any"):
        raise ValueError(f"op is open, read, list or any, not {op}")
    return op


@dataclass
class Handle:
    """An open file: of the backing tree (`fd`), or a virtual one with its `content` as it was when opened."""

    path: str = ""
    fd: int = -1
    content: bytes = b""
    is_control: bool = False


@contextlib.contextmanager
def _fuse_errors() -> Iterator[None]:
    """Turn an OSError into pyfuse3's own error: any other exception ends its loop."""
    try:
        yield
    except OSError as exc:
        raise pyfuse3.FUSEError(exc.errno or errno.EIO) from exc


async def _read_only(*args: Any) -> NoReturn:
    raise pyfuse3.FUSEError(errno.EROFS)


_refuse: Any = _read_only  # stands in for handlers of many signatures


class SlowSource(pyfuse3.Operations):
    """The requests. Paths are relative to the working directory: the backing, even where that is mounted over."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, latency_s: float, bandwidth: SharedBandwidth, attr_timeout_s: float) -> None:
        super().__init__()
        self.counts = Counts()
        self.faults = Faults(self.counts)
        self.on_ready: Callable[[], None] = lambda: None
        self._latency_s = latency_s
        self._look_latency_s = self._read_latency_s = 0.0
        self._looks = 0
        self._bandwidth = bandwidth
        self._attr_timeout_s = attr_timeout_s
        # Inode n is path n - 1. Never forgotten: a test's tree is small, and a path keeps its number.
        self._paths = [b"", STATS_NAME, CONTROL_NAME]
        self._inodes = {path: inode for inode, path in enumerate(self._paths, start=pyfuse3.ROOT_INODE)}
        self._handles: dict[int, Handle] = {}
        self._listings: dict[int, tuple[int, list[bytes]]] = {}
        self._next_handle = 1

    def init(self) -> None:
        self.on_ready()

    # -- names and attributes

    def _path(self, inode: int) -> bytes:
        return self._paths[inode - pyfuse3.ROOT_INODE]

    def _child(self, parent: int, name: bytes) -> bytes:
        return os.path.join(self._path(parent), name)

    def _inode(self, path: bytes) -> int:
        if path not in self._inodes:
            self._paths.append(path)
            self._inodes[path] = len(self._paths)
        return self._inodes[path]

    def _attributes(self, path: bytes) -> pyfuse3.EntryAttributes:
        attr = pyfuse3.EntryAttributes()
        is_virtual = path in (STATS_NAME, CONTROL_NAME)
        found = os.lstat(b"." if is_virtual else path or b".")
        for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blksize", "st_blocks"):
            setattr(attr, name, getattr(found, name))
        for name in ("st_atime_ns", "st_ctime_ns", "st_mtime_ns"):
            setattr(attr, name, getattr(found, name))
        if is_virtual:
            attr.st_mode, attr.st_nlink, attr.st_size = stat.S_IFREG | 0o600, 1, 0
        attr.st_ino = self._inode(path)
        attr.entry_timeout = attr.attr_timeout = self._attr_timeout_s
        return attr

    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        path = self._child(parent_inode, name)
        self.counts.looked_up_by_path[os.fsdecode(path)] += 1
        return await self._look(path)

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return await self._look(self._path(inode))

    async def _look(self, path: bytes) -> pyfuse3.EntryAttributes:
        """A look at attributes, as long as one takes."""
        self._looks += 1
        self.counts.most_looks = max(self.counts.most_looks, self._looks)
        try:
            if self._look_latency_s and path not in (b"", STATS_NAME, CONTROL_NAME):
                await trio.sleep(self._look_latency_s)
        finally:
            self._looks -= 1
        with _fuse_errors():
            return self._attributes(path)

    async def setattr(self, inode: int, attr: pyfuse3.EntryAttributes, *rest: Any) -> pyfuse3.EntryAttributes:
        """Truncating the control file is how shells and Python's open(..., "w") begin."""
        if self._path(inode) != CONTROL_NAME:
            raise pyfuse3.FUSEError(errno.EROFS)
        return self._attributes(CONTROL_NAME)

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        with _fuse_errors():
            return os.readlink(self._path(inode))

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        found, reply = os.statvfs("."), pyfuse3.StatvfsData()
        for name in ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail"):
            setattr(reply, name, getattr(found, name))
        reply.f_namemax = found.f_namemax
        return reply

    # -- directories

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        path = self._path(inode)
        shown = os.fsdecode(path)
        self.counts.listed_by_path[shown] += 1
        await self.faults.check(shown, "list")
        with _fuse_errors():
            names = os.listdir(path or b".")
        self._next_handle += 1
        self._listings[self._next_handle] = (inode, names)
        return self._next_handle

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        inode, names = self._listings[fh]
        for index in range(start_id, len(names)):
            try:
                attr = self._attributes(self._child(inode, names[index]))
            except FileNotFoundError:
                continue  # went away since the listing was made
            if not pyfuse3.readdir_reply(token, names[index], attr, index + 1):
                return

    async def releasedir(self, fh: int) -> None:
        del self._listings[fh]

    # -- files

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        path = self._path(inode)
        if path == CONTROL_NAME:
            return self._opened(Handle(is_control=True))
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise pyfuse3.FUSEError(errno.EROFS)
        if path == STATS_NAME:
            return self._opened(Handle(content=self.counts.as_json().encode()))
        shown = os.fsdecode(path)
        self.counts.opened(shown)
        await self.faults.check(shown, "open")
        if self._latency_s > 0:
            await trio.sleep(self._latency_s)
        with _fuse_errors():
            return self._opened(Handle(shown, fd=os.open(path, os.O_RDONLY)))

    def _opened(self, handle: Handle) -> pyfuse3.FileInfo:
        self._next_handle += 1
        self._handles[self._next_handle] = handle
        return pyfuse3.FileInfo(fh=self._next_handle, direct_io=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        handle = self._handles[fh]
        if handle.fd < 0:
            return handle.content[off : off + size]
        await self.faults.check(handle.path, "read")
        with _fuse_errors():
            data = os.pread(handle.fd, size, off)
        self.counts.handed_out(handle.path, len(data))
        if self._read_latency_s > 0:
            await trio.sleep(self._read_latency_s)
        await self._bandwidth.transfer(len(data))
        return data

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        if not self._handles[fh].is_control:
            raise pyfuse3.FUSEError(errno.EROFS)
        try:
            for line in filter(None, buf.decode().splitlines()):
                self._obey(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise pyfuse3.FUSEError(errno.EINVAL) from exc
        return len(buf)

    def _obey(self, orders: dict[str, Any]) -> None:
        """One line of the control file. Raises ValueError, TypeError or KeyError for what it does not understand."""
        for order, value in orders.items():
            if order in ("fail", "hang", "release"):
                getattr(self.faults, order)(**value)
            elif order == "latency_s":
                self._latency_s = float(value)
            elif order == "read_latency_s":
                self._read_latency_s = float(value)
            elif order == "look_latency_s":
                self._look_latency_s = float(value)
            elif order == "bandwidth_bytes_s":
                self._bandwidth.bytes_s = float(value)
            elif order == "reset_counts":
                self.counts.reset()
            else:
                raise ValueError(f"unknown order {order}")

    async def flush(self, fh: int) -> None:
        raise pyfuse3.FUSEError(errno.ENOSYS)  # the kernel asks once and never again

    async def release(self, fh: int) -> None:
        handle = self._handles.pop(fh)
        if handle.fd >= 0:
            os.close(handle.fd)

    # -- all that would change the tree

    create = mknod = mkdir = symlink = link = rename = unlink = rmdir = _refuse


def duration_s(text: str) -> float:
    """2ms, 0.5s, 300us; a bare number is seconds."""
    match = re.fullmatch(r"([0-9.]+)\s*(us|ms|s|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text}: a duration looks like 2ms or 0.5s")
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}[match[2]]


def bytes_per_s(text: str) -> float:
    """100M, 1.5G, 64Mi; bytes a second, 0 for no limit."""
    match = re.fullmatch(r"([0-9.]+)\s*([KMG]?)(i?)B?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text}: a bandwidth looks like 100M (bytes a second) or 0 for no limit")
    return float(match[1]) * float((1024 if match[3] else 1000) ** " KMG".index(match[2] or " "))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Mount a directory as a slow, read-only storage system.")
    parser.add_argument("backing", help="the directory with the data")
    parser.add_argument("mountpoint", help="where it appears, slow")
    parser.add_argument("--open-latency", type=duration_s, default=0.002, help="wait at each open (default: 2ms)")
    parser.add_argument(
        "--bandwidth", type=bytes_per_s, default=1e8, help="shared by all reads (default: 100M, bytes/s)"
    )
    parser.add_argument("--attr-timeout", type=duration_s, default=3600.0, help="how long the kernel keeps metadata")
    parser.add_argument("--foreground", action="store_true", help="stay; prints a line once it serves")
    parser.add_argument("--stats", help="write the counts to this file on SIGUSR1 and at the end")
    parser.add_argument("--allow-other", action="store_true", help="let other users in")
    return parser.parse_args()


async def serve(operations: SlowSource, write_stats: Callable[[], None]) -> bool:
    """Serve. Returns True once it was unmounted, False after a signal to stop."""
    stopped = False

    async def watch_signals() -> None:
        nonlocal stopped
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) as signals:
            async for number in signals:
                write_stats()
                if number != signal.SIGUSR1:
                    stopped = True
                    operations.faults.release(EVERY_FILE)
                    pyfuse3.terminate()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_signals)
        await pyfuse3.main(max_tasks=MAX_REQUESTS)
        nursery.cancel_scope.cancel()
    return not stopped


def mount_and_serve(
    arguments: argparse.Namespace, on_ready: Callable[[], None], kind: type[SlowSource] = SlowSource
) -> None:
    mountpoint = os.path.abspath(arguments.mountpoint)
    stats_path = os.path.abspath(arguments.stats) if arguments.stats else None
    operations = kind(arguments.open_latency, SharedBandwidth(arguments.bandwidth), arguments.attr_timeout)
    operations.on_ready = on_ready

    def write_stats() -> None:
        if stats_path is not None:
            with open(stats_path + ".new", "w") as file:
                file.write(operations.counts.as_json())
            os.replace(stats_path + ".new", stats_path)

    options = {"fsname=slow_source", "subtype=slow_source", "default_permissions"}
    options |= {"allow_other"} if arguments.allow_other else set()
    os.chdir(arguments.backing)
    pyfuse3.init(operations, mountpoint, options)
    was_unmounted = False
    try:
        was_unmounted = trio.run(serve, operations, write_stats)
    finally:
        pyfuse3.close(unmount=not was_unmounted)
        write_stats()


def daemonise(arguments: argparse.Namespace, kind: type[SlowSource]) -> int:
    """Serve in a child process. Returns 0 once it serves, else its exit code; its errors go to stderr until then."""
    ready_in, ready_out = os.pipe()
    child = os.fork()
    if child:
        os.close(ready_out)
        if os.read(ready_in, 1):
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1
    os.close(ready_in)
    os.setsid()

    def on_ready() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.write(ready_out, b"1")
        os.close(ready_out)

    mount_and_serve(arguments, on_ready, kind)
    return 0


def main(kind: type[SlowSource] = SlowSource) -> int:
    arguments = parse_arguments()
    for path in (arguments.backing, arguments.mountpoint):
        if not os.path.isdir(path):
            print(f"slow_source: {path} is not a directory", file=sys.stderr)
            return 2
    if not arguments.foreground:
        return daemonise(arguments, kind)
    line = f"slow_source: {arguments.backing} is mounted on {arguments.mountpoint}"
    mount_and_serve(arguments, lambda: print(line, flush=True), kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
