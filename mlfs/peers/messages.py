"""The messages between agents: requests for samples, answers, signs of life.

Pure. In: records as numpy arrays. Out: the bytes of one message, and back. A message is a head of eight bytes, its kind
and how many records follow, and the records. The bytes of samples travel apart from messages (mlfs.peers.transport).
Whatever a peer sends is checked before it is believed: a message that does not parse raises BadMessage.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[Any]

# Raised with each change of what follows: agents of different versions do not understand each other.
PROTOCOL = 4
_HEAD = struct.Struct("<HBxI")  # protocol, kind, records
# A message fits into what MPI sends without asking the receiver first, and into the buffers that wait for it.
LARGEST_BYTES = 1 << 16
_NEWS_BYTES = LARGEST_BYTES - _HEAD.size


class MessageKind(IntEnum):
    """The first number of a message: how the rest is read."""

    ASK = 1
    """Please give these samples."""
    GIVE = 2
    """What becomes of samples that were asked for."""
    ALIVE = 3
    """The sender lives; it is said where nothing else was."""
    PING = 6
    """Say ALIVE."""
    NEWS = 4
    """Something for the servers, in JSON: who a node is, which jobs it has."""
    LEAVE = 5
    """The sender leaves."""
    DONE = 7
    """The sender's COMMAND is done: it goes on giving what it has until all are done. It is answered by ALIVE."""


ASK = np.dtype([("number", "<u4"), ("sample", "<u4"), ("size_bytes", "<i8"), ("mtime_ns", "<i8"), ("ctime_ns", "<i8")])
"""A request: its number at the asker, the sample, and the version that is wanted."""
GIVE = np.dtype([("number", "<u4"), ("missing", "<u4"), ("checksum", "<u8")])
"""An answer: the bytes come, with this checksum (mlfs.places.checksum); or, missing, they do not."""
_RECORDS = {MessageKind.ASK: ASK, MessageKind.GIVE: GIVE}


class BadMessage(Exception):
    """A message that an agent of this version cannot have sent."""


class Message(NamedTuple):
    """A message: records of an ASK or GIVE, or the JSON of a NEWS."""

    kind: MessageKind
    records: Records | None = None
    news: Any = None


def most_records(kind: MessageKind) -> int:
    """How many records of a kind fit into one message."""
    return _NEWS_BYTES // _RECORDS[kind].itemsize


def pack(kind: MessageKind, records: Records | None = None) -> bytes:
    """A message of records, or of none."""
    if records is None:
        return _HEAD.pack(PROTOCOL, kind, 0)
    assert len(records) <= most_records(kind)
    return _HEAD.pack(PROTOCOL, kind, len(records)) + records.tobytes()


def pack_news(value: Any) -> list[bytes]:
    """Messages that carry a JSON value together, in their order; the last one says that it is the last."""
    text = json.dumps(value).encode()
    pieces = [text[start : start + _NEWS_BYTES] for start in range(0, len(text), _NEWS_BYTES)]
    last = len(pieces) - 1
    return [_HEAD.pack(PROTOCOL, MessageKind.NEWS, number == last) + piece for number, piece in enumerate(pieces)]


class Unpacker:
    """Reads the messages of one peer, in their order."""

    def __init__(self) -> None:
        self._news = bytearray()

    def unpack(self, data: bytes | bytearray | memoryview) -> Message | None:
        """The message; None for a piece of news that goes on. Raises BadMessage."""
        if len(data) < _HEAD.size:
            raise BadMessage(f"{len(data)} bytes are no message")
        protocol, number, count = _HEAD.unpack_from(data)
        if protocol != PROTOCOL:
            raise BadMessage(f"it speaks version {protocol}, not {PROTOCOL}: run the same mlfs on all nodes")
        try:
            kind = MessageKind(number)
        except ValueError:
            raise BadMessage(f"there is no kind {number} of message") from None
        body = memoryview(data)[_HEAD.size :]
        if kind is MessageKind.NEWS:
            return self._piece(body, last=bool(count))
        dtype = _RECORDS.get(kind)
        if len(body) != (count * dtype.itemsize if dtype is not None else 0):
            raise BadMessage(f"a message of {len(body)} bytes says that it has {count} records")
        return Message(kind, None if dtype is None else np.frombuffer(body, dtype))

    def _piece(self, body: memoryview, last: bool) -> Message | None:
        self._news += body
        if not last:
            return None
        text, self._news = bytes(self._news), bytearray()
        try:
            return Message(MessageKind.NEWS, news=json.loads(text))
        except ValueError as error:
            raise BadMessage(f"news that is no JSON: {error}") from None
