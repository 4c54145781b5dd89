"""ACLs in the store: one key for each, views that follow, writes of several proxies, and a store that fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.security.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from bmq.meta.kv import COMMIT_BYTES_MAX, Delete, Entry, Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.security import acls
from bmq.meta.security.acls import AclStore, acl_key, decode_acl, encode_acl, wrong_acl
from tests.harness.waiting import until

ALL = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, AclOperation.ANY, AclPermission.ANY)
ORDERS = Acl(ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:a", "*", AclOperation.READ, AclPermission.ALLOW)


def numbered(count: int) -> list[Acl]:
    return [ORDERS._replace(name=f"t{number}") for number in range(count)]


@asynccontextmanager
async def proxies(count: int = 1, store: MemoryStore | None = None) -> AsyncIterator[list[AclStore]]:
    shared = store or MemoryStore()
    async with AsyncExitStack() as stack:
        found = []
        for number in range(count):
            one = AclStore(MemoryKeyValue(shared, random=Random(number)), "c")
            await one.start()
            stack.push_async_callback(one.close)
            found.append(one)
        yield found


def test_a_record_reads_back_as_it_was() -> None:
    for acl in (ORDERS, ORDERS._replace(name='ö"\n', pattern_type=PatternType.PREFIXED, host="10.0.0.1")):
        assert decode_acl(Entry("/c/acls/x", encode_acl(acl), 1)) == acl


def test_the_record_is_as_documented() -> None:
    assert json.loads(encode_acl(ORDERS)) == {
        "format": 1, "resource": "TOPIC", "pattern": "LITERAL", "name": "orders", "principal": "User:a", "host": "*",
        "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b'"x"',
        encode_acl(ORDERS).replace(b'"format": 1', b'"format": 2'),
        encode_acl(ORDERS).replace(b"TOPIC", b"THING"),
        encode_acl(ORDERS).replace(b'"orders"', b"7"),
        encode_acl(ORDERS).replace(b"READ", b"ANY"),
        encode_acl(ORDERS._replace(name="")),
    ],
)  # fmt: skip
def test_what_is_not_an_acl_is_refused(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode_acl(Entry("/c/acls/x", value, 1))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"resource_type": ResourceType.UNKNOWN}, "Invalid resourceType UNKNOWN"),
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"pattern_type": PatternType.ANY}, "Invalid patternType ANY"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY"),
        ({"permission": AclPermission.ANY}, "Invalid permissionType ANY"),
        ({"name": ""}, "Resource name should not be empty"),
        ({"host": ""}, "Host should not be empty"),
        ({"principal": "alice"}, "Could not parse principal"),
        ({"principal": "User:alice\xa0"}, "white space at an end"),
        ({"name": "x" * 2_001}, "longer than 2000"),
    ],
)
def test_what_may_not_be_made(wrong: dict[str, Any], reason: str) -> None:
    assert reason in wrong_acl(ORDERS._replace(**wrong))
    assert wrong_acl(ORDERS) == ""


async def test_every_proxy_shows_what_one_has_written() -> None:
    async with proxies(2) as (here, there):
        changes = []
        there.subscribe(lambda: changes.append(len(there)))
        await here.create([ORDERS, ORDERS._replace(principal="User:b")])
        assert await here.find(ALL) == [ORDERS, ORDERS._replace(principal="User:b")]
        await until(lambda: len(there) == 2)
        assert changes[-1] == 2
        assert there.index.allowed("User:a", "h", ResourceType.TOPIC, "orders")
        assert await there.delete(ALL._replace(principal="User:a")) == [ORDERS]
        assert not there.index.allowed("User:a", "h", ResourceType.TOPIC, "orders")
        await until(lambda: len(here) == 1)


async def test_an_acl_that_is_made_twice_is_there_once() -> None:
    store = MemoryStore()
    async with proxies(2, store) as (here, there):
        await here.create([ORDERS, ORDERS])
        revision = store.revision
        await here.create([ORDERS])
        assert store.revision == revision, "nothing was written"
        there._acls.clear()  # as if its view were behind
        await there.create([ORDERS, ORDERS._replace(name="new")])
        assert len(await here.delete(ALL)) == 2


async def test_a_delete_finds_what_another_proxy_has_just_made() -> None:
    async with proxies(2) as (here, there):
        for number in range(20):
            acl = ORDERS._replace(name=f"t{number}")
            await here.create([acl])
            assert await there.delete(ALL) == [acl]


async def test_an_acl_that_another_proxy_has_just_deleted_is_made_again() -> None:
    async with proxies(2) as (here, there):
        await here.create([ORDERS])
        await here.delete(ALL)
        await until(lambda: len(there) == 0)
        there._acls[acl_key("c", ORDERS)] = ORDERS  # as if its view were behind
        await there.create([ORDERS])
        assert await here.delete(ALL) == [ORDERS], "it was reported as made"


async def test_many_acls_take_several_commits() -> None:
    async with proxies() as (here,):
        await here.create(numbered(3 * acls.WRITES_A_COMMIT + 1))
        assert len(here) == 3 * acls.WRITES_A_COMMIT + 1
        assert len(await here.delete(ALL._replace(pattern_type=PatternType.LITERAL))) == 3 * acls.WRITES_A_COMMIT + 1
        assert len(here) == 0
        assert here.index.allowed("User:a", "h", ResourceType.TOPIC, "t1") is None


def test_a_commit_has_room_for_the_longest_acls() -> None:
    text = "\U0001f600" * acls.TEXT_MAX  # 12 bytes each in JSON
    longest = ORDERS._replace(name=text, principal="User:" + text[5:], host=text)
    assert wrong_acl(longest) == ""
    assert acls.WRITES_A_COMMIT * (len(encode_acl(longest)) + 2 * 400) < 2 * COMMIT_BYTES_MAX


async def test_there_are_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxies() as (here,):
        monkeypatch.setattr(acls, "CHANGED_MAX", 10)
        with pytest.raises(RequestError) as refused:
            await here.create(numbered(11))
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        await here.create(numbered(10))
        await here.create(ORDERS._replace(name=f"u{number}") for number in range(10))
        with pytest.raises(RequestError) as refused:
            await here.delete(ALL)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        monkeypatch.setattr(acls, "ACLS_MAX", 20)
        with pytest.raises(RequestError) as refused:
            await here.create([ORDERS])
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        await here.create(numbered(10))
        assert len(here) == 20


async def test_an_unreadable_key_stops_nothing_else() -> None:
    store = MemoryStore()
    async with proxies(1, store) as (here,):
        await here.create([ORDERS])
        key, other = acl_key("c", ORDERS), acl_key("c", ORDERS._replace(name="other"))
        kv = MemoryKeyValue(store)
        await kv.commit([], [Put(key, b"x"), Put("/c/acls/1", encode_acl(ORDERS)), Put(other, b"{}")])
        await here.create([ORDERS._replace(name="new")])
        assert set(here.unreadable) == {key, "/c/acls/1", other}
        assert [acl.name for acl in await here.find(ALL)] == ["orders", "new"], "the old value stays in force"
        await kv.commit([], [Delete(key), Delete("/c/acls/1"), Delete(other)])
        await until(lambda: not here.unreadable)
        assert [acl.name for acl in await here.find(ALL)] == ["new"]


@pytest.mark.parametrize("seed", range(10))
async def test_a_write_whose_outcome_is_unknown_is_done_again(seed: int) -> None:
    store = MemoryStore()
    async with proxies(1, store) as (watching,):
        kv = MemoryKeyValue(store, random=Random(seed))
        here = AclStore(kv, "c")
        await here.start()
        kv.faults = KvFaults(unknown_applied=0.15, unknown_lost=0.1, unknown_late=0.1, unavailable=0.05)
        await here.create(numbered(50))
        kv.faults = KvFaults()
        await until(lambda: len(watching) == 50)
        kv.faults = KvFaults(unknown_applied=0.3, unknown_lost=0.1)
        assert len(await here.delete(ALL)) == 50
        await until(lambda: len(watching) == 0)
        await here.close()


async def test_a_store_that_does_not_answer_leaves_the_view_as_it_is() -> None:
    store = MemoryStore()
    kv = MemoryKeyValue(store, random=Random(0))
    here = AclStore(kv, "c")
    await here.start()
    await here.create([ORDERS])
    kv.faults = KvFaults(unavailable=1.0)
    for work in (here.create([ORDERS._replace(name="new")]), here.delete(ALL)):
        with pytest.raises(RequestError) as refused:
            await work
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert await here.find(ALL) == [ORDERS]
    await here.close()
