"""`mlfs doctor [SOURCE]`: looks at this machine and says what is right, what costs speed, and how to mend it.

In: parsed arguments, the machine (mlfs.doctor). Out: a line for each thing that was looked at. The exit code is
0 when mlfs can mount, FAILURE when something stops it. Called by `mlfs.cli.commands`. Nothing is changed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlfs.errors import ExitCode

if TYPE_CHECKING:
    from mlfs.doctor import CheckResult, SourceMount

_EPILOG = """\
examples:
  mlfs doctor
  mlfs doctor /data/imagenet --cache /scratch
  mlfs doctor --json | jq '.[] | select(.level != "ok")'

ok: nothing to do. costs: mlfs works, and something is slower or missing.
stops: mlfs cannot mount.
mlfs calibrate says how fast source and disks are.
"""
_MARKS = {"ok": ("ok", "green"), "costs": ("costs", "yellow"), "stops": ("stops", "bold red")}
_SOURCE_TIMEOUT_S = 5.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Look at this machine, and at a data set if one is given."
    parser.epilog = _EPILOG
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="the data set's directory (default: none)")
    parser.add_argument(
        "--cache",
        metavar="DIR",
        action="append",
        default=[],
        help="a directory for --ssd or --lmdb; may be repeated (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (default: lines)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Say what is found."""
    from mlfs.doctor import Level

    found = list(_findings(args.source, args.cache))
    if args.json:
        print(json.dumps([finding._asdict() for finding in found], indent=2))
    else:
        _print(found)
    return ExitCode.FAILURE if any(finding.level is Level.STOPS for finding in found) else ExitCode.OK


def _findings(source: str | None, caches: list[str]) -> Iterator[CheckResult]:
    from mlfs import doctor
    from mlfs.doctor import Machine

    machine = Machine()
    yield from doctor.findings(machine, [os.path.abspath(directory) for directory in caches])
    if source is not None:
        path = os.path.abspath(source)
        yield from doctor.source(path, _mount_of(path), _changed_s(path), machine.now_s())
    yield from _dead_mounts()


def _mount_of(path: str) -> SourceMount | None:
    """The mount that a path lies in, from the kernel's table: it touches no file system."""
    from mlfs.doctor import SourceMount
    from mountd import interface

    resolved = interface.resolve(path)
    within = [
        entry
        for entry in interface.mount_table()
        if entry.mountpoint in ("/", resolved) or resolved.startswith(entry.mountpoint + "/")
    ]
    nearest = max(within, key=lambda entry: len(entry.mountpoint), default=None)
    return None if nearest is None else SourceMount(nearest.fstype, nearest.options)


def _changed_s(path: str) -> float | None:
    """When a directory was changed last; None where it cannot be listed, or does not answer."""
    from mountd import interface

    def look() -> float:
        os.listdir(path)
        return os.stat(path).st_mtime

    try:
        return interface.call_with_timeout(look, _SOURCE_TIMEOUT_S)
    except OSError:
        return None


def _dead_mounts() -> Iterator[CheckResult]:
    from mlfs.cli.ls import mounts
    from mlfs.doctor import CheckResult, Level

    for mount in mounts():
        if mount["state"] in ("dead", "hangs"):
            yield CheckResult(f"mount {mount['mountpoint']}", Level.COSTS, mount["state"], mount["headline"])


def _print(found: list[CheckResult]) -> None:
    from rich.text import Text

    from mlfs.cli.console import make_console

    console = make_console()
    for finding in found:
        mark, style = _MARKS[finding.level]
        line = Text(f"{mark:6}", style=style)
        line.append(f"{finding.what}: {finding.said}", style="")
        console.print(line, soft_wrap=not console.is_terminal)
        if finding.way_out:
            console.print(Text(f"      to mend it: {finding.way_out}"), soft_wrap=not console.is_terminal)
    count = sum(finding.level != "ok" for finding in found)
    console.print(Text(f"{len(found)} things looked at, {count} to mend" if count else f"all {len(found)} are right"))
