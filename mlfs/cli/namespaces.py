"""Gives a command mounts that nobody else sees, and has it be its user all the same.

In: who this process is. Out: the mount namespace that it is in from then on. Called by `mlfs.cli.own_mount` and
`mlfs.cli.run`.

Root gets a mount namespace. Another user gets a user namespace for it, in which he is root and may mount; there the
command gets a user namespace once more, in which he is himself again.
"""

from __future__ import annotations

import ctypes
import os
import shutil

from mlfs.errors import ConfigError, ExitCode, MlfsError

# From linux/sched.h and linux/mount.h.
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_SLAVE = 1 << 14, 1 << 18, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)


def check_command(name: str) -> None:
    """Raises ConfigError for what cannot be run."""
    if shutil.which(name) is None:
        if os.path.isfile(name):
            raise ConfigError(f"{name} is not executable", f"chmod +x, or its interpreter first: -- python {name}")
        raise ConfigError(f"there is no command {name}", "check the name behind --")


def take_own_mounts(hint: str, sees_others: bool = False) -> bool:
    """Have no mount of this process, which has one thread, be seen elsewhere. Says whether it may mount as it is, being
    root. Raises MlfsError, with that hint.

    Args:
        sees_others: whether it sees what others mount and unmount from now on.
    """
    user, group = os.geteuid(), os.getegid()
    is_root = user == 0 and _libc.unshare(_CLONE_NEWNS) == 0
    try:
        if not is_root:
            checked(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
            _be((0, 0), (user, group))
        checked(_libc.mount(None, b"/", None, _MS_REC | (_MS_SLAVE if sees_others else _MS_PRIVATE), None))
    except OSError as error:
        message = f"COMMAND cannot have a mount of its own here: no user namespace is to be had ({error.strerror})"
        raise MlfsError(message, hint, ExitCode.NOT_PERMITTED) from None
    return is_root


def be_again(user: tuple[int, int]) -> None:
    """Be this user and group again, whom `take_own_mounts` has made root. Raises: OSError."""
    checked(_libc.unshare(_CLONE_NEWUSER))
    _be(user, (0, 0))


def checked(outcome: int) -> int:
    """Returns what a function of the C library has. Raises: OSError."""
    if outcome < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return outcome


def _be(who: tuple[int, int], outside: tuple[int, int]) -> None:
    """In a new user namespace: be that user and group, who are those outside. Nobody else has a number here."""
    maps = zip(("uid_map", "gid_map"), who, outside, strict=True)
    for name, line in ("setgroups", "deny"), *((name, f"{inner} {outer} 1") for name, inner, outer in maps):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(line)
