"""Shard logs of partitions that this process owns: until when a handle appends, and which one may."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from bmq.broker.shard_log_fence import ShardFence
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.roles.local_shard_log import LocalShardLog, LocalShardLogs
from bmq.storage.block_cache import BlockCache
from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import OffsetNotFound
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeCatalog

TOPIC = UUID(int=1)
KEY = PartitionKey(TOPIC, 0)
PATH = PartitionPath(OFFSETS_TOPIC, str(TOPIC), 0)


class FakeOwner:
    """An owner whose appends end when the test says so."""

    def __init__(self, epoch: int = 3) -> None:
        self.is_open = True
        self.epoch = epoch
        self.log_start, self.high_watermark, self.max_message_bytes = 5, 20, 1_000
        self.active_segment = None
        self.appends: list[asyncio.Future[int]] = []
        self.deleted: list[int] = []
        self.proofs = 0
        self.unproven: RequestError | None = None

    async def confirm_ownership(self) -> None:
        self.proofs += 1
        if self.unproven is not None:
            raise self.unproven

    def append_internal(self, data: memoryview) -> asyncio.Future[int]:
        self.appends.append(asyncio.get_running_loop().create_future())
        return self.appends[-1]

    async def delete_before(self, offset: int) -> int:
        self.deleted.append(offset)
        return offset


class FakeReader:
    path = PATH

    def __init__(self) -> None:
        self.reads: list[tuple[int, int, int]] = []
        self.error: Exception | None = None

    async def read(self, offset: int, max_bytes: int, end: int, *, active: object) -> bytes:
        self.reads.append((offset, max_bytes, end))
        if self.error is not None:
            raise self.error
        return b"records"


class World:
    def __init__(self) -> None:
        self.owner = FakeOwner()
        self.reader = FakeReader()
        self.closed = 0
        self.log = LocalShardLog(cast(Any, self.owner), cast(Any, self.reader), self._on_closed)

    def _on_closed(self) -> None:
        self.closed += 1


async def test_appends_go_to_the_owner_and_return_their_offsets() -> None:
    w = World()
    appended = w.log.append(bytearray(b"batch"))
    w.owner.appends[0].set_result(20)
    assert await appended == 20
    await asyncio.sleep(0)
    assert (w.log.is_open, w.closed) == (True, 0)
    assert (w.log.log_start, w.log.high_watermark, w.log.max_batch_bytes) == (5, 20, 1_000)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_failed_append_ends_the_handle_so_that_no_later_one_succeeds(is_cancelled: bool) -> None:
    w = World()
    w.log.append(bytearray(b"first"))
    w.log.append(bytearray(b"second"))
    first, second = w.owner.appends
    if is_cancelled:
        first.cancel()
    else:
        first.set_exception(RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "full"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (w.log.is_open, w.closed) == (False, 1)
    with pytest.raises(RequestError) as refused:
        w.log.append(bytearray(b"third"))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    second.set_exception(RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "full"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert w.closed == 1, "closed is called once"


async def test_the_end_of_a_handle_is_notified_in_a_later_turn() -> None:
    w = World()
    w.log.end()
    w.log.end()
    assert (w.log.is_open, w.closed) == (False, 0)
    await asyncio.sleep(0)
    assert w.closed == 1


@pytest.mark.parametrize("change", [{"is_open": False}, {"epoch": 4}], ids=["closed", "another epoch"])
async def test_a_handle_is_open_while_its_owner_has_the_epoch_of_the_opening(change: dict[str, Any]) -> None:
    w = World()
    await w.log.confirm()
    for name, value in change.items():
        setattr(w.owner, name, value)
    for call in (w.log.confirm(), w.log.read(5, 100), w.log.delete_before(7)):
        with pytest.raises(RequestError) as refused:
            await call
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (w.reader.reads, w.owner.deleted) == ([], [])


async def test_a_handle_is_confirmed_by_its_owner_which_proves_itself() -> None:
    w = World()
    await w.log.confirm()
    assert w.owner.proofs == 1
    w.owner.unproven = RequestError(ErrorCode.REQUEST_TIMED_OUT, "the store is away")
    with pytest.raises(RequestError) as refused:
        await w.log.confirm()
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert w.log.is_open


async def test_reads_end_at_the_high_watermark() -> None:
    w = World()
    assert await w.log.read(20, 100) == b""
    assert w.reader.reads == []
    assert await w.log.read(19, 100) == b"records"
    assert w.reader.reads == [(19, 100, 20)]


@pytest.mark.parametrize(
    "error",
    [StorageUnavailable("away"), OffsetNotFound(PATH, 7, 9), FormatError("damaged")],
    ids=lambda each: str(type(each).__name__),
)
async def test_an_error_of_storage_is_a_retriable_one_of_the_request(error: Exception) -> None:
    w = World()
    w.reader.error = error
    with pytest.raises(RequestError) as refused:
        await w.log.read(7, 100)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert w.log.is_open


async def test_a_snapshot_moves_the_log_start_of_the_owner() -> None:
    w = World()
    await w.log.delete_before(9)
    assert w.owner.deleted == [9]


# -------------------------------------------------------------------------------------------------------- opening


def logs(owner: Any, fence: ShardFence | None = None, *, has_topic: bool = True) -> LocalShardLogs:
    async def wait(key: PartitionKey, timeout_s: float) -> Any:
        assert key == KEY
        return owner

    topics = [Topic(name=OFFSETS_TOPIC, topic_id=TOPIC, partitions=1)] if has_topic else []
    assigned: Any = SimpleNamespace(wait=wait)
    pool = BlockCache(MemoryFileSystem(MemoryStorage(), "a"))
    return LocalShardLogs(assigned, FakeCatalog(*topics), pool, ShardFence() if fence is None else fence)


@pytest.mark.parametrize(("partition", "has_topic"), [(0, False), (1, True)])
async def test_a_log_that_does_not_exist_yet_cannot_be_opened(partition: int, has_topic: bool) -> None:
    with pytest.raises(RequestError) as refused:
        await logs(FakeOwner(), has_topic=has_topic).open(ShardId(GROUPS, partition), 1, 1.0, lambda: None)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_later_opening_ends_the_earlier_handle() -> None:
    opened = logs(FakeOwner())
    closed: list[str] = []
    first = await opened.open(ShardId(GROUPS, 0), 7, 1.0, lambda: closed.append("first"))
    second = await opened.open(ShardId(GROUPS, 0), 7, 1.0, lambda: closed.append("second"))
    await asyncio.sleep(0)
    assert (first.is_open, second.is_open, closed) == (False, True, ["first"])


async def test_a_coordinator_with_a_lower_ownership_cannot_open_the_log() -> None:
    opened = logs(FakeOwner())
    first = await opened.open(ShardId(GROUPS, 0), 7, 1.0, lambda: None)
    with pytest.raises(RequestError) as refused:
        await opened.open(ShardId(GROUPS, 0), 6, 1.0, lambda: None)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert first.is_open


async def test_a_partition_that_left_ends_its_handle_and_forgets_the_ownership() -> None:
    fence = ShardFence()
    opened = logs(FakeOwner(), fence)
    first = await opened.open(ShardId(GROUPS, 0), 7, 1.0, lambda: None)
    fence.closed(KEY)
    assert not first.is_open
    assert (await opened.open(ShardId(GROUPS, 0), 6, 1.0, lambda: None)).is_open
