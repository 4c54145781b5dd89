"""The internal request LogSizes: a broker's bytes on storage by topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import nlargest
from uuid import UUID

from bmq.broker.log_sizes import LogSizes
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import LogSizesRequest, LogSizesResponse
from bmq.core.rpc.server import InternalCall
from bmq.meta.catalog import Catalog

TOPICS_MAX = 10_000
"""Topics in a response, the largest topics: 240 kB."""


def log_sizes(sizes: LogSizes, catalog: Catalog) -> LogSizesResponse:
    """Return the last count as a response.  A topic that was deleted since is left out."""
    named = nlargest(TOPICS_MAX, sizes.of_all_topics.items(), key=lambda item: item[1])
    found: list[tuple[UUID, int]] = []
    for name, size in named:
        topic = catalog.topics.get(name)
        if topic is not None:
            found.append((topic.topic_id, size))
    return LogSizesResponse(partitions_unknown=sizes.partitions_unknown, topics=tuple(found))


class LogSizesApi:
    """Handler of ``InternalKey.LOG_SIZES``.  ``count`` has the sizes counted again, and returns them."""

    def __init__(self, count: Callable[[], Awaitable[LogSizes]], catalog: Catalog) -> None:
        self._count = count
        self._catalog = catalog

    async def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded response.  Raises FormatError if ``body`` is not such a request."""
        LogSizesRequest.decode(body)
        return log_sizes(await self._count(), self._catalog).encode()
