"""The cutting of written bytes into packets that respect checksum chunks.  Pure: no I/O, no clock.

A checksum covers a chunk.  A flush in the middle of a chunk leaves a partial chunk behind.  The next packet then begins
at the start of this chunk and repeats its bytes, and the datanode overwrites the checksum
(BlockReceiver.receivePacket).  If the chunk's first bytes are not known (an append), packets instead begin where the
last one ended and may not cross the chunk's end.

Invariants: ``queued == written - sent``; ``_tail`` holds the bytes from the last chunk boundary to ``sent``, or nothing
if that is a boundary or they are not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from crc32c import crc32c

from bmq.storage.hdfs.data_transfer import CRC_BYTES, pack_crcs, packet_head

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
        """Return the next packet: its offset in the block, and its data in parts, one after another.

        It begins on a chunk boundary (or lies within one chunk), is as large as allowed, and ends on a chunk boundary
        if more is queued.  Only the partial chunk that it repeats is a copy.
        """
        inside = self.sent % self.chunk_bytes
        parts: list[Data] = []
        if inside and not self._tail:
            offset = self.sent
            self._take(min(self.queued, self.chunk_bytes - inside), parts)
        else:
            offset = self.sent - inside
            if self._tail:
                parts.append(self._tail)
            self._take(min(self.queued, self.packet_bytes - inside), parts)
        self._keep_tail(offset, parts)
        return offset, parts

    def _take(self, size: int, parts: list[Data]) -> None:
        """Move ``size`` bytes of the queue to ``parts``, as views."""
        self.queued -= size
        self.sent += size
        queue = self._queue
        while size:
            first = queue[0]
            if len(first) > size:
                queue[0] = first[size:]
                first = first[:size]
            else:
                queue.popleft()
            parts.append(first)
            size -= len(first)

    def _keep_tail(self, offset: int, parts: list[Data]) -> None:
        missing = self.sent % self.chunk_bytes
        if missing > self.sent - offset:  # the packet began inside its chunk, whose first bytes are not known here
            missing = 0
        kept: list[Data] = []
        for part in reversed(parts):
            if not missing:
                break
            kept.append(part[-missing:])
            missing -= len(kept[-1])
        self._tail = b"".join(reversed(kept))


def packet_prefix(
    seqno: int, offset: int, parts: list[Data], chunk_bytes: int, *, last: bool = False, sync: bool = False
) -> bytes:
    """Return the bytes of a packet that come before its data: lengths, header, checksums."""
    crcs = crcs_over(parts, chunk_bytes)
    length = sum(map(len, parts))
    return packet_head(seqno, offset, length, CRC_BYTES * len(crcs), last=last, sync=sync) + pack_crcs(crcs)


def crcs_over(parts: Iterable[Data], chunk_bytes: int) -> list[int]:
    """Return a CRC-32C for each chunk of the data, which is in parts and begins on a chunk boundary.

    The last chunk may be short; so data within one chunk may begin anywhere.
    """
    crcs = []
    crc, room = 0, chunk_bytes  # of the chunk that has begun, and the bytes that it lacks
    for part in parts:
        length = len(part)
        if length < room:
            crc = crc32c(part, crc)
            room -= length
            continue
        start, stop = 0, room
        while stop <= length:
            crcs.append(crc32c(part[start:stop], crc))
            crc, start, stop = 0, stop, stop + chunk_bytes
        crc, room = crc32c(part[start:]), stop - length
    if room < chunk_bytes:
        crcs.append(crc)
    return crcs
