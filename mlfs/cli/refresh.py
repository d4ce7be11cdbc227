"""`mlfs refresh MOUNT [PATH]`: have a mount show what is at its source now, while readers go on.

In: parsed arguments. Out: a line on the mount's control file; progress on stderr; at the end what has changed. Called
by `mlfs.cli.commands`. The daemon does the work and counts it; this command watches its status.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from mlfs.cli.ending import EndedBySignal
from mlfs.cli.progress import Progress
from mlfs.errors import ExitCode, MlfsError
from mlfs.printable import printable
from mlfs.shown import StatusPart, count, count_of, is_number, number

_EPILOG = """\
examples:
  mlfs refresh /data/imagenet            all of it
  mlfs refresh /data/imagenet /data/imagenet/train/n01440764
                                         this directory and what is below it

The view of a mount is that of its scan. After this command names that were
added to the source are there, those that are gone are not, and files that were
replaced have their new content. Readers go on meanwhile; what they have open
stays as with any change of the source (docs/semantics.md). Jobs whose data set
has not changed go on; this command and mlfs status name the others.

Ctrl-C while the source is scanned leaves the view as it was. A mount that was
refreshed cannot join those of other nodes (mlfs peers): mount it again for that.

Exit code 0: the mount shows what is at the source. 1: a part could not be read
and is shown as before, or the refresh failed. 7: another one is under way.
"""
_LOOK_EVERY_S = 0.1
# How often one looks whether a scan that was told to end has ended: one whose source hangs does not.
_LAST_LOOKS = 8


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Scan the source of a mount again, and have the mount show what is there now."
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    parser.add_argument("path", metavar="PATH", nargs="?", help="a directory of it (default: all)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Refresh, and say what has changed."""
    from mlfs.cli import client
    from mlfs.cli.warmup import inside

    mountpoint = client.require_mount(args.mount)
    path = inside(mountpoint, args.path) if args.path is not None else ""
    run_number = int(client.send(mountpoint, {"op": "refresh", "path": path}).get("run", 0))
    try:
        result = _watch(mountpoint, run_number)
    except (KeyboardInterrupt, EndedBySignal) as error:
        client.send(mountpoint, {"op": "refresh", "end": run_number})
        result = _watch(mountpoint, run_number, _LAST_LOOKS)
        if result.state != "done":
            waits = "; it still waits for its source" if result.state == "running" else ""
            print(f"mlfs: interrupted; the mount shows what it did before{waits}", file=sys.stderr)
            if isinstance(error, EndedBySignal):
                raise
            return ExitCode.INTERRUPTED
    if result.state == "failed":
        raise MlfsError(f"{mountpoint} could not be refreshed: {result.remark}", "the mount's log says more")
    print("\n".join(map(printable, summary(os.path.join(mountpoint, result.path or "").rstrip("/"), result))))
    return ExitCode.FAILURE if result.unreadable else ExitCode.OK


def _watch(mountpoint: str, run_number: int, looks: int = sys.maxsize) -> StatusPart:
    """Show how far it is until it ends, or so many looks long; what the mount says of it then."""
    from mlfs.cli import client

    with Progress() as progress:
        while True:
            result: StatusPart = StatusPart(client.read_status(mountpoint)).refresh
            at = number(result.run)
            if at > run_number:
                raise MlfsError("another refresh has taken the place of this one", "mlfs status shows it")
            looks -= 1
            if at == run_number and (result.state != "running" or looks <= 0):
                return result
            progress.update({"phase": "scan", "dirs": result.directories, "files": result.entries})
            time.sleep(_LOOK_EVERY_S)


def summary(where: str, result: StatusPart) -> list[str]:
    """The changes, and the next thing to do."""
    numbers = [count_of(result[key], one, many) for key, one, many in _CHANGES if result[key]]
    lines = [f"{where}: {', '.join(numbers) if numbers else 'nothing has changed'}"]
    if result.unreadable:
        which = count_of(result.unreadable, "directory", "directories")
        lines.append(f"  {which} could not be read, and what is in there is shown as before")
    if result.remark:
        lines.append(f"  {result.remark}")
    for job in result.outdated:
        found = is_number(job.now) and job.now >= 0
        has = f"the data set has {count(job.now)} now, or others" if found else f"not found any more: {job.why}"
        told_of = f"job {job.name}: registered over {count(job.samples)} samples"
        lines.append(f"  {told_of}, {has} (register it anew)")
    return lines


_CHANGES = (
    ("added", "has come", "have come"),
    ("gone", "is gone", "are gone"),
    ("changed", "has changed", "have changed"),
)
