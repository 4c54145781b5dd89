"""etcd's history: what may be compacted when, and what the leader reports of etcd's size."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bmq.controller.store_upkeep import FULL_KEEP_MS, REVISIONS_MIN, SAVE_S, RevisionHistory, StoreUpkeep, history_key
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Compare, KvUnavailable, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.maintenance import Maintained, StoreStatus

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def test_an_hour_of_history_is_kept() -> None:
    history = RevisionHistory(HOUR_MS)
    for minute in range(60):
        history.note(minute * MINUTE_MS, 10_000 * (minute + 1))
        assert history.due(minute * MINUTE_MS, is_full=False) == 0
    history.note(HOUR_MS, 700_000)
    assert history.due(HOUR_MS, is_full=False) == 10_000
    history.compacted = 10_000
    assert history.due(HOUR_MS, is_full=False) == 0
    history.note(HOUR_MS + MINUTE_MS, 700_100)
    assert history.due(HOUR_MS + MINUTE_MS, is_full=False) == 20_000


def test_little_history_is_left() -> None:
    """A compaction is the whole etcd's: it is not done without need."""
    history = RevisionHistory(HOUR_MS)
    for hour in range(100):
        history.note(hour * HOUR_MS, 1 + hour)
        assert history.due(hour * HOUR_MS, is_full=False) == 0
    history.note(100 * HOUR_MS, REVISIONS_MIN + 5)
    history.note(101 * HOUR_MS, REVISIONS_MIN + 5)
    assert history.due(101 * HOUR_MS, is_full=False) == REVISIONS_MIN + 5


def test_with_a_full_database_less_is_kept() -> None:
    history = RevisionHistory(HOUR_MS)
    history.note(0, 50)
    history.note(FULL_KEEP_MS // 2, 70)
    assert history.due(FULL_KEEP_MS, is_full=False) == 0
    assert history.due(FULL_KEEP_MS, is_full=True) == 50


def test_compaction_can_be_switched_off() -> None:
    history = RevisionHistory(0)
    history.note(0, 10_000)
    history.note(100 * HOUR_MS, 1_000_000)
    assert history.due(100 * HOUR_MS, is_full=True) == 0


@pytest.mark.slow
def test_samples_are_bounded_and_survive_a_change_of_leaders() -> None:
    history = RevisionHistory(HOUR_MS)
    for minute in range(10_000):
        history.note(minute * MINUTE_MS, minute * 100)
    assert repr(history) == "<History samples=61 compacted=0>"
    history.compacted = 999
    other, now_ms = RevisionHistory(HOUR_MS), 10_000 * MINUTE_MS
    other.decode(history.encode(), now_ms)
    other.note(now_ms, 1_000_000)
    assert other.compacted == 999
    assert other.due(now_ms, is_full=False) == 9_940 * 100


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"format": 1}', b'{"format": 2, "samples": "?"}', b'{"format":1,"samples":[1]}']
)
def test_samples_that_cannot_be_read_are_replaced(data: bytes) -> None:
    history = RevisionHistory(HOUR_MS)
    history.decode(data, 0)
    assert repr(history) == "<History samples=0 compacted=0>"


def test_a_clock_that_jumps_compacts_early_or_late_and_goes_on() -> None:
    history = RevisionHistory(HOUR_MS)
    history.note(50 * HOUR_MS, 5_000)
    history.note(0, 6_000)  # back by two days
    assert history.due(0, is_full=False) == 0
    history.note(HOUR_MS, 7_000)
    assert history.due(HOUR_MS, is_full=False) == 6_000
    history.note(2 * HOUR_MS, 100)  # another store, from a backup: its revisions are lower
    assert history.due(2 * HOUR_MS, is_full=False) == 0


class Etcd(MemoryKeyValue):
    """A store with a size, which notes its compactions."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.shown = StoreStatus(bytes=10, bytes_in_use=5, quota_bytes=100, is_full=False)
        self.compactions: list[int] = []

    async def status(self) -> StoreStatus:
        return self.shown

    async def compact(self, revision: int) -> None:
        self.compactions.append(revision)


def upkeep(kv: Etcd, *, leads: bool = True) -> StoreUpkeep:
    def guard() -> list[Compare]:
        if not leads:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return []

    assert isinstance(kv, Maintained)
    return StoreUpkeep(kv, kv, "c", LoopClock(), HOUR_MS, guard=guard)


async def fill(kv: Etcd, revisions: int) -> None:
    for _ in range(revisions):
        await kv.commit([], [Put("/other", b"")])


@pytest.mark.slow
async def test_the_leader_compacts_what_is_an_hour_old_and_the_next_one_goes_on() -> None:
    kv = Etcd(MemoryStore())
    await fill(kv, 2 * REVISIONS_MIN)
    first = asyncio.create_task(upkeep(kv).run())
    await asyncio.sleep(3_000)
    first.cancel()
    assert kv.compactions == []
    second = asyncio.create_task(upkeep(kv).run())
    await asyncio.sleep(3_600)
    assert len(kv.compactions) == 1
    assert kv.compactions[0] <= 2 * REVISIONS_MIN + 2
    before = await kv.revision()
    await asyncio.sleep(10 * SAVE_S)
    assert await kv.revision() - before == 10, "its own samples are few"
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


@pytest.mark.slow
async def test_a_process_that_does_not_lead_compacts_nothing() -> None:
    kv = Etcd(MemoryStore())
    await fill(kv, 2 * REVISIONS_MIN)
    one = upkeep(kv, leads=False)
    one.history.note(-10 * HOUR_MS, REVISIONS_MIN + 1)
    with pytest.raises(RequestError):
        await one.look()
    assert kv.compactions == []
    assert await kv.get(history_key("c")) is None


async def test_a_full_database_is_logged_once_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    kv = Etcd(MemoryStore())
    one = upkeep(kv)
    await one.look()
    assert not caplog.records
    kv.shown = StoreStatus(bytes=85, bytes_in_use=5, quota_bytes=100, is_full=False)
    await one.look()
    await one.look()
    kv.shown = StoreStatus(bytes=101, bytes_in_use=5, quota_bytes=100, is_full=True)
    await one.look()
    await one.look()
    kv.shown = StoreStatus(bytes=20, bytes_in_use=5, quota_bytes=100, is_full=False)
    await one.look()
    nearly, full, again = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "85 bytes of 100, 5 in use" in nearly
    assert "database is full" in full
    assert "etcdctl alarm disarm" in full
    assert "takes writes again" in again


async def test_upkeep_goes_on_after_an_outage_of_the_store() -> None:
    class Away(Etcd):
        is_away = True

        async def status(self) -> StoreStatus:
            if self.is_away:
                raise KvUnavailable("away")
            return self.shown

    kv = Away(MemoryStore())
    one = upkeep(kv)
    running = asyncio.create_task(one.run())
    await asyncio.sleep(100)
    assert one.status is None
    kv.is_away = False
    await asyncio.sleep(31)
    assert one.status == kv.shown
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
