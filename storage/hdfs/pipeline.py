"""The write pipeline of one block (DataStreamer, BlockReceiver): packets out, acknowledgements in, no task of its own.

Theory.  The client talks to the first datanode only; each passes packets on to the next and acknowledgements back.  An
acknowledgement means that every node of the pipeline has the bytes (in memory; on disk for a ``sync`` packet), so bytes
up to ``acked`` may be promised.  The first fault ends the pipeline: all flushes fail and nothing more is sent.
Positions here are within the block; futures carry positions in the file (``base`` is added).

Invariants: ``acked <= sent <= written``; ``_in_flight`` is in order of seqno, ``_flushes`` in order of position.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol, cast

from google.protobuf.message import DecodeError

from bmq.core.aio.subscribers import no_op
from bmq.core.descriptors import FAILURES
from bmq.storage.filesystem import Buffer, OutOfSpace, PipelineFailed, StorageError
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import (
    HEARTBEAT_SEQNO,
    STATUS_ACCESS_TOKEN,
    STATUS_SUCCESS,
    WireError,
    decode_ack,
    decode_varint,
    packet_head,
)
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.handshake import Handshake, HandshakeFailed, ProtectionDemanded, TokenRefused
from bmq.storage.hdfs.packets import Data, PacketCutter, packet_prefix
from bmq.storage.hdfs.protected_transport import protect
from bmq.storage.hdfs.settings import HdfsSettings

# Up to this a packet is joined: copying costs less than a buffer of the transport for each part.
_JOIN_BYTES_MAX = 32 << 10
_RESPONSE_BYTES_MAX = 1 << 20


class SetupTimedOut(PipelineFailed):
    """A set-up that no datanode refused, and none accepted in time: datanodes are slow, or one of them is gone."""


class HandshakeRefused(PipelineFailed):
    """A set-up whose first datanode lives and did not let this client in.  It has not run out of anything."""


class ProtectionRefused(HandshakeRefused):
    """A set-up whose first datanode demands a protection that this client does not have."""


class TokenExpired(HandshakeRefused):
    """A set-up whose block token a datanode refuses: the NameNode gives a new token."""


class PipelineWatch(Protocol):
    """The timer of pipelines: ``pipeline_timer.PipelineClock``, whose module imports this module."""

    def add(self, pipeline: Pipeline) -> None:
        """Watch an open pipeline."""

    def remove(self, pipeline: Pipeline) -> None:
        """Stop watching a pipeline."""

    def busy(self, pipeline: Pipeline) -> None:
        """Note that the pipeline now waits for an acknowledgement."""

    def quiet(self, pipeline: Pipeline) -> None:
        """Note that all packets of the pipeline are acknowledged."""


class Packet:
    """A packet that was sent and not acknowledged.  It is a plain class, since one is made for every flush."""

    __slots__ = ("end", "is_last", "is_sync", "seqno", "size")

    def __init__(self, seqno: int, end: int, size: int, is_sync: bool, is_last: bool) -> None:
        self.seqno = seqno
        self.end = end
        self.size = size
        self.is_sync = is_sync
        self.is_last = is_last


class Pipeline(asyncio.Protocol):
    """The pipeline of one block: ``open`` it, then ``write``, ``flush``, ``finish`` or ``abort``.

    ``length`` is the number of bytes that the block holds already.  ``hold`` postpones every completion: its callback
    is called once with the number of acknowledged bytes, and ``release`` ends that (rule 1: the NameNode gets the
    length first).  ``on_failure`` is called once, when the open pipeline breaks.
    """

    def __init__(
        self,
        *,
        members: list[pb.NodeId],
        block: pb.Block,
        base: int,
        length: int,
        chunk_bytes: int,
        settings: HdfsSettings,
        watch: PipelineWatch,
    ) -> None:
        self.members = members
        self.nodes = tuple(node_name(member) for member in members)
        self.block = block
        self.chunk_bytes = chunk_bytes
        self.failure: StorageError | None = None
        self.suspects: tuple[str, ...] = ()
        self._base = base
        self._packet_bytes = settings.packet_bytes
        self._window_bytes = settings.window_bytes
        self._window_packets = settings.window_packets
        self._watch = watch
        self.on_failure: Callable[[StorageError], None] = no_op
        self._on_first_ack: Callable[[int], None] | None = None
        self._is_held = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[pb.BlockOpResponse] | None = None
        self._handshake: Handshake | None = None
        self._request = b""
        self._cipher_threads: Executor | None = None
        self._is_streaming = False
        self._is_finished = False
        self._finished: asyncio.Future[None] | None = None
        self._received = b""
        self._flushes: deque[tuple[int, bool, asyncio.Future[int]]] = deque()
        self._in_flight: deque[Packet] = deque()
        self._in_flight_bytes = 0
        self._is_paused = False
        self._seqno = 0
        self.has_sent_since_check = False
        self.start_at(length)

    def __repr__(self) -> str:
        return (
            f"Pipeline({'>'.join(self.nodes)} written={self.written} sent={self._cutter.sent} acked={self.acked}"
            f" in_flight={len(self._in_flight)} flushes={len(self._flushes)} failure={self.failure})"
        )

    # ---- the owner's calls

    async def open(
        self,
        host: str,
        port: int,
        request: bytes,
        timeout_s: float,
        handshake: Handshake | None = None,
        cipher_threads: Executor | None = None,
    ) -> pb.BlockOpResponse:
        """Connect, send the op-80 ``request`` after the ``handshake``, and return the response: perhaps a refusal.

        ``cipher_threads`` encrypt large packets of a protected connection.

        Raises PipelineFailed if there is no response, without suspects: the caller can probe the nodes.  It is a
        SetupTimedOut if ``timeout_s`` passed.  Raises HandshakeRefused if the first datanode does not let this client
        in, or its TokenExpired or ProtectionRefused.  Raises OutOfSpace if this process has no descriptor left.
        """
        try:
            async with asyncio.timeout(timeout_s):
                self._response = self._loop.create_future()
                # Before the connection: a loop may bring the peer's bytes before it returns the connection.
                self._handshake, self._request, self._cipher_threads = handshake, request, cipher_threads
                await self._loop.create_connection(lambda: self, host, port)
                assert self._transport is not None
                self._transport.write(request if handshake is None else handshake.start())
                response = await self._response
        except HandshakeFailed as error:
            self.abort()
            raise _refusal(error)(f"set-up: {error}", suspects=self.nodes[:1]) from error
        except (OSError, TimeoutError) as error:
            self.abort()
            if FAILURES.note(error):  # this process's fault, not a datanode's
                raise OutOfSpace(f"no socket to {host}:{port}: {FAILURES.last} (LimitNOFILE, ulimit -n)") from error
            if isinstance(error, TimeoutError):
                raise SetupTimedOut(f"set-up at {host}:{port}: no response within {timeout_s:g} s") from error
            raise PipelineFailed(f"set-up at {host}:{port}: {error}") from error
        except BaseException:
            self.abort()
            raise
        if response.status != STATUS_SUCCESS:
            self.abort()
            if response.status == STATUS_ACCESS_TOKEN:
                bad = response.first_bad_link or self.nodes[0]
                raise TokenExpired(f"set-up: {bad} does not take the block token", suspects=(bad,))
        elif self.failure is not None:
            raise self.failure
        else:
            self._watch.add(self)
        return response

    def start_at(self, length: int) -> None:
        """Set the length of the block, which is known only after the set-up if that took over a replica.

        None of the bytes that a replica held before is known to be on disk, so a sync flush always sends a packet.
        """
        assert not self._seqno, "start_at after the first packet"
        self._cutter = PacketCutter(self.chunk_bytes, self._packet_bytes, length)
        self.acked = self._flush_to = length
        self.synced = self._sync_to = self._sync_sent = 0

    def hold(self, on_first_ack: Callable[[int], None]) -> None:
        """Postpone all completions until ``release``; ``on_first_ack`` is called once bytes are acknowledged."""
        self._is_held = True
        self._on_first_ack = on_first_ack

    @property
    def written(self) -> int:
        """Bytes written, from the block's beginning."""
        return self._cutter.written

    @property
    def position(self) -> int:
        """Bytes written, from the file's beginning."""
        return self._base + self._cutter.written

    @property
    def flushed(self) -> int:
        """Bytes that were acknowledged and may be promised, from the file's beginning."""
        return self._base + (0 if self._is_held else self.acked)

    @property
    def pending(self) -> int:
        """Flushes not yet complete."""
        return len(self._flushes)

    @property
    def oldest_seqno(self) -> int:
        """The number of the packet whose acknowledgement comes next, -1 if none is expected."""
        return self._in_flight[0].seqno if self._in_flight else -1

    def write(self, data: Buffer) -> None:
        """Take a view of ``data``, not a copy.  Raises what ended the pipeline."""
        if self.failure is not None:
            raise self.failure
        view = memoryview(data).cast("B")
        if not view:
            return
        self._cutter.write(view)
        if self._cutter.queued >= self._cutter.packet_bytes:
            self._pump()

    def flush(self, *, sync: bool) -> asyncio.Future[int]:
        """Send what was written, and return a future of the position in the file that is acknowledged then.

        ``sync``: it is on the datanodes' disks then.  The future fails with what ends the pipeline.
        """
        future: asyncio.Future[int] = self._loop.create_future()
        if self.failure is not None:
            _fail_quietly(future, self.failure)
            return future
        self._flushes.append((self.written, sync, future))
        self._flush_to = self.written
        if sync:
            self._sync_to = self.written
        self._pump()
        if self.acked == self.written:
            self._settle()
        return future

    async def finish(self) -> None:
        """Send the last, empty packet and wait until every node has closed its replica.

        All bytes must have been acknowledged.  Raises what ended the pipeline before.
        """
        if self.failure is not None:
            raise self.failure
        assert self.acked == self.written, f"finish before the last flush: {self!r}"
        self._finished = self._loop.create_future()
        self._send(self.written, [], 0, last=True)
        await self._finished
        self._is_finished = True
        self._stop(PipelineFailed("closed"))

    def abort(self) -> None:
        """End the pipeline without closing its replicas."""
        self.fail(PipelineFailed("the file was given up"))

    def release(self) -> None:
        """Let flushes complete: the NameNode has the block's length."""
        self._is_held = False
        self._settle()

    def fail(self, failure: StorageError) -> None:
        """End the pipeline with its first failure; later ones are consequences, and are ignored."""
        if self.failure is None:
            self._stop(failure)
            self.on_failure(failure)

    def heartbeat(self) -> None:
        """Send a packet that shows the datanodes that a silent client lives; its acknowledgement has the same seqno."""
        if self._is_streaming and self._transport is not None:
            self._transport.write(packet_head(HEARTBEAT_SEQNO, 0, 0, 0, last=False, sync=False))

    # ---- sending

    def _pump(self) -> None:
        """Send, as far as the window allows, full packets at once and the rest if a flush needs it."""
        while (
            not self._is_paused
            and len(self._in_flight) < self._window_packets
            and self._in_flight_bytes < self._window_bytes
            and self.failure is None
        ):
            cutter = self._cutter
            if cutter.queued >= cutter.packet_bytes or (cutter.queued and self._flush_to > cutter.sent):
                self._send_data()
            elif self._sync_sent < self._sync_to <= cutter.sent:
                self._send(cutter.sent, [], 0)
            else:
                return

    def _send_data(self) -> None:
        before = self._cutter.sent
        offset, parts = self._cutter.cut()
        self._send(offset, parts, self._cutter.sent - before)

    def _send(self, offset: int, parts: list[Data], size: int, *, last: bool = False) -> None:
        """Send a packet.  ``size`` counts its new bytes; the data may repeat some before them."""
        assert self._transport is not None
        end = self._cutter.sent
        sync = not last and self._sync_sent < self._sync_to <= end
        prefix = packet_prefix(self._seqno, offset, parts, self.chunk_bytes, last=last, sync=sync)
        if size <= _JOIN_BYTES_MAX:
            self._transport.write(b"".join((prefix, *parts)))
        else:
            self._transport.writelines((prefix, *parts))
        if not self._in_flight:
            self._watch.busy(self)
        self._in_flight.append(Packet(self._seqno, end, size, sync, last))
        self._in_flight_bytes += size
        self._seqno += 1
        self.has_sent_since_check = True
        if sync:
            self._sync_sent = end

    # ---- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        if self.failure is not None:  # given up while connecting
            self._transport.abort()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._is_streaming and self.failure is None:
            self._pump()

    def data_received(self, data: bytes) -> None:
        if self.failure is not None:
            return
        if self._handshake is not None:
            self._shake_hands(self._handshake, data)
            return
        if self._received:
            data = self._received + data
        try:
            position = 0 if self._is_streaming else self._take_response(data)
            if self._is_streaming:
                position = self._take_acks(data, position)
        except (WireError, DecodeError) as error:
            self.fail(PipelineFailed(f"{self.nodes[0]} does not speak the data transfer protocol: {error}"))
            return
        self._received = data[position:]
        if self.failure is None:
            self._settle()
            self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f"connection to {self.nodes[0]} lost" + (f": {exc}" if exc else "")
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionError(reason if self.failure is None else str(self.failure)))
        elif self._is_streaming and not self._is_finished:
            self.fail(PipelineFailed(reason, suspects=self.suspects or self.nodes[:1]))

    def _shake_hands(self, handshake: Handshake, data: bytes) -> None:
        """Go on with the handshake, and send the request once it is done."""
        assert self._transport is not None
        assert self._response is not None
        try:
            self._transport.write(handshake.receive(data))
        except HandshakeFailed as error:
            if not self._response.done():
                self._response.set_exception(error)
            return
        if handshake.is_done:
            self._handshake = None
            if handshake.channel is not None:
                self._transport = protect(self._transport, self, handshake.channel, self._cipher_threads)
            self._transport.write(self._request)

    def _take_response(self, data: bytes) -> int:
        """Take the response to the set-up, and return the position after it, 0 if it is not complete yet."""
        length, position = decode_varint(data, 0)
        if length > _RESPONSE_BYTES_MAX:
            raise WireError(f"a response of {length} bytes")
        if position < 0 or len(data) < position + length:
            return 0
        response = pb.BlockOpResponse.FromString(data[position : position + length])
        self._is_streaming = response.status == STATUS_SUCCESS
        if self._response is not None and not self._response.done():
            self._response.set_result(response)
        return position + length

    def _take_acks(self, data: bytes, position: int) -> int:
        while position < len(data) and self.failure is None:
            length, start = decode_varint(data, position)
            if length > _RESPONSE_BYTES_MAX:
                raise WireError(f"an acknowledgement of {length} bytes")
            if start < 0 or len(data) < start + length:
                break
            position = start + length
            self._take_ack(*decode_ack(data[start:position]))
        return position

    def _take_ack(self, seqno: int, bad: int) -> None:
        if bad >= 0:
            suspects = self.nodes[bad : bad + 1]
            self.fail(PipelineFailed(f"{', '.join(suspects)} failed in the pipeline", suspects=suspects))
            return
        if seqno == HEARTBEAT_SEQNO:
            return
        if not self._in_flight or seqno != self._in_flight[0].seqno:
            raise WireError(f"packet {seqno} acknowledged, {self.oldest_seqno} expected")
        packet = self._in_flight.popleft()
        self._in_flight_bytes -= packet.size
        self.acked = packet.end
        if packet.is_sync:
            self.synced = packet.end
        if not self._in_flight:
            self._watch.quiet(self)
        if packet.is_last and self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def _settle(self) -> None:
        """Complete the flushes that are covered, in order."""
        if self._on_first_ack is not None and self._flushes and self.acked > 0:
            call, self._on_first_ack = self._on_first_ack, None
            call(self.acked)
        if self._is_held and self.acked > 0:
            return
        flushes = self._flushes
        while flushes:
            position, sync, future = flushes[0]
            if position > (self.synced if sync else self.acked):
                return
            flushes.popleft()
            if not future.done():
                future.set_result(self._base + position)

    def _stop(self, failure: StorageError) -> None:
        self.failure = failure
        self._watch.remove(self)
        if self._transport is not None:
            self._transport.abort()
        flushes, self._flushes = self._flushes, deque()
        for _, _, future in flushes:
            _fail_quietly(future, failure)
        if self._finished is not None:
            _fail_quietly(self._finished, failure)
        self._cutter.clear()
        self._in_flight.clear()


def _refusal(error: HandshakeFailed) -> type[HandshakeRefused]:
    if isinstance(error, TokenRefused):
        return TokenExpired
    return ProtectionRefused if isinstance(error, ProtectionDemanded) else HandshakeRefused


def _fail_quietly(future: asyncio.Future[int] | asyncio.Future[None], failure: StorageError) -> None:
    if not future.done():
        future.set_exception(failure)
        future.exception()  # retrieved: no warning if no task awaits it, since the owner gets the failure in any case
