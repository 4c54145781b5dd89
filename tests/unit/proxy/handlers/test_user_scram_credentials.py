"""DescribeUserScramCredentials and AlterUserScramCredentials: Kafka's checks, and what is stored."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kafka.protocol.admin.users import AlterUserScramCredentialsRequest as Alter
from kafka.protocol.admin.users import DescribeUserScramCredentialsRequest as Describe

from bmq.core.errors import ErrorCode
from bmq.core.security.scram import SCRAM_SHA_256, credential_of_password
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.handlers import alter_user_scram_credentials, describe_user_scram_credentials
from tests.harness.scopes import Nobody, change
from tests.unit.proxy.handlers.admin_serving import AdminServing

(ALTER,) = alter_user_scram_credentials.APIS
(DESCRIBE,) = describe_user_scram_credentials.APIS
SALTED = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 4096)


@asynccontextmanager
async def serving() -> AsyncIterator[AdminServing]:
    world = AdminServing()
    await world.scopes.process.scram_users.start()
    try:
        yield world
    finally:
        await world.scopes.process.scram_users.close()
        await world.close()


def upsertion(name: str = "alice", mechanism: int = 1, iterations: int = 4096, **values: Any) -> Any:
    given = {"salt": b"salt", "salted_password": SALTED, **values}
    return Alter.ScramCredentialUpsertion(name=name, mechanism=mechanism, iterations=iterations, **given)


def deletion(name: str = "alice", mechanism: int = 1) -> Any:
    return Alter.ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(world: AdminServing, *changes: Any) -> list[tuple[str, ErrorCode]]:
    deletions = [each for each in changes if isinstance(each, Alter.ScramCredentialDeletion)]
    upsertions = [each for each in changes if not isinstance(each, Alter.ScramCredentialDeletion)]
    response = await world.ask(ALTER, 0, Alter(deletions=deletions, upsertions=upsertions))
    return [(each.user, ErrorCode(each.error_code)) for each in response.results]


async def described(world: AdminServing, *users: str) -> dict[str, Any]:
    """Return mechanisms with iterations of each user, or the error's name."""
    names = [Describe.UserName(name=user) for user in users] if users else None
    response = await world.ask(DESCRIBE, 0, Describe(users=names))
    assert response.error_code == ErrorCode.NONE
    return {
        each.user: ErrorCode(each.error_code).name
        if each.error_code
        else [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in response.results
    }


async def test_a_credential_is_set_described_and_deleted() -> None:
    async with serving() as world:
        assert await described(world) == {}
        assert await alter(world, upsertion(), upsertion("bob", 2, 16384)) == [
            ("alice", ErrorCode.NONE),
            ("bob", ErrorCode.NONE),
        ]
        users = world.scopes.process.scram_users
        assert users.find(SCRAM_SHA_256, "alice") == credential_of_password(SCRAM_SHA_256, "secret", 4096, b"salt")
        assert await alter(world, upsertion(mechanism=2)) == [("alice", ErrorCode.NONE)]
        assert await described(world) == {"alice": [(1, 4096), (2, 4096)], "bob": [(2, 16384)]}
        assert await described(world, "alice", "carol", "bob", "bob") == {
            "alice": [(1, 4096), (2, 4096)],
            "carol": "RESOURCE_NOT_FOUND",
            "bob": "DUPLICATE_RESOURCE",
        }
        assert await alter(world, deletion(), upsertion()) == [("alice", ErrorCode.DUPLICATE_RESOURCE)]
        assert await alter(world, deletion(), upsertion("bob", 2, 8192)) == [
            ("alice", ErrorCode.NONE),
            ("bob", ErrorCode.NONE),
        ]
        assert await described(world) == {"alice": [(2, 4096)], "bob": [(2, 8192)]}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([upsertion(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(iterations=-1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(salt=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(salted_password=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(salt=bytes(1025))], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([deletion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([deletion(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([deletion()], ErrorCode.RESOURCE_NOT_FOUND),
        ([upsertion(), upsertion()], ErrorCode.DUPLICATE_RESOURCE),
        ([upsertion(), upsertion(mechanism=2)], ErrorCode.DUPLICATE_RESOURCE),
        ([deletion(), upsertion()], ErrorCode.RESOURCE_NOT_FOUND),
        ([deletion(), deletion()], ErrorCode.RESOURCE_NOT_FOUND),
        ([upsertion(iterations=1), upsertion()], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion(), upsertion(iterations=1)], ErrorCode.DUPLICATE_RESOURCE),
    ],
)
async def test_kafkas_checks(changes: list[Any], code: ErrorCode) -> None:
    async with serving() as world:
        name = changes[0].name
        assert await alter(world, *changes, upsertion("other")) == [(name, code), ("other", ErrorCode.NONE)]
        assert await described(world) == {"other": [(1, 4096)]}


async def test_who_has_no_right_changes_and_sees_nothing() -> None:
    async with serving() as world:
        await alter(world, upsertion())
        world.scopes = change(world.scopes, authorizer=Nobody())
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await alter(world, deletion(), upsertion("bob")) == [("alice", refused), ("bob", refused)]
        response = await world.ask(DESCRIBE, 0, Describe(users=None))
        assert (response.error_code, list(response.results)) == (refused, [])
        assert list(world.scopes.process.scram_users.users) == ["alice"]


def test_the_apis_are_kafkas() -> None:
    assert (ALTER.key, DESCRIBE.key) == (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    )
