"""Lists mounts, tells which are dead or hung, and takes one away.

In: paths (`str` in surrogateescape form: any bytes), /proc. Out: `MountEntry`, `Health`. Called by `mountd.preflight`,
the daemon's start and end, and through `mountd.interface` by commands. `mountd.holders` says who uses a mount.

A mount whose server hangs blocks whoever touches it, for ever. So nothing here touches a mount except `probe`, which
does it in a thread that may be left behind; what is mounted is read from /proc.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import threading
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeVar

from mlfs.errors import ExitCode, MlfsError

FSTYPE = "fuse.mlfs"
# The mount of ours that takes commands, and has no data, shows this (mountd.commands_mount).
COMMANDS_ROOT = "/.mlfs/commands"
# What mlfs itself mounts elsewhere, for commands, lies below this directory of a mount; it holds nobody up.
CONTROL_ROOT = "/.mlfs"
PROBE_TIMEOUT_S = 5.0
_MNT_FORCE, _MNT_DETACH, _MNT_EXPIRE = 1, 2, 4
_UMOUNT_NOFOLLOW = 8

T = TypeVar("T")


class MountEntry(NamedTuple):
    """One line of /proc/self/mountinfo."""

    mount_id: int
    parent_id: int
    device: str
    """`major:minor` of the file system's own device number."""
    mountpoint: str
    fstype: str
    source: str
    """For ours `mlfs:SOURCE`."""
    options: frozenset[str] = frozenset()
    """Options of this mount and of its file system: `ro`, `relatime`, `vers=4.2`."""
    root: str = "/"
    """The directory of its file system that this mount shows."""
    propagation: frozenset[str] = frozenset()
    """Its peer groups: `shared:5`, `master:7`."""

    @property
    def is_mlfs(self) -> bool:
        """Whether it shows a data set and a daemon of ours serves it, or did."""
        return self.fstype == FSTYPE and not is_below(self.root, CONTROL_ROOT)

    @property
    def is_on_top(self) -> bool:
        """Whether it is an overlay of `mlfs run`: the mount below is what is read, and takes commands."""
        return self.fstype == "overlay" and self.source.startswith("mlfs:")

    @property
    def takes_commands(self) -> bool:
        """Whether it is no data set's mount, but the one beside it through which commands go."""
        return self.fstype == FSTYPE and self.root == COMMANDS_ROOT

    def is_same(self, other: MountEntry | None) -> bool:
        """Whether it is this very mount, whatever has become of its options."""
        return other is not None and self[:4] == other[:4]

    def is_among(self, entries: list[MountEntry]) -> bool:
        return any(map(self.is_same, entries))


class Health(Enum):
    """A mount point's answer when it is asked."""

    OK = "ok"
    DEAD = "dead"
    """Transport endpoint is not connected: the server is gone, the mount is not."""
    HUNG = "hung"
    """No answer in time."""
    MISSING = "missing"


def parse_mountinfo(text: bytes) -> list[MountEntry]:
    """The entries of a mountinfo file. Names may hold any bytes: the kernel writes some of them as octal escapes."""
    entries = []
    # Not splitlines(): that also splits at carriage returns, which the kernel does not escape.
    for line in os.fsdecode(text).split("\n"):
        fields = line.split(" ")
        if len(fields) < 10 or "-" not in fields[6:]:
            continue
        # Optional fields end at the first lone dash; the six fields in front of them are always there.
        dash = fields.index("-", 6)
        options = ",".join((fields[5], *fields[dash + 3 : dash + 4])).split(",")  # some have an escaped comma
        if "\\" in line:
            fields, options = list(map(_unescape, fields)), list(map(_unescape, options))
        fstype, *after = fields[dash + 1 :]
        entries.append(
            MountEntry(
                mount_id=int(fields[0]),
                parent_id=int(fields[1]),
                device=fields[2],
                mountpoint=fields[4],
                fstype=fstype,
                source=after[0] if after else "",
                options=frozenset(options),
                root=fields[3],
                propagation=frozenset(fields[6:dash]),
            )
        )
    return entries


def _unescape(field: str) -> str:
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 0xFF]), os.fsencode(field)))


def mount_table() -> list[MountEntry]:
    """The mounts of this process's mount namespace at this moment."""
    with open("/proc/self/mountinfo", "rb") as file:
        return parse_mountinfo(file.read())


def topmost(entries: list[MountEntry], path: str) -> MountEntry | None:
    """The mount that a look-up of `path` itself ends at; mounts stacked on one path hide those below."""
    here = [entry for entry in entries if entry.mountpoint == path]
    # The order of mountinfo does not say which one is on top; that a lower one is the parent of the next does.
    covered = {entry.parent_id for entry in here}
    return next((entry for entry in reversed(here) if entry.mount_id not in covered), None)


def mount_at(path: str) -> MountEntry | None:
    """The topmost mount whose mount point is `path`, None when `path` is no mount point. Touches no mount of ours.

    For whoever runs under `mlfs run` it is the mount below the overlay.
    """
    return topmost(_below_overlays(), resolve(path))


def _below_overlays() -> list[MountEntry]:
    return [entry for entry in mount_table() if not entry.is_on_top]


def user_of(path: str) -> int | None:
    """The user who has mounted the FUSE file system at `path`; None where that is not known."""
    entry = mount_at(path)
    words = (option.partition("=") for option in entry.options) if entry is not None else ()
    return next((int(value) for name, _, value in words if name == "user_id" and value.isdecimal()), None)


def enclosing_mlfs(path: str) -> list[MountEntry]:
    """The topmost mlfs mounts at `path` and above it, nearest first."""
    entries, resolved, found = _below_overlays(), resolve(path), []
    while True:
        entry = topmost(entries, resolved)
        if entry is not None and entry.is_mlfs:
            found.append(entry)
        if resolved == "/":
            return found
        resolved = os.path.dirname(resolved)


def resolve(path: str) -> str:
    """`os.path.realpath`, but symbolic links at and below an mlfs mount are left alone: it may be dead or hung."""
    ours = {entry.mountpoint for entry in mount_table() if entry.is_mlfs}
    pending = [part for part in reversed(os.path.abspath(path).split("/")) if part]
    resolved, links = "/", 0
    while pending:
        part = pending.pop()
        if part == "..":
            resolved = os.path.dirname(resolved)
            continue
        step = os.path.join(resolved, part)
        target = None if step in ours else link_target(step)
        if target is None or links >= 40:
            resolved = step
            if step in ours:
                return os.path.normpath(os.path.join(step, *reversed(pending)))
            continue
        links += 1
        resolved = "/" if target.startswith("/") else resolved
        pending += [name for name in reversed(target.split("/")) if name not in ("", ".")]
    return resolved


def is_below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies below it (by name; both absolute and resolved)."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def link_target(path: str) -> str | None:
    """The path to which a symbolic link leads; None for what is no link, or may not be read."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def call_with_timeout(function: Callable[[], T], timeout_s: float) -> T:
    """The result of `function`; TimeoutError when it has not returned within `timeout_s`.

    The thread of a call that hangs is left behind: a stat of a hung mount cannot be interrupted by anything but the
    end of the process.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # handed over to the caller below
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True, name="mlfs-may-hang")
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had: it may wait for longer
        return function()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    if errors:
        raise errors[0]
    return results[0]


def probe(path: str, timeout_s: float = PROBE_TIMEOUT_S) -> Health:
    """Whether whatever is at `path` answers. May leave a thread behind when it does not."""

    def ask() -> None:
        os.stat(path)
        # The kernel may answer stat from its attribute cache long after the server is gone; statfs is never cached.
        os.statvfs(path)

    try:
        call_with_timeout(ask, timeout_s)
    except TimeoutError:
        return Health.HUNG
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            return Health.DEAD
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return Health.MISSING
        # Permission denied, say, is an answer too.
    return Health.OK


def is_dead(path: str, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether `path` is a mount whose server is gone (Transport endpoint is not connected)."""
    return probe(path, timeout_s) is Health.DEAD


def is_there(device: str) -> bool:
    """Whether a file system is there, mounted or not: while anything uses it. Args: device: `major:minor`."""
    return os.path.exists(f"/sys/class/bdi/{device}")


def unmount(path: str, only: MountEntry | None = None) -> bool:
    """Unmount the topmost mount at `path`. True: done; False: busy. Raises MlfsError when it may not or cannot be.

    With `only` that mount and no other: True also when it is gone already. A daemon and `mlfs unmount` may both try:
    what lies below the mount that the first of them took away (the source's own, say) is not for the second.
    """
    entries = mount_table()
    top = topmost(entries, path)
    entry = only or top
    gone = only is not None and not only.is_among(entries)
    if not gone and only is not None and not only.is_same(top):
        return False  # somebody has mounted something over it
    if not gone and entry is not None and _is_commanded(entry.device):
        return False
    try:
        done = gone or _unmount(path, lazy=False)
    except MlfsError:
        if only is None or only.is_among(mount_table()):
            raise
        done = True
    if done and entry is not None:
        release_commands(entry.device)
    return done


def detach(path: str, only: MountEntry | None = None) -> None:
    """Take the topmost mount at `path` out of the tree at once; it ends when its last user lets go.

    With `only` that mount and no other, and it is no error when it is gone already.
    """
    entries = mount_table()
    top = topmost(entries, path)
    if only is None or only.is_among(entries):
        if only is not None and not only.is_same(top):
            raise MlfsError(f"something else is mounted over {path}", f"umount {path}", ExitCode.MOUNT_POINT)
        if not _unmount(path, lazy=True):
            raise MlfsError(f"{path} is busy and could not be detached", f"try: fusermount3 -u -z {path}")
    if entry := only or top:
        release_commands(entry.device)


def hold(entry: MountEntry) -> int | None:
    """A descriptor of the mount's root, for which its server is asked nothing; None where the mount is gone.

    So long the file system stays, mounted or not, and no other one gets its device number.
    """
    try:
        held = os.open(entry.mountpoint, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(f"/proc/self/fdinfo/{held}", encoding="ascii") as file:
        if f"mnt_id:\t{entry.mount_id}\n" in file:
            return held
    os.close(held)
    return None


def abort(entry: MountEntry, held: int | None) -> None:
    """End the connection of a mount that nobody serves: all who wait for it get an error, and so does who asks.

    The kernel does so by itself once no process has the descriptor. But a thread of a dead server may wait for its own
    mount, and its process keeps the descriptor for as long.

    Args:
        held: what `hold` gave, which is closed. Without it nothing is done: the number may be another file system's.
    """
    if held is None:
        return
    try:
        with open(f"/sys/fs/fuse/connections/{entry.device.partition(':')[2]}/abort", "w") as file:
            file.write("1")
    except OSError:
        if os.geteuid() == 0 and entry.is_same(mount_at(entry.mountpoint)):  # as in a container
            umount2(entry.mountpoint, _UMOUNT_NOFOLLOW | _MNT_FORCE)
    finally:
        os.close(held)


def _is_commanded(device: str) -> bool:
    """Whether somebody waits for the answer to a command: the mount for commands is busy, the data's need not be."""
    for entry in mount_table():
        if entry.takes_commands and entry.device == device:
            # It only tells, the first time: EAGAIN, or EBUSY. The next visitor of the mount makes it the first time
            # again: we do, with an open that asks the file system nothing.
            if umount2(entry.mountpoint, _UMOUNT_NOFOLLOW | _MNT_EXPIRE) == errno.EBUSY:
                return True
            with contextlib.suppress(OSError):
                os.close(os.open(entry.mountpoint, os.O_PATH | os.O_CLOEXEC))
    return False


def release_commands(device: str) -> bool:
    """Take away the mount through which commands go to a file system, when its data is not mounted here any more.

    It would keep the file system alive for ever. Whether nothing of the file system is mounted here now.
    """
    here = [entry for entry in mount_table() if entry.device == device and entry.fstype == FSTYPE]
    if any(not entry.takes_commands for entry in here):
        return False
    for entry in here:
        clear_commands(entry.mountpoint)
    return True


def clear_commands(directory: str) -> None:
    """Take away every mount for commands at a directory, and the directory."""
    while (entry := topmost(mount_table(), directory)) is not None and entry.takes_commands:
        if umount2(directory, _UMOUNT_NOFOLLOW | _MNT_DETACH):
            return
    with contextlib.suppress(OSError):
        os.rmdir(directory)  # what other mount namespaces have mounted there goes with it


def clear_dead_commands() -> None:
    """Take away each mount for commands whose daemon is dead and whose data is not mounted any more."""
    entries = mount_table()
    with_data = {entry.device for entry in entries if not entry.takes_commands}
    for entry in entries:
        if entry.takes_commands and entry.device not in with_data and is_dead(entry.mountpoint):
            clear_commands(entry.mountpoint)


def _unmount(path: str, *, lazy: bool) -> bool:
    if os.geteuid() == 0:
        code = umount2(path, _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0))
        if code in (0, errno.EBUSY):
            return code == 0
        if code in (errno.EINVAL, errno.ENOENT):
            raise MlfsError(f"nothing is mounted at {path}", "see: findmnt -t fuse.mlfs", ExitCode.NOT_MOUNTED)
        # EPERM: root without CAP_SYS_ADMIN, as in a container; the set-uid helper may still be allowed to.
    return _fusermount(path, lazy)


def umount2(path: str, flags: int) -> int:
    """umount2(2), the error number or 0. Follows no link and asks the mounted file system nothing."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return 0 if libc.umount2(os.fsencode(path), flags) == 0 else ctypes.get_errno()


def _fusermount(path: str, lazy: bool) -> bool:
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", path]
    try:
        # The C locale: its words are looked at below.
        done = subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": "C"}, timeout=30, check=False)
    except FileNotFoundError:
        raise MlfsError("fusermount3 is not installed", "apt install fuse3", ExitCode.NO_FUSE) from None
    except subprocess.TimeoutExpired:
        raise MlfsError(f"fusermount3 -u {path} does not come back", "umount it as root") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == 0:
        return True
    if "busy" in said:
        return False
    if "not found in" in said or "nvalid argument" in said:
        raise MlfsError(f"nothing is mounted at {path}", "see: findmnt -t fuse.mlfs", ExitCode.NOT_MOUNTED)
    hint = "unmount it as the user who mounted it, or as root"
    raise MlfsError(f"cannot unmount {path}: {said}", hint, ExitCode.NOT_PERMITTED)
