"""The way of commands to a running mount: they find it, read its status, and send it commands.

In: the path that a user typed, objects to send. Out: the mount point, the status as a dict, answers; an `MlfsError` in
plain words for everything that can go wrong. Used by the commands that need a mount.

Everything that touches the mount does so with a timeout, because a mount whose daemon hangs must not hang the command.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from mlfs.cli.ending import unheard
from mlfs.errors import ExitCode, JobError, MlfsError
from mountd import interface

# The daemon answers from memory, so a mount that takes longer hangs.
ANSWER_TIMEOUT_S = 10.0
# A registration computes and checks the order of a whole job, which takes seconds for a data set of millions of files.
COMMAND_TIMEOUT_S = 600.0
_GIVE_UP_TIMEOUT_S = 1.0
_ANSWER_PART_BYTES = 1 << 20  # nearly every answer comes in one part
_NAMED = 3  # mounts that a refusal names
T = TypeVar("T")
_GONE = (errno.ENOTCONN, errno.ECONNABORTED)


def require_mount(path: str) -> str:
    """The resolved mount point of the mlfs mount at `path`. Raises NOT_MOUNTED, with a hint, when there is none;
    FAILURE when its daemon was stopped by a signal."""
    resolved = interface.resolve(path)
    entry = interface.mount_at(resolved)
    if entry is not None and entry.is_mlfs:
        check_not_stopped(resolved)
        return resolved
    raise not_mounted(resolved)


def not_mounted(path: str) -> MlfsError:
    """The error for a resolved path that is no mlfs mount, with the most likely reason as the hint."""
    entry, above = interface.mount_at(path), interface.enclosing_mlfs(path)
    if above:
        hint = f"it lies inside the mount {above[0].mountpoint}: give that path"
    elif entry is not None:
        hint = f"a file system of type {entry.fstype} is mounted there"
    else:
        mounted = {e.mountpoint for e in interface.mount_table() if e.is_mlfs}
        # The nearest first: those with most of the path in common.
        others = sorted(mounted, key=lambda other: (-len(os.path.commonpath([other, path])), other))
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        hint = f"mlfs mounts here: {', '.join(others[:_NAMED])}{more}"
        hint = hint if others else f"mount it first: mlfs mount {path}"
    return MlfsError(f"{path} is not an mlfs mount", hint, ExitCode.NOT_MOUNTED)


def read_file(mountpoint: str, name: str, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
    """The content of MOUNT/.mlfs/NAME."""
    check_not_stopped(mountpoint)

    def read() -> bytes:
        with open(os.path.join(mountpoint, ".mlfs", name), "rb", buffering=0) as file:
            return file.readall()

    try:
        return interface.call_with_timeout(lambda: _again_if_stale(read), timeout_s)
    except OSError as error:
        raise in_plain_words(mountpoint, error) from None


def _again_if_stale(call: Callable[[], T]) -> T:
    """A call on the control directory, made once more where the server died in the middle of it: the one after it does
    not know what that one had open."""
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return call()


def read_status(mountpoint: str, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    """The text of MOUNT/.mlfs/status."""
    try:
        status = json.loads(read_file(mountpoint, "status", timeout_s))
    except ValueError:
        status = None
    if not isinstance(status, dict):
        raise MlfsError(f"the status of {mountpoint} is not what this version of mlfs knows", "mount it again")
    return status


def send(
    mountpoint: str, command: dict[str, Any], timeout_s: float = COMMAND_TIMEOUT_S, name: str = "control",
    give_up: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write a command to MOUNT/.mlfs/NAME and return the answer. Raises JobError, with the field, for a refusal.

    Args:
        give_up: the command that ends this one where a signal ends the wait for it. Without it the process could not
            even die before the daemon has answered: the kernel lets nobody out of a write that the daemon has begun.
    """
    line = json.dumps(command).encode() + b"\n"
    check_not_stopped(mountpoint)

    def write() -> tuple[bool, bytes]:
        # The answer is read through the same descriptor: a new one would have the last answer that anybody got.
        fd, tell = _open_control(mountpoint, name)
        try:
            accepted = _accepted(tell, fd, line)
            answer = b""
            while part := os.read(fd, _ANSWER_PART_BYTES):  # from where the descriptor stands now
                answer += part
            return accepted, answer
        finally:
            os.close(fd)

    try:
        accepted, text = interface.call_with_timeout(lambda: _again_if_stale(write), timeout_s)
    except OSError as error:
        raise in_plain_words(mountpoint, error) from None
    except BaseException:
        if give_up is not None:
            # A second Ctrl-C must not cut this off: the process could not end before the daemon has answered.
            with unheard(), suppress(MlfsError):
                send(mountpoint, give_up, _GIVE_UP_TIMEOUT_S)
        raise
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not accepted:
        raise _refusal(answer if isinstance(answer, dict) else {})
    return answer if isinstance(answer, dict) else {}


def _open_control(mountpoint: str, name: str) -> tuple[int, Callable[[int, bytes], object]]:
    """A descriptor of MOUNT/.mlfs/NAME, and how a line is given through it."""
    directory = os.path.join(mountpoint, ".mlfs")
    try:
        # It is a single write(2), as the daemon takes each write as one line.
        return os.open(os.path.join(directory, name), os.O_RDWR | os.O_CLOEXEC), os.write
    except OSError as error:
        # A link to a mount that is not there: in a container, say, which sees the data and not /run/mlfs.
        if error.errno not in (errno.ENOENT, errno.EROFS):
            raise
    return os.open(os.path.join(directory, "commands", "in", name), os.O_RDONLY | os.O_CLOEXEC), interface.tell_in_parts


def _accepted(tell: Callable[[int, bytes], object], fd: int, line: bytes) -> bool:
    try:
        tell(fd, line)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _refusal(answer: dict[str, Any]) -> MlfsError:
    reason, field = str(answer.get("error") or "the mount refused the command"), str(answer.get("field") or "")
    message = f"{field}: {reason}" if field and field not in reason else reason
    hint = str(answer.get("hint") or "")
    if answer.get("exit_code") in tuple(ExitCode):  # it is not about a job
        return MlfsError(message, hint, ExitCode(answer["exit_code"]))
    return JobError(message, hint, field)


def check_not_stopped(mountpoint: str) -> None:
    """Raise for a daemon that got SIGSTOP, in a debugger perhaps: whoever asked it would wait for nothing."""
    pid = interface.stopped_daemon(mountpoint)
    if pid is not None:
        raise stopped(mountpoint, pid)


def stopped(mountpoint: str, pid: int) -> MlfsError:
    """The error for a mount whose daemon is stopped."""
    message = f"the daemon of the mount at {mountpoint} (process {pid}) is stopped"
    return MlfsError(message, f"kill -CONT {pid}, or to get rid of it: mlfs unmount --force {mountpoint}")


def in_plain_words(mountpoint: str, error: OSError) -> MlfsError:
    """The error that tells a user what it means when the control directory of a mount cannot be used."""
    if isinstance(error, TimeoutError):
        message = f"the mount at {mountpoint} does not answer ({error})"
        return MlfsError(message, f"to get rid of it: mlfs unmount --force {mountpoint}")
    if error.errno in _GONE:
        message = f"the daemon of the mount at {mountpoint} is gone"
        return MlfsError(message, f"clean up with: mlfs unmount {mountpoint}", ExitCode.NOT_MOUNTED)
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() == 0:
        user = interface.user_of(mountpoint)
        whose = f"user {user}" if user else "another user"
        hint = (
            f"do it as that user: setpriv --reuid {user or 'UID'} --clear-groups mlfs ...; or mount with --allow-other"
        )
        message = f"{mountpoint} was mounted by {whose}, and FUSE keeps root out, too"
        return MlfsError(message, hint, ExitCode.NOT_PERMITTED)
    if error.errno in (errno.EACCES, errno.EPERM):
        message = f"{mountpoint}: only the user who mounted it and root may do this"
        entry = interface.mount_at(mountpoint)
        others_read = entry is not None and "allow_other" in entry.options
        hint = "do it as that user" + ("" if others_read else "; to read the files too: mount with --allow-other")
        return MlfsError(message, hint, ExitCode.NOT_PERMITTED)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MlfsError(f"the mount at {mountpoint} went away", f"mlfs mount {mountpoint}", ExitCode.NOT_MOUNTED)
    return MlfsError(f"the mount at {mountpoint} answers: {error.strerror}", "see its log file")
