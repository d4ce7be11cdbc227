"""Files and directories that only we can have written: how they are made, opened and replaced.

In: paths that others may have prepared: a directory in a shared /tmp, a symbolic link, a FIFO, a file of the user's own
with the name that we were given. Out: descriptors of what is surely ours, or an OSError that says why it is not. Used
by mlfs.places, mlfs.tree, mlfs.measure, mlfs.cli and `mountd` for everything that mlfs keeps on disk. "Ours" is what
this user or root owns and nobody else can write.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO that nobody writes to must not hold us up
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE_DIR, _PRIVATE_FILE = 0o700, 0o600
# So much tells a kind of file: the longest beginning that a kind has is one line.
_BEGINNING_BYTES = 4096

Beginning = Callable[[bytes], bool]


class NotOursError(PermissionError):
    """The entry there can have been written by somebody else, or is no file of mlfs. `strerror` says which, for people;
    `way_out` says what to do about it."""

    def __init__(self, path: str, what: str, way_out: str) -> None:
        super().__init__(errno.EPERM, what, path)
        self.way_out = way_out


def private_directory(path: str, *, dir_fd: int | None = None, make: bool = True) -> int:
    """Open a directory that only this user can have filled; with `make`, it and those above it are made when missing.

    A directory that is made gets mode 0700, whatever the umask. A symbolic link as the last part of the path is not
    followed.

    Returns: a descriptor of the directory, which belongs to the caller.
    Raises: NotOursError for a directory that somebody else owns or can write; OSError.
    """
    if make:
        _make_directory(path, dir_fd)
    try:
        fd = os.open(path, OPEN_DIR, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(path, dir_fd):
            raise NotOursError(path, "it is a symbolic link", f"remove it: rm {path}") from None
        raise
    try:
        _check_owner(path, os.fstat(fd), "directory")
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private(path: str) -> None:
    """Like `private_directory`, for callers that go on with the path. Raises: OSError."""
    os.close(private_directory(path))


def make_parent(path: str) -> None:
    """Make the directory that a file lies in, when it is missing; one of mlfs's own must be private.

    Raises: NotOursError for a directory in the user's cache directory that others can have filled; OSError.
    """
    above = os.path.dirname(os.path.abspath(path))
    own = user_cache_directory()
    if above == own or above.startswith(own + "/"):
        make_private(own)
        make_private(above)
    elif not os.path.isdir(above):
        make_private(above)


def _make_directory(path: str, dir_fd: int | None, *, above_is_made: bool = False) -> None:
    try:
        os.mkdir(path, _PRIVATE_DIR, dir_fd=dir_fd)
    except FileNotFoundError:
        above = os.path.dirname(path.rstrip("/"))
        # Nothing can be made in some directories that are there (/proc), nor through a link that leads nowhere.
        if not above or above_is_made or (os.path.lexists(above) and not os.path.isdir(above)):
            raise
        _make_directory(above, dir_fd)  # it may be there by now: another mount that starts makes it, too
        _make_directory(path, dir_fd, above_is_made=True)
        return
    except OSError:
        if _status(path, dir_fd) is None:
            raise
        return  # it is there, and where nothing can be written it may still be read
    # A umask can have taken rights from the owner. By O_PATH, which needs none and names what was opened.
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        made = os.fstat(fd)
        if made.st_uid == os.geteuid() and stat.S_IMODE(made.st_mode) & 0o777 != _PRIVATE_DIR:
            os.chmod(f"/proc/self/fd/{fd}", _PRIVATE_DIR)
    finally:
        os.close(fd)


def _is_link(path: str, dir_fd: int | None) -> bool:
    found = _status(path, dir_fd)
    return found is not None and stat.S_ISLNK(found.st_mode)


def _status(path: str, dir_fd: int | None) -> os.stat_result | None:
    with suppress(OSError):
        return os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    return None


def _check_owner(path: str, found: os.stat_result, what: str) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        way_out = f"name another one, or have user {found.st_uid} remove this one"
        raise NotOursError(path, f"the {what} belongs to user {found.st_uid}", way_out)
    if found.st_mode & _OTHERS_WRITE:
        raise NotOursError(path, f"others can write the {what}", f"chmod go-w {path}, if you trust what is in it")


def open_ours(path: str, *, dir_fd: int | None = None) -> int:
    """Open a file to be read that only this user or root can have written. It never waits, and follows no link.

    Raises: NotOursError for a file of somebody else's, one that others can write, and what is no regular file; OSError.
    """
    fd = _open_regular(path, os.O_RDONLY, dir_fd)
    try:
        _check_owner(path, os.fstat(fd), "file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_regular(path: str, flags: int, dir_fd: int | None = None) -> int:
    try:
        fd = os.open(path, flags | _OPEN_FILE, _PRIVATE_FILE, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOursError(path, "it is a symbolic link", "name the file that it leads to") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise NotOursError(path, "it is not a regular file", "name another one") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotOursError(path, "it is not a regular file", "name another one")
    return fd


def check_replaceable(path: str, kind: str, is_kind: Beginning) -> None:
    """Whether a file may be written over: there is none, it is empty, or it is one that mlfs itself has written.

    Args:
        kind: what mlfs writes there, for people. is_kind: whether a file that begins with these bytes is of that kind;
            it gets the first 4096.

    Raises: NotOursError for a file that must not be replaced, and for what is no name of a file; OSError.
    """
    if not os.path.basename(path) or "\0" in path:
        what = "it is not a regular file" if path else "it is not the name of a file"
        raise NotOursError(path, what, "name another one" if path else "give one")
    try:
        fd = _open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        beginning = os.read(fd, _BEGINNING_BYTES)
    finally:
        os.close(fd)
    if beginning and not is_kind(beginning):
        raise NotOursError(path, f"the file is there and is not {kind}", "name another file, or remove this one")


def write_ours(path: str, write: Callable[[BinaryIO], None], kind: str, is_kind: Beginning) -> None:
    """Write a file whole or not at all, with mode 0600, over none but a file of the same kind.

    Args:
        write: writes the contents. kind, is_kind: as in `check_replaceable`. The file's directory must be there.

    Raises: NotOursError as there; OSError, with no temporary file left behind.
    """
    check_replaceable(path, kind, is_kind)
    directory = os.path.dirname(path) or "."
    fd, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=directory)
    try:
        with open(fd, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(directory)


def _sync_directory(path: str) -> None:
    """Make the rename durable where the file system can. A crash of the machine costs the new file where it cannot."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def open_to_append(path: str, kind: str, is_kind: Beginning) -> int:
    """Open a file to be added to, made with mode 0600 when missing: one of the given kind that has no other name.

    A file of this user's that others can read or write is closed to them.

    Raises: NotOursError for what is no such file; OSError.
    """
    check_replaceable(path, kind, is_kind)
    fd = _open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise NotOursError(path, f"the file belongs to user {found.st_uid}", "name another one")
        if found.st_nlink > 1:
            raise NotOursError(path, "the file has a second name, by a hard link", "remove it, or name another one")
        if stat.S_IMODE(found.st_mode) != _PRIVATE_FILE:
            os.fchmod(fd, _PRIVATE_FILE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def user_cache_directory() -> str:
    """The directory of a user's own files of mlfs: $XDG_CACHE_HOME/mlfs or ~/.cache/mlfs. It need not be there."""
    # The specification of XDG says to ignore a relative path.
    given = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(given if os.path.isabs(given) else os.path.expanduser("~/.cache"), "mlfs")
