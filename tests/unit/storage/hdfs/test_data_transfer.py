"""HDFS's bytes on the wire: hand-made code against protobuf's, and packets that respect checksum chunks."""

import struct

import pytest
from crc32c import crc32c
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
from bmq.storage.hdfs.packets import PacketCutter, packet_prefix


@given(st.integers(0, (1 << 63) - 1))
def test_varint_round_trip(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(b"x" + data + b"y", 1) == (value, 1 + len(data))
    assert decode_varint(data[:-1], 0)[1] == -1


def test_varint_refuses_what_cannot_be_a_length() -> None:
    with pytest.raises(WireError):
        decode_varint(b"\xff" * 11, 0)


@given(
    seqno=st.integers(-2, 1 << 40),
    offset=st.integers(0, 1 << 40),
    length=st.integers(0, 1 << 20),
    crcs=st.integers(0, 5000),
    last=st.booleans(),
    sync=st.booleans(),
)
def test_packet_head_is_what_protobuf_reads(
    seqno: int, offset: int, length: int, crcs: int, last: bool, sync: bool
) -> None:
    head = packet_head(seqno, offset, length, 4 * crcs, last=last, sync=sync)
    total, header_length = struct.unpack_from(">IH", head)
    assert total == 4 + 4 * crcs + length
    assert len(head) == 6 + header_length
    header = pb.PacketHeader.FromString(head[6:])
    assert (header.seqno, header.offset, header.data_length) == (seqno, offset, length)
    assert (header.last, header.sync) == (last, sync)


@given(
    seqno=st.integers(-2, 1 << 40),
    replies=st.lists(st.integers(0, 13), max_size=10),
    nanos=st.integers(0, 1 << 50),
    flags=st.lists(st.integers(0, 511), max_size=10),
)
def test_ack_is_what_protobuf_wrote(seqno: int, replies: list[int], nanos: int, flags: list[int]) -> None:
    ack = pb.PipelineAck(seqno=seqno, reply=replies, downstream_ack_nanos=nanos, flag=flags)
    bad = next((index for index, reply in enumerate(replies) if reply), -1)
    assert decode_ack(ack.SerializeToString()) == (seqno, bad)


@pytest.mark.parametrize("body", [b"\x08", b"\x08\x02\x10\x00\x22\xff", b"\x0d\x00\x00\x00\x00"])
def test_ack_that_is_none(body: bytes) -> None:
    if body.startswith(b"\x08\x02"):
        body = body[:-1] + b"\xff\xff"  # a field longer than its length can say
    with pytest.raises(WireError):
        decode_ack(body)


def test_delimited_and_names() -> None:
    assert delimited(pb.BoolResponse(result=True)) == b"\x02\x08\x01"
    assert status_name(2) == "ERROR_CHECKSUM"
    assert status_name(99) == "status 99"


class Replica:
    """A datanode's rules for packets, as BlockReceiver.receivePacket has them."""

    def __init__(self, chunk_bytes: int, data: bytes = b"") -> None:
        self.chunk_bytes = chunk_bytes
        self.data = data

    def receive(self, packet: bytes) -> None:
        total, header_length = struct.unpack_from(">IH", packet)
        header = pb.PacketHeader.FromString(packet[6 : 6 + header_length])
        body = packet[6 + header_length :]
        assert len(body) == total - 4
        crcs, data = body[: -header.data_length or None], body[len(body) - header.data_length :]
        chunks = [data[at : at + self.chunk_bytes] for at in range(0, len(data), self.chunk_bytes)]
        assert crcs == struct.pack(f">{len(chunks)}I", *map(crc32c, chunks))
        inside = header.offset % self.chunk_bytes
        if inside:
            assert len(data) <= self.chunk_bytes - inside, "begins inside a chunk and crosses its end"
        assert header.offset <= len(self.data) <= header.offset + len(data)
        assert self.data[header.offset :] == data[: len(self.data) - header.offset], "repeats other bytes"
        self.data = self.data[: header.offset] + data


@given(
    chunk_bytes=st.sampled_from([4, 7, 512]),
    packet_bytes=st.sampled_from([1, 64, 1000, 4096]),
    old=st.binary(max_size=30),
    writes=st.lists(st.tuples(st.binary(min_size=1, max_size=700), st.booleans()), max_size=20),
)
def test_cut_packets_rebuild_what_was_written(
    chunk_bytes: int, packet_bytes: int, old: bytes, writes: list[tuple[bytes, bool]]
) -> None:
    """Whatever is written and whenever it is flushed, from the start or appended."""
    replica = Replica(chunk_bytes, old)
    cutter = PacketCutter(chunk_bytes, packet_bytes, len(old))
    written = old
    for seqno, (data, flush) in enumerate(writes):
        cutter.write(memoryview(data))
        written += data
        while cutter.queued >= cutter.packet_bytes or (flush and cutter.queued):
            offset, parts = cutter.cut()
            replica.receive(packet_prefix(seqno, offset, parts, chunk_bytes) + b"".join(parts))
            assert replica.data == written[: cutter.sent]
        assert cutter.queued == cutter.written - cutter.sent
        if flush:
            assert replica.data == written


def test_large_writes_are_not_copied() -> None:
    data = memoryview(bytes(10_000))
    cutter = PacketCutter(512, 4096)
    cutter.write(data[:100])
    cutter.cut()
    cutter.write(data)
    offset, parts = cutter.cut()
    assert offset == 0
    assert [len(part) for part in parts] == [512, 4096 - 512]
    assert isinstance(parts[1], memoryview)
    assert parts[1].obj is data.obj
