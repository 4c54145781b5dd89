"""The decision by ACLs: a table of Kafka's rules, and any ACLs compared with a plain reading of those rules."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.security import acl_index
from bmq.core.security.acl_index import AclIndex, canonical_host
from bmq.core.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from tests.harness.seeds import example_count

A, B, EVERYBODY = "User:a", "User:b", "User:*"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALL
OPERATIONS = [each for each in AclOperation if each > AclOperation.ALL]


def allow(
    operation: AclOperation = READ,
    name: str = "orders",
    principal: str = A,
    *,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceType = TOPIC,
) -> Acl:
    return Acl(kind, pattern, name, principal, host, operation, AclPermission.ALLOW)


def deny(*args: object, **kwargs: object) -> Acl:
    return allow(*args, **kwargs)._replace(permission=AclPermission.DENY)  # type: ignore[arg-type]


def is_allowed(
    index: AclIndex, operation: AclOperation, name: str = "orders", principal: str = A, host: str = "10.0.0.1"
) -> bool | None:
    allowed = index.allowed(principal, host, TOPIC, name)
    return None if allowed is None else bool(allowed & 1 << operation)


PREFIXED = PatternType.PREFIXED
CASES: dict[str, tuple[Sequence[Acl], AclOperation, str, bool | None]] = {
    "no ACL": ([], READ, "orders", None),
    "of another topic": ([allow(name="other")], READ, "orders", None),
    "of a group of the name": ([allow(kind=GROUP)], READ, "orders", None),
    "of another principal": ([allow(principal=B)], READ, "orders", False),
    "of another operation": ([allow(WRITE)], READ, "orders", False),
    "of another host": ([allow(host="10.0.0.2")], READ, "orders", False),
    "literal": ([allow()], READ, "orders", True),
    "literal is no prefix": ([allow(name="ord")], READ, "orders", None),
    "host": ([allow(host="10.0.0.1")], READ, "orders", True),
    "everybody": ([allow(principal=EVERYBODY)], READ, "orders", True),
    "prefix": ([allow(name="ord", pattern=PREFIXED)], READ, "orders", True),
    "whole name as prefix": ([allow(pattern=PREFIXED)], READ, "orders", True),
    "longer prefix": ([allow(name="orders2", pattern=PREFIXED)], READ, "orders", None),
    "every topic": ([allow(name="*")], READ, "orders", True),
    "a star is no prefix of all": ([allow(name="*", pattern=PREFIXED)], READ, "orders", None),
    "all operations": ([allow(ALL)], AclOperation.ALTER_CONFIGS, "orders", True),
    "read implies describe": ([allow()], DESCRIBE, "orders", True),
    "write implies describe": ([allow(WRITE)], DESCRIBE, "orders", True),
    "delete implies describe": ([allow(AclOperation.DELETE)], DESCRIBE, "orders", True),
    "alter implies describe": ([allow(AclOperation.ALTER)], DESCRIBE, "orders", True),
    "create does not imply describe": ([allow(AclOperation.CREATE)], DESCRIBE, "orders", False),
    "alter configs implies describe configs": (
        [allow(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS, "orders", True,
    ),
    "alter configs does not imply describe": ([allow(AclOperation.ALTER_CONFIGS)], DESCRIBE, "orders", False),
    "alter does not imply describe configs": (
        [allow(AclOperation.ALTER)], AclOperation.DESCRIBE_CONFIGS, "orders", False,
    ),
    "deny wins": ([allow(), deny()], READ, "orders", False),
    "deny of a prefix wins": ([allow(), deny(name="ord", pattern=PREFIXED)], READ, "orders", False),
    "deny of every topic wins": ([allow(), deny(name="*")], READ, "orders", False),
    "deny of everybody wins": ([allow(), deny(principal=EVERYBODY)], READ, "orders", False),
    "deny of all operations wins": ([allow(), deny(ALL)], READ, "orders", False),
    "deny of another host does not": ([allow(), deny(host="10.0.0.2")], READ, "orders", True),
    "denied read leaves describe": ([allow(ALL), deny()], DESCRIBE, "orders", True),
    "read without describe": ([allow(), deny(DESCRIBE)], READ, "orders", True),
    "denied describe": ([allow(), deny(DESCRIBE)], DESCRIBE, "orders", False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_rules(case: str) -> None:
    acls, operation, name, expected = CASES[case]
    assert is_allowed(AclIndex(acls), operation, name) is expected


NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "ba", "*a"])
ACLS = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from([PatternType.LITERAL, PREFIXED]),
    NAMES,
    st.sampled_from([A, B, EVERYBODY]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([ALL, *OPERATIONS[:9]]),
    st.sampled_from([AclPermission.ALLOW, AclPermission.DENY]),
)


def applies(acl: Acl, name: str) -> bool:
    if acl.pattern_type is PREFIXED:
        return name.startswith(acl.name)
    return acl.name in ("*", name)


def is_for(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (EVERYBODY, principal) and acl.host in ("*", host)


IMPLIED = {
    DESCRIBE: {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def plainly_allowed(
    acls: Sequence[Acl], principal: str, host: str, kind: ResourceType, name: str, operation: AclOperation
) -> bool | None:
    """One rule after another, over all ACLs."""
    applying = [acl for acl in acls if acl.resource_type is kind and applies(acl, name)]
    if not applying:
        return None
    own = [acl for acl in applying if is_for(acl, principal, host)]
    if any(acl.permission is AclPermission.DENY and acl.operation in (ALL, operation) for acl in own):
        return False
    enough = {ALL, operation} | IMPLIED.get(operation, set())
    return any(acl.permission is AclPermission.ALLOW and acl.operation in enough for acl in own)


@pytest.mark.slow
@given(st.lists(ACLS, max_size=12), st.lists(ACLS, max_size=4), NAMES)
@settings(max_examples=example_count(75, 3_000), deadline=None)
def test_any_acls_decide_as_a_plain_reading_of_the_rules(acls: list[Acl], passing: list[Acl], name: str) -> None:
    index = AclIndex([*acls, *passing])
    for acl in passing:
        index.remove(acl)
        index.remove(acl)
    left = [acl for acl in acls if acl not in passing]
    for principal in (A, B):
        for kind in (TOPIC, GROUP):
            allowed = index.allowed(principal, "10.0.0.1", kind, name)
            for operation in OPERATIONS:
                plain = plainly_allowed(left, principal, "10.0.0.1", kind, name, operation)
                assert (None if allowed is None else bool(allowed & 1 << operation)) is plain


def plainly_allowed_on_some(acls: Sequence[Acl], principal: str, host: str, operation: AclOperation) -> bool:
    """``Authorizer.authorizeByResourceType``, behind its first question."""
    own = [
        acl
        for acl in acls
        if acl.resource_type is TOPIC and is_for(acl, principal, host) and acl.operation in (ALL, operation)
    ]
    denied = {(acl.pattern_type, acl.name) for acl in own if acl.permission is AclPermission.DENY}
    allowed = {(acl.pattern_type, acl.name) for acl in own if acl.permission is AclPermission.ALLOW}
    if (PatternType.LITERAL, "*") in denied:
        return False
    if (PatternType.LITERAL, "*") in allowed:
        return True
    prefixes = [name for kind, name in denied if kind is PREFIXED]
    return any(
        not any(name.startswith(prefix) for prefix in prefixes)
        and not (kind is PatternType.LITERAL and (kind, name) in denied)
        for kind, name in allowed
    )


@pytest.mark.slow
@given(st.lists(ACLS, max_size=12))
@settings(max_examples=example_count(75, 3_000), deadline=None)
def test_a_right_on_some_topic_is_found_as_in_kafka(acls: list[Acl]) -> None:
    index = AclIndex(acls)
    for principal in (A, B):
        for operation in (READ, WRITE):
            plain = plainly_allowed_on_some(acls, principal, "10.0.0.1", operation)
            assert index.may_allow_some(principal, "10.0.0.1", TOPIC, operation) is plain


class CountingDict(dict[str, object]):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.asked = 0

    def get(self, *args: object) -> object:
        self.asked += 1
        return super().get(*args)  # type: ignore[call-overload]


@pytest.mark.slow
def test_a_decision_does_not_cost_more_with_more_acls() -> None:
    def cost(topics: int) -> int:
        index = AclIndex(allow(name=f"topic-{number:06}", pattern=PREFIXED) for number in range(topics))
        index.add(allow(name="top", pattern=PREFIXED))
        kind = index._types[TOPIC]
        kind._prefixed = counting = CountingDict(kind._prefixed)  # type: ignore[assignment]
        assert is_allowed(index, READ, "topic-000001-x")
        return counting.asked

    assert cost(10) == cost(5_000) == 2


def test_an_index_without_acls_holds_nothing() -> None:
    acls = [allow(), deny(), allow(name="o", pattern=PREFIXED), allow(principal=B), allow(kind=GROUP)]
    index = AclIndex([*acls, *acls])
    for acl in acls:
        index.remove(acl)
    assert index._types == {}
    assert index.allowed(A, "10.0.0.1", TOPIC, "orders") is None


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("*", "*"),
        ("host.example", "host.example"),
    ],
)
def test_an_address_has_one_form(written: str, canonical: str) -> None:
    assert canonical_host(written) == canonical


def test_an_acl_with_javas_form_of_an_address_is_for_that_address() -> None:
    index = AclIndex([allow(host="0:0:0:0:0:0:0:1")])
    assert is_allowed(index, READ, host=canonical_host("::1"))
    index.remove(allow(host="0:0:0:0:0:0:0:1"))
    assert is_allowed(index, READ, host="::1") is None


def test_all_operations_are_those_of_kafka() -> None:
    assert sum(1 << code for code in range(3, 16)) == acl_index.ALL_OPERATIONS
