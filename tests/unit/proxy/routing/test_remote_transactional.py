"""Transactional batches to owners elsewhere: the tag with their transactional id, and brokers of earlier versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Client, Request
from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from bmq.core.wire import produce as wire
from bmq.core.wire.produce import Transaction, parse_produce
from bmq.core.wire.produce_client import PRODUCE_VERSION, encode_produce_request
from bmq.endpoint.partitions import Appended
from bmq.endpoint.produce import handler
from tests.harness.scopes import serve
from tests.unit.endpoint.serving import AppendFuture
from tests.unit.proxy.cluster import Cluster, _produced, answers, cluster, idempotent

pytestmark = pytest.mark.slow

ONE = UUID(int=1)
REFUSED = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def transactional(sequence: int = 0, *, pid: int = 7) -> bytearray:
    return build_batch(
        [Record(value=b"v")], producer_id=pid, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL
    )


class Coordinators:
    """Coordinators that confirm every partition; ``asked`` has the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bool]] = []

    async def verify(
        self, transactional_id: str, producer_id: int, epoch: int, keys: Sequence[PartitionKey], add: bool
    ) -> dict[PartitionKey, tuple[ErrorCode, int]]:
        self.asked.append((transactional_id, producer_id, add))
        return dict.fromkeys(keys, (ErrorCode.NONE, 1))


async def append(world: Cluster, data: bytearray, transaction: Transaction | None) -> asyncio.Future[Appended]:
    owner = await world.owners.wait(world.key(), 10)
    callback = AppendFuture()
    callback.transaction = transaction
    owner.append(memoryview(data), callback, acks_all=True)
    return callback.future


async def code_of(appended: asyncio.Future[Appended]) -> str:
    try:
        await appended
    except RequestError as error:
        return error.code.name
    return "NONE"


async def test_each_part_carries_its_own_transactional_id_and_client_version() -> None:
    coordinators = Coordinators()
    async with cluster(verifiers={"b1": coordinators.verify, "b2": coordinators.verify}) as world:
        sent = [
            await append(world, transactional(), Transaction("x", 12)),
            await append(world, transactional(pid=8), Transaction("ÿ", 11)),
            await append(world, idempotent(0, producer_id=9), Transaction("z", 13)),
        ]
        assert [await code_of(each) for each in sent] == ["NONE"] * 3
        assert sorted(coordinators.asked) == [("x", 7, True), ("ÿ", 8, False)], "a plain batch is no transaction's"


async def test_a_part_keeps_its_transaction_on_its_way_to_the_next_owner() -> None:
    coordinators, held = Coordinators(), asyncio.Event()

    async def never(*question: object) -> dict[PartitionKey, tuple[ErrorCode, int]]:
        await held.wait()
        return {}

    async with cluster(verifiers={"b1": never, "b2": coordinators.verify}) as world:
        sent = await append(world, transactional(), Transaction("x", 12))
        world.move(0, "b2")
        with pytest.raises(RequestError, match="given back"):
            await sent
        again = await append(world, transactional(), Transaction("x", 12))
        assert await code_of(again) == "NONE"
        assert coordinators.asked == [("x", 7, True)]


async def test_a_broker_that_serves_no_transactions_takes_no_transactional_batch() -> None:
    async with cluster() as world:
        assert await code_of(await append(world, transactional(), Transaction("x", 12))) == REFUSED
        assert await answers([world.send(idempotent(0))]) == [("NONE", 0)]


async def test_a_broker_of_an_earlier_version_reads_the_request_without_the_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinators = Coordinators()
    async with cluster(verifiers={"b1": coordinators.verify}) as world:
        monkeypatch.setattr(wire, "TRANSACTION_TAG", -1)
        assert await code_of(await append(world, transactional(), Transaction("x", 12))) == REFUSED
        assert await answers([world.send(idempotent(0))]) == [("NONE", 0)]
        assert coordinators.asked == []


async def test_a_clients_tag_gives_no_right_to_a_transaction() -> None:
    coordinators = Coordinators()
    async with cluster(verifiers={"b1": coordinators.verify}) as world:
        records = memoryview(transactional())
        topics = [(world.topic.topic_id, [(0, records)])]
        buffers = encode_produce_request(-1, 1_000, topics, transactions={id(records): Transaction("x", 12)})
        client: Client = world.client
        body = memoryview(bytearray(b"".join(buffers)))
        asked = Request(0, PRODUCE_VERSION, 1, "me", body, client, 0.0)
        part = await _produced(serve(world.scopes, handler.APIS[0], asked))
        assert ErrorCode(part.error_code).name == REFUSED
        assert coordinators.asked == []


def test_the_tag_stands_beside_the_others() -> None:
    parts = [memoryview(bytes([number]) * 70) for number in range(4)]
    topics = [(ONE, [(number, part) for number, part in enumerate(parts)])]
    transactions = {id(parts[1]): Transaction("x", 12), id(parts[2]): Transaction("ÿ" * 100, 3)}
    body = memoryview(b"".join(encode_produce_request(-1, 500, topics, [(ONE, 0), (ONE, 1)], 7, transactions)))
    asked = parse_produce(body, PRODUCE_VERSION)
    assert asked.held_ms == 7
    assert asked.topics[0].restarts == {0, 1}
    assert asked.topics[0].transactions == {1: Transaction("x", 12), 2: Transaction("ÿ" * 100, 3)}
    assert [records for _, records in asked.topics[0].partitions] == parts


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\x0c\xff"])
def test_a_tag_that_is_no_transaction_is_refused(value: bytes) -> None:
    with pytest.raises(FormatError):
        Transaction.decode(memoryview(value))
