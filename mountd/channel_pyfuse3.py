"""The portable channel: pyfuse3 mounts, agrees with the kernel on a protocol, pushes and drops pages, ends the session.

In: handlers, a mount point. Out: a mount that serves. Only this module imports the binding. A binding keeps one session
per process.

pyfuse3 would also read and answer the requests, at several times what the handlers cost: a coroutine, two locks, two
passes through libfuse and a task of trio for each. So it answers the first request only, the kernel's INIT; when it
waits for the next, mountd.requests takes its place until the mount is gone (docs/decisions/channel.md).
"""

from __future__ import annotations

import secrets
from types import SimpleNamespace
from typing import Any, cast

import pyfuse3
import trio

from mlfs.engine.pagecache import Buffer
from mountd import wire
from mountd.handlers import Handlers
from mountd.poll_wait import PollWait
from mountd.requests import Requests


class _OnlyInit(pyfuse3.Operations):
    """Requests of pyfuse3 while it answers INIT."""

    supports_dot_lookup = True  # file handles (NFS) are good for as long as the mount is
    enable_writeback_cache = False


class Pyfuse3Channel:
    """The session of this process's mount."""

    name = "pyfuse3"

    def __init__(self) -> None:
        self.poll_wait = PollWait()
        self._requests: Requests | None = None
        self._agreed = False

    def mount(self, handlers: Handlers, mountpoint: str, options: set[str], with_acls: bool) -> None:
        """Mount; the kernel's requests wait until `serve` runs. Raises OSError or RuntimeError.

        Args:
            with_acls: have the kernel enforce POSIX ACLs: it asks for them by GETXATTR.
        """
        self._requests = Requests(handlers, self.poll_wait, generation=secrets.randbits(31) + 1)
        lowlevel = SimpleNamespace(**vars(trio.lowlevel))
        lowlevel.wait_readable = self._wait
        vars(pyfuse3)["trio"] = SimpleNamespace(**vars(trio) | {"lowlevel": lowlevel})
        operations = _OnlyInit()
        operations.enable_acl = with_acls
        pyfuse3.init(operations, mountpoint, options)

    async def serve(self) -> None:
        """Answer requests until the mount goes away."""
        await pyfuse3.main(min_tasks=1, max_tasks=1)

    async def _wait(self, fd: int) -> None:
        """pyfuse3 waits here for its next request: it gets INIT, and in the place of all others the end of the
        session."""
        if not self._agreed:
            await trio.lowlevel.wait_readable(fd)
            self._agreed = True
        elif self._requests is not None:
            await self._requests.serve(fd)

    def close(self, unmount: bool) -> None:
        """Let go of the session; unmounts what is still mounted if `unmount`."""
        pyfuse3.close(unmount=unmount)

    def store(self, inode: int, offset: int, data: Buffer) -> None:
        """FUSE_NOTIFY_STORE; blocks, for worker threads."""
        pyfuse3.notify_store(inode, offset, cast(Any, data))

    def invalidate(self, inode: int, offset: int, size: int) -> None:
        """FUSE_NOTIFY_INVAL_INODE, attributes and pages, with a size those of a range; blocks, for worker threads."""
        if size and self._requests is not None:
            self._requests.notify(wire.invalidation(inode, offset, size))  # pyfuse3 knows no range
        else:
            pyfuse3.invalidate_inode(inode)

    def forget_name(self, directory: int, name: bytes) -> None:
        """FUSE_NOTIFY_INVAL_ENTRY; waits for requests that look names of the directory up, for worker threads."""
        pyfuse3.invalidate_entry(directory, name)

    def forget_attributes(self, inode: int) -> None:
        """FUSE_NOTIFY_INVAL_INODE, attributes only; blocks, for worker threads."""
        pyfuse3.invalidate_inode(inode, attr_only=True)

    def requests_so_far(self) -> dict[str, int]:
        """The requests so far, by kind."""
        return self._requests.so_far() if self._requests else {}
