"""The door of this package: all that the command line may ask of it. No module of mlfs.cli imports another one of ours.

In: paths as users type them, the config of a mount. Out: what is mounted and how it does, which process serves a mount,
a daemon that was started. A command imports it while it starts, so it imports nothing heavy: what needs the config's
checks or the daemon itself is imported by the function that is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mountd import runtime
from mountd.command_calls import tell_in_parts
from mountd.holders import User, other_mounts, users_of
from mountd.launch import ProgressDisplay, Serving, serve_here, start_daemon
from mountd.mounts import (
    Health,
    MountEntry,
    call_with_timeout,
    clear_dead_commands,
    detach,
    enclosing_mlfs,
    mount_at,
    mount_table,
    probe,
    resolve,
    unmount,
    user_of,
)
from mountd.runtime import Record, agent_socket
from mountd.turn import one_start_at_a_time

if TYPE_CHECKING:
    from mlfs.config import MountConfig

__all__ = [
    "Health",
    "MountEntry",
    "ProgressDisplay",
    "Record",
    "Serving",
    "User",
    "agent_socket",
    "call_with_timeout",
    "check_mount",
    "clean_dead_mounts",
    "clear_dead_commands",
    "default_log_file",
    "detach",
    "enclosing_mlfs",
    "forget_daemon",
    "forget_dead_daemons",
    "is_running",
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
