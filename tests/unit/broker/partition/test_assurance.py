"""Proof of ownership after a doubt (broker/partition/assurance.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.partition.assurance import Assurance
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.aio.standstill import GIVEN_UP_S, Standstill
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import KvUnavailable


class Owned:
    """A partition whose proofs end as the test says, in a process that stands still when it says so."""

    def __init__(self) -> None:
        self.standstill = Standstill(LoopClock())
        self.standstill.start()
        self.context = SimpleNamespace(standstill=self.standstill)
        self.doubts_before = self.standstill.doubts
        self.outcome: Exception | None = None
        self.proofs = 0
        self.tasks: list[asyncio.Task[None]] = []

    def stand_still(self, seconds: float) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.clock.now += seconds
        self.standstill.look()

    async def prove(self) -> None:
        self.proofs += 1
        await asyncio.sleep(0.01)
        if self.outcome is not None:
            raise self.outcome

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]


def assured() -> tuple[Owned, Assurance]:
    owned = Owned()
    return owned, Assurance(cast(PartitionDriver, owned))


def test_a_planned_takeover_from_a_living_process_takes_longer_than_a_doubt_that_its_membership_settles() -> None:
    assert BrokerConfig().handover_wait_ms >= GIVEN_UP_S * 1000


async def test_without_a_doubt_the_store_is_not_asked() -> None:
    owned, assurance = assured()
    owned.outcome = KvUnavailable("away")
    await asyncio.sleep(60)
    await assurance.renew()
    assert owned.proofs == 0
    owned.standstill.stop()


async def test_one_proof_serves_all_that_wait_and_all_that_come_later() -> None:
    owned, assurance = assured()
    owned.stand_still(GIVEN_UP_S)
    await asyncio.gather(*(assurance.renew() for _ in range(100)))
    await assurance.renew()
    assert owned.proofs == 1
    owned.standstill.stop()


@pytest.mark.parametrize("outcome", [KvUnavailable("away"), RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")])
async def test_without_a_proof_nothing_is_said_until_there_is_one(outcome: Exception) -> None:
    owned, assurance = assured()
    owned.stand_still(1.0)
    owned.outcome = outcome
    for _ in range(2):
        with pytest.raises(RequestError) as raised:
            await assurance.renew()
        assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    owned.outcome = None
    await assurance.renew()
    assert owned.proofs == 3
    owned.standstill.stop()


async def test_a_proof_during_which_the_process_stood_still_proves_nothing() -> None:
    owned, assurance = assured()
    owned.stand_still(1.0)
    renewal = asyncio.create_task(assurance.renew())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert owned.proofs == 1
    owned.stand_still(1.0)
    await renewal
    assert owned.proofs == 2
    owned.standstill.stop()


@pytest.mark.parametrize(("seconds", "proofs"), [(1.0, 0), (GIVEN_UP_S, 1)])
async def test_a_membership_that_goes_on_settles_a_short_doubt(seconds: float, proofs: int) -> None:
    owned, assurance = assured()
    owned.stand_still(seconds)
    owned.standstill.settle()
    await assurance.renew()
    assert owned.proofs == proofs
    owned.standstill.stop()


async def test_a_caller_that_does_not_wait_starts_one_proof_for_those_after_it() -> None:
    owned, assurance = assured()
    assert assurance.ask()
    owned.stand_still(GIVEN_UP_S)
    assert [assurance.ask() for _ in range(100)] == [False] * 100
    await asyncio.sleep(1)
    assert [assurance.ask() for _ in range(100)] == [True] * 100
    assert owned.proofs == 1
    owned.standstill.stop()


async def test_a_caller_that_does_not_wait_gets_nothing_until_a_proof_has_succeeded() -> None:
    owned, assurance = assured()
    owned.stand_still(GIVEN_UP_S)
    owned.outcome = KvUnavailable("away")
    for _ in range(3):
        assert not assurance.ask()
        await asyncio.sleep(15)
    assert owned.proofs == 3, "one for each call, and none between them"
    owned.outcome = None
    assert not assurance.ask()
    await assurance.renew()
    assert assurance.ask()
    assert owned.proofs == 4, "a caller that waits shares the proof"
    owned.standstill.stop()


async def test_a_standstill_that_nobody_has_looked_for_is_a_doubt() -> None:
    owned, assurance = assured()
    loop: Any = asyncio.get_running_loop()
    loop.clock.now += GIVEN_UP_S
    assert not assurance.ask()
    owned.standstill.stop()


async def test_a_partition_that_ends_meanwhile_refuses_the_answers_that_wait() -> None:
    owned, assurance = assured()
    owned.stand_still(GIVEN_UP_S)
    renewal = asyncio.create_task(assurance.renew())
    await asyncio.sleep(0)
    owned.tasks[0].cancel()
    with pytest.raises(RequestError, match="has left this broker"):
        await renewal
    owned.standstill.stop()
