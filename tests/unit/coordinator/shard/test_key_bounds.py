"""Bounds on the keys of a user, groups and transactional ids alike: what is refused, what waits, and what goes on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol
from unittest import mock

import pytest

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.shard.manager import Shards
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields_of
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId, ShardKind
from tests.unit.coordinator import fakes
from tests.unit.coordinator.transaction_shard import world as transactions

ALICE = ClientInfo("a", "/10.0.0.1", "User:alice")
BOB = ClientInfo("b", "/10.0.0.2", "User:bob")
NONE, PAST, LOADS = ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
SHARDS, REQUESTS = 30, 20
LOAD_S = fakes.settings().load_timeout_s


class SetBounds:
    """Bounds on keys of one kind, by principal."""

    def __init__(self, kind: str, **bounds: int) -> None:
        self.of = {f"User:{name}": bound for name, bound in bounds.items()}
        self._kind = kind

    def find_bound(self, kind: str, principal: str) -> int | None:
        assert kind == self._kind
        return self.of.get(principal)


class Keys(Protocol):
    """A process with the shards of one kind, and requests that create keys."""

    kind: ShardKind
    bound: str
    name: str
    remedy: str
    logs: fakes.MemoryLogs

    @property
    def shards(self) -> Shards[Any]: ...

    @property
    def refused(self) -> int: ...

    def running(self) -> AbstractAsyncContextManager[Any]: ...

    async def create(self, key: str, client: ClientInfo = ALICE) -> int:
        """Send a request that creates the key if it is missing; return its error."""

    async def store(self, key: str, client: ClientInfo = ALICE) -> int:
        """Create the key so that it outlives a failover; return the error."""

    async def ready(self, key: str) -> None:
        """Wait until the key's shard is served."""

    async def take_over(self) -> None:
        """Let another process, which is ``shards`` from now on, have the shards."""

    def isolate(self) -> None:
        """Let the process not open again what it loses."""


class Groups:
    kind, bound, name, remedy = GROUPS, "max_groups", "group", "delete groups of the user"

    def __init__(self, shards: int, bounds: SetBounds) -> None:
        self.world = fakes.World(fakes.MemoryLogs(shards), bounds)
        self.logs = self.world.logs

    @property
    def shards(self) -> Shards[Any]:
        return self.world.coordinator.shards

    @property
    def refused(self) -> int:
        return self.world.coordinator.groups_refused

    def running(self) -> AbstractAsyncContextManager[Any]:
        return fakes.running(self.world)

    async def create(self, key: str, client: ClientInfo = ALICE) -> int:
        return await self.store(key, client)

    async def store(self, key: str, client: ClientInfo = ALICE) -> int:
        return await self.world.commit(key, 5, client=client)

    async def ready(self, key: str) -> None:
        await self.world.coordinator.ready(key)

    async def take_over(self) -> None:
        await self.world.crash()

    def isolate(self) -> None:
        self.world.isolate()
        self.world.logs.fail_opens = 1 << 30


class JoinedGroups(Groups):
    async def create(self, key: str, client: ClientInfo = ALICE) -> int:
        """Send a member's first join, which creates the group and returns an id."""
        code = int((await self.world.coordinator.join_group(fakes.join_request(key), client)).error_code)
        return NONE if code == ErrorCode.MEMBER_ID_REQUIRED else code


class TransactionalIds:
    kind, bound, name, remedy = TRANSACTIONS, "max_transactional_ids", "transactional id", "let ids of the user expire"

    def __init__(self, shards: int, bounds: SetBounds) -> None:
        self.world = transactions.World(shards, bounds)
        self.logs = self.world.logs
        self._process = self.world.a

    @property
    def shards(self) -> Shards[Any]:
        return self._process.shards

    @property
    def refused(self) -> int:
        return self._process.shards.ids_refused

    def running(self) -> AbstractAsyncContextManager[Any]:
        return transactions.running(self.world)

    async def create(self, key: str, client: ClientInfo = ALICE) -> int:
        return await self.store(key, client)

    async def store(self, key: str, client: ClientInfo = ALICE) -> int:
        return int((await self._process.init(key, client=client)).error_code)

    async def ready(self, key: str) -> None:
        await self._process.apis.ready(key)

    async def take_over(self) -> None:
        self.world.show("b", 2)
        self._process = self.world.b

    def isolate(self) -> None:
        self.world.isolate(self._process)


Kind = type[Groups] | type[TransactionalIds]


@pytest.fixture(
    params=[Groups, JoinedGroups, TransactionalIds], ids=["groups of commits", "groups of joins", "transactional ids"]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@asynccontextmanager
async def running(kind: Kind, shards: int = 1, **bounds: int) -> AsyncIterator[Keys]:
    keys: Keys = kind(shards, SetBounds(kind.bound, **bounds))
    async with keys.running():
        await keys.ready("any")  # from now on the topic exists, and ``shard_of`` counts its partitions
        yield keys


def owned(keys: Keys, client: ClientInfo = ALICE) -> int:
    return sum(each.state.owned_by(client.principal) for each in keys.shards._loaded())


def keys_of(keys: Keys, number: int, count: int) -> list[str]:
    """Return so many keys of one shard."""
    names = (f"k{each}" for each in itertools.count())
    return list(itertools.islice((each for each in names if keys.shards.shard_of(each).number == number), count))


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("bounds", "client", "codes"),
    [
        ({"alice": 2}, ALICE, [NONE, NONE, PAST, PAST]),
        ({"alice": 0}, ALICE, [PAST] * 4),
        ({"alice": 2}, BOB, [NONE] * 4),
        ({}, ALICE, [NONE] * 4),
        ({"alice": 0}, fakes.CLIENT, [NONE] * 4),
    ],
    ids=["bound", "zero", "of another user", "unset", "request without a principal"],
)
async def test_keys_that_a_user_may_create(
    kind: Kind, bounds: dict[str, int], client: ClientInfo, codes: list[ErrorCode]
) -> None:
    async with running(kind, **bounds) as keys:
        assert [await keys.create(f"k{number}", client) for number in range(4)] == codes
        assert owned(keys, client) == (codes.count(NONE) if client.principal else 0)
        assert keys.refused == codes.count(PAST)


async def test_a_refused_key_is_logged_and_the_others_go_on(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    async with running(kind, alice=2) as keys:
        codes = [await keys.create(each) for each in ("first", "second", "third", "first", "second")]
        assert codes == [NONE, NONE, PAST, NONE, NONE]
        (line,) = [each for each in caplog.records if "not created" in each.getMessage()]
        assert line.getMessage() == (
            f"{kind.name} 'third' not created: its user has as many {kind.name}s in this process as it may have;"
            f" {kind.remedy}, or raise its quota"
        )
        assert fields_of(line)["error"] == f"User:alice owns 2, {kind.bound} is 2"
        assert await keys.create("third", BOB) == NONE, "another user's keys are not bounded"
        assert await keys.create("third") == NONE, "a key counts for the principal that created it"
        assert (owned(keys), owned(keys, BOB)) == (2, 1)


async def test_a_bound_of_a_process_counts_the_keys_of_all_its_shards(kind: Kind) -> None:
    async with running(kind, 8, alice=20) as keys:
        codes = [await keys.create(f"k{number}") for number in range(25)]
        assert codes == [NONE] * 20 + [PAST] * 5
        assert len({keys.shards.shard_of(f"k{number}") for number in range(20)}) > 1


async def test_simultaneous_creations_do_not_pass_the_bound(kind: Kind) -> None:
    """All of them are allowed at first: transactional ids wait for their producer ids."""
    async with running(kind, 2, alice=3) as keys:
        for number in range(10):
            await keys.ready(f"k{number}")
        codes = await asyncio.gather(*(keys.create(f"k{number}") for number in range(10)))
        assert sorted(codes) == [NONE] * 3 + [PAST] * 7
        assert owned(keys) == 3


async def test_a_bound_lower_than_what_is_owned_takes_nothing_away(kind: Kind) -> None:
    bounds = SetBounds(kind.bound, alice=5)
    keys: Keys = kind(1, bounds)
    async with keys.running():
        assert [await keys.create(each) for each in ("a", "b")] == [NONE] * 2
        bounds.of["User:alice"] = 0
        assert [await keys.create(each) for each in ("a", "b", "c")] == [NONE, NONE, PAST]


@pytest.mark.parametrize("later", [None, 1], ids=["removed", "raised"])
async def test_a_bound_that_is_raised_during_a_request_does_not_refuse_it(kind: Kind, later: int | None) -> None:
    """A refusal is final for Java's clients."""
    bounds = SetBounds(kind.bound, alice=0)
    keys: Keys = kind(1, bounds)
    async with keys.running():
        await keys.ready("a")
        stalled = keys.logs.partitions[0].stalled = asyncio.Event()
        refused = asyncio.create_task(keys.create("a"))
        await asyncio.sleep(0.1)
        assert not refused.done(), "it waits for the proof of the ownership"
        del bounds.of["User:alice"]
        if later is not None:
            bounds.of["User:alice"] = later
        stalled.set()
        assert await refused == LOADS
        assert keys.refused == 0
        assert await keys.create("a") == NONE


# ------------------------------------------------------------------------------ shards that load, and shards that moved


@asynccontextmanager
async def failover(keys: Keys, hold: Callable[[], Awaitable[object]]) -> AsyncIterator[list[str]]:
    """Let alice own three keys of shard 0, and another process take over, where shard 0 awaits ``hold``.

    Yields keys of shard 1, which is loaded there; bob owns the last of them.
    """
    zero, one = keys_of(keys, 0, 3), keys_of(keys, 1, 3)
    assert [await keys.store(each) for each in zero] == [NONE] * 3
    assert await keys.store(one[2], BOB) == NONE
    open_log = keys.logs.open

    async def held(shard: ShardId, *others: Any) -> Any:
        if shard.number == 0:
            await hold()
        return await open_log(shard, *others)

    with mock.patch.object(keys.logs, "open", held):
        await keys.take_over()
        await keys.ready(one[0])
        yield one
        await keys.ready(zero[0])


async def test_no_key_passes_the_bound_while_a_shard_loads_after_a_failover(kind: Kind) -> None:
    async with running(kind, 2, alice=3) as keys:
        gate = asyncio.Event()
        async with failover(keys, gate.wait) as new:
            began = asyncio.get_running_loop().time()
            assert await asyncio.gather(*(keys.create(each) for each in new[:2])) == [LOADS] * 2
            assert asyncio.get_running_loop().time() - began == LOAD_S, "as for its own shard"
            gate.set()
        assert [await keys.create(each) for each in new[:2]] == [PAST] * 2
        assert owned(keys) == 3


async def test_a_key_that_exists_waits_for_no_shard_that_loads(kind: Kind) -> None:
    async with running(kind, 2, alice=3) as keys:
        gate = asyncio.Event()
        async with failover(keys, gate.wait) as new:
            began = asyncio.get_running_loop().time()
            assert await keys.create(new[2]) == NONE
            assert await keys.create(new[0], BOB) == NONE, "a user without a bound waits for nothing either"
            assert asyncio.get_running_loop().time() - began < 1
            gate.set()


async def commit_of_a_member(world: fakes.World, group: str) -> int:
    return await world.commit(group, 5, client=ALICE, member_id="gone", generation=3)


async def commit_of_nothing(world: fakes.World, group: str) -> int:
    response = await world.coordinator.offset_commit(fakes.commit_request(group, []), ALICE)
    return len(response.topics)


async def join_of_a_member(world: fakes.World, group: str) -> int:
    return int((await world.coordinator.join_group(fakes.join_request(group, "gone"), ALICE)).error_code)


async def join_without_memory(world: fakes.World, group: str) -> int:
    with mock.patch.object(world.membership_budget, "limit", 0):
        return int((await world.coordinator.join_group(fakes.join_request(group), ALICE)).error_code)


@pytest.mark.parametrize(
    ("request_of", "expected"),
    [
        (commit_of_a_member, ErrorCode.GROUP_ID_NOT_FOUND),
        (commit_of_nothing, 0),
        (join_of_a_member, ErrorCode.UNKNOWN_MEMBER_ID),
        (join_without_memory, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_a_request_that_creates_no_group_waits_for_no_shard_that_loads(
    request_of: Callable[[fakes.World, str], Awaitable[int]], expected: int
) -> None:
    groups = Groups(2, SetBounds("max_groups", alice=4))
    async with groups.running():
        await groups.ready("any")
        gate = asyncio.Event()
        async with failover(groups, gate.wait) as new:
            began = asyncio.get_running_loop().time()
            assert await request_of(groups.world, new[0]) == expected
            assert asyncio.get_running_loop().time() - began < 1
            assert owned(groups) == 0, "the group was not created"
            gate.set()


async def test_a_new_key_waits_for_the_shards_that_load(kind: Kind) -> None:
    async with running(kind, 2, alice=4) as keys:
        gate = asyncio.Event()
        async with failover(keys, gate.wait) as new:
            creating = [asyncio.create_task(keys.create(each)) for each in new[:2]]
            await asyncio.sleep(1)
            assert not any(each.done() for each in creating)
            gate.set()
            assert sorted([await each for each in creating]) == [NONE, PAST]


async def test_requests_that_wait_share_the_wait_for_the_shards_that_load(kind: Kind) -> None:
    """Many clients ask again after a failover, while many shards load."""
    async with running(kind, SHARDS, alice=100) as keys:
        gate, open_log = asyncio.Event(), keys.logs.open
        new = keys_of(keys, 0, REQUESTS)

        async def held(shard: ShardId, *others: Any) -> Any:
            if shard.number:
                await gate.wait()
            return await open_log(shard, *others)

        with mock.patch.object(keys.logs, "open", held):
            await keys.take_over()
            await keys.ready(new[0])
            before = len(asyncio.all_tasks())
            creating = [asyncio.create_task(keys.create(each)) for each in new]
            await asyncio.sleep(1)
            assert len(asyncio.all_tasks()) == before + REQUESTS
            gate.set()
            assert await asyncio.gather(*creating) == [NONE] * REQUESTS


async def test_a_bound_that_is_reached_refuses_without_the_shards_that_load(kind: Kind) -> None:
    bounds = SetBounds(kind.bound, alice=3)
    keys: Keys = kind(2, bounds)
    async with keys.running():
        await keys.ready("any")
        gate = asyncio.Event()
        async with failover(keys, gate.wait) as new:
            bounds.of["User:alice"] = 0
            began = asyncio.get_running_loop().time()
            assert await keys.create(new[0]) == PAST
            assert asyncio.get_running_loop().time() - began < 1
            gate.set()


async def test_a_shard_that_cannot_be_loaded_does_not_stop_all_new_keys(kind: Kind) -> None:
    """Keep the new keys of all other users with a bound."""
    async with running(kind, 2, alice=3) as keys:
        is_broken = True

        async def fail() -> None:
            if is_broken:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "the log is torn")

        async with failover(keys, fail) as new:
            assert await keys.create(new[0]) == NONE
            assert keys.shards.not_loaded() == {ShardId(kind.kind, 0): "KAFKA_STORAGE_ERROR: the log is torn"}
            is_broken = False
        assert owned(keys) == 4, "as after a move of a shard: what the user owns stays"
        assert await keys.create(new[1]) == PAST


@pytest.mark.parametrize("lost", [0, 1], ids=["the key's own shard", "another shard"])
async def test_keys_that_another_process_serves_by_now_refuse_no_key(kind: Kind, lost: int) -> None:
    """No client would ask again after POLICY_VIOLATION, and the key may exist there."""
    async with running(kind, 2, alice=2) as keys:
        (new,), one = keys_of(keys, 0, 1), keys_of(keys, 1, 2)
        assert [await keys.store(each) for each in one] == [NONE, NONE]
        await keys.ready(new)
        keys.isolate()
        keys.logs.partitions[lost].open_log = None  # another process has the shard; this process does not know
        assert await keys.create(new) == (ErrorCode.NOT_COORDINATOR, LOADS)[lost]
        assert keys.refused == 0
        if lost == 1:
            assert owned(keys) == 0, "the question has shown that the shard is lost"
            await asyncio.sleep(LOAD_S)
            assert await keys.create(new) == NONE
