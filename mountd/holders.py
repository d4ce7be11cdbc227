"""Finds who holds a mount: processes with something open on it, and other mounts of the same file system.

In: a mount, /proc. Out: `User`s, each with words that a person can act on. Called by `mountd.daemon` at its end, and
through `mountd.interface` by commands: unmounting must not end a daemon that somebody still reads through.

A file system can be mounted in several places: a bind mount of it or of a directory in it, the copy that a container's
mount namespace got when it was made, the lower layer of an overlay. The kernel unmounts one of them without a word, and
whoever reads through the others gets ENOTCONN once the daemon is gone. All mounts of a file system have one device
number, which stands in the mountinfo of each process; so one process of each mount namespace is asked.

A mount that hangs blocks whoever touches it. So nothing here does: all is read from /proc, and a link of /proc/PID is
read, or opened with O_PATH, which asks the file system nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from mountd.mounts import (
    CONTROL_ROOT,
    MountEntry,
    is_below,
    link_target,
    mount_table,
    parse_mountinfo,
    resolve,
    topmost,
)


class User(NamedTuple):
    """One that keeps a mount busy: a process, or with pid 0 another mount."""

    pid: int
    name: str
    what: str

    @property
    def words(self) -> str:
        """As a person may read it."""
        return f"{self.name} (pid {self.pid}, {self.what})" if self.pid else f"{self.name} ({self.what})"


class _Table(NamedTuple):
    """The mounts of one mount namespace, as one of its processes sees them; pid 0: this process's own."""

    pid: int
    entries: list[MountEntry]


def users_of(path: str, exclude: Collection[int] = ()) -> list[User]:
    """Processes with an open file, working directory or mapping on the mount at `path` (one entry a process), wherever
    its file system is mounted.

    Everything below `path` counts where it is no mount point. Other users' processes are seen by root only.
    """
    resolved = resolve(path)
    entry = topmost(mount_table(), resolved)
    places = {entry.mount_id: entry.mountpoint} if entry is not None else {-1: resolved}
    if entry is not None:
        same = (other for table in _tables(entry) for other in table.entries if other.device == entry.device)
        places |= {other.mount_id: other.mountpoint for other in same}
    users = []
    for pid in _pids():
        if pid in exclude:
            continue
        what = _use(pid, places, entry)
        if what is not None:
            users.append(User(pid, _process_name(pid), what))
    return users


def other_mounts(entry: MountEntry, exclude: Collection[int] = ()) -> list[User]:
    """Mounts of the same file system that stay when `entry` is unmounted: bind mounts, copies in other mount
    namespaces, overlays above it.

    Args:
        exclude: processes (the daemon) whose own mount namespace does not count.
    """
    tables = _tables(entry)
    ours = {_namespace(pid) for pid in exclude} - {_namespace("self")}
    goes = _Propagation(entry, tables)
    mountpoints = {other.mountpoint for table in tables for other in table.entries if other.device == entry.device}
    found = []
    overlays: set[str] = set()  # by device: an overlay of this namespace that was copied into others is judged by this
    for table in tables:
        if table.pid and _namespace(table.pid) in ours:
            continue
        is_there = not any(other.device == entry.device for other in table.entries)  # from a place that is not seen
        for other in table.entries:
            if other.device == entry.device:
                is_there = True
                own = other.mount_id == entry.mount_id or is_below(other.root, CONTROL_ROOT)
                if not own and not goes.along(other, table.entries):
                    found.append(_in_table(table, other, "a bind mount of it"))
            elif other.fstype == "overlay" and other.device not in overlays:
                overlays.add(other.device)
                # In the order in which they were mounted: an overlay of what lay here before is none of ours.
                if is_there and _is_above(other, mountpoints):
                    found.append(_in_table(table, other, "an overlay of it"))
    return found


def has_connection(pid: int) -> bool:
    """Whether a process has a connection to the kernel by which it may serve a file system."""
    return any(link_target(link) == "/dev/fuse" for link, what in _links(pid) if what == "open")


def _in_table(table: _Table, entry: MountEntry, what: str) -> User:
    if not table.pid:
        return User(0, entry.mountpoint, what)
    return User(
        table.pid, _process_name(table.pid), f"in a mount namespace of its own, with {what} at {entry.mountpoint}"
    )


class _Propagation:
    """Which copies of a mount the kernel takes away with it: those at the same place of mounts that hear of it."""

    def __init__(self, entry: MountEntry, tables: list[_Table]) -> None:
        self._root, self._place = entry.root, _place_of(entry, tables[0].entries)
        parent = _parent_of(entry, tables[0].entries)
        self._groups = _groups(parent, "shared:") if parent is not None else set()
        every = [other for table in tables for other in table.entries]
        grown = True
        while grown:  # who hears of it may tell others of it
            before = len(self._groups)
            for other in every:
                if self._groups & _groups(other, "master:"):
                    self._groups |= _groups(other, "shared:")
            grown = len(self._groups) > before

    def along(self, other: MountEntry, entries: list[MountEntry]) -> bool:
        """Whether another mount of the file system goes with it. Args: entries: of its mount namespace."""
        parent = _parent_of(other, entries)
        if parent is None or other.root != self._root or _place_of(other, entries) != self._place:
            return False
        return bool(self._groups & (_groups(parent, "shared:") | _groups(parent, "master:")))


def _groups(entry: MountEntry, kind: str) -> set[str]:
    return {word.removeprefix(kind) for word in entry.propagation if word.startswith(kind)}


def _parent_of(entry: MountEntry, entries: list[MountEntry]) -> MountEntry | None:
    return next((other for other in entries if other.mount_id == entry.parent_id), None)


def _place_of(entry: MountEntry, entries: list[MountEntry]) -> tuple[str, str] | None:
    """The file system and the directory of it that a mount covers."""
    parent = _parent_of(entry, entries)
    if parent is None:
        return None
    return parent.device, os.path.normpath(parent.root + "/" + os.path.relpath(entry.mountpoint, parent.mountpoint))


def _is_above(overlay: MountEntry, mountpoints: Collection[str]) -> bool:
    """Whether a layer of an overlay lies on one of these mounts."""
    layers = (
        re.sub(r"\\(.)", r"\1", layer)
        for option in overlay.options
        if option.startswith(("lowerdir=", "lowerdir+=", "datadir+="))
        for layer in re.findall(r"(?:[^\\:]|\\.)+", option.partition("=")[2])
    )
    return any(_may_be_below(layer, mountpoint) for layer in layers for mountpoint in mountpoints)


def _may_be_below(layer: str, mountpoint: str) -> bool:
    """Whether a layer lies on a mount. Nothing tells to which directory a relative name belongs: to any above it."""
    if layer.startswith("/"):
        return is_below(layer, mountpoint)
    parents = [mountpoint[:at] for at, letter in enumerate(mountpoint) if letter == "/"]
    return any(is_below(os.path.normpath(f"{parent}/{layer}"), mountpoint) for parent in parents)


def _tables(entry: MountEntry) -> list[_Table]:
    """The mount namespaces in which the file system of `entry` is mounted, or an overlay is; this process's first."""
    tables, seen = [_Table(0, mount_table())], {(_namespace("self"), "/")}
    device = f" {entry.device} ".encode()
    for pid in _pids():
        where = _namespace(pid), link_target(f"/proc/{pid}/root") or ""
        if where in seen:
            continue
        try:
            with open(f"/proc/{pid}/mountinfo", "rb") as file:
                text = file.read()
        except OSError:  # it has ended
            continue
        if where[0]:
            seen.add(where)
        if where[0] != _namespace("self") and (device in text or b" - overlay " in text):
            tables.append(_Table(pid, parse_mountinfo(text)))
    return tables


def _namespace(pid: int | str) -> str:
    """The mount namespace of a process, "" where that may not be known."""
    return link_target(f"/proc/{pid}/ns/mnt") or ""


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())


def _use(pid: int, places: Mapping[int, str], entry: MountEntry | None) -> str | None:
    """The process's use of one of the mounts, in words; None for nothing.

    Args:
        places: by mount id where each is mounted. entry: one of them; None: `places` is a directory, and no mount.
    """
    roots = tuple(dict.fromkeys(places.values()))
    for link, what in _links(pid):
        target = link_target(link)
        root = next((root for root in roots if target is not None and is_below(target, root)), None)
        if target is None or root is None:
            continue
        # The same path may mean the directory below the mount: the shell that stood in it when it was mounted over.
        if entry is None or (mount_id := _mount_id(link)) is None or mount_id in places:
            return what if what != "open" else f"open: {target[len(root.rstrip('/')) + 1 :] or '.'}"
    return "mapped file" if _maps_file_on(pid, roots, entry) else None


def _links(pid: int) -> Iterator[tuple[str, str]]:
    yield f"/proc/{pid}/cwd", "working directory"
    yield f"/proc/{pid}/root", "root directory"
    yield f"/proc/{pid}/exe", "running program"
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            yield f"/proc/{pid}/fd/{fd}", "open"
    except OSError:
        return


def _mount_id(link: str) -> int | None:
    """The id of the mount that a link of /proc/PID leads to, None when it is not known. Asks the mount nothing."""
    try:
        # O_PATH through a link of /proc jumps to the file without a look-up or an open on its file system.
        fd = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            match = re.search(r"^mnt_id:\s*(\d+)", file.read(), re.MULTILINE)
            return int(match[1]) if match else None
    finally:
        os.close(fd)


def _maps_file_on(pid: int, roots: tuple[str, ...], entry: MountEntry | None) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return False
    # In maps only newlines are escaped. The device is written in hexadecimal there, in decimal in mountinfo.
    prefixes = tuple(os.fsencode(root.rstrip("/") + "/").replace(b"\n", b"\\012") for root in roots)
    major, minor = (int(part) for part in entry.device.split(":")) if entry else (0, 0)
    device = f"{major:02x}:{minor:02x}".encode()
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and (fields[3] == device if entry is not None else fields[5].startswith(prefixes)):
            return True
    return False


def _process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        return "?"
