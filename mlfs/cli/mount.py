"""`mlfs mount SOURCE [MOUNTPOINT]`: check everything, start the daemon, return when the mount answers.

In: parsed arguments. Out: a few lines that say what was mounted and what to do next, an exit code. Called by
`mlfs.cli.commands`. The daemon gets its config as JSON on one pipe and reports on another, one JSON object a line:
{"progress": {"phase", "dirs", "files"}}, then {"serving": {"pid", "files", "bytes", "how"}} or
{"error": {"message", "hint", "exit_code"}}. With --foreground the same is served and reported in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlfs.errors import ConfigError, ExitCode, MlfsError

if TYPE_CHECKING:
    from mlfs.config import MountConfig

_PROGRESS_AFTER_S = 2.0
_PLAIN_PROGRESS_EVERY_S = 5.0
_ANSWER_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0
_LOG_TAIL_LINES = 6
# A variable so that a test can put another program in its place.
DAEMON_COMMAND = (sys.executable, "-m", "mountd.daemon")

_EPILOG = """\
examples:
  mlfs mount /data/imagenet       over itself: paths in scripts stay as they are
  mlfs mount /data/imagenet /mnt/fast --ram 64G
  mlfs mount /data/imagenet --ssd /scratch:400G --ssd /scratch2:50%
  mlfs mount --config imagenet.toml

a TOML file for --config (the same names as the flags; flags win):
  source = "/data/imagenet"
  ram = "64G"
  ssd = ["/scratch:400G"]
  pfs-threads = 16

SIZE is 4096, 512M, 64G, 1.5TiB (powers of 1024; 64GB is a power of 1000) or a percentage: for --ram and --staging
of the memory that may be used (the cgroup's limit or the machine's memory), for --ssd and --lmdb of what is free in
the file system of DIR. TIME is 250ms, 2s, 1m30s, 1h.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mount`."""
    parser = subparsers.add_parser(
        "mount",
        help="mount a data set, over its own path or elsewhere",
        description="Mount SOURCE read-only and return when it serves. Without MOUNTPOINT it is mounted over itself.",
        epilog=_EPILOG,
    )
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="the directory with the training files")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="an empty directory (default: SOURCE)")
    parser.add_argument("--config", metavar="FILE", help="TOML file with these flags (default: none)")
    _add_cache_flags(parser)
    _add_process_flags(parser)
    parser.set_defaults(run=run)


def _add_cache_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("caches")
    group.add_argument("--ram", metavar="SIZE", help="keep samples in memory, up to SIZE (default: 50%%)")
    for flag, text in (("--ssd", "a file a sample"), ("--lmdb", "small samples packed")):
        group.add_argument(
            flag,
            metavar="DIR:SIZE",
            action="append",
            help=f"keep samples in DIR, {text}, up to SIZE; may be repeated (default: none)",
        )
    text = "fetch ahead of the readers up to SIZE (default: 10%%, at most 2G, at least 64M)"
    group.add_argument("--staging", metavar="SIZE", help=text)
    text = "read the source with N threads (default: 16)"
    group.add_argument("--pfs-threads", metavar="N", help=text)
    text = "give up a read of the source after TIME (default: 30s)"
    group.add_argument("--source-timeout", metavar="TIME", help=text)
    text = "find out the order of reads by yourself while no job is registered: on or off (default: on)"
    group.add_argument("--infer", metavar="on|off", help=text)
    text = "where the list of files is saved (default: in ~/.cache/mlfs, or $XDG_CACHE_HOME/mlfs)"
    group.add_argument("--index", metavar="FILE", help=text)
    text = "what `mlfs calibrate` measured (default: the one of SOURCE, if there is one)"
    group.add_argument("--calibration", metavar="FILE", help=text)
    text = "scan the source even when the saved list is still right (default: no)"
    group.add_argument("--rescan", action=argparse.BooleanOptionalAction, help=text)


def _add_process_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("mount and daemon")
    text = "let other users read the mount; needs root or user_allow_other in /etc/fuse.conf (default: no)"
    group.add_argument("--allow-other", action=argparse.BooleanOptionalAction, help=text)
    text = "serve in this process until Ctrl-C (default: no, start a daemon)"
    group.add_argument("--foreground", action=argparse.BooleanOptionalAction, help=text)
    text = "the daemon's log (default: log/NAME.log in ~/.cache/mlfs or $XDG_CACHE_HOME/mlfs)"
    group.add_argument("--log-file", metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    """Mount; raises the MlfsError of whatever is in the way."""
    from mlfs.config import KEYS, load_config
    from mountd import preflight, runtime

    config = load_config({key: getattr(args, key.replace("-", "_")) for key in KEYS}, args.config)
    if config.calibration is not None:
        importlib.import_module("mlfs.measure.calibration").load(
            config.calibration
        )  # what is wrong with it comes out now
    preflight.check(config, note=_say)
    # After the check: symbolic links below a dead mount can be read only once that is gone.
    config = preflight.resolve_paths(config)
    if config.foreground:
        return _serve_here(config)
    if config.log_file is None:
        config = config.model_copy(update={"log_file": runtime.default_log_file(config.mountpoint)})
    with Interrupts() as interrupts:
        return _serve_in_daemon(config, interrupts)


def _say(text: str) -> None:
    print(f"mlfs: {text}", file=sys.stderr)


class Interrupts:
    """Ctrl-C and SIGTERM while the daemon starts: both raise KeyboardInterrupt, once there is a daemon to end.

    An interrupt that came while it was being started (in the middle of Popen, say) is raised by `arm`: raised at once,
    it would lose the only reference to a process that already runs.
    """

    def __init__(self) -> None:
        self._armed = self._pending = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
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


def _serve_here(config: MountConfig) -> int:
    serve = importlib.import_module("mountd.daemon").serve
    errors: list[MlfsError] = []
    progress = Progress()

    def report(message: dict[str, Any]) -> None:
        if "progress" in message:
            progress.update(message["progress"])
        elif "serving" in message:
            progress.close()
            # Not verified from here: this is the loop that would have to answer.
            print("\n".join(summary(config, message["serving"])), flush=True)
        elif "error" in message:
            errors.append(_reported(message["error"]))

    with progress:
        code = int(serve(config, report))
    if errors:
        raise errors[0]
    return code


def _serve_in_daemon(config: MountConfig, interrupts: Interrupts) -> int:
    log_start = _log_size(config)
    daemon, status_fd = _start(config)
    try:
        try:
            interrupts.arm()
            serving = _wait_until_serving(daemon, status_fd)
        finally:
            os.close(status_fd)
        _check_answer(config)
        interrupts.disarm()
    except BaseException as error:
        interrupts.disarm()
        _stop(daemon, config)
        if isinstance(error, _DiedSilentlyError):
            raise _died(daemon, config, log_start) from None
        raise
    print("\n".join(summary(config, serving)), flush=True)
    return ExitCode.OK


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
        with _open_log(config) as log:
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


def _open_log(config: MountConfig) -> Any:
    path = str(config.log_file)
    try:
        return open(path, "ab")
    except OSError as error:
        raise ConfigError(f"log file {path}: {error.strerror}", "give another --log-file") from None


def _daemon_environment() -> dict[str, str]:
    """This environment, and where mlfs was imported from when it is not installed (the daemon starts in /)."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = dict(os.environ)
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        rest = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{rest}" if rest else root
    return environment


class _DiedSilentlyError(Exception):
    """The status pipe ended without `serving` or `error`."""


def _wait_until_serving(daemon: subprocess.Popen[bytes], status_fd: int) -> dict[str, Any]:
    with Progress() as progress:
        for message in _messages(daemon, status_fd, progress):
            if "serving" in message:
                return dict(message["serving"])
            if "error" in message:
                raise _reported(message["error"])
            if "progress" in message:
                progress.update(message["progress"])
    raise _DiedSilentlyError


def _messages(daemon: subprocess.Popen[bytes], status_fd: int, progress: Progress) -> Iterator[dict[str, Any]]:
    pending, ended = b"", False
    while True:
        if select.select([status_fd], [], [], 0 if ended else 0.2)[0]:
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
            # A helper of the daemon may hold the pipe open longer than the daemon lives; look for its last words once.
            ended = daemon.poll() is not None


def _reported(error: dict[str, Any]) -> MlfsError:
    try:
        code = ExitCode(error.get("exit_code", ExitCode.FAILURE))
    except ValueError:
        code = ExitCode.FAILURE
    return MlfsError(str(error.get("message", "the daemon failed")), str(error.get("hint") or ""), code)


def _check_answer(config: MountConfig) -> None:
    """Whether the mount answers, seen from outside of the daemon."""
    from mountd import mounts

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
    from mountd import mounts, preflight, runtime

    daemon.terminate()
    try:
        daemon.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    entry = mounts.mount_at(config.mountpoint)
    if entry is not None and entry.is_mlfs:
        preflight.clean_dead_mounts(config.mountpoint, lambda line: None)
    runtime.remove(config.mountpoint, daemon.pid)


def _died(daemon: subprocess.Popen[bytes], config: MountConfig, log_start: int) -> MlfsError:
    tail = _log_tail(str(config.log_file), log_start)
    if tail:
        print("\n".join(["mlfs: last lines of the daemon's log:", *(f"  | {line}" for line in tail)]), file=sys.stderr)
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


class Progress:
    """Tells on stderr how far the start is, once it takes longer than two seconds."""

    def __init__(self) -> None:
        self._started = self._printed = time.monotonic()
        self._live: Any = None
        self._text = "starting"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, progress: dict[str, Any]) -> None:
        """Take over what the daemon has reported."""
        counts = [f"{progress[key]:,} {name}" for key, name in _COUNTED if isinstance(progress.get(key), int)]
        self._text = ": ".join([str(progress.get("phase", "starting")), *([", ".join(counts)] if counts else [])])
        self.tick()

    def tick(self) -> None:
        """Show it, if it is time to."""
        now = time.monotonic()
        if now - self._started < _PROGRESS_AFTER_S:
            return
        if sys.stderr.isatty():
            if self._live is None:
                from rich.console import Console

                self._live = Console(stderr=True, markup=False).status(self._text)
                self._live.start()
            self._live.update(self._text)
        elif now - self._printed >= _PLAIN_PROGRESS_EVERY_S or self._printed == self._started:
            self._printed = now
            _say(self._text)

    def close(self) -> None:
        """Take the line off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None


_COUNTED = (("dirs", "directories"), ("files", "files"))


def summary(config: MountConfig, serving: dict[str, Any]) -> list[str]:
    """The lines that say what is mounted and what comes next."""
    from mlfs.units import format_size

    over = "over itself" if config.mountpoint == config.source else f"from {config.source}"
    caches = [f"RAM {format_size(config.ram_bytes)}"]
    for name, dirs in (("SSD", config.ssd), ("LMDB", config.lmdb)):
        caches += [f"{name} {format_size(cache.bytes)} in {cache.path}" for cache in dirs]
    files, size = serving.get("files"), serving.get("bytes")
    counts = f"{files:,} files" if isinstance(files, int) else "- files"
    if isinstance(size, int):
        counts += f", {format_size(size)}"
    how = f" ({serving['how']})" if serving.get("how") else ""
    place = shlex.quote(config.mountpoint)
    return [
        f"mounted {config.mountpoint} {over}, read-only, served by process {serving.get('pid', '-')}",
        f"  data     {counts}{how}",
        f"  caches   {', '.join(caches)}",
        f"  ahead    up to {format_size(config.staging_bytes)} staged, {config.pfs_threads} threads on the source",
        *([f"  log      {config.log_file}"] if config.log_file else []),
        "next, so that files are in memory before they are read (values as in your training script):",
        f"  mlfs register {place} --sampler torch-distributed --seed 0 --epochs 90 --batch-size 64 "
        "--world-size 4 --ranks 0-3",
        f"then: mlfs status {place}; at the end: mlfs unmount {place}",
    ]
