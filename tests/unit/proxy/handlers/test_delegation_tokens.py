"""The four delegation token APIs in every version: who may ask, for whom, and with which errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.principal import ANONYMOUS, user
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.core.wire.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from bmq.meta.security.delegation_tokens import DelegationTokens, TokenLifetimes
from bmq.proxy.handlers import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from tests.harness.scopes import change
from tests.unit.proxy.handlers.admin_requests import versions
from tests.unit.proxy.handlers.admin_serving import AdminServing, serving

CREATE, RENEW = create_delegation_token.APIS[0], renew_delegation_token.APIS[0]
EXPIRE, DESCRIBE = expire_delegation_token.APIS[0], describe_delegation_token.APIS[0]
ALL = (CREATE, RENEW, EXPIRE, DESCRIBE)


class FewRights:
    """An authorizer that allows what is listed, each as (operation, kind, name)."""

    is_on = True

    def __init__(self, allowed: Collection[tuple[AclOperation, ResourceType, str]]) -> None:
        self._allowed = allowed

    def is_allowed(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        return (operation, resource_type, name) in self._allowed

    def is_allowed_on_some(
        self, session: Session, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return False


class Proxy:
    """A proxy with delegation tokens, and requests of one user after the other."""

    def __init__(self, serves: AdminServing) -> None:
        self.serves = serves
        self.session = ANONYMOUS_SESSION
        make = serves.request

        def request(key: int, version: int, body: bytes = b"") -> Request:
            made = make(key, version, body)
            made.client.session = self.session
            return made

        serves.request = request  # type: ignore[method-assign]

    def be(self, name: str, protocol: str = "SASL_SSL", *, by_token: bool = False) -> None:
        """Send the next requests as this user."""
        self.session = Session(principal=user(name), protocol=protocol, mechanism="PLAIN", by_token=by_token)

    async def ask(self, api: Any, message: Any, version: int | None = None) -> Any:
        return await self.serves.ask(api, api.max_version if version is None else version, message)

    async def create(self, version: int | None = None, *, owner: str = "", renewers: tuple[str, ...] = ()) -> Any:
        whose = {"owner_principal_type": "User", "owner_principal_name": owner} if owner else {}
        return await self.ask(CREATE, creation(renewers=renewers, **whose), version)

    async def described(self, *owners: str, version: int | None = None) -> list[str]:
        """Return the ids of the described tokens; of all owners if none is named."""
        named = [DescribeDelegationTokenRequest.DescribeDelegationTokenOwner(principal_type="User", principal_name=each)
                 for each in owners]  # fmt: skip
        found = await self.ask(DESCRIBE, DescribeDelegationTokenRequest(owners=named or None), version)
        assert found.error_code == 0
        return [token.token_id for token in found.tokens]


def creation(renewers: tuple[str, ...] = (), kind: str = "User", **more: Any) -> Any:
    """Return a request for a token."""
    listed = [CreateDelegationTokenRequest.CreatableRenewers(principal_type=kind, principal_name=each)
              for each in renewers]  # fmt: skip
    return CreateDelegationTokenRequest(**{"renewers": listed, "max_lifetime_ms": -1, **more})


def requests() -> list[tuple[Any, Any]]:
    """Return a request of each API."""
    return [
        (CREATE, creation()),
        (RENEW, RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1)),
        (EXPIRE, ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1)),
        (DESCRIBE, DescribeDelegationTokenRequest(owners=None)),
    ]


@asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    """Yield a proxy with the secret of tokens."""
    async with serving() as serves:
        tokens = DelegationTokens(serves.kv, "c", LoopClock(), "secret", TokenLifetimes())
        await tokens.start()
        serves.scopes = change(serves.scopes, tokens=tokens)
        try:
            yield Proxy(serves)
        finally:
            await tokens.close()


@pytest.mark.parametrize("version", versions(CREATE))
async def test_a_client_gets_a_token_of_its_own(version: int) -> None:
    async with proxy() as p:
        p.be("alice")
        made = await p.create(version, renewers=("bob", "bob"))
        assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", "alice")
        if version >= 3:
            assert (made.token_requester_principal_type, made.token_requester_principal_name) == ("User", "alice")
        assert made.issue_timestamp_ms == LoopClock().now_ms()
        assert made.expiry_timestamp_ms - made.issue_timestamp_ms == 86_400_000
        assert made.max_timestamp_ms - made.issue_timestamp_ms == 604_800_000
        assert len(made.hmac) == 64
        [token] = (await p.ask(DESCRIBE, DescribeDelegationTokenRequest(owners=None), version)).tokens
        assert (token.token_id, bytes(token.hmac), token.principal_name) == (made.token_id, bytes(made.hmac), "alice")
        assert [(each.principal_type, each.principal_name) for each in token.renewers] == [("User", "bob")]


@pytest.mark.parametrize("version", versions(RENEW))
async def test_a_token_is_renewed_and_ended(version: int) -> None:
    async with proxy() as p:
        p.be("alice")
        made = await p.create()
        renewed = await p.ask(RENEW, RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=5000), version)
        now = LoopClock().now_ms()
        assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, now + 5000)
        ended = await p.ask(EXPIRE, ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), version)
        assert (ended.error_code, ended.expiry_timestamp_ms) == (0, now)
        again = await p.ask(EXPIRE, ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1), version)
        assert (again.error_code, again.expiry_timestamp_ms) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
        assert await p.described() == []


@pytest.mark.parametrize("api", ALL)
async def test_strangers_and_tokens_may_not_ask(api: Any) -> None:
    async with proxy() as p:
        [message] = [message for each, message in requests() if each is api]
        for session in (
            ANONYMOUS_SESSION,
            Session(principal=ANONYMOUS, protocol="SSL"),
            Session(principal=user("alice"), protocol="SASL_SSL", mechanism="SCRAM-SHA-512", by_token=True),
        ):
            p.session = session
            for version in versions(api):
                response = await p.ask(api, message, version)
                assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert not p.serves.scopes.process.tokens.tokens  # type: ignore[union-attr]


async def test_a_client_with_a_certificate_may_ask() -> None:
    async with proxy() as p:
        p.be("CN=alice", "SSL")
        assert (await p.create()).error_code == 0


async def test_without_the_secret_there_are_no_tokens() -> None:
    async with proxy() as p:
        tokens = p.serves.scopes.process.tokens
        p.serves.scopes = change(p.serves.scopes, tokens=None)
        p.be("alice")
        for api, message in requests():
            assert (await p.ask(api, message)).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        p.serves.scopes = change(p.serves.scopes, tokens=tokens)


async def test_renewers_and_owners_are_users() -> None:
    async with proxy() as p:
        p.be("alice")
        for message in (
            creation(renewers=("bob",), kind="Group"),
            creation(renewers=("",)),
            creation(owner_principal_type="Group", owner_principal_name="x"),
            creation(owner_principal_type=None, owner_principal_name="x"),
        ):
            response = await p.ask(CREATE, message)
            assert (response.error_code, response.token_id, bytes(response.hmac)) == (
                ErrorCode.INVALID_PRINCIPAL_TYPE,
                "",
                b"",
            )


async def test_a_token_of_another_owner_needs_the_right_to_make_it() -> None:
    async with proxy() as p:
        p.serves.scopes = change(
            p.serves.scopes, authorizer=FewRights({(AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob")})
        )
        p.be("alice")
        denied = await p.create(owner="carol")
        assert denied.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        made = await p.create(owner="bob")
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "bob", "alice")
        assert (await p.create(owner="alice")).error_code == 0
        # Who asked for it may describe it, and not change it.
        assert made.token_id in await p.described("bob")
        renewed = await p.ask(RENEW, RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=-1))
        assert renewed.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


async def test_clients_see_their_own_tokens_and_those_that_they_may_describe() -> None:
    async with proxy() as p:
        ids = {}
        for name, renewers in (("alice", ("bob",)), ("bob", ()), ("carol", ()), ("dave", ())):
            p.be(name)
            ids[name] = (await p.create(renewers=renewers)).token_id
        p.serves.scopes = change(
            p.serves.scopes,
            authorizer=FewRights(
                {
                    (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, ids["carol"]),
                    (AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:dave"),
                }
            ),
        )
        p.be("alice")
        assert set(await p.described()) == {ids["alice"], ids["carol"], ids["dave"]}
        assert await p.described("carol") == [ids["carol"]]
        assert await p.described("bob") == [ids["alice"]]  # he may renew it
        none = await p.ask(DESCRIBE, DescribeDelegationTokenRequest(owners=[]))
        assert (none.error_code, none.tokens) == (0, [])
        assert DESCRIBE.response_bytes is not None
        assert DESCRIBE.response_bytes(p.serves.scopes, None) >= 4 * 100
