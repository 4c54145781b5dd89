"""HDFS's bytes on the wire: hand-made code against protobuf's."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import (
    WireError,
    decode_ack,
    decode_varint,
    delimited,
    encode_varint,
    packet_head,
    status_name,
)


@given(st.integers(0, (1 << 63) - 1))
def test_a_varint_is_decoded_as_it_was_encoded(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(b"x" + data + b"y", 1) == (value, 1 + len(data))
    assert decode_varint(data[:-1], 0)[1] == -1


def test_a_varint_too_long_for_a_length_is_refused() -> None:
    with pytest.raises(WireError):
        decode_varint(b"\xff" * 11, 0)


@pytest.mark.slow
@given(
    seqno=st.integers(-2, 1 << 40),
    offset=st.integers(0, 1 << 40),
    length=st.integers(0, 1 << 20),
    crcs=st.integers(0, 5000),
    last=st.booleans(),
    sync=st.booleans(),
)
def test_protobuf_reads_a_packet_head_as_it_was_made(
    seqno: int, offset: int, length: int, crcs: int, last: bool, sync: bool
) -> None:
    head = packet_head(seqno, offset, length, 4 * crcs, last=last, sync=sync)
    total, header_length = struct.unpack_from(">IH", head)
    assert total == 4 + 4 * crcs + length
    assert len(head) == 6 + header_length
    header = pb.PacketHeader.FromString(head[6:])
    assert (header.seqno, header.offset, header.data_length) == (seqno, offset, length)
    assert (header.last, header.sync) == (last, sync)


@pytest.mark.slow
@given(
    seqno=st.integers(-2, 1 << 40),
    replies=st.lists(st.integers(0, 13), max_size=10),
    nanos=st.integers(0, 1 << 50),
    flags=st.lists(st.integers(0, 511), max_size=10),
)
def test_an_acknowledgement_is_decoded_as_protobuf_encoded_it(
    seqno: int, replies: list[int], nanos: int, flags: list[int]
) -> None:
    ack = pb.PipelineAck(seqno=seqno, reply=replies, downstream_ack_nanos=nanos, flag=flags)
    bad = next((index for index, reply in enumerate(replies) if reply), -1)
    assert decode_ack(ack.SerializeToString()) == (seqno, bad)


@pytest.mark.parametrize("body", [b"\x08", b"\x08\x02\x10\x00\x22\xff", b"\x0d\x00\x00\x00\x00"])
def test_damaged_bytes_are_not_an_acknowledgement(body: bytes) -> None:
    if body.startswith(b"\x08\x02"):
        body = body[:-1] + b"\xff\xff"  # a field longer than its length can say
    with pytest.raises(WireError):
        decode_ack(body)


def test_a_delimited_message_and_the_names_of_statuses() -> None:
    assert delimited(pb.BoolResponse(result=True)) == b"\x02\x08\x01"
    assert status_name(2) == "ERROR_CHECKSUM"
    assert status_name(99) == "status 99"


@pytest.mark.parametrize("body", [b"\x10", b"\x08\x02\x10\x00\x10", b"\x08\x02\x1a\x05ab", b"\x08\x80"])
def test_an_acknowledgement_that_is_cut_off_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="cut off"):
        decode_ack(body)
