"""Transactional batches at an owner: they wait for a coordinator, and get a result whatever ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bmq.broker.config import BrokerConfig, log_config
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.verification import WAIT_S
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import TRANSACTIONAL
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.wire.produce import Transaction
from bmq.endpoint.partitions import Appended
from tests.harness.waiting import until
from tests.unit.broker.partition.test_min_insync import keep_datanodes
from tests.unit.broker.world import World, batch, world
from tests.unit.endpoint.serving import AppendFuture

pytestmark = pytest.mark.slow

PID = 4000
Asked = tuple[str, int, int, bool]


class FakeVerifier:
    """Coordinators that answer when the test says; ``asked`` has the questions."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.code, self.ownership = ErrorCode.NONE, 1
        self.refused_epochs: set[int] = set()
        self.may_respond = asyncio.Event()

    async def __call__(
        self, transactional_id: str, producer_id: int, epoch: int, keys: Sequence[PartitionKey], add: bool
    ) -> dict[PartitionKey, tuple[ErrorCode, int]]:
        self.asked.append((transactional_id, producer_id, epoch, add))
        await self.may_respond.wait()
        code = ErrorCode.INVALID_PRODUCER_EPOCH if epoch in self.refused_epochs else self.code
        return dict.fromkeys(keys, (code, self.ownership))


class Writer:
    """One owner, with a fake verifier."""

    def __init__(self, w: World, owner: PartitionOwner, verifier: FakeVerifier) -> None:
        self.w = w
        self.owner = owner
        self.verifier = verifier

    def append(
        self,
        sequence: int,
        *,
        epoch: int = 0,
        pid: int = PID,
        version: int = 12,
        name: str | None = "t",
        attributes: int = TRANSACTIONAL,
        size: int = 1,
        acks_all: bool = True,
    ) -> asyncio.Future[Appended]:
        records = batch(
            b"v" * size, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, attributes=attributes
        )
        callback = AppendFuture()
        callback.transaction = None if name is None else Transaction(name, version)
        self.owner.append(memoryview(records), callback, acks_all=acks_all)
        return callback.future

    def respond(self, code: ErrorCode = ErrorCode.NONE, ownership: int = 1) -> None:
        self.verifier.code, self.verifier.ownership = code, ownership
        self.verifier.may_respond.set()

    async def end(self, *, epoch: int = 1, coordinator_epoch: int = 1, version: int = 2) -> None:
        await self.owner.end_transaction(TransactionMarker(PID, epoch, coordinator_epoch, Marker.ABORT, version))

    async def asks(self, count: int) -> None:
        await until(lambda: len(self.verifier.asked) == count)


@asynccontextmanager
async def writer(
    broker: BrokerConfig | None = None, *, is_served: bool = True, copies: int = 1
) -> AsyncIterator[Writer]:
    verifier = FakeVerifier()
    async with world(broker=broker, verifier=verifier if is_served else None) as w:
        w.topic("orders", assign=False)
        w.assigned.assign(w.path(), w.key(), log_config({"min.insync.replicas": str(copies)}, 3))
        yield Writer(w, await w.owner(), verifier)
        assert w.broker.context.budget.used == 0


async def code_of(appended: asyncio.Future[Appended]) -> str:
    try:
        await appended
    except RequestError as error:
        return error.code.name
    return "NONE"


async def codes_of(*appended: asyncio.Future[Appended]) -> list[str]:
    return [await code_of(one) for one in appended]


async def test_rule_12_the_first_batch_waits_and_the_producers_others_behind_it() -> None:
    async with writer() as one:
        waiting = [one.append(sequence) for sequence in range(3)]
        plain = one.append(0, pid=7, attributes=0)
        assert (await plain).base_offset == 0, "another producer does not wait"
        assert one.verifier.asked == [("t", PID, 0, True)]
        assert one.owner._context.state.unverified == 3
        one.respond()
        assert [(await each).base_offset for each in waiting] == [1, 2, 3]
        assert one.owner._context.state.unverified == 0
        assert (await one.append(3)).base_offset == 4
        assert len(one.verifier.asked) == 1, "the transaction is open"
        assert one.owner.last_stable_offset == 1


async def test_acks_1_waits_too() -> None:
    async with writer() as one:
        appended = one.append(0, acks_all=False)
        await one.asks(1)
        assert not appended.done()
        one.respond()
        assert (await appended).base_offset == 0
        await one.owner.flushed_ends()


@pytest.mark.parametrize(("version", "is_add"), [(3, False), (11, False), (12, True), (13, True)])
async def test_produce_12_adds_the_partition_and_earlier_versions_ask(version: int, is_add: bool) -> None:
    async with writer() as one:
        one.respond()
        await one.append(0, version=version)
        assert one.verifier.asked == [("t", PID, 0, is_add)]


async def test_rule_12_a_refused_transaction_takes_nothing() -> None:
    async with writer() as one:
        waiting = [one.append(0), one.append(1)]
        one.respond(ErrorCode.TRANSACTION_ABORTABLE)
        assert await codes_of(*waiting) == ["TRANSACTION_ABORTABLE"] * 2
        assert await codes_of(one.append(0, version=10)) == ["INVALID_TXN_STATE"]
        assert one.owner.high_watermark == 0


async def test_rule_12_a_marker_between_question_and_answer_voids_the_answer() -> None:
    async with writer() as one:
        waiting = one.append(0)
        await one.asks(1)
        await one.end(epoch=1)
        one.respond(ErrorCode.NONE, ownership=1)
        assert await codes_of(waiting) == ["INVALID_PRODUCER_EPOCH"], "the marker has brought a later epoch"
        assert one.owner.high_watermark == one.owner.last_stable_offset == 1, "nothing behind the marker"


async def test_rule_12_a_marker_of_an_equal_epoch_makes_the_owner_ask_again() -> None:
    async with writer() as one:
        waiting = one.append(0, version=11)
        await one.asks(1)
        await one.end(epoch=0, version=1)
        one.respond(ErrorCode.NONE)
        await one.asks(2)
        assert await codes_of(waiting) == ["NONE"]
        assert one.owner.last_stable_offset == 1


async def test_rule_12_a_coordinator_that_has_lost_its_shard_is_asked_again() -> None:
    async with writer() as one:
        await one.end(epoch=0, coordinator_epoch=5, version=1)
        waiting = one.append(0, version=11)
        one.respond(ErrorCode.NONE, ownership=4)
        await one.asks(3)
        assert not waiting.done()
        one.respond(ErrorCode.NONE, ownership=5)
        assert await codes_of(waiting) == ["NONE"]


async def test_a_question_without_an_answer_ends_with_its_time() -> None:
    async with writer() as one:
        begun = asyncio.get_running_loop().time()
        assert await codes_of(one.append(0), one.append(1)) == ["NOT_ENOUGH_REPLICAS"] * 2
        assert WAIT_S <= asyncio.get_running_loop().time() - begun < WAIT_S + 1


async def test_rule_12_nothing_above_the_lowest_waiting_sequence_passes() -> None:
    async with writer() as one:
        above, first, second = (one.append(sequence, version=11) for sequence in (5, 0, 1))
        one.respond()
        assert await codes_of(above, first, second) == ["OUT_OF_ORDER_SEQUENCE_NUMBER", "NONE", "NONE"]
        assert (await first).base_offset == 0


async def test_rule_12_a_refused_sequence_is_the_first_that_an_unknown_producer_begins_with() -> None:
    async with writer() as one:
        one.respond(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert await codes_of(one.append(1, version=11)) == ["NOT_ENOUGH_REPLICAS"]
        assert await codes_of(one.append(0, version=11)) == ["NOT_ENOUGH_REPLICAS"]
        one.respond()
        assert await codes_of(one.append(1, version=11)) == ["OUT_OF_ORDER_SEQUENCE_NUMBER"]
        assert await codes_of(one.append(0, version=11), one.append(1, version=11)) == ["NONE", "NONE"]


async def test_rule_12_a_sequence_that_storage_had_no_nodes_for_is_the_first_too() -> None:
    async with writer(copies=2) as one:
        one.respond()
        keep_datanodes(one.w, 1)
        assert await codes_of(one.append(0, version=11)) == ["NOT_ENOUGH_REPLICAS"]
        keep_datanodes(one.w, 4)
        await asyncio.sleep(5)  # a refused batch is then reason to try for nodes
        assert await codes_of(one.append(0, pid=7, attributes=0)) == ["NOT_ENOUGH_REPLICAS"]
        await asyncio.sleep(1)
        assert await codes_of(one.append(0, pid=7, attributes=0)) == ["NONE"], "the nodes are seen again"
        assert await codes_of(one.append(1, version=11)) == ["OUT_OF_ORDER_SEQUENCE_NUMBER"]


async def test_an_unknown_producer_of_version_12_begins_at_sequence_0() -> None:
    async with writer() as one:
        one.respond()
        assert await codes_of(one.append(3)) == ["OUT_OF_ORDER_SEQUENCE_NUMBER"]
        assert one.verifier.asked == []
        assert await codes_of(one.append(3, version=11)) == ["NONE"]


async def test_a_later_epoch_waits_for_an_answer_of_its_own() -> None:
    async with writer() as one:
        old, new, newer = one.append(0), one.append(0, epoch=1), one.append(1, epoch=1)
        one.verifier.refused_epochs.add(0)
        one.respond()
        assert await codes_of(old, new, newer) == ["INVALID_PRODUCER_EPOCH", "NONE", "NONE"]
        assert [epoch for _, _, epoch, _ in one.verifier.asked] == [0, 1]


async def test_what_follows_a_batch_that_the_log_refuses_is_refused() -> None:
    async with writer() as one:
        await one.end(epoch=1)
        waiting = [one.append(sequence, epoch=1, version=11) for sequence in (2, 3)]
        one.respond()
        assert await codes_of(*waiting) == ["OUT_OF_ORDER_SEQUENCE_NUMBER", "NOT_LEADER_OR_FOLLOWER"]


async def test_waiting_batches_fill_the_partitions_buffer() -> None:
    async with writer(BrokerConfig(buffer_bytes=10_000, flush_bytes=5_000)) as one:
        waiting = [one.append(0, size=6_000)]
        assert one.owner.has_room
        waiting.append(one.append(1, size=6_000))
        assert not one.owner.has_room
        room = asyncio.create_task(one.owner.room())
        await one.asks(1)
        assert not room.done()
        one.respond(ErrorCode.CONCURRENT_TRANSACTIONS)
        await room
        assert await codes_of(*waiting) == ["CONCURRENT_TRANSACTIONS"] * 2


async def test_rule_12_a_move_refuses_what_waits_and_flushes_what_was_accepted() -> None:
    async with writer() as one:
        waiting, accepted = one.append(0), one.append(0, pid=7, attributes=0)
        await one.asks(1)
        one.w.assigned.withdraw(one.owner.key)
        assert await codes_of(waiting, accepted) == ["NOT_LEADER_OR_FOLLOWER", "NONE"]
        one.respond()
        assert await codes_of(one.append(0)) == ["NOT_LEADER_OR_FOLLOWER"]


async def test_a_fence_refuses_what_waits() -> None:
    async with writer() as one:
        waiting = one.append(0)
        await one.asks(1)
        one.w.broker.fence_all()
        assert await codes_of(waiting) == ["NOT_LEADER_OR_FOLLOWER"]


async def test_the_end_of_the_process_refuses_what_waits() -> None:
    async with writer() as one:
        waiting = one.append(0)
        await one.asks(1)
        await one.w.broker.close()
        assert await codes_of(waiting) == ["NOT_LEADER_OR_FOLLOWER"]


@pytest.mark.parametrize(("name", "is_served"), [(None, True), ("t", False)])
async def test_transactional_batches_are_refused_without_an_id_and_without_coordinators(
    name: str | None, is_served: bool
) -> None:
    async with writer(is_served=is_served) as one:
        assert await codes_of(one.append(0, name=name)) == ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED"]
