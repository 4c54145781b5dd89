"""The produce connection to a broker: its order, its bounds, and its faults, which reach many partitions in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Buffer
from bmq.core.rpc.peers import ConnectionKind, PeerBusy
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request
from bmq.endpoint.partitions import AppendCallback
from bmq.proxy.routing.produce_route import RouteState
from bmq.proxy.routing.produce_sender import NOTIFIED_A_TURN, PARTS_MAX
from tests.unit.proxy.cluster import Connection, cluster, idempotent, plain
from tests.unit.proxy.routing.link_faults import answering, refusing
from tests.unit.proxy.routing.senders import MANY, Senders, reconnect, send, senders_without_a_stop, until_all_are

pytestmark = pytest.mark.slow


@pytest.mark.leaves_tasks  # a link that goes on connecting
async def test_all_partitions_notice_a_connection_that_is_lost_and_made() -> None:
    with senders_without_a_stop() as senders:
        assert senders.states == {RouteState.OPEN}
        senders.peers.cut()
        assert not senders.link.is_up
        await until_all_are(senders, RouteState.UNREACHED)
        senders.peers.connect()
        await until_all_are(senders, RouteState.OPEN)
        senders.peers.cut()
        senders.peers.connect()  # before all partitions see the first
        await asyncio.sleep(1)
        assert senders.states == {RouteState.OPEN}
        senders.peers.cut()
        await asyncio.sleep(1)
        assert senders.states == {RouteState.UNREACHED}


async def test_a_produce_request_has_a_bounded_number_of_parts() -> None:
    senders = Senders()
    for owner in senders.owners:
        senders.append(owner, bytearray(61))
    await asyncio.sleep(0)
    assert len(senders.peer.calls) == MANY / PARTS_MAX


async def test_lost_batches_are_sent_again_before_newer_ones() -> None:
    """Send more from partitions that do not see the loss yet, when the next connection is up already."""

    with senders_without_a_stop() as senders:
        last = senders.owners[-200:]
        send(senders, last, 1)
        peer = await reconnect(senders)
        assert last[-1].route.is_up, "it has not heard of the loss"
        for number in (2, 3, 4):
            send(senders, last, number)
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert senders.states == {RouteState.OPEN}
        sent = [each for body, _ in peer.calls for each in body if isinstance(each, memoryview)]
        position = {id(record): at for at, record in enumerate(sent)}
        for owner in last:
            parts = sorted(owner.route.under_way, key=lambda part: position[id(part.records)])
            assert [part.records[60] for part in parts] == [1, 2, 3, 4]


async def test_a_partition_that_is_assigned_again_notices_the_lost_connection() -> None:
    """Assign a partition to another broker and back within one turn, while the connection is lost and made again."""

    senders = Senders(3 * NOTIFIED_A_TURN)
    owner = senders.owners[-1]
    send(senders, [owner], 1)
    peer = await reconnect(senders)
    assert owner.route.is_up, "it has not heard of the loss"
    assert len(owner.route.under_way) == 1, "nor of what became of its part"
    owner.assign(senders.link)
    send(senders, [owner], 2)
    await asyncio.sleep(1)
    sent = [each[60] for body, _ in peer.calls for each in body if isinstance(each, memoryview)]
    assert sent == [1, 2]
    assert senders.states == {RouteState.OPEN}


async def test_a_busy_connection_keeps_the_order_of_what_it_refuses() -> None:
    # All try again in one moment of the virtual time, which real ones that were refused in turns do not.
    with senders_without_a_stop(3 * NOTIFIED_A_TURN) as senders:
        peer = senders.peer
        peer.is_busy = True
        for number in range(2):
            for at, owner in enumerate(senders.owners):
                record = bytearray(61)
                record[60] = number
                senders.append(owner, record)
                if at % NOTIFIED_A_TURN == 0:
                    await asyncio.sleep(0)
        peer.is_busy = False
        await asyncio.sleep(5)
        assert senders.states == {RouteState.OPEN}
        for owner in senders.owners:
            assert [part.records[60] for part in owner.route.under_way] == [0, 1]


async def test_closing_a_produce_connection_answers_all_batches() -> None:
    senders = Senders()
    plain = b"".ljust(43) + (-1).to_bytes(8, "big", signed=True) + bytes(10)  # without a producer id
    sent = [senders.append(owner, bytearray(plain)) for owner in senders.owners]
    await asyncio.sleep(0)
    senders.peers.cut()
    await senders.link.close()
    await asyncio.sleep(0.1)
    assert {future.exception().code for future in sent} == {ErrorCode.REQUEST_TIMED_OUT}  # type: ignore[union-attr]


NO_TOPICS = b"\x01\0\0\0\0\0"


@pytest.mark.parametrize("body", [b"", b"garbage", NO_TOPICS])
async def test_a_malformed_response_to_a_produce_ends_the_connection(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Respond with something else: the batches may have been accepted; with a producer id they are sent again."""

    async with cluster() as world:
        await world.send(plain())
        link = world.network.links["b1", ConnectionKind.PRODUCE]
        monkeypatch.setattr(link, "call", answering(body))
        unsure, kept = world.send(plain()), world.send(idempotent(0))
        assert (await unsure).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await kept).error_code == ErrorCode.NONE
        assert not link.is_up
        assert world.network.links["b1", ConnectionKind.PRODUCE] is not link


async def test_a_busy_connection_is_not_taken_for_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certainly nothing was sent: kept, in order, whether or not there is a producer id."""

    async with cluster() as world:
        await world.send(plain())
        link = world.network.links["b1", ConnectionKind.PRODUCE]
        real, refused = Connection.call, 0

        def call(api_key: int, version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
            nonlocal refused
            if refused < 3:
                refused += 1
                future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
                future.set_exception(PeerBusy("too much", was_sent=False))
                return future
            return real(link, api_key, version, body)

        monkeypatch.setattr(link, "call", call)
        sent = [world.send(plain()), world.send(idempotent(0)), world.send(plain())]
        found = [await each for each in sent]
        assert [(each.error_code, each.base_offset) for each in found] == [(0, 1), (0, 2), (0, 3)]
        assert refused == 3
        assert link.is_up


async def test_no_batch_overtakes_one_that_a_busy_connection_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make room again when the next batch is sent, before any process sees the refusal: an owner that does not know the
    producer would take that batch for its first."""

    async with cluster() as world:
        await world.send(plain())
        link = world.network.links["b1", ConnectionKind.PRODUCE]
        refused: list[int] = []
        sent = [world.send(idempotent(0))]

        def there_is_room() -> bool:
            if not refused:  # and another batch comes in the same turn, behind the refused one
                sent.append(world.send(idempotent(1)))
                return False
            return True

        monkeypatch.setattr(link, "call", refusing(link, {ApiKey.PRODUCE}, refused, there_is_room))
        await asyncio.sleep(0.001)
        found = [await each for each in sent]
        assert [(each.error_code, each.base_offset) for each in found] == [(0, 1), (0, 2)]
        assert refused == [ApiKey.PRODUCE]


async def test_batches_behind_a_refused_one_of_the_same_request_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the first batch of a request: its mark that all before it have responses holds for it alone."""

    async with cluster() as world:
        await world.send(plain())
        real, refused = PartitionOwner.append, 0

        def append(self: PartitionOwner, data: memoryview, callback: AppendCallback, **options: Any) -> None:
            nonlocal refused
            refused += 1
            if refused == 1:
                callback.on_failed(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not yet"))
            else:
                real(self, data, callback, **options)

        monkeypatch.setattr(PartitionOwner, "append", append)
        parts = [(0, memoryview(idempotent(number))) for number in range(2)]
        topics = [(world.topic.topic_id, parts)]
        body = encode_produce_request(-1, 1000, topics, [(world.topic.topic_id, 0)])
        response = await world.network.links["b1", ConnectionKind.PRODUCE].call(ApiKey.PRODUCE, PRODUCE_VERSION, body)
        ((first, second),) = [topic.partitions for topic in decode_produce_response(response)]
        assert first.error_code == second.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused == 1
