"""Reads of storage for fetches: faults, missing records, and owners that do not respond."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields_of
from bmq.storage.filesystem import CorruptData, StorageUnavailable
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import OffsetNotFound
from tests.unit.endpoint.serving import World, errors, offsets, release, serving, want

pytestmark = pytest.mark.slow

T0 = ("t", 0)


@pytest.mark.parametrize(
    ("code", "sent"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "NOT_LEADER_OR_FOLLOWER"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "KAFKA_STORAGE_ERROR"),
    ],
)
@pytest.mark.parametrize("is_gone", [False, True])
async def test_an_owner_that_does_not_respond_is_an_error_that_consumers_know(
    code: ErrorCode, sent: str, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that stands still: how far its open file goes, or whether an offset is there, is not known."""

    async with serving() as world:
        await world.store("t", 0)

        async def silent(*_: Any) -> Any:
            raise RequestError(code, "no answer")

        async def gone(*_: Any) -> Any:
            raise OffsetNotFound(PartitionPath("t", "id", 0), 0, None)

        monkeypatch.setattr(world.fetch_service._reads, "_read_from", gone if is_gone else silent)
        monkeypatch.setattr(type(world.owner("t")), "ends", silent)
        fetched = await world.fetch([want("t")], max_wait_s=1)
        assert errors(fetched) == {T0: sent}


@pytest.mark.parametrize("fault", [StorageUnavailable("no"), CorruptData("bad")])
async def test_a_fault_of_storage_is_a_retriable_error_of_its_partition_alone(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The response does not give the reason: the log names it, with the partition."""

    with caplog.at_level(logging.WARNING):
        async with serving() as world:
            await world.store("t", 0)
            await world.store("t", 1)
            world.fs.fault, world.fs.faulty = fault, "/1/"
            fetched = await world.fetch([want("t"), want("t", 1)], max_wait_s=100)
            assert offsets(fetched) == {T0: [0], ("t", 1): []}
            assert errors(fetched) == {("t", 1): "KAFKA_STORAGE_ERROR"}
            assert world.metrics.topics["t"].failed_fetches == 1
            release(fetched)
    (line,) = caplog.records
    assert "cannot be read from storage" in line.getMessage()
    assert fields_of(line) == {"topic": "t", "partition": 1, "error": str(fault)}


@pytest.mark.parametrize(
    ("then", "error"),
    [
        (lambda world: setattr(world.owner("t"), "log_start", 5), "OFFSET_OUT_OF_RANGE"),
        (lambda world: world.close("t"), "NOT_LEADER_OR_FOLLOWER"),
        (lambda world: setattr(world.owner("t"), "high_watermark", 3), "OFFSET_NOT_AVAILABLE"),
        (lambda world: None, "CORRUPT_MESSAGE"),
    ],
)
async def test_rule2_what_storage_misses_is_out_of_range_only_if_the_owner_says_so(
    then: Callable[[World], object], error: str
) -> None:
    async with serving() as world:
        world.owner("t").high_watermark = 10  # and no file at all
        started = asyncio.create_task(world.fetch([want("t", offset=3)]))
        await asyncio.sleep(0)
        then(world)
        assert errors(await started) == {T0: error}


@pytest.mark.parametrize("lost", ["first", "middle", "last"])
async def test_lost_bytes_are_an_error_for_their_readers(lost: str, caplog: pytest.LogCaptureFixture) -> None:
    """A segment's file was removed from outside: a consumer must get an error instead of waiting in silence."""

    with caplog.at_level(logging.ERROR):
        async with serving() as world:
            for _ in range(3):
                await world.store("t", batches=2)
            (folder,) = {f"/topics/t/{world.catalog.topics['t'].topic_id}/0"}
            names = [status.path async for status in world.fs.list(folder)]
            gone = {"first": 0, "middle": 1, "last": 2}[lost]
            await world.fs.delete(names[gone])
            for offset in (2 * gone, 2 * gone + 1):
                assert errors(await world.fetch([want("t", offset=offset)])) == {T0: "CORRUPT_MESSAGE"}
            for number in {0, 1, 2} - {gone}:
                fetched = await world.fetch([want("t", offset=2 * number)])
                assert offsets(fetched) == {T0: [2 * number, 2 * number + 1]}
                release(fetched)
    sent = [record.getMessage() for record in caplog.records]
    assert len(sent) == 2
    assert all("records are gone from storage" in line for line in sent)
