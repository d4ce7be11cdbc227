"""`mlfs warmup MOUNT [PATH...]`: fill this node's caches before training reads, in the order in which it will.

In: parsed arguments. Out: a line on the mount's control file; progress on stderr; at the end what is in the caches.
Called by `mlfs.cli.commands`. The daemon does the work and counts it; this command watches its status. Samples that are
in the caches already are not read again, so the command can be ended and run again.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from mlfs.cli.ending import EndedBySignal
from mlfs.cli.progress import Progress
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.printable import printable
from mlfs.shown import StatusPart, count, duration, number, percent, size

_EPILOG = """\
examples:
  mlfs warmup /data/imagenet             all of it, in the order of the tree
  mlfs warmup /data/imagenet --job train --epochs 0
  mlfs warmup /data/imagenet --job train --epochs 0-2
  mlfs warmup /data/imagenet /data/imagenet/val
                                         these files and directories only

It reads the source with the mount's own threads (mlfs mount --pfs-threads), and
only while no job needs them. It reads nothing that is in the caches: after
Ctrl-C, run it again. It ends when everything is there, or the caches are full.

Exit code 0: what was asked for is there, or as much as there is room for.
1: some could not be read.
"""
# The daemon answers from memory; a person sees a change within half a second.
_LOOK_EVERY_S = 0.5
# The rate that is shown is that of about the last seconds: a slow start does not make the end look far away.
_RATE_OVER_S = 10.0
_COUNTED = ("there", "fetched", "no_room", "not_kept", "failed")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Fill the mount's caches, in the order in which the data will be needed."
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files and directories of it (default: all)")
    parser.add_argument("--job", metavar="NAME", help="what this registered job reads, as it reads (default: none)")
    text = "these epochs of the job, as 0, 0-2 or 0,2 (default: the one that it is in)"
    parser.add_argument("--epochs", metavar="N", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Warm up, and say what came of it."""
    from mlfs.cli import client

    command: dict[str, Any] = {"op": "warmup"}
    if args.epochs is not None and args.job is None:
        raise ConfigError("--epochs is given without --job", "name the registered job: --job NAME")
    if args.job is not None and args.paths:
        raise ConfigError("both PATH and --job are given", "warm up one after the other")
    mountpoint = client.require_mount(args.mount)
    if args.paths:
        command["paths"] = [inside(mountpoint, path) for path in args.paths]
    if args.job is not None:
        command["job"] = args.job
    if args.epochs is not None:
        command["epochs"] = epochs_of(args.epochs)
    warm_up = _WarmUp(mountpoint, command)
    try:
        warming = warm_up.watch()
    except (KeyboardInterrupt, EndedBySignal) as error:
        warm_up.end()
        warming = StatusPart(client.read_status(mountpoint)).warming
        print("\n".join(map(printable, summary(mountpoint, warming))))
        print("mlfs: interrupted; run it again to go on", file=sys.stderr)
        if isinstance(error, EndedBySignal):
            raise
        return ExitCode.INTERRUPTED
    print("\n".join(map(printable, summary(mountpoint, warming))))
    return ExitCode.FAILURE if warming.failed.samples else ExitCode.OK


def inside(mountpoint: str, path: str) -> str:
    """The path within the mount of what a user named, from where he stands or from the mount's own root."""
    from mountd import interface

    if not path:
        raise ConfigError("a PATH is empty", "leave it out for all of the mount")
    whole = interface.resolve(path)
    if whole != mountpoint and not whole.startswith(mountpoint.rstrip("/") + "/"):
        if os.path.isabs(path) or path.startswith(("./", "../")):
            raise ConfigError(f"{path} is not inside {mountpoint}", "give paths of the mount")
        return path
    return os.path.relpath(whole, mountpoint) if whole != mountpoint else ""


def epochs_of(text: str) -> list[int]:
    """The epochs that `0`, `0-2` or `0,2` name, ascending ranges only."""
    epochs: list[int] = []
    for word in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", word, re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if last < first or last - first >= 10_000:
            raise ConfigError(f"--epochs {text!r} cannot be used", "write 0, 0-2 or 0,2")
        epochs += range(first, last + 1)
    return epochs


class _WarmUp:
    """A warm-up of a mount, begun again with each server that takes the mount over. Args: command: asks for it."""

    def __init__(self, mountpoint: str, command: dict[str, Any]) -> None:
        self._mountpoint, self._command = mountpoint, command
        self._begin()

    def _begin(self) -> None:
        from mlfs.cli import client

        self._server = client.read_status(self._mountpoint).get("pid")
        self._run = client.send(self._mountpoint, self._command).get("run")

    def watch(self) -> StatusPart:
        """Show how far it is until it ends; what the mount says of it then."""
        from mlfs.cli import client

        seen: list[tuple[float, float]] = []
        with Progress() as progress:
            while True:
                status = StatusPart(client.read_status(self._mountpoint))
                warming: StatusPart = status.warming
                if status.pid != self._server:
                    self._begin()
                    continue
                if warming.run != self._run:
                    said = "another warm-up has taken the place of this one"
                    raise MlfsError(said, "wait for it, or run this one again")
                if warming.state != "running":
                    return warming
                seen.append((time.monotonic(), number(warming.fetched.bytes)))
                while len(seen) > 2 and seen[-1][0] - seen[0][0] > _RATE_OVER_S:
                    del seen[0]
                progress.update({"phase": so_far(warming, seen)})
                time.sleep(_LOOK_EVERY_S)

    def end(self) -> None:
        """The mount fetches no more of it."""
        from mlfs.cli import client

        client.send(self._mountpoint, {"op": "warmup", "end": self._run})


def so_far(warming: StatusPart, seen: Sequence[tuple[float, float]]) -> str:
    """How far a warm-up is: its share, its rate and the time that is left.

    Args:
        seen: at which times how many bytes had been fetched, ascending.
    """
    whole = number(warming.whole.bytes)
    done = sum(number(warming[name].bytes) for name in _COUNTED)
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    rate = (last - first) / (last_s - first_s) if last_s > first_s else 0.0
    left = f"{duration((whole - done) / rate)} left" if rate > 0 else "time left not known yet"
    return f"{percent(done / whole if whole else 1.0)} of {size(whole)}, {rate / 1e6:,.1f} MB/s, {left}"


def summary(mountpoint: str, warming: StatusPart) -> list[str]:
    """How much is in the caches, and how much is not and why."""

    def amount(*names: str) -> str:
        samples, sizes = (sum(number(warming[name][key]) for name in names) for key in ("samples", "bytes"))
        return f"{count(samples)} samples ({size(sizes)})"

    brought = f"{amount('there')} were there, {amount('fetched')} were read from the source"
    lines = [f"{mountpoint}: {amount('there', 'fetched')} of {amount('whole')} are in the caches: {brought}"]
    reasons = {
        "no_room": "have no room: the caches are full (mlfs mount with more --ram, --ssd or --lmdb)",
        "not_kept": "are not for the caches of this node: too large, or the jobs' plan keeps the room for others",
        "failed": "could not be read or written: the mount's log says why",
    }
    lines += [f"  {amount(name)} {why}" for name, why in reasons.items() if warming[name].samples]
    return lines
