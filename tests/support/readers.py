"""Other users of the machine who read: what each of them may see of a tree, and POSIX ACLs to refuse them with.

In: a directory, user and groups. Out: by path what stat, open, listing and getxattr gave there, or the errno. They run
as root. ACLs are written as the kernel stores them (linux/posix_acl_xattr.h), so that no package is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NOTE, LABEL = "user.note", "security.mlfs_test"
OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NOBODYS = 0xFFFFFFFF

Entry = tuple[int, int, int]
"""Tag, permissions, id."""


class Reader(NamedTuple):
    """Who reads."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def acl(entries: Iterable[Entry]) -> bytes:
    """The value of the extended attribute."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries, key=_rank))


def _rank(entry: Entry) -> tuple[int, int]:
    return entry[0], entry[2]


def drawn_acl(draw: random.Random, uids: Sequence[int], gids: Sequence[int]) -> bytes:
    """An ACL with named users and groups, each with whatever rights."""

    def bits() -> int:
        return draw.choice((0, 4, 5, 5, 7))

    named = [(USER, bits(), uid) for uid in draw.sample(uids, draw.randint(0, len(uids)))]
    named += [(NAMED_GROUP, bits(), gid) for gid in draw.sample(gids, draw.randint(0, len(gids)))]
    rest = ((OWNER, 7), (GROUP, bits()), (MASK, bits()), (OTHER, bits()))
    return acl([*((tag, rights, NOBODYS) for tag, rights in rest), *named])


def seen_by(reader: Reader, root: Path, paths: Sequence[str]) -> dict[str, Any]:
    """What a reader finds at each path below a directory, which he need not be able to reach."""
    found: dict[str, Any] = as_reader(reader, root, lambda: {path: _found(path) for path in paths})
    return found


def as_reader(reader: Reader, root: Path, look: Callable[[], Any]) -> Any:
    """What `look` finds in a process of the reader's, in that directory; as JSON has it."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receive)
            os.chdir(root)
            os.setgroups(reader.groups)
            os.setgid(reader.gid)
            os.setuid(reader.uid)
            with open(send, "w") as pipe:
                json.dump(look(), pipe)
        finally:
            os._exit(0)
    os.close(send)
    with open(receive) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(told)


def _found(path: str) -> dict[str, Any]:
    calls: dict[str, Callable[[str, str], Any]] = {
        "stat": _stat, "content": _content, "access": _access, "names": _names,
        ACCESS: _attribute, DEFAULT: _attribute, NOTE: _attribute, LABEL: _attribute,
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            found[name] = call(path, name)
        except OSError as error:
            found[name] = errno_of(error)
    return found


def errno_of(error: OSError) -> str:
    return f"{type(error).__name__} {error.errno}"


def _stat(path: str, _name: str) -> list[int]:
    status = os.stat(path)
    return [status.st_mode, status.st_uid, status.st_gid]


def _content(path: str, _name: str) -> Any:
    if os.path.isdir(path):
        return sorted(os.listdir(path))
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:8]


def _access(path: str, _name: str) -> list[bool]:
    return [os.access(path, mode) for mode in (os.R_OK, os.X_OK)]


def _names(path: str, _name: str) -> list[str]:
    return sorted(os.listxattr(path))


def _attribute(path: str, name: str) -> str:
    return os.getxattr(path, name).hex()
