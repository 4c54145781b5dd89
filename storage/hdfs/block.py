"""Reads of a block straight from its datanodes (op 81; BlockSender), open ones above all, checksums verified.

What an open block holds differs from node to node; each shows what has passed through it as acknowledged
(``getReplicaVisibleLength``).  A read is bounded by what the node it goes to shows.  The answer begins on the chunk
boundary at or before the wanted position.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bmq.storage.filesystem import CorruptData, StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.client import HdfsClient
from bmq.storage.hdfs.datanode import NodeUnreachable, NoReplica, node_name
from bmq.storage.hdfs.wire import (
    CHECKSUM_CRC32C,
    OP_READ_BLOCK,
    STATUS_CHECKSUM_OK,
    STATUS_SUCCESS,
    WireError,
    chunk_crcs,
    delimited,
    operation,
    status_name,
    unpack_crcs,
)

_CHECKSUM_NULL = 0
_CHECKSUM_CRC32 = 1
_STREAM_BYTES = 1 << 20
_PACKET_BYTES_MAX = 16 << 20  # PacketReceiver.MAX_PACKET_SIZE
_MESSAGE_BYTES_MAX = 1 << 20
_LENGTHS = struct.Struct(">IH")


class ReplicaFailed(Exception):
    """This replica could not be read; another may do.  Never leaves this package."""


class BadChecksum(ReplicaFailed):
    """This replica's bytes are not what was written."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a replica, and the chunk its checksums cover."""

    data: bytes
    chunk_bytes: int


async def read_block(client: HdfsClient, located: pb.LocatedBlock, offset: int, length: int, *, is_open: bool) -> bytes:
    """Up to ``length`` bytes at ``offset`` of the block, from the first replica that gives them right.

    CorruptData when all that answered were wrong, StorageUnavailable when none answered.  An open block that nobody
    has a replica of yet is empty.
    """
    failures: list[Exception] = []
    for node in _by_trust(client, located):
        try:
            if is_open:
                shown = await client.datanodes.visible_length(node.id, located.block, client.settings.read_timeout_s)
                wanted = min(length, shown - offset)
            else:
                wanted = min(length, located.block.length - offset)
            if wanted <= 0:
                return b""
            return (await read_replica(client, node.id, located.block, located.token, offset, wanted)).data
        except NodeUnreachable as error:
            client.suspect([node_name(node.id)])
            failures.append(error)
        except (ReplicaFailed, NoReplica) as error:
            failures.append(error)
    if is_open and failures and all(isinstance(error, NoReplica) for error in failures):
        return b""
    raise _unreadable(located, failures)


async def visible_length(client: HdfsClient, located: pb.LocatedBlock) -> int:
    """The smallest length that the reachable replicas of an open block show; StorageUnavailable if none answers.

    Nodes found silent a moment ago are asked only when there is no other: a fence reads right after it met them.
    """

    async def shown(node: pb.Node) -> int | Exception:
        try:
            return await client.datanodes.visible_length(node.id, located.block, client.settings.probe_timeout_s)
        except (NodeUnreachable, NoReplica) as error:
            return error

    suspected = client.suspected()
    trusted = [node for node in located.nodes if node_name(node.id) not in suspected]
    answers = await asyncio.gather(*map(shown, trusted or located.nodes))
    lengths = [answer for answer in answers if isinstance(answer, int)]
    if lengths:
        return min(lengths)
    failures = [answer for answer in answers if isinstance(answer, Exception)]
    if failures and all(isinstance(error, NoReplica) for error in failures):
        return 0  # allocated, and no pipeline opened yet
    raise _unreadable(located, failures)


async def replica_chunk_bytes(client: HdfsClient, located: pb.LocatedBlock) -> int:
    """The checksum chunk that a finished block was written with: its last byte is read to hear of it."""
    failures: list[Exception] = []
    for node in _by_trust(client, located):
        try:
            last = located.block.length - 1
            return (await read_replica(client, node.id, located.block, located.token, last, 1)).chunk_bytes
        except ReplicaFailed as error:
            failures.append(error)
    raise _unreadable(located, failures)


async def read_replica(
    client: HdfsClient, node: pb.NodeId, block: pb.Block, token: pb.Token, offset: int, length: int
) -> Piece:
    """Exactly ``length`` bytes from one datanode; ReplicaFailed says why not."""
    reading = _Reading(client, node)
    try:
        async with asyncio.timeout(client.settings.read_timeout_s) as limit:
            return await reading.run(block, token, offset, length, limit)
    except TimeoutError as error:
        client.suspect([node_name(node)])
        raise ReplicaFailed(f"{node_name(node)}: read timed out") from error
    except (OSError, asyncio.IncompleteReadError, DecodeError, WireError) as error:
        raise ReplicaFailed(f"{node_name(node)}: {error!r}") from error
    finally:
        reading.close()


class _Reading:
    """One op 81 on a connection of its own.  The time-out is of each step: every packet puts it off."""

    def __init__(self, client: HdfsClient, node: pb.NodeId) -> None:
        self._host = client.datanodes.host(node)
        self._node = node
        self._client_name = client.holder
        self._step_s = client.settings.read_timeout_s
        self._writer: asyncio.StreamWriter | None = None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    async def run(self, block: pb.Block, token: pb.Token, offset: int, length: int, limit: asyncio.Timeout) -> Piece:
        reader, self._writer = await asyncio.open_connection(self._host, self._node.data_port, limit=_STREAM_BYTES)
        header = pb.OpHeader(base=pb.OpHeader.Base(block=block, token=token), client=self._client_name)
        request = pb.ReadBlock(header=header, offset=offset, length=length, send_checksums=True)
        self._writer.write(operation(OP_READ_BLOCK, request))
        response = pb.BlockOpResponse.FromString(await _read_delimited(reader))
        if response.status != STATUS_SUCCESS:
            raise ReplicaFailed(f"{node_name(self._node)}: {status_name(response.status)} {response.message}")
        checksum = response.read_info.checksum
        start = response.read_info.chunk_offset
        data = await self._read_packets(reader, checksum, start, offset + length - start, limit)
        self._writer.write(delimited(pb.ReadStatus(status=STATUS_CHECKSUM_OK)))
        if start + len(data) < offset + length:
            raise ReplicaFailed(f"{node_name(self._node)}: {len(data)} bytes from {start}, {length} wanted at {offset}")
        skip = offset - start
        if skip or len(data) > length:
            data = data[skip : skip + length]
        return Piece(data, checksum.chunk_bytes)

    async def _read_packets(
        self, reader: asyncio.StreamReader, checksum: pb.Checksum, start: int, length: int, limit: asyncio.Timeout
    ) -> bytes:
        crcs_of = _crc_function(checksum)
        loop = asyncio.get_running_loop()
        parts: list[memoryview] = []
        size = 0
        while True:
            packet_bytes, header_bytes = _LENGTHS.unpack(await reader.readexactly(6))
            if packet_bytes > _PACKET_BYTES_MAX:
                raise WireError(f"a packet of {packet_bytes} bytes")
            header = pb.PacketHeader.FromString(await reader.readexactly(header_bytes))
            body = memoryview(await reader.readexactly(packet_bytes - 4))
            limit.reschedule(loop.time() + self._step_s)
            if header.last and not header.data_length:
                return b"".join(parts)
            if header.offset != start + size or size >= length + checksum.chunk_bytes:
                raise WireError(f"a packet at {header.offset}, {start + size} expected")
            crc_bytes = len(body) - header.data_length
            data = body[crc_bytes:]
            if crcs_of is not None and list(unpack_crcs(body[:crc_bytes])) != crcs_of(data):
                raise BadChecksum(f"{node_name(self._node)}: bad checksum near {header.offset}")
            parts.append(data)
            size += len(data)


def _crc_function(checksum: pb.Checksum) -> Callable[[memoryview], list[int]] | None:
    """Files of other writers may have other checksums, or none."""
    chunk_bytes = checksum.chunk_bytes
    if checksum.type == CHECKSUM_CRC32C:
        return lambda data: chunk_crcs(data, chunk_bytes)
    if checksum.type == _CHECKSUM_CRC32:
        return lambda data: [zlib.crc32(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    if checksum.type == _CHECKSUM_NULL:
        return None
    raise WireError(f"checksum type {checksum.type}")


async def _read_delimited(reader: asyncio.StreamReader) -> bytes:
    length = shift = 0
    while True:
        (byte,) = await reader.readexactly(1)
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if length > _MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {length} bytes")
    return await reader.readexactly(length)


def _by_trust(client: HdfsClient, located: pb.LocatedBlock) -> list[pb.Node]:
    """The NameNode's order (nearest first), those that failed lately last."""
    suspected = client.suspected()
    return sorted(located.nodes, key=lambda node: node_name(node.id) in suspected)


def _unreadable(located: pb.LocatedBlock, failures: list[Exception]) -> StorageError:
    reasons = "; ".join(map(str, failures)) or "the NameNode knows no replica"
    kind = CorruptData if located.corrupt or any(isinstance(f, BadChecksum) for f in failures) else StorageUnavailable
    return kind(f"block {located.block.id}: {reasons}")
