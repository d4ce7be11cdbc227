"""A FUSE file system just big enough to stand in for the daemon of a mount in the tests of the commands.

Run as a program: `tiny_fs.py --config-fd N --status-fd M` (as `mlfs mount` does) or `tiny_fs.py MOUNTPOINT`.
It shows data.bin and .mlfs/status, .mlfs/control and .mlfs/lifecycle, notes every command it is given in the status,
refuses a seed of -1 with EINVAL, and writes and removes its runtime record. $TINY_FS says what it does: serve
(default), error, die, silent, broken (reports that it serves, and does not). $TINY_STATUS
names a file with more of its status.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
import time

import pyfuse3
import trio

from mountd import runtime

ROOT, DATA, CONTROL_DIR, STATUS, CONTROL, LIFECYCLE = pyfuse3.ROOT_INODE, 2, 3, 4, 5, 6
NAMES = {(ROOT, b"data.bin"): DATA, (ROOT, b".mlfs"): CONTROL_DIR}
NAMES |= {(CONTROL_DIR, b"status"): STATUS, (CONTROL_DIR, b"control"): CONTROL, (CONTROL_DIR, b"lifecycle"): LIFECYCLE}
CONTENT = bytes(range(256)) * 16


class TinyFs(pyfuse3.Operations):
    """Two files, one of which answers."""

    def __init__(self, mountpoint: str) -> None:
        super().__init__()
        self.mountpoint = mountpoint
        self.commands: list[dict[str, object]] = []
        self.answer: dict[str, object] = {"ok": True}
        self.stands = 0  # where the descriptor stands through which a command came: there the answer begins

    def _text(self, inode: int) -> bytes:
        if inode == STATUS:
            status = {"pid": os.getpid(), "state": "serving", "mountpoint": self.mountpoint, "commands": self.commands}
            if os.environ.get("TINY_STATUS"):
                with open(os.environ["TINY_STATUS"], encoding="utf-8") as file:
                    status |= json.load(file)
            return json.dumps(status).encode()
        return CONTENT if inode == DATA else json.dumps(self.answer).encode()

    async def getattr(self, inode, ctx=None):  # type: ignore[no-untyped-def]
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = (stat.S_IFDIR | 0o755) if inode in (ROOT, CONTROL_DIR) else (stat.S_IFREG | 0o644)
        entry.st_size = len(CONTENT) if inode == DATA else 0
        entry.st_nlink, entry.st_uid = 1, os.getuid()
        # Long, as in the real daemon: a stat of a dead mount may then be answered from the kernel's cache.
        entry.attr_timeout = entry.entry_timeout = 3600
        return entry

    async def lookup(self, parent_inode, name, ctx=None):  # type: ignore[no-untyped-def]
        inode = NAMES.get((parent_inode, bytes(name)))
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(inode)

    async def open(self, inode, flags, ctx):  # type: ignore[no-untyped-def]
        return pyfuse3.FileInfo(fh=inode, direct_io=inode != DATA)

    async def setattr(self, inode, attr, fields, fh, ctx):  # type: ignore[no-untyped-def]
        return await self.getattr(inode)

    async def read(self, fh, off, size):  # type: ignore[no-untyped-def]
        begins = self.stands if fh == CONTROL else 0
        return self._text(fh)[off - begins : off - begins + size]

    async def write(self, fh, off, buf):  # type: ignore[no-untyped-def]
        command = json.loads(bytes(buf))
        self.commands.append(command)
        self.stands = off
        if command.get("seed") == -1:
            self.answer = {"ok": False, "error": "must not be negative", "field": "seed", "hint": "give 0 or more"}
            raise pyfuse3.FUSEError(errno.EINVAL)
        paths = {str(rank): [f"a/{rank}-{i}.jpg" for i in range(5)] for rank in command.get("ranks", [])}
        self.stands = off + len(buf)
        self.answer = {"ok": True, "job": {k: v for k, v in command.items() if k != "op"}, "first_paths": paths}
        return len(buf)

    async def statfs(self, ctx):  # type: ignore[no-untyped-def]
        return pyfuse3.StatvfsData()


async def _serve() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_on_sigterm)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


async def _end_on_sigterm() -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            pyfuse3.terminate()


def _report(status_fd: int | None, message: dict[str, object]) -> None:
    if status_fd is not None:
        os.write(status_fd, json.dumps(message).encode() + b"\n")


def serve(mountpoint: str, source: str, status_fd: int | None, settings: dict[str, object] | None = None) -> None:
    """Mount, report, serve until SIGTERM or until it is unmounted."""
    pyfuse3.init(TinyFs(mountpoint), mountpoint, {"fsname=mlfs:tiny", "subtype=mlfs", "default_permissions"})
    runtime.write(mountpoint, source, None, settings=settings)
    _report(status_fd, {"progress": {"phase": "scan", "dirs": 1, "files": 2}})
    _report(status_fd, {"serving": {"pid": os.getpid(), "files": 1, "bytes": len(CONTENT), "how": "scanned 0.1 s"}})
    try:
        trio.run(_serve)
    finally:
        runtime.remove(mountpoint, os.getpid())
        pyfuse3.close(unmount=True)


def main() -> None:
    """See the module's docstring."""
    behaviour, argv = os.environ.get("TINY_FS", "serve"), sys.argv[1:]
    if argv[0] != "--config-fd":
        return serve(argv[0], argv[0], None)
    with os.fdopen(int(argv[1])) as file:
        config = json.load(file)
    status_fd = int(argv[3])
    if behaviour == "die":
        print("the last words of the daemon", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "error":
        _report(status_fd, {"error": {"message": "no luck today", "hint": "come back", "exit_code": 3}})
        return None
    if behaviour == "silent":
        time.sleep(60)
    if behaviour == "broken":
        _report(status_fd, {"serving": {"pid": os.getpid()}})
        time.sleep(60)
    return serve(config["mountpoint"], config["source"], status_fd, config)


if __name__ == "__main__":
    main()
