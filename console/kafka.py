"""Kafka requests of this process to itself: the HTTP API asks what any client may ask, of the same handlers.

A request is encoded, goes through the endpoint's dispatch as a frame from a socket would, and its response is decoded.
So limits, checks, errors and routing to owners and coordinators are those of Kafka's protocol, and there is no second
implementation.  Errors inside responses become RequestError here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import CloseConnection, Dispatch, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.core.wire.fetch import FetchedPartition, FetchPartition
from bmq.core.wire.fetch_client import FETCH_VERSION, decode_fetch_response, encode_fetch_request
from bmq.core.wire.header import is_flexible, response_is_flexible
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request

CLIENT_ID = "console"
FETCH_WAIT_MS = 500
"""A fetch below the high watermark finds its records on storage; it waits for nothing else."""
PRODUCE_TIMEOUT_MS = 15_000
_HEAD = struct.Struct(">hhih")
_RESPONSE_HEAD_BYTES = 4


class Requests(Protocol):
    """Sends one request of each kind.  All raise RequestError; errors inside a response are its caller's to see."""

    async def send(self, key: ApiKey, version: int, message: Any) -> Any: ...

    async def fetch(self, topic_id: UUID, partition: int, offset: int, max_bytes: int) -> FetchedPartition: ...

    async def produce(self, topic_id: UUID, partition: int, batch: memoryview) -> int:
        """Append a batch with acks=all and return its base offset."""


class _Console:
    """The client of these requests, which stays connected."""

    peer = CLIENT_ID
    host = "127.0.0.1"
    is_closed = False
    client_id: str | None = None
    client_software = ("", "")

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        return _nothing


class LocalRequests:
    """`Requests` to a dispatch in this process."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._client = _Console()

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        body = await self._call(key, version, bytes(encode_request(key, version, message)))
        return decode_response(key, version, body)

    async def fetch(self, topic_id: UUID, partition: int, offset: int, max_bytes: int) -> FetchedPartition:
        asked = FetchPartition(partition, -1, offset, -1, max_bytes)
        pieces = encode_fetch_request(
            session_id=0, session_epoch=-1, topics=[(topic_id, [asked])], forgotten=(), max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1, max_bytes=max_bytes,
        )  # fmt: skip
        response = decode_fetch_response(await self._call(ApiKey.FETCH, FETCH_VERSION, b"".join(pieces)))
        check(response.error_code)
        fetched = response.topics[0].partitions[0]
        check(fetched.error_code)
        return fetched

    async def produce(self, topic_id: UUID, partition: int, batch: memoryview) -> int:
        pieces = encode_produce_request(-1, PRODUCE_TIMEOUT_MS, [(topic_id, [(partition, batch)])])
        answers = decode_produce_response(await self._call(ApiKey.PRODUCE, PRODUCE_VERSION, b"".join(pieces)))
        answer = answers[0].partitions[0]
        check(answer.error_code, answer.error_message)
        return int(answer.base_offset)

    async def _call(self, key: ApiKey, version: int, body: bytes) -> memoryview:
        """Return the body of the response to a request with this body."""
        name = CLIENT_ID.encode()
        head = _HEAD.pack(key, version, 0, len(name)) + name + (b"\0" if is_flexible(key, version) else b"")
        try:
            answer = self._dispatch(memoryview(bytearray(head + body)), self._client)
            if not isinstance(answer, Response):
                answer = await answer
        except CloseConnection as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, str(error)) from None
        try:
            whole = memoryview(b"".join(answer.buffers))
        finally:
            if answer.release is not None:
                answer.release()
        return whole[_RESPONSE_HEAD_BYTES + response_is_flexible(key, version) :]


def check(code: int, message: str | None = "") -> None:
    """Raise RequestError unless `code` is 0."""
    if code:
        raise RequestError(ErrorCode(code), message or "")


def _nothing() -> None:
    """Nothing was subscribed."""
