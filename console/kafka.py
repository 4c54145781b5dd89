"""Kafka requests of this process to itself: the HTTP API uses the handlers that serve Kafka's clients.

A request is encoded, goes through the endpoint's dispatch like a frame from a socket, and its response is decoded.  So
limits, checks, errors and routing to owners and coordinators are those of Kafka's protocol, without a second
implementation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from bmq.core.aio.subscribers import no_op
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import CloseConnection, Dispatch, Response
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.core.wire.fetch import FetchedPartition, FetchPartition
from bmq.core.wire.fetch_client import FETCH_VERSION, decode_fetch_response, encode_fetch_request
from bmq.core.wire.header import is_flexible, response_is_flexible
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request

CLIENT_ID = "console"
FETCH_WAIT_MS = 500
"""Most time that a fetch waits.  Fetches here are below the end at their isolation level, so they do not wait."""
PRODUCE_TIMEOUT_MS = 15_000
_HEAD = struct.Struct(">hhih")
_RESPONSE_HEAD_BYTES = 4


class Requests(Protocol):
    """Kafka requests to one process: ``LocalRequests``, or written responses in tests of pages.

    All methods raise RequestError if the process refuses the request.
    """

    def of(self, session: Session, host: str) -> Requests:
        """Return the requests of the client with this session and address, and with its rights."""

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        """Return the response to ``message``.  Its caller must check the errors inside it."""

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        """Return records from ``offset`` on, at READ_COMMITTED with the list of the aborted transactions among them.

        Raises RequestError for an error of the partition, too.
        """

    async def produce(self, topic_id: UUID, partition: int, batch: memoryview) -> int:
        """Append a batch with acks=all and return its base offset.

        Raises RequestError for an error of the partition, too.
        """


class _Console:
    """The client that these requests come from.  It never disconnects."""

    peer = CLIENT_ID
    is_closed = False
    client_id: str | None = None
    client_software = ("", "")

    def __init__(self, session: Session, host: str) -> None:
        self.session = session
        self.host = host

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        return no_op  # it never disconnects

    def mute(self, seconds: float) -> None:
        """Do nothing: it has no quotas."""

    def unmute(self) -> None:
        """Do nothing: it is never muted."""


class LocalRequests:
    """The ``Requests`` to a dispatch in this process."""

    def __init__(self, dispatch: Dispatch, session: Session = ANONYMOUS_SESSION, host: str = "127.0.0.1") -> None:
        self._dispatch = dispatch
        self._client = _Console(session, host)

    def of(self, session: Session, host: str) -> LocalRequests:
        return LocalRequests(self._dispatch, session, host)

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        body = await self._call(key, version, bytes(encode_request(key, version, message)))
        return decode_response(key, version, body)

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        asked = FetchPartition(partition, -1, offset, -1, max_bytes)
        pieces = encode_fetch_request(
            session_id=0, session_epoch=-1, topics=[(topic_id, [asked])], forgotten=(), max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1, max_bytes=max_bytes, isolation_level=isolation_level,
        )  # fmt: skip
        response = decode_fetch_response(await self._call(ApiKey.FETCH, FETCH_VERSION, b"".join(pieces)))
        check(response.error_code)
        fetched = response.topics[0].partitions[0]
        check(fetched.error_code)
        return fetched

    async def produce(self, topic_id: UUID, partition: int, batch: memoryview) -> int:
        pieces = encode_produce_request(-1, PRODUCE_TIMEOUT_MS, [(topic_id, [(partition, batch)])])
        topics = decode_produce_response(await self._call(ApiKey.PRODUCE, PRODUCE_VERSION, b"".join(pieces)))
        produced = topics[0].partitions[0]
        texts = [text for _, text in produced.batch_index_errors if text]
        check(produced.error_code, texts[0] if texts else produced.error_message)
        return int(produced.base_offset)

    async def _call(self, key: ApiKey, version: int, body: bytes) -> memoryview:
        """Return the body of the response to a request with this body."""
        name = CLIENT_ID.encode()
        head = _HEAD.pack(key, version, 0, len(name)) + name + (b"\0" if is_flexible(key, version) else b"")
        try:
            response = self._dispatch(memoryview(bytearray(head + body)), self._client)
            if not isinstance(response, Response):
                response = await response
        except CloseConnection as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, str(error)) from None
        try:
            whole = memoryview(b"".join(response.buffers))
        finally:
            if response.release is not None:
                response.release()
        return whole[_RESPONSE_HEAD_BYTES + response_is_flexible(key, version) :]


def check(code: int, message: str | None = "") -> None:
    """Raise RequestError unless ``code`` is 0."""
    if code:
        raise RequestError(ErrorCode(code), message or "")
