"""Transactional ids of a principal: what creates and forgets them, the bound, and what a failover keeps of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.transaction.records import StoredTransaction, TransactionRecord, decode, encode
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.state import TransactionsState
from bmq.core.errors import ErrorCode as E
from bmq.core.errors import RequestError
from bmq.core.logging.fields import fields_of
from bmq.core.records.batch import Record, build_batch
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from tests.unit.coordinator.fakes import CLIENT, settings
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


async def test_a_bound_of_a_process_counts_the_ids_of_all_its_shards() -> None:
    async with running(World(8, SetBounds(alice=20))) as world:
        codes = [await init(world.a, f"t{number}") for number in range(25)]
        assert codes == [E.NONE] * 20 + [PAST] * 5
        assert len({world.a.shards.shard_of(f"t{number}") for number in range(20)}) > 1


async def test_simultaneous_creations_do_not_pass_the_bound() -> None:
    """All of them are allowed at first, and wait for their producer ids."""
    async with running(World(2, SetBounds(alice=3))) as world:
        await load(world.a, *(f"t{number}" for number in range(10)))
        codes = await asyncio.gather(*(init(world.a, f"t{number}") for number in range(10)))
        assert sorted(codes) == [E.NONE] * 3 + [PAST] * 7
        assert owned(world.a) == 3


async def test_a_bound_lower_than_what_is_owned_takes_nothing_away() -> None:
    bounds = SetBounds(alice=5)
    async with running(World(bounds=bounds)) as world:
        assert [await init(world.a, tid) for tid in ("a", "b")] == [E.NONE] * 2
        bounds.of["User:alice"] = 0
        assert [await init(world.a, tid) for tid in ("a", "b", "c")] == [E.NONE, E.NONE, PAST]


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


# ------------------------------------------------------------------------------ shards that load, and shards that moved


def ids_of(world: World, number: int, count: int) -> list[str]:
    """Return so many ids of one shard."""
    names = (f"t{each}" for each in itertools.count())
    return list(itertools.islice((tid for tid in names if world.a.shards.shard_of(tid).number == number), count))


@asynccontextmanager
async def failover(world: World, hold: Callable[[], Awaitable[object]]) -> AsyncIterator[list[str]]:
    """Let alice own three ids, all of shard 0, and move both shards to process b, where shard 0 awaits ``hold``.

    Yields ids of shard 1, which is loaded there.
    """
    zero, one = ids_of(world, 0, 3), ids_of(world, 1, 3)
    await load(world.a, zero[0], one[0])
    assert [await init(world.a, tid) for tid in zero] == [E.NONE] * 3
    assert await init(world.a, one[0]) == PAST
    assert await init(world.a, one[2], BOB) == E.NONE
    open_log = world.logs.open

    async def held(shard: ShardId, *others: Any) -> Any:
        if shard.number == 0:
            await hold()
        return await open_log(shard, *others)

    with mock.patch.object(world.logs, "open", held):
        world.show("b", 2)
        await load(world.b, one[0])
        yield one
        await load(world.b, zero[0])


async def test_no_id_passes_the_bound_while_a_shard_loads_after_a_failover() -> None:
    async with running(World(2, SetBounds(alice=3))) as world:
        gate = asyncio.Event()
        async with failover(world, gate.wait) as new:
            began = asyncio.get_running_loop().time()
            codes = await asyncio.gather(*(init(world.b, tid) for tid in new[:2]))
            assert codes == [E.COORDINATOR_LOAD_IN_PROGRESS] * 2
            assert asyncio.get_running_loop().time() - began == settings().load_timeout_s, "as for its own shard"
            assert await init(world.b, new[0], BOB) == E.NONE, "a user without a bound waits for nothing"
            assert await init(world.b, new[2]) == E.NONE, "an id that exists goes on"
            gate.set()
        assert [await init(world.b, tid) for tid in ids_of(world, 1, 5)[3:]] == [PAST] * 2
        assert owned(world.b) == 3


async def test_a_new_id_waits_for_the_shards_that_load() -> None:
    async with running(World(2, SetBounds(alice=3))) as world:
        gate = asyncio.Event()
        async with failover(world, gate.wait) as new:
            asking = asyncio.create_task(init(world.b, new[0]))
            await asyncio.sleep(1)
            assert not asking.done()
            gate.set()
            assert await asking == PAST


async def test_a_bound_that_is_reached_refuses_without_the_shards_that_load() -> None:
    bounds = SetBounds(alice=3)
    async with running(World(2, bounds)) as world:
        gate = asyncio.Event()
        async with failover(world, gate.wait) as new:
            bounds.of["User:alice"] = 0
            began = asyncio.get_running_loop().time()
            assert await init(world.b, new[0]) == PAST
            assert asyncio.get_running_loop().time() - began < 1
            gate.set()


async def test_a_shard_that_cannot_be_loaded_does_not_stop_all_new_ids() -> None:
    """Keep the new ids of all other users with a bound."""
    async with running(World(2, SetBounds(alice=3))) as world:
        is_broken = True

        async def fail() -> None:
            if is_broken:
                raise RequestError(E.KAFKA_STORAGE_ERROR, "the log is torn")

        async with failover(world, fail) as new:
            assert await init(world.b, new[0]) == E.NONE
            assert world.b.shards.not_loaded() == {ShardId(TRANSACTIONS, 0): "KAFKA_STORAGE_ERROR: the log is torn"}
            is_broken = False
        assert owned(world.b) == 4, "as after a move of a shard: what the user owns stays"
        assert await init(world.b, new[1]) == PAST


async def test_ids_that_another_process_serves_by_now_refuse_no_new_id() -> None:
    """Java's producer would not ask again after POLICY_VIOLATION."""
    async with running(World(2, SetBounds(alice=2))) as world:
        (zero,), one = ids_of(world, 0, 1), ids_of(world, 1, 2)
        await load(world.a, zero, *one)
        assert [await init(world.a, tid) for tid in one] == [E.NONE] * 2
        world.isolate(world.a)
        world.logs.partitions[1].open_log = None  # another process has the shard; the first one does not know
        assert owned(world.a) == 2
        assert await init(world.a, zero) == E.COORDINATOR_LOAD_IN_PROGRESS
        assert world.a.shards.ids_refused == 0
        assert owned(world.a) == 0, "the question has shown that the shard is lost"
        await asyncio.sleep(settings().load_timeout_s)
        assert await init(world.a, zero) == E.NONE
