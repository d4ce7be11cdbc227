"""The messages between the server of a mount and the agent of its node, over a Unix socket of the user's own.

In: records or JSON. Out: packets, and back. A packet is whole or not there (SOCK_SEQPACKET), so a side that dies leaves
no half ones. The bytes of samples lie in memory that both have mapped, made by the server and handed over with HELLO:
what is named by an offset lies in the landing memory.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[Any]

PROTOCOL = 4
LARGEST_BYTES = 1 << 16
MOST_FDS = 64


class PacketKind(IntEnum):
    """The first number of a packet: how the rest is read."""

    HELLO = 1
    """JSON, each side's first packet. The server's brings descriptors: landing memory, catalogue, RAM's files, SSDs."""
    FETCH = 2
    """Server: get these samples from peers."""
    ENDED = 3
    """Agent: what became of them."""
    WANTED = 4
    """Agent: peers want these samples, and they lie nowhere where the agent finds them by itself."""
    READY = 5
    """Server: what became of those."""
    FREE = 6
    """Agent: what lay there for a peer was copied."""
    LOST = 7
    """Agent: these nodes do not answer, or left."""
    BACK = 8
    """Agent: these nodes answer again."""
    TELL = 9
    """Server: JSON for the server of another node, or of all others."""
    TOLD = 10
    """Agent: JSON from the server of another node."""
    CHECK = 11
    """Server: are these nodes there? One that does not answer is LOST."""
    JOINED = 12
    """Server: all nodes have joined, and plan alike: so many are peers of this one."""
    COUNTS = 13
    """Agent: JSON, its figures."""


class Ended(IntEnum):
    """The ends of a sample that was to be fetched."""

    HERE = 0
    """It has landed, checked."""
    MISSING = 1
    """The peer does not have it, or what came was not what was asked for."""
    LOST = 2
    """The peer does not answer. The landing memory of the sample may still be written to."""
    OFF = 3
    """A fetch that ended LOST: nothing is written there any more."""


class Ready(IntEnum):
    """The ends of a sample that a peer wants."""

    LOOK = 0
    """It stands in the catalogue now."""
    MISSING = 1
    """This node does not have it."""
    LIES = 2
    """It lies in the landing memory."""


def layout_of(dtype: np.dtype[Any]) -> struct.Struct:
    """The layout of a record of plain fields, for the module struct."""
    fields = [dtype[name] for name in dtype.names or ()]
    return struct.Struct("<" + "".join({"u4": "I", "u8": "Q", "i8": "q"}[field.str[1:]] for field in fields))


FETCH = np.dtype(
    [("number", "<u4"), ("node", "<u4"), ("sample", "<u4"), ("pad", "<u4"),
     ("size_bytes", "<i8"), ("mtime_ns", "<i8"), ("ctime_ns", "<i8"), ("offset", "<u8")]
)  # fmt: skip
ENDED = np.dtype([("number", "<u4"), ("end", "<u4")])
WANTED = np.dtype(
    [("token", "<u4"), ("sample", "<u4"), ("size_bytes", "<i8"), ("mtime_ns", "<i8"), ("ctime_ns", "<i8")]
)
READY = np.dtype([("token", "<u4"), ("how", "<u4"), ("offset", "<u8"), ("size_bytes", "<i8")])
FREE = np.dtype([("offset", "<u8"), ("size_bytes", "<i8")])
NODE = np.dtype([("node", "<u4")])
PEERS = np.dtype([("peers", "<u4")])
_RECORDS = {
    PacketKind.FETCH: FETCH,
    PacketKind.ENDED: ENDED,
    PacketKind.WANTED: WANTED,
    PacketKind.READY: READY,
    PacketKind.FREE: FREE,
    PacketKind.LOST: NODE,
    PacketKind.BACK: NODE,
    PacketKind.CHECK: NODE,
    PacketKind.JOINED: PEERS,
}
# The same for packing: an array costs more than the few records of most packets.
_LAYOUTS = {kind: layout_of(dtype) for kind, dtype in _RECORDS.items()}


class Packet(NamedTuple):
    """A packet: records, or the value of its JSON."""

    kind: PacketKind
    records: Records
    value: Any = None


class BadPacket(Exception):
    """A packet that the other side cannot have sent, were it of this version."""


def pack(kind: PacketKind, records: Sequence[tuple[int, ...]]) -> list[bytes]:
    """Pack records into as many packets as that takes."""
    record = _LAYOUTS[kind]
    step = (LARGEST_BYTES - 1) // record.size
    head = bytes([kind])
    return [
        head + b"".join(starmap(record.pack, records[start : start + step])) for start in range(0, len(records), step)
    ]


def pack_json(kind: PacketKind, value: Any) -> bytes:
    """A packet of a JSON value. Raises BadPacket for one that is too large."""
    packet = bytes([kind]) + json.dumps(value).encode()
    if len(packet) > LARGEST_BYTES:
        raise BadPacket(f"{len(packet)} bytes of JSON are too many for a packet")
    return packet


def unpack(data: bytes) -> Packet:
    """The content of a packet. Raises BadPacket."""
    try:
        kind = PacketKind(data[0])
        if kind in (PacketKind.HELLO, PacketKind.TELL, PacketKind.TOLD, PacketKind.COUNTS):
            return Packet(kind, np.empty(0, NODE), json.loads(data[1:]))
        return Packet(kind, np.frombuffer(data[1:], _RECORDS[kind]))
    except (IndexError, ValueError) as error:
        raise BadPacket(str(error)) from None


@contextmanager
def short_name(path: str) -> Iterator[str]:
    """A name for a socket's path that fits into an address, which takes 107 bytes. Raises: OSError."""
    directory, name = os.path.split(path)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def send_with_fds(connection: socket.socket, packet: bytes, fds: Sequence[int]) -> None:
    socket.send_fds(connection, [packet], list(fds))


def receive_with_fds(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A packet and the descriptors that came with it, which belong to the caller."""
    data, fds, _, _ = socket.recv_fds(connection, LARGEST_BYTES, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    return data, fds
