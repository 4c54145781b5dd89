"""The high watermarks of many partitions, from the brokers that own them: a query per broker, not per partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from bmq.core.aio.steps import batched
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import HighWatermarksRequest
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import BROKER, Member
from bmq.meta.cluster.view import ClusterView
from bmq.proxy.routing.batched_queries import Asker

RESPONSE_S = 2.0
"""Time-out of one query; a broker responds from memory."""
PARTITIONS_A_QUESTION = 5_000
"""Partitions of one query: 100 KB of a request, 5 ms of the broker's processor time."""
PARALLEL = 8
"""Queries under way at once."""


class HighWatermarks:
    """The lookup of high watermarks, for numbers that an operator sees.

    ``local`` returns the watermark of a partition of this process, or -1, as another broker's response has it.  It is
    None in a process that is not a broker.  ``asker`` sends requests to other processes.
    """

    def __init__(self, view: ClusterView, local: Callable[[PartitionKey], int] | None, asker: Asker) -> None:
        self._view = view
        self._local = local
        self._asker = asker

    async def find(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
        """Return the high watermarks that are known now.

        A partition is missing if it is not open, or if its owner does not respond in time or does not serve the query.
        It is also missing while its ownership is in doubt after a standstill of the owner.
        """
        found: dict[PartitionKey, int] = {}
        elsewhere: dict[str, list[PartitionKey]] = {}
        turns = Turns()
        for key in keys:
            if turns.is_over():
                await next_turn()
            owner = self._view.owner_of(key)
            if owner != self._view.own:
                elsewhere.setdefault(owner, []).append(key)
            elif self._local is not None and (end := self._local(key)) >= 0:
                found[key] = end
        limit = asyncio.Semaphore(PARALLEL)
        for answers in await asyncio.gather(*(self._ask(*query, limit) for query in self._queries(elsewhere))):
            found.update(answers)
        return found

    def _queries(
        self, by_owner: Mapping[str, Sequence[PartitionKey]]
    ) -> Iterator[tuple[Member, Sequence[PartitionKey]]]:
        for incarnation, keys in by_owner.items():
            member = self._view.members.get(incarnation)
            if member is None or not member.has(BROKER):
                continue
            for part in batched(keys, PARTITIONS_A_QUESTION):
                yield member, part

    async def _ask(
        self, member: Member, keys: Sequence[PartitionKey], limit: asyncio.Semaphore
    ) -> dict[PartitionKey, int]:
        request = HighWatermarksRequest(tuple((key.topic_id, key.partition) for key in keys))
        async with limit:
            try:
                response = await self._asker.ask(member, request, RESPONSE_S)
            except (RequestError, PeerLost, TimeoutError):
                return {}  # its partitions are counted as unknown
        if len(response.watermarks) != len(keys):
            return {}
        return {key: end for key, end in zip(keys, response.watermarks, strict=True) if end >= 0}
