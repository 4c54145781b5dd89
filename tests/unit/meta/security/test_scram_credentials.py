"""SCRAM users in the metadata store: records, the view, writes of several proxies, and decoys."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.security.scram import SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential, credential_of, form_of
from bmq.meta.kv import Entry, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.security import scram_credentials
from bmq.meta.security.scram_credentials import (
    ScramCredentials,
    check_new_user,
    check_user,
    credential_key,
    decode_credential,
    decoys_key,
    encode_credential,
)

CREDENTIAL = credential_of(SCRAM_SHA_256, b"salted password", b"salt", 4096)
OTHER = credential_of(SCRAM_SHA_256, b"another", b"salt", 8192)


@asynccontextmanager
async def view(store: MemoryStore) -> AsyncIterator[ScramCredentials]:
    made = ScramCredentials(MemoryKeyValue(store), "c")
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def test_a_record_comes_back_and_names_its_user() -> None:
    key = credential_key("c", "a/b ü", SCRAM_SHA_256)
    assert key == "/c/users/a%2Fb%20%C3%BC/SCRAM-SHA-256"
    data = encode_credential(CREDENTIAL)
    assert decode_credential(SCRAM_SHA_256, Entry(key, data, 1)) == CREDENTIAL
    assert json.loads(data)["format"] == 1
    assert b"password" not in data


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"iterations": "x"}, {"iterations": 0}, {"iterations": True}, {"salt": "?"}, {"salt": 1},
     {"stored_key": "YQ=="}, {"server_key": None}],
)  # fmt: skip
def test_a_record_that_is_none_is_refused(change: dict[str, object]) -> None:
    raw = {**json.loads(encode_credential(CREDENTIAL)), **change}
    with pytest.raises(FormatError, match="the key"):
        decode_credential(SCRAM_SHA_256, Entry("the key", json.dumps(raw).encode(), 1))
    for value in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(FormatError, match="the key"):
            decode_credential(SCRAM_SHA_256, Entry("the key", value, 1))


async def test_users_are_written_changed_and_removed() -> None:
    store = MemoryStore()
    async with view(store) as here, view(store) as there:
        await here.put("alice", SCRAM_SHA_256, CREDENTIAL)
        assert here.find(SCRAM_SHA_256, "alice") == CREDENTIAL
        assert here.find(SCRAM_SHA_512, "alice") is None
        assert here.find(SCRAM_SHA_256, "bob") is None
        await there.put("alice", SCRAM_SHA_256, OTHER)  # though it may not have seen the first
        assert there.find(SCRAM_SHA_256, "alice") == OTHER
        await there.put("alice", SCRAM_SHA_512, credential_of(SCRAM_SHA_512, b"x", b"salt", 4096))
        assert [each.name for each in there.of_user("alice")] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        await here.remove("alice", SCRAM_SHA_256)
        assert here.find(SCRAM_SHA_256, "alice") is None
        assert list(here.users) == ["alice"]
        with pytest.raises(RequestError, match="does not exist") as caught:
            await there.remove("alice", SCRAM_SHA_256)
        assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND
    async with view(store) as again:
        assert [each.name for each in again.of_user("alice")] == ["SCRAM-SHA-512"]


async def test_a_user_that_another_proxy_has_just_made_is_removed() -> None:
    store = MemoryStore()
    key = credential_key("c", "alice", SCRAM_SHA_256)
    async with view(store) as here:
        await MemoryKeyValue(store).commit([], [Put(key, encode_credential(CREDENTIAL))])
        assert here.find(SCRAM_SHA_256, "alice") is None, "this view is to be behind"
        await here.remove("alice", SCRAM_SHA_256)
        assert await MemoryKeyValue(store).get(key) is None


async def test_one_bad_record_leaves_its_user_as_it_was() -> None:
    store = MemoryStore()
    async with view(store) as here:
        await here.put("alice", SCRAM_SHA_256, CREDENTIAL)
        kv = MemoryKeyValue(store)
        key = credential_key("c", "alice", SCRAM_SHA_256)
        await kv.commit([], [Put(key, b"{}"), Put("/c/users/alice/SCRAM-SHA-1024", b"later")])
        await here.put("bob", SCRAM_SHA_256, CREDENTIAL)
        assert here.find(SCRAM_SHA_256, "alice") == CREDENTIAL
        assert list(here.unreadable) == [key]


async def test_credentials_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_credentials, "CREDENTIALS_MAX", 1)
    async with view(MemoryStore()) as here:
        await here.put("alice", SCRAM_SHA_256, CREDENTIAL)
        await here.put("alice", SCRAM_SHA_256, OTHER)
        with pytest.raises(RequestError) as caught:
            await here.put("bob", SCRAM_SHA_256, CREDENTIAL)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION
    for user in ("", "x" * 1025):
        with pytest.raises(RequestError) as caught:
            check_user(user)
        assert caught.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
    for user in ("", "alice\xa0", " alice"):
        with pytest.raises(RequestError) as caught:
            check_new_user(user)
        assert caught.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
    check_user("alice ")  # a user that got the name once can be removed


async def test_decoys_are_the_same_in_every_proxy_and_look_like_users() -> None:
    store = MemoryStore()

    def decoy_of(made: ScramCredentials) -> ScramCredential:
        return made.decoy(SCRAM_SHA_256, "nobody")

    async with view(store) as here, view(store) as there:
        for each in (here, there):
            await each.prepare_decoys()
        assert decoy_of(here) == decoy_of(there)
        assert decoy_of(here).iterations == 4096
        for user in ("a", "b", "c"):
            await here.put(user, SCRAM_SHA_256, OTHER if user != "c" else CREDENTIAL)
        forms = {form_of(here.decoy(SCRAM_SHA_256, f"nobody-{n}")) for n in range(100)}
        assert forms == {form_of(OTHER), form_of(CREDENTIAL)}  # no form shows that its user exists
        await here.remove("a", SCRAM_SHA_256)
        await here.remove("b", SCRAM_SHA_256)
        assert {form_of(here.decoy(SCRAM_SHA_256, f"nobody-{n}")) for n in range(100)} == {form_of(CREDENTIAL)}
    async with view(store) as later:
        await later.prepare_decoys()
        salt = decoy_of(later).salt
    assert salt == decoy_of(here).salt
    await MemoryKeyValue(store).commit([], [Put(decoys_key("c"), b"{}")])
    async with view(store) as broken:
        with pytest.raises(FormatError, match="scram-decoys"):
            await broken.prepare_decoys()
