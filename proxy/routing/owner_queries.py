"""Questions to partitions' owners over the control connection, repeated within a bounded time.

Every question may be repeated: whoever asks waits through a move of the partition and a broken connection, and hears
a retriable error only when these take too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.message_fields import Message
from bmq.core.rpc.messages import InternalKey
from bmq.core.rpc.peers import Response
from bmq.meta.cluster.member import Member
from bmq.proxy.routing.batched_queries import BatchedQueries
from bmq.proxy.routing.produce_route import REFUSALS

PAUSE_S = 0.05
"""Between a question that its owner did not answer and the next try."""

R = TypeVar("R", bound=Response)


class OwnerQueries:
    """``member_of`` says whom to ask now, None when nobody owns the partition; ``patience_s`` bounds a question."""

    def __init__(
        self,
        questions: BatchedQueries,
        member_of: Callable[[PartitionKey], Member | None],
        patience_s: float,
    ) -> None:
        self._questions = questions
        self._member_of = member_of
        self._patience_s = patience_s
        self.is_deserted = False
        """We are leaving, and nobody is left who could own what has no owner: that is not waited for."""

    async def ask(self, key: PartitionKey, message: Message, api_key: InternalKey, response: type[R]) -> R:
        """RequestError: the owner's own, or a retriable one when there was no answer in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                member = self._member_of(key)
                if member is None:
                    raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} has no owner now")
                return await self._questions.ask(member, message, api_key, response, deadline - loop.time())
            except RequestError as error:
                may_pass = error.code in REFUSALS or error.code is ErrorCode.REQUEST_TIMED_OUT
                if not may_pass or self.is_deserted or loop.time() + PAUSE_S >= deadline:
                    raise
            await asyncio.sleep(PAUSE_S)
