"""`mlfs calibrate SOURCE`: measure the source, cache directories and memory, for the daemon and for `mlfs plan`.

In: parsed arguments from `mlfs.cli.commands`. Out: a TOML file, a table, a picture if one is asked for. mlfs.measure
does the measuring. Ctrl-C, SIGTERM and SIGHUP leave no file behind.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mlfs.cli.ending import EndedBySignal
from mlfs.cli.parser import whole
from mlfs.cli.progress import Progress
from mlfs.errors import CacheError, ConfigError, ExitCode, MlfsError, SourceError, require
from mlfs.ours import NotOursError
from mlfs.printable import printable
from mountd import interface

if TYPE_CHECKING:
    from mlfs.measure.calibration import Calibration
    from mlfs.measure.meter import Budget, Meter, Rate
    from mlfs.measure.trials import Report
    from mlfs.tree.manifest import Manifest

_EPILOG = """\
examples:
  mlfs calibrate /data/imagenet
  mlfs calibrate /data/imagenet --ssd /scratch --plot speeds.png
  mlfs calibrate /data/imagenet --seconds 120 --readers 64 --output speeds.toml

Random files are read by 1, 2, 4, ... readers; in each --ssd directory files of the mean size are written and read by
1, 2, 4, ... threads, and removed. `mlfs mount SOURCE` and `mlfs plan SOURCE` find the result by themselves. Measure
while nothing else runs, on the node that will train, before the mount.
"""
_MOST_FILES = 1 << 20  # paths that are kept in memory; more than can be read in the time of a calibration
_LEAST_S = 0.1  # with less, most measurements would not even read one file
_TRIED_BYTES = 1 << 16  # what is written to a directory before anything is measured
_SIZE_SHARES = 2  # at most one half of a directory's free space is written


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure bandwidths by number of readers; the mount and `mlfs plan` use them."
    parser.epilog = _EPILOG
    parser.add_argument("source", metavar="SOURCE", help="the directory with the training files, not mounted over")
    text = "a cache directory to measure; may be repeated (default: none)"
    parser.add_argument("--ssd", metavar="DIR", action="append", default=[], help=text)
    text = "where the TOML goes (default: beside the saved index of SOURCE, where mount and plan look for it)"
    parser.add_argument("--output", metavar="FILE", help=text)
    parser.add_argument("--plot", metavar="OUT.png", help="draw the curves (default: no)")
    text = "how long all of it may take (default: 30s)"
    parser.add_argument("--seconds", metavar="TIME", default="30s", help=text)
    text = "how much may be read and written in each place (default: 4G)"
    parser.add_argument("--bytes", metavar="SIZE", default="4G", help=text)
    text = "most readers of the source (default: 16)"
    parser.add_argument("--readers", metavar="N", type=whole(1, 1024), default=16, help=text)
    text = "most threads on a directory and on memory (default: 4)"
    parser.add_argument("--threads", metavar="N", type=whole(1, 1024), default=4, help=text)
    text = "which files are read (default: 0)"
    parser.add_argument("--seed", metavar="N", type=whole(0, 2**64 - 1), default=0, help=text)
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure. Raises an MlfsError when that is not possible, KeyboardInterrupt or EndedBySignal when it is stopped."""
    from mlfs.lab import plots
    from mlfs.measure import calibration
    from mlfs.measure.meter import Meter

    _check(args)
    path = Path(args.output) if args.output else calibration.default_path(interface.resolve(args.source))
    try:
        calibration.check_path(path)
        if args.plot:
            plots.check_path(Path(args.plot))
    except NotOursError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}", error.way_out) from None
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}", "give another --output or --plot") from None
    _check_writable(path, make_above=not args.output)
    if args.plot:
        _check_writable(Path(args.plot), make_above=False)
    with _interruptible(Meter(time.monotonic)) as meter:
        result = measure(args, meter)
    try:
        calibration.save(result, path)
        if args.plot:
            plots.draw(result, args.plot)
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}", "give another --output or --plot") from None
    except ValueError as error:
        raise ConfigError(f"--plot {args.plot}: {error}", "end it in .png, .pdf or .svg") from None
    if args.json:
        print(json.dumps(result.model_dump(mode="json") | {"file": str(path)}, indent=2))
    else:
        print("\n".join(map(printable, [*_table(result), f"written to {path}"])))
    return ExitCode.OK


def _check(args: argparse.Namespace) -> None:
    """Raise the first reason not to begin."""
    from mlfs.units import parse_duration, parse_size

    if parse_duration(args.seconds, what="--seconds") < _LEAST_S:
        raise ConfigError(f"--seconds {args.seconds}: too short to measure anything", f"give {_LEAST_S}s or more")
    if parse_size(args.bytes, what="--bytes") < 1:
        raise ConfigError(f"--bytes {args.bytes}: too little to measure anything", "give 1M or more")
    if args.plot:
        require("matplotlib", "--plot")
    if args.plot and Path(args.plot).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ConfigError(f"--plot {args.plot}: unknown kind of picture", "end it in .png, .pdf or .svg")
    _check_places(args)


def _check_places(args: argparse.Namespace) -> None:
    for directory in args.ssd:
        if not os.path.isdir(directory):
            raise CacheError(f"--ssd {directory}: not a directory", "give a directory that you can write")
        if not os.access(directory, os.W_OK | os.X_OK):
            raise CacheError(f"--ssd {directory}: not yours to write", "give a directory that you can write")
        _try_to_write(directory)
    for entry in interface.enclosing_mlfs(args.source):
        hint = f"mlfs unmount {entry.mountpoint}, or give the source's own path"
        raise SourceError(f"{args.source} is in an mlfs mount: its caches would be measured, not the source", hint)


def _try_to_write(directory: str) -> None:
    """Raise CacheError for a directory in which nothing can be written: a disk that is full or read-only, say."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_TRIED_BYTES))
            file.flush()
    except OSError as error:
        raise CacheError(f"--ssd {directory}: {error.strerror}", "give a directory that you can write") from None


def _check_writable(path: Path, make_above: bool) -> None:
    """Raise ConfigError for a file that cannot be written, now and not after minutes of measuring.

    Args:
        make_above: whether the directories that it lies in will be made. Those that a user names must be there.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        parents = path.absolute().parents
        above = next(directory for directory in parents if directory.exists()) if make_above else parents[0]
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give another --output or --plot") from None


@contextmanager
def _interruptible(meter: Meter) -> Iterator[Meter]:
    """Have signals stop the meter between two pieces of work, so that what was written is removed; one that is ignored
    stays ignored. Raises what the signal raises elsewhere, once the work has ended.
    """
    before, came = {}, 0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = number
        meter.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, stop)
    try:
        yield meter
    except KeyboardInterrupt:
        if came in (signal.SIGTERM, signal.SIGHUP):
            raise EndedBySignal(came) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measure(args: argparse.Namespace, meter: Meter) -> Calibration:
    from mlfs.cli.tree import opened
    from mlfs.measure.calibration import Calibration, SourceSpeeds, StorageSpeeds
    from mlfs.measure.trials import directory_points, doubling, memory_points, source_points

    with opened(args.source) as source_fd:
        manifest = _scanned(source_fd, args.source, meter)
        paths, mean_bytes = _some_files(manifest, args.seed)
        readers, threads = len(doubling(args.readers)), len(doubling(args.threads))
        places = readers + 2 * threads * (1 + len(args.ssd))
        with _progress(places) as report:
            each = _budget(args, places, readers)
            read = source_points(meter, source_fd, paths, args.readers, each, report)
            ssd = []
            for directory in args.ssd:
                limited = _for_directory(directory, _budget(args, places, 2 * threads))
                points = _directory(directory, partial(
                    directory_points, meter, directory, int(mean_bytes), args.threads, limited, report
                ))  # fmt: skip
                ssd.append(
                    StorageSpeeds(path=os.path.abspath(directory), read=tuple(points[0]), write=tuple(points[1]))
                )
            copies = memory_points(meter, int(mean_bytes), args.threads, _budget(args, places, 2 * threads), report)
    if not read:
        raise SourceError(f"no file of {args.source} could be read", "are they all empty, or not yours to read?")
    source = SourceSpeeds(path=os.path.abspath(args.source), read=tuple(read), mean_sample_bytes=mean_bytes)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return Calibration(
        made=made, source=source, memory=StorageSpeeds(read=tuple(copies[0]), write=tuple(copies[1])), ssd=tuple(ssd)
    )


def _budget(args: argparse.Namespace, measurements: int, in_place: int) -> Budget:
    from mlfs.measure.meter import Budget
    from mlfs.units import parse_duration, parse_size

    seconds = parse_duration(args.seconds, what="--seconds") / measurements
    return Budget(seconds, max(1, parse_size(args.bytes, what="--bytes") // in_place))


def _for_directory(directory: str, budget: Budget) -> Budget:
    """The budget, with fewer bytes where the file system is nearly full."""
    from mlfs.config import free_bytes
    from mlfs.measure.meter import Budget

    return Budget(budget.seconds, max(1, min(budget.bytes, free_bytes(directory) // _SIZE_SHARES)))


def _directory(directory: str, measure: Any) -> tuple[list[Any], list[Any]]:
    try:
        reads, writes = measure()
    except OSError as error:
        raise CacheError(f"{directory}: {error.strerror}", "give --ssd a directory that you can write") from None
    if not reads or not writes:
        raise CacheError(f"{directory}: nothing could be measured", "give it more --seconds")
    return reads, writes


def _scanned(fd: int, source: str, meter: Meter) -> Manifest:
    from mlfs.cli.tree import scanned
    from mlfs.tree.scan import ScanStopped

    try:
        manifest = scanned(fd, source, meter.stopped.is_set)
    except ScanStopped:
        raise KeyboardInterrupt from None
    if not manifest.n_files:
        raise SourceError(f"{source} holds no files", "is it the right directory, and is its storage mounted?")
    return manifest


def _some_files(manifest: Manifest, seed: int) -> tuple[list[bytes], float]:
    """Files in random order, and their mean size."""
    import numpy as np

    files = np.asarray(manifest.files)
    files = files[np.asarray(manifest.size)[files] > 0]
    if not len(files):
        raise MlfsError("all files of the source are empty", "there is nothing to measure", ExitCode.SOURCE)
    chosen = np.random.default_rng(seed).permutation(files)[:_MOST_FILES]
    return list(manifest.paths(chosen.tolist())), float(np.asarray(manifest.size)[files].mean())


@contextmanager
def _progress(measurements: int) -> Iterator[Report]:
    """Progress on stderr: a line that changes on a terminal, elsewhere a line for each measurement that is done."""
    done = 0
    with Progress() as progress:

        def report(name: str, threads: int, rate: Rate) -> None:
            nonlocal done
            done += 1
            text = f"{name}, {threads} thread{'s' * (threads != 1)}: {rate.bytes_per_s / 1e6:.0f} MB/s"
            line = f"{done}/{measurements} {text}"
            if sys.stderr.isatty():
                progress.update({"phase": line})
            else:
                print(f"mlfs: {line}", file=sys.stderr)

        yield report


def _table(result: Calibration) -> list[str]:
    lines = [f"{'place':<34} {'threads':>7} {'read MB/s':>11} {'write MB/s':>11}"]
    mean = result.source.mean_sample_bytes
    for count, rate in result.source.read:
        files = f"{rate / mean:.0f} files/s" if mean else ""
        lines.append(f"{'source':<34} {count:>7} {rate / 1e6:>11.1f} {'-':>11}  {files}")
    for name, speeds in [("memory", result.memory), *((item.path, item) for item in result.ssd)]:
        writes = dict(speeds.write)
        for count, rate in speeds.read:
            write = f"{writes[count] / 1e6:.1f}" if count in writes else "-"
            lines.append(f"{name[-34:]:<34} {count:>7} {rate / 1e6:>11.1f} {write:>11}")
    good = result.source.good_readers
    return [*lines, f"the source gives {result.source.best_bytes_per_s / 1e6:.0f} MB/s; {good} readers are enough"]
