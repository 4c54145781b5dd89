"""The cutting of written bytes into packets that respect checksum chunks.  Pure: no I/O, no clock.

A checksum covers a chunk.  A flush in the middle of one leaves a partial chunk behind; the next packet then begins at
that chunk's start and repeats its bytes, and the datanode overwrites the checksum (BlockReceiver.receivePacket).  If
the chunk's first bytes are not known (an append), packets instead begin where the last one ended and may not cross the
chunk's end.

Invariants: ``queued == written - sent``; ``_tail`` holds the bytes from the last chunk boundary to ``sent``, or nothing
if that is a boundary or they are not known.
"""

from __future__ import annotations

from collections import deque

from bmq.storage.hdfs.data_transfer import CRC_BYTES, chunk_crcs, pack_crcs, packet_head

Data = bytes | memoryview


class PacketCutter:
    """The bytes of one block between ``write`` and the wire.  It keeps views, not copies.

    ``written`` and ``sent`` are positions in the block, both ``length`` at first; ``queued`` bytes lie between them.
    """

    def __init__(self, chunk_bytes: int, packet_bytes: int, length: int = 0) -> None:
        self.chunk_bytes = chunk_bytes
        self.packet_bytes = max(chunk_bytes, packet_bytes // chunk_bytes * chunk_bytes)
        self.written = self.sent = length
        self.queued = 0
        self._queue: deque[memoryview] = deque()
        self._tail = b""

    def write(self, view: memoryview) -> None:
        """Queue bytes, which must not change until they are acknowledged."""
        self._queue.append(view)
        self.queued += len(view)
        self.written += len(view)

    def clear(self) -> None:
        """Drop the queue, and with it the caller's buffers."""
        self._queue.clear()
        self.queued = 0
        self._tail = b""

    def cut(self) -> tuple[int, list[Data]]:
        """Return the next packet: its offset in the block, and its data in parts.

        The parts begin on chunk boundaries (or lie within one chunk).  The packet is as large as allowed, and ends on a
        chunk boundary if more is queued.
        """
        inside = self.sent % self.chunk_bytes
        if inside and not self._tail:
            offset = self.sent
            parts = [self._take(min(self.queued, self.chunk_bytes - inside))]
        else:
            offset = self.sent - inside
            parts = self._with_tail(min(self.queued, self.packet_bytes - inside))
        self.sent = offset + sum(map(len, parts))
        self._keep_tail(parts[-1])
        return offset, parts

    def _with_tail(self, size: int) -> list[Data]:
        """Take ``size`` bytes, the partial chunk first.

        That chunk is copied with the bytes that complete it; the rest is not copied if it lies in one buffer.
        """
        if not self._tail:
            return [self._take(size)]
        missing = min(size, self.chunk_bytes - len(self._tail))
        parts: list[Data] = [self._tail + bytes(self._take(missing))]
        if size > missing:
            parts.append(self._take(size - missing))
        return parts

    def _keep_tail(self, last_part: Data) -> None:
        inside = self.sent % self.chunk_bytes
        # A part shorter than that began inside its chunk: the chunk's first bytes are not known here.
        self._tail = bytes(last_part[-inside:]) if 0 < inside <= len(last_part) else b""

    def _take(self, size: int) -> Data:
        self.queued -= size
        first = self._queue[0]
        if len(first) == size:
            return self._queue.popleft()
        if len(first) > size:
            self._queue[0] = first[size:]
            return first[:size]
        pieces = []
        while size:
            first = self._queue.popleft()
            if len(first) > size:
                self._queue.appendleft(first[size:])
                first = first[:size]
            pieces.append(first)
            size -= len(first)
        return b"".join(pieces)


def packet_prefix(
    seqno: int, offset: int, parts: list[Data], chunk_bytes: int, *, last: bool = False, sync: bool = False
) -> bytes:
    """Return the bytes of a packet that come before its data: lengths, header, checksums."""
    crcs = [crc for part in parts for crc in chunk_crcs(part, chunk_bytes)]
    length = sum(map(len, parts))
    return packet_head(seqno, offset, length, CRC_BYTES * len(crcs), last=last, sync=sync) + pack_crcs(crcs)
