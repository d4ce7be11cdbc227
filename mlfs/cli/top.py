"""`mlfs top [MOUNT]`: a live view of a mount in the terminal: who waits, where reads come from, what would help.

In: MOUNT/.mlfs/status, twice a second or as often as asked; keys. Out: a screen that fits 80 x 24. Called by
`mlfs.cli.commands`. What happens in a second is the difference of two statuses (`Moment`), as a status only counts.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlfs.cli.console import make_console
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.shown import count, duration, number_of, one_of, part, parts_of, percent, size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_EPILOG = """\
examples:
  mlfs top                      the only mount of this machine
  mlfs top /data/imagenet --every 2s

keys: q or Ctrl-C ends it. Rates are those since the screen changed last.
"""
ROUTES = (
    ("page_cache", "page cache"),
    ("ram", "RAM"),
    ("ssd", "SSD"),
    ("lmdb", "LMDB"),
    ("peer", "peers"),
    ("pfs", "source"),
)
_ALWAYS = ("page_cache", "pfs")  # the other routes are shown once they have answered a read
_BAR_COLUMNS = 24
# Rows of a screen of 24 lines that are left for ranks, and for those who read beside the jobs.
_SHOWN_RANKS = 4
_SHOWN_STRANGERS = 2
_SHOWN_TIERS = 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `top`."""
    parser = subparsers.add_parser(
        "top",
        help="watch a mount: who waits, where reads come from, what would help",
        description="Watch a mount in the terminal until q or Ctrl-C.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "mount", metavar="MOUNT", nargs="?", help="the mount point (default: the only one of this machine)"
    )
    parser.add_argument(
        "--every", metavar="TIME", default="1s", help="how often the screen changes: 500ms, 1s, 5s (default: 1s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show it. Ends with the mount, too, which is no error."""
    from mlfs.cli import client
    from mlfs.units import parse_duration

    every_s = max(0.1, parse_duration(args.every, what="--every"))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("mlfs top needs a terminal", "elsewhere: mlfs status MOUNT --watch")
    mountpoint = client.require_mount(args.mount if args.mount is not None else _only_mount())
    ended = _watch(mountpoint, every_s)
    if ended:
        print(f"mlfs: the mount at {mountpoint} is gone", file=sys.stderr)
    return ExitCode.OK


def _only_mount() -> str:
    from mountd import door

    paths = sorted({entry.mountpoint for entry in door.mount_table() if entry.is_mlfs})
    if not paths:
        raise MlfsError("nothing is mounted here", "mlfs mount SOURCE", ExitCode.NOT_MOUNTED)
    if len(paths) > 1:
        raise ConfigError(f"{len(paths)} mounts are here", f"mlfs top {paths[0]}; mlfs ls names them all")
    return paths[0]


def _watch(mountpoint: str, every_s: float) -> bool:
    """Show the mount until a key ends it; True when the mount has ended instead."""
    from rich.live import Live

    from mlfs.cli import client

    before: Moment | None = None
    with _keys() as pressed, Live(console=make_console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                client.require_mount(mountpoint)
                now = Moment(time.monotonic(), client.read_status(mountpoint))
            except MlfsError as error:
                if error.exit_code is ExitCode.NOT_MOUNTED:
                    return True
                raise
            live.update(render(now, before or now), refresh=True)
            before = now
            try:
                if pressed(every_s) in ("q", "Q", "\x03"):
                    return False
            except KeyboardInterrupt:
                return False


@contextmanager
def _keys() -> Iterator[Any]:
    """Keys come as they are pressed; what is called with seconds waits that long for one. The terminal is put back."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(timeout_s: float) -> str:
        ready, _, _ = select.select([fd], [], [], timeout_s)
        return os.read(fd, 1).decode("ascii", "replace") if ready else ""

    tty.setcbreak(fd)
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@dataclass(frozen=True)
class Moment:
    """A status, and when it was read."""

    time_s: float
    status: dict[str, Any]


def render(now: Moment, before: Moment) -> RenderableType:
    """The screen: what the mount does, with rates since the moment before (the same one: nothing is known yet)."""
    from rich.console import Group
    from rich.text import Text

    status = now.status
    head = Text(one_of(status, "mountpoint"), style="bold", no_wrap=True, overflow="ellipsis")
    head.append(f"  {one_of(status, 'state')} for {duration(status.get('uptime_s'))}", style="dim")
    said = Text(str(status.get("headline") or ""), style="bold")
    beside = [
        Text(f"beside the jobs: {one_of(one, 'words')}", no_wrap=True, overflow="ellipsis")
        for one in parts_of(status, "strangers")[-_SHOWN_STRANGERS:]
    ]
    return Group(head, said, _reads(now, before), _waiting(now, before), *_ranks(now, before), _places(status), *beside)


def _grid(*columns: str) -> Table:
    """A table without lines between its rows: the first column left, numbers right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def _reads(now: Moment, before: Moment) -> RenderableType:
    """How many reads each route answers in a second, how much that is, and its share; nothing before two moments."""
    seconds = now.time_s - before.time_s
    table = _grid("reads by route", "reads/s", "bytes/s", "share", "")
    rates = {key: _read_since(now, before, key) for key, _ in ROUTES}
    in_all = sum(reads for reads, _ in rates.values())
    for key, name in ROUTES:
        if key not in _ALWAYS and not part(part(part(now.status, "reads"), "all"), key).get("reads"):
            continue
        reads, size_bytes = rates[key]
        if seconds <= 0:
            table.add_row(name, "-", "-", "-", "")
            continue
        share = reads / in_all if in_all else 0.0
        table.add_row(
            name,
            f"{reads / seconds:,.0f}",
            f"{size(size_bytes / seconds)}/s",
            percent(share) if in_all else "-",
            "#" * round(_BAR_COLUMNS * share),
        )
    return table


def _read_since(now: Moment, before: Moment, route: str) -> tuple[int, int]:
    """Reads and bytes of a route since the moment before; bytes go down when pages turn out to be taken back."""
    last, first = (part(part(part(moment.status, "reads"), "all"), route) for moment in (now, before))
    reads, size_bytes = (last.get(key, 0) - first.get(key, 0) for key in ("reads", "bytes"))
    return max(0, reads), max(0, size_bytes)


def _waiting(now: Moment, before: Moment) -> RenderableType:
    """How many readers waited on average, what the source gave meanwhile, and how full the window is."""
    from rich.text import Text

    seconds = now.time_s - before.time_s
    staging = part(now.status, "staging")
    window = f"window {size(staging.get('used_bytes'))} of {size(staging.get('capacity_bytes'))}"
    if seconds <= 0:
        return Text(window)
    waited_s = number_of(now.status, "stalls", "total_s") - number_of(before.status, "stalls", "total_s")
    given = number_of(now.status, "pfs", "total_bytes") - number_of(before.status, "pfs", "total_bytes")
    waits = f"{waited_s / seconds:.2f} readers wait on average"
    return Text(f"{waits}; the source gives {size(given / seconds)}/s; {window}", style="red" if waited_s else "")


def _ranks(now: Moment, before: Moment) -> list[RenderableType]:
    """Each job's ranks: how far, how fast, and for how long what is ready will last. Those with the least first."""
    from rich.text import Text

    shown: list[RenderableType] = []
    seconds = now.time_s - before.time_s
    earlier = {one.get("name"): one for one in parts_of(before.status, "jobs")}
    for job in parts_of(now.status, "jobs"):
        name, agreement = one_of(job, "name"), percent(job.get("agreement_recent", job.get("agreement")))
        table = _grid(f"{name}: {one_of(job, 'state')}", "epoch", "step", "samples/s", "ready", "lasts")
        positions = {
            rank.get("rank"): (rank.get("epoch"), rank.get("position"))
            for rank in parts_of(earlier.get(job.get("name"), {}), "ranks")
        }
        ranks = [rank for rank in parts_of(job, "ranks") if rank.get("reads_here", True)]
        for rank in sorted(ranks, key=_ready)[:_SHOWN_RANKS]:
            ahead = part(rank, "ahead")
            epoch, position = positions.get(rank.get("rank"), (None, None))
            same = seconds > 0 and epoch == rank.get("epoch") and isinstance(position, int)
            table.add_row(
                f"rank {count(rank.get('rank'))}",
                f"{count(rank.get('epoch'))}/{count(job.get('epochs'))}",
                f"{count(rank.get('step'))}/{count(rank.get('steps_per_epoch'))}",
                f"{(rank['position'] - position) / seconds:,.0f}" if same and "position" in rank else "-",
                f"{count(ahead.get('samples'))} ({size(ahead.get('bytes'))})",
                duration(ahead.get("seconds")),
            )
        more = f" ({len(ranks) - _SHOWN_RANKS} more ranks have more ready)" if len(ranks) > _SHOWN_RANKS else ""
        shown += [table, Text(f"{agreement} of the last reads as predicted{more}", style="dim")]
    return shown


def _ready(rank: dict[str, Any]) -> int:
    samples = part(rank, "ahead").get("samples")
    return samples if isinstance(samples, int) else 0


def _places(status: dict[str, Any]) -> RenderableType:
    """How full each cache is."""
    table = _grid("cache", "used", "of", "full", "")
    for tier in parts_of(status, "tiers")[:_SHOWN_TIERS]:
        used, capacity = tier.get("used_bytes"), tier.get("capacity_bytes")
        full = used / capacity if isinstance(used, int) and isinstance(capacity, int) and capacity else 0.0
        table.add_row(one_of(tier, "name"), size(used), size(capacity), percent(full), "#" * round(_BAR_COLUMNS * full))
    return table
