"""Refusals that only the present owner may send (broker/partition/refusals.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.refusals import Refusals
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire.produce import Transaction
from bmq.endpoint.partitions import Appended
from bmq.meta.kv import KvError, KvUnavailable

GAP = RequestError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap")
MOVED = RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")


class Writer:
    """A partition whose proofs end as the test says."""

    def __init__(self) -> None:
        self.outcome: Exception | None = None
        self.proofs = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def prove(self) -> None:
        self.proofs += 1
        await asyncio.sleep(0.01)
        if self.outcome is not None:
            raise self.outcome

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]


class Append:
    transaction: Transaction | None = None

    def __init__(self) -> None:
        self.error: RequestError | None = None
        self.on_end: Callable[[], object] = int

    @property
    def is_over(self) -> bool:
        return self.error is not None

    def on_appended(self, appended: Appended) -> None:
        raise AssertionError("it was refused")

    def on_failed(self, error: RequestError) -> None:
        assert self.error is None
        self.error = error
        self.on_end()

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        raise AssertionError("it was refused")

    @property
    def code(self) -> ErrorCode | None:
        return self.error.code if self.error is not None else None


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (MOVED, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KvUnavailable("away"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_one_read_of_the_store_proves_all_refusals_that_wait(
    outcome: RequestError | KvError | None, code: ErrorCode
) -> None:
    driver = Writer()
    driver.outcome = outcome
    refusals = Refusals(cast(PartitionDriver, driver))
    appends = [Append() for _ in range(5)]
    for append in appends:
        refusals.prove(GAP, append)
    await asyncio.sleep(1)
    assert [append.code for append in appends] == [code] * 5
    assert driver.proofs == 1


async def test_a_refusal_during_a_proof_waits_for_the_next_one() -> None:
    driver = Writer()
    refusals = Refusals(cast(PartitionDriver, driver))
    first, second = Append(), Append()
    refusals.prove(GAP, first)
    await asyncio.sleep(0.005)
    refusals.prove(GAP, second)
    await asyncio.sleep(0.006)
    assert (first.code, second.code) == (GAP.code, None)
    await asyncio.sleep(1)
    assert second.code is GAP.code
    assert driver.proofs == 2


async def test_a_refusal_in_the_turn_in_which_a_proof_ends_is_proven_too() -> None:
    driver = Writer()
    refusals = Refusals(cast(PartitionDriver, driver))
    first, second = Append(), Append()
    refusals.prove(GAP, first)
    # The task's last step runs in the turn after the sleep's end, as do these calls, one of them right after it.
    first.on_end = lambda: asyncio.get_running_loop().call_soon(refusals.prove, GAP, second)
    await asyncio.sleep(1)
    assert second.code is GAP.code
    assert driver.proofs == 2


async def test_the_end_of_the_partition_refuses_those_that_wait() -> None:
    driver = Writer()
    refusals = Refusals(cast(PartitionDriver, driver))
    appends = [Append(), Append()]
    refusals.prove(GAP, appends[0])
    await asyncio.sleep(0.005)
    refusals.prove(GAP, appends[1])
    driver.tasks[0].cancel()
    await asyncio.sleep(1)
    assert [append.code for append in appends] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
