"""`mlfs top [MOUNT]`: a live view of a mount in the terminal: who waits, where reads come from, what would help.

In: MOUNT/.mlfs/status, twice a second or as often as asked; keys. Out: a screen that fits 80 x 24. Called by
`mlfs.cli.commands`. A second's events are the difference of two statuses (`Moment`), as a status only counts.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlfs.cli.console import make_console
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.shown import (
    NONE,
    ROUTE_NAMES,
    ROUTES_OF_ALL,
    StatusPart,
    count,
    duration,
    is_number,
    line_of,
    number,
    out_of,
    percent,
    size,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_EPILOG = """\
examples:
  mlfs top                      the only mount of this machine
  mlfs top /data/imagenet --every 2s

keys: q or Ctrl-C ends it. Rates are those since the screen changed last.
"""
_BAR_COLUMNS = 20
_NAME_COLUMNS = 26
# A screen narrower than this has fewer columns.
_WIDE = 76
# How many ranks of a job, caches and strangers are shown: as many as fit, by the first of these that does.
_SHOWN = ((64, 16, 8), (16, 8, 4), (8, 4, 3), (4, 3, 2), (3, 2, 1), (2, 1, 1), (1, 1, 0), (1, 0, 0))


@dataclass(frozen=True)
class _Detail:
    """The amount that is shown."""

    wide: bool
    ranks: int
    caches: int
    strangers: int


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Watch a mount in the terminal until q or Ctrl-C."
    parser.epilog = _EPILOG
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
    from mountd import interface

    paths = sorted({entry.mountpoint for entry in interface.mount_table() if entry.is_mlfs})
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
    for name in ("COLUMNS", "LINES"):  # where a shell exports them, rich would not see that the terminal is resized
        os.environ.pop(name, None)
    console = make_console()
    with (
        suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            try:
                client.require_mount(mountpoint)
                now = Moment(time.monotonic(), client.read_status(mountpoint))
            except MlfsError as error:
                if error.exit_code is ExitCode.NOT_MOUNTED:
                    return True
                raise
            live.update(render(now, before or now, *console.size), refresh=True)
            before = now
            if pressed(every_s) in ("q", "Q", "\x03"):
                break
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
    json: dict[str, Any]

    @property
    def status(self) -> StatusPart:
        return StatusPart(self.json)


def render(now: Moment, before: Moment, columns: int = 80, lines: int = 24) -> RenderableType:
    """The screen: what the mount does, with rates since the moment before (the same one: nothing is known yet)."""
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=columns, height=lines, markup=False, highlight=False)
    for shown in _SHOWN:
        screen = _screen(now, before, _Detail(columns >= _WIDE, *shown))
        if len(console.render_lines(screen)) <= lines:
            break
    return screen


def _screen(now: Moment, before: Moment, look: _Detail) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    status = now.status
    head = Text(line_of(status.mountpoint), style="bold", no_wrap=True, overflow="ellipsis")
    head.append(f"  {line_of(status.state)} for {duration(status.uptime_s)}", style="dim")
    said = Text(str(status.headline or ""), style="bold")
    strangers = tuple(status.strangers)
    beside = [
        Text(f"beside the jobs: {line_of(one.words)}", no_wrap=True, overflow="ellipsis")
        for one in strangers[max(0, len(strangers) - look.strangers) :]
    ]
    reads, waiting, ranks = _reads(now, before, look), _waiting(now, before), _ranks(now, before, look)
    return Group(head, said, reads, waiting, *ranks, _places(status, look), *beside)


def _grid(*columns: str) -> Table:
    """A table without lines between its rows: the first column left, numbers right, and bars, which have no name."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        is_bar = not column
        table.add_column(column, justify="right" if index and not is_bar else "left", no_wrap=True)
    return table


def _reads(now: Moment, before: Moment, look: _Detail) -> RenderableType:
    """How many reads each route answers in a second, how much that is, and its share; nothing before two moments."""
    seconds = now.time_s - before.time_s
    table = _grid("reads by route", "reads/s", "share", *(("bytes/s", "") if look.wide else ()))
    rates = {key: _read_since(now, before, key) for key in ROUTE_NAMES}
    in_all = sum(reads for reads, _ in rates.values())
    for key, name in ROUTE_NAMES.items():
        if key not in ROUTES_OF_ALL and not now.status.reads["all"][key].reads:
            continue
        reads, size_bytes = rates[key]
        if seconds <= 0:
            table.add_row(name, *[NONE] * (3 if look.wide else 2))
            continue
        share = reads / in_all if in_all else 0.0
        table.add_row(
            name,
            f"{reads / seconds:,.0f}",
            percent(share) if in_all else NONE,
            *((f"{size(size_bytes / seconds)}/s", _bar(share)) if look.wide else ()),
        )
    return table


def _read_since(now: Moment, before: Moment, route: str) -> tuple[int, int]:
    """Reads and bytes of a route since the moment before; bytes go down when pages turn out to be taken back."""
    last, first = (moment.status.reads["all"][route] for moment in (now, before))
    grown = (number(last[key]) - number(first[key]) for key in ("reads", "bytes"))
    reads, size_bytes = (max(0, round(by)) for by in grown)
    return reads, size_bytes


def _waiting(now: Moment, before: Moment) -> RenderableType:
    """How many readers waited on average, what the source gave meanwhile, and how full the window is."""
    from rich.text import Text

    seconds = now.time_s - before.time_s
    staging = now.status.staging
    window = f"window {size(staging.used_bytes)} of {size(staging.capacity_bytes)}"
    if seconds <= 0:
        return Text(window)
    waited_s = number(now.status.stalls.total_s) - number(before.status.stalls.total_s)
    given = number(now.status.pfs.total_bytes) - number(before.status.pfs.total_bytes)
    waits = f"{waited_s / seconds:.2f} readers wait on average"
    return Text(f"{waits}; the source gives {size(given / seconds)}/s; {window}", style="red" if waited_s else "")


def _ranks(now: Moment, before: Moment, look: _Detail) -> list[RenderableType]:
    """Each job's ranks: how far, how fast, whether their readers wait, and for how long what is ready will last.

    Those that wait come first, then those with the least ready. Waiting is told as that of all readers: how many of a
    rank's readers (the workers of its loader) wait, on average.
    """
    from rich.text import Text

    shown: list[RenderableType] = []
    seconds = now.time_s - before.time_s
    first = {(job.name, rank.rank): rank for job in before.status.jobs for rank in job.ranks}
    for job in now.status.jobs:
        agreement = percent(job.agreement_recent if "agreement_recent" in job else job.agreement)
        more = ("step", "samples/s", "ready", "lasts") if look.wide else ("ready",)
        table = _grid(f"{line_of(job.name)}: {line_of(job.state)}", "epoch", "waiting", *more)
        ranks = [
            (rank, first.get((job.name, rank.rank), StatusPart())) for rank in job.ranks if rank.reads_here is not False
        ]
        ranks.sort(key=lambda both: (-(_passed(both[0], both[1], "waited_s") or 0.0), number(both[0].ahead.samples)))
        for rank, old in ranks[: look.ranks]:
            waited_s = _passed(rank, old, "waited_s")
            read = _passed(rank, old, "position") if rank.epoch == old.epoch else None
            cells = {
                "epoch": out_of(rank.epoch, None if job.inferred else job.epochs),
                "waiting": f"{waited_s / seconds:.2f}" if waited_s is not None and seconds > 0 else NONE,
                "step": f"{count(rank.step)}/{count(rank.steps_per_epoch)}",
                "samples/s": f"{read / seconds:,.0f}" if read is not None and seconds > 0 else NONE,
                "ready": count(rank.ahead.samples),
                "lasts": duration(rank.ahead.seconds),
            }
            table.add_row(f"rank {count(rank.rank)}", *(cells[key] for key in ("epoch", "waiting", *more)))
        left = len(ranks) - look.ranks
        others = f" ({left} more ranks wait less)" if left > 0 else ""
        shown += [table, Text(f"{agreement} of the last reads as predicted{others}{_uneven(job)}", style="dim")]
    return shown


def _uneven(job: StatusPart) -> str:
    """How unevenly the ranks load, and who will be late; nothing for a job of one rank."""
    load = job.load
    if len(load.ranks) < 2 or not is_number(load.imbalanced_steps):
        return ""
    late = f", rank {load.straggler} will be late" if is_number(load.straggler) else ""
    return f"; {percent(load.imbalanced_steps)} of steps uneven{late}"


def _passed(now: StatusPart, before: StatusPart, key: str) -> float | None:
    """By how much a number has grown; None where it is not known, or began anew."""
    last, first = now[key], before[key]
    return number(last) - number(first) if is_number(last) and is_number(first) and last >= first else None


def _places(status: StatusPart, look: _Detail) -> RenderableType:
    """How full each cache is."""
    table = _grid("cache", "full", *(("used", "of", "") if look.wide else ("used",)))
    for tier in tuple(status.tiers)[: look.caches]:
        used, capacity = tier.used_bytes, tier.capacity_bytes
        full = used / capacity if is_number(used) and is_number(capacity) and capacity else 0.0
        more = (size(used), size(capacity), _bar(full)) if look.wide else (size(used),)
        table.add_row(_short(line_of(tier.name), look), percent(full), *more)
    return table


def _short(name: str, look: _Detail) -> str:
    """A name that leaves room for the numbers behind it: of a long one its beginning and its end."""
    most = _NAME_COLUMNS if look.wide else _NAME_COLUMNS // 2
    return name if len(name) <= most else f"{name[: most // 3]}...{name[len(name) - (most - most // 3 - 3) :]}"


def _bar(share: float) -> str:
    return "#" * round(_BAR_COLUMNS * share)
