"""`mlfs run MOUNT -- COMMAND`: COMMAND reads a silent mount through an overlay, so that open() sends no request either.

In: parsed arguments, a mount on the silent channel. Out: this process becomes COMMAND. Called by `mlfs.cli.commands`.

Python below 3.14 sends an ioctl for each open(). An overlay file system answers it by itself, and reads the pages of
the mount below. It is there for COMMAND alone, in a mount namespace that ends with it: nothing is left behind, whoever
is killed. It is mounted by who reads through it, as who has mounted it is asked, too, who may read.

An overlay keeps what it has once looked up. So a process beside COMMAND has it drop that when the mount has noticed a
change; what somebody has open then cannot be dropped, so it does so again and again, at longer and longer intervals.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from typing import NoReturn

from mlfs.cli import client
from mlfs.cli.namespaces import be_again, check_command, checked, take_own_mounts
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mountd import interface

_EPILOG = """\
examples:
  mlfs mount /data/imagenet --channel silent
  mlfs run /data/imagenet -- torchrun --nproc-per-node 4 train.py

Python below 3.14 reads staged files two to three times as fast with open(). What
reads by os.open, and Python 3.14, gain nothing. COMMAND sees what it sees without
this, and mlfs works in it; for others nothing changes. A change that the mount
notices is seen within a second, and of a file that COMMAND has open in up to twice
the time that it stays so; until then its name gives ESTALE. A user's COMMAND runs
in a user namespace: other users' files are shown as nobody's, as with mlfs audit.
Root's COMMAND cannot become another user.
"""
CHANGES = "changes"
# How soon a change is heard of. Each time costs the server a tenth of a millisecond or two.
LOOK_S = 0.25
# How long is waited at most until what was open may be dropped.
MOST_WAIT_S = 600.0
# linux/mount.h, linux/prctl.h, linux/capability.h.
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _DETACH = 1, 2, 4, 8, 32, 4096, 2
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_DAC_OVERRIDE, _DAC_READ_SEARCH, _SETGID, _SETUID = 1, 2, 6, 7
_CAPABILITY_VERSION = 0x20080522
# linux/fanotify.h: events with file handles, and opens of a directory's children.
_FAN_QUIETLY, _FAN_OPEN_IN_IT = 0x203, 0x08000020

_libc = ctypes.CDLL(None, use_errno=True)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run COMMAND with an overlay over a mount on the silent channel: what is staged is read from the page cache "
        "without a request to mlfs."
    )
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    parser.add_argument("command_words", metavar="COMMAND", nargs="*", help="what to run, behind --")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> NoReturn:
    """Become COMMAND. Raises MlfsError where it cannot be run so."""
    if not args.command_words:
        raise ConfigError("there is no COMMAND to run", f"mlfs run {args.mount} -- COMMAND")
    check_command(args.command_words[0])
    mountpoint, here = client.require_mount(args.mount), os.getcwd()
    channel = client.read_status(mountpoint)["channel"]
    if channel["name"] != "silent":
        why = f"the mount is on the open channel: {channel['why']}"
        raise ConfigError(why, f"mlfs mount {mountpoint} --channel silent, or run COMMAND alone")
    _wait_for_one_thread()
    user = os.geteuid(), os.getegid()
    is_root = take_own_mounts("run COMMAND alone: it reads the same", sees_others=True)
    try:
        if user[0]:
            _go_without(_DAC_OVERRIDE, _DAC_READ_SEARCH)  # the overlay's user has no more rights than the reader
        _lay_over(mountpoint)
        _have_attended(mountpoint)
        os.chdir(here)  # by its path, which leads to the overlay now
        if is_root:
            _stay_root()
        else:
            be_again(user)
    except OSError as error:
        why = f"COMMAND cannot have an overlay here: {error.strerror}"
        raise MlfsError(why, "run COMMAND alone: it reads the same", ExitCode.NOT_PERMITTED) from None
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and so would COMMAND
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvp(args.command_words[0], args.command_words)
    except OSError as error:
        raise ConfigError(f"{args.command_words[0]} cannot be run: {error}", "check the name behind --") from None


def _wait_for_one_thread() -> None:
    """A thread that has returned may take a moment to end, and keeps this process from a user namespace of its own."""
    until_s = time.monotonic() + 1
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until_s:
        time.sleep(0.001)


def _lay_over(mountpoint: str) -> None:
    """Mount the overlay. Raises: OSError, MlfsError."""
    entry = interface.mount_at(mountpoint)
    if entry is None or not entry.is_mlfs:
        raise client.not_mounted(mountpoint)
    for other in interface.mount_table():
        if other.mountpoint.startswith(mountpoint.rstrip("/") + "/"):
            raise MlfsError(f"something is mounted inside of the mount: {other.mountpoint}", "run COMMAND alone")
    path, source = os.fsencode(mountpoint), os.fsencode(entry.source)
    below = os.open(path, os.O_PATH | os.O_DIRECTORY)
    control = os.open(path + b"/.mlfs", os.O_PATH | os.O_DIRECTORY)
    flags = _RDONLY | _NOSUID | _NODEV | (_NOEXEC if "noexec" in entry.options else 0)
    # An overlay wants a second layer: an empty one, which nobody else sees either.
    empty = path + b"/.mlfs"
    checked(_libc.mount(b"none", empty, b"tmpfs", flags, None))
    layers = b":".join(re.sub(rb"[:,\\]", rb"\\\g<0>", layer) for layer in (path, empty))
    checked(_libc.mount(source, path, b"overlay", flags, b"redirect_dir=nofollow,metacopy=off,lowerdir=" + layers))
    checked(_libc.umount2(b"/proc/self/fd/%d/.mlfs" % below, _DETACH))
    if not _tells_of_opens(b"/proc/self/fd/%d/" % control, empty + b"/status"):
        raise MlfsError("this kernel does not tell a mount of opens through an overlay", "run COMMAND alone")
    # The control directory makes an inode for each look-up, which an overlay would take for changes.
    checked(_libc.mount(b"/proc/self/fd/%d" % control, empty, None, _BIND, None))
    os.close(control)
    os.close(below)


def _tells_of_opens(below: bytes, above: bytes) -> bool:
    """Whether a mark on a directory hears who opens a file in it through the overlay. Raises: OSError.

    Args:
        below: the directory in the mount. above: a file in it, by the overlay's path; the mount hears of it, too.
    """
    listener = checked(_libc.fanotify_init(_FAN_QUIETLY, os.O_RDONLY))
    try:
        checked(_libc.fanotify_mark(listener, 1, ctypes.c_uint64(_FAN_OPEN_IN_IT), -100, below))
        os.close(os.open(above, os.O_RDONLY))
        told = os.read(listener, 4096) if select.select([listener], [], [], 0)[0] else b""
        pids, at = set(), 0
        while at < len(told):  # struct fanotify_event_metadata
            pids.add(struct.unpack_from("=i", told, at + 20)[0])
            at += struct.unpack_from("=I", told, at)[0]
        return os.getpid() in pids
    finally:
        os.close(listener)


# -- rights


def _go_without(*capabilities: int) -> None:
    """Give these up. Raises: OSError."""
    head, data = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0)), ctypes.create_string_buffer(24)
    checked(_libc.capget(head, data))
    mask = ~sum(1 << one for one in capabilities) & 0xFFFFFFFF
    effective, permitted, inheritable, *high = struct.unpack("6I", data.raw)
    data.raw = struct.pack("6I", effective & mask, permitted & mask, inheritable & mask, *high)
    checked(_libc.capset(head, data))


def _stay_root() -> None:
    """Nobody in COMMAND is anybody else than who has mounted the overlay, for whom it asks who may read."""
    for capability in (_SETUID, _SETGID):
        checked(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))
    _go_without(_SETUID, _SETGID)
    checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


# -- the process beside COMMAND


def _have_attended(mountpoint: str) -> None:
    """Start a process that attends to the overlay for as long as this one lives. Raises what goes wrong at first.

    It is nobody's child, as COMMAND may wait for all children that it has.
    """
    command, (hears, says) = os.pidfd_open(os.getpid()), os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork():
            os._exit(0)
        _be_attendant(mountpoint, command, says)
    for fd in (command, says):
        os.close(fd)
    os.waitpid(child, 0)
    with open(hears, "rb") as said:
        told = said.read()
    if told != b"{}":
        message, hint, code = json.loads(told or '["it could not be started", "", 1]')
        raise MlfsError(message, hint, ExitCode(code))


def _be_attendant(mountpoint: str, command: int, says: int) -> NoReturn:
    """In the process beside COMMAND: have nothing of its terminal, and end after it."""
    try:
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd <= 2:
                os.dup2(nothing, fd)
            elif fd not in (command, says):
                with suppress(OSError):  # the listing's own
                    os.close(fd)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        try:
            seen = client.read_file(mountpoint, CHANGES)
        except MlfsError as error:
            os.write(says, json.dumps((error.message, error.hint, int(error.exit_code))).encode())
        else:
            os.write(says, b"{}")
            os.close(says)
            _attend(mountpoint, command, seen)
    finally:
        os._exit(0)


def _attend(mountpoint: str, command: int, seen: bytes) -> None:
    waits, wait_s, again_s = select.poll(), LOOK_S, float("inf")
    waits.register(command, select.POLLIN)
    while not waits.poll(LOOK_S * 1000):
        with suppress(OSError):
            with open(os.path.join(mountpoint, ".mlfs", CHANGES), "rb", buffering=0) as file:
                now = file.readall()
            if now != seen:
                seen, wait_s, again_s = now, LOOK_S, 0.0
            if time.monotonic() >= again_s:
                checked(_libc.mount(None, os.fsencode(mountpoint), None, _REMOUNT | _RDONLY, None))
                again_s, wait_s = time.monotonic() + wait_s, min(2 * wait_s, MOST_WAIT_S)
