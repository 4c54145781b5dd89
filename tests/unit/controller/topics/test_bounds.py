"""Bounds on a principal's topics and partitions: what counts, what a refusal says, and that no history passes them.

The histories have three processes that all take themselves for the leader, and outcomes that are unknown or come late.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from bmq.controller.topics.bounds import More
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import OFFSETS_TOPIC, Owned, decode_topic, encode_topic, topic_key
from bmq.meta.kv import Commit, Compare, Put
from bmq.meta.kv_memory import KvFaults, MemoryStore
from bmq.meta.security.client_quotas import MAX_PARTITIONS, MAX_TOPICS
from bmq.storage.memory import MemoryStorage
from tests.harness.loop import run
from tests.unit.controller.admin.world import AdminWorld, world

ALICE, BOB = "User:alice", "User:bob"


class SetBounds:
    """Bounds by quota and principal."""

    def __init__(self, **bounds: int) -> None:
        self.of = {(kind, ALICE): bound for kind, bound in bounds.items()}

    def find_bound(self, kind: str, principal: str) -> int | None:
        return self.of.get((kind, principal))


def bounded(**bounds: int) -> SetBounds:
    return SetBounds(**bounds)


async def refused(act: object) -> str:
    with pytest.raises(RequestError) as caught:
        await act  # type: ignore[misc]
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    return caught.value.message


async def test_a_topic_past_the_bound_is_refused_with_who_what_and_how_many() -> None:
    async with world(bounds=bounded(max_topics=2)) as w:
        await w.admin.create_topic("a", principal=ALICE)
        await w.admin.ensure_topic("b", ALICE)
        assert w.catalog.owned_by(ALICE).topics == 2
        for act in (
            w.admin.create_topic("c", principal=ALICE),
            w.admin.create_topic("c", principal=ALICE, validate_only=True),
            w.admin.ensure_topic("c", ALICE),
        ):
            text = await refused(act)
            assert ALICE in text
            assert "may own 2 topic(s), owns 2" in text
            assert MAX_TOPICS in text
        assert "c" not in w.catalog.topics
        assert await w.names("/") == ["a", "b"] or "c" not in await w.names("/"), "no folder is left"
        assert (await w.admin.ensure_topic("a", ALICE)).name == "a", "what exists is no creation"
        await w.admin.create_topic("c", principal=BOB)
        await w.admin.create_topic("d")


async def test_a_deletion_gives_back() -> None:
    async with world(bounds=bounded(max_topics=1, max_partitions=3)) as w:
        await w.admin.create_topic("a", 3, principal=ALICE)
        await refused(w.admin.create_topic("b", 1, principal=ALICE))
        await w.admin.delete_topic("a")
        assert w.catalog.owned_by(ALICE) == Owned()
        await w.admin.create_topic("b", 3, principal=ALICE)


@pytest.mark.slow
async def test_partitions_count_for_the_topics_principal_whoever_adds_them() -> None:
    async with world(bounds=bounded(max_partitions=5)) as w:
        await w.admin.create_topic("a", 2, principal=ALICE)
        await w.admin.add_partitions("a", 4)
        for only in (False, True):
            text = await refused(w.admin.add_partitions("a", 6, validate_only=only))
            assert "may own 5 partition(s), owns 4, and this would add 2" in text
            assert MAX_PARTITIONS in text
        assert "owns 4" in await refused(w.admin.create_topic("b", 2, principal=ALICE))
        await w.admin.create_topic("b", 1, principal=ALICE)
        assert w.catalog.owned_by(ALICE) == Owned(2, 5)


async def test_a_bound_below_what_is_owned_takes_nothing_away() -> None:
    bounds = SetBounds()
    async with world(bounds=bounds) as w:
        await w.admin.create_topic("a", 4, principal=ALICE)
        await w.admin.create_topic("b", 4, principal=ALICE)
        bounds.of = {(MAX_TOPICS, ALICE): 1, (MAX_PARTITIONS, ALICE): 1}
        await w.admin.alter_topic_configs("a", {"retention.ms": "5"})
        assert w.catalog.owned_by(ALICE) == Owned(2, 8)
        await refused(w.admin.add_partitions("a", 5))
        bounds.of = {(MAX_TOPICS, ALICE): 3}
        await w.admin.create_topic("c", 4, principal=ALICE)


async def test_an_internal_topic_and_topics_of_earlier_versions_count_for_nobody() -> None:
    async with world(bounds=bounded(max_topics=0)) as w:
        made = await w.admin.ensure_topic(OFFSETS_TOPIC, ALICE)
        assert made.principal == ""
        entry = w.store.get(topic_key("c", OFFSETS_TOPIC))
        assert entry is not None
        assert b"principal" not in entry.value
        assert w.catalog.owned_by("") == Owned()


@contextlib.asynccontextmanager
async def two_leaders() -> AsyncIterator[tuple[AdminWorld, AdminWorld]]:
    """Run two processes that both take themselves for the leader, with a bound of one topic for alice."""
    store, storage, bounds = MemoryStore(), MemoryStorage(), bounded(max_topics=1)
    async with (
        world(store, storage, random=Random(1), name="a", bounds=bounds) as first,
        world(store, storage, random=Random(1), name="b", bounds=bounds) as second,
    ):
        yield first, second


async def test_a_creation_is_not_decided_on_a_view_that_is_behind() -> None:
    """The second leader's view is late: it waits for the first one's topic before it counts."""
    async with two_leaders() as (first, second):
        second.view_kv.faults = KvFaults(latency_s=2.0)
        await first.admin.create_topic("a", principal=ALICE)
        assert "a" not in second.catalog.topics
        await refused(second.admin.create_topic("b", principal=ALICE))


async def test_a_name_that_was_just_deleted_is_not_taken_for_one_that_exists() -> None:
    """The view still shows bob's topic, which the store has no more: alice's of the same name is a creation."""
    async with two_leaders() as (first, second):
        owner = await first.admin.create_topic("a", principal=BOB)
        await first.admin.create_topic("b", principal=ALICE)
        bounds = second.admin._bounds
        topic = replace(owner, principal=ALICE, topic_id=uuid.uuid4(), revision=0)
        key, value = topic_key("c", "a"), encode_topic(topic)
        for _ in range(10):
            await asyncio.sleep(1.0)
        assert {"a", "b"} <= set(second.catalog.topics)
        second.view_kv.faults = KvFaults(latency_s=2.0)
        await first.admin.delete_topic("a")
        assert "a" in second.catalog.topics

        async def attempt(compares: Sequence[Compare], writes: Sequence[Put]) -> Commit:
            await asyncio.sleep(0.5)
            return await second.kv.commit([Compare(key, 0), *compares], [Put(key, value), *writes])

        assert "owns 1" in await refused(bounds.commit(topic, More(1, 1), key, value, attempt))
        assert first.store.get(key) is None


@pytest.mark.slow
def test_no_history_of_several_leaders_passes_a_bound() -> None:
    """Three leaders, unknown outcomes and late commits: the store never has more than the bound."""
    topics_max, partitions_max = 4, 8
    made = refusals = 0

    async def main(seed: int) -> None:
        nonlocal made, refusals
        random = Random(seed)
        store, storage = MemoryStore(), MemoryStorage()
        bounds = bounded(max_topics=topics_max, max_partitions=partitions_max)
        config = NodeConfig(num_partitions=2)
        worlds = [
            AdminWorld(store, storage, config=config, random=Random(seed + n), name=f"p{n}", bounds=bounds)
            for n in range(3)
        ]
        for one in worlds:
            await one.start()
            one.view_kv.faults = KvFaults(latency_s=0.3)
            one.fail(latency_s=0.05, unknown_applied=0.1, unknown_lost=0.1, unknown_late=0.1, late_s=0.4)
        acts = []
        for number in range(16):
            admin = random.choice(worlds).admin
            name = f"t{random.randrange(12)}"
            if number % 3 == 2:
                acts.append(admin.add_partitions(name, random.randrange(1, 6)))
            else:
                acts.append(admin.create_topic(name, random.randrange(1, 4), principal=ALICE))

        async def later(act: object) -> object:
            await asyncio.sleep(random.random())
            return await act  # type: ignore[misc]

        results = await asyncio.gather(*map(later, acts), return_exceptions=True)
        await asyncio.sleep(5)  # late commits
        entries = [entry async for entry in worlds[0].view_kv.list("/c/catalog/topics/")]
        found = [decode_topic(entry.key.rpartition("/")[2], entry) for entry in entries]
        assert len(found) <= topics_max
        assert sum(topic.partitions for topic in found) <= partitions_max
        made += len(found)
        refusals += sum(getattr(each, "code", None) is ErrorCode.POLICY_VIOLATION for each in results)
        unexpected = [each for each in results if isinstance(each, Exception) and not isinstance(each, RequestError)]
        assert unexpected == []
        for one in worlds:
            await one.close()

    for seed in range(0, 400, 10):
        run(main(seed), seed)
    assert made > 100
    assert refusals > 40
