"""One watch over as many streams, one after another, as it needs.

Each watch has a gRPC stream of its own.  A shared stream would save some hundred bytes a watch, and break the promise
of ``meta.kv``: a watch reads on only when its caller asks for more.  With its own stream, HTTP/2's flow control holds a
slow caller's stream back and etcd's cursor waits, without a queue here.  On a shared stream a slow caller would hold
back all the others, or need a queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.logging.fields import fields
from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.client import EtcdClient
from bmq.meta.etcd.cursor import Cancelled, WatchCursor
from bmq.meta.etcd.errors import FailureVerdict, judge_cancelled
from bmq.meta.etcd.member import CallFailed, EtcdMember, WatchCall
from bmq.meta.kv import Changes, KvUnavailable

_log = logging.getLogger(__name__)

_PROGRESS = pb.WatchRequest(progress=pb.WatchProgress())


async def follow(client: EtcdClient, prefix: str, after_revision: int) -> AsyncGenerator[Changes, None]:
    """Yield every change of the prefix after that revision.

    Raises Compacted if they are no longer kept, KvUnavailable after ``close``.
    """
    cursor, failures = WatchCursor(prefix, after_revision), 0
    while True:
        stream: _Stream | None = None
        try:
            stream = _Stream(client, *await client.unless_closed(client.watch(cursor.create())))
            while True:
                found = cursor.take(await stream.next())
                failures = 0
                for changes in found:
                    yield changes
        except (CallFailed, Cancelled) as error:
            if not failures:  # once an outage
                _log.info("watch interrupted", extra=fields(key=prefix, revision=cursor.seen, error=error))
            failures += 1
            _blame(client, stream, error)
        finally:
            if stream is not None:
                await stream.end()
        await client.unless_closed(asyncio.sleep(client.settings.backoff_s.half_random(failures, client.dice.random)))


def _blame(client: EtcdClient, stream: _Stream | None, error: CallFailed | Cancelled) -> None:
    """Drop the token, or avoid the member, whichever broke the watch."""
    if isinstance(error, Cancelled):
        if judge_cancelled(str(error)) is FailureVerdict.TOKEN:
            client.forget_token()
    elif error.verdict is FailureVerdict.TOKEN:
        client.forget_token()
    elif stream is not None:
        client.lost(stream.member)


class _Stream:
    """One stream of a watch.

    A member that owes a response, to the creation or to a progress request, is given up in time.  A member that is
    merely behind leaves the progress request without response too: another one is a good choice then as well.
    """

    def __init__(self, client: EtcdClient, member: EtcdMember, call: WatchCall) -> None:
        self.member = member
        self._client = client
        self._call = call
        self._silence = member.silence
        self._owes = True  # the confirmation that the watch was created

    async def next(self) -> pb.WatchResponse:
        """Return the next response.  Raises CallFailed, and KvUnavailable when the client closes."""
        reading: asyncio.Future[Any] = asyncio.ensure_future(self._call.read())
        try:
            while not reading.done():
                await self._wait(reading)
        except BaseException:
            self._call.cancel()
            await cancel_and_wait(reading)
            raise
        self._owes = False
        return self._result(reading)

    async def end(self) -> None:
        self._call.cancel()

    async def _wait(self, reading: asyncio.Future[Any]) -> None:
        settings = self._client.settings
        wait_s = settings.call_timeout_s if self._owes else settings.progress_s
        either = (reading, self._client.closing, self._silence)
        await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return
        if self._client.closing.done():
            raise KvUnavailable("the client is closed")
        if self._silence.done():
            raise CallFailed(FailureVerdict.UNKNOWN, f"{self.member.endpoint}: silent")
        if self._owes:
            raise CallFailed(FailureVerdict.UNKNOWN, f"{self.member.endpoint}: silent for {wait_s:g} s")
        await self._client.unless_closed(self._ask_progress())
        self._owes = True

    async def _ask_progress(self) -> None:
        try:
            await self._call.write(_PROGRESS)
        except grpc.aio.AioRpcError as error:
            raise self.member.failure(error) from None
        except asyncio.InvalidStateError:
            raise CallFailed(FailureVerdict.UNKNOWN, f"{self.member.endpoint}: the stream has ended") from None

    def _result(self, reading: asyncio.Future[Any]) -> pb.WatchResponse:
        if reading.cancelled():  # by the channel, which was closed
            raise CallFailed(FailureVerdict.UNKNOWN, f"{self.member.endpoint}: the stream was cancelled")
        try:
            response = reading.result()  # at the end of the stream gRPC's EOF, which is not a message
        except grpc.aio.AioRpcError as error:
            raise self.member.failure(error) from None
        if not isinstance(response, pb.WatchResponse):
            raise CallFailed(FailureVerdict.UNKNOWN, f"{self.member.endpoint}: the member ended the stream")
        return response
