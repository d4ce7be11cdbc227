"""A mount served by a thread of this process, so that tests reach the engine behind it; and the RAM tier as the suite
of all tiers wants it.

In: a directory to build in. Out: `RamMount`, a context manager; `SuiteTier`, which gives each key of the suite a source
file of its own and changes that file, as the mount sees changes at the source, to each version that the suite puts.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import trio

from mlfs.engine.engine import Engine, Limits
from mlfs.engine.runner import ThreadRunner
from mlfs.scan import scan
from mlfs.sources.posix import PosixSource
from mlfs.tiers.contract import Version
from mlfs.tiers.ram import RamTier
from mountd.channel_pyfuse3 import Pyfuse3Channel
from mountd.control import Control
from mountd.daemon import SWITCH_INTERVAL_S
from mountd.handlers import Handlers
from mountd.pagecache import MountPages
from mountd.status import About
from mountd.virtual import VirtualFiles

MTIMES = 1 << 62


class RamMount:
    """Files `f000`, `f001`, ... of `size` bytes, mounted; nothing is cached to begin with.

    Attributes:
        entries: the files' entries, ascending.
    """

    def __init__(self, base: Path, files: int, size: int, ram_bytes: int, staging_bytes: int = 8 << 20) -> None:
        self.source, self.path = base / "source", base / "mount"
        self.source.mkdir()
        self.path.mkdir()
        for index in range(files):
            (self.source / f"f{index:03d}").write_bytes(os.urandom(size))
        self._limits = Limits(staging_bytes, ram_bytes)
        self._fd = os.open(self.source, os.O_RDONLY | os.O_DIRECTORY)
        self.manifest = scan(self._fd)
        self.entries = [int(entry) for entry in self.manifest.files]
        self.channel = Pyfuse3Channel()
        self.pages = MountPages(self.manifest, os.fsencode(self.path), self.channel.store, self.channel.invalidate)
        self._ready: queue.Queue[Engine | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> RamMount:
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the daemon does
        self._thread.start()
        ready = self._ready.get(timeout=10)
        if isinstance(ready, BaseException):
            raise ready
        self.engine = ready
        os.stat(self.path / ".mlfs" / "status")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        subprocess.run(["fusermount3", "-u", "-z", self.path], check=True)
        self._thread.join(10)
        sys.setswitchinterval(self._switch_interval_s)
        os.close(self._fd)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as failure:
            self._ready.put(failure)
            raise

    async def _main(self) -> None:
        runner = ThreadRunner({"drop": 1}, notify=self.channel.interrupt)
        source = PosixSource(self._fd, self.manifest)
        engine = Engine(self.manifest, source, [], self.pages, runner, self._limits, time.monotonic)
        about = About(str(self.source), str(self.path), "scanned", time.time(), self.channel.request_counts)
        virtual = VirtualFiles(Control(engine, about), os.getuid(), os.getgid())
        self.channel.mount(Handlers(engine, virtual), str(self.path), set())
        self._ready.put(engine)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.run)
                await self.channel.serve()
                nursery.cancel_scope.cancel()
        finally:
            self.channel.close(unmount=False)

    def on_loop(self, call: Callable[..., Any], *args: object) -> Any:
        """Run a call on the mount's loop."""
        return self.engine.runner.on_loop(call, *args)

    def set_capacity(self, ram_bytes: int) -> None:
        """The RAM class's budget from now on."""
        self.on_loop(setattr, self.engine.table, "ram_capacity_bytes", ram_bytes)

    def empty(self) -> None:
        """Nothing kept, promised, staged or open any more: what a read began is over a moment after it."""
        table, end = self.engine.table, time.monotonic() + 10
        while table.window_bytes or self.engine.ram.used_bytes or table.open_count:
            assert time.monotonic() < end, "the mount does not come to rest"
            self.on_loop(self.engine.staging.drop_lingering)
            left = self.engine.ram.keys()
            for key in left:
                self.engine.ram.drop(key)
            time.sleep(0.005)

    def make_tier(self, **replaced: Any) -> RamTier:
        """One as the engine makes its own."""
        engine = self.engine
        push = replaced.get("push", engine.fetcher.push)
        return RamTier(engine.table, self.manifest, self.pages, engine.runner.on_loop, push)

    def change(self, entry: int, data: bytes, mtime_ns: int) -> None:
        """The source file changes, and the mount notices as it does at the next fetch."""
        path = self.source / os.fsdecode(self.manifest.path(entry))
        path.write_bytes(data)
        os.utime(path, ns=(mtime_ns, mtime_ns))
        self.engine.fetcher.open(entry).close()

    def take_back(self, entry: int, offset: int = 0, size: int = 0) -> None:
        """Have the kernel take pages of the file back, as it may do at any time."""
        fd = os.open(self.path / os.fsdecode(self.manifest.path(entry)), os.O_RDONLY)
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class SuiteTier:
    """A RamTier for keys, sizes and mtimes that no file of the mount has (yet)."""

    def __init__(self, mount: RamMount, capacity_bytes: int) -> None:
        mount.set_capacity(capacity_bytes)
        self._mount = mount
        self._tier = mount.make_tier()
        self._paths: dict[bytes, bytes] = {}
        self._changing = threading.Lock()

    name = property(lambda self: self._tier.name)
    capacity_bytes = property(lambda self: self._tier.capacity_bytes)
    used_bytes = property(lambda self: self._tier.used_bytes)
    errors = property(lambda self: self._tier.errors)

    def footprint_bytes(self, size_bytes: int) -> int:
        return self._tier.footprint_bytes(size_bytes)

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        # One at a time, since a put of what the source file was a moment ago is refused, and rightly so.
        with self._changing:
            path = self._paths.setdefault(key, b"f%03d" % len(self._paths))
            entry = self._mount.manifest.find(path)
            wanted = self._storable(version)
            if self._mount.engine.fetcher.version(entry) != wanted:
                self._mount.change(entry, bytes(data), wanted.mtime_ns)
            return self._tier.put(path, wanted, data)

    def get(self, key: bytes, version: Version) -> bytes | None:
        return self._tier.get(self._path(key), self._storable(version))

    def contains(self, key: bytes) -> bool:
        return self._tier.contains(self._path(key))

    def drop(self, key: bytes) -> None:
        self._tier.drop(self._path(key))

    def keys(self) -> list[bytes]:
        key_of = {path: key for key, path in self._paths.items()}
        return list(map(key_of.__getitem__, self._tier.keys()))

    def close(self) -> None:
        self._tier.close()

    def _path(self, key: bytes) -> bytes:
        return self._paths.get(key, b"not in the manifest/" + key)

    def _storable(self, version: Version) -> Version:
        """The suite's mtimes beyond what a file system or a manifest can hold, made different ones that fit."""
        return version._replace(mtime_ns=version.mtime_ns % MTIMES)
