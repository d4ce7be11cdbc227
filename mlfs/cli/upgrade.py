"""`mlfs upgrade MOUNT [FLAGS]`: have another server take a mount over, of the code that is installed now, or set anew.

In: parsed arguments, the settings of the mount as its record has them. Out: a line on the mount's control file; a line
about who serves then. Called by `mlfs.cli.commands`. The mount's processes do the rest (docs/processes.md).
"""

from __future__ import annotations

import argparse
import time

from mlfs.cli.mount import add_cache_flags, add_process_flags
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.printable import printable

_EPILOG = """\
examples:
  mlfs upgrade /data/imagenet     after `pip install --upgrade mlfs`
  mlfs upgrade /data/imagenet --ram 32G --log-format json

Readers wait for a moment, and find out nothing: no read fails, jobs go on,
samples in RAM stay as far as there is room. Settings that are not named stay.
What a mount has from its start on (its source and place, --index,
--allow-other, --channel, --foreground) cannot be changed.

Needs Linux 6.9. Exit code 0: another server serves. 1: it could not be loaded,
and the one before it goes on.
"""
# The server waits for a minute until the next one is loaded (mountd.left_behind).
_PATIENCE_S = 90.0
_LOOK_EVERY_S = 0.2


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `upgrade`."""
    parser.description = "Have another server take a mount over, while readers go on."
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    add_cache_flags(parser)
    add_process_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Upgrade, and wait until another server answers."""
    from mlfs.cli import client
    from mlfs.config import FIXED, KEYS, MountConfig, changed
    from mountd import interface

    mountpoint = client.require_mount(args.mount)
    record = interface.recorded_daemon(mountpoint)
    if record is None or record.settings is None:
        raise MlfsError(f"the settings of the mount at {mountpoint} are not known", "unmount, and mount again")
    flags = {key: getattr(args, key.replace("-", "_"), None) for key in KEYS}
    for key in FIXED:
        if flags[key] is not None:
            raise ConfigError(f"--{key} cannot be changed while a mount lives", "unmount, and mount again")
    config = changed(MountConfig.model_validate(record.settings), flags)
    before = client.read_status(mountpoint)["pid"]
    client.send(mountpoint, {"op": "upgrade", "tables": interface.TABLES, "config": config.to_json()})
    deadline = time.monotonic() + _PATIENCE_S
    while (status := client.read_status(mountpoint))["pid"] == before:
        if time.monotonic() > deadline:
            raise MlfsError(
                f"no other server has taken {mountpoint} over", f"see {config.log_file or 'its log'}", ExitCode.FAILURE
            )
        time.sleep(_LOOK_EVERY_S)
    print(printable(f"{mountpoint} is served by process {status['pid']} now, mlfs {status['version']}"))
    return ExitCode.OK
