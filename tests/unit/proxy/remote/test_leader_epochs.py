"""The leader epochs that a proxy gives clients: never one that sends a client round for ever."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from bmq.core.call import Answer, Client, Request
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.steps import finish_steps
from bmq.core.turns import ELEMENTS_A_TURN
from bmq.core.wire.codec import encode_response
from bmq.core.wire.internal import AskRequest, AskResponse, LiveSegmentRequest, LiveSegmentResponse, Question
from bmq.core.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from bmq.meta.cluster.member import Member
from bmq.meta.members import OneNode, ProxyAddress
from bmq.proxy import metadata_cache
from bmq.proxy.handlers import describe_topic_partitions, list_offsets, metadata, offset_for_leader_epoch
from bmq.proxy.longpoll import Wanted
from bmq.proxy.remote.leader_epochs import TRUST_S, LeaderEpochs
from bmq.proxy.remote.remote_tails import UNREAD_S
from tests.simulation.loop import run
from tests.unit.proxy.admin_serving import decode
from tests.unit.proxy.remote.cluster import Cluster, cluster, plain

METADATA_VERSION, LIST_VERSION, EPOCH_VERSION = 12, 7, 4
EARLIEST = -2
SETTLED_S = 1.0
"""Longer than a planned move takes here."""
LATE_S = 0.05
"""An epoch in Metadata may be so late."""


def play(story: Callable[[ProxyClient], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with cluster(**options) as world:
            await story(ProxyClient(world))

    run(main())


class ProxyClient:
    """A consumer's requests to the proxy, with the leader epoch that Metadata gave last.

    Java's and librdkafka's consumers both take an epoch that is larger, and -1 for "unknown, do not check"
    (``Metadata.updateLatestMetadata``, ``rd_kafka_toppar_leader_update``); both ignore one that is smaller.
    """

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.epoch = -1
        world.services.members = OneNode(ProxyAddress(0, "here", 9092))

    async def _ask(self, api: Any, version: int, message: Any, kind: Any) -> Any:
        body = memoryview(bytearray(message.encode(version=version)))
        request = Request(api.key, version, 1, "me", body, cast(Client, self.world.client), 0.0)
        found = api.handle(self.world.services, request, type(message).decode(bytes(body), version=version))
        if isinstance(found, Awaitable):
            found = await found
        if isinstance(found, Answer):
            return decode(kind, version, b"".join(found.buffers))
        return decode(kind, version, b"".join(encode_response(api.key, version, 1, found)))

    async def refresh(self) -> int:
        """The epoch as Metadata shows it; ``epoch`` is what the client makes of it."""
        topics = [MetadataRequest.MetadataRequestTopic(name="orders", topic_id=uuid.UUID(int=0))]
        message = MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        found = await self._ask(metadata.APIS[0], METADATA_VERSION, message, MetadataResponse)
        told = found.topics[0].partitions[0].leader_epoch
        if told == -1 or told >= self.epoch:
            self.epoch = told
        return cast(int, told)

    async def described(self) -> int:
        message = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name="orders")],
            response_partition_limit=10,
            cursor=None,
        )
        found = await self._ask(describe_topic_partitions.APIS[0], 0, message, DescribeTopicPartitionsResponse)
        return cast(int, found.topics[0].partitions[0].leader_epoch)

    async def earliest(self) -> ErrorCode:
        Topic = ListOffsetsRequest.ListOffsetsTopic
        part = Topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=self.epoch, timestamp=EARLIEST)
        message = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[Topic(name="orders", partitions=[part])], timeout_ms=0
        )
        found = await self._ask(list_offsets.APIS[0], LIST_VERSION, message, ListOffsetsResponse)
        return ErrorCode(found.topics[0].partitions[0].error_code)

    async def end_of(self, epoch: int) -> ErrorCode:
        Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = Topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=self.epoch, leader_epoch=epoch)
        message = OffsetForLeaderEpochRequest(replica_id=-1, topics=[Topic(topic="orders", partitions=[part])])
        api = offset_for_leader_epoch.APIS[0]
        found = await self._ask(api, EPOCH_VERSION, message, OffsetForLeaderEpochResponse)
        return ErrorCode(found.topics[0].partitions[0].error_code)

    async def fetch(self) -> ErrorCode:
        wanted = Wanted(self.world.topic.topic_id, 0, 0, 1 << 20, self.epoch)
        fetched = await self.world.fetch(wanted, max_wait_s=1)
        return fetched.looks[0].error if fetched.looks else ErrorCode.NONE

    async def read_and_leave(self) -> None:
        """Somebody reads the partition for a moment: from then on the proxy has seen its epoch."""
        await self.world.send(plain())
        assert await self.fetch() is ErrorCode.NONE
        await asyncio.sleep(0.1)
        assert await self.refresh() >= 0
        await asyncio.sleep(UNREAD_S + 15)
        assert self.world.remote.followed == 0


@pytest.mark.parametrize("question", ["earliest", "end_of"])
def test_a_consumer_that_comes_after_a_move_that_nobody_saw_is_let_in(question: str) -> None:
    async def story(client: ProxyClient) -> None:
        await client.read_and_leave()
        client.world.move(0, "b2")
        await asyncio.sleep(SETTLED_S)
        client.world.move(0, "b1")
        await asyncio.sleep(SETTLED_S)

        async def ask() -> ErrorCode:
            await client.refresh()
            return await (client.earliest() if question == "earliest" else client.end_of(0))

        tries = [await ask()]
        await asyncio.sleep(0.1)
        tries.append(await ask())
        assert tries[-1] is ErrorCode.NONE, tries
        assert await client.fetch() is ErrorCode.NONE

    play(story)


def test_a_client_that_knows_an_old_epoch_is_fenced_once() -> None:
    """It asked before the move.  The refusal itself is what this proxy learns the new epoch from."""

    async def story(client: ProxyClient) -> None:
        await client.read_and_leave()
        await client.refresh()
        old = client.epoch
        assert old >= 0
        client.world.move(0, "b2")
        await asyncio.sleep(SETTLED_S)
        assert await client.earliest() is ErrorCode.FENCED_LEADER_EPOCH
        await asyncio.sleep(0.1)
        assert await client.refresh() > old
        assert await client.described() == client.epoch
        assert await client.earliest() is ErrorCode.NONE

    play(story)


def test_what_another_proxy_told_does_not_keep_a_client_out() -> None:
    """Its questions go to one proxy, its Metadata requests to another, which hears of the move by its view alone."""

    async def story(client: ProxyClient) -> None:
        await client.read_and_leave()
        assert await client.refresh() >= 0
        client.world.move(0, "b2")
        await asyncio.sleep(LATE_S)
        assert await client.refresh() == -1, "it is known that the epoch before is not the owner's"
        assert await client.described() == -1
        assert await client.earliest() is ErrorCode.NONE

    play(story)


def test_an_epoch_that_rises_without_a_move_is_not_told_wrongly_for_long() -> None:
    """The same broker opens the partition again: no assignment changes, and nobody tells this proxy."""

    async def story(client: ProxyClient) -> None:
        await client.read_and_leave()
        await asyncio.sleep(TRUST_S + LATE_S)
        assert await client.refresh() == -1

    play(story)


def test_a_partition_that_is_read_shows_its_owners_epoch_or_none() -> None:
    """None while it moves; the next one from the moment that this proxy may fence a client with it."""

    async def story(client: ProxyClient) -> None:
        await client.world.send(plain())
        await client.fetch()
        await asyncio.sleep(0.1)
        old = await client.refresh()
        parked = asyncio.ensure_future(client.world.fetch(client.world.want(1), max_wait_s=100))
        client.world.move(0, "b2")
        seen = []
        for _ in range(100):
            seen.append(await client.refresh())
            await asyncio.sleep(0.05)
        known = [epoch for epoch in seen if epoch != -1]
        assert known == sorted(known), "never back"
        assert old not in known, "once the move is known"
        assert seen[-1] > old
        await client.world.send(plain())
        await parked

    play(story)


@pytest.mark.parametrize("asks", ["fetch", "earliest"])
def test_a_client_that_is_fenced_is_given_the_new_epoch_by_the_next_metadata(
    asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a topic of so many partitions that all epochs are looked at only every few seconds."""
    monkeypatch.setattr(metadata_cache, "LOOK_MIN_S", 3600.0)

    async def story(client: ProxyClient) -> None:
        await client.refresh()
        await client.world.send(plain())
        assert await client.fetch() is ErrorCode.NONE
        old = await client.refresh()
        assert old >= 0
        if asks == "earliest":
            await asyncio.sleep(UNREAD_S + 15)
            assert client.world.remote.followed == 0
            assert await client.refresh() == old
        client.world.move(0, "b2")
        await asyncio.sleep(SETTLED_S)
        ask = client.fetch if asks == "fetch" else client.earliest
        assert await ask() is ErrorCode.FENCED_LEADER_EPOCH
        assert await client.refresh() > old
        assert await ask() is ErrorCode.NONE

    play(story)


# ------------------------------------------------------------------------------------------------ what is remembered

KEY = PartitionKey(uuid.UUID(int=7), 3)


def known(owners: dict[PartitionKey, str], changed: Callable[[PartitionKey], None] = lambda key: None) -> LeaderEpochs:
    return LeaderEpochs(lambda key: owners.get(key, ""), changed)


def test_only_the_owner_is_believed() -> None:
    epochs = known({KEY: "b1"})
    epochs.note(KEY, "b2", 9, 0.0)
    assert epochs.of(KEY, 0.0) == -1
    epochs.note(KEY, "b1", 4, 0.0)
    assert epochs.of(KEY, 0.0) == 4


def test_an_epoch_rises_and_is_believed_for_a_while() -> None:
    epochs = known({KEY: "b1"})
    epochs.note(KEY, "b1", 4, 0.0)
    epochs.note(KEY, "b1", 3, 5.0)
    assert epochs.of(KEY, TRUST_S) == 4, "an answer that was overtaken"
    assert epochs.of(KEY, TRUST_S + 1) == -1, "and confirms nothing"
    epochs.note(KEY, "b1", 4, TRUST_S)
    assert epochs.of(KEY, 2 * TRUST_S) == 4
    epochs.forget(KEY)
    assert epochs.of(KEY, TRUST_S) == -1


def test_each_change_of_what_is_known_is_told_once() -> None:
    changed: list[PartitionKey] = []
    epochs = known({KEY: "b1"}, changed.append)
    acts: list[tuple[Callable[[], None], int]] = [
        (lambda: epochs.note(KEY, "b1", 4, 0.0), 1),
        (lambda: epochs.note(KEY, "b1", 4, 1.0), 1),
        (lambda: epochs.note(KEY, "b1", 3, 1.0), 1),
        (lambda: epochs.note(KEY, "b1", 5, 1.0), 2),
        (lambda: epochs.forget(KEY), 3),
        (lambda: epochs.forget(KEY), 3),
        (lambda: epochs.note(KEY, "b1", 5, 2.0), 4),
        (lambda: finish_steps(epochs.sweep(TRUST_S)), 4),
        (lambda: finish_steps(epochs.sweep(TRUST_S + 3.0)), 5),
    ]
    for act, told in acts:
        act()
        assert changed == [KEY] * told


def test_what_is_old_is_dropped_in_turns_unless_it_is_confirmed_meanwhile() -> None:
    keys = [PartitionKey(KEY.topic_id, index) for index in range(2 * ELEMENTS_A_TURN)]
    epochs = known(dict.fromkeys(keys, "b1"))
    for key in keys:
        epochs.note(key, "b1", 4, 0.0)
    sweep = epochs.sweep(TRUST_S + 1)
    next(sweep)
    assert len(epochs) == ELEMENTS_A_TURN
    epochs.note(keys[-1], "b1", 4, TRUST_S + 1)
    finish_steps(sweep)
    assert len(epochs) == 1


def test_what_is_old_takes_no_memory() -> None:
    epochs = known({KEY: "b1"})
    epochs.note(KEY, "b1", 4, 0.0)
    finish_steps(epochs.sweep(TRUST_S))
    assert len(epochs) == 1
    finish_steps(epochs.sweep(TRUST_S + 1))
    assert len(epochs) == 0


@pytest.mark.parametrize(
    ("request_", "response", "epoch"),
    [
        (AskRequest(KEY.topic_id, 3, Question.ENDS), AskResponse(ErrorCode.NONE, "", (5, 0, 1, 1)), 5),
        (AskRequest(KEY.topic_id, 3, Question.CONFIRM_END), AskResponse(ErrorCode.NONE, "", (6, 0, 1, 1)), 6),
        (LiveSegmentRequest(KEY.topic_id, 3), LiveSegmentResponse(ErrorCode.NONE, epoch=7), 7),
        (AskRequest(KEY.topic_id, 3, Question.END_OF_EPOCH, 1), AskResponse(ErrorCode.NONE, "", (1, 9)), -1),
        (AskRequest(KEY.topic_id, 3, Question.LOG_BYTES), AskResponse(ErrorCode.NONE, "", (8,)), -1),
        (AskRequest(KEY.topic_id, 3, Question.ENDS), AskResponse(ErrorCode.NONE, "", ()), -1),
    ],
)
def test_every_answer_with_an_epoch_is_heard(request_: Any, response: Any, epoch: int) -> None:
    epochs = known({KEY: "b1"})
    epochs.heard(KEY, cast(Member, type("_Member", (), {"incarnation": "b1"})()), request_, response, 0.0)
    assert epochs.of(KEY, 0.0) == epoch
