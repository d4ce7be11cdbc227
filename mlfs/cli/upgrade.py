"""`mlfs upgrade MOUNT [FLAGS]`: have another server take a mount over, of the code that is installed now, or set anew.

In: parsed arguments, the settings of the mount as its record has them. Out: a line on the mount's control file; a line
about who serves then. Called by `mlfs.cli.commands`. The mount's processes do the rest (docs/processes.md).
"""

from __future__ import annotations

import argparse
import time

from mlfs.cli.mount import add_settings, check_calibration
from mlfs.errors import ExitCode, MlfsError
from mlfs.printable import printable

_EPILOG = """\
examples:
  mlfs upgrade /data/imagenet     after `pip install --upgrade mlfs`
  mlfs upgrade /data/imagenet --ram 8G --log-format json

Readers wait for a moment, and find out nothing: no read fails, jobs go on,
samples in RAM stay as far as there is room. Settings that are not named stay
as they are: the defaults above are those of mlfs mount. Its other flags
(--index, --allow-other, --channel, --foreground) cannot be changed.

Exit code 0: another server serves, with these settings. 1: it could not be
loaded, or not begin: the mount goes on with those it had.
"""
# The server waits for a minute until the next one is loaded (mountd.left_behind).
_PATIENCE_S = 90.0
_LOOK_EVERY_S = 0.2


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Have another server take a mount over, while readers go on."
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    add_settings(parser, lives=True)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Upgrade, and wait until another server answers."""
    from mlfs.cli import client
    from mlfs.config import KEYS, MountConfig, changed
    from mountd import interface

    mountpoint = client.require_mount(args.mount)
    before = client.read_status(mountpoint)["pid"]  # first of all, as it says whose mount it is
    record = interface.recorded_daemon(mountpoint)
    if record is None or record.settings is None:
        raise MlfsError(
            f"the settings of the mount at {mountpoint} are not known", "unmount, and mount again", ExitCode.NOT_MOUNTED
        )
    flags = {key: getattr(args, key.replace("-", "_"), None) for key in KEYS}
    config = changed(MountConfig.model_validate(record.settings), flags)
    check_calibration(config)
    interface.check_settings(config)
    client.send(mountpoint, {"op": "upgrade", "tables": interface.TABLES, "config": config.to_json()})
    deadline = time.monotonic() + _PATIENCE_S
    while (status := client.read_status(mountpoint))["pid"] == before:
        if time.monotonic() > deadline:
            raise MlfsError(
                f"no other server has taken {mountpoint} over", f"see {config.log_file or 'its log'}", ExitCode.FAILURE
            )
        time.sleep(_LOOK_EVERY_S)
    record = interface.recorded_daemon(mountpoint)
    if record is not None and record.settings is not None and MountConfig.model_validate(record.settings) != config:
        message = f"no server could begin with these settings: {mountpoint} goes on with those it had"
        raise MlfsError(message, f"see {record.log_file or 'its log'}")
    print(printable(f"{mountpoint} is served by process {status['pid']} now, mlfs {status['version']}"))
    return ExitCode.OK
