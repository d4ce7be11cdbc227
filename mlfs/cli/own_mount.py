"""Runs a command over mounts that are there for it alone: nobody else sees them, and they end with the command.

In: the settings of each mount, the command, what to ask of the mounts in the end. Out: the command's exit code
where it fails, else that of the answer. Called by `mlfs.cli.audit`.

The process that was called stays outside, and passes signals on to a second one, which ends with it. The second one
mounts, runs the command, asks, and unmounts, whatever happens. The next call ends and removes what is left of one that
was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from mlfs.cli.ending import EndedBySignal
from mlfs.cli.namespaces import be_again, check_command, take_own_mounts
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.printable import printable
from mlfs.processes import end_with_parent
from mountd import interface

# The signals by which a terminal, a batch system or a user ends a command.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A daemon lets readers finish for ten seconds, and then commits what it has to write.
_END_TIMEOUT_S, _LOOK_AGAIN_S = 25.0, 0.05
_PREFIX = "mlfs-audit-"

Settings = Mapping[str, Any]


def run_over_own_mount(
    settings: Sequence[Settings], command: Sequence[str], output: int | None, ask: Callable[[list[str]], int]
) -> int:
    """Run a command over mounts of its sources. Returns its exit code where it fails, else what was asked for.

    Args:
        settings: of each mount, as `mlfs.config.load_config` takes them. output: the descriptor that is the command's
            standard output; None: this process's. ask: called with the mount points once the command has ended.
    """
    check_command(command[0])
    sys.stdout.flush()
    outside, (hears, says) = os.getpid(), os.pipe()
    second = os.fork()
    if second == 0:
        _be_second(says, partial(_run, outside, settings, command, output, ask))
    os.close(says)
    _hear(lambda number, _: os.kill(second, number))
    code = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
    _hear(signal.SIG_IGN)  # its number may be another one's now
    with open(hears, "rb") as said:
        if error := said.read():
            message, hint, number = json.loads(error)
            raise MlfsError(message, hint, ExitCode(number))
    return code if code >= 0 else 128 - code


def _be_second(says: int, run: Callable[[], int]) -> NoReturn:
    """In the second process: leave nothing to the code that this was forked from, and let the first one say errors."""
    code = int(ExitCode.FAILURE)
    try:
        code = run()
        sys.stdout.flush()
    except MlfsError as error:
        os.write(says, json.dumps((error.message, error.hint, int(error.exit_code))).encode())
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except EndedBySignal as ended:
        code = 128 + ended.number
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(
    outside: int, settings: Sequence[Settings], command: Sequence[str], output: int | None,
    ask: Callable[[list[str]], int],
) -> int:  # fmt: skip
    os.setsid()  # what a terminal ends its commands with comes once, from outside
    user = os.geteuid(), os.getegid()
    source = settings[0]["source"]
    is_root = take_own_mounts(f"as root; or: mlfs mount {source}; COMMAND; mlfs audit {source}")
    end_with_parent(signal.SIGTERM, outside)
    with _mounted(settings) as mountpoints:
        code = _outcome(command, output, partial(_before_it_runs, os.getpid(), None if is_root else user))
        answer = ask(mountpoints)
    return code or answer


def _hear(handler: Any) -> dict[int, Any]:
    """Handle what ends a command so, but for what is ignored (nohup). Returns the handlers before, by signal."""
    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heard}


# -- the command's process


def _before_it_runs(parent: int, user: tuple[int, int] | None) -> None:
    """In the command's process: it is its user's, and ends when whoever has started it is gone."""
    if user is not None:
        be_again(user)
    end_with_parent(signal.SIGTERM, parent)


# -- the mounts


@contextmanager
def _mounted(settings: Sequence[Settings]) -> Iterator[list[str]]:
    """Mounts that end with the context: their mount points."""
    from mlfs.cli.progress import Progress
    from mlfs.config import load_config

    with _records() as records:
        os.environ["MLFS_RUNTIME_DIR"] = records  # another mount of such a path may be served elsewhere
        mountpoints = []
        try:
            for one in settings:
                config = interface.check_mount(load_config(one), note=_say)
                config = config.model_copy(update={"log_file": interface.default_log_file(config.mountpoint)})
                with Progress() as progress:
                    serving = interface.start_daemon(config, progress, _say)
                mountpoints.append(config.mountpoint)
                for note in serving.get("notes", ()):
                    _say(str(note))
            yield mountpoints
        finally:
            _end_recorded()


@contextmanager
def _records() -> Iterator[str]:
    """A directory for the records of what runs, which is locked for as long as this process lives."""
    _sweep()
    path, fd = _locked_directory()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _locked_directory() -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
            except OSError:
                return path, fd  # where nobody can lock, nobody sweeps
            if os.path.isdir(path):  # none has swept it before it was locked
                return path, fd
            os.close(fd)


def _sweep() -> None:
    """End and remove what those have left that were killed: their directories are not locked any more."""
    with os.scandir(tempfile.gettempdir()) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in left:
        with suppress(OSError):  # it is somebody else's, or in use
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.geteuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.environ["MLFS_RUNTIME_DIR"] = path
                    _end_recorded()
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


def _end_recorded() -> None:
    """End all daemons that have their records where $MLFS_RUNTIME_DIR says."""
    daemons = interface.recorded_daemons()
    before = _hear(signal.SIG_IGN)
    try:
        for how in (signal.SIGTERM, signal.SIGKILL):
            for daemon in daemons:
                interface.send_signal(daemon, how)
            until_s = time.monotonic() + _END_TIMEOUT_S
            while any(map(interface.is_running, daemons)) and time.monotonic() < until_s:
                time.sleep(_LOOK_AGAIN_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    print(printable(f"mlfs: {line}"), file=sys.stderr)


# -- the command


def _outcome(command: Sequence[str], output: int | None, before_it_runs: Callable[[], None]) -> int:
    """Run the command to its end, with the signals that come meanwhile. Returns its exit code."""
    process: subprocess.Popen[bytes] | None = None
    signals: list[int] = []

    def pass_on(number: int, _frame: object = None) -> None:
        if process is None:
            signals.append(number)
        else:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    before = _hear(pass_on)
    try:
        # By its path, which leads to the mount now, where it lies in the data.
        process = subprocess.Popen(
            command,
            stdout=output,
            cwd=os.getcwd(),
            start_new_session=True,
            preexec_fn=before_it_runs,  # noqa: PLW1509 - this process has one thread
        )
        for number in signals:
            pass_on(number)
        code = process.wait()
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{command[0]} cannot be run: {error}", "check the name behind --") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
