"""Shard logs whose partitions are owned by other processes.

A handle is bound to the ownership number and to the connection with which it was opened: the broker accepts appends of
a handle from that connection only.  So a batch that was sent over an earlier connection, and is still in its buffers,
cannot follow the records that a later handle of the same ownership has replayed.  When an append fails, or the
connection is lost, the handle ends.  Batches in flight may be in the log or not; the next barrier decides.

The log is read through its broker too, by Kafka's Fetch without a session, not from storage.  So a coordinator needs no
access to storage, the broker has the end and the index of the open segment, and recent records come from the broker's
memory.  Pages are small (``CoordinatorSettings.read_bytes``), so an append on the same connection waits for one of them
at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from bmq.coordinator.shard.log import ShardLog, ShardLogs
from bmq.core.aio.waiters import Waiters
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import (
    AskRequest,
    Question,
    ShardAppendRequest,
    ShardAppendResponse,
    ShardConfirmRequest,
    ShardOpenRequest,
    ShardOpenResponse,
)
from bmq.core.rpc.peers import ConnectionKind, Peer, PeerLost, Peers, ask_peer
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch import FetchedPartition, FetchPartition
from bmq.core.wire.fetch_client import FETCH_VERSION, decode_fetch_response, encode_fetch_request
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.shard_kinds import ShardId

CALL_TIMEOUT_S = 10.0
"""Time-out of a read, and of a move of the log's start.  An append waits as long as the connection is alive."""
CONFIRM_TIMEOUT_S = 2.0
"""Time-out of ``RemoteShardLog.confirm``."""
T = TypeVar("T")
PAUSE_S = 0.1
"""Pause between tries to open a log; it ends early if the view changes."""


class RemoteShardLog:
    """The ``ShardLog`` of a partition that another process owns."""

    def __init__(
        self, peer: Peer, key: PartitionKey, ownership: int, opened: ShardOpenResponse, closed: Callable[[], None]
    ) -> None:
        self.epoch = opened.epoch
        self.log_start = opened.log_start
        self.high_watermark = opened.high_watermark
        self.max_batch_bytes = opened.max_batch_bytes
        self._peer = peer
        self._key = key
        self._ownership = ownership
        self._closed: Callable[[], None] | None = closed
        self._in_flight = 0
        self._is_leaving = False
        self._at_end: list[Callable[[], None]] = []
        self._at_end.append(peer.on_lost(self.end))

    def __repr__(self) -> str:
        return f"<RemoteShardLog {self._key} at {self._peer.incarnation} ownership={self._ownership} {self.is_open}>"

    @property
    def broker(self) -> str:
        """The incarnation of the partition's owner."""
        return self._peer.incarnation

    @property
    def is_open(self) -> bool:
        return self._closed is not None and not self._is_leaving and self._peer.is_up

    def on_end(self, call: Callable[[], None]) -> None:
        """Call ``call`` once, when the handle ends."""
        self._at_end.append(call)

    def append(self, batch: bytearray) -> asyncio.Future[int]:
        self._check()
        key = self._key
        request = ShardAppendRequest(key.topic_id, key.partition, self.epoch, self._ownership, batch)
        appended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        call = self._peer.call(InternalKey.SHARD_APPEND, 0, request.encode())
        self._in_flight += 1
        call.add_done_callback(partial(self._on_appended, appended))
        return appended

    def _on_appended(self, appended: asyncio.Future[int], call: asyncio.Future[memoryview]) -> None:
        """Complete an append.  A failure ends the handle, and no later append succeeds: the fate of one is unknown."""
        self._in_flight -= 1
        try:
            if self._closed is None:
                call.cancelled() or call.exception()  # retrieved and ignored: the handle ended first
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._key}: the handle has ended")
            response = ShardAppendResponse.decode(_result(call))
            _check(response.error, response.message)
        except (RequestError, FormatError) as error:
            self.end()
            if not appended.done():
                appended.set_exception(_as_request_error(error))
            return
        self._advance(response.log_start, response.high_watermark)
        if not appended.done():
            appended.set_result(response.base_offset)
        self._end_if_left()

    async def read(self, offset: int, max_bytes: int) -> bytes:
        self._check()
        if offset >= self.high_watermark:
            return b""
        asked = _fetch_request(self._key, self.epoch, offset, max_bytes)
        reading = self._peer.call(ApiKey.FETCH, FETCH_VERSION, asked)
        try:
            page = _page(await _in_time(self._peer, reading, CALL_TIMEOUT_S))
        except FormatError as error:
            raise _as_request_error(error) from error
        _check(ErrorCode(page.error_code), f"reading {self._key} at {offset} from {self.broker}")
        self._advance(page.log_start, page.high_watermark)
        return b"".join(page.records)

    async def confirm(self) -> None:
        self._check()
        request = ShardConfirmRequest(self._key.topic_id, self._key.partition, self.epoch, self._ownership)
        asking = ask_peer(self._peer, request)
        try:
            await _in_time(self._peer, asking, CONFIRM_TIMEOUT_S)
        except RequestError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:  # a broker of an earlier version does not have the request
                return
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                self.end()
            raise

    async def delete_before(self, offset: int) -> None:
        """Move the log's start to ``offset``.  Raises RequestError if that fails.

        The broker does not check the ownership.  The move is safe: the caller has written all live keys again at or
        after ``offset``, below the barrier of any later owner.
        """
        self._check()
        request = AskRequest(self._key.topic_id, self._key.partition, Question.DELETE_BEFORE, offset)
        asking = ask_peer(self._peer, request)
        await _in_time(self._peer, asking, CALL_TIMEOUT_S)
        self._advance(offset, self.high_watermark)

    def leave(self) -> None:
        """Append no more, since the partition gets a new owner; end the handle once no append is in flight."""
        self._is_leaving = True
        self._end_if_left()

    def _end_if_left(self) -> None:
        if self._is_leaving and not self._in_flight:
            self.end()

    def end(self) -> None:
        closed, self._closed = self._closed, None
        if closed is None:
            return
        for call in self._at_end:
            call()
        asyncio.get_running_loop().call_soon(closed)

    def _advance(self, log_start: int, high_watermark: int) -> None:
        """Update the bounds from a response.  Responses may come out of order; neither bound ever goes back."""
        self.log_start = max(self.log_start, log_start)
        self.high_watermark = max(self.high_watermark, high_watermark)

    def _check(self) -> None:
        if not self.is_open:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._key} has another owner now")


class RemoteShardLogs:
    """The ``ShardLogs`` of partitions that other processes own."""

    def __init__(self, view: ClusterView, catalog: Catalog, peers: Peers) -> None:
        self._view = view
        self._catalog = catalog
        self._peers = peers
        self._logs: dict[PartitionKey, RemoteShardLog] = {}  # at most one a partition of one topic
        self._changes = Waiters()
        view.subscribe(self._view_changed)

    async def open(
        self, shard: ShardId, ownership: int, timeout_s: float, closed: Callable[[], None]
    ) -> RemoteShardLog:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        key = log_key(self._catalog, shard)
        while self._view.owner_of(key) != self._view.own:
            seen = self._changes.wakes
            try:
                return self._keep(key, await self._open(key, ownership, deadline - loop.time(), closed))
            except RequestError as error:
                left_s = deadline - loop.time()
                if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or left_s <= PAUSE_S:
                    raise
            await self._changes.wait(PAUSE_S, since=seen)
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is owned by this process now")

    def _keep(self, key: PartitionKey, log: RemoteShardLog) -> RemoteShardLog:
        earlier = self._logs.pop(key, None)
        if earlier is not None:
            earlier.end()
        self._logs[key] = log
        log.on_end(partial(self._ended, key, log))
        if self._view.owner_of(key) != log.broker:  # the owner has changed while the response was under way
            log.leave()
        return log

    async def _open(
        self, key: PartitionKey, ownership: int, timeout_s: float, closed: Callable[[], None]
    ) -> RemoteShardLog:
        """Try once to open the log.  Raises RequestError: NOT_LEADER_OR_FOLLOWER if the next try may succeed."""
        member = self._view.members.get(self._view.owner_of(key))
        if member is None:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} has no owner now")
        try:
            peer = await self._peers.reach(member, ConnectionKind.CONTROL, timeout_s)
        except PeerLost as error:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key}: {error}") from error
        request = ShardOpenRequest(key.topic_id, key.partition, ownership)
        opened = await _in_time(peer, ask_peer(peer, request), timeout_s)
        if not peer.is_up:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key}: the connection was lost at once")
        return RemoteShardLog(peer, key, ownership, opened, closed)

    def _ended(self, key: PartitionKey, log: RemoteShardLog) -> None:
        if self._logs.get(key) is log:
            del self._logs[key]

    def _view_changed(self, change: ViewChange) -> None:
        self._changes.wake_all()
        if change.partitions:
            for key, log in list(self._logs.items()):
                if key in change.partitions and self._view.owner_of(key) != log.broker:
                    log.leave()


class RoutedShardLogs:
    """The ``ShardLogs`` of all partitions: local for those that this process owns, else remote."""

    def __init__(self, view: ClusterView, catalog: Catalog, local: ShardLogs, remote: ShardLogs) -> None:
        self._view = view
        self._catalog = catalog
        self._local = local
        self._remote = remote

    async def open(self, shard: ShardId, ownership: int, timeout_s: float, closed: Callable[[], None]) -> ShardLog:
        key = log_key(self._catalog, shard)
        logs = self._local if self._view.owner_of(key) == self._view.own else self._remote
        return await logs.open(shard, ownership, timeout_s, closed)


def log_key(catalog: Catalog, shard: ShardId) -> PartitionKey:
    """Return the key of the partition that is the shard's log.

    Raises RequestError UNKNOWN_TOPIC_OR_PARTITION if the topic or the partition does not exist.
    """
    topic = catalog.topics.get(shard.kind.topic)
    if topic is None or shard.number >= topic.partitions:
        message = f"{shard.kind.topic}-{shard.number} does not exist yet"
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return PartitionKey(topic.topic_id, shard.number)


def _fetch_request(key: PartitionKey, epoch: int, offset: int, max_bytes: int) -> list[Buffer]:
    """Return a Fetch of one partition, without a session, that gets its response at once."""
    wanted = FetchPartition(key.partition, epoch, offset, -1, max_bytes)
    body = encode_fetch_request(
        session_id=0,
        session_epoch=-1,
        topics=[(key.topic_id, [wanted])],
        forgotten=[],
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
    )
    return list(body)


def _page(body: memoryview) -> FetchedPartition:
    response = decode_fetch_response(body)
    parts = [each for topic in response.topics for each in topic.partitions]
    if response.error_code or len(parts) != 1:
        raise FormatError(f"error {response.error_code} and {len(parts)} partitions in the response to a fetch of one")
    return parts[0]


async def _in_time(peer: Peer, response: Awaitable[T], timeout_s: float) -> T:
    """Return the response of ``peer``.

    Raises RequestError: the peer's own, NOT_LEADER_OR_FOLLOWER if it is lost, REQUEST_TIMED_OUT.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await response
    except PeerLost as error:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{peer.incarnation}: {error}") from error
    except TimeoutError:
        message = f"{peer.incarnation} did not respond in {timeout_s:g} s"
        raise RequestError(ErrorCode.REQUEST_TIMED_OUT, message) from None


def _result(call: asyncio.Future[memoryview]) -> memoryview:
    if call.cancelled():
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the append was cancelled, its fate is unknown")
    error = call.exception()
    if error is not None:
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the fate of the append is unknown: {error}") from error
    return call.result()


def _check(code: ErrorCode, message: str) -> None:
    if code is not ErrorCode.NONE:
        raise RequestError(code, message)


def _as_request_error(error: RequestError | FormatError) -> RequestError:
    """Return a response that cannot be decoded as NOT_LEADER_OR_FOLLOWER, as if the peer were lost."""
    return error if isinstance(error, RequestError) else RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
