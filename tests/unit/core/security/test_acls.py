"""Filters of ACLs: as Kafka's ``ResourcePatternFilter`` and ``AccessControlEntryFilter``."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.security.acls import (
    AUTHORIZATION_FAILED,
    RESOURCE_OPERATIONS,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

ALL = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, AclOperation.ANY, AclPermission.ANY)
ORDERS = Acl(ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:a", "*", AclOperation.READ, AclPermission.ALLOW)
PREFIX = ORDERS._replace(pattern_type=PatternType.PREFIXED, name="ord")
EVERY = ORDERS._replace(name="*")


@pytest.mark.parametrize(
    ("pattern_type", "name", "found"),
    [
        (PatternType.ANY, None, {ORDERS, PREFIX, EVERY}),
        (PatternType.ANY, "ord", {PREFIX}),
        (PatternType.ANY, "orders", {ORDERS}),
        (PatternType.LITERAL, None, {ORDERS, EVERY}),
        (PatternType.LITERAL, "orders", {ORDERS}),
        (PatternType.LITERAL, "ord", set()),
        (PatternType.LITERAL, "*", {EVERY}),
        (PatternType.PREFIXED, None, {PREFIX}),
        (PatternType.PREFIXED, "orders", set()),
        (PatternType.PREFIXED, "ord", {PREFIX}),
        (PatternType.MATCH, None, {ORDERS, PREFIX, EVERY}),
        (PatternType.MATCH, "orders", {ORDERS, PREFIX, EVERY}),
        (PatternType.MATCH, "ordinal", {PREFIX, EVERY}),
        (PatternType.MATCH, "or", {EVERY}),
        (PatternType.MATCH, "*", {EVERY}),
    ],
)
def test_a_filter_chooses_patterns_as_in_kafka(pattern_type: PatternType, name: str | None, found: set[Acl]) -> None:
    chosen = ALL._replace(pattern_type=pattern_type, name=name)
    assert {acl for acl in (ORDERS, PREFIX, EVERY) if chosen.matches(acl)} == found


@pytest.mark.parametrize(
    ("field", "same", "other"),
    [
        ("resource_type", ResourceType.TOPIC, ResourceType.GROUP),
        ("principal", "User:a", "User:*"),
        ("host", "*", "10.0.0.1"),
        ("operation", AclOperation.READ, AclOperation.ALL),
        ("permission", AclPermission.ALLOW, AclPermission.DENY),
    ],
)
def test_a_filter_compares_every_field_that_is_given(field: str, same: Any, other: Any) -> None:
    assert ALL._replace(**{field: same}).matches(ORDERS)
    assert not ALL._replace(**{field: other}).matches(ORDERS)


def test_every_resource_type_has_operations_and_an_error() -> None:
    real = {each for each in ResourceType if each > ResourceType.ANY}
    assert set(RESOURCE_OPERATIONS) == set(AUTHORIZATION_FAILED) == real
