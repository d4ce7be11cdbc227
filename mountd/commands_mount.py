"""The mount is read-only for the kernel, and commands go in by a second mount of the same file system beside it.

In: the mount point, which the channel has mounted `ro`. Out: a mount of its directory .mlfs/commands below the runtime
directory, which may be written; the links MOUNT/.mlfs/control and lifecycle lead there. Made and watched by
mountd.daemon; `mountd.mounts.release_commands` takes it away when the data's mount goes.

The mount is read-only and the file system is not: access(2), /proc/mounts and whoever makes a bind mount of it go by
the mount, and another mount of one file system may be written. The data's mount is `ro` from the call that makes it, so
that it is that in each mount namespace to which it spreads; only then the file system itself is made writable. The
data's mount becomes writable again and takes commands itself where the kernel refuses one of these steps.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trio

from mlfs.engine.runner import Runner
from mlfs.errors import MlfsError
from mountd import mounts, runtime

log = logging.getLogger("mlfs.commands")

# System calls of linux/mount.h (5.2, mount_setattr 5.12); their numbers are the same on all architectures.
_OPEN_TREE, MOVE_MOUNT, _FSCONFIG, FSPICK, _MOUNT_SETATTR = 428, 429, 431, 433, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_CLONE, _FROM_EMPTY_PATH, _PICK_CLOEXEC, _PICK_EMPTY_PATH = 1, 4, 1, 8
_SET_FLAG, _RECONFIGURE = 0, 7
_ATTR_RDONLY = 1
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32
_CAP_SYS_ADMIN = 21
# A table of mounts that changes all the time is not read more often.
_LOOK_S = 0.1
# Somebody who takes the mount for commands away gets it back so often: a machine that shuts down must come to its end.
MOST_TIMES = 5
_UNHEARD = "nobody would hear who opens a file to write"

_libc = ctypes.CDLL(None, use_errno=True)


class _GoneError(Exception):
    """The mount is not there any more."""


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class CommandsMount:
    """The mount for commands of one mount.

    Args:
        mountpoint: where the data is mounted. shared: whether other users may see the mount.
        made: told the directory of each mount for commands that is made here.
        stays_closed: whether the data's mount may not be writable, whatever is refused.

    Attributes:
        wanted: whether the data is to be mounted `ro`: this process may do what that takes.
        directory: where commands go in, as the links in MOUNT/.mlfs say; None while they go in at the data's mount.
        refused: why that is so, for people; empty if it is not so.
    """

    def __init__(
        self, mountpoint: str, shared: bool, made: Callable[[str], None] = lambda _: None,
        stays_closed: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._mountpoint = mountpoint
        self._stays_closed = stays_closed
        self._made = made
        self._shared = shared
        self._times = 0
        self.wanted = _may_mount()
        # Why the data's mount cannot be made writable either.
        self._closed = _UNHEARD if not self.wanted and stays_closed() else None
        self.directory: bytes | None = None
        self.refused = "" if self.wanted else "only root with CAP_SYS_ADMIN may have it otherwise"

    @property
    def is_open(self) -> bool:
        """Whether commands go in at the data's mount, so that the kernel must let somebody write there."""
        return bool(self.refused) and self._closed is None

    def make(self, device: str) -> None:
        """From a worker, when the mount answers: have the links lead to a mount of its own. `refused` says if not.

        Args:
            device: of the mount's file system.
        """
        self._times += 1
        self.end()
        directory = ""
        try:
            with self._root(device) as root:
                directory = runtime.commands_directory(self._mountpoint, self._shared)
                _make_writable(root)
                _mount_part(root, mounts.COMMANDS_ROOT.lstrip("/"), directory)
                self.directory = os.fsencode(directory)
            self._made(directory)
        except _GoneError:
            log.debug("the mount has gone while its mount for commands was made")
        except (OSError, MlfsError) as error:
            if directory:
                mounts.clear_commands(directory)
            why = error.message if isinstance(error, MlfsError) else f"{error.strerror} ({error.filename or 'mount'})"
            self._give_up(device, why)

    def take_over(self, directory: str | None) -> None:
        """Commands go in where the process has had them come that served this mount before; None: at the data's."""
        self.directory = None if directory is None else os.fsencode(directory)

    @contextmanager
    def _root(self, device: str) -> Iterator[int]:
        """A descriptor of the mount's root. The source's own entry may lie there when the mount is gone, and is not to
        be touched: to make it writable would be grave. Raises: _GoneError."""
        fd = os.open(self._mountpoint, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            number = os.fstat(fd).st_dev
            if device != f"{os.major(number)}:{os.minor(number)}":
                raise _GoneError
            yield fd
        finally:
            os.close(fd)

    def _give_up(self, device: str, why: str) -> None:
        self.refused, self.directory = why, None
        if self._stays_closed():
            self._closed = _UNHEARD
            log.warning("%s", self.words())
            return
        try:
            with self._root(device) as root:
                # The old way: what forbids the new calls, such as a seccomp profile, may not know this one.
                flags = _MS_REMOUNT | _MS_NOSUID | _MS_NODEV
                _call("mount", None, b"/proc/self/fd/%d" % root, None, flags, None)
        except _GoneError:
            return
        except OSError as error:
            self._closed = error.strerror
        log.warning("%s", self.words())

    def words(self) -> str:
        """A sentence for whoever mounts; empty if all is as it should be."""
        if not self.refused:
            return ""
        if self._closed is not None:
            return (
                f"nothing can be written to the control file of the mount: {self.refused}, and the mount cannot be made"
                f" writable ({self._closed}); mlfs register and the other commands work all the same"
            )
        return (
            f"the mount is rw for the kernel, since commands go through it: {self.refused}; what writes fails with"
            " EROFS all the same, but access(2) and `test -w` say yes to the files' owners"
        )

    async def watch(self, runner: Runner, device: str) -> None:
        """Let go of the mount for commands when the data's mount is gone, however it went: it must not outlive it."""
        with select.epoll() as changes, open("/proc/self/mountinfo", "rb") as table:
            # A table of mounts can always be read, and its waiters are woken at each change: so edges are what counts.
            # The first look comes at once.
            changes.register(table, select.EPOLLIN | select.EPOLLET)
            while True:
                await trio.lowlevel.wait_readable(changes.fileno())
                changes.poll(0)
                if await runner.run("look", mounts.release_commands, device):
                    return
                if self.directory is not None and not await runner.run("look", self._is_there, device):
                    log.warning(
                        "%s was unmounted, by which commands go: mounting it again", os.fsdecode(self.directory)
                    )
                    await runner.run("look", self.make if self._times < MOST_TIMES else self.leave, device)
                await trio.sleep(_LOOK_S)

    def end(self) -> None:
        """The mount has ended: leave nothing of the mount for commands behind. With it the file system may have ended,
        and so has the worker that took it away before it could remove the directory."""
        if self.directory is not None:
            mounts.clear_commands(os.fsdecode(self.directory))

    def _is_there(self, device: str) -> bool:
        return any(entry.device == device and entry.takes_commands for entry in mounts.mount_table())

    def leave(self, device: str) -> None:
        self.end()
        self._give_up(device, f"its mount for commands was taken away {self._times} times")


def _may_mount() -> bool:
    """Whether this process may mount without fusermount3, which would mount read-only for good."""
    if os.geteuid() != 0:
        return False
    with suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status.read().splitlines())
        return bool(int(fields.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1)
    return False


def _make_writable(root: int) -> None:
    """Make the file system of a mount writable, and leave the mount itself as it is."""
    fs = _syscall(FSPICK, root, b"", _PICK_CLOEXEC | _PICK_EMPTY_PATH)
    try:
        _syscall(_FSCONFIG, fs, _SET_FLAG, b"rw", None, 0)
        _syscall(_FSCONFIG, fs, _RECONFIGURE, None, None, 0)
    finally:
        os.close(fs)


def _mount_part(root: int, part: str, directory: str) -> None:
    """Mount a directory of a read-only mount once more, so that it may be written there. At no moment it may not."""
    tree = _syscall(_OPEN_TREE, root, os.fsencode(part), _CLONE | os.O_CLOEXEC)
    try:
        attr = _MountAttr(attr_clr=_ATTR_RDONLY)
        _syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attr), ctypes.sizeof(attr))
        _syscall(MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(directory), _FROM_EMPTY_PATH)
    finally:
        os.close(tree)


def detached(mountpoint: bytes) -> int:
    """A descriptor of a copy of the mount that lies nowhere: whoever reads by it does not keep the mount from being
    unmounted. The file system ends when it is closed. Raises: OSError, where the kernel or the user's rights forbid it.
    """
    return _syscall(_OPEN_TREE, _AT_FDCWD, mountpoint, _CLONE | os.O_CLOEXEC)


def _syscall(number: int, *args: object) -> int:
    return _call("syscall", *(ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *args)))


def _call(name: str, *args: object) -> int:
    result = int(getattr(_libc, name)(*args))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
