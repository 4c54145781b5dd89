"""The response to a fetch, before it is encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bmq.core.errors import ErrorCode
from bmq.core.wire.primitives import NodeEndpoint
from bmq.endpoint.fetch.partition_read import PartitionRead
from bmq.endpoint.fetch.sessions import NO_SESSION


class FetchResult:
    """The response, not encoded yet.  ``release`` gives its bytes back to the budget; None if it holds none.

    ``endpoints`` has the addresses of the leaders that ``results`` name.
    """

    __slots__ = ("endpoints", "error", "release", "results", "session_id")

    def __init__(
        self,
        error: ErrorCode = ErrorCode.NONE,
        session_id: int = NO_SESSION,
        results: Sequence[PartitionRead] = (),
        release: Callable[[], None] | None = None,
        endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        self.endpoints = endpoints
        self.error = error
        self.session_id = session_id
        self.results = results
        self.release = release
