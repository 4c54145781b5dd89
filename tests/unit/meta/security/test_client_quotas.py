"""Quotas of clients: which entities and values are accepted, which quota a request has, and what the store holds."""

from __future__ import annotations

import itertools

import pytest

from bmq.core.errors import FormatError
from bmq.meta.kv import Entry
from bmq.meta.security.client_quotas import (
    BOUND_KEYS,
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    MAX_CONNECTIONS,
    MAX_GROUPS,
    MAX_PARTITIONS,
    MAX_TOPICS,
    MAX_TRANSACTIONAL_IDS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Holder,
    InvalidQuota,
    canonical_ip,
    changed,
    check_value,
    decode_quotas,
    encode_quotas,
    entity_of,
    find_client_quota,
    find_user_bound,
    make_entity,
    quotas_key,
)

ALICE: Entity = ((USER, "alice"),)
ORDER: list[tuple[Entity, Holder]] = [
    (((USER, "u"), (CLIENT_ID, "c")), Holder("u", "c")),
    (((USER, "u"), (CLIENT_ID, None)), Holder("u", "c")),
    (((USER, "u"),), Holder("u", "")),
    (((USER, None), (CLIENT_ID, "c")), Holder("u", "c")),
    (((USER, None), (CLIENT_ID, None)), Holder("u", "c")),
    (((USER, None),), Holder("u", "")),
    (((CLIENT_ID, "c"),), Holder("", "c")),
    (((CLIENT_ID, None),), Holder("", "c")),
]
"""Kafka's order of precedence, and whose traffic counts."""


@pytest.mark.parametrize("chosen", list(itertools.product((False, True), repeat=len(ORDER))))
def test_the_first_entity_of_kafkas_order_counts(chosen: tuple[bool, ...]) -> None:
    values = {entity: float(place) for place, (entity, _) in enumerate(ORDER) if chosen[place]}
    values[((USER, "other"),)] = values[((CLIENT_ID, "other"),)] = 99.0
    first = next((place for place, is_there in enumerate(chosen) if is_there), None)
    found = find_client_quota(values.get, "u", "c")
    assert found == (None if first is None else (ORDER[first][1], float(first)))


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "Invalid empty client quota entity"),
        ([("topic", "t")], "Unhandled client quota entity type: topic"),
        ([(USER, "a"), (USER, "b")], "duplicate entity entry user"),
        ([(USER, "")], "Empty user not supported"),
        ([(IP, "10.0.0.1"), (USER, "a")], "should not be combined"),
        ([(IP, None), (CLIENT_ID, None)], "should not be combined"),
        ([(IP, "example.com")], "example.com is not a valid IP"),
        ([(USER, "x" * 1_025)], "more than 1024 bytes"),
    ],
)
def test_entities_that_kafka_refuses(pairs: list[tuple[str, str | None]], why: str) -> None:
    with pytest.raises(InvalidQuota, match=why):
        make_entity(pairs)


def test_an_entity_has_its_types_in_one_order() -> None:
    assert make_entity([(CLIENT_ID, None), (USER, "a")]) == ((USER, "a"), (CLIENT_ID, None))


@pytest.mark.parametrize(
    ("entity", "key", "value", "why"),
    [
        (ALICE, "rate", 1.0, "Invalid configuration key rate"),
        (ALICE, CONNECTION_CREATION_RATE, 1.0, "Invalid configuration key"),
        (((IP, None),), PRODUCER_BYTE_RATE, 1.0, "Invalid configuration key"),
        (ALICE, PRODUCER_BYTE_RATE, 0.0, "must be greater than 0"),
        (ALICE, PRODUCER_BYTE_RATE, -1.0, "must be greater than 0"),
        (ALICE, REQUEST_PERCENTAGE, float("nan"), "must be greater than 0"),
        (ALICE, REQUEST_PERCENTAGE, float("inf"), "too large"),
        (ALICE, PRODUCER_BYTE_RATE, 1.5, "cannot be a fractional value"),
        (ALICE, PRODUCER_BYTE_RATE, 1e-7, "cannot be a fractional value"),
        (ALICE, PRODUCER_BYTE_RATE, 5e-324, "cannot be a fractional value"),
        (ALICE, PRODUCER_BYTE_RATE, 1e19, "too large"),
        (((IP, None),), CONNECTION_CREATION_RATE, 3e9, "too large"),
        (((CLIENT_ID, "c"),), MAX_TOPICS, 1.0, "Invalid configuration key"),
        (((USER, "alice"), (CLIENT_ID, "c")), MAX_TOPICS, 1.0, "Invalid configuration key"),
        (((IP, None),), MAX_CONNECTIONS, 1.0, "Invalid configuration key"),
        (ALICE, MAX_TOPICS, -1.0, "must be 0 or more"),
        (ALICE, MAX_GROUPS, float("nan"), "must be 0 or more"),
        (ALICE, MAX_TRANSACTIONAL_IDS, -1.0, "must be 0 or more"),
        (((CLIENT_ID, "c"),), MAX_TRANSACTIONAL_IDS, 1.0, "Invalid configuration key"),
        (ALICE, MAX_PARTITIONS, 0.5, "cannot be a fractional value"),
        (ALICE, MAX_PARTITIONS, float("inf"), "too large"),
        (ALICE, MAX_CONNECTIONS, 3e9, "too large"),
    ],
)
def test_values_that_kafka_refuses(entity: Entity, key: str, value: float, why: str) -> None:
    with pytest.raises(InvalidQuota, match=why):
        check_value(entity, key, value)


def test_values_that_kafka_accepts() -> None:
    check_value(ALICE, REQUEST_PERCENTAGE, 0.5)
    check_value(ALICE, CONTROLLER_MUTATION_RATE, 0.1)
    check_value(((USER, "a"), (CLIENT_ID, None)), PRODUCER_BYTE_RATE, 2.0**62)
    check_value(((IP, "::1"),), CONNECTION_CREATION_RATE, 10.0)


def test_bounds_are_whole_numbers_of_users_alone() -> None:
    for key in BOUND_KEYS:
        check_value(ALICE, key, 0.0)
        check_value(((USER, None),), key, float((1 << 31) - 1))


def test_a_users_bound_is_its_own_or_that_of_the_default() -> None:
    limits: dict[Entity, float] = {ALICE: 0.0, ((USER, None),): 7.0}
    assert find_user_bound(limits.get, "alice") == 0
    assert find_user_bound(limits.get, "bob") == 7
    del limits[((USER, None),)]
    assert find_user_bound(limits.get, "bob") is None


def test_changes_set_and_remove() -> None:
    assert changed({"a": 1.0, "b": 2.0}, {"a": None, "c": 3.0, "d": None}) == {"b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    ("entity", "rest"),
    [
        (ALICE, "user=alice"),
        (((USER, None),), "user="),
        (((USER, "a&b=c/d é"), (CLIENT_ID, "%")), "user=a%26b%3Dc%2Fd%20%C3%A9&client-id=%25"),
        (((IP, "::1"),), "ip=%3A%3A1"),
    ],
)
def test_keys_have_percent_encoded_names(entity: Entity, rest: str) -> None:
    assert quotas_key("c", entity) == f"/c/quotas/{rest}"
    assert entity_of("c", f"/c/quotas/{rest}") == entity


@pytest.mark.parametrize("rest", ["", "user", "topic=t", "client-id=a&user=b", "user=a b", "user=%ff", "user=a&user=b"])
def test_other_keys_are_refused(rest: str) -> None:
    with pytest.raises(FormatError):
        entity_of("c", f"/c/quotas/{rest}")


def test_records_are_read_as_written() -> None:
    value = encode_quotas({REQUEST_PERCENTAGE: 50.5, PRODUCER_BYTE_RATE: 1024.0})
    assert value == b'{"format":1,"values":{"producer_byte_rate":1024.0,"request_percentage":50.5}}'
    assert decode_quotas(ALICE, Entry("k", value, 3)) == {REQUEST_PERCENTAGE: 50.5, PRODUCER_BYTE_RATE: 1024.0}


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b'{"format":2,"values":{}}', b'{"format":1}', b'{"format":1,"values":[]}',
        b'{"format":1,"values":{"producer_byte_rate":true}}', b'{"format":1,"values":{"producer_byte_rate":"1"}}',
        b'{"format":1,"values":{"producer_byte_rate":-1}}', b'{"format":1,"values":{"later_rate":1}}',
    ],
)  # fmt: skip
def test_other_records_are_refused(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode_quotas(ALICE, Entry("k", value, 3))


def test_addresses_have_one_form() -> None:
    assert canonical_ip("::ffff:10.0.0.1") == canonical_ip("10.0.0.1") == "10.0.0.1"
    assert canonical_ip("0:0:0:0:0:0:0:1") == "::1"
    assert canonical_ip("unknown") is None
