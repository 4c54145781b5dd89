"""Queries to partitions' owners over the control connection, repeated within a bounded time.

Every query may be repeated: the caller waits while the partition moves or the connection is broken, and gets a
retriable error only if that takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.message import InternalRequest, R
from bmq.meta.cluster.member import Member
from bmq.proxy.routing.batched_queries import BatchedQueries
from bmq.proxy.routing.produce_route import REFUSALS

PAUSE_S = 0.05
"""Pause between a query that failed and the next try."""


class OwnerQueries:
    """The queries of one process.

    ``member_of`` returns the owner of a partition, None if it has none now; ``patience_s`` bounds one query, with all
    its tries.
    """

    def __init__(
        self,
        queries: BatchedQueries,
        member_of: Callable[[PartitionKey], Member | None],
        patience_s: float,
    ) -> None:
        self._queries = queries
        self._member_of = member_of
        self._patience_s = patience_s
        self.is_deserted = False
        """True once this process is leaving and no broker is left to own partitions: queries do not wait then."""

    async def ask(self, key: PartitionKey, request: InternalRequest[R]) -> R:
        """Return the owner's response.

        Raises RequestError with the owner's error, or a retriable one if there was no response in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                member = self._member_of(key)
                if member is None:
                    raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} has no owner now")
                return await self._queries.ask(member, request, deadline - loop.time())
            except RequestError as error:
                may_pass = error.code in REFUSALS or error.code is ErrorCode.REQUEST_TIMED_OUT
                if not may_pass or self.is_deserted or loop.time() + PAUSE_S >= deadline:
                    raise
            await asyncio.sleep(PAUSE_S)
