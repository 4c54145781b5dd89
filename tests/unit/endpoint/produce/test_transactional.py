"""Produce with a transactional id: which requests may carry transactional batches, and what their owner gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.features import TRANSACTION_VERSION
from bmq.core.model import PartitionKey
from bmq.core.records.batch import TRANSACTIONAL
from bmq.core.security.acl_index import AclIndex
from bmq.core.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from bmq.endpoint.authorization.cached_authorizer import CachedAuthorizer
from bmq.endpoint.produce.handler import PARTITIONS_AT_ONCE
from bmq.meta.cluster.levels import FeatureLevels
from tests.unit.broker.world import World, batch, world

pytestmark = pytest.mark.slow

REFUSED = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def transactional(sequence: int = 0, *, pid: int = 7, epoch: int = 0) -> bytearray:
    return batch(producer_id=pid, producer_epoch=epoch, base_sequence=sequence, attributes=TRANSACTIONAL)


class Served(World):
    """A process in a cluster with transactions; ``asked`` has the questions to coordinators."""

    asked: list[tuple[str, int, int, bool]]

    async def start(self) -> None:
        self.asked = []
        self.wiring.verifier = self.verify
        await super().start()
        self.change(levels=lambda: FeatureLevels(levels={TRANSACTION_VERSION: 2}))

    async def verify(
        self, transactional_id: str, producer_id: int, epoch: int, keys: Sequence[PartitionKey], add: bool
    ) -> dict[PartitionKey, tuple[ErrorCode, int]]:
        self.asked.append((transactional_id, producer_id, epoch, add))
        return dict.fromkeys(keys, (ErrorCode.NONE, 1))

    async def codes(self, *parts: bytearray, name: str | None = "t", **options: Any) -> list[str]:
        answers = await self.produce(
            {("orders", index): part for index, part in enumerate(parts)}, transactional_id=name, **options
        )
        return [ErrorCode(each.error_code).name for each in answers]


@asynccontextmanager
async def served(partitions: int = 2) -> AsyncIterator[Served]:
    w = Served()
    await w.start()
    try:
        w.topic(partitions=partitions)
        yield w
    finally:
        await w.stop()


@pytest.mark.parametrize(("version", "is_add"), [(3, False), (9, False), (11, False), (12, True), (13, True)])
async def test_the_owner_gets_the_transactional_id_and_the_clients_version(version: int, is_add: bool) -> None:
    async with served() as w:
        assert await w.codes(transactional(), transactional(), version=version) == ["NONE", "NONE"]
        assert w.asked == [("t", 7, 0, is_add)] * 2


async def test_clients_of_a_cluster_without_transactions_try_again() -> None:
    async with world() as w:
        w.topic()
        answers = await w.produce({("orders", 0): transactional()}, transactional_id="t")
        assert [ErrorCode(each.error_code).name for each in answers] == ["NOT_ENOUGH_REPLICAS"]


async def test_a_transactional_batch_in_a_request_without_an_id_is_refused() -> None:
    async with served() as w:
        assert await w.codes(transactional(), batch(), name=None) == [REFUSED, "NONE"]
        assert w.asked == []


async def test_plain_batches_in_a_request_with_an_id_are_appended_plainly() -> None:
    async with served() as w:
        assert await w.codes(batch(), batch()) == ["NONE", "NONE"]
        assert w.asked == []


@pytest.mark.parametrize("has_right", [True, False])
async def test_transactional_batches_need_the_right_to_write_to_the_id(has_right: bool) -> None:
    async with served() as w:
        granted = [(ResourceType.TOPIC, "orders"), (ResourceType.TRANSACTIONAL_ID, "t" if has_right else "other")]
        acls = [
            Acl(kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", AclOperation.WRITE, AclPermission.ALLOW)
            for kind, name in granted
        ]
        w.change(authorizer=CachedAuthorizer(AclIndex(acls), (), allows_without_acls=False, are_loaded=lambda: True))
        assert await w.codes(transactional(), batch()) == (["NONE"] * 2 if has_right else [REFUSED] * 2)
        assert await w.codes(batch()) == ["NONE"], "as in Kafka, the right is asked for transactional batches alone"


@pytest.mark.parametrize("other", [{"pid": 8}, {"epoch": 1}])
async def test_batches_of_two_producers_are_refused_together(other: dict[str, int]) -> None:
    async with served() as w:
        codes = await w.codes(transactional(), transactional(**other))
        assert codes == ["INVALID_PRODUCER_ID_MAPPING"] * 2


async def test_a_large_request_is_refused_and_served_in_the_same_way() -> None:
    count = PARTITIONS_AT_ONCE + 1
    async with served(count) as w:
        assert set(await w.codes(*(transactional() for _ in range(count)))) == {"NONE"}
        assert len(w.asked) == count
        parts = [transactional(1) for _ in range(count - 1)] + [transactional(pid=8)]
        assert set(await w.codes(*parts)) == {"INVALID_PRODUCER_ID_MAPPING"}


async def test_a_batch_waits_for_the_coordinator_and_its_requests_time_ends_the_wait() -> None:
    async with served(1) as w:
        answers = asyncio.Event()
        verify = w.verify

        async def slow(*question: Any) -> Any:
            await answers.wait()
            return await verify(*question)

        w.wiring.verifier = slow
        assert await w.codes(transactional(), timeout_ms=100) == ["REQUEST_TIMED_OUT"]
        answers.set()
        assert await w.codes(transactional()) == ["NONE"], "the repeated batch is found, or the first one's"
