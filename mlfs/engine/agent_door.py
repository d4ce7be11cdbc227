"""The door for agents: a socket that only this user can open, and what an agent has to say of itself to be let in.

In: a path, an agent's first packet. Out: a listening socket; a `Hello` whose numbers can be believed.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any, NamedTuple

from mlfs.peers import link

# More than any cluster has, and few enough for what is kept of each node.
MOST_NODES = 1 << 16
MOST_PATIENCE_S = 86_400.0
_MOST_PIDS = 1 << 22  # the kernel's limit


class Hello(NamedTuple):
    """An agent's words about itself.

    Attributes:
        node: its number among so many `nodes`. patience_s: `--peer-timeout`. pid: its process. keeper: the one of
            `mlfs peers`, which runs it.
    """

    node: int
    nodes: int
    patience_s: float
    pid: int
    keeper: int


def hello_of(packet: bytes) -> Hello:
    """The agent's words about itself. Raises: BadPacket for words that none of this version can have said."""
    said = link.unpack(packet).value
    if not isinstance(said, dict) or said.get("protocol") != link.PROTOCOL:
        raise link.BadPacket("it is of another version of mlfs")
    nodes = _whole(said, "nodes", 1, MOST_NODES)
    node = _whole(said, "node", 0, nodes - 1)
    patience_s = said.get("patience_s")
    if isinstance(patience_s, bool) or not isinstance(patience_s, int | float) or not 0 < patience_s <= MOST_PATIENCE_S:
        raise link.BadPacket(f"its patience is no number of seconds up to {MOST_PATIENCE_S:g}")
    pid, keeper = (_whole(said, name, 0, _MOST_PIDS) for name in ("pid", "keeper"))
    return Hello(node, nodes, float(patience_s), pid, keeper)


def _whole(said: dict[str, Any], name: str, lowest: int, highest: int) -> int:
    number = said.get(name)
    if type(number) is not int or not lowest <= number <= highest:
        raise link.BadPacket(f"its {name} is no whole number from {lowest} to {highest}")
    return number


def refusal(why: str, hint: str = "") -> bytes:
    """The answer to an agent that is not let in."""
    return link.pack_json(link.PacketKind.HELLO, {"refused": why} | ({"hint": hint} if hint else {}))


def listen(path: str) -> socket.socket:
    """A socket that only this user can connect to. Raises: OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    try:
        with link.short_name(path) as name:
            listener.bind(name)
        listener.listen(8)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener
