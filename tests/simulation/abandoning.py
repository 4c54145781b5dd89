"""Clients with a request that they give up: what they do before, instead and afterwards; here those of groups and logs.

``abandoning_admins`` has the administrators, ``abandoning_producers`` the transactional producers, and
``abandoning_askers`` the clients that only ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsResponse,
)
from kafka.protocol.consumer import (
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    SyncGroupResponse,
)
from kafka.protocol.producer import ProduceResponse

from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import GROUPS, ShardId, ShardKind
from bmq.proxy.handlers.list_offsets import EARLIEST, LATEST
from bmq.server.node import Node
from tests.simulation.abandoned_requests import (
    GIVES_UP_S,
    Message,
    abandon,
    commit,
    commit_request,
    committed,
    delete_request,
    heartbeat,
    insist,
    join,
    join_request,
    leave_request,
    offset_for,
    plain_request,
    respond,
    sync_request,
)
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Place
from tests.simulation.group_clients import assignment
from tests.simulation.kafka_clients import check, create_topic

TOPIC, PARTITIONS = "orders", 3
NAMES_TRIED = 200
"""Names among which one is of a shard of the stopped process: it has a third of the shards."""

TOPICS_TRIED = 4

Call = Callable[[ClusterClient], Awaitable[object]]


@dataclass
class Places:
    """The world of one round: the process that is stopped, and the others."""

    world: ClusterWorld
    rng: Random
    slow: Place
    number: int
    gives_up_s: float = GIVES_UP_S
    """Request time-out of the clients."""
    has_begun: bool = False
    """The stopped process has read the request of one client.  The request may have had its effect before the stop.

    Then the checks compare with what the client has seen when it went on.
    """
    is_steered: bool = False
    """The stopped process serves the groups, the transactional ids and the logs of the clients."""

    def name(self, base: str, kind: ShardKind | None) -> str:
        """Return a name for a client's group or transactional id, whose shard ``kind`` has."""
        node = self.node
        topic = None if kind is None else node.catalog.topics.get(kind.topic)
        if not self.is_steered or kind is None or topic is None:
            return base
        for number in range(NAMES_TRIED):
            shard = node.view.shard(ShardId(kind, shard_of(f"{base}-{number}", topic.partitions)))
            if shard is not None and shard.incarnation == node.view.own:
                return f"{base}-{number}"
        return base

    @property
    def node(self) -> Node:
        """The node of the process that is, or will be, stopped."""
        process = self.slow.process
        assert process is not None
        assert process.node is not None
        return process.node

    def has_log(self, topic: str) -> bool:
        """Return whether the process has the first partition of the topic, as it sees that itself."""
        node = self.node
        found = node.catalog.topics.get(topic)
        return found is not None and node.view.owner_of(PartitionKey(found.topic_id, 0)) == node.view.own

    def client(self) -> ClusterClient:
        """Return a client of any process that is not stopped."""
        return ClusterClient(self.world, self.rng.choice([p.host for p in self.world.places if p is not self.slow]))

    async def ask(self, call: Call) -> Any:
        """Return what another process than the stopped one responds in the end."""
        client = self.client()
        try:
            return await insist(self.world, client, call)
        finally:
            client.close()


class Abandoning:
    """A client with one request that it gives up.  ``prepare``, ``give_up``, ``go_on``, ``check``, in this order."""

    apis: ClassVar[tuple[ApiKey, ...]]
    """The APIs of the request that it gives up, or of the responses that it judges."""
    found_by: ClassVar[str]
    """The observation that shows a wrong effect or response, for docs/design/simulation.md."""
    shards: ClassVar[ShardKind | None] = GROUPS
    """The kind of the shard that has the client's name."""

    def __init__(self, at: Places) -> None:
        self.at = at
        self.name = at.name(f"{type(self).__name__}-{at.number}", self.shards)
        self.partition = at.rng.randrange(PARTITIONS)
        self.client = ClusterClient(at.world, at.slow.host)
        self.is_late = at.rng.random() < 0.3
        """Connects only when the process is stopped."""

    async def prepare(self) -> None:
        """Do what comes before, and connect."""
        if not self.is_late:
            await insist(self.at.world, self.client, partial(committed, group="none", topic=TOPIC))

    async def give_up(self) -> None:
        raise NotImplementedError

    async def abandon(self, message: Message) -> None:
        """Send a request to the stopped process, and give it up."""
        assert message.request.API_KEY in self.apis, f"{self.name} gives up {message.request.name}"
        await abandon(self.client, message, self.at.gives_up_s, may_respond=self.at.has_begun)

    async def go_on(self) -> None:
        """Do the same and more through another process."""

    async def check(self) -> None:
        raise NotImplementedError

    async def respond(self, message: Message, *done: ErrorCode) -> Any:
        """Return the response of another process than the stopped one; ``done``: errors that a repetition may get."""
        return await self.at.ask(partial(respond, message=message, done=done))


class Committing(Abandoning):
    """A consumer that assigns its partitions itself."""

    apis = (ApiKey.OFFSET_COMMIT,)
    found_by = "the last commit stands"

    async def give_up(self) -> None:
        await self.abandon(Message(commit_request(self.name, TOPIC, 100), OffsetCommitResponse, 7))

    async def go_on(self) -> None:
        self.offset = self.at.rng.choice((0, 200))
        for offset in (100, self.offset):
            await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=offset))

    async def check(self) -> None:
        found = await self.at.ask(partial(committed, group=self.name, topic=TOPIC))
        assert found == self.offset, f"{self.name}: committed {self.offset}, then {found}"


class _AlteringOffsets(Committing):
    """An administrator of a group without members, whose consumer begins again meanwhile."""

    message: Message

    async def prepare(self) -> None:
        await super().prepare()
        await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=50))

    async def give_up(self) -> None:
        await self.abandon(self.message)


class DeletingOffsets(_AlteringOffsets):
    """An administrator who deletes a committed offset."""

    apis = (ApiKey.OFFSET_DELETE,)
    found_by = "the commit of after it stands"

    def __init__(self, at: Places) -> None:
        super().__init__(at)
        Topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
        topic = Topic(name=TOPIC, partitions=[Topic.OffsetDeleteRequestPartition(partition_index=0)])
        request = OffsetDeleteRequest(group_id=self.name, topics=[topic])
        self.message = Message(request, OffsetDeleteResponse, 0)


class DeletingGroups(_AlteringOffsets):
    """An administrator who deletes a group."""

    apis = (ApiKey.DELETE_GROUPS,)
    found_by = "the commit of after it stands"

    def __init__(self, at: Places) -> None:
        super().__init__(at)
        self.message = Message(DeleteGroupsRequest(groups_names=[self.name]), DeleteGroupsResponse, 2)


class Joining(Abandoning):
    """A static member."""

    apis = (ApiKey.JOIN_GROUP,)
    found_by = "the heartbeats of the member that joined again get no error"

    async def give_up(self) -> None:
        await self.abandon(Message(join_request(self.name, TOPIC, "i"), JoinGroupResponse, 5))

    async def go_on(self) -> None:
        self.member, self.generation = await self.at.ask(partial(join, group=self.name, topic=TOPIC, instance="i"))

    async def check(self) -> None:
        async def beat(client: ClusterClient) -> ErrorCode:
            code = await heartbeat(client, self.name, "i", self.member, self.generation)
            if code.is_retriable:
                check(code)
            return code

        code = await self.at.ask(beat)
        assert code is ErrorCode.NONE, f"{self.name}: a living member gets {code!r}"


class Syncing(Abandoning):
    """A member, alone in its group, that joins, and thinks better of its assignment."""

    apis = (ApiKey.SYNC_GROUP,)
    found_by = "a later assignment of the same generation is the member's"

    async def prepare(self) -> None:
        await super().prepare()

        async def join(client: ClusterClient) -> tuple[str, int]:
            request = join_request(self.name, TOPIC, "i", rebalance_ms=600_000)
            joined = await client.call(request, JoinGroupResponse, 5, timeout_s=60)
            check(joined.error_code)
            return joined.member_id, joined.generation_id

        self.member, self.generation = await self.at.ask(join)

    def sync(self, partition: int) -> Message:
        request = sync_request(self.name, TOPIC, "i", self.member, self.generation, [partition])
        return Message(request, SyncGroupResponse, 3)

    async def give_up(self) -> None:
        await self.abandon(self.sync(0))

    async def go_on(self) -> None:
        self.assignment = await self.ask_again()

    async def ask_again(self) -> bytes | None:
        """Return the member's assignment; None if the group has another coordinator that does not know the member.

        The generation is durable only with its assignment.
        """
        response = await self.respond(self.sync(1), ErrorCode.UNKNOWN_MEMBER_ID)
        return None if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID else bytes(response.assignment)

    async def check(self) -> None:
        found = await self.ask_again()
        assert found == self.assignment, f"{self.name}: a member's assignment was replaced by one that it gave up"
        if not self.at.has_begun and found is not None:
            assert found == assignment(TOPIC, [1]), f"{self.name}: a member has an assignment that it gave up"


class Leaving(Joining):
    """A static member that is to leave, and joins again instead."""

    apis = (ApiKey.LEAVE_GROUP,)
    found_by = "the heartbeats of the member that joined again get no error"

    async def prepare(self) -> None:
        await super().prepare()
        await self.at.ask(partial(join, group=self.name, topic=TOPIC, instance="i"))

    async def give_up(self) -> None:
        await self.abandon(Message(leave_request(self.name, "i"), LeaveGroupResponse, 3))


class OfALog(Abandoning):
    """A client of a topic of its own, with three records."""

    is_away: ClassVar[bool] = False
    """The log is that of another process than the stopped one, if this one is steered."""

    async def prepare(self) -> None:
        await super().prepare()
        await create_topic(self.at.world, self.name, 1)
        await self.write(1_000, 3)
        base, number = self.name, 0
        while self.at.is_steered and self.at.has_log(self.name) is self.is_away and number < TOPICS_TRIED:
            number += 1
            self.name = f"{base}-t{number}"
            await create_topic(self.at.world, self.name, 1)
            await self.write(1_000, 3)

    async def write(self, timestamp: int, count: int) -> None:
        async def append(client: ClusterClient) -> None:
            response = await client.call(plain_request(self.name, timestamp, count), ProduceResponse, 9)
            check(response.responses[0].partition_responses[0].error_code)

        await self.at.ask(append)

    async def find(self, timestamp: int) -> int:
        found = await self.at.ask(partial(offset_for, topic=self.name, partition=0, timestamp=timestamp))
        return int(found)


class Deleting(OfALog):
    """An administrator who thinks better of it."""

    apis = (ApiKey.DELETE_RECORDS,)
    found_by = "the log starts where it did"

    async def give_up(self) -> None:
        await self.abandon(Message(delete_request(self.name, 2), DeleteRecordsResponse, 2))

    async def go_on(self) -> None:
        self.start = await self.find(EARLIEST)

    async def check(self) -> None:
        start = self.start if self.at.has_begun else 0
        assert await self.find(EARLIEST) == start, f"{self.name}: records were deleted after their client had gone on"


class Producing(OfALog):
    """A producer without a producer id."""

    apis = (ApiKey.PRODUCE,)
    found_by = "the record is there once more, not twice"

    async def give_up(self) -> None:
        await self.abandon(Message(plain_request(self.name, 1_000, 1), ProduceResponse, 9))

    async def go_on(self) -> None:
        self.end = await self.find(LATEST)
        await self.write(1_000, 1)

    async def check(self) -> None:
        end = self.end if self.at.has_begun else 3
        found = await self.find(LATEST)
        assert found == end + 1, f"{self.name}: a record was written behind offset {end}, the end is {found}"


KINDS = (
    Committing, DeletingOffsets, DeletingGroups, Joining, Syncing, Leaving, Deleting, Producing,
)  # fmt: skip
