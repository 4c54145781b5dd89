"""Delegation tokens as SCRAM accounts: computed once, in a thread, and valid as long as the token is."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from bmq.core.clock import SystemClock
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
    Challenge,
)
from bmq.core.security.delegation_token import DelegationToken, password_of
from bmq.core.security.principal import user
from bmq.core.security.scram import BY_NAME, SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential, ScramMechanism
from bmq.endpoint.authentication.accounts import TokenAccount
from bmq.endpoint.authentication.scram import ScramSaslMechanism
from bmq.endpoint.authentication.token_accounts import PARALLEL, TokenAccounts
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.security.compared_write import wait_shown
from bmq.meta.security.delegation_tokens import DelegationTokens, TokenLifetimes
from tests.unit.core.security.test_scram import proof_of
from tests.unit.endpoint.authentication.test_scram import Users

pytestmark = pytest.mark.loops("asyncio")
ALICE = user("alice")


@asynccontextmanager
async def proxy(store: MemoryStore) -> AsyncIterator[DelegationTokens]:
    """Yield the tokens of one process."""
    kv = MemoryKeyValue(store)
    tokens = DelegationTokens(kv, "c", SystemClock(), "secret", TokenLifetimes())
    await tokens.start()
    try:
        yield tokens
    finally:
        await tokens.close()
        await kv.close()


async def found(accounts: TokenAccounts, mechanism: ScramMechanism, token_id: str) -> TokenAccount | None:
    """Return an account, also if it has to be awaited."""
    account = accounts.find(mechanism, token_id)
    return await account if isinstance(account, Awaitable) else account


async def log_in(by: ScramSaslMechanism, token: DelegationToken, password: str) -> AuthenticationResult:
    """Return the end of a client's exchange with `tokenauth`."""
    server = by.create_server(AuthenticationContext("10.0.0.1", "SASL_SSL"))
    first = f"n,,n={token.id},r=clients,tokenauth=true"
    result = server.evaluate(first.encode())
    challenge = await result if isinstance(result, Awaitable) else result
    assert isinstance(challenge, Challenge)
    text = challenge.token.decode()
    bare = f"c={base64.b64encode(b'n,,').decode()},r={text.partition(',')[0][2:]}"
    end = server.evaluate(proof_of(by.mechanism, password, first, text, bare).encode())
    assert not isinstance(end, Awaitable)
    return end


@pytest.mark.parametrize("mechanism", BY_NAME.values(), ids=list(BY_NAME))
async def test_a_token_lets_its_owner_in_until_it_expires(mechanism: ScramMechanism) -> None:
    async with proxy(MemoryStore()) as tokens:
        token = await tokens.create(user("bob"), ALICE, [], -1)
        password = password_of(tokens.hmac_of(token.id))
        by = ScramSaslMechanism(mechanism, Users(), TokenAccounts(tokens))
        for _ in range(2):  # computed, and kept
            end = await log_in(by, token, password)
            assert isinstance(end, Authenticated)
            assert end._replace(token=b"") == Authenticated(
                ALICE, expires_at_ms=token.expires_ms, by_token=True, requester=user("bob")
            )
        for wrong in ("", token.id, password[:-1], password_of(tokens.hmac_of("another"))):
            assert isinstance(await log_in(by, token, wrong or "x"), AuthenticationFailure)
        renewed = await tokens.renew(ALICE, tokens.hmac_of(token.id), 5_000)
        end = await log_in(by, token, password)
        assert isinstance(end, Authenticated)
        assert end.expires_at_ms == renewed
        await tokens.expire(ALICE, tokens.hmac_of(token.id), -1)
        assert isinstance(await log_in(by, token, password), AuthenticationFailure)


class CountedAccounts(TokenAccounts):
    """Accounts that count what they compute."""

    computed = 0

    def _credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        self.computed += 1
        return super()._credential(mechanism, token_id)


async def test_the_credential_is_kept_and_is_the_same_in_every_proxy() -> None:
    store = MemoryStore()
    async with proxy(store) as one, proxy(store) as other:
        token = await one.create(ALICE, ALICE, [], -1)
        await wait_shown(other._watcher, store.revision)
        here, there = CountedAccounts(one), TokenAccounts(other)
        accounts = await asyncio.gather(*(found(here, SCRAM_SHA_256, token.id) for _ in range(10)))
        assert here.computed <= PARALLEL
        computed = here.computed
        assert await found(here, SCRAM_SHA_256, token.id) == accounts[0] == accounts[9]
        assert here.computed == computed
        assert accounts[0] == await found(there, SCRAM_SHA_256, token.id)
        other_mechanism = await found(here, SCRAM_SHA_512, token.id)
        assert other_mechanism is not None
        assert accounts[0] is not None
        assert other_mechanism.credential.salt != accounts[0].credential.salt


async def test_a_token_that_ends_while_it_is_computed_lets_nobody_in() -> None:
    async with proxy(MemoryStore()) as tokens:
        token = await tokens.create(ALICE, ALICE, [], -1)
        accounts = TokenAccounts(tokens)
        waiting = accounts.find(SCRAM_SHA_256, token.id)
        assert isinstance(waiting, Awaitable)
        await tokens.expire(ALICE, tokens.hmac_of(token.id), -1)
        assert await waiting is None
        assert accounts.find(SCRAM_SHA_256, token.id) is None
        assert accounts.find(SCRAM_SHA_256, "none") is None
