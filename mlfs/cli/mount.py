"""`mlfs mount SOURCE [MOUNTPOINT]`: check everything, start the daemon, return when the mount answers.

In: parsed arguments. Out: a few lines that say what was mounted and what to do next, an exit code. Called by
`mlfs.cli.commands`. With --foreground this process becomes the holder of the mount.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from mlfs.cli.progress import Progress
from mlfs.errors import ExitCode, MlfsError
from mlfs.launchers import ranks_seen
from mlfs.printable import printable
from mountd import interface

if TYPE_CHECKING:
    from mlfs.config import MountConfig

# How often a mount that is on its way out is looked at, and how long its daemon may take to end once it is gone.
_LOOK_AGAIN_S = 0.2
_END_TIMEOUT_S = 15.0

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


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Mount SOURCE read-only and return when it serves. Without MOUNTPOINT it is mounted over itself."
    )
    parser.epilog = _EPILOG
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="the directory with the training files")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?", help="an empty directory (default: SOURCE)")
    parser.add_argument("--config", metavar="FILE", help="TOML file with these flags (default: none)")
    add_settings(parser)
    parser.set_defaults(run=run)


def add_settings(parser: argparse.ArgumentParser, *, lives: bool = False) -> None:
    """Add the flags of a mount's settings. Args: lives: only those that can be changed while it lives."""
    _add_cache_flags(parser, lives)
    _add_process_flags(parser, lives)


def _add_cache_flags(parser: argparse.ArgumentParser, lives: bool) -> None:
    group = parser.add_argument_group("caches")
    group.add_argument(
        "--ram", metavar="SIZE", help="keep up to SIZE of samples in memory (default: 50%%, less if less is free)"
    )
    for flag, text in (("--ssd", "samples in DIR, a file each"), ("--lmdb", "samples of up to 256K packed in DIR")):
        group.add_argument(
            flag,
            metavar="DIR:SIZE",
            action="append",
            help=f"keep {text}, up to SIZE and to what the disk has; may be repeated (default: none)",
        )
    text = "stage up to SIZE in the page cache ahead of the readers (default: 10%%, 64M to 2G, less if memory is short)"
    group.add_argument("--staging", metavar="SIZE", help=text)
    text = "fetch ahead from the source with N threads at most; fewer work where more do not help (default: 16)"
    group.add_argument("--pfs-threads", metavar="N", help=text)
    text = (
        "fetch ahead in N processes beside the server from the start, 0: in its threads only "
        "(default: once much is fetched, in half as many as cores, at most 4)"
    )
    group.add_argument("--movers", metavar="N", help=text)
    text = "how long the second try of a read that hangs in the source may take (default: 30s)"
    group.add_argument("--source-timeout", metavar="TIME", help=text)
    text = "find out the order of reads while no job is registered: on or off (default: on)"
    group.add_argument("--infer", metavar="on|off", help=text)
    text = "what `mlfs calibrate` measured (default: the one of SOURCE, if there is one)"
    group.add_argument("--calibration", metavar="FILE", help=text)
    if lives:
        return
    text = (
        "the saved list of files; of nodes that share it one scans (default: in ~/.cache/mlfs or $XDG_CACHE_HOME/mlfs)"
    )
    group.add_argument("--index", metavar="FILE", help=text)
    text = "scan the source even when the saved list is still right (default: no)"
    group.add_argument("--rescan", action=argparse.BooleanOptionalAction, help=text)


def _add_process_flags(parser: argparse.ArgumentParser, lives: bool) -> None:
    group = parser.add_argument_group("mount and daemon")
    if not lives:
        text = "let other users read the mount; needs root or user_allow_other in /etc/fuse.conf (default: no)"
        group.add_argument("--allow-other", action=argparse.BooleanOptionalAction, help=text)
        text = "come back only when the mount ends, by Ctrl-C or SIGTERM (default: no, come back when it serves)"
        group.add_argument("--foreground", action=argparse.BooleanOptionalAction, help=text)
        text = (
            "how mlfs hears of reads: open; silent, where reading staged files needs no request; auto, which is silent "
            "where that can be had and costs nothing else (default: open)"
        )
        group.add_argument("--channel", metavar="auto|open|silent", help=text)
    text = "take what mlfs audit finds for an error: it is logged, and status begins with it (default: no)"
    group.add_argument("--strict-order", action=argparse.BooleanOptionalAction, help=text)
    text = "write a page (as mlfs report does) into DIR whenever a job ends (default: none)"
    group.add_argument("--report", metavar="DIR", help=text)
    text = "the daemon's log (default: log/NAME.log in ~/.cache/mlfs or $XDG_CACHE_HOME/mlfs)"
    group.add_argument("--log-file", metavar="FILE", help=text)
    text = "lines of text, or a JSON object a line: text or json (default: text)"
    group.add_argument("--log-format", metavar="text|json", help=text)
    text = "begin a new log when this one has SIZE, and keep it as FILE.1 (default: 16M)"
    group.add_argument("--log-size", metavar="SIZE", help=text)
    text = "keep N old logs; 0 never begins a new one, for logrotate and SIGUSR1 (default: 1)"
    group.add_argument("--log-files", metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Mount the source. Raises an MlfsError when that is not possible."""
    # No linear algebra is done here nor in the daemon: numpy's threads and memory for it would be for nothing.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Nobody's plugin of pydantic changes how a config is read, and to look for one takes longer than to read it.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from mlfs.config import KEYS, load_config

    config = load_config({key: getattr(args, key.replace("-", "_")) for key in KEYS}, args.config)
    check_calibration(config)
    with ExitStack() as turn:
        turn.enter_context(interface.one_start_at_a_time(interface.resolve(config.mountpoint), _say))
        _let_it_end(interface.resolve(config.mountpoint))
        running = None if config.foreground else interface.mounted_already(config, _say)
        if running is not None:
            print("\n".join(map(printable, already(running))), flush=True)
            return ExitCode.OK
        return _mount(interface.check_mount(config, note=_say), turn.close)


def check_calibration(config: MountConfig) -> None:
    """Raise what is wrong with the file now: an error in the daemon would stand in its log."""
    if config.calibration is not None:
        from mlfs.measure import calibration

        calibration.load(config.calibration)


def _let_it_end(mountpoint: str) -> None:
    """Wait while the mount that is there is being unmounted (an epilog before this prolog), or its daemon ends."""
    announced, deadline = False, 0.0
    while _is_ending(mountpoint):
        if not announced:
            _say(printable(f"{mountpoint} is being unmounted: waiting for that, to mount it anew"))
            announced = True
        mounted = interface.mount_at(mountpoint) is not None
        deadline = time.monotonic() + _END_TIMEOUT_S if mounted or not deadline else deadline
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK_AGAIN_S)


def _is_ending(mountpoint: str) -> bool:
    """Whether the mount at a place is on its way out, or is gone while its daemon is not yet."""
    from mlfs.cli import client

    entry, record = interface.mount_at(mountpoint), interface.recorded_daemon(mountpoint)
    if entry is None or not entry.is_mlfs:
        return record is not None and interface.is_running(record)
    if interface.stopped_daemon(mountpoint) is not None or interface.probe(mountpoint) is not interface.Health.OK:
        return False
    try:
        return client.read_status(mountpoint).get("state") == "draining"
    except MlfsError:  # it has just gone, which the next look tells; or it is another user's
        return not (after := interface.mount_at(mountpoint)) or after != entry


def _mount(config: MountConfig, started: Callable[[], None]) -> int:
    """Mount; in the foreground a child of what holds the mount comes back. `started` is called once it serves."""
    with Progress() as progress:

        def note(line: str) -> None:
            progress.close()
            _say(line)

        if config.foreground:
            said = interface.serve_here(config, progress)
            started()
            _tell(config, said, progress)
            return ExitCode.OK
        if config.log_file is None:
            config = config.model_copy(update={"log_file": interface.default_log_file(config.mountpoint)})
        _tell(config, interface.start_daemon(config, progress, note), progress)
    return ExitCode.OK


def _tell(config: MountConfig, serving: interface.Serving, progress: Progress) -> None:
    progress.close()
    for line in serving.get("notes", ()):
        _say(printable(str(line)))
    print("\n".join(map(printable, summary(config, serving))), flush=True)


def _say(text: str) -> None:
    print(f"mlfs: {text}", file=sys.stderr)


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
        *registration(place, os.environ),
        f"then: mlfs status {place}; at the end: mlfs unmount {place}",
    ]


def already(running: interface.Record) -> list[str]:
    """The lines that say that there is nothing to do."""
    place = shlex.quote(running.mountpoint)
    return [
        f"already mounted: {running.mountpoint}, served by process {running.pid} with these settings",
        *registration(place, os.environ),
    ]


def registration(place: str, environment: Mapping[str, str]) -> list[str]:
    """How to register a job with as many ranks as the environment says; without a launcher that is one process."""
    ranks = ranks_seen(environment)
    if ranks is None:
        values = "--sampler torch-random --seed 0 --epochs 90 --batch-size 64"
        return [
            f"  mlfs register {place} {values}",
            "  (one process; with several: --sampler torch-distributed --world-size N --ranks 0-M, or --from-env under"
            " torchrun, mpirun or Slurm)",
        ]
    values = f"--sampler torch-distributed --seed 0 --epochs 90 --batch-size 64 {ranks.flags}"
    return [f"  mlfs register {place} {values}", f"  (ranks as {ranks.launcher} has them in this environment)"]
