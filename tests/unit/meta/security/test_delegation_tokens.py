"""Delegation tokens in the store: their life, their bounds, several proxies, and a store that does not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.security.delegation_token import DelegationToken, hmac_of, new_id, password_of
from bmq.core.security.principal import Principal, user
from bmq.meta.kv import Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.security import delegation_tokens
from bmq.meta.security.compared_write import wait_shown
from bmq.meta.security.delegation_tokens import (
    RENEWERS_MAX,
    SWEEP_AFTER_MS,
    DelegationTokens,
    TokenLifetimes,
    decode_token,
    encode_token,
)
from tests.harness.waiting import until

ALICE, BOB, EVE = user("alice"), user("bob"), user("eve")
DAY, WEEK, HOUR = 86_400_000, 604_800_000, 3_600_000
SECRET = "the cluster's"
LIFETIMES = TokenLifetimes()


@asynccontextmanager
async def proxy(
    store: MemoryStore, faults: KvFaults | None = None, *, lifetimes: TokenLifetimes = LIFETIMES
) -> AsyncIterator[DelegationTokens]:
    """Yield the tokens of one process."""
    kv = MemoryKeyValue(store, random=random.Random(1), faults=faults)
    tokens = DelegationTokens(kv, "c", LoopClock(), SECRET, lifetimes)
    await tokens.start()
    try:
        yield tokens
    finally:
        await tokens.close()
        await kv.close()


async def refused(code: ErrorCode, *calls: object) -> None:
    """Check that each call is refused with this error."""
    for call in calls:
        with pytest.raises(RequestError) as raised:
            await call  # type: ignore[misc]
        assert raised.value.code is code


def hmac(tokens: DelegationTokens, token: DelegationToken) -> bytes:
    return tokens.hmac_of(token.id)


def test_the_hmac_is_kafkas() -> None:
    assert hmac_of(b"key", "id").hex().startswith("69203b2245b207c6")
    assert len(password_of(hmac_of(b"key", "id"))) == 88


def test_ids_have_kafkas_form() -> None:
    ids = {new_id() for _ in range(2_000)}
    assert len(ids) == 2_000
    assert {len(each) for each in ids} == {22}
    assert not any(each.startswith("-") for each in ids)


async def test_a_token_lives_for_its_time_and_can_be_renewed_up_to_its_longest_life() -> None:
    lifetimes = TokenLifetimes(max_ms=7 * HOUR, expiry_ms=HOUR)
    async with proxy(MemoryStore(), lifetimes=lifetimes) as tokens:
        now, minute = LoopClock().now_ms(), 60_000
        token = await tokens.create(ALICE, ALICE, [BOB], -1)
        assert (token.issued_ms, token.expires_ms, token.max_ms) == (now, now + HOUR, now + 7 * HOUR)
        assert tokens.find(token.id) == token
        await asyncio.sleep(60)
        for principal in (ALICE, BOB):
            assert await tokens.renew(principal, hmac(tokens, token), -1) == now + minute + HOUR
        assert await tokens.renew(ALICE, hmac(tokens, token), minute) == now + 2 * minute
        assert await tokens.renew(ALICE, hmac(tokens, token), WEEK) == now + minute + HOUR
        renewals = 0
        while tokens.find(token.id) is not None:
            assert await tokens.renew(ALICE, hmac(tokens, token), -1) <= now + 7 * HOUR
            renewals += 1
            await asyncio.sleep(0.9 * HOUR / 1000)
        assert renewals == 8


async def test_a_life_may_be_shorter_and_is_never_longer() -> None:
    async with proxy(MemoryStore()) as tokens:
        for asked, life in ((HOUR, HOUR), (2 * DAY, 2 * DAY), (2 * WEEK, WEEK), (0, WEEK), ((1 << 63) - 1, WEEK)):
            token = await tokens.create(ALICE, ALICE, [], asked)
            assert token.max_ms - token.issued_ms == life
            assert token.expires_ms - token.issued_ms == min(life, DAY)


async def test_others_change_nothing() -> None:
    async with proxy(MemoryStore()) as tokens:
        token = await tokens.create(BOB, ALICE, [], -1)
        key = hmac(tokens, token)
        for principal in (EVE, BOB, Principal("Group", "alice")):
            await refused(
                ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
                tokens.renew(principal, key, -1), tokens.expire(principal, key, -1), tokens.expire(principal, key, 1),
            )  # fmt: skip
        await refused(
            ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
            *(tokens.renew(ALICE, wrong, -1) for wrong in (b"", b"x", key[:-1], key + b"x", token.id.encode())),
        )
        assert tokens.find(token.id) == token


async def test_a_token_can_be_ended_at_once_or_later() -> None:
    async with proxy(MemoryStore()) as tokens:
        now = LoopClock().now_ms()
        token = await tokens.create(ALICE, ALICE, [BOB], -1)
        assert await tokens.expire(BOB, hmac(tokens, token), HOUR) == now + HOUR
        assert await tokens.expire(ALICE, hmac(tokens, token), 2 * WEEK) == now + WEEK
        assert await tokens.expire(ALICE, hmac(tokens, token), -1) == now
        assert tokens.find(token.id) is None
        assert not tokens.tokens
        await refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, tokens.expire(ALICE, hmac(tokens, token), -1))


async def test_an_expired_token_can_only_be_removed() -> None:
    async with proxy(MemoryStore()) as tokens:
        token = await tokens.create(ALICE, ALICE, [], HOUR)
        key = hmac(tokens, token)
        await tokens.expire(ALICE, key, 0)
        await asyncio.sleep(0.01)
        assert tokens.find(token.id) is None
        await refused(ErrorCode.DELEGATION_TOKEN_EXPIRED, tokens.renew(ALICE, key, -1), tokens.expire(ALICE, key, 5))
        await tokens.expire(ALICE, key, -1)
        assert not tokens.tokens


async def test_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy(MemoryStore()) as tokens:
        many = [user(str(number)) for number in range(RENEWERS_MAX + 1)]
        await refused(
            ErrorCode.INVALID_REQUEST,
            tokens.create(ALICE, ALICE, many, -1), tokens.create(ALICE, user("x" * 66_000), [], -1),
        )  # fmt: skip
        monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 1)
        await tokens.create(ALICE, ALICE, many[1:], -1)
        await refused(ErrorCode.POLICY_VIOLATION, tokens.create(ALICE, ALICE, [], -1))


async def test_expired_tokens_are_removed_slowly_and_once_by_all_proxies() -> None:
    store = MemoryStore()
    async with proxy(store) as one, proxy(store) as other:
        kept = await one.create(ALICE, ALICE, [], -1)
        for _ in range(50):
            await one.create(BOB, BOB, [], HOUR)
        await until(lambda: len(other.tokens) == 51)
        revision = store.revision
        await asyncio.sleep((HOUR + SWEEP_AFTER_MS) / 1000 - 2)
        assert len(one.tokens) == 51
        await asyncio.sleep(2 * HOUR / 1000)
        assert [token.id for token in one.tokens] == [token.id for token in other.tokens] == [kept.id]
        assert store.revision == revision + 50


async def test_two_proxies_change_one_token_and_none_of_it_is_lost() -> None:
    store = MemoryStore()
    faults = KvFaults(latency_s=0.2)
    async with proxy(store, faults) as one, proxy(store, faults) as other:
        token = await one.create(ALICE, ALICE, [], -1)
        await until(lambda: other.find(token.id) is not None)
        key = hmac(one, token)
        await asyncio.gather(one.renew(ALICE, key, HOUR), other.expire(ALICE, key, -1), return_exceptions=True)
        await until(lambda: not one.tokens and not other.tokens)


@pytest.mark.parametrize("faults", [KvFaults(unknown_applied=0.4), KvFaults(unknown_lost=0.4)])
async def test_an_unknown_outcome_is_found_out(faults: KvFaults) -> None:
    store = MemoryStore()
    async with proxy(store, faults) as tokens:
        for number in range(20):
            token = await tokens.create(ALICE, ALICE, [], -1)
            assert len(tokens.tokens) == 1, number
            await tokens.renew(ALICE, hmac(tokens, token), HOUR)
            await tokens.expire(ALICE, hmac(tokens, token), -1)
            assert not tokens.tokens


@pytest.mark.parametrize("faults", [KvFaults(unavailable=1.0), KvFaults(unknown_lost=1.0)])
async def test_without_the_store_nothing_new_is_allowed_and_what_was_goes_on(faults: KvFaults) -> None:
    store = MemoryStore()
    kv = MemoryKeyValue(store, random=random.Random(1))
    tokens = DelegationTokens(kv, "c", LoopClock(), SECRET, LIFETIMES)
    await tokens.start()
    token = await tokens.create(ALICE, ALICE, [], -1)
    kv.faults = faults
    await refused(ErrorCode.REQUEST_TIMED_OUT, tokens.create(ALICE, ALICE, [], -1))
    await refused(ErrorCode.REQUEST_TIMED_OUT, tokens.expire(ALICE, hmac(tokens, token), -1))
    assert tokens.find(token.id) == token
    await tokens.close()
    await kv.close()


async def test_a_record_that_cannot_be_read_keeps_its_old_value(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with proxy(store) as tokens:
        token = await tokens.create(ALICE, ALICE, [], -1)
        kv = MemoryKeyValue(store)
        for key in (token.id, "another"):
            done = await kv.commit([], [Put(f"/c/tokens/{key}", b'{"format": 2}')])
        await wait_shown(tokens._watcher, done.revision)
        assert [each.id for each in tokens.tokens] == [token.id]
        assert sum("cannot be read" in record.message for record in caplog.records) == 2
        await kv.close()


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
TOKENS = st.builds(
    DelegationToken,
    id=st.just("id"), owner=NAMES.map(user), requester=NAMES.map(user),
    renewers=st.lists(NAMES.map(user), max_size=3).map(tuple),
    issued_ms=st.integers(0, 1 << 62), max_ms=st.integers(0, 1 << 62), expires_ms=st.integers(0, 1 << 62),
)  # fmt: skip


@pytest.mark.slow
@given(TOKENS)
def test_a_token_comes_back_from_its_record(token: DelegationToken) -> None:
    data = encode_token(token)
    assert decode_token("id", data) == token
    assert hmac_of(b"key", "id") not in data


@pytest.mark.slow
@given(st.binary(max_size=40) | st.sampled_from([b"null", b"[]", b'{"format": 1}', b'{"format": 1, "issued_ms": 1.5}']))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_token("id", data)
