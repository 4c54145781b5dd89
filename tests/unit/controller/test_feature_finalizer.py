"""The leader's work on levels: its order of writes, crashes between them, and members that register meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest

from bmq.controller.feature_finalizer import FINISH_S, FeatureFinalizer
from bmq.core.aio.subscribers import no_op
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import (
    Feature,
    FeatureTable,
    FeatureUpdate,
    LevelRange,
    UnsupportedLevel,
    UpgradeType,
    unsupported,
)
from bmq.meta.cluster.keys import controller_key, features_key, member_key, members_prefix
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels, decode_record, encode_record
from bmq.meta.cluster.member import Member, decode_member, encode_member
from bmq.meta.cluster.membership import JoinRefused, Membership
from bmq.meta.kv import Changes, Commit, Compare, Delete, Entry, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.cluster_files import check_cluster, put_feature_levels, read_cluster
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeView
from tests.harness.waiting import until

KEY = features_key("c")


def table(highest: int) -> FeatureTable:
    return FeatureTable((Feature("f", LevelRange(0, highest), frozenset({(2, 1), (1, 0)})),))


def member(name: str, highest: int | None = 2) -> Member:
    features = () if highest is None else (("f", LevelRange(0, highest)),)
    return Member(incarnation=name, roles=frozenset({"broker"}), features=features)


class Crash(BaseException):
    """The end of a leader's process."""


class World:
    """One store and one root; ``check`` holds after every write of either."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.kv = MemoryKeyValue(self.store)
        self.fs = MemoryFileSystem(MemoryStorage(), "h")
        self.crash_after = -1
        """The number of the leader's writes after which it ends."""
        self.writes = 0
        self.storage_fails = False
        self.storage_responds = asyncio.Event()
        self.storage_responds.set()
        self.is_filing = False

    async def record(self) -> FeatureLevels:
        entry = await self.kv.get(KEY)
        return NO_LEVELS if entry is None else decode_record(entry.value)

    async def on_root(self) -> dict[str, int]:
        file = await read_cluster(self.fs, table(9))
        assert file is not None
        return dict(file.levels)

    async def put(self, *members: Member) -> None:
        await self.kv.commit([], [Put(member_key("c", each.incarnation), encode_member(each)) for each in members])

    async def drop(self, name: str) -> None:
        await self.kv.commit([], [Delete(member_key("c", name))])

    async def check(self) -> None:
        """Check that storage has every level that is in force."""
        in_force, on_root = (await self.record()).levels, await self.on_root()
        assert all(on_root.get(name, 0) >= level for name, level in in_force.items()), (in_force, on_root)

    async def written(self) -> None:
        await self.check()
        self.writes += 1
        if self.writes == self.crash_after:
            raise Crash

    async def file(self, revision: int, record: FeatureLevels) -> None:
        if self.storage_fails:
            raise StorageUnavailable("the NameNode is in safe mode")
        self.is_filing = True
        await self.storage_responds.wait()
        levels = StoredLevels(revision=revision, levels=record.highest, held=record.held)
        await put_feature_levels(self.fs, levels)
        await self.written()

    @asynccontextmanager
    async def leader(self, highest: int = 2) -> AsyncIterator[FeatureFinalizer]:
        """Let a leader work until the block ends."""
        await check_cluster(self.fs, "id", features=table(9))
        kv = LeadersStore(self)
        done = await self.kv.commit([], [Put(controller_key("c"), b"leader")])
        view = KvClusterView(kv, "c", "leader")
        await view.start()
        finalizer = FeatureFinalizer(
            kv, "c", view, table(highest), self.file, guard=lambda: [Compare(controller_key("c"), done.revision)]
        )
        try:
            await finalizer.begin()
            task = asyncio.create_task(finalizer.run(done.revision))
            try:
                yield finalizer
            finally:
                task.cancel()
                await asyncio.wait({task})
        finally:
            await view.close()


class LeadersStore(MemoryKeyValue):
    """The store as a leader reaches it."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self._world = world

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        done = await super().commit(compares, writes)
        if done.succeeded:
            await self._world.written()
        return done


async def stable(world: World, is_so: Callable[[FeatureLevels], bool]) -> FeatureLevels:
    """Wait until the record is so and without an intention, and return it."""

    async def found() -> bool:
        record = await world.record()
        return is_so(record) and not record.intended

    async with asyncio.timeout(100):
        while not await found():  # noqa: ASYNC110 - what is waited for is a state of the store
            await asyncio.sleep(0.01)
    return await world.record()


async def test_the_highest_level_of_all_members_is_finalized() -> None:
    world = World()
    await world.put(member("a", 2), member("b", 3))
    async with world.leader():
        assert await stable(world, lambda record: bool(record.levels)) == FeatureLevels(epoch=1, levels={"f": 2})
    await world.check()


async def test_a_member_of_an_earlier_version_holds_the_level_until_it_is_gone() -> None:
    world = World()
    await world.put(member("a", 2), member("b", 1), member("old", None))
    async with world.leader():
        await asyncio.sleep(1)
        assert await world.kv.get(KEY) is None, "nothing is written for a level that cannot be raised"
        await world.drop("old")
        await stable(world, lambda record: record.of("f") == 1)
        await world.drop("b")
        assert await stable(world, lambda record: record.of("f") == 2) == FeatureLevels(epoch=2, levels={"f": 2})


async def test_a_member_whose_record_cannot_be_read_holds_the_level() -> None:
    world = World()
    await world.put(member("a"))
    await world.kv.commit([], [Put(member_key("c", "later"), b'{"format":9}')])
    async with world.leader():
        await asyncio.sleep(1)
        assert await world.kv.get(KEY) is None


async def test_an_operator_lowers_and_raises() -> None:
    world = World()
    await world.put(member("a"))
    async with world.leader() as leader:
        await stable(world, lambda record: record.of("f") == 2)
        await leader.update([FeatureUpdate("f", 1, UpgradeType.SAFE_DOWNGRADE.value)], validate_only=True)
        assert (await world.record()).of("f") == 2
        await leader.update([FeatureUpdate("f", 1, UpgradeType.SAFE_DOWNGRADE.value)])
        assert await world.record() == FeatureLevels(epoch=2, levels={"f": 1}, held=frozenset({"f"}))
        await world.put(member("b"))
        await asyncio.sleep(1)
        assert (await world.record()).of("f") == 1, "it stays where the operator has put it"
        assert await world.on_root() == {"f": 1}
        await leader.update([FeatureUpdate("f", 2, UpgradeType.UPGRADE.value)])
        assert await world.record() == FeatureLevels(epoch=3, levels={"f": 2})
        await leader.update([FeatureUpdate("f", 2, UpgradeType.UPGRADE.value)])
        assert (await world.record()).epoch == 3, "the same level again changes nothing"


async def test_a_lowered_level_is_taken_from_storage_although_the_leader_ends_in_between() -> None:
    world = World()
    await world.put(member("a"))
    async with world.leader():
        await stable(world, lambda record: record.of("f") == 2)
    lowered = FeatureLevels(epoch=2, levels={"f": 1}, held=frozenset({"f"}))
    await world.kv.commit([], [Put(KEY, encode_record(lowered))])
    assert await world.on_root() == {"f": 2}
    async with world.leader():
        async with asyncio.timeout(10):
            while await world.on_root() != {"f": 1}:  # noqa: ASYNC110 - what is waited for is a state of storage
                await asyncio.sleep(0.01)
    assert await world.record() == lowered


async def test_without_storage_no_level_is_in_force() -> None:
    world = World()
    await world.put(member("a"))
    world.storage_fails = True
    async with world.leader() as leader:
        with pytest.raises(RequestError) as failed:
            await leader.update([FeatureUpdate("f", 2, UpgradeType.UPGRADE.value)])
        assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT
        record = await world.record()
        assert (record.levels, record.intended) == ({}, {"f": 2})
        world.storage_fails = False
        await stable(world, lambda record: record.of("f") == 2)


async def test_an_update_does_not_wait_without_end_while_storage_hangs() -> None:
    """A NameNode takes the connection and never responds."""
    world = World()
    await world.put(member("a"))
    world.storage_responds.clear()
    async with world.leader() as leader:
        await until(lambda: world.is_filing)
        update = [FeatureUpdate("f", 2, UpgradeType.UPGRADE.value)]
        async with asyncio.timeout(2 * FINISH_S):
            await leader.update(update, validate_only=True)
            with pytest.raises(RequestError) as failed:
                await leader.update(update)
        assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT
        world.storage_responds.set()
        await stable(world, lambda record: record.of("f") == 2)


async def test_an_operator_takes_an_intention_back_while_storage_hangs() -> None:
    """Else processes of an earlier version could not register until storage responds."""
    world = World()
    await world.put(member("a"))
    world.storage_responds.clear()
    async with world.leader() as leader:
        await until(lambda: world.is_filing)
        async with asyncio.timeout(FINISH_S):
            await leader.update([FeatureUpdate("f", 0, UpgradeType.UPGRADE.value)])
        taken_back = FeatureLevels(held=frozenset({"f"}))
        assert await world.record() == taken_back
        world.storage_responds.set()
        await asyncio.sleep(1)
        assert await world.record() == taken_back
        assert await world.on_root() == {}


class SlowWatch(MemoryKeyValue):
    """A store whose changes reach the view only after ``may_show``."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.may_show = asyncio.Event()

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        async with contextlib.aclosing(super().watch(prefix, after_revision=after_revision)) as changes:
            async for each in changes:
                await self.may_show.wait()
                yield each


async def test_an_update_is_decided_on_the_levels_that_the_leader_before_has_written() -> None:
    """The new leader's view is behind: it shows a level that the leader before has lowered."""
    world = World()
    await check_cluster(world.fs, "id", features=table(9))
    await world.put(member("a"))
    await world.kv.commit([], [Put(KEY, encode_record(FeatureLevels(epoch=1, levels={"f": 2})))])
    kv = SlowWatch(world.store)
    view = KvClusterView(kv, "c", "leader")
    await view.start()
    lowered = FeatureLevels(epoch=2, levels={"f": 1}, held=frozenset({"f"}))
    await world.kv.commit([], [Put(KEY, encode_record(lowered))])
    done = await world.kv.commit([], [Put(controller_key("c"), b"leader")])
    finalizer = FeatureFinalizer(
        kv, "c", view, table(2), world.file, guard=lambda: [Compare(controller_key("c"), done.revision)]
    )
    await finalizer.begin()
    run = asyncio.create_task(finalizer.run(done.revision))
    try:
        update = asyncio.create_task(finalizer.update([FeatureUpdate("f", 2, UpgradeType.UPGRADE.value)]))
        await asyncio.sleep(1)
        assert not update.done(), "the view does not show yet what the leader before has written"
        kv.may_show.set()
        await update
        assert await world.record() == FeatureLevels(epoch=3, levels={"f": 2})
    finally:
        run.cancel()
        await asyncio.wait({run})
        await view.close()


@pytest.mark.parametrize("writes", range(1, 6))
@pytest.mark.parametrize("may_go_on", [True, False])
async def test_a_leader_that_ends_after_any_write_leaves_what_the_next_one_goes_on_with(
    writes: int, *, may_go_on: bool
) -> None:
    """``may_go_on``: whether the members still support the level when the next leader comes."""
    world = World()
    await world.put(member("a"))
    world.crash_after = writes
    async with world.leader():
        await until(lambda: world.writes >= min(writes, 3))
        await asyncio.sleep(0.1)
    await world.check()
    world.crash_after = -1
    before = await world.record()
    if not may_go_on and not before.levels:
        await world.put(member("a", None))  # a version from before levels: it compares nothing when it registers
    async with world.leader():
        after = await stable(world, lambda record: bool(record.levels) or not may_go_on)
        await asyncio.sleep(0.1)
        assert await world.on_root() == dict(after.levels)
    assert after.levels == ({"f": 2} if may_go_on or before.levels else {})


async def test_a_leader_withdraws_an_intention_that_it_does_not_support_itself() -> None:
    """The process registered just before the intention, whose leader has ended.

    Nothing was written at the intended level.  If the process ended as well, only processes that support the level
    could register from then on.
    """
    world = World()
    await check_cluster(world.fs, "id", features=table(9))
    await world.put(member("a", 1))
    record = FeatureLevels(epoch=1, levels={"f": 1}, intended={"f": 2})
    done = await world.kv.commit([], [Put(KEY, encode_record(record))])
    await put_feature_levels(world.fs, StoredLevels(revision=done.revision, levels=record.highest))
    async with world.leader(1):
        assert await stable(world, lambda record: True) == FeatureLevels(epoch=1, levels={"f": 1})
        await until(lambda: world.writes >= 2)
        assert await world.on_root() == {"f": 1}


async def test_a_process_that_does_not_support_a_level_does_not_lead() -> None:
    world = World()
    await world.kv.commit([], [Put(KEY, encode_record(FeatureLevels(levels={"f": 2})))])
    with pytest.raises(UnsupportedLevel, match="f 2 is in force, this version supports 0 to 1"):
        async with world.leader(1):
            pass
    await world.kv.commit([], [Put(KEY, b'{"format":2}')])
    with pytest.raises(UnsupportedLevel, match="format 2"):
        async with world.leader():
            pass


async def test_a_former_leader_writes_nothing() -> None:
    world = World()
    async with world.leader() as former:
        await world.kv.commit([], [Put(controller_key("c"), b"another")])
        before = await world.record()
        with pytest.raises(RequestError) as refused:
            await former.update([FeatureUpdate("f", 1, UpgradeType.UPGRADE.value)])
        assert refused.value.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_UPDATE_VERSION)
        assert await world.record() == before


# -------------------------------------------------------------------------------------- members that register meanwhile


class Turns:
    """Turns that actors take one after another, in an order that a schedule names: one call of the store each."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._ended: set[str] = set()
        self._arrived = asyncio.Event()

    async def turn(self, actor: str) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[actor] = future
        self._arrived.set()
        await future

    def end(self, actor: str) -> None:
        self._ended.add(actor)
        self._arrived.set()

    async def ready(self, actors: Sequence[str]) -> list[str]:
        """Wait until each actor waits for its turn or has ended; return those that wait."""
        while any(actor not in self._waiting and actor not in self._ended for actor in actors):
            self._arrived.clear()
            await self._arrived.wait()
        return [actor for actor in actors if actor in self._waiting]

    def give(self, actor: str) -> None:
        self._waiting.pop(actor).set_result(None)


class TurnsStore(MemoryKeyValue):
    """The store of one actor, whose reads and commits each wait for a turn."""

    def __init__(self, store: MemoryStore, turns: Turns, actor: str) -> None:
        super().__init__(store)
        self._turn = partial(turns.turn, actor)

    async def get(self, key: str) -> Entry | None:
        await self._turn()
        return await super().get(key)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        await self._turn()
        return await super().commit(compares, writes)


class TurnsView:
    """A leader's view that shows the store as of its last look, which is a turn of its own."""

    def __init__(self, store: MemoryStore, turns: Turns) -> None:
        self._store = store
        self._turns = turns
        self.revision = 0
        self.members: dict[str, Member] = {}
        self.levels = NO_LEVELS
        self.unreadable: dict[str, str] = {}
        self._revision_of_levels = 0
        self.writes = 0
        """The writes of the leader, which ends after the second: by then a level is in force, or withdrawn."""

    def revision_of(self, key: str) -> int:
        assert key == KEY
        return self._revision_of_levels

    async def wait_revision(self, revision: int) -> None:
        if self.writes == 2:
            raise Crash
        if revision > self.revision:
            await self.look()

    async def look(self) -> None:
        await self._turns.turn("leader")
        self.revision = self._store.revision
        entries = self._store.page(members_prefix("c"), "", 100)
        self.members = {each.incarnation: each for each in (decode_member(entry.value) for entry in entries)}
        record = self._store.get(KEY)
        self._revision_of_levels = 0 if record is None else record.revision
        self.levels = NO_LEVELS if record is None else decode_record(record.value)


async def lead(turns: Turns, store: MemoryStore) -> None:
    """Finalize the highest level that can be, or withdraw it."""
    view = TurnsView(store, turns)

    async def file(revision: int, record: FeatureLevels) -> None:
        """Do nothing: storage is not what is raced for."""

    def guard() -> list[Compare]:
        view.writes += 1
        return []

    finalizer = FeatureFinalizer(TurnsStore(store, turns, "leader"), "c", cast(Any, view), table(2), file, guard=guard)
    await view.look()
    with contextlib.suppress(Crash):
        await finalizer._advance()


async def register(turns: Turns, store: MemoryStore, joining: Member) -> None:
    """Register once; a process that is refused ends."""
    membership = Membership(
        TurnsStore(store, turns, joining.incarnation), "c", joining, FakeView(joining.incarnation), on_lost=no_op
    )
    with contextlib.suppress(JoinRefused):
        await membership._join()


async def race(members: Sequence[Member], prefix: Sequence[int]) -> tuple[list[int], list[int]]:
    """Let a leader and members act by the schedule ``prefix``, and then the first that waits, each time.

    Returns which was taken, and how many could have been, at each turn.
    """
    turns, store = Turns(), MemoryStore()

    async def run(name: str, work: Awaitable[None]) -> None:
        try:
            await work
        finally:
            turns.end(name)

    works = {"leader": lead(turns, store)} | {each.incarnation: register(turns, store, each) for each in members}
    tasks = [asyncio.create_task(run(name, work)) for name, work in works.items()]
    taken: list[int] = []
    choices: list[int] = []
    while waiting := await turns.ready(list(works)):
        taken.append(prefix[len(taken)] if len(taken) < len(prefix) else 0)
        choices.append(len(waiting))
        turns.give(waiting[taken[-1]])
        await turns.ready(list(works))
        check_nobody_is_left_behind(store)
    await asyncio.gather(*tasks)
    return taken, choices


def check_nobody_is_left_behind(store: MemoryStore) -> None:
    """Check that each registered member supports what is in force."""
    entry = store.get(KEY)
    in_force = NO_LEVELS if entry is None else decode_record(entry.value)
    for registered in store.page(members_prefix("c"), "", 100):
        found = decode_member(registered.value)
        assert not unsupported(in_force.levels, found.ranges), f"{found.incarnation} with {in_force}"


def following(taken: list[int], choices: list[int]) -> list[int] | None:
    """Return the next schedule: another choice at the last turn that has one left; None after the last schedule."""
    while taken and taken[-1] + 1 == choices[len(taken) - 1]:
        taken.pop()
    return [*taken[:-1], taken[-1] + 1] if taken else None


@pytest.mark.slow
@pytest.mark.parametrize("levels", [pytest.param((1, 2), marks=pytest.mark.slow), (None, 1)])
async def test_no_order_of_steps_finalizes_a_level_that_a_member_does_not_support(
    levels: tuple[int | None, int | None],
) -> None:
    """A leader that could raise to 2 and two registrations, in every order of their calls of store and storage."""
    members = [member("m", levels[0]), member("n", levels[1])]
    schedule: list[int] | None = []
    races = 0
    while schedule is not None:
        schedule = following(*await race(members, schedule))
        races += 1
        await asyncio.sleep(0.001)  # the virtual clock moves on: what spins at one instant is a failure
    assert races > 500
