"""Starts the daemon of a mount and waits until the mount answers, or until it is known why it does not.

In: a checked `MountConfig`. Out: what the daemon reported when it began to serve; after an error or an interrupt no
process, no mount and no runtime record are left. Called through mountd.interface.

The daemon gets its config as JSON on one pipe and reports on another, one JSON object a line: {"progress": {"phase",
"dirs", "files"}}, then {"serving": {"pid", "files", "bytes", "how", "notes"}} or {"error": {"message", "hint",
"exit_code"}}.
With --foreground this process becomes the daemon, and a child of it tells what that reports.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from mlfs.errors import ExitCode, MlfsError
from mlfs.limits import Resource, lacking, limit_of
from mountd import mounts, runtime
from mountd.log_file import open_log

if TYPE_CHECKING:
    from mlfs.config import MountConfig

# How long the first look through a new mount may take. It is answered from memory, so nothing but a fault takes longer.
_ANSWER_TIMEOUT_S = 10.0
# How long a daemon that could not be used may take to end before it is killed.
_STOP_TIMEOUT_S = 10.0
# How often progress is shown again and the daemon's life is checked while it says nothing.
_POLL_S = 0.2
_LOG_TAIL_LINES = 6
# A variable so that a test can put another program in its place.
DAEMON_COMMAND = (sys.executable, "-m", "mountd")

Serving = dict[str, Any]
Note = Callable[[str], None]


class ProgressDisplay(Protocol):
    """Shows how far the start is. The command does, which the daemon does not know."""

    def update(self, progress: dict[str, Any]) -> None:
        """The daemon has reported this."""

    def tick(self) -> None:
        """Time has passed, and there was no report."""


def serve_here(config: MountConfig, progress: ProgressDisplay) -> Serving:
    """Become the daemon, whose exit code is then this process's. Returns what it reported when it began to serve, in a
    child that has nothing else to do than to tell. Raises there the MlfsError of what went wrong."""
    status_read, status_write = os.pipe()
    tells, end_of_telling = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        os.close(end_of_telling)
    elif os.fork():
        os._exit(0)  # so that what tells is no child of the daemon, which looks after its own only
    else:
        os.close(status_write)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the daemon hears them, and ends, which this process sees
        try:
            return _wait_until_serving(None, status_read, progress)
        except _DiedSilentlyError:
            raise MlfsError(f"the daemon ended before it served {config.mountpoint}", "see what it logged") from None
    config_fd = os.memfd_create("mlfs-config")
    os.pwrite(config_fd, config.to_json().encode("ascii"), 0)
    for fd in (config_fd, status_write, tells):
        os.set_inheritable(fd, True)
    fds = ["--config-fd", str(config_fd), "--status-fd", str(status_write), "--foreground", str(tells)]
    os.chdir("/")  # Python looks for modules where it is started, which may be anybody's directory
    os.execve(DAEMON_COMMAND[0], [*DAEMON_COMMAND, *fds], _daemon_environment())


def start_daemon(config: MountConfig, progress: ProgressDisplay, note: Note) -> Serving:
    """Start a daemon and return what it reported once the mount answers. Raises the MlfsError of what went wrong.

    Args:
        config: with a log file.
        note: told, in one line each, what a daemon that died wrote to its log.
    """
    with _Interrupts() as interrupts:
        log_start = _log_size(config)
        try:
            daemon, status_fd = _start(config)
        except OSError as error:
            raise not_started(error) from error
        try:
            try:
                interrupts.arm()
                serving = _wait_until_serving(daemon, status_fd, progress)
            finally:
                os.close(status_fd)
            _check_answer(config)
            interrupts.disarm()
        except BaseException as error:
            interrupts.disarm()
            _stop(daemon, config)
            if isinstance(error, _DiedSilentlyError):
                raise _died(daemon, config, log_start, note) from None
            raise
    return serving


class _Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP while the daemon starts: all raise KeyboardInterrupt, once there is a daemon to end.

    An interrupt that comes while the daemon is being started (in the middle of Popen, say) is raised by `arm`: raised
    at once, it would lose the only reference to a process that already runs.
    """

    def __init__(self) -> None:
        self._armed = self._pending = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:
        hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # nohup
        for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: object) -> None:
        self._pending = True
        if self._armed:
            # Once: ending the daemon is not to be cut short by a second Ctrl-C.
            self._armed = False
            raise KeyboardInterrupt

    def arm(self) -> None:
        """From now on an interrupt is raised where it comes."""
        self._armed = True
        if self._pending:
            self._armed = False
            raise KeyboardInterrupt

    def disarm(self) -> None:
        """From now on interrupts wait."""
        self._armed = False


def _log_size(config: MountConfig) -> int:
    try:
        return os.stat(str(config.log_file)).st_size
    except OSError:
        return 0


def _start(config: MountConfig) -> tuple[subprocess.Popen[bytes], int]:
    """The daemon, in a session of its own so that Ctrl-C in this terminal is not its end, and its status pipe."""
    config_read, config_write = os.pipe()
    status_read, status_write = os.pipe()
    fds = ["--config-fd", str(config_read), "--status-fd", str(status_write)]
    try:
        with open(open_log(str(config.log_file), config.log_format, config.log_files), "ab") as log:
            daemon = subprocess.Popen(
                [*DAEMON_COMMAND, *fds],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_daemon_environment(),
                start_new_session=True,
                pass_fds=(config_read, status_write),
            )
    finally:
        # Without our copy of the writing end the pipe ends when the daemon does.
        os.close(config_read)
        os.close(status_write)
    with contextlib.suppress(BrokenPipeError), os.fdopen(config_write, "w", encoding="ascii") as file:
        file.write(config.to_json())
    return daemon, status_read


def _daemon_environment() -> dict[str, str]:
    """This environment, and where mlfs was imported from when it is not installed (the daemon starts in /)."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = dict(os.environ)
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        rest = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{rest}" if rest else root
    return environment


def not_started(error: OSError) -> MlfsError:
    """The refusal of a mount whose daemon cannot be started."""
    what = Resource.THREADS if error.errno == errno.EAGAIN else lacking(error)  # of fork(2)
    if what is None or error.filename is not None:
        return MlfsError(f"the daemon cannot be started: {error}", "see whether the log's directory can be written")
    limit = limit_of(what)
    return MlfsError(f"no daemon can be started: {limit.what}", limit.way_out)


def reported(error: MlfsError) -> bytes:
    """The report of an error, as `reported_error` reads it."""
    about = {"message": error.message, "hint": error.hint, "exit_code": int(error.exit_code)}
    return json.dumps({"error": about}).encode("ascii") + b"\n"


class _DiedSilentlyError(Exception):
    """The status pipe ended without `serving` or `error`."""


def _wait_until_serving(daemon: subprocess.Popen[bytes] | None, status_fd: int, progress: ProgressDisplay) -> Serving:
    for message in _messages(daemon, status_fd, progress):
        if "serving" in message:
            return dict(message["serving"])
        if "error" in message:
            raise reported_error(message["error"])
        if "progress" in message:
            progress.update(message["progress"])
    raise _DiedSilentlyError


def _messages(
    daemon: subprocess.Popen[bytes] | None, status_fd: int, progress: ProgressDisplay
) -> Iterator[dict[str, Any]]:
    pending, ended = b"", False
    while True:
        if select.select([status_fd], [], [], 0 if ended else _POLL_S)[0]:
            chunk = os.read(status_fd, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
        elif ended:
            return
        else:
            progress.tick()
            # A process that the daemon started may hold the pipe open longer than the daemon lives. The daemon's last
            # words are read once more, and then that is the end.
            ended = daemon is not None and daemon.poll() is not None


def reported_error(error: dict[str, Any]) -> MlfsError:
    """The error that a daemon has reported; whatever is missing or unknown in the report is filled in."""
    try:
        code = ExitCode(error.get("exit_code", ExitCode.FAILURE))
    except ValueError:
        code = ExitCode.FAILURE
    return MlfsError(str(error.get("message", "the daemon failed")), str(error.get("hint") or ""), code)


def _check_answer(config: MountConfig) -> None:
    """Whether the mount answers, seen from outside of the daemon."""
    path = os.path.join(config.mountpoint, ".mlfs", "status")
    try:
        mounts.call_with_timeout(lambda: os.stat(path), _ANSWER_TIMEOUT_S)
    except OSError as error:
        reason = error.strerror or str(error)
        raise MlfsError(f"mounted {config.mountpoint}, but it does not answer: {reason}", _see_log(config)) from None


def _see_log(config: MountConfig) -> str:
    return f"see the log {config.log_file}"


def _stop(daemon: subprocess.Popen[bytes], config: MountConfig) -> None:
    """End the daemon and whatever it has mounted."""
    from mountd import preflight

    daemon.terminate()
    try:
        daemon.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        record = runtime.read(config.mountpoint)
        if record is not None and record.holder == daemon.pid:
            runtime.send_signal(record, signal.SIGKILL)  # the server would start another holder
        daemon.kill()
        daemon.wait()
    entry = mounts.mount_at(config.mountpoint)
    if entry is not None and entry.is_mlfs:
        preflight.clean_dead_mounts(config.mountpoint, lambda line: None)
    runtime.remove(config.mountpoint, daemon.pid)


def _died(daemon: subprocess.Popen[bytes], config: MountConfig, log_start: int, note: Note) -> MlfsError:
    tail = _log_tail(str(config.log_file), log_start)
    if tail:
        note("\n".join(["last lines of the daemon's log:", *(f"  | {line}" for line in tail)]))
    code = daemon.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return MlfsError(f"the daemon {how} before it served {config.mountpoint}", _see_log(config))


def _log_tail(path: str, start: int) -> list[str]:
    """The last lines that were written to the log after `start`."""
    try:
        with open(path, "rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-_LOG_TAIL_LINES:]
