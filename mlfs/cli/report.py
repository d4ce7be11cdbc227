"""`mlfs report MOUNT OUT.html`: a page that shows what a mount did, epoch by epoch, and what would help.

In: parsed arguments, MOUNT/.mlfs/status or a status on standard input. Out: one file of HTML, written whole or not at
all. Called by `mlfs.cli.commands`; `mlfs mount --report DIR` has the daemon run it when a job ends. With --wait the
page is written when all jobs have finished, or when the mount ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from mlfs.errors import ConfigError, ExitCode, MlfsError, require
from mlfs.ours import NotOursError, check_replaceable, write_ours
from mlfs.report import MARK
from mlfs.shown import StatusPart
from mlfs.user_input import InputError, read_json

_EPILOG = """\
examples:
  mlfs report /data/imagenet imagenet.html
  mlfs report /data/imagenet imagenet.html --wait &  written at the end
  mlfs mount /data/imagenet --report ~/reports       a page whenever a job ends
  mlfs report - imagenet.html < status.json          a saved status
"""
# The mount answers from memory, and nobody reads the page sooner.
LOOK_EVERY_S = 2.0
# Millions of reads are judged in a few seconds.
AUDIT_TIMEOUT_S = 120.0
_KIND = "a report of mlfs"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write one self-contained page of HTML about a mount."
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point, or - for a status on standard input")
    parser.add_argument("out", metavar="OUT", help="the file to write, for example report.html")
    parser.add_argument(
        "--wait", action="store_true", help="write it when all jobs have finished or the mount ends (default: now)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report; Ctrl-C while it waits writes what is known by then."""
    from mlfs.cli import client

    require("matplotlib", "mlfs report")
    _check_out(args.out)
    if args.mount == "-":
        status = _from_standard_input()
    else:
        mountpoint = client.require_mount(args.mount)
        with contextlib.suppress(MlfsError):  # the page says what the auditor finds, where that can be asked
            client.read_file(mountpoint, "audit", AUDIT_TIMEOUT_S)
        status = client.read_status(mountpoint)
    if args.wait and args.mount != "-":
        print(f"mlfs: waiting for the jobs of {mountpoint}; Ctrl-C writes the report now", file=sys.stderr, flush=True)
        status = _wait(mountpoint, status)

    from mlfs.report import page

    _write(args.out, page(status, time.strftime("%Y-%m-%d %H:%M")))
    print(f"{args.out}: {os.path.getsize(args.out):,} bytes; open it in a browser")
    return ExitCode.OK


def _from_standard_input() -> dict[str, Any]:
    try:
        status = read_json("-")
    except (OSError, InputError):
        status = None
    if not isinstance(status, dict):
        raise ConfigError("standard input is no status of a mount", "mlfs status MOUNT --json prints one")
    return status


def _wait(mountpoint: str, status: dict[str, Any]) -> dict[str, Any]:
    """The status when all jobs have finished; the last one before the mount ended, if that comes first."""
    from mlfs.cli import client

    with contextlib.suppress(KeyboardInterrupt):
        while not _finished(status):
            time.sleep(LOOK_EVERY_S)
            try:
                client.require_mount(mountpoint)
                status = client.read_status(mountpoint)
            except MlfsError as error:
                if error.exit_code is not ExitCode.NOT_MOUNTED:
                    raise
                break
    return status


def _finished(status: dict[str, Any]) -> bool:
    jobs = StatusPart(status).jobs
    return bool(jobs) and all(job.state == "finished" for job in jobs)


def _check_out(out: str) -> None:
    """Refuse what cannot be written, before anybody waits for the report."""
    with _in_plain_words(out):
        check_replaceable(out, _KIND, _is_page)
        os.stat(os.path.dirname(os.path.abspath(out)))


def _write(out: str, text: str) -> None:
    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    with _in_plain_words(out):
        write_ours(out, write, _KIND, _is_page)


def _is_page(beginning: bytes) -> bool:
    return beginning.startswith(MARK.encode())


@contextlib.contextmanager
def _in_plain_words(out: str) -> Iterator[None]:
    try:
        yield
    except NotOursError as error:
        raise ConfigError(f"{out or 'OUT'}: {error.strerror}", error.way_out) from None
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}", "give another file") from None
