"""Packets that respect checksum chunks, and copy no large writes."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.packets import PacketCutter, packet_prefix


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


@pytest.mark.slow
@given(
    chunk_bytes=st.sampled_from([4, 7, 512]),
    packet_bytes=st.sampled_from([1, 64, 1000, 4096]),
    old=st.binary(max_size=30),
    writes=st.lists(st.tuples(st.binary(min_size=1, max_size=700), st.booleans()), max_size=20),
)
def test_packets_give_a_datanode_the_bytes_that_were_written(
    chunk_bytes: int, packet_bytes: int, old: bytes, writes: list[tuple[bytes, bool]]
) -> None:
    """Send whatever is written, whenever it is flushed, from the start or appended."""
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


def test_only_the_repeated_chunk_is_copied() -> None:
    data = memoryview(bytes(10_000))
    cutter = PacketCutter(512, 4096)
    cutter.write(data[:600])
    assert cutter.cut()[0] == 0
    cutter.write(data[:1000])
    cutter.write(data)
    offset, parts = cutter.cut()
    assert offset == 512
    assert [len(part) for part in parts] == [88, 1000, 4096 - 1088]
    assert isinstance(parts[0], bytes)
    for part in parts[1:]:
        assert isinstance(part, memoryview)
        assert part.obj is data.obj
