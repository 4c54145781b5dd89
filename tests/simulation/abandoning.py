"""Clients with a request that they give up: what they do before, instead and afterwards; here those of groups and logs.

``abandoning_admins`` has the administrators, ``abandoning_producers`` the transactional producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kafka.protocol.consumer import (
    JoinGroupResponse,
    LeaveGroupResponse,
    ListOffsetsResponse,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceResponse

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.proxy.handlers.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
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
    offset_request,
    plain_request,
    respond,
)
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Place
from tests.simulation.kafka_clients import check, create_topic, produce_request

TOPIC, PARTITIONS = "orders", 3

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

    def __init__(self, at: Places) -> None:
        self.at = at
        self.name = f"{type(self).__name__}-{at.number}"
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
        await abandon(self.client, message, self.at.gives_up_s)

    async def go_on(self) -> None:
        """Do the same and more through another process."""

    async def check(self) -> None:
        raise NotImplementedError

    async def respond(self, message: Message, *done: ErrorCode) -> Any:
        """Return the response of another process than the stopped one; ``done``: errors that a repetition may get."""
        return await self.at.ask(partial(respond, message=message, done=done))


class Committing(Abandoning):
    """A consumer that assigns its partitions itself."""

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

    def __init__(self, at: Places) -> None:
        super().__init__(at)
        Topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
        topic = Topic(name=TOPIC, partitions=[Topic.OffsetDeleteRequestPartition(partition_index=0)])
        request = OffsetDeleteRequest(group_id=self.name, topics=[topic])
        self.message = Message(request, OffsetDeleteResponse, 0)


class DeletingGroups(_AlteringOffsets):
    """An administrator who deletes a group."""

    def __init__(self, at: Places) -> None:
        super().__init__(at)
        self.message = Message(DeleteGroupsRequest(groups_names=[self.name]), DeleteGroupsResponse, 2)


class Joining(Abandoning):
    """A static member."""

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


class Leaving(Joining):
    """A static member that is to leave, and joins again instead."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.at.ask(partial(join, group=self.name, topic=TOPIC, instance="i"))

    async def give_up(self) -> None:
        await self.abandon(Message(leave_request(self.name, "i"), LeaveGroupResponse, 3))


class _OfALog(Abandoning):
    """A client of a topic of its own, with three records."""

    async def prepare(self) -> None:
        await super().prepare()
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


class Deleting(_OfALog):
    """An administrator who thinks better of it."""

    async def give_up(self) -> None:
        await self.abandon(Message(delete_request(self.name, 2), DeleteRecordsResponse, 2))

    async def check(self) -> None:
        assert await self.find(EARLIEST) == 0, f"{self.name}: records were deleted after their client had gone on"


class Producing(_OfALog):
    """A producer without a producer id."""

    async def give_up(self) -> None:
        await self.abandon(Message(plain_request(self.name, 1_000, 1), ProduceResponse, 9))

    async def go_on(self) -> None:
        await self.write(1_000, 1)

    async def check(self) -> None:
        assert (end := await self.find(LATEST)) == 4, f"{self.name}: four records were written, the end is {end}"


class _Asking(Abandoning):
    """A client that asks the process as soon as that goes on, about what others have done meanwhile."""

    async def give_up(self) -> None:
        await asyncio.sleep(self.at.gives_up_s)

    async def go_on(self) -> None:
        self.right = await self.change()
        self.asked = [asyncio.create_task(self._ask()) for _ in range(3)]

    async def change(self) -> object:
        """Change something through another process, and return the right response from then on."""
        raise NotImplementedError

    async def ask(self, client: ClusterClient) -> object:
        """Ask through the process that was stopped."""
        raise NotImplementedError

    async def _ask(self) -> object:
        client = ClusterClient(self.at.world, self.at.slow.host)
        found = await insist(self.at.world, client, self.ask)
        client.close()
        return found

    async def check(self) -> None:
        found = [await each for each in self.asked]
        assert found == [self.right] * 3, f"{self.name}: {found}, not {self.right}"


class AskingForOffsets(_Asking):
    """A consumer that begins where another one has committed."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=50))

    async def change(self) -> int:
        await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=200))
        return 200

    async def ask(self, client: ClusterClient) -> int:
        return await committed(client, self.name, TOPIC)


class Searching(_Asking, _OfALog):
    """A consumer that looks for its position."""

    async def change(self) -> int:
        await self.write(2_000, 2)
        self.timestamp = self.at.rng.choice((EARLIEST, LATEST, MAX_TIMESTAMP, 2_000))
        if self.timestamp == EARLIEST:
            await self.respond(Message(delete_request(self.name, 2), DeleteRecordsResponse, 2))
        return {EARLIEST: 2, LATEST: 5}.get(self.timestamp, 3)

    async def ask(self, client: ClusterClient) -> int:
        return await offset_for(client, self.name, 0, self.timestamp)


class AskingForEpochs(_Asking, _OfALog):
    """A consumer that asks for the end of the epoch in which it has read the last record."""

    async def change(self) -> object:
        await self.write(2_000, 2)
        latest = Message(offset_request(self.name, 0, LATEST), ListOffsetsResponse, 7)
        self.epoch = (await self.respond(latest)).topics[0].partitions[0].leader_epoch
        return self.epoch, 5

    async def ask(self, client: ClusterClient) -> object:
        Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = Topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=self.epoch)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[Topic(topic=self.name, partitions=[part])])
        response = await respond(client, Message(request, OffsetForLeaderEpochResponse, 4))
        found = response.topics[0].partitions[0]
        return found.leader_epoch, found.end_offset


class AskingForProducers(_Asking, _OfALog):
    """An administrator who asks for the last sequence of a producer."""

    async def change(self) -> object:
        init = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        producer = (await self.respond(Message(init, InitProducerIdResponse, 2))).producer_id
        batch = build_batch([Record(value=b"v")] * 2, producer_id=producer, producer_epoch=0, base_sequence=0)
        await self.respond(Message(produce_request(self.name, 0, bytes(batch), -1), ProduceResponse, 9))
        return [(producer, 1)]

    async def ask(self, client: ClusterClient) -> object:
        topic = DescribeProducersRequest.TopicRequest(name=self.name, partition_indexes=[0])
        response = await respond(
            client, Message(DescribeProducersRequest(topics=[topic]), DescribeProducersResponse, 0)
        )
        return [(each.producer_id, each.last_sequence) for each in response.topics[0].partitions[0].active_producers]


KINDS = (
    Committing, DeletingOffsets, DeletingGroups, Joining, Leaving, Deleting, Producing,
    AskingForOffsets, Searching, AskingForEpochs, AskingForProducers,
)  # fmt: skip
