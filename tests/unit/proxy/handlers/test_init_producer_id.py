"""InitProducerId in every version: new ids, and none for transactions while the cluster has no level for them."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import InitProducerIdRequest
from bmq.proxy.handlers import init_producer_id
from tests.unit.proxy.handlers.admin_requests import versions
from tests.unit.proxy.handlers.admin_serving import AdminServing, serving

PRODUCER = init_producer_id.APIS[0]


async def init(
    w: AdminServing, version: int, transactional_id: str | None = None, **given: int
) -> tuple[int, int, int]:
    asked = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=1000, **given)
    found = await w.ask(PRODUCER, version, asked)
    return found.error_code, found.producer_id, found.producer_epoch


@pytest.mark.parametrize("version", versions(PRODUCER))
async def test_each_producer_has_an_id_of_its_own(version: int) -> None:
    async with serving() as w:
        assert [await init(w, version) for _ in range(3)] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
        assert await init(w, version, "tx") == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        if version >= 3:
            assert await init(w, version, producer_id=1, producer_epoch=4) == (0, 3, 0)
            invalid = (ErrorCode.INVALID_REQUEST, -1, -1)
            assert await init(w, version, producer_id=1, producer_epoch=-1) == invalid
            assert await init(w, version, producer_id=-1, producer_epoch=0) == invalid


async def test_without_the_store_a_producer_is_told_to_try_again() -> None:
    async with serving() as w:
        w.store.stop()
        code, *_ = await init(w, 5)
        assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert ErrorCode(code).is_retriable
        w.store.start(asyncio.get_running_loop().time())
        assert await init(w, 5) == (0, 0, 0)
