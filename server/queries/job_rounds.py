"""Rounds of jobs that clean a compacted log: their requests, to the owner of the partition wherever it is."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from bmq.console.operations import RoundFacts, SwappedFacts
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.messages.broker import (
    BeginCleaningRequest,
    CleanedGroup,
    SwapCleanedRequest,
    SwapCleanedResponse,
)
from bmq.core.rpc.peers import PeerLost
from bmq.meta.catalog import Catalog
from bmq.server.cluster_member import ClusterMember
from bmq.storage.cleaning.job_round import numbers_of

RESPONSE_S = 120.0
"""Time-out of the request: a new owner of the partition reads the indexes of all its segments."""


class JobRounds:
    """The cleaning methods of ``ClusterOperations``."""

    def __init__(self, joined: ClusterMember, catalog: Catalog) -> None:
        self._joined = joined
        self._catalog = catalog

    async def begin_cleaning(self, topic: str, partition: int, job: str) -> RoundFacts:
        key = self._key(topic, partition)
        request = BeginCleaningRequest(topic_id=key.topic_id, partition=partition, job=job)
        plan = await ask_owner(self._joined, key, request)
        return RoundFacts(
            topic_id=str(key.topic_id),
            partition=partition,
            **numbers_of(plan),
            hold_ms=plan.hold_ms,
            aborted=b64encode(plan.aborted).decode(),
            producers=b64encode(plan.producers).decode(),
        )

    async def swap_cleaned(
        self,
        topic: str,
        partition: int,
        job: str,
        end: int,
        swap_until_ms: int,
        groups: Sequence[Mapping[str, Any]],
    ) -> SwappedFacts:
        rows = tuple(CleanedGroup(**each) for each in groups)
        response = await self._swap(topic, partition, job, end, swap_until_ms, rows)
        return SwappedFacts(swapped=response.swapped, expired=response.expired, stopped=response.stopped or None)

    async def end_cleaning(self, topic: str, partition: int, job: str) -> None:
        await self._swap(topic, partition, job, -1, -1, (), ends_hold=True)

    async def _swap(
        self,
        topic: str,
        partition: int,
        job: str,
        end: int,
        swap_until_ms: int,
        groups: tuple[CleanedGroup, ...],
        *,
        ends_hold: bool = False,
    ) -> SwapCleanedResponse:
        key = self._key(topic, partition)
        request = SwapCleanedRequest(
            topic_id=key.topic_id,
            partition=partition,
            job=job,
            end=end,
            swap_until_ms=swap_until_ms,
            groups=groups,
            ends_hold=ends_hold,
        )
        return await ask_owner(self._joined, key, request)

    def _key(self, topic: str, partition: int) -> PartitionKey:
        """Return the partition's key.  Raises RequestError if there is no such partition."""
        found = self._catalog.topics.get(topic)
        if found is None or not 0 <= partition < found.partitions:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}")
        return PartitionKey(found.topic_id, partition)


async def ask_owner(joined: ClusterMember, key: PartitionKey, request: InternalRequest[R]) -> R:
    """Return the response of the partition's owner, which may be this process.

    Raises RequestError: the owner's own; NOT_LEADER_OR_FOLLOWER without an owner; BROKER_NOT_AVAILABLE if the owner
    does not respond; UNSUPPORTED_VERSION if it is of a version before these requests.
    """
    view = joined.view
    member = view.members.get(view.owner_of(key))
    if member is None:
        text = f"partition {key.partition} has no owner now; `bmq cluster status` shows why"
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
    try:
        return await joined.peers.ask(member, request, RESPONSE_S)
    except (PeerLost, TimeoutError) as error:
        why = str(error) or f"no response within {RESPONSE_S:g} s"
        raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, f"{member.incarnation}: {why}") from None
    except RequestError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            text = f"the owner {member.incarnation} is of a version before rounds by jobs"
            raise RequestError(error.code, text) from None
        raise
