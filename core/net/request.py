"""One Kafka request and its answer, between a connection and whoever answers.

``core.net.listener`` cuts a connection's bytes into frames, hands each to the endpoint's ``Dispatch`` in the order of
arrival, and sends the answers in that order.  The dispatch of a frame runs up to its first await before the next frame
is looked at, so what is decided there (a produce's place in its partition) has the order of the requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Client(Protocol):
    """The connection that a request came by."""

    @property
    def peer(self) -> str:
        """Host and port of the other side, for log lines."""

    @property
    def host(self) -> str:
        """The other side's address, as groups and quotas name it."""

    @property
    def is_closed(self) -> bool:
        """The client has gone: what it waits for may be dropped."""

    client_software: tuple[str, str]
    """Name and version, as ApiVersions gave them; empty texts when it did not."""
    client_id: str | None
    """The start of the one that its last ApiVersions request had, for log lines."""

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have ``call`` run once when the connection closes; the answer forgets it again."""


class Request:
    """A frame with its header read.  ``body`` is what follows the header: writable, and this request's own."""

    __slots__ = ("api_key", "api_version", "arrived", "body", "client", "client_id", "correlation_id")

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


class Response:
    """A response: its header and body in pieces, sent one after another and never joined if they are large.

    ``release`` is called once, when the last piece was handed to the kernel or the connection has gone: it gives
    reserved bytes back.
    """

    __slots__ = ("buffers", "release", "size")

    def __init__(self, buffers: Sequence[Buffer], release: Callable[[], None] | None = None) -> None:
        self.buffers = buffers
        self.size = sum(map(len, buffers))  # buffers are of bytes, so their lengths are sizes
        self.release = release


NO_RESPONSE = Response(())
"""Nothing is sent: a produce with acks=0."""


class CloseConnection(Exception):
    """What came is no request that may be answered: close the connection, with one log line that says ``str``."""


class Dispatch(Protocol):
    """The endpoint: from a frame (without its size field) to an answer.

    An ``Response`` at once, or an awaitable of one that has run up to its first await already.  CloseConnection, raised
    or awaited, closes the connection; any other exception is a bug, logged and answered by closing too.
    ``is_pipelined`` says, from the frame alone, whether this request may be dispatched while earlier ones of its
    connection are still unanswered (Produce); all others wait for their turn, as in Kafka.
    """

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]: ...

    def is_pipelined(self, frame: memoryview) -> bool: ...
