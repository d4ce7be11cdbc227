"""`mlfs record MOUNT OUT`: write down what is opened on a mount, until Ctrl-C or the mount's end.

In: parsed arguments. Out: a file of mode 0600 with one JSON array a line, [seconds, pid, parent, path], after a first
line that tells it from other files: only a recording is replaced by a new one, and none that has opens by one that has
none. It gets its name when it is complete. Called by `mlfs.cli.commands`; `mlfs.cli.replay` reads the file. The daemon
writes to a FIFO that only this user may open. When this command ends, in whatever way, the daemon notices and stops.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import tempfile
import time
from typing import Any, BinaryIO

from mlfs.cli import client
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.ours import NotOursError, write_ours
from mlfs.printable import printable

_EPILOG = """\
examples:
  mlfs record /data/imagenet run1.opens    run the script; Ctrl-C after an epoch
  mlfs replay run1.opens /data/imagenet    for the next run: fetch in that order
"""
FIRST_LINE = b'{"mlfs": "recorded opens", "format": 1}\n'
RESTARTED = "mlfs: another server serves the mount now: opens of some hundredths of a second before may be missing"
MERGED = "; a file that a process opens twice within some milliseconds may be one (--channel silent)"
_PROGRESS_EVERY_S = 2.0
_CHUNK_BYTES = 1 << 16  # what a FIFO holds
_LAST_WORDS_S = 10.0  # how long the daemon may take to write what is left; it has it in memory


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write down who opens what and when, until Ctrl-C or until the mount ends."
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    parser.add_argument("out", metavar="OUT", help="the file to write; it appears when the recording ends")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Record. The exit code is 0 when a file was written, also after Ctrl-C."""
    mountpoint = client.require_mount(args.mount)
    if os.path.isdir(args.out):
        raise ConfigError(f"{args.out} is a directory", "give the name of a file")
    opens, is_silent = 0, False
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:
        raise ConfigError(
            "there is no directory for temporary files", "set TMPDIR to one that can be written"
        ) from None
    with _Stop() as stop, tempfile.TemporaryDirectory(prefix="mlfs-record-", dir=temporary) as private:

        def write(file: BinaryIO) -> None:
            nonlocal opens, is_silent
            file.write(FIRST_LINE)
            is_silent = client.read_status(mountpoint)["channel"]["name"] == "silent"
            opens = _record(mountpoint, os.path.join(private, "opens"), file, stop)
            if not opens and os.path.exists(args.out) and os.path.getsize(args.out) > len(FIRST_LINE):
                said = printable(f"nothing was opened on {mountpoint}: {args.out} stays the recording that it was")
                raise MlfsError(said, "run the script while mlfs record runs")

        try:
            write_ours(args.out, write, "a recording of mlfs", lambda beginning: beginning.startswith(FIRST_LINE))
        except NotOursError as error:
            raise ConfigError(f"{args.out or 'OUT'}: {error.strerror}", error.way_out) from None
        except OSError as error:
            raise ConfigError(f"{args.out} cannot be written: {error.strerror}", "give another file") from None
    print(printable(f"{args.out}: {opens:,} opens{MERGED if is_silent else ''}"))
    return ExitCode.OK


class _Stop:
    """Ctrl-C, SIGTERM and a terminal that is closed end the recording, whenever they come; nothing is raised in the
    middle of a line. A signal that is ignored (by nohup) stays ignored.

    The interpreter writes to the pipe at once (signal.set_wakeup_fd). A handler in Python would not be called for a
    signal that comes just before select(2) waits, which then waits on.
    """

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])):
            self._before[number] = signal.signal(number, lambda *_: None)
        self._woken_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._woken_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.read_end)
        os.close(self._write_end)


def _record(mountpoint: str, fifo: str, out: BinaryIO, stop: _Stop) -> int:
    """Copy whole lines until the end; returns how many."""
    os.mkfifo(fifo, 0o600)
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    opens, pending, printed_s = 0, b"", time.monotonic()
    try:
        server = client.read_status(mountpoint)["pid"]
        client.send(mountpoint, {"op": "record", "fifo": fifo})
        print(printable(f"mlfs: recording {mountpoint}; end it with Ctrl-C"), file=sys.stderr, flush=True)
        ending = False
        while True:
            watched = [fd] if ending else [fd, stop.read_end]
            ready, _, _ = select.select(watched, [], [], _LAST_WORDS_S if ending else None)
            if stop.read_end in ready:
                ending = True
                with contextlib.suppress(MlfsError):  # the mount is gone: there is no more to come
                    client.send(mountpoint, {"op": "record", "fifo": fifo, "end": True}, _LAST_WORDS_S)
                continue
            chunk = os.read(fd, _CHUNK_BYTES) if ready else b""
            if not chunk and not ending and server != (server := _next_server(mountpoint, server, fifo)):
                print(printable(RESTARTED), file=sys.stderr, flush=True)
                pending = b""
                continue
            if not chunk:
                return opens
            *lines, pending = (pending + chunk).split(b"\n")
            out.writelines(line + b"\n" for line in lines)
            opens += len(lines)
            if sys.stderr.isatty() and time.monotonic() - printed_s >= _PROGRESS_EVERY_S:
                printed_s = time.monotonic()
                os.write(sys.stderr.fileno(), b"\r%d opens" % opens)
    finally:
        os.close(fd)


def _next_server(mountpoint: str, server: int, fifo: str) -> int:
    """Have another server that serves the mount go on with the recording; returns its process, or the same one."""
    with contextlib.suppress(MlfsError):  # the mount is gone
        serves: int = client.read_status(mountpoint)["pid"]
        if serves != server:
            client.send(mountpoint, {"op": "record", "fifo": fifo})
        return serves
    return server
