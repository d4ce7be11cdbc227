"""Talking to a running mount: is it one of ours, its status, its control file.

In: the path a user typed, objects to send. Out: the mount point, the status as a dict, answers; `MlfsError` in plain
words for everything that can be in the way. Called by `mlfs.cli.register`, `status`, `unmount`, `record`, `replay` and
`advise`. Whatever touches the mount does so with a timeout: a mount whose daemon hangs must not hang the command.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from mlfs.errors import ExitCode, JobError, MlfsError
from mountd import mounts

ANSWER_TIMEOUT_S = 10.0
# Registering computes and checks the order of a whole job: seconds for a data set of millions of files.
COMMAND_TIMEOUT_S = 600.0
_ANSWER_PART_BYTES = 1 << 20
_NAMED = 3  # mounts that a refusal names
_GONE = (errno.ENOTCONN, errno.ECONNABORTED)


def require_mount(path: str) -> str:
    """The resolved mount point of the mlfs mount at `path`; NOT_MOUNTED with a hint when there is none."""
    resolved = mounts.resolve(path)
    entry = mounts.mount_at(resolved)
    if entry is not None and entry.is_mlfs:
        return resolved
    raise not_mounted(resolved)


def not_mounted(path: str) -> MlfsError:
    """The error for a resolved path that is no mlfs mount, with the most likely reason as the hint."""
    entry, above = mounts.mount_at(path), mounts.enclosing_mlfs(path)
    if above:
        hint = f"it lies inside the mount {above[0].mountpoint}: give that path"
    elif entry is not None:
        hint = f"a file system of type {entry.fstype} is mounted there"
    else:
        others = sorted({e.mountpoint for e in mounts.mount_table() if e.is_mlfs})
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        hint = f"mlfs mounts here: {', '.join(others[:_NAMED])}{more}"
        hint = hint if others else f"mount it first: mlfs mount {path}"
    return MlfsError(f"{path} is not an mlfs mount", hint, ExitCode.NOT_MOUNTED)


def read_file(mountpoint: str, name: str, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
    """The content of MOUNT/.mlfs/NAME."""

    def read() -> bytes:
        with open(os.path.join(mountpoint, ".mlfs", name), "rb", buffering=0) as file:
            return file.readall()

    try:
        return mounts.call_with_timeout(read, timeout_s)
    except OSError as error:
        raise in_plain_words(mountpoint, error) from None


def read_status(mountpoint: str) -> dict[str, Any]:
    """MOUNT/.mlfs/status."""
    try:
        status = json.loads(read_file(mountpoint, "status"))
    except ValueError:
        status = None
    if not isinstance(status, dict):
        raise MlfsError(f"the status of {mountpoint} is not what this version of mlfs knows", "mount it again")
    return status


def send(
    mountpoint: str, command: dict[str, Any], timeout_s: float = COMMAND_TIMEOUT_S, name: str = "control"
) -> dict[str, Any]:
    """Write one command to MOUNT/.mlfs/NAME and return the answer; JobError with the field when it is refused."""
    line = json.dumps(command).encode() + b"\n"

    def write() -> tuple[bool, bytes]:
        # One write(2): the daemon takes what it gets as one line. The answer is read through the same descriptor, for
        # it is this one's; a new descriptor would have the last answer that anybody got.
        fd = os.open(os.path.join(mountpoint, ".mlfs", name), os.O_RDWR | os.O_CLOEXEC)
        try:
            accepted = _accepted(fd, line)
            answer = b""
            while part := os.pread(fd, _ANSWER_PART_BYTES, len(answer)):
                answer += part
            return accepted, answer
        finally:
            os.close(fd)

    try:
        accepted, text = mounts.call_with_timeout(write, timeout_s)
    except OSError as error:
        raise in_plain_words(mountpoint, error) from None
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not accepted:
        raise _refusal(answer if isinstance(answer, dict) else {})
    return answer if isinstance(answer, dict) else {}


def _accepted(fd: int, line: bytes) -> bool:
    try:
        os.write(fd, line)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _refusal(answer: dict[str, Any]) -> JobError:
    reason, field = str(answer.get("error") or "the mount refused the command"), str(answer.get("field") or "")
    message = f"{field}: {reason}" if field and field not in reason else reason
    return JobError(message, str(answer.get("hint") or ""), field)


def in_plain_words(mountpoint: str, error: OSError) -> MlfsError:
    """What it means when touching the control directory of a mount fails."""
    if isinstance(error, TimeoutError):
        message = f"the mount at {mountpoint} does not answer ({error})"
        return MlfsError(message, f"to get rid of it: mlfs unmount --force {mountpoint}")
    if error.errno in _GONE:
        message = f"the daemon of the mount at {mountpoint} is gone"
        return MlfsError(message, f"clean up with: mlfs unmount {mountpoint}", ExitCode.NOT_MOUNTED)
    if error.errno in (errno.EACCES, errno.EPERM):
        message = f"{mountpoint}: only the user who mounted it and root may do this"
        return MlfsError(
            message, "do it as that user; to read the files too: mount with --allow-other", ExitCode.NOT_PERMITTED
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MlfsError(f"the mount at {mountpoint} went away", f"mlfs mount {mountpoint}", ExitCode.NOT_MOUNTED)
    return MlfsError(f"the mount at {mountpoint} answers: {error.strerror}", "see its log file")
