"""`mlfs replay RECORD [MOUNT]`: make an explicit order from recorded opens, and register it.

In: a file of `mlfs record`. Out: a directory with an order file for each stream and epoch, which gets its name when it
is complete; a job of the sampler "explicit". Called by `mlfs.cli.commands`. It is for loaders whose order nobody can
compute, but which read in the same order when they are run again.

A stream is what one process reads, as only that has an order. Workers that read side by side are streams beside each
other; a process that begins when another has ended goes on with its stream, as a loader's workers live for an epoch.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

from mlfs.cli import client
from mlfs.cli.parser import whole
from mlfs.errors import ConfigError, ExitCode
from mlfs.printable import printable
from mlfs.shown import count_of
from mlfs.user_input import parse_json, read_lines

_OF_AN_EPOCH = re.compile(r"\d+-\d+")  # EPOCH-RANK
_EPILOG = """\
examples:
  mlfs replay run1.opens /data/imagenet     register what was recorded
  mlfs replay run1.opens /data/imagenet --epochs 90
                                            every epoch has the recorded order
  mlfs replay run1.opens                    only write the order files
"""
# Eight epochs of ImageNet, in a gigabyte of memory. An endless pipe has more.
MOST_OPENS = 10_000_000
MOST_EPOCHS = 100_000  # each is a file for each stream


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Turn a recording into order files, and register them: for loaders whose order nobody can compute."
    )
    parser.epilog = _EPILOG
    parser.add_argument("record", metavar="RECORD", help="a file written by mlfs record")
    parser.add_argument("mount", metavar="MOUNT", nargs="?", help="register it there (default: only write the files)")
    text = "where the order files go; they must stay while the job runs (default: RECORD.orders)"
    parser.add_argument("--orders", metavar="DIR", help=text)
    parser.add_argument("--name", default="replay", metavar="NAME", help="the job's name (default: replay)")
    text = "epochs of the run: those after the last recorded one are taken to repeat it (default: those recorded)"
    parser.add_argument("--epochs", metavar="N", type=whole(1, MOST_EPOCHS), help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files and register them. Raises an MlfsError when that is not possible."""
    mountpoint = client.require_mount(args.mount) if args.mount else None
    epochs = epochs_of(read_record(args.record))
    if not epochs:
        raise ConfigError(f"{args.record} holds no opens", "record while the script runs: mlfs record MOUNT OUT")
    wanted = args.epochs if args.epochs is not None else len(epochs)
    directory = os.path.abspath(args.orders or args.record + ".orders")
    write_orders(directory, epochs, wanted)
    job: dict[str, Any] = {
        "name": args.name,
        "sampler": "explicit",
        "layout": "sorted",
        "order_file": os.path.join(directory, "{epoch}-{rank}"),
        "epochs": wanted,
        "world_size": len(epochs[0]),
    }
    opens = sum(map(len, epochs[0]))
    recorded, streams = count_of(len(epochs), "epoch", "epochs"), count_of(len(epochs[0]), "stream", "streams")
    found = f"{recorded} recorded, {streams}, {count_of(opens, 'read', 'reads')} in the first epoch"
    print(printable(f"{directory}: {found}"))
    if mountpoint is None:
        print(f"to register it: echo '{json.dumps(job)}' > MOUNT/.mlfs/control")
        return ExitCode.OK
    client.send(mountpoint, {"op": "register"} | job)
    print(printable(f"registered job {args.name} at {mountpoint}"))
    return ExitCode.OK


# -- what was recorded

Streams = list[list[bytes]]
"""The paths of each stream."""

# A new epoch has begun if half of the next 32 opens are of files that were read before; padding repeats fewer.
_LOOK_AHEAD = 32
# A last epoch that has less than this share of the one before was cut short.
_WHOLE_SHARE = 0.9


class RecordedOpen(NamedTuple):
    """One recorded open: when, by whom, what."""

    time_s: float
    pid: int
    path: bytes


def epochs_of(opens: Iterable[RecordedOpen]) -> list[Streams]:
    """The streams of each epoch. A last epoch that was cut short is left out, unless it is the only one."""
    passes = _passes(_without_repeats(opens))
    if len(passes) > 1 and len(passes[-1]) < _WHOLE_SHARE * len(passes[-2]):
        passes.pop()
    epochs = [_streams(one) for one in passes if one]
    most = max(map(len, epochs), default=0)
    for streams in epochs:  # an order has as many streams in each epoch: one that has nothing to do reads one file
        streams += [[streams[0][0]] for _ in range(most - len(streams))]
    return epochs


def _without_repeats(opens: Iterable[RecordedOpen]) -> list[RecordedOpen]:
    """Without files that a process opened twice in a row."""
    last: dict[int, bytes] = {}
    kept = []
    for opened in opens:
        if last.get(opened.pid) != opened.path:
            kept.append(opened)
        last[opened.pid] = opened.path
    return kept


def _passes(opens: list[RecordedOpen]) -> list[list[RecordedOpen]]:
    """Cut where files that were read in this pass come again, and go on doing so: padding repeats a few only."""
    passes: list[list[RecordedOpen]] = [[]]
    seen: set[bytes] = set()
    for at, opened in enumerate(opens):
        if opened.path in seen:
            ahead = opens[at : at + _LOOK_AHEAD]
            if 2 * sum(other.path in seen for other in ahead) > _LOOK_AHEAD:
                passes.append([])
                seen = set()
        seen.add(opened.path)
        passes[-1].append(opened)
    return passes


def _streams(opens: list[RecordedOpen]) -> Streams:
    """One pass by stream, in the order in which streams begin."""
    # By place, not by time: the clock of a record may stand still between two opens.
    by_process: dict[int, list[tuple[int, RecordedOpen]]] = {}
    for at, opened in enumerate(opens):
        by_process.setdefault(opened.pid, []).append((at, opened))
    streams: list[list[tuple[int, RecordedOpen]]] = []
    for reads in by_process.values():
        free = next((stream for stream in streams if stream[-1][0] < reads[0][0]), None)
        if free is None:
            streams.append(reads)
        else:
            free += reads
    return [[opened.path for _, opened in stream] for stream in streams]


def read_record(path: str) -> list[RecordedOpen]:
    """The opens of a record in the order of time."""
    opens = []
    names: dict[bytes, bytes] = {}  # a file that is opened in each epoch has its name in memory once
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(read_lines(file, MOST_OPENS), 1):
                try:
                    said = parse_json(line)
                    if isinstance(said, list):
                        time_s, pid, _, name = said
                        path_ = os.fsencode(name)
                        opens.append(RecordedOpen(float(time_s), int(pid), names.setdefault(path_, path_)))
                except (ValueError, TypeError, OverflowError):
                    hint = "it must be a file written by mlfs record"
                    raise ConfigError(f"{path}, line {number} is no recorded open", hint) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", "mlfs record MOUNT OUT writes such files"
        ) from None
    # The sort is stable: of opens within one microsecond the one with the earlier line came first.
    return sorted(opens, key=lambda opened: opened.time_s)


# -- order files


def write_orders(directory: str, epochs: list[Streams], wanted: int) -> None:
    """Write the files EPOCH-RANK of as many epochs as are wanted, all or none, in place of an earlier directory."""
    above = os.path.dirname(directory)
    try:
        if os.path.lexists(directory) and not all(_OF_AN_EPOCH.fullmatch(name) for name in os.listdir(directory)):
            raise ConfigError(f"{directory} is there and is no directory of orders", "give another one with --orders")
        temporary = tempfile.mkdtemp(prefix=os.path.basename(directory) + ".", suffix=".part", dir=above)
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written: {error.strerror}", "give another one with --orders"
        ) from None
    try:
        for epoch in range(wanted):
            for rank, paths in enumerate(epochs[min(epoch, len(epochs) - 1)]):
                _write_one(temporary, epoch, rank, paths, recorded=epoch < len(epochs), last=len(epochs) - 1)
        os.chmod(temporary, 0o755)
        if os.path.exists(directory):
            shutil.rmtree(directory)
        os.rename(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_one(directory: str, epoch: int, rank: int, paths: list[bytes], *, recorded: bool, last: int) -> None:
    name = os.path.join(directory, f"{epoch}-{rank}")
    if not recorded:
        try:
            os.link(os.path.join(directory, f"{last}-{rank}"), name)
            return
        except OSError as error:  # a file system that has no hard links, or not so many of one file
            if error.errno not in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP):
                raise
    with open(name, "wb") as file:
        for path in paths:
            if b"\n" in path or b"\r" in path:
                raise ConfigError(f"{os.fsdecode(path)!r} has a line end in its name", "such files cannot be replayed")
            file.write((b"./" if path.isdigit() else b"") + path + b"\n")
