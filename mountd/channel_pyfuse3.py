"""The portable channel: pyfuse3 mounts, agrees with the kernel on a protocol, pushes and drops pages, ends the session.

In: handlers, a mount point. Out: a mount that serves. Only this module imports the binding. A binding keeps one session
per process.

pyfuse3 would also read and answer the requests, at several times what the handlers cost: a coroutine, two locks, two
passes through libfuse and a task of trio for each. So it answers the first request only, the kernel's INIT; when it
waits for the next, mountd.requests takes its place until the mount is gone (docs/decisions/channel.md). A server that
takes a mount over has the descriptor from its holder, and needs no binding: INIT is not sent again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import pyfuse3
import trio

from mlfs.engine.pagecache import Buffer
from mountd import wire
from mountd.handlers import Handlers
from mountd.left_behind import Suspects, UnderWay
from mountd.poll_wait import PollWait
from mountd.requests import Requests
from mountd.silent import Silence


class _OnlyInit(pyfuse3.Operations):
    """Requests of pyfuse3 while it answers INIT."""

    supports_dot_lookup = True  # file handles (NFS) are good for as long as the mount is
    enable_writeback_cache = False


class Pyfuse3Channel:
    """The session of this process's mount. Args: silence, under_way: see `mountd.requests.Requests`."""

    name = "pyfuse3"

    def __init__(self, silence: Silence | None = None, under_way: UnderWay | None = None) -> None:
        self.poll_wait = PollWait()
        self._silence, self._under_way = silence, under_way
        self._requests: Requests | None = None
        self._agreed: Callable[[int], None] | None = None
        self._fd = -1
        self._suspects: Suspects | None = None  # of a mount that was taken over

    def mount(
        self, handlers: Handlers, mountpoint: str, options: set[str], with_acls: bool, generation: int,
        agreed: Callable[[int], None],
    ) -> None:  # fmt: skip
        """Mount; the kernel's requests wait until `serve` runs. Raises OSError or RuntimeError.

        Args:
            with_acls: have the kernel enforce POSIX ACLs: it asks for them by GETXATTR.
            generation: of the mount's inodes. agreed: told the descriptor, once it can be served by anybody.
        """
        self._requests = Requests(handlers, self.poll_wait, generation, self._silence, self._under_way)
        self._agreed = agreed
        lowlevel = SimpleNamespace(**vars(trio.lowlevel))
        lowlevel.wait_readable = self._wait
        vars(pyfuse3)["trio"] = SimpleNamespace(**vars(trio) | {"lowlevel": lowlevel})
        operations = _OnlyInit()
        operations.enable_acl = with_acls
        pyfuse3.init(operations, mountpoint, options)

    def take_over(self, handlers: Handlers, fd: int, generation: int, suspects: Suspects) -> None:
        """Serve the mount of a server that has died. The kernel has agreed with that one on a protocol, for good."""
        self._suspects = suspects
        self._requests = Requests(handlers, self.poll_wait, generation, self._silence, self._under_way)
        self._fd = fd

    async def serve(self) -> None:
        """Answer requests until the mount goes away."""
        if self._suspects is not None and self._requests is not None:
            await self._requests.serve(self._fd, self._suspects)
        else:
            await pyfuse3.main(min_tasks=1, max_tasks=1)

    async def _wait(self, fd: int) -> None:
        """pyfuse3 waits here for its next request: it gets INIT, and in the place of all others the end of the
        session."""
        if self._fd < 0:
            await trio.lowlevel.wait_readable(fd)
            self._fd = fd
        elif self._requests is not None:
            if self._agreed is not None:
                self._agreed(fd)
            await self._requests.serve(fd)

    @property
    def descriptor(self) -> int:
        """The descriptor of /dev/fuse, once the mount serves."""
        return self._fd

    def close(self, unmount: bool) -> None:
        """Let go of the session; unmounts what is still mounted if `unmount`."""
        if self._suspects is not None:
            os.close(self._fd)
        else:
            pyfuse3.close(unmount=unmount)

    def store(self, inode: int, offset: int, data: Buffer) -> None:
        """FUSE_NOTIFY_STORE; blocks, for worker threads."""
        os.writev(self._fd, [wire.stored_head(inode, offset, len(data)), data])

    def invalidate(self, inode: int, offset: int, size: int) -> None:
        """FUSE_NOTIFY_INVAL_INODE, attributes and pages, with a size those of a range; blocks, for worker threads."""
        os.write(self._fd, wire.invalidation(inode, offset, size))

    def forget_name(self, directory: int, name: bytes) -> None:
        """FUSE_NOTIFY_INVAL_ENTRY; waits for requests that look names of the directory up, for worker threads."""
        os.write(self._fd, wire.name_forgotten(directory, name))

    def forget_attributes(self, inode: int) -> None:
        """FUSE_NOTIFY_INVAL_INODE, attributes only; blocks, for worker threads."""
        os.write(self._fd, wire.invalidation(inode, -1, 0))

    def requests_so_far(self) -> dict[str, int]:
        """The requests so far, by kind."""
        return self._requests.so_far() if self._requests else {}
