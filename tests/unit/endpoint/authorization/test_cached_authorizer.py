"""The authorizer with its cache: how often ACLs are matched, when answers are forgotten, and who may do everything."""

from __future__ import annotations

import pytest

from bmq.core.security.acl_index import AclIndex
from bmq.core.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from bmq.core.security.principal import Principal, user
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.endpoint.authorization import cached_authorizer
from bmq.endpoint.authorization.cached_authorizer import CachedAuthorizer

TOPIC = ResourceType.TOPIC
READ, WRITE = AclOperation.READ, AclOperation.WRITE
ALICE = Session(principal=user("alice"))
HOST = "10.0.0.1"


def acl(name: str, operation: AclOperation = READ, principal: str = "User:alice", host: str = "*") -> Acl:
    return Acl(TOPIC, PatternType.LITERAL, name, principal, host, operation, AclPermission.ALLOW)


def authorizer(*acls: Acl, supers: tuple[Principal, ...] = (), without: bool = False) -> CachedAuthorizer:
    return CachedAuthorizer(AclIndex(acls), supers, allows_without_acls=without, are_loaded=lambda: True)


def test_acls_are_matched_once_for_each_client_and_resource() -> None:
    asked = authorizer(acl("orders"))
    for _ in range(3):
        assert asked.is_allowed(ALICE, HOST, READ, TOPIC, "orders")
        assert asked.is_allowed(ALICE, HOST, AclOperation.DESCRIBE, TOPIC, "orders")
        assert not asked.is_allowed(ALICE, HOST, WRITE, TOPIC, "orders")
    assert asked.matches == 1
    assert not asked.is_allowed(ANONYMOUS_SESSION, HOST, READ, TOPIC, "orders")
    assert asked.is_allowed(ALICE, "10.0.0.2", READ, TOPIC, "orders")
    assert not asked.is_allowed(ALICE, HOST, READ, TOPIC, "other")
    assert not asked.is_allowed(ALICE, HOST, READ, ResourceType.GROUP, "orders")
    assert asked.matches == 5


def test_a_change_of_acls_counts_from_the_next_question_on() -> None:
    index = AclIndex()
    asked = CachedAuthorizer(index, (), allows_without_acls=False, are_loaded=lambda: True)
    assert not asked.is_allowed(ALICE, HOST, READ, TOPIC, "orders")
    assert not asked.is_allowed_on_some(ALICE, HOST, READ, TOPIC)
    index.add(acl("orders"))
    asked.forget()
    assert asked.is_allowed(ALICE, HOST, READ, TOPIC, "orders")
    assert asked.is_allowed_on_some(ALICE, HOST, READ, TOPIC)
    index.remove(acl("orders"))
    asked.forget()
    assert not asked.is_allowed(ALICE, HOST, READ, TOPIC, "orders")
    assert not asked.is_allowed_on_some(ALICE, HOST, READ, TOPIC)


def test_super_users_may_do_what_an_acl_denies() -> None:
    denied = acl("orders")._replace(permission=AclPermission.DENY)
    asked = authorizer(denied, supers=(user("alice"),))
    assert asked.is_allowed(ALICE, HOST, READ, TOPIC, "orders")
    assert asked.is_allowed_on_some(ALICE, HOST, WRITE, TOPIC)
    assert not asked.is_allowed(ANONYMOUS_SESSION, HOST, READ, TOPIC, "orders")


@pytest.mark.parametrize("without", [False, True])
def test_without_acls_the_setting_decides(without: bool) -> None:
    asked = authorizer(acl("orders", principal="User:bob"), without=without)
    assert asked.is_allowed(ALICE, HOST, WRITE, TOPIC, "other") is without
    assert asked.is_allowed_on_some(ALICE, HOST, WRITE, TOPIC) is without
    assert not asked.is_allowed(ALICE, HOST, WRITE, TOPIC, "orders")


def test_a_right_on_one_topic_is_a_right_on_some() -> None:
    asked = authorizer(acl("orders", WRITE), acl("*", WRITE, principal="User:bob"))
    assert asked.is_allowed_on_some(ALICE, HOST, WRITE, TOPIC)
    assert not asked.is_allowed_on_some(ALICE, HOST, READ, TOPIC)
    assert asked.is_allowed_on_some(Session(principal=user("bob")), HOST, WRITE, TOPIC)
    assert not asked.is_allowed_on_some(ANONYMOUS_SESSION, HOST, WRITE, TOPIC)


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_authorizer, "ANSWERS_MAX", 100)
    asked = authorizer(acl("orders"))
    for number in range(1_000):
        assert not asked.is_allowed(ALICE, f"10.0.0.{number % 7}", READ, TOPIC, f"t{number}")
        assert sum(1 + len(client.operations) for client in asked._clients.values()) <= 101
    assert asked.is_allowed(ALICE, HOST, READ, TOPIC, "orders")


def test_long_names_are_not_kept() -> None:
    asked = authorizer(acl("x" * 257), acl("x" * 256))
    for _ in range(2):
        assert asked.is_allowed(ALICE, HOST, READ, TOPIC, "x" * 257)
        assert asked.is_allowed(ALICE, HOST, READ, TOPIC, "x" * 256)
    assert [len(name) for _, name in asked._clients[ALICE.principal, HOST].operations] == [256]
    assert asked.matches == 3


def test_the_cache_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_authorizer, "ANSWERS_MAX", 100)
    asked = authorizer(acl("orders"))
    for number in range(1_000):
        asked.is_allowed(ALICE, HOST, READ, ResourceType.GROUP, chr(0x1F600) * 250 + str(number))
        kept = asked._clients.get((ALICE.principal, HOST))
        names = [name for _, name in kept.operations] if kept is not None else []
        assert sum(len(name.encode()) for name in names) <= 100 * cached_authorizer.ANSWER_BYTES


def test_a_right_on_some_is_found_while_the_question_empties_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cached_authorizer, "ANSWERS_MAX", 2)
    asked = authorizer(acl("orders", WRITE))
    for number in range(5):
        assert not asked.is_allowed(ALICE, HOST, READ, TOPIC, f"t{number}")
        assert asked.is_allowed_on_some(ALICE, HOST, WRITE, TOPIC)


def test_until_the_acls_are_loaded_super_users_alone_may_do_anything() -> None:
    """Refuse what a missing ACL may deny, and keep no answer of this time."""
    is_loaded = False
    acls = AclIndex([acl("orders"), acl("*", WRITE)])
    asked = CachedAuthorizer(acls, (user("bob"),), allows_without_acls=True, are_loaded=lambda: is_loaded)
    bob = Session(principal=user("bob"))
    for is_loaded in (False, True):
        assert asked.is_allowed(ALICE, HOST, READ, TOPIC, "orders") is is_loaded
        assert asked.is_allowed(ALICE, HOST, READ, ResourceType.GROUP, "any") is is_loaded
        assert asked.is_allowed_on_some(ALICE, HOST, WRITE, TOPIC) is is_loaded
        assert asked.is_allowed(bob, HOST, READ, TOPIC, "orders")
        assert asked.is_allowed_on_some(bob, HOST, WRITE, TOPIC)
