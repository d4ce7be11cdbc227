"""`mount.mlfs`: the program that mount(8) runs for `mount -t mlfs SOURCE MOUNTPOINT` and for a line of /etc/fstab.

In: the words that mount(8) gives its helpers. Out: the same as of `mlfs mount`, with the exit codes of mount(8). Each
flag of `mlfs mount` is an option: `-o ram=8G,ssd=/scratch:100G,allow_other` is `--ram 8G --ssd /scratch:100G
--allow-other`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from urllib.parse import quote

from mlfs.cli import commands
from mlfs.cli.parser import Parser
from mlfs.errors import ConfigError, ExitCode
from mlfs.printable import printable
from mlfs.user_input import nearest
from mountd import interface

_DESCRIPTION = """\
Mount SOURCE read-only at MOUNTPOINT; they may be the same directory. This is what mount(8) runs where it lies in /sbin.
"""
_EPILOG = """\
examples:
  ln -s "$(command -v mount.mlfs)" /sbin/mount.mlfs
  mount -t mlfs /lustre/imagenet /data/imagenet -o ram=8G,ssd=/scratch:100G,allow_other

a line of /etc/fstab:
  /lustre/imagenet /data/imagenet mlfs ram=8G,ssd=/scratch:100G,allow_other,_netdev,nofail 0 0

Each flag of `mlfs mount` but --foreground is an option, without its dashes: ram=SIZE, ssd=DIR:SIZE (as often as you
like), allow_other or allow-other. A value with a comma in it stands in double quotes. What else is usual in /etc/fstab
is taken and changes nothing: ro, rw (the mount is read-only all the same), _netdev, noauto, nofail, user, noatime,
x-systemd.* and the like.
"""
# mount(8) and systemd heed these words themselves, or they hold for every mount of mlfs.
_TAKEN = frozenset(
    (
        *("ro", "rw", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser", "owner", "group"),
        *("nosuid", "suid", "nodev", "dev", "noexec", "exec", "async", "sync", "atime", "noatime", "diratime"),
        *("nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime"),
    )
)
_TAKEN_BEGINNINGS = ("x-", "X-", "comment=", "user=", "uhelper=", "helper=")
_OPTION = re.compile(r'(?:"[^"]*"|[^,"])+')
# mount(8) waits until its helper ends.
_NOT_HERE = ("--foreground", "--no-foreground", "--help")
# The exit codes of mount(8): its own table of bits.
_EX_USAGE, _EX_SYSERR, _EX_USER, _EX_FAIL = 1, 2, 8, 32
_EXIT_CODES = {
    ExitCode.OK: 0,
    ExitCode.USAGE: _EX_USAGE,
    ExitCode.NOT_PERMITTED: _EX_USAGE,
    ExitCode.NO_FUSE: _EX_SYSERR,
    ExitCode.INTERRUPTED: _EX_USER,
}


def build_parser() -> Parser:
    """The parser for the words that mount(8) gives its helpers."""
    parser = Parser(prog="mount.mlfs", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    parser.add_argument("mountpoint", metavar="MOUNTPOINT", help="an empty directory, or SOURCE itself")
    parser.add_argument("-o", dest="options", metavar="OPTIONS", action="append", default=[], help="see below")
    parser.add_argument("-f", dest="fake", action="store_true", help="check the options and mount nothing")
    parser.add_argument("-s", dest="sloppy", action="store_true", help="leave out options that mlfs does not know")
    parser.add_argument("-v", dest="verbose", action="store_true", help="say what was mounted")
    parser.add_argument("-n", action="store_true", help="do not write /etc/mtab, which mlfs never does")
    parser.add_argument("-t", metavar="TYPE", help="the type as mount(8) was told it; changes nothing")
    parser.add_argument("-N", metavar="NAMESPACE", help="the namespace that mount(8) has entered; changes nothing")
    return parser


def main() -> int:
    """Mount as mount(8) asks, and return the exit code that it expects. Bad usage leaves through SystemExit(2)."""
    args = build_parser().parse(sys.argv[1:])
    try:
        flags = flags_of(args.options, args.sloppy)
    except ConfigError as error:
        print(f"mount.mlfs: {printable(str(error))}", file=sys.stderr)
        return _EX_USAGE
    if args.fake or _is_there(args.source, args.mountpoint):
        return 0
    with contextlib.ExitStack() as silence:
        if not args.verbose:
            silence.enter_context(contextlib.redirect_stdout(silence.enter_context(open(os.devnull, "w"))))
        code = commands.main(["mount", *flags, "--", args.source, args.mountpoint])
    return _EXIT_CODES.get(ExitCode(code), _EX_FAIL)


def flags_of(options: Sequence[str], sloppy: bool = False) -> list[str]:
    """The flags of `mlfs mount` for options as they stand behind -o. Raises ConfigError for one that is none.

    Args:
        sloppy: leave out what is not known.
    """
    known = _flags_of_mount()
    flags = []
    for option in (found for text in options for found in _OPTION.findall(text)):
        name, equals, value = option.partition("=")
        flag = "--" + name.replace("_", "-")
        takes_value = known.get(flag)
        if takes_value is not None and takes_value == bool(equals):
            flags.append(f"{flag}={value.replace(chr(34), '')}" if takes_value else flag)
        elif takes_value is not None:
            raise ConfigError(f"option {name} {'needs a value' if takes_value else 'takes no value'}", "see mlfs mount")
        elif name not in _TAKEN and not option.startswith(_TAKEN_BEGINNINGS) and not sloppy:
            words = [flag.removeprefix("--") for flag in known]
            hint = nearest(name.replace("_", "-"), words) or "each flag of mlfs mount is one, without its dashes"
            raise ConfigError(f"there is no option {name}", hint)
    return flags


def _is_there(source: str, mountpoint: str) -> bool:
    """Whether it is mounted already. `mount -a` cannot see that: the table of mounts has another type and source."""
    entry = interface.mount_at(mountpoint)
    wanted = "mlfs:" + quote(os.fsencode(interface.resolve(source)), safe="/")
    return bool(
        entry and entry.is_mlfs and entry.source == wanted and interface.probe(mountpoint) is interface.Health.OK
    )


def _flags_of_mount() -> dict[str, bool]:
    """The flags of `mlfs mount` that are options here, and whether they take a value."""
    mount = commands.build_parser(["mount"]).commands["mount"]
    flags = {flag: action.nargs != 0 for action in mount.fields for flag in action.option_strings}
    return {flag: takes for flag, takes in flags.items() if flag.startswith("--") and flag not in _NOT_HERE}


if __name__ == "__main__":
    sys.exit(main())
