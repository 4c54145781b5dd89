"""A Kafka request and its response, between a connection and the endpoint that handles it.

``core.net.client_connection`` cuts a connection's bytes into frames, passes each to the endpoint's ``Dispatch`` in the
order of arrival, and sends the responses in that order.  The dispatch of a frame runs up to its first await before the
next frame is dispatched.  So decisions up to there (a produce's place in its partition) have the order of the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol

from bmq.core.security.session import Session

Buffer = bytes | bytearray | memoryview


class Client(Protocol):
    """The connection that a request came by, as its handler sees it."""

    @property
    def peer(self) -> str:
        """Host and port of the other side, for log lines."""

    @property
    def host(self) -> str:
        """The other side's address, as groups and quotas name it."""

    @property
    def is_closed(self) -> bool:
        """True once the connection is closed.  Requests without a response go on once they have begun."""

    session: Session
    """Who the client is, as far as its listener asks."""
    client_software: tuple[str, str]
    """Name and version from ApiVersions; empty texts if it had none."""
    client_id: str | None
    """The beginning of the client id in its last ApiVersions request, for log lines."""

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` once, when the connection closes.  Return a function that unsubscribes it."""

    def mute(self, seconds: float) -> None:
        """Begin no further request, and read nothing, for so long (KIP-219).

        Responses of what has begun are sent.  A shorter time than one that runs already has no effect.
        """

    def unmute(self) -> None:
        """End the time of ``mute``, in the loop's next turn; a further ``mute`` comes in its place."""


class RequestQuota(Protocol):
    """The quotas that count a request."""

    @property
    def fetch_bytes_max(self) -> int | None:
        """Bytes of records that a fetch may have, beside its first batch; None without a limit."""

    def admit(self, size: int) -> bool:
        """Return whether a fetch's response may have records of ``size`` bytes, and count them if so."""

    def mutate(self, partitions: int, *, is_strict: bool) -> None:
        """Count partitions that are about to be created or deleted.

        If the quota is used up, raises RequestError THROTTLING_QUOTA_EXCEEDED if ``is_strict``; else the client waits.
        """

    def timed(self, work: Awaitable[Any]) -> Awaitable[Any]:
        """Return ``work`` with its processor time counted, beyond its first step."""


class Request:
    """A frame with its header parsed.  ``body`` is what follows the header: writable, and this request's own."""

    __slots__ = ("api_key", "api_version", "arrived", "body", "client", "client_id", "correlation_id", "quota")

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        body: memoryview,
        client: Client,
        arrived: float,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body
        self.client = client
        self.arrived = arrived  # seconds of the monotonic clock
        self.quota: RequestQuota | None = None  # None: nothing is counted


class Response:
    """A response: its header and body in pieces, sent one after another and never joined if they are large.

    Without pieces nothing is sent.

    ``release`` is called once, when the kernel has taken the last piece or the connection has closed: it gives reserved
    bytes back.
    """

    __slots__ = ("buffers", "release", "size")

    def __init__(self, buffers: Sequence[Buffer], release: Callable[[], None] | None = None) -> None:
        self.buffers = buffers
        self.size = sum(map(len, buffers))  # buffers are of bytes, so their lengths are sizes
        self.release = release


NO_RESPONSE = Response(())
"""A response of no bytes, for a produce with acks=0."""


Outcome = Response | BaseException
"""The end of a request: its response, or the exception that closes its connection."""


def outcome_of(future: asyncio.Future[Response]) -> Outcome:
    """Return the outcome of a future that is done."""
    if future.cancelled():
        return asyncio.CancelledError()
    return future.exception() or future.result()


class PendingResponse:
    """A response that is not known yet; unlike a future, it reaches the connection in the turn of the loop that has it.

    Its callbacks run inside ``resolve``, in the order in which they were added: the endpoint counts the response, then
    the connection writes it.  They begin nothing new, since the caller of ``resolve`` may be in the middle of an event.
    """

    __slots__ = ("_calls", "_outcome")

    def __init__(self) -> None:
        self._calls: list[Callable[[Outcome], None]] = []
        self._outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        """True once it is resolved or cancelled."""
        return self._outcome is not None

    def on_over(self, call: Callable[[Outcome], None]) -> None:
        """Call ``call`` with the outcome, once there is one."""
        if self._outcome is not None:
            call(self._outcome)
        else:
            self._calls.append(call)

    def resolve(self, outcome: Outcome) -> None:
        """Pass the outcome on.  No effect if there is one already.

        An exception of a callback is a bug. It goes to the loop's exception handler, like an exception of a future's
        callback, and neither to the other callbacks nor to the caller.
        """
        if self._outcome is not None:
            return
        self._outcome = outcome
        calls, self._calls = self._calls, []
        for call in calls:
            try:
                call(outcome)
            except Exception as error:  # noqa: BLE001  # the caller may be an owner in the middle of a flush's event
                context = {"message": "a callback of a response failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def cancel(self) -> None:
        """Resolve with CancelledError: the client has gone."""
        self.resolve(asyncio.CancelledError())

    def __await__(self) -> Generator[Any, None, Response]:
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def over(outcome: Outcome) -> None:
            if future.done():
                return
            if isinstance(outcome, Response):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        self.on_over(over)
        try:
            return (yield from future)
        except asyncio.CancelledError:
            self.cancel()
            raise


class CloseConnection(Exception):
    """Bytes that are not a request: close the connection, with a log line and ``str`` as its reason."""


class CloseQuietly(CloseConnection):
    """A request that is not served, though nothing is wrong with its bytes: close the connection without a log line."""


class Dispatch(Protocol):
    """An endpoint: from a frame (without its size field) to a response.

    Called, it returns a ``Response``, or an awaitable of a response.  The awaitable has already run up to its first
    await (a ``PendingResponse`` has no turn of its own: the connection gets it in a call).  CloseConnection, raised or
    awaited, closes the connection; any other exception is a bug, which is logged and closes it too.  ``is_pipelined``
    returns, from the frame alone, whether this request (Produce) may be dispatched while earlier requests of its
    connection have no response.  All other requests are dispatched in turn, as in Kafka.  ``expects_response`` returns
    whether this request has a response by protocol.  A request without one (Produce with acks=0) outlives its
    connection's end.  ``may_park`` returns whether its response may wait for requests of other clients (Fetch,
    JoinGroup), and not only for work that the process owes.
    """

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]: ...

    def is_pipelined(self, frame: memoryview) -> bool: ...

    def expects_response(self, frame: memoryview) -> bool: ...

    def may_park(self, frame: memoryview) -> bool: ...
