"""InitProducerId in every version: new ids, and transactions refused."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.logging.limit import BURST
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
async def test_each_producer_has_an_id_of_its_own(version: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as w:
        assert [await init(w, version) for _ in range(3)] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
        with caplog.at_level(logging.WARNING):
            fatal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert await init(w, version, "tx") == (fatal, -1, -1)
        assert "they are not supported" in caplog.text
        if version >= 3:
            assert await init(w, version, producer_id=1, producer_epoch=4) == (0, 3, 0)
            invalid = (ErrorCode.INVALID_REQUEST, -1, -1)
            assert await init(w, version, producer_id=1, producer_epoch=-1) == invalid
            assert await init(w, version, producer_id=-1, producer_epoch=0) == invalid


@pytest.mark.slow
async def test_requests_for_transactions_do_not_fill_the_log(server_log: io.StringIO) -> None:
    async with serving() as w:
        for _ in range(1_000):
            await init(w, 4, "x" * 30_000)
    written = server_log.getvalue()
    assert "asks for transactions" in written
    assert len(written.splitlines()) <= BURST
    assert len(written) < BURST * 500


async def test_without_the_store_a_producer_is_told_to_try_again() -> None:
    async with serving() as w:
        w.store.stop()
        code, *_ = await init(w, 5)
        assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert ErrorCode(code).is_retriable
        w.store.start(asyncio.get_running_loop().time())
        assert await init(w, 5) == (0, 0, 0)
