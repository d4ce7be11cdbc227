"""Checks what must be true before a daemon is started; the rest is refused with one line and a remedy.

In: a `MountConfig`. Out: nothing, or the `MlfsError` of the first thing that is wrong, with the exit code documented in
docs/exit-codes.md. One thing it mends by itself: a dead mount of ours at or above the paths (its daemon crashed or was
killed) is detached, with a note. Called through `mountd.interface`, before the daemon exists.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress

from mlfs.config import OF_ALL_ITS_LIFE, CacheDir, MountConfig, differing, free_bytes, memory_warning
from mlfs.errors import CacheError, ConfigError, ExitCode, MlfsError, SourceError, require
from mlfs.places.cache_directory import source_path
from mlfs.processes import machine
from mlfs.units import format_size
from mountd import mounts, runtime
from mountd.mounts import Health, is_below

DEV_FUSE = "/dev/fuse"
FUSE_CONF = "/etc/fuse.conf"
# More mounts than this on one path are not leftovers of crashes: something puts them there as fast as we take them off.
_MAX_DEAD_MOUNTS = 64
# A disk with less is full: not even a sample or a page of a log fits.
_LEAST_FREE_BYTES = 1 << 16


def resolve_paths(config: MountConfig) -> MountConfig:
    """The same config with symbolic links in source and mount point resolved, as /proc will show the mount."""
    return config.model_copy(
        update={"source": mounts.resolve(config.source), "mountpoint": mounts.resolve(config.mountpoint)}
    )


def check(config: MountConfig, note: Callable[[str], None] = lambda line: None) -> None:
    """Raise the first reason not to mount. `note` is told, in one line each, what was cleaned up."""
    check_fuse(config.allow_other)
    # Before anything looks at the paths: under a dead mount each look ends in ENOTCONN, whatever lies below it.
    for path in dict.fromkeys((config.source, config.mountpoint)):
        _check_not_stopped(path)
        clean_dead_mounts(path, note)
    mounts.clear_dead_commands()
    # Only now are symbolic links that lay below a dead mount readable.
    config = resolve_paths(config)
    _check_not_served(config)
    _check_source(config.source, config.source_timeout_s)
    _check_mountpoint(config)
    check_settings(config)
    for line in [memory_warning(config), *full_disks(config)]:
        if line:
            note(line)


def check_settings(config: MountConfig) -> None:
    """Raise the first reason why a mount cannot have these settings, whether it lives already or not."""
    if config.movers and config.channel == "silent":
        raise ConfigError("--movers: there are none on the silent channel", "leave out one of the two flags")
    _check_cache_dirs(config)
    _check_own_files(config)


def mounted_already(config: MountConfig, note: Callable[[str], None] = lambda line: None) -> runtime.Record | None:
    """The record of the daemon that serves this source at this mount point already, with these settings.

    None when nothing is mounted there, or when it is for `check` to say what: a mount that hangs, or whose settings are
    not known. Dead mounts are cleaned up as by `check`. Raises MlfsError for a mount with other settings.
    """
    for path in dict.fromkeys((config.source, config.mountpoint)):
        _check_not_stopped(path)
        clean_dead_mounts(path, note)
    config = resolve_paths(config)
    entry, record = mounts.mount_at(config.mountpoint), runtime.read(config.mountpoint)
    if entry is None or not entry.is_mlfs or record is None or not runtime.alive(record):
        return None
    if record.settings is None or mounts.probe(entry.mountpoint) is not Health.OK:
        return None
    try:
        running = MountConfig.model_validate(record.settings)
    except ValueError:
        return None  # of another version of mlfs
    others = differing(config, running)
    if others:
        message = f"{config.mountpoint} is already mounted by mlfs by process {record.pid}, with other settings:"
        upgrade = f"mlfs upgrade {config.mountpoint} with the same flags, or "
        hint = f"to have these: {'' if others.keys() & {*OF_ALL_ITS_LIFE} else upgrade}mlfs unmount and mount again"
        raise MlfsError(f"{message} {'; '.join(others.values())}", hint, ExitCode.MOUNT_POINT)
    return record


def check_fuse(allow_other: bool) -> None:
    """FUSE itself: the device, the helper program, the permission to show the mount to others."""
    try:
        os.close(os.open(DEV_FUSE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            hint = "modprobe fuse; in a container start it with --device /dev/fuse --cap-add SYS_ADMIN"
            raise MlfsError(f"there is no {DEV_FUSE}", hint, ExitCode.NO_FUSE) from None
        hint = f"as root: chmod 666 {DEV_FUSE}; in a container start it with --device /dev/fuse --cap-add SYS_ADMIN"
        raise MlfsError(f"{DEV_FUSE} cannot be opened: {error.strerror}", hint, ExitCode.NO_FUSE) from None
    if shutil.which("fusermount3") is None:
        raise MlfsError("fusermount3 is not installed", "apt install fuse3", ExitCode.NO_FUSE)
    if allow_other and os.geteuid() != 0 and not user_allow_other(_read(FUSE_CONF)):
        hint = f"as root add the line user_allow_other to {FUSE_CONF}, or leave --allow-other out"
        message = "--allow-other is not permitted to users on this machine"
        raise MlfsError(message, hint, ExitCode.NOT_PERMITTED)


def user_allow_other(fuse_conf: str) -> bool:
    """Whether this fuse.conf lets users share their mounts."""
    return any(line.strip() == "user_allow_other" for line in fuse_conf.splitlines())


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def clean_dead_mounts(path: str, note: Callable[[str], None]) -> int:
    """Detach every dead mlfs mount at `path` or above it, also several stacked ones. Returns how many."""
    for cleaned in range(_MAX_DEAD_MOUNTS):
        dead = [e for e in mounts.enclosing_mlfs(path) if mounts.is_dead(e.mountpoint) or ends_abandoned(e)]
        if not dead:
            return cleaned
        mountpoint = dead[0].mountpoint
        mounts.detach(mountpoint)
        with suppress(OSError):
            os.unlink(runtime.agent_socket(mountpoint))  # that of the dead daemon
        runtime.stale()
        note(f"cleaned up a dead mount at {mountpoint} (its daemon had crashed or been killed)")
    message = f"dead mounts at {path} come back as fast as they are taken away"
    raise MlfsError(message, "see: findmnt -t fuse.mlfs", ExitCode.MOUNT_POINT)


def ends_abandoned(entry: mounts.MountEntry) -> bool:
    """End the connection of a mount that does not answer, and of which all processes are dead. Returns whether it was
    one. It was asked before: so a server that is just taking it over has the time of two questions."""
    if _is_served(entry) or mounts.probe(entry.mountpoint) is not Health.HUNG or _is_served(entry):
        return False
    mounts.abort(entry, mounts.hold(entry))
    return mounts.is_dead(entry.mountpoint)


def _is_served(entry: mounts.MountEntry) -> bool:
    """Whether it is, or nobody knows."""
    record = runtime.read(entry.mountpoint)
    return record is None or record.machine != machine() or runtime.alive(record)


def _check_not_stopped(path: str) -> None:
    """Before the mounts there are asked: one whose daemon got SIGSTOP would not answer."""
    for entry in mounts.enclosing_mlfs(path):
        pid = runtime.stopped(entry.mountpoint)
        if pid is not None:
            message = f"{entry.mountpoint} is already mounted by mlfs by process {pid}, which is stopped"
            hint = f"kill -CONT {pid}, or to get rid of it: mlfs unmount --force {entry.mountpoint}"
            raise MlfsError(message, hint, ExitCode.MOUNT_POINT)


def _check_not_served(config: MountConfig) -> None:
    for path in dict.fromkeys((config.mountpoint, config.source)):
        for entry in mounts.enclosing_mlfs(path):
            record = runtime.read(entry.mountpoint)
            by = f" by process {record.pid}" if record is not None and runtime.alive(record) else ""
            if mounts.probe(entry.mountpoint) is Health.HUNG:
                message = f"{entry.mountpoint} is already mounted by mlfs{by}, which does not answer"
                raise MlfsError(message, f"mlfs unmount --force {entry.mountpoint}", ExitCode.MOUNT_POINT)
            where = entry.mountpoint if entry.mountpoint == path else f"{entry.mountpoint}, above {path},"
            message = f"{where} is already mounted by mlfs{by}"
            raise MlfsError(message, f"to end that: mlfs unmount {entry.mountpoint}", ExitCode.MOUNT_POINT)


def _check_source(source: str, timeout_s: float) -> None:
    try:
        mounts.call_with_timeout(lambda: look_at_source(source), timeout_s)
    except TimeoutError:
        hint = "see whether its file system hangs, or give a longer --source-timeout"
        raise SourceError(f"source {source} does not answer within {timeout_s:g} s", hint) from None
    except OSError as error:
        raise _source_error(source, error) from None


def look_at_source(source: str) -> None:
    if not stat.S_ISDIR(os.stat(source).st_mode):
        raise SourceError(f"source {source} is not a directory", "give the directory that holds the data set")
    # A directory can be readable (its names) without being executable (its files), and the other way round.
    if not os.access(source, os.R_OK):
        raise SourceError(f"source {source} is not readable", f"chmod u+rx {source}, or run as its owner")
    if not os.access(source, os.X_OK):
        message = f"source {source} is not executable: the files in it cannot be reached"
        raise SourceError(message, f"chmod u+rx {source}, or run as its owner")
    with os.scandir(source) as entries:
        if next(entries, None) is None:
            raise SourceError(f"source {source} is empty", "see whether its file system is mounted")


def _source_error(source: str, error: OSError) -> SourceError:
    if error.errno == errno.ENOENT:
        return SourceError(f"source {source} does not exist", "give the directory that holds the data set")
    if error.errno == errno.ENOTDIR:
        return SourceError(f"source {source} leads through a file", "give the directory that holds the data set")
    if error.errno == errno.ENOTCONN:
        entry = mounts.mount_at(source)
        kind = f" of type {entry.fstype}" if entry else ""
        return SourceError(f"source {source} is under a dead mount{kind}", "unmount that: fusermount3 -u -z DIR")
    if error.errno in (errno.EACCES, errno.EPERM):
        return SourceError(f"source {source} is not readable", "run as a user who may read it")
    return SourceError(f"source {source} cannot be read: {error.strerror}", "see whether its file system is in order")


def _check_mountpoint(config: MountConfig) -> None:
    source, mountpoint = config.source, config.mountpoint
    same = source == mountpoint
    if not same and is_below(mountpoint, source):
        hint = "leave it out to mount over the source itself, or give a directory elsewhere"
        raise _mountpoint_error(f"mount point {mountpoint} is inside the source {source}", hint)
    if not same and is_below(source, mountpoint):
        hint = "the mount would hide its own source: give an empty directory elsewhere"
        raise _mountpoint_error(f"the source {source} is inside the mount point {mountpoint}", hint)
    try:
        mode = os.stat(mountpoint).st_mode
        if not stat.S_ISDIR(mode):
            raise _mountpoint_error(f"mount point {mountpoint} is not a directory", "give an empty directory")
        if not same and os.listdir(mountpoint):
            raise _mountpoint_error(f"mount point {mountpoint} is not empty", "give an empty directory")
    except FileNotFoundError:
        raise _mountpoint_error(f"mount point {mountpoint} does not exist", f"mkdir -p {mountpoint}") from None
    except OSError as error:
        raise _mountpoint_error(f"mount point {mountpoint}: {error.strerror}", "give an empty directory") from None
    if os.geteuid() != 0 and not os.access(mountpoint, os.W_OK):
        # fusermount3 would refuse it later, in words that name neither the rule nor the way out.
        message = f"mount point {mountpoint} is not writable: users may mount only over directories they can write"
        hint = "give a MOUNTPOINT of your own, or run as root with --allow-other"
        raise MlfsError(message, hint, ExitCode.NOT_PERMITTED)


def _mountpoint_error(message: str, hint: str) -> MlfsError:
    return MlfsError(message, hint, ExitCode.MOUNT_POINT)


def _check_cache_dirs(config: MountConfig) -> None:
    seen: set[tuple[str, str]] = set()  # one directory may serve both kinds, but a store has one size
    for kind, dirs in (("ssd", config.ssd), ("lmdb", config.lmdb)):
        for cache in dirs:
            resolved = mounts.resolve(cache.path)
            if (kind, resolved) in seen:
                message = f"cache directory {cache.path} is given twice (--{kind})"
                raise CacheError(message, "give each directory once, with the size of both")
            seen.add((kind, resolved))
            _check_cache_dir(kind, cache, resolved, config)


def _check_own_files(config: MountConfig) -> None:
    """Nothing is written into the data set: a saved index there would be one more file of it at the next mount."""
    for flag, path in (("index", config.index), ("log-file", config.log_file), ("report", config.report)):
        if path is not None and is_below(mounts.resolve(path), config.source):
            raise ConfigError(f"--{flag} {path} is inside the source", "give a file elsewhere, or leave it out")
    if config.report is not None:
        require("matplotlib", "--report")
    if config.report is not None and not os.access(config.report, os.W_OK | os.X_OK):
        what = "cannot be written" if os.path.isdir(config.report) else "is no directory"
        raise ConfigError(f"--report {config.report} {what}", "make it with mkdir, or give another one of yours")
    if config.index is not None:
        from mlfs.tree.index import check_path  # numpy takes a fifth of a start, and most starts name no index

        try:
            check_path(config.index)
        except (FileNotFoundError, NotADirectoryError):
            pass  # then nothing is saved, and the mount and the log say why
        except OSError as error:
            way_out = getattr(error, "way_out", "give another file, or leave it out")
            raise ConfigError(f"--index {config.index}: {error.strerror}", way_out) from None


def full_disks(config: MountConfig) -> list[str]:
    """A line for each file and directory of ours whose disk has no room for it."""
    log_file = config.log_file or runtime.default_log_file(config.mountpoint)
    places = [("log", log_file, "nothing more will be logged")]
    for kind, dirs in (("--ssd", config.ssd), ("--lmdb", config.lmdb)):
        places += [(kind, cache.path, "nothing more will be kept there") for cache in dirs]
    if config.report is not None:
        places.append(("--report", config.report, "no report can be written"))
    said = []
    for what, path, follows in places:
        try:
            free = free_bytes(path)
        except ConfigError:  # it cannot be told, and whoever writes there says why
            continue
        if free < _LEAST_FREE_BYTES:
            said.append(f"the disk of {what} {path} is full ({format_size(free)} free): {follows}")
    return said


def _check_cache_dir(kind: str, cache: CacheDir, resolved: str, config: MountConfig) -> None:
    name = f"--{kind} directory {cache.path}"
    for path, what in ((config.source, "the source"), (config.mountpoint, "the mount point")):
        if is_below(resolved, path):
            raise CacheError(f"{name} is inside {what}", "give a directory on a local disk")
    parent = os.path.dirname(resolved)
    if os.path.isdir(resolved):
        holds_copies = os.access(source_path(resolved, config.source), os.R_OK | os.X_OK)  # then it is read
        if not holds_copies and not os.access(resolved, os.R_OK | os.W_OK | os.X_OK):
            raise CacheError(f"{name} is not writable", "chmod or remount it, or give another directory")
    elif os.path.lexists(resolved):
        raise CacheError(f"{name} is not a directory", "give a directory")
    elif not os.path.isdir(parent):
        raise CacheError(f"{name} cannot be made: there is no {parent}", f"mkdir -p {parent}")
    elif not os.access(parent, os.W_OK | os.X_OK):
        raise CacheError(f"{name} cannot be made: {parent} is not writable", "give a directory that you can write")
