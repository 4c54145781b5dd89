"""Clients that ask a process as soon as it goes on, about what others have changed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    LeaveGroupResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceResponse

from bmq.coordinator.offsets.lag import LagReport
from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.shard_kinds import GROUPS
from bmq.proxy.handlers.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from bmq.server.node import Node
from tests.simulation.abandoned_requests import (
    Message,
    commit,
    committed,
    delete_request,
    heartbeat,
    insist,
    join,
    leave_request,
    offset_for,
    offset_request,
    respond,
    sync_request,
)
from tests.simulation.abandoning import TOPIC, Abandoning, OfALog
from tests.simulation.abandoning_producers import ENDED, Transacting
from tests.simulation.cluster_events import run_in
from tests.simulation.cluster_world import ClusterClient, ClusterWorld
from tests.simulation.kafka_clients import Refused, check, produce_request

SESSION_S = 6.0
"""The shortest session of a member."""
LAG_S = 30.0
"""Time-out of a count of lag by the process: it may end meanwhile."""


class _Judged(ClusterClient):
    """A client that asks for the APIs of its kind only, so that the table of kinds names no other."""

    def __init__(self, world: ClusterWorld, host: str, apis: Collection[ApiKey]) -> None:
        super().__init__(world, host)
        self._apis = apis

    async def call(self, request: Any, response: type[Any], version: int, timeout_s: float = 30.0) -> Any:
        assert request.API_KEY in self._apis, f"{request.name} is not among {self._apis}"
        return await super().call(request, response, version, timeout_s)


class Asking(Abandoning):
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
        client = _Judged(self.at.world, self.at.slow.host, self.apis)
        found = await insist(self.at.world, client, self.ask)
        client.close()
        return found

    async def check(self) -> None:
        found = [await each for each in self.asked]
        assert found == [self.right] * 3, f"{self.name}: {found}, not {self.right}"


class AskingForOffsets(Asking):
    """A consumer that begins where another one has committed."""

    apis = (ApiKey.OFFSET_FETCH,)
    found_by = "the offset is the one that was committed meanwhile"

    async def prepare(self) -> None:
        await super().prepare()
        await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=50))

    async def change(self) -> int:
        await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=200))
        return 200

    async def ask(self, client: ClusterClient) -> int:
        return await committed(client, self.name, TOPIC)


class Searching(Asking, OfALog):
    """A consumer that looks for its position."""

    apis = (ApiKey.LIST_OFFSETS,)
    found_by = "start, end and times of the log count what was written and deleted meanwhile"

    async def change(self) -> int:
        await self.write(2_000, 2)
        self.timestamp = self.at.rng.choice((EARLIEST, LATEST, MAX_TIMESTAMP, 2_000))
        if self.timestamp == EARLIEST:
            await self.respond(Message(delete_request(self.name, 2), DeleteRecordsResponse, 2))
        return {EARLIEST: 2, LATEST: 5}.get(self.timestamp, 3)

    async def ask(self, client: ClusterClient) -> int:
        return await offset_for(client, self.name, 0, self.timestamp)


class AskingForEpochs(Asking, OfALog):
    """A consumer that asks for the end of the epoch in which it has read the last record."""

    apis = (ApiKey.OFFSET_FOR_LEADER_EPOCH,)
    found_by = "the epoch's end counts what was written meanwhile"

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


class AskingForProducers(Asking, OfALog):
    """An administrator who asks for the last sequence of a producer."""

    apis = (ApiKey.DESCRIBE_PRODUCERS,)
    found_by = "the producer of meanwhile is there, with its sequence"

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


class _AskingForAMember(Asking):
    """A client of a group, whose only member, a static one, leaves meanwhile."""

    async def prepare(self) -> None:
        await super().prepare()
        self.member, self.generation = await self.at.ask(partial(join, group=self.name, topic=TOPIC, instance="i"))

    async def leave(self) -> None:
        """Leave, and commit an offset, which is refused while the group has a member.

        The commit is durable, and the leave with it.  A leave alone may be lost with its coordinator, as Kafka's.
        """

        async def leave(client: ClusterClient) -> None:
            message = Message(leave_request(self.name, "i"), LeaveGroupResponse, 3)
            await respond(client, message, (ErrorCode.UNKNOWN_MEMBER_ID,))
            try:
                await commit(client, self.name, TOPIC, 1)
            except Refused as refused:
                if refused.code is ErrorCode.UNKNOWN_MEMBER_ID:
                    raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from refused  # the member is there again
                raise

        await self.at.ask(leave)


class AskingForMembers(_AskingForAMember):
    """An administrator who describes a group."""

    apis = (ApiKey.DESCRIBE_GROUPS,)
    found_by = "a member that left meanwhile is not there"

    async def change(self) -> object:
        await self.leave()
        return "Empty", 0

    async def ask(self, client: ClusterClient) -> object:
        request = DescribeGroupsRequest(groups=[self.name], include_authorized_operations=False)
        (group,) = (await respond(client, Message(request, DescribeGroupsResponse, 5))).groups
        return group.group_state, len(group.members)


class AskingForAssignments(_AskingForAMember):
    """A second process with the instance of a member, which asks for its assignment."""

    apis = (ApiKey.SYNC_GROUP,)
    found_by = "a member that left meanwhile gets UNKNOWN_MEMBER_ID, no assignment"

    async def change(self) -> object:
        await self.leave()
        return ErrorCode.UNKNOWN_MEMBER_ID

    async def ask(self, client: ClusterClient) -> object:
        request = sync_request(self.name, TOPIC, "i", self.member, self.generation, [0])
        code = ErrorCode((await client.call(request, SyncGroupResponse, 3, timeout_s=60)).error_code)
        if code.is_retriable:
            check(code)
        return code


class Beating(_AskingForAMember):
    """A member that was removed, and does not know it.

    While a shard is loaded, its coordinator returns NONE for every heartbeat, as Kafka's does.
    """

    apis = (ApiKey.HEARTBEAT,)
    found_by = "a member that left meanwhile gets UNKNOWN_MEMBER_ID within the shortest session"

    async def change(self) -> object:
        await self.leave()
        return ErrorCode.UNKNOWN_MEMBER_ID

    async def ask(self, client: ClusterClient) -> object:
        until = self.at.world.loop.time() + SESSION_S
        while True:
            code = await heartbeat(client, self.name, "i", self.member, self.generation)
            if code is not ErrorCode.NONE or self.at.world.loop.time() > until:
                break
            await asyncio.sleep(0.5)
        if code.is_retriable:
            check(code)
        return code


class ListingGroups(Asking):
    """An administrator who lists the groups of the process."""

    apis = (ApiKey.LIST_GROUPS,)
    found_by = "a group that was deleted meanwhile is not there"

    async def prepare(self) -> None:
        await super().prepare()
        await self.at.ask(partial(commit, group=self.name, topic=TOPIC, offset=50))

    async def change(self) -> object:
        message = Message(DeleteGroupsRequest(groups_names=[self.name]), DeleteGroupsResponse, 2)
        await self.respond(message, ErrorCode.GROUP_ID_NOT_FOUND)
        return False

    async def ask(self, client: ClusterClient) -> object:
        response = await respond(client, Message(ListGroupsRequest(), ListGroupsResponse, 3))
        return self.name in {each.group_id for each in response.groups}


class _AskingForTransactions(Asking, Transacting):
    """An administrator of transactions, of which one is committed meanwhile."""

    async def prepare(self) -> None:
        await super().prepare()
        await self.respond(self.add())


class AskingForTransactions(_AskingForTransactions):
    """An administrator who describes a transaction."""

    apis = (ApiKey.DESCRIBE_TRANSACTIONS,)
    found_by = "a transaction that was committed meanwhile is not open"

    async def change(self) -> object:
        await self.respond(self.end())
        return True

    async def ask(self, client: ClusterClient) -> object:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        response = await respond(client, Message(request, DescribeTransactionsResponse, 0))
        return response.transaction_states[0].transaction_state in ENDED


class ListingTransactions(_AskingForTransactions):
    """An administrator who lists the open transactions of the process."""

    apis = (ApiKey.LIST_TRANSACTIONS,)
    found_by = "a transaction that was committed meanwhile is not among the open ones"

    async def change(self) -> object:
        await self.respond(self.end())
        return False

    async def ask(self, client: ClusterClient) -> object:
        request = ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[])
        response = await respond(client, Message(request, ListTransactionsResponse, 0))
        return self.name in {each.transactional_id for each in response.transaction_states}


async def sizes_of(client: ClusterClient, name: str) -> list[int]:
    """Return the bytes of the topic's first partition, if the process lists it."""
    topic = DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=[0])
    response = await respond(client, Message(DescribeLogDirsRequest(topics=[topic]), DescribeLogDirsResponse, 3))
    topics = [topic for result in response.results for topic in result.topics]
    return [part.partition_size for topic in topics for part in topic.partitions]


class AskingForSizes(Asking, OfALog):
    """An administrator who asks for the bytes of a log: of the process that clients use for it."""

    apis = (ApiKey.DESCRIBE_LOG_DIRS,)
    found_by = "the bytes of what was written meanwhile count, or the process does not list the log"

    async def prepare(self) -> None:
        await super().prepare()
        clients = [ClusterClient(self.at.world, each.host) for each in self.at.world.places]
        sizes = [await insist(self.at.world, each, self.sizes) for each in clients]
        self.before = max((size for found in sizes for size in found), default=0)
        for client in clients:
            client.close()

    async def sizes(self, client: ClusterClient) -> list[int]:
        """Return the bytes of the log, if the process lists it."""
        return await sizes_of(client, self.name)

    async def change(self) -> object:
        await self.write(2_000, 2)
        return True

    async def ask(self, client: ClusterClient) -> object:
        return all(size > self.before for size in await self.sizes(client))


async def fetch_end(client: ClusterClient, name: str, offset: int) -> int:
    """Fetch at an offset of the topic's first partition; return the end of the log by the response.

    Raises Refused for every error, OFFSET_OUT_OF_RANGE included.
    """
    Topic = FetchRequest.FetchTopic
    part = Topic.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=offset, log_start_offset=-1, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[Topic(topic=name, partitions=[part])], forgotten_topics_data=[],
    )  # fmt: skip
    response = await respond(client, Message(request, FetchResponse, 11))
    return int(response.responses[0].partitions[0].high_watermark)


class Fetching(Asking, OfALog):
    """A consumer that has read, or committed, up to the log's end."""

    apis = (ApiKey.FETCH,)
    found_by = "an offset up to the end of meanwhile is not out of range"

    async def change(self) -> object:
        await self.write(2_000, 2)
        return 5

    async def ask(self, client: ClusterClient) -> object:
        return await fetch_end(client, self.name, 5)


class AskingForLag(Asking, OfALog):
    """An operator who reads the lag of groups from the process, which counts that of its own groups and logs."""

    apis = ()
    found_by = "the lag counts what was written and committed meanwhile, or is not known"

    is_away = True  # a lag to the end of a log in doubt is not known, so that an old commit would not show

    async def prepare(self) -> None:
        await super().prepare()
        self.group = self.at.name(f"{self.name}-group", GROUPS)
        await self.at.ask(partial(commit, group=self.group, topic=self.name, offset=3))

    async def change(self) -> object:
        await self.write(2_000, 2)
        await self.at.ask(partial(commit, group=self.group, topic=self.name, offset=4))
        return True

    async def go_on(self) -> None:
        self.right = await self.change()
        self.asked = []
        process = self.at.slow.process
        if process is None or not process.is_alive or process.node is None:
            return
        counted = asyncio.get_running_loop().create_future()
        run_in(process, _count(process.node, counted))
        self.asked = [asyncio.create_task(self._judge(counted))]

    async def _judge(self, counted: asyncio.Future[LagReport]) -> object:
        """Return whether the report has no wrong lag of the group."""
        try:
            async with asyncio.timeout(LAG_S):
                report = await counted
        except TimeoutError:
            return True  # the process has ended
        self.lags = [
            each.lag for each in report.pairs if each.group == self.group and each.group not in report.groups_in_part
        ]
        return self.lags in ([], [1])

    async def check(self) -> None:
        found = [await each for each in self.asked]
        assert all(found), f"{self.name}: the lag is {self.lags}, not 1"


async def _count(node: Node, counted: asyncio.Future[LagReport]) -> None:
    assert node.collected.group_lag is not None
    await node.collected.group_lag.refresh()
    if not counted.done():
        counted.set_result(node.collected.group_lag.report)


KINDS = (
    AskingForOffsets, Searching, AskingForEpochs, AskingForProducers, AskingForMembers, AskingForAssignments, Beating,
    ListingGroups, AskingForTransactions, ListingTransactions, AskingForSizes, Fetching, AskingForLag,
)  # fmt: skip
