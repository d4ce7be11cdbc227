"""`mlfs unmount MOUNT`: stop prefetching, let readers finish, take the mount away, wait for the daemon to end.

In: parsed arguments. Out: exit code; BUSY with the processes named when readers do not let go in time. Called by
`mlfs.cli.commands`. Also cleans up after a daemon that was killed, and gets rid of one that hangs (--force).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import replace

from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.printable import printable
from mlfs.user_input import answer
from mountd import interface
from mountd.interface import MountEntry, Record, User

# How often a busy mount is tried again: soon enough that a user does not notice, seldom enough to cost nothing.
_RETRY_S = 0.1
# The daemon answers a drain at once. One that does not is hung, and the unmount does not depend on it.
_CONTROL_TIMEOUT_S = 5.0
# After its mount is gone the daemon commits what its tiers have to write, which a slow disk may make it wait for.
_END_TIMEOUT_S = 15.0
# A file system that is still there so long after its mount is in use, whatever uses it: its daemon goes on.
_HELD_S = 3.0
# After a signal the same work is left, but a daemon that has not done it by now is not going to.
TERM_TIMEOUT_S = 5.0
# A keeper passes the signal on to COMMAND, and has an agent that hangs end three seconds later (mlfs.peers.keeper).
_KEEPER_TIMEOUT_S = 8.0
_SHOWN_USERS = 8

_EPILOG = """\
examples:
  mlfs unmount /data/imagenet
  mlfs unmount /data/imagenet --timeout 5m   wait longer for readers
  mlfs unmount /data/imagenet --force        take it away: their reads fail then
  mlfs unmount --all                         all of yours, and their agents
  mlfs unmount --all --yes                   the same without asking

A mount whose daemon was killed (Transport endpoint is not connected) is cleaned up the same way.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Stop prefetching, wait for readers to close their files, unmount, and end the daemon."
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", nargs="?", help="the mount point")
    parser.add_argument(
        "--all",
        action="store_true",
        help="end all that you have mounted here, and the agents of `mlfs peers`; lists them and asks (default: no)",
    )
    parser.add_argument("--yes", action="store_true", help="with --all: do not ask (default: ask)")
    parser.add_argument(
        "--timeout", metavar="TIME", default="30s", help="how long to wait for readers: 250ms, 30s, 5m (default: 30s)"
    )
    parser.add_argument(
        "--force", action="store_true", help="do not wait: detach the mount and end its daemon (default: no)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Unmount. Returns OK or raises BUSY, NOT_MOUNTED, NOT_PERMITTED."""
    from mlfs.units import parse_duration

    timeout_s = parse_duration(args.timeout, what="--timeout")
    if (args.mount is None) != args.all:
        raise ConfigError("give a mount point, or --all", "mlfs unmount --help says more")
    if args.all:
        return _unmount_all(timeout_s, args.force, args.yes)
    return _unmount(interface.resolve(args.mount), timeout_s, args.force)


def _unmount_all(timeout_s: float, force: bool, agreed: bool) -> int:
    """End each mount that this user has made here, the last first, and its agent. Raises the first error at the end."""
    newest = sorted(interface.recorded_daemons(), key=lambda record: -record.started)
    mountpoints = list(dict.fromkeys(record.mountpoint for record in newest))
    if not mountpoints:
        print("there are no mounts of yours on this machine")
    elif not agreed:
        _ask(newest)
    errors: list[MlfsError] = []
    for mountpoint in mountpoints:
        speakers = _speakers_of(mountpoint)
        try:
            _unmount(mountpoint, timeout_s, force)
        except MlfsError as error:
            errors.append(error)
            _say(error.message)
            continue
        for speaker in speakers:
            _end_speaker(speaker)
    if errors:
        raise errors[0]
    return ExitCode.OK


def _ask(records: list[Record]) -> None:
    """List the mounts and ask whether to end them: root's are those of all sessions of this machine. Raises for no."""
    count = f"{len(records)} mount{'s' * (len(records) > 1)}"
    if sys.stdin is None or not sys.stdin.isatty():
        all_of_them = ", ".join(record.mountpoint for record in records)
        message = f"unmount --all would end {count} ({all_of_them}), and there is no terminal to ask on"
        raise ConfigError(message, "give --yes, or one MOUNT")
    for record in records:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started))
        source = "itself" if record.source == record.mountpoint else record.source
        print(printable(f"{record.mountpoint}, over {source} since {since}, served by process {record.pid}"))
    if answer(f"end {count}? [y/N] ").lower() not in ("y", "yes"):
        raise MlfsError("nothing was unmounted", "answer y, give --yes, or one MOUNT")


def _speakers_of(mountpoint: str) -> list[Record]:
    """The processes of `mlfs peers` that speak for the mount: the keeper, with COMMAND, and the agent."""
    from mlfs.cli import client

    try:
        peers = client.read_status(mountpoint).get("peers") or {}
    except MlfsError:
        return []
    found = (_process(mountpoint, peers.get(name)) for name in ("keeper", "agent"))
    return [speaker for speaker in found if speaker is not None]


def _end_speaker(speaker: Record) -> None:
    """An agent ends with its server, unless it is stopped, or hangs in MPI; its keeper when COMMAND has ended."""
    for number, timeout_s in ((signal.SIGTERM, _KEEPER_TIMEOUT_S), (signal.SIGKILL, TERM_TIMEOUT_S)):
        interface.send_signal(speaker, number)
        if _gone_within(speaker, timeout_s):
            return
    _say(f"`mlfs peers {speaker.mountpoint}` (process {speaker.pid}) does not end")


def _unmount(mountpoint: str, timeout_s: float, force: bool) -> int:
    # `mlfs unmount .` would keep the mount busy itself.
    os.chdir("/")
    entry = interface.mount_at(mountpoint)
    if entry is None or not entry.is_mlfs:
        return _end_leftover_daemon(mountpoint, force)
    stopped = interface.stopped_daemon(mountpoint)
    if stopped is not None and not force:
        from mlfs.cli.client import stopped as is_stopped

        raise is_stopped(mountpoint, stopped)
    health = interface.Health.HUNG if stopped is not None else interface.probe(mountpoint)
    if health is interface.Health.DEAD or (stopped is None and interface.ends_abandoned(entry)):
        return _clean_up_dead(mountpoint)
    hung = health is interface.Health.HUNG
    daemon = _daemon(mountpoint, hung)
    if hung and not force:
        _say(f"{mountpoint} does not answer; trying to unmount it all the same")
    try:
        drained = not hung and _control(mountpoint, "drain")
        free = force or not _elsewhere(entry, daemon)
        done = (free and interface.unmount(mountpoint, entry)) or (
            not force and _wait_for_users(entry, timeout_s, daemon, drained)
        )
        if not done and not force:
            raise _busy(entry, timeout_s, daemon)
    except BaseException as error:
        # This is done after Ctrl-C, too: a mount that stays goes on fetching ahead. If it cannot be done (kill -9) the
        # daemon does not hear of this any more, and goes on by itself (mountd.control.Ending).
        if not hung and interface.mount_at(mountpoint) == entry:
            _control(mountpoint, "resume")
            if isinstance(error, KeyboardInterrupt):
                _say(f"{mountpoint} stays mounted, and goes on as before")
        raise
    held = None
    if not done:
        held = interface.hold(entry) if force else None
        interface.detach(mountpoint, entry)
    if daemon is not None and not force and not _gone_within(daemon, _HELD_S) and interface.is_there(entry.device):
        raise _held(mountpoint, daemon)
    try:
        _see_off(mountpoint, daemon, force=force)
    finally:
        interface.abort(entry, held)
    print(printable(f"unmounted {mountpoint}" + ("" if done else " by force: open files in it fail from now on")))
    return ExitCode.OK


def _say(text: str) -> None:
    print(printable(f"mlfs: {text}"), file=sys.stderr)


def _end_leftover_daemon(mountpoint: str, force: bool) -> int:
    """End a daemon whose mount is gone; raise NOT_MOUNTED when there is none either, BUSY if it still has readers."""
    from mlfs.cli.client import not_mounted

    record = interface.recorded_daemon(mountpoint)
    if record is None or not interface.is_running(record):
        if record is not None:
            interface.forget_daemon(mountpoint, record.pid)
        interface.clear_dead_commands()
        raise not_mounted(mountpoint)
    if not force and interface.has_connection(record.pid) and not _gone_within(record, _HELD_S):
        raise _held(mountpoint, record)
    _see_off(mountpoint, record, force=True)
    print(printable(f"{mountpoint} was not mounted any more; ended its daemon (process {record.pid})"))
    return ExitCode.OK


def _clean_up_dead(mountpoint: str) -> int:
    record = interface.recorded_daemon(mountpoint)
    interface.clean_dead_mounts(mountpoint, _say)
    if record is not None:
        _see_off(mountpoint, record, force=True)
    rest = interface.mount_at(mountpoint)
    more = "; another mlfs mount lies below it" if rest is not None and rest.is_mlfs else ""
    print(printable(f"unmounted {mountpoint}: its daemon was gone already{more}"))
    return ExitCode.OK


def _daemon(mountpoint: str, hung: bool) -> Record | None:
    """The process that serves the mount, from the runtime record; without a record, from the mount's status."""
    from mlfs.cli import client

    record = interface.recorded_daemon(mountpoint)
    if record is not None and interface.is_running(record):
        return record
    if hung:
        return None
    try:
        status = client.read_status(mountpoint)
    except MlfsError:
        return None
    server = _process(mountpoint, status.get("pid"))
    processes = status.get("processes") or ()
    holder = _process(mountpoint, next((one["pid"] for one in processes if one["name"] == "holder"), None))
    if server is None or holder is None:
        return server
    return replace(server, holder=holder.pid, holder_start_ticks=holder.pid_start_ticks)


def _process(mountpoint: str, pid: object) -> Record | None:
    """A process of a mount that its status names, if it is one of ours."""
    ticks = interface.start_ticks(pid) if isinstance(pid, int) else None
    # In a container the pid may be one of another pid namespace, where it is another process.
    if not isinstance(pid, int) or ticks is None or not _looks_like_ours(pid):
        return None
    return Record(pid, ticks, mountpoint, "", 0.0, "", None)


def _looks_like_ours(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command_line = file.read()
    except OSError:
        return False
    return b"mlfs" in command_line or b"mountd" in command_line


def _control(mountpoint: str, op: str) -> bool:
    """Tell the daemon to drain or to resume; says whether it did. Raises NOT_PERMITTED for another user's mount."""
    from mlfs.cli import client

    try:
        # Not through `control`, where this would wait behind a registration that takes long.
        client.send(mountpoint, {"op": op}, _CONTROL_TIMEOUT_S, "lifecycle")
    except MlfsError as error:
        # Root may not look into a user's mount without --allow-other, but it may take it away.
        if error.exit_code is ExitCode.NOT_PERMITTED and op == "drain" and os.geteuid() != 0:
            raise
        return False
    return True


def _wait_for_users(entry: MountEntry, timeout_s: float, daemon: Record | None, drained: bool) -> bool:
    """Try to unmount until it succeeds, and say who uses the mount whenever that changes. False when time is up."""
    mountpoint = entry.mountpoint
    deadline, printed = time.monotonic() + timeout_s, ""
    looked = 0.0
    while time.monotonic() < deadline:
        if time.monotonic() - looked > 1.0 or not looked:
            looked = time.monotonic()
            now = _in_words(_holders(entry, daemon))
            if now != printed:
                _say(f"{mountpoint} is in use by {now}; waiting")
                printed = now
            if drained:
                _control(mountpoint, "drain")  # still at it
        time.sleep(min(_RETRY_S, max(0.0, deadline - time.monotonic())))
        if not _elsewhere(entry, daemon) and interface.unmount(mountpoint, entry):
            return True
    return False


def _holders(entry: MountEntry, daemon: Record | None) -> list[User]:
    """Processes that use the mount, this one where it was started with an open file of it, and other mounts of its
    file system."""
    return [*interface.users_of(entry.mountpoint, [daemon.pid] if daemon else []), *_elsewhere(entry, daemon)]


def _elsewhere(entry: MountEntry, daemon: Record | None) -> list[User]:
    """Other mounts of the file system, which stay when this one goes: without the daemon their reads fail."""
    return interface.other_mounts(entry, [daemon.pid] if daemon else [])


def _in_words(users: list[User]) -> str:
    if not users:
        return "a process that this user cannot see"
    shown = [user.words for user in users[:_SHOWN_USERS]]
    rest = len(users) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _busy(entry: MountEntry, timeout_s: float, daemon: Record | None) -> MlfsError:
    who = _in_words(_holders(entry, daemon))
    message = f"{entry.mountpoint} is still in use after {timeout_s:g} s by {who}"
    return MlfsError(message, "it stays mounted; end them, give a longer --timeout, or use --force", ExitCode.BUSY)


def _held(mountpoint: str, daemon: Record) -> MlfsError:
    """A use that `holders` does not find: an overlay of layers whose names are relative, a file that somebody has open
    on a mount that was detached."""
    message = f"{mountpoint} is not mounted any more, and something goes on using its file system"
    what = "another mount of it, an overlay, an open file"
    hint = f"{what}: process {daemon.pid} serves until that ends, or until mlfs unmount --force {mountpoint}"
    return MlfsError(message, hint, ExitCode.BUSY)


def _see_off(mountpoint: str, daemon: Record | None, *, force: bool) -> None:
    """Wait until the daemon has ended, or with `force` end it. Its runtime record is removed."""
    if daemon is None:
        interface.forget_dead_daemons()
        return
    steps = [(None, _END_TIMEOUT_S), (signal.SIGTERM, TERM_TIMEOUT_S)]
    if force:
        steps = [(signal.SIGTERM, TERM_TIMEOUT_S), (signal.SIGKILL, TERM_TIMEOUT_S)]
    for signal_number, timeout_s in steps:
        if signal_number is not None:
            interface.send_signal(daemon, signal_number)
        if _gone_within(daemon, timeout_s):
            interface.forget_daemon(mountpoint, daemon.pid)
            interface.clear_dead_commands()
            return
    message = f"{mountpoint} is unmounted, but its daemon (process {daemon.pid}) does not end"
    raise MlfsError(message, f"mlfs unmount --force {mountpoint}, or see its log {daemon.log_file or ''}".rstrip())


def _gone_within(daemon: Record, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while interface.is_running(daemon):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
