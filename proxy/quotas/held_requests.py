"""Produces that wait before they are served: a holder's debt is known, and their connection has not waited for it yet.

Without the wait, a client with a new connection for each request would never wait at all.  A held request is counted
when it arrives, so that requests of all connections stand in one line::

    debt                       the request
    none                       is served at once
    up to HELD_MAX_S seconds   waits for that long, and is served
    more                       is not counted and not served: its connection is closed after REFUSED_S

So a debt that new connections make has HELD_MAX_S seconds at most.  The requests of one connection keep their order.  A
change of the quotas ends all waits: the counted bytes are given back, and each request is looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from bmq.core.logging.fields import fields
from bmq.core.net.request import Client, CloseQuietly, Request, Response
from bmq.meta.security.client_quotas import PRODUCER_BYTE_RATE, Holder
from bmq.proxy.quotas.holdings import Holding
from bmq.proxy.quotas.muted_connections import MutedConnections

_log = logging.getLogger(__name__)
HELD_MAX_S = 10.0
"""A third of what Kafka's clients wait for a response (``request.timeout.ms``)."""
REFUSED_S = 1.0
"""Time before a connection is closed, so that its client does not come again at once."""
Begin = Callable[[float], Response | Awaitable[Response]]
"""Serves a produce.  Its argument is the time until which the client has to wait afterwards, 0 if it has no quota."""


class HeldRequests:
    """The waiting produces of a process, and the connections that have waited.  Times are on the clock ``now``."""

    def __init__(
        self, producer_of: Callable[[Request], Holding | None], now: Callable[[], float], muted: MutedConnections
    ) -> None:
        """``producer_of`` returns the holding that counts a request's bytes, None without a quota."""
        self._muted = muted
        self._producer_of = producer_of
        self._now = now
        self._producers: dict[Client, Holding] = {}
        """The holding of the last produce, by connection: the connection has waited for its debt."""
        self._last: dict[Client, asyncio.Future[None]] = {}
        """The last held request, by connection.  The future is done when it begins: later requests begin after it."""
        self._waiting: dict[asyncio.Future[bool], tuple[Holding, float]] = {}

    def __repr__(self) -> str:
        return f"<HeldRequests {len(self._waiting)}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def is_to_be_held(self, connection: Client, producer: Holding) -> bool:
        """Return whether a produce has to wait before it is served."""
        if connection in self._last:
            return True
        return self._producers.get(connection) is not producer and producer.wait_s(self._now()) > 0

    def count(self, connection: Client, producer: Holding, size: int) -> float:
        """Count a produce, and mute its connection until the debt is paid.  Return the end of that time."""
        now = self._now()
        seconds = producer.take(size, now)
        if connection not in self._producers:
            connection.on_close(partial(self._forget, connection))
        if not connection.is_closed:
            self._producers[connection] = producer
        if seconds > 0:
            self._muted.mute(connection, producer, seconds, now)
        return now + seconds

    def _forget(self, connection: Client) -> None:
        self._producers.pop(connection, None)

    async def serve(self, request: Request, size: int, begin: Begin) -> Response:
        """Serve a produce by ``begin``, after what it has to wait for.  Raises CloseQuietly if that is too much."""
        connection = request.client
        before, begun = self._last.get(connection), asyncio.get_running_loop().create_future()
        self._last[connection] = begun
        if before is not None:
            try:
                await asyncio.wait((before,))
            except asyncio.CancelledError:  # free its place when those before it have begun: none behind may overtake
                before.add_done_callback(lambda _: self._begun(connection, begun))
                raise
        try:
            response = begin(await self._hold(request, size))
        finally:
            self._begun(connection, begun)
        return response if isinstance(response, Response) else await response

    def _begun(self, connection: Client, begun: asyncio.Future[None]) -> None:
        begun.set_result(None)
        if self._last.get(connection) is begun:
            del self._last[connection]

    async def _hold(self, request: Request, size: int) -> float:
        """Count a produce and wait for the debt before it.  Return ``count``'s result, 0 if its quota was deleted."""
        while (producer := self._producer_of(request)) is not None:
            debt_s = producer.wait_s(self._now())
            if debt_s > HELD_MAX_S:
                await self._refuse(request, producer, debt_s)
                continue
            until = self.count(request.client, producer, size)
            if not debt_s:
                return until
            if not await self._wait(debt_s, producer, size):
                return until
            request.client.unmute()
        return 0.0

    async def _refuse(self, request: Request, producer: Holding, debt_s: float) -> None:
        """Raise CloseQuietly after a while.  Return if a change of the quotas comes first."""
        request.client.mute(2 * REFUSED_S)  # closed before that is over
        if await self._wait(REFUSED_S, producer, 0.0):
            request.client.unmute()
            return
        producer.held_up(debt_s, self._now())
        _log.warning(
            "closing a connection: its user owes more of its quota than a request waits for",
            extra=fields(
                connection=request.client.peer, client_id=request.client_id,
                error=f"{PRODUCER_BYTE_RATE}: {debt_s:.1f} s are owed, {HELD_MAX_S:g} s at most are waited for",
            ),
        )  # fmt: skip
        raise CloseQuietly(f"{PRODUCER_BYTE_RATE}: {debt_s:.1f} s of it are owed")

    async def _wait(self, seconds: float, holding: Holding, counted: float) -> bool:
        """Wait so many seconds.  Return True if a change of the quotas came first.

        ``counted`` is the request's amount in ``holding``, which is given back once if the wait does not come to its
        end.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, _end, future, False)
        self._waiting[future] = (holding, counted)
        try:
            return await future
        except asyncio.CancelledError:
            if future in self._waiting:  # else `look_again` has given it back
                holding.give_back(counted, self._now())
            raise
        finally:
            timer.cancel()
            self._waiting.pop(future, None)

    def look_again(self, is_limited: Callable[[str, Holder], bool]) -> None:
        """End all waits after a change of the quotas, the oldest first.

        ``is_limited`` returns whether a holder still has a quota of a kind.
        """
        now = self._now()
        for holding, counted in self._waiting.values():
            holding.give_back(counted, now)
        for connection, holding in tuple(self._producers.items()):
            if not is_limited(holding.kind, holding.holder):
                del self._producers[connection]
        for future in tuple(self._waiting):
            _end(future, True)
        self._waiting.clear()


def _end(future: asyncio.Future[bool], is_changed: bool) -> None:
    if not future.done():
        future.set_result(is_changed)
