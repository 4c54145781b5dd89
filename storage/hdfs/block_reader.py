"""Reads of a block straight from its datanodes (op 81; BlockSender), open ones above all, checksums verified.

The length of an open block differs from node to node: each shows the bytes that have passed through it as acknowledged
(``getReplicaVisibleLength``).  A read is bounded by the length that its node shows.  The response begins on the chunk
boundary at or before the requested position.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from google.protobuf.message import DecodeError

from bmq.core.descriptors import FAILURES
from bmq.storage.filesystem import CorruptData, StorageError, StorageUnavailable, Unsupported
from bmq.storage.fresh_memory import cut
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.blocking_block_reader import BlockRange, BulkRead, ReadRefused, WrongChecksum
from bmq.storage.hdfs.channel import Channel
from bmq.storage.hdfs.checksums import crc_function
from bmq.storage.hdfs.context import HdfsClient, with_another_key
from bmq.storage.hdfs.data_transfer import (
    OP_READ_BLOCK,
    STATUS_ACCESS_TOKEN,
    STATUS_CHECKSUM_OK,
    STATUS_SUCCESS,
    WireError,
    delimited,
    operation,
    status_name,
    unpack_crcs,
)
from bmq.storage.hdfs.datanode import NodeUnreachable, NoReplica, ReplicaFailed, ReplicaNotReady, node_name
from bmq.storage.hdfs.handshake import (
    MESSAGE_BYTES_MAX,
    Handshake,
    HandshakeFailed,
    ProtectionDemanded,
    TokenRefused,
)
from bmq.storage.hdfs.patience import wait_for_enough
from bmq.storage.hdfs.protected_transport import protect

_STREAM_BYTES = 1 << 20
_PACKET_BYTES_MAX = 16 << 20  # PacketReceiver.MAX_PACKET_SIZE
_MESSAGE_BYTES_MAX = 1 << 20
_LENGTH_BITS_MAX = 28
_LENGTHS = struct.Struct(">IH")


T = TypeVar("T")


class BadChecksum(ReplicaFailed):
    """A replica's bytes do not have the checksum that came with them."""


class NotLetIn(ReplicaFailed):
    """The replica's datanode refuses the handshake, or breaks its rules."""


class OtherProtection(NotLetIn):
    """The replica's datanode demands a protection that this client does not have."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a replica, and the size of the chunks that its checksums cover."""

    data: bytes
    chunk_bytes: int


Shown = dict[str, int]
"""Bytes of an open block that its nodes, by name, were found to show.  They show no less later, unless the block is cut
back to what was acknowledged: then the node refuses to read behind that."""


async def read_block(
    client: HdfsClient,
    located: pb.LocatedBlock,
    offset: int,
    length: int,
    *,
    is_open: bool,
    shown: Shown | None = None,
) -> bytes:
    """Return up to ``length`` bytes at ``offset`` of the block, from the first replica that returns them undamaged.

    Raises CorruptData if none did and a replica was damaged, Unsupported if every datanode demands a protection that
    this client does not have, and StorageUnavailable otherwise.  An open block is empty only if no node has a replica
    of it and the NameNode has no length: it has one before anything is acknowledged (rule 1).  With ``shown``, the read
    asks a node of an open block for its length only for bytes past the length in ``shown``.  It adds the node's answer
    to ``shown``.
    """

    async def take(node: pb.NodeId, wanted: int) -> bytes:
        return (await read_replica(client, node, located.block, located.token, offset, wanted)).data

    return await _from_any_replica(client, located, offset, length, take, is_open=is_open, shown=shown) or b""


async def read_block_into(
    client: HdfsClient,
    located: pb.LocatedBlock,
    offset: int,
    parts: Sequence[memoryview],
    *,
    is_open: bool,
    shown: Shown | None = None,
) -> int:
    """Read as ``read_block``, but to the beginning of ``parts``, by a thread, and return how many bytes it is.

    ``parts`` must not be used until this returns.  After a failure or a cancellation they may still be written to for a
    while.
    """

    async def take(node: pb.NodeId, wanted: int) -> int:
        await _read_replica_into(client, node, located, offset, cut(parts, 0, wanted))
        return wanted

    length = sum(map(len, parts))
    return await _from_any_replica(client, located, offset, length, take, is_open=is_open, shown=shown) or 0


async def read_block_by_thread(
    client: HdfsClient,
    located: pb.LocatedBlock,
    offset: int,
    length: int,
    *,
    is_open: bool,
    shown: Shown | None = None,
) -> bytes:
    """Read as ``read_block``, for many bytes at once: a thread receives them and checks the checksums."""

    async def take(node: pb.NodeId, wanted: int) -> bytes:
        out = io.BytesIO()  # unlike a bytearray's, its bytes become an object of their own without a copy
        out.seek(wanted - 1)
        out.write(b"\0")
        place = out.getbuffer()
        await _read_replica_into(client, node, located, offset, [place])
        place.release()
        return out.getvalue()

    return await _from_any_replica(client, located, offset, length, take, is_open=is_open, shown=shown) or b""


async def _from_any_replica(
    client: HdfsClient,
    located: pb.LocatedBlock,
    offset: int,
    length: int,
    take: Callable[[pb.NodeId, int], Awaitable[T]],
    *,
    is_open: bool,
    shown: Shown | None = None,
) -> T | None:
    """Return the result of ``take`` for the first replica for which it succeeds; None if there are no such bytes."""
    failures: list[Exception] = []
    bad: list[pb.Node] = []
    closed: list[str] = []
    for node in _by_trust(client, located):
        try:
            if is_open:
                visible = (shown or {}).get(node_name(node.id), 0)
                if visible < offset + length:
                    visible = await _shown_length(client, node, located, client.settings.read_timeout_s)
                    if shown is not None:
                        shown[node_name(node.id)] = visible
                wanted = min(length, visible - offset)
            else:
                wanted = min(length, located.block.length - offset)
            if wanted <= 0:
                return None
            taken = await take(node.id, wanted)
            if bad:
                client.bad_replicas.report(located, bad)
            client.suspect(closed)  # another datanode has let this client in: the fault is theirs
            return taken
        except NodeUnreachable as error:
            client.suspect([node_name(node.id)])
            failures.append(error)
        except BadChecksum as error:
            if not is_open:  # a fence checks the replicas of an open block
                bad.append(node)
            failures.append(error)
        except NotLetIn as error:
            closed.append(node_name(node.id))
            failures.append(error)
        except (ReplicaFailed, NoReplica, ReplicaNotReady, TokenRefused) as error:
            failures.append(error)
    if is_open and _is_unwritten(located, failures):
        return None
    if bad and (len(bad) < len(located.nodes) or len(located.nodes) == 1):
        client.bad_replicas.report(located, bad)
    raise _unreadable(client, located, failures)


async def visible_length(client: HdfsClient, located: pb.LocatedBlock) -> int:
    """Return the smallest length that the reachable replicas of an open block show.

    Replicas that need more than ``probe_timeout_s`` are left out once another replica has responded; a datanode that
    was just started takes a second for its first log-in.  Raises StorageUnavailable if none responds within
    ``read_timeout_s``.  Nodes found silent a moment ago are asked only if there is no other: a fence reads right after
    it has found them.
    """
    settings = client.settings

    async def shown(node: pb.Node) -> int | Exception:
        try:
            return await _shown_length(client, node, located, settings.read_timeout_s)
        except (NodeUnreachable, NoReplica, ReplicaNotReady, TokenRefused) as error:
            return error

    suspected = client.suspected()
    nodes = [node for node in located.nodes if node_name(node.id) not in suspected] or list(located.nodes)
    if not nodes:
        raise _unreadable(client, located, [])
    responses = await wait_for_enough(
        [asyncio.create_task(shown(node)) for node in nodes],
        lambda response: isinstance(response, int),
        enough=1,
        soon_s=settings.probe_timeout_s,
        late_s=settings.read_timeout_s,
    )
    lengths = [response for response in responses if isinstance(response, int)]
    if lengths:
        return min(lengths)
    failures = [
        response if isinstance(response, Exception) else NodeUnreachable(f"{node_name(node.id)}: no response")
        for node, response in zip(nodes, responses, strict=True)
    ]
    if _is_unwritten(located, failures):
        return 0
    raise _unreadable(client, located, failures)


async def _shown_length(client: HdfsClient, node: pb.Node, located: pb.LocatedBlock, timeout_s: float) -> int:
    """Return the bytes of an open block that one node shows.

    Raises what ``Datanodes.visible_length`` raises, and ReplicaNotReady also for a replica that is shorter than the
    NameNode's length of the block.
    """
    shown = await client.datanodes.visible_length(node.id, located.block, located.token, timeout_s)
    if shown < located.block.length:
        raise ReplicaNotReady(f"{node_name(node.id)}: {shown} of {located.block.length} acknowledged bytes")
    return shown


def _is_unwritten(located: pb.LocatedBlock, failures: list[Exception]) -> bool:
    """Return whether an open block was allocated and no pipeline opened yet.

    The nodes have no replica of it then, and nothing was ever acknowledged, since the NameNode would have the length.
    """
    return located.block.length == 0 and bool(failures) and all(isinstance(error, NoReplica) for error in failures)


async def replica_chunk_bytes(client: HdfsClient, located: pb.LocatedBlock) -> int:
    """Return the size in bytes of a finished block's checksum chunks; its last byte is read to get it.

    Raises CorruptData, Unsupported or StorageUnavailable as ``read_block``.
    """
    failures: list[Exception] = []
    for node in _by_trust(client, located):
        try:
            last = located.block.length - 1
            return (await read_replica(client, node.id, located.block, located.token, last, 1)).chunk_bytes
        except (ReplicaFailed, TokenRefused) as error:
            failures.append(error)
    raise _unreadable(client, located, failures)


async def read_replica(
    client: HdfsClient, node: pb.NodeId, block: pb.Block, token: pb.Token, offset: int, length: int
) -> Piece:
    """Return exactly ``length`` bytes from one datanode.

    Raises ReplicaFailed with the reason why it cannot, TokenRefused if it does not take the token.
    """
    return await with_another_key(client, lambda: _read_replica(client, node, block, token, offset, length))


async def _read_replica(
    client: HdfsClient, node: pb.NodeId, block: pb.Block, token: pb.Token, offset: int, length: int
) -> Piece:
    make_handshake = await client.handshakes(node, token)  # the NameNode may be silent: no fault of the datanode
    reading = _Reading(client, node)
    try:
        async with asyncio.timeout(client.settings.read_timeout_s) as limit:
            return await reading.run(block, token, offset, length, limit, make_handshake)
    except TimeoutError as error:
        client.suspect([node_name(node)])
        raise ReplicaFailed(f"{node_name(node)}: read timed out") from error
    except TokenRefused:
        raise
    except HandshakeFailed as error:
        raise _not_let_in(node, error) from error
    except (OSError, asyncio.IncompleteReadError, DecodeError, WireError) as error:
        FAILURES.note(error)
        raise ReplicaFailed(f"{node_name(node)}: {error!r}") from error
    finally:
        reading.close()


async def _read_replica_into(
    client: HdfsClient, node: pb.NodeId, located: pb.LocatedBlock, offset: int, parts: Sequence[memoryview]
) -> None:
    """Fill ``parts`` from one datanode by a thread.

    Raises ReplicaFailed, or its BadChecksum or NotLetIn, if that fails, and TokenRefused if the datanode does not take
    the token.
    """
    await with_another_key(client, lambda: _fill_by_thread(client, node, located, offset, parts))


async def _fill_by_thread(
    client: HdfsClient, node: pb.NodeId, located: pb.LocatedBlock, offset: int, parts: Sequence[memoryview]
) -> None:
    wanted = BlockRange(
        address=(client.datanodes.host(node), node.data_port),
        block=located.block,
        token=located.token,
        client_name=client.holder,
        offset=offset,
        parts=parts,
        handshake=await client.handshakes(node, located.token),
    )
    reading = BulkRead(wanted, client.settings.read_timeout_s, client.data_connections)

    try:
        reads = client.threads.submit(reading.run)
    except RuntimeError as error:  # the client was closed during the read
        raise ReplicaFailed(f"{node_name(node)}: the HDFS client is closed") from error
    try:
        await asyncio.wrap_future(reads)
    except TimeoutError as error:
        client.suspect([node_name(node)])
        raise ReplicaFailed(f"{node_name(node)}: read timed out") from error
    except WrongChecksum as error:
        raise BadChecksum(f"{node_name(node)}: {error}") from error
    except TokenRefused as error:
        raise type(error)(f"{node_name(node)}: {error}") from error
    except HandshakeFailed as error:
        raise _not_let_in(node, error) from error
    except (OSError, ReadRefused, DecodeError, WireError) as error:
        FAILURES.note(error)
        raise ReplicaFailed(f"{node_name(node)}: {error!r}") from error
    finally:
        reading.stop()  # otherwise the thread of a cancelled read would go on


class _Reading:
    """One read (op 81) on a connection of its own.  The time-out is that of each step: every packet begins it again."""

    def __init__(self, client: HdfsClient, node: pb.NodeId) -> None:
        self._client = client
        self._host = client.datanodes.host(node)
        self._node = node
        self._client_name = client.holder
        self._step_s = client.settings.read_timeout_s
        self._writer: asyncio.StreamWriter | None = None  # it warns if it is dropped before it is closed
        self._transport: asyncio.WriteTransport | None = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def run(
        self,
        block: pb.Block,
        token: pb.Token,
        offset: int,
        length: int,
        limit: asyncio.Timeout,
        make_handshake: Callable[[], Handshake | None],
    ) -> Piece:
        reader, writer = await asyncio.open_connection(self._host, self._node.data_port, limit=_STREAM_BYTES)
        self._writer, transport = writer, writer.transport
        self._transport = transport
        if (handshake := make_handshake()) is not None:
            await _shake_hands(handshake, reader, writer)
            if handshake.channel is not None:
                transport = self._transport = self._protect(handshake.channel, transport)
        header = pb.OpHeader(base=pb.OpHeader.Base(block=block, token=token), client=self._client_name)
        request = pb.ReadBlock(header=header, offset=offset, length=length, send_checksums=True)
        transport.write(operation(OP_READ_BLOCK, request))
        response = pb.BlockOpResponse.FromString(await _read_delimited(reader))
        if response.status == STATUS_ACCESS_TOKEN:
            raise TokenRefused(f"{node_name(self._node)}: {status_name(response.status)} {response.message}")
        if response.status != STATUS_SUCCESS:
            raise ReplicaFailed(f"{node_name(self._node)}: {status_name(response.status)} {response.message}")
        checksum = response.read_info.checksum
        start = response.read_info.chunk_offset
        data = await self._read_packets(reader, checksum, start, offset + length - start, limit)
        transport.write(delimited(pb.ReadStatus(status=STATUS_CHECKSUM_OK)))
        if start + len(data) < offset + length:
            raise ReplicaFailed(f"{node_name(self._node)}: {len(data)} bytes from {start}, {length} wanted at {offset}")
        skip = offset - start
        if skip or len(data) > length:
            data = data[skip : skip + length]
        return Piece(data, checksum.chunk_bytes)

    def _protect(self, channel: Channel, transport: asyncio.WriteTransport) -> asyncio.WriteTransport:
        """Put ``channel`` between the connection and its reader, and return the transport to send with."""
        below = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        return protect(below, cast(asyncio.Protocol, below.get_protocol()), channel, self._client.cipher_threads)

    async def _read_packets(
        self, reader: asyncio.StreamReader, checksum: pb.Checksum, start: int, length: int, limit: asyncio.Timeout
    ) -> bytes:
        crcs_of = crc_function(checksum)
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


async def _shake_hands(handshake: Handshake, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry out the handshake.  Raises as ``Handshake.receive``, ConnectionError if the datanode ends it."""
    writer.write(handshake.start())
    while not handshake.is_done:
        data = await reader.read(2 * MESSAGE_BYTES_MAX)  # bytes behind the message are seen, and refused
        if not data:
            raise ConnectionResetError("the datanode closed the connection in the handshake")
        writer.write(handshake.receive(data))


async def _read_delimited(reader: asyncio.StreamReader) -> bytes:
    length = shift = 0
    while True:
        (byte,) = await reader.readexactly(1)
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _LENGTH_BITS_MAX:
            raise WireError("a length that does not end")
    if length > _MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {length} bytes")
    return await reader.readexactly(length)


def _by_trust(client: HdfsClient, located: pb.LocatedBlock) -> list[pb.Node]:
    """Return the block's nodes in the NameNode's order (nearest first), but those that failed lately last."""
    suspected = client.suspected()
    return sorted(located.nodes, key=lambda node: node_name(node.id) in suspected)


def _not_let_in(node: pb.NodeId, error: HandshakeFailed) -> NotLetIn:
    kind = OtherProtection if isinstance(error, ProtectionDemanded) else NotLetIn
    return kind(f"{node_name(node)}: {error}")


def _unreadable(client: HdfsClient, located: pb.LocatedBlock, failures: list[Exception]) -> StorageError:
    reasons = "; ".join(map(str, failures)) or "the NameNode has no replica of it"
    if refusal := client.encryption.refusal:
        reasons += f"; {refusal}"
    kind: type[StorageError] = StorageUnavailable
    if located.corrupt or any(isinstance(failure, BadChecksum) for failure in failures):
        kind = CorruptData
    elif failures and all(isinstance(failure, OtherProtection) for failure in failures):
        kind = Unsupported  # of a single datanode it says nothing about the others
    return kind(f"block {located.block.id}: {reasons}")
