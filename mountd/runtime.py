"""A small file for each running mount, in the runtime directory: who serves it, since when, where the log is.

In: a `Record` from the daemon when it serves. Out: that record for `mlfs status`, `mlfs unmount` and preflight, which
must know the daemon's process without asking the mount (it may hang). Also the places of per-mount files in general:
`mount_name`, `cache_dir`, `default_log_file`.

A record outlives its daemon after kill -9. Pids are reused, so a record is only believed when the process with its pid
also started when the record says it did.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import mlfs
from mlfs.errors import ExitCode, MlfsError
from mlfs.ours import NotOursError, make_private, open_ours, private_directory, user_cache_directory
from mlfs.processes import machine, stat_fields


@dataclass(frozen=True)
class Record:
    """The known facts of one running mount."""

    pid: int
    pid_start_ticks: int
    """Field 22 of /proc/PID/stat: with the pid it names the process for good (until a reboot, which clears /run)."""
    mountpoint: str
    source: str
    started: float
    """Seconds since 1970."""
    version: str
    log_file: str | None
    settings: dict[str, object] | None = None
    """Those of the mount (`MountConfig.to_json`), None where they are not known."""
    holder: int = 0
    """The process that starts another server when this one dies; 0: none does."""
    holder_start_ticks: int = 0
    machine: str = ""
    """Where the process numbers are of (`mlfs.processes.machine`)."""


def runtime_dir() -> str:
    """The directory of the records: the first of those in question that can be written, made when it is not there."""
    refused: list[str] = []
    way_out = ""
    for path in _candidates():
        try:
            _check_own(path)
            return path
        except OSError as error:
            refused.append(f"{path} ({error.strerror})")
            way_out = way_out or getattr(error, "way_out", "")
    named = "MLFS_RUNTIME_DIR" if os.environ.get("MLFS_RUNTIME_DIR") else "XDG_RUNTIME_DIR"
    message = f"there is no directory of yours for what runs: {', '.join(refused)}"
    hint = f"set {named} to a directory of yours that can be written" + (f"; or {way_out}" if way_out else "")
    raise MlfsError(message, hint, ExitCode.NOT_PERMITTED)


def _candidates() -> list[str]:
    """The directories in which the records may be, best first. $MLFS_RUNTIME_DIR overrides all others (for tests)."""
    override, xdg, uid = os.environ.get("MLFS_RUNTIME_DIR"), os.environ.get("XDG_RUNTIME_DIR", ""), os.geteuid()
    if override:
        return [override]
    # XDG's comes second for root: `mlfs unmount` from cron must find what a login shell has mounted.
    paths = ["/run/mlfs"] if uid == 0 else []
    paths += [os.path.join(xdg, "mlfs")] if os.path.isabs(xdg) and os.path.isdir(xdg) else []
    # Then /tmp, which all of a user's sessions share, before the one that a batch job may have for itself.
    own = f"mlfs-{uid}{_outer_user(uid)}"
    paths += [os.path.join(directory, own) for directory in ("/tmp", os.environ.get("TMPDIR", "")) if directory]
    return list(dict.fromkeys(paths))


def _outer_user(uid: int) -> str:
    """The user outside of a user namespace, which tells apart the users who are all root, each in one of his own."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/uid_map", encoding="ascii") as file:
        for line in file:
            inside, outside, count = (int(field) for field in line.split())
            if inside <= uid < inside + count and inside != outside:
                return f".{uid - inside + outside}"
    return ""


def knows_all_groups() -> bool:
    """Whether each group of this machine has a number here; in a user namespace only those do that were given one."""
    try:
        with open("/proc/self/gid_map", encoding="ascii") as file:
            return sum(int(line.split()[2]) for line in file) >= 2**32 - 1
    except (OSError, ValueError, IndexError):
        return True


def _check_own(path: str) -> None:
    """Make a directory for records and see that it is ours and can be written. Raises: OSError."""
    # /tmp is everybody's: a directory or link that somebody else has put there could send our signals anywhere.
    fd = private_directory(path)
    try:
        owner = os.fstat(fd).st_uid
    finally:
        os.close(fd)
    if owner != os.geteuid():
        raise NotOursError(path, f"it belongs to user {owner}", "")
    if not os.access(path, os.W_OK | os.X_OK):
        raise OSError(errno.EROFS, "it cannot be written", path)


def _read_dirs() -> list[str]:
    """Directories in which records may lie: a batch job and a login shell of one user do not always agree on
    XDG_RUNTIME_DIR."""
    if os.environ.get("MLFS_RUNTIME_DIR"):
        return [runtime_dir()]
    uid = os.geteuid()
    dirs = []
    for path in dict.fromkeys([*_candidates(), f"/run/user/{uid}/mlfs"]):
        with contextlib.suppress(OSError):
            info = os.lstat(path)
            if stat.S_ISDIR(info.st_mode) and info.st_uid == uid and not info.st_mode & 0o022:
                dirs.append(path)
    return dirs


def cache_dir() -> str:
    """$XDG_CACHE_HOME/mlfs or ~/.cache/mlfs, made when it is not there; the runtime directory where neither can be."""
    path = user_cache_directory()
    try:
        make_private(path)
    except NotOursError as error:
        raise _refused(error) from None
    except OSError:
        return runtime_dir()
    return path if os.access(path, os.W_OK | os.X_OK) else runtime_dir()


def _refused(error: NotOursError) -> MlfsError:
    return MlfsError(f"{error.filename}: {error.strerror}", error.way_out, ExitCode.NOT_PERMITTED)


def mount_name(mountpoint: str) -> str:
    """A file name for a mount point: readable in front, a hash behind it so that no two are the same."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", mountpoint).strip("-")[-60:].lstrip("-.")
    digest = hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:8]
    return f"{readable}-{digest}" if readable else digest


def agent_socket(mountpoint: str) -> str:
    """The socket at which the server of a mount point lets its node's agent in (`mlfs peers`)."""
    return os.path.join(runtime_dir(), mount_name(mountpoint) + ".agent")


def commands_directory(mountpoint: str, shared: bool) -> str:
    """A new directory, where the mount through which commands go is to be mounted (mountd.commands_mount).

    It has a name of its own, as the daemon that served the mount point before may not have removed its one yet.

    Args:
        shared: other users may come to it, as they may to the data, and see nothing else in the directory of records.
    """
    directory = runtime_dir()
    if shared:
        os.chmod(directory, stat.S_IMODE(os.stat(directory).st_mode) | 0o111)
    return tempfile.mkdtemp(prefix=mount_name(mountpoint) + ".", suffix=".commands", dir=directory)


def default_log_file(mountpoint: str) -> str:
    """The log of this mount's daemon when no --log-file is given. The directory is made."""
    directory = os.path.join(cache_dir(), "log")
    try:
        make_private(directory)
    except NotOursError as error:
        raise _refused(error) from None
    return os.path.join(directory, mount_name(mountpoint) + ".log")


def write(
    mountpoint: str,
    source: str,
    log_file: str | None,
    pid: int | None = None,
    settings: dict[str, object] | None = None,
    holder: int = 0,
    started: float | None = None,
) -> Record:
    """Record that `pid` (default: this process) serves `mountpoint`; replaces an older record, atomically."""
    pid = os.getpid() if pid is None else pid
    record = Record(
        pid, start_ticks(pid) or 0, mountpoint, source, started or time.time(), mlfs.__version__, log_file, settings,
        holder, (start_ticks(holder) or 0) if holder else 0, machine(),
    )  # fmt: skip
    _write_json(asdict(record), os.path.join(runtime_dir(), mount_name(mountpoint) + ".json"))
    return record


def _write_json(value: object, path: str) -> None:
    """Write a file of the runtime directory whole or not at all. Raises: OSError."""
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump(value, file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(mountpoint: str) -> Record | None:
    """The record of this mount point, of a process that may be gone (see `alive`); None without one."""
    for directory in _read_dirs():
        record = _read_file(os.path.join(directory, mount_name(mountpoint) + ".json"))
        if record is not None and record.mountpoint == mountpoint:
            return record
    return None


def _read_file(path: str) -> Record | None:
    try:
        with open(open_ours(path), encoding="ascii") as file:
            return Record(**json.load(file))
    except (OSError, ValueError, TypeError):
        # Not there, or of a version with other fields: nothing that could be acted on.
        return None


def remove(mountpoint: str, pid: int | None = None) -> None:
    """Remove the record of this mount point; with `pid` only if it is of that process, or of the server that it holds
    (not of one that came after)."""
    for directory in _read_dirs():
        path = os.path.join(directory, mount_name(mountpoint) + ".json")
        if pid is not None:
            record = _read_file(path)
            if record is None or pid not in (record.pid, record.holder):
                continue
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def records() -> list[Record]:
    """All records, of processes that live or not."""
    found = []
    for directory in _read_dirs():
        for name in sorted(os.listdir(directory)):
            record = _read_file(os.path.join(directory, name)) if name.endswith(".json") else None
            if record is not None:
                found.append(record)
    return found


def stale() -> list[Record]:
    """Remove the records of processes that are gone; return what was removed."""
    gone = [record for record in records() if not alive(record)]
    for record in gone:
        remove(record.mountpoint, record.pid)
    return gone


def alive(record: Record) -> bool:
    """Whether a process of this record still runs: the server, or the holder, which is about to start another one."""
    return _runs(record.pid, record.pid_start_ticks) or _runs(record.holder, record.holder_start_ticks)


def _runs(pid: int, ticks: int) -> bool:
    return bool(pid) and start_ticks(pid) == ticks


def stopped(mountpoint: str) -> int | None:
    """The process that serves this mount point, if it is one that SIGSTOP has stopped; else None."""
    try:
        record = read(mountpoint)
    except MlfsError:  # where records lie cannot be read: then nobody knows
        return None
    if (
        record is None
        or not _runs(record.pid, record.pid_start_ticks)
        or stat_fields(record.pid)[:1] not in ([b"T"], [b"t"])
    ):
        return None
    return record.pid


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None when there is none (a zombie is none)."""
    fields = stat_fields(pid)
    # In a container without an init nobody reaps the daemon: it stays a zombie, which serves nothing.
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def send_signal(record: Record, signal_number: int) -> bool:
    """Send a signal to the server of this record, or to its holder where there is no server now, which passes it on.
    SIGKILL goes to both: each would start the other again. False when they are gone."""
    import signal

    server, holder = (record.pid, record.pid_start_ticks), (record.holder, record.holder_start_ticks)
    if signal_number != signal.SIGKILL:
        return _send(*server, signal_number) or _send(*holder, signal_number)
    _send(*server, signal.SIGSTOP)
    sent = [_send(*holder, signal_number), _send(*server, signal_number)]
    return any(sent)


def _send(pid: int, ticks: int, signal_number: int) -> bool:
    """Send a signal to this process and to no other."""
    import signal

    try:
        # A pidfd keeps naming one process: once its start time is checked, the pid cannot be reused in between.
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _runs(pid, ticks):
            return False
        signal.pidfd_send_signal(fd, signal_number)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        hint = "do it as the user who mounted it, or as root"
        raise MlfsError(f"process {pid} belongs to another user", hint, ExitCode.NOT_PERMITTED) from None
    finally:
        os.close(fd)


# -- a note that a daemon keeps while it lives, and removes at its end: who finds one knows that the daemon died
#
# In: what is registered, whenever that changes. Out: what the daemon before this one had registered, if that one died
# (`kill -9`, no memory left, a crash): its registrations are lost, and the next mount says so. The record of a mount
# does not do for this: whoever cleans up after the dead daemon removes it.


@dataclass(frozen=True, slots=True)
class Died:
    """A daemon that died.

    Attributes:
        jobs: flags of `mlfs register` by the name of the job: what was registered.
    """

    pid: int
    jobs: Mapping[str, str]


class LifeNote:
    """The note of one daemon.

    Args:
        takes_over: whether this process serves the mount of the one before it, which has died, and all of its jobs.

    Attributes:
        died: the daemon before this one, None where it ended as it should, or its mount goes on.
    """

    def __init__(self, mountpoint: str, takes_over: bool = False) -> None:
        self._path = os.path.join(runtime_dir(), mount_name(mountpoint) + ".life")
        pid, ticks, jobs = self._read()
        self.died = Died(pid, jobs) if pid and start_ticks(pid) != ticks and not takes_over else None
        self.write(jobs if takes_over else {})

    def _read(self) -> tuple[int, int, dict[str, str]]:
        """Whose note lies there, when that process began, and its jobs; zeros where there is none."""
        try:
            with open(open_ours(self._path), encoding="ascii") as file:
                said = json.load(file)
            return int(said["pid"]), int(said["ticks"]), {str(k): str(v) for k, v in said["jobs"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return 0, 0, {}

    def write(self, jobs: Mapping[str, str]) -> None:
        """Note the flags of the jobs that are registered now, by name. A later mount knows nothing where that fails."""
        said = {"pid": os.getpid(), "ticks": start_ticks(os.getpid()), "jobs": dict(jobs)}
        with contextlib.suppress(OSError):
            _write_json(said, self._path)

    def remove(self) -> None:
        """Remove the note, as the daemon ends as it should. A note that another daemon has written meanwhile stays."""
        if self._read()[0] == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
