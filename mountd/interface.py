"""The interface of this package: all that the command line may ask of it. mlfs.cli imports no other module of ours.

In: paths as users type them, the config of a mount. Out: what is mounted and how it does, which process serves a mount,
a daemon that was started. A command imports it while it starts, so it imports nothing heavy: what needs the config's
checks or the daemon itself is imported by the function that is called.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mlfs.errors import MlfsError
from mountd import runtime
from mountd.holder import TABLES
from mountd.holders import User, has_connection, other_mounts, users_of
from mountd.launch import ProgressDisplay, Serving, serve_here, start_daemon
from mountd.mounts import (
    Health,
    MountEntry,
    abort,
    call_with_timeout,
    clear_dead_commands,
    detach,
    enclosing_mlfs,
    hold,
    is_there,
    mount_at,
    mount_table,
    probe,
    resolve,
    unmount,
    user_of,
)
from mountd.runtime import Record, agent_socket
from mountd.wire import tell_in_parts

if TYPE_CHECKING:
    from mlfs.config import MountConfig

__all__ = [
    "TABLES",
    "Health",
    "MountEntry",
    "ProgressDisplay",
    "Record",
    "Serving",
    "User",
    "abort",
    "agent_socket",
    "call_with_timeout",
    "check_mount",
    "check_settings",
    "clean_dead_mounts",
    "clear_dead_commands",
    "default_log_file",
    "detach",
    "enclosing_mlfs",
    "ends_abandoned",
    "forget_daemon",
    "forget_dead_daemons",
    "has_connection",
    "hold",
    "is_running",
    "is_there",
    "mount_at",
    "mount_table",
    "mounted_already",
    "one_start_at_a_time",
    "other_mounts",
    "probe",
    "recorded_daemon",
    "recorded_daemons",
    "resolve",
    "send_signal",
    "serve_here",
    "start_daemon",
    "start_ticks",
    "stopped_daemon",
    "tell_in_parts",
    "unmount",
    "user_of",
    "users_of",
]

# ---- before a mount


def check_mount(config: MountConfig, note: Callable[[str], None]) -> MountConfig:
    """Raise the first reason not to mount; else return the config with symbolic links in its paths resolved.

    Args:
        note: told, in one line each, what was cleaned up.
    """
    from mountd import preflight

    preflight.check(config, note=note)
    # After the check: symbolic links below a dead mount can be read only once that is gone.
    return preflight.resolve_paths(config)


def check_settings(config: MountConfig) -> None:
    """Raise the first reason why a mount that lives cannot have these settings, or the code that the disk has."""
    from mountd import preflight

    preflight.check_settings(config)
    try:
        importlib.import_module("mountd.daemon")
    except Exception as error:  # amid an installation: nothing that stands by is to end for that
        raise MlfsError(f"mlfs as it is on the disk cannot be loaded: {error!r}", "install it again") from None


def mounted_already(config: MountConfig, note: Callable[[str], None]) -> Record | None:
    """The daemon that serves this source at this mount point with these settings; None when nothing is mounted there.

    Raises an MlfsError that names the settings that differ, if any do.
    """
    from mountd import preflight

    return preflight.mounted_already(config, note)


def clean_dead_mounts(path: str, note: Callable[[str], None]) -> int:
    """Detach every mlfs mount at `path` or above it whose daemon is gone. Returns how many there were."""
    from mountd import preflight

    return preflight.clean_dead_mounts(path, note)


def ends_abandoned(entry: MountEntry) -> bool:
    """Whether nobody served a mount any more, and it kept those who asked waiting: then they get errors."""
    from mountd import preflight

    return preflight.ends_abandoned(entry)


# ---- the process that serves a mount

default_log_file = runtime.default_log_file
recorded_daemon = runtime.read
recorded_daemons = runtime.records
is_running = runtime.alive
start_ticks = runtime.start_ticks
stopped_daemon = runtime.stopped
send_signal = runtime.send_signal
forget_daemon = runtime.remove
forget_dead_daemons = runtime.stale


# ---- one start of a mount at a time on a mount point: a second one waits, and then finds the mount of the first
#
# In: a mount point. Out: a lock for as long as a context lasts, kept by a file in the runtime directory that is there
# only meanwhile. `mlfs mount` takes it: prologs of two jobs may come to a node at once.


@contextlib.contextmanager
def one_start_at_a_time(mountpoint: str, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the turn. `note` is told when somebody else has it."""
    path = os.path.join(runtime.runtime_dir(), runtime.mount_name(mountpoint) + ".lock")
    fd = _take(path, lambda: note(f"another mlfs mount of {mountpoint} is under way: waiting for it"))
    try:
        yield
    finally:
        # Before the lock ends: whoever waited for it then sees that the file is gone, and makes a new one.
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(fd)


def _take(path: str, has_to_wait: Callable[[], None]) -> int:
    """A descriptor that holds the lock on the file that lies at the path now."""
    announced = False
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not announced:
                    has_to_wait()
                announced = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
