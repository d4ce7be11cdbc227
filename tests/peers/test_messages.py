"""What agents and servers say: everything said is understood, and nothing else is."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.peers import link, messages
from mlfs.peers.messages import MessageKind, Unpacker

NUMBERS = st.integers(0, 2**32 - 1)
LARGE = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)
)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, LARGE, LARGE, LARGE), max_size=50))
def test_records_of_a_message_are_read_as_they_were_written(rows: list[tuple[int, int, int, int, int]]) -> None:
    message = Unpacker().unpack(messages.pack(MessageKind.ASK, np.array(rows, messages.ASK)))
    assert message is not None
    assert message.kind is MessageKind.ASK
    assert message.records is not None
    assert message.records.tolist() == rows


@pytest.mark.parametrize("kind", [MessageKind.ASK, MessageKind.GIVE])
def test_the_most_records_fit_into_the_largest_message(kind: MessageKind) -> None:
    dtype = messages.ASK if kind is MessageKind.ASK else messages.GIVE
    full = np.zeros(messages.most_records(kind), dtype)
    assert len(messages.pack(kind, full)) <= messages.LARGEST_BYTES


@given(JSON, st.integers(0, 3))
def test_news_arrive_whole_however_long_they_are(value: object, times: int) -> None:
    value = [value, "x" * (times * messages.LARGEST_BYTES // 2)]
    unpacker = Unpacker()
    read = [unpacker.unpack(piece) for piece in messages.pack_news(value)]
    assert all(piece is None for piece in read[:-1])
    assert read[-1] is not None
    assert read[-1].news == json.loads(json.dumps(value))


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise: bytes) -> None:
    try:
        message = Unpacker().unpack(noise)
    except messages.BadMessage:
        return
    assert message is None or message.kind in MessageKind


def test_another_version_is_told_in_words() -> None:
    spoilt = bytearray(messages.pack(MessageKind.PING))
    spoilt[0] += 1
    with pytest.raises(messages.BadMessage, match="run the same mlfs on all nodes"):
        Unpacker().unpack(bytes(spoilt))


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 3)), max_size=9000))
def test_packets_of_the_link_carry_all_records_in_their_order(rows: list[tuple[int, int]]) -> None:
    packets = link.pack(link.PacketKind.ENDED, rows)
    assert all(len(packet) <= link.LARGEST_BYTES for packet in packets)
    read = [tuple(row) for packet in packets for row in link.unpack(packet).records.tolist()]
    assert read == rows


@given(st.binary(max_size=200))
def test_noise_is_no_packet(noise: bytes) -> None:
    try:
        packet = link.unpack(noise)
    except link.BadPacket:
        return
    assert packet.kind in link.PacketKind
