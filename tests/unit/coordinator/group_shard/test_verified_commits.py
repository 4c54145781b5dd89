"""Commits of transactions, verified with the transaction's coordinator before they are written (rule 12)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from bmq.coordinator.group_shard import commit_verifier
from bmq.coordinator.group_shard.verification import Verdict, error_in_commit, verdict_by
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.transaction_answers import Confirmation
from tests.harness.waiting import until
from tests.unit.coordinator.fakes import World, running
from tests.unit.coordinator.txn_requests import end, stable, txn_commit

NONE = ErrorCode.NONE
UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
EVER = 1 << 30


def responding(world: World, *answers: tuple[ErrorCode, int]) -> None:
    """Have the coordinator give these answers, one after another, and the last for ever."""
    left = list(answers)
    world.transactions.respond = lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("confirmed", "is_void", "verdict"),
    [
        (Confirmation(NONE, 5), False, Verdict.TAKE),
        (Confirmation(NONE, 6), False, Verdict.TAKE),
        (Confirmation(NONE, 4), False, Verdict.ASK_LATER),
        (Confirmation(ErrorCode.INVALID_TXN_STATE, 4), False, Verdict.ASK_LATER),
        (Confirmation(ErrorCode.INVALID_TXN_STATE, 5), False, Verdict.REFUSE),
        (Confirmation(ErrorCode.NOT_COORDINATOR, 0), False, Verdict.REFUSE),
        (Confirmation(NONE, 5), True, Verdict.ASK_AGAIN),
        (Confirmation(ErrorCode.NOT_COORDINATOR, 0), True, Verdict.ASK_AGAIN),
    ],
)
def test_rule_12_an_answer_about_a_commit_that_is_void_or_of_an_earlier_ownership_does_not_count(
    confirmed: Confirmation, verdict: Verdict, *, is_void: bool
) -> None:
    assert verdict_by(confirmed, 5, is_void=is_void) is verdict


@pytest.mark.parametrize(
    ("code", "by_version"),
    [
        ("NOT_COORDINATOR", ["COORDINATOR_LOAD_IN_PROGRESS"] * 3),
        ("COORDINATOR_NOT_AVAILABLE", ["COORDINATOR_LOAD_IN_PROGRESS"] * 3),
        ("COORDINATOR_LOAD_IN_PROGRESS", ["COORDINATOR_LOAD_IN_PROGRESS"] * 3),
        ("NETWORK_EXCEPTION", ["COORDINATOR_LOAD_IN_PROGRESS"] * 3),
        ("REQUEST_TIMED_OUT", ["COORDINATOR_LOAD_IN_PROGRESS"] * 3),
        ("UNSUPPORTED_VERSION", ["COORDINATOR_LOAD_IN_PROGRESS"] * 3),
        ("CONCURRENT_TRANSACTIONS", ["COORDINATOR_LOAD_IN_PROGRESS"] * 2 + ["CONCURRENT_TRANSACTIONS"]),
        ("TRANSACTION_ABORTABLE", ["INVALID_TXN_STATE"] + ["TRANSACTION_ABORTABLE"] * 2),
        ("INVALID_TXN_STATE", ["INVALID_TXN_STATE"] * 3),
        ("PRODUCER_FENCED", ["INVALID_PRODUCER_EPOCH"] * 3),
        ("INVALID_PRODUCER_ID_MAPPING", ["INVALID_PRODUCER_ID_MAPPING"] * 3),
        ("CLUSTER_AUTHORIZATION_FAILED", ["INVALID_TXN_STATE"] * 3),
    ],
)
def test_a_coordinators_error_is_one_that_the_clients_version_knows(code: str, by_version: list[str]) -> None:
    assert [error_in_commit(ErrorCode[code], version).code.name for version in (3, 4, 5)] == by_version


@pytest.mark.parametrize(("version", "adds"), [(3, False), (4, False), (5, True)])
async def test_the_first_commit_of_a_transaction_is_verified_and_no_other(version: int, *, adds: bool) -> None:
    async with running(World()) as world:
        for offset in (5, 6):
            assert await txn_commit(world, "g", offset, version=version) is NONE
        key = PartitionKey(world.offsets_topic.topic_id, 0)
        assert world.transactions.asked == [("t", 1, 0, (key,), adds)]
        await world.crash()
        assert await txn_commit(world, "g", 7, version=version) is NONE
        assert len(world.transactions.asked) == 1, "a replay finds the open transaction"
        assert await end(world) is NONE
        assert await txn_commit(world, "g", 8, version=version) is NONE
        assert len(world.transactions.asked) == 2, "the next transaction"


@pytest.mark.parametrize(
    ("version", "found", "code"),
    [
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (0, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE),  # KAFKA-7296
        (5, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_rule_12_a_commit_of_an_unknown_transaction_writes_nothing(
    version: int, found: ErrorCode, code: ErrorCode
) -> None:
    async with running(World()) as world:
        responding(world, (found, EVER))
        assert await world.commit("g", 1) == 0
        before = world.offsets()
        assert await txn_commit(world, "g", 5, version=version) is code
        assert world.offsets() == before
        assert await stable(world, "g") == (NONE, 1)
        responding(world, (NONE, EVER))
        assert await txn_commit(world, "g", 5, version=version) is NONE


async def test_rule_12_a_marker_between_question_and_commit_voids_the_answer() -> None:
    """The transaction times out while its commit waits: an offset behind the marker would stay pending for ever."""
    async with running(World()) as world:
        responding(world, (NONE, EVER), (ErrorCode.INVALID_TXN_STATE, EVER))
        world.transactions.may_respond.clear()
        commit = asyncio.create_task(txn_commit(world, "g", 5))
        await until(lambda: bool(world.transactions.asked))
        assert await end(world, commits=False, version=1) is NONE
        world.transactions.may_respond.set()
        assert await commit is ErrorCode.INVALID_TXN_STATE
        assert len(world.transactions.asked) == 2
        assert await stable(world, "g") == (NONE, -1)


async def test_rule_12_a_marker_that_is_being_written_voids_the_answer_too() -> None:
    async with running(World()) as world:
        responding(world, (NONE, EVER), (ErrorCode.INVALID_TXN_STATE, EVER))
        world.transactions.may_respond.clear()
        commit = asyncio.create_task(txn_commit(world, "g", 5))
        await until(lambda: bool(world.transactions.asked))
        world.log.flush_s = 0.5
        ending = asyncio.create_task(end(world, commits=False, version=1))
        await asyncio.sleep(0.1)
        world.transactions.may_respond.set()
        assert [await ending, await commit] == [NONE, ErrorCode.INVALID_TXN_STATE]
        assert await stable(world, "g") == (NONE, -1)


async def test_rule_12_a_transactions_coordinator_that_has_lost_its_shard_is_asked_again() -> None:
    async with running(World()) as world:
        assert await txn_commit(world, "g", 5) is NONE
        assert await end(world, coordinator=7, version=1) is NONE
        responding(world, (NONE, 6), (ErrorCode.INVALID_TXN_STATE, 6), (ErrorCode.TRANSACTION_ABORTABLE, 7))
        assert await txn_commit(world, "g", 6, version=4) is ErrorCode.TRANSACTION_ABORTABLE
        responding(world, (NONE, 6), (NONE, 7))
        assert await txn_commit(world, "g", 6, version=4) is NONE
        assert len(world.transactions.asked) == 6


async def test_a_producer_that_is_fenced_while_its_commit_waits_writes_nothing() -> None:
    async with running(World()) as world:
        world.transactions.may_respond.clear()
        commit = asyncio.create_task(txn_commit(world, "g", 5))
        await until(lambda: bool(world.transactions.asked))
        assert await end(world, epoch=1, commits=False, version=2) is NONE
        world.transactions.may_respond.set()
        assert await commit is ErrorCode.INVALID_PRODUCER_EPOCH
        assert len(world.transactions.asked) == 1


async def test_a_transactions_coordinator_that_does_not_answer_in_time_is_not_reached() -> None:
    async with running(World(commit_timeout_s=0.2)) as world:
        world.transactions.may_respond.clear()
        assert await txn_commit(world, "g", 5) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert repr(world.verifier) == "<CommitVerifier commits=0 offsets=0>"


async def test_a_commit_that_waits_ends_with_its_shard() -> None:
    async with running(World(commit_timeout_s=60.0)) as world:
        world.transactions.may_respond.clear()
        commit = asyncio.create_task(txn_commit(world, "g", 5))
        await until(lambda: bool(world.transactions.asked))
        await world.crash()
        assert await asyncio.wait_for(commit, 10.0) is ErrorCode.NOT_COORDINATOR


async def test_offsets_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_verifier, "WAITING_MAX", 2)
    async with running(World()) as world:
        world.transactions.may_respond.clear()
        commits = [asyncio.create_task(txn_commit(world, "g", 5, producer=each)) for each in (1, 2)]
        await until(lambda: len(world.transactions.asked) == 2)
        assert repr(world.verifier) == "<CommitVerifier commits=2 offsets=2>"
        assert await txn_commit(world, "g", 5, producer=3) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await world.commit("h", 1) == 0, "plain commits do not wait"
        world.transactions.may_respond.set()
        assert await asyncio.gather(*commits) == [NONE] * 2


@pytest.mark.parametrize("seed", range(20))
async def test_rule_12_no_offset_is_pending_that_the_coordinator_does_not_know_of(seed: int) -> None:
    """Random transactions of a coordinator, with late answers: once all have ended, nothing is pending."""
    random = Random(seed)
    async with running(World()) as world:
        coordinator = TransactionModel(world, random)
        commits = []
        for _ in range(30):
            step = random.choice([coordinator.begin, coordinator.finish, None])
            if step is None:
                commits.append(asyncio.create_task(txn_commit(world, "g", random.randrange(100))))
            else:
                await step()
            await asyncio.sleep(random.random() * 0.2)
        await asyncio.gather(*commits)
        await coordinator.finish()
        error, _ = await stable(world, "g")
        assert error is NONE, "an offset without a transaction is pending"


class TransactionModel:
    """A coordinator with one transaction of version 1, whose marker is written when it ends."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.is_open = False
        world.transactions.respond = self.respond
        world.verifier._verify = self.late

    def respond(self) -> tuple[ErrorCode, int]:
        return (NONE if self.is_open else ErrorCode.INVALID_TXN_STATE), EVER

    async def late(self, *question: Any) -> Mapping[PartitionKey, tuple[ErrorCode, int]]:
        await asyncio.sleep(self.random.random() * 0.3)
        found = await self.world.transactions(*question)
        await asyncio.sleep(self.random.random() * 0.3)
        return found

    async def begin(self) -> None:
        self.is_open = True

    async def finish(self) -> None:
        self.is_open = False
        assert await end(self.world, commits=self.random.random() < 0.5, version=1) is NONE
