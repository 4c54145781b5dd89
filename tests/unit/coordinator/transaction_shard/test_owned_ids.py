"""Transactional ids of a principal: what creates and forgets them, the bound, and what a failover keeps of it."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.transaction.records import StoredTransaction, TransactionRecord, decode, encode
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.state import TransactionsState
from bmq.core.errors import ErrorCode as E
from bmq.core.logging.fields import fields_of
from bmq.core.records.batch import Record, build_batch
from tests.unit.coordinator.fakes import CLIENT
from tests.unit.coordinator.transaction_shard.world import Process, World, running

ALICE = ClientInfo("a", "/10.0.0.1", "User:alice")
BOB = ClientInfo("b", "/10.0.0.2", "User:bob")
PAST = E.POLICY_VIOLATION


class SetBounds:
    """Bounds on transactional ids by principal."""

    def __init__(self, **bounds: int) -> None:
        self.of = {f"User:{name}": bound for name, bound in bounds.items()}

    def find_bound(self, kind: str, principal: str) -> int | None:
        assert kind == "max_transactional_ids"
        return self.of.get(principal)


def owned(process: Process, client: ClientInfo = ALICE) -> int:
    return sum(each.state.owned_by(client.principal) for each in process.shards._loaded())


async def init(process: Process, tid: str, client: ClientInfo = ALICE, *, version: int = 5) -> E:
    """Send a producer's first InitProducerId and return its error."""
    made = await process.init(tid, client=client, version=version)
    assert (made.producer_id < 0) == bool(made.error_code)
    return E(made.error_code)


async def load(process: Process, *tids: str) -> None:
    """Wait until the shards of these ids are served."""
    for tid in tids:
        await process.apis.ready(tid)


@pytest.mark.parametrize(
    ("bounds", "client", "codes"),
    [
        (SetBounds(alice=2), ALICE, [E.NONE, E.NONE, PAST, PAST]),
        (SetBounds(alice=0), ALICE, [PAST] * 4),
        (SetBounds(alice=2), BOB, [E.NONE] * 4),
        (SetBounds(), ALICE, [E.NONE] * 4),
        (None, ALICE, [E.NONE] * 4),
        (SetBounds(alice=0), CLIENT, [E.NONE] * 4),
    ],
    ids=["bound", "zero", "of another user", "unset", "no bounds", "request without a principal"],
)
async def test_ids_that_a_user_may_create(bounds: SetBounds | None, client: ClientInfo, codes: list[E]) -> None:
    async with running(World(bounds=bounds)) as world:
        assert [await init(world.a, f"t{number}", client) for number in range(4)] == codes
        count = codes.count(E.NONE)
        assert owned(world.a, client) == (count if client.principal else 0)
        assert len((await world.a.serving()).state.values) == count
        assert world.a.shards.ids_refused == 4 - count
        assert len(world.a.ids) == count, "a refused id takes no producer id"


async def test_a_refused_id_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async with running(World(bounds=SetBounds(alice=1))) as world:
        assert await init(world.a, "first") == E.NONE
        assert [await init(world.a, "second", version=version) for version in range(6)] == [PAST] * 6
        line = next(each for each in caplog.records if "not created" in each.getMessage())
        assert line.getMessage().startswith(
            "transactional id 'second' not created: its user has as many transactional ids in this process"
        )
        assert fields_of(line)["error"] == "User:alice owns 1, max_transactional_ids is 1"
        again = await world.a.init("first", client=ALICE)
        assert (again.error_code, again.producer_epoch) == (0, 1), "an id that exists goes on"
        producer = (again.producer_id, again.producer_epoch)
        assert await world.a.add(producer, 1, tid="first") == [E.NONE]
        assert (await world.a.end(producer, commit=True, tid="first")).error_code == 0
        assert await init(world.a, "second", BOB) == E.NONE
        assert await init(world.a, "second") == E.NONE, "an id counts for the principal that created it"
        assert (owned(world.a), owned(world.a, BOB)) == (1, 1)


async def test_expired_ids_make_room() -> None:
    changes = {"transactional_id_retention_ms": 10_000, "transactional_id_expiry_interval_s": 1.0}
    async with running(World(1, SetBounds(alice=2), **changes)) as world:
        assert await init(world.a, "unused") == E.NONE
        made = await world.a.init("open", client=ALICE, timeout_ms=900_000)
        assert await world.a.add((made.producer_id, made.producer_epoch), 1, tid="open") == [E.NONE]
        assert await init(world.a, "more") == PAST
        await asyncio.sleep(14)
        assert owned(world.a) == 1, "an id with an open transaction does not expire"
        assert await init(world.a, "more") == E.NONE
        assert await init(world.a, "unused") == PAST
        world.show("b", 2)
        await load(world.b, "any")
        assert (owned(world.a), owned(world.b)) == (0, 2)


@pytest.mark.parametrize("with_snapshot", [False, True])
async def test_a_failover_keeps_whose_ids_they_are(*, with_snapshot: bool) -> None:
    changes = {"snapshot_bytes": 1} if with_snapshot else {}
    async with running(World(1, SetBounds(alice=3), **changes)) as world:
        await init(world.a, "empty")
        made = await world.a.init("ended", client=ALICE)
        producer = (made.producer_id, made.producer_epoch)
        await world.a.add(producer, 1, tid="ended")
        await world.a.end(producer, commit=True, tid="ended", version=5)
        made = await world.a.init("open", client=ALICE)
        await world.a.add((made.producer_id, made.producer_epoch), 1, tid="open")
        await init(world.a, "bobs", BOB)
        await asyncio.sleep(1)
        assert bool(world.log.snapshots) is with_snapshot
        for number, process in enumerate((world.b, world.a), 2):
            world.show("ab"[number % 2 == 0], number)
            await load(process, "any")
            assert (owned(process), owned(process, BOB)) == (3, 1)
            assert await init(process, "more") == PAST
            assert await init(process, "empty", BOB) == E.NONE, (
                "stored again, with the epoch of another user's producer"
            )
            assert (owned(process), owned(process, BOB)) == (3, 1)


async def test_ids_of_earlier_versions_count_for_nobody() -> None:
    world = World(bounds=SetBounds(alice=1))
    old = encode(TransactionRecord("old", StoredTransaction(7, 3, 60_000, TransactionState.EMPTY, updated_ms=1 << 50)))
    world.log.store(build_batch([Record(key=old[0], value=old[1])], base_timestamp=0))
    async with running(world):
        assert (await world.a.init("old", client=ALICE)).producer_epoch == 4
        assert owned(world.a) == 0
        assert await init(world.a, "new") == E.NONE
        assert owned(world.a) == 1


async def test_a_coordinator_that_is_cut_off_refuses_no_id_that_exists_elsewhere() -> None:
    """Java's producer would not ask again after POLICY_VIOLATION."""
    async with running(World(bounds=SetBounds(alice=1))) as world:
        assert await init(world.a, "first", BOB) == E.NONE
        assert await init(world.a, "full") == E.NONE
        world.isolate(world.a)
        world.b.show("b", 2)  # the first process does not see that the second has the shard
        world.log.open_log = None
        assert await init(world.b, "later", BOB) == E.NONE
        assert await init(world.a, "later") == E.NOT_COORDINATOR
        assert world.a.shards.ids_refused == 0


def test_counts_follow_each_record_and_the_table_has_only_principals_with_ids() -> None:
    state = TransactionsState()
    value = StoredTransaction(1, 0, 1, TransactionState.EMPTY, principal="User:alice")

    def apply(tid: str, new: StoredTransaction | None) -> None:
        state.apply(TransactionRecord(tid, new))

    apply("a", value)
    apply("a", value._replace(epoch=1))
    apply("b", value)
    assert state.owned_by("User:alice") == 2
    apply("b", value._replace(principal="User:bob"))
    apply("c", value._replace(principal=""))
    assert state._owned == {"User:alice": 1, "User:bob": 1}
    kept = {record[0]: record.value for record in (decode(*each) for each in state.live_records())}
    assert {tid: each.principal for tid, each in kept.items() if isinstance(each, StoredTransaction)} == {
        "a": "User:alice",
        "b": "User:bob",
        "c": "",
    }
    for tid in ("a", "b", "c", "a", "never"):
        apply(tid, None)
    assert state._owned == {}
