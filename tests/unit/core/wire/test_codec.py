"""Requests decoded by Kafka's schemas: nulls and counts of elements."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request
from tests.unit.core.wire import oracle

pytestmark = pytest.mark.slow


SEED = 20_260


def nulled(description: Any, version: int, values: oracle.Values) -> Iterator[oracle.Values]:
    """Yield ``values`` with one null each, everywhere where the schema has none and the wire could."""
    for field in oracle.fields(description, version):
        value = values[field.name]
        can_say_null = field.is_array() or field.type_str in ("string", "bytes")
        if can_say_null and not field.nullable_for_version_q(version):
            yield {**values, field.name: None}
        if field.is_struct_array():
            for index, element in enumerate(value or ()):
                for changed in nulled(field, version, element):
                    yield {**values, field.name: [*value[:index], changed, *value[index + 1 :]]}
        elif field.is_struct() and value is not None:
            for changed in nulled(field, version, value):
                yield {**values, field.name: changed}


def test_null_is_refused_wherever_the_schema_has_none() -> None:
    tried = 0
    for api, version in oracle.advertised():
        if (api, version) == ("Metadata", 0):
            continue  # kafka-python writes an empty array for None here; tested by hand below
        name = api + "Request"
        values = oracle.sample(random.Random(SEED), name, version)
        for changed in nulled(oracle.kafka_class(name), version, values):
            tried += 1
            with pytest.raises(FormatError):
                decode_request(oracle.api_key(api), version, memoryview(oracle.kafka_bytes(name, version, changed)))
    assert tried > 300


def test_element_counts_are_checked_before_anything_is_made() -> None:
    """Two billion topics, four billion topics, four billion tagged fields: refused at a glance."""
    for version, text in (
        (1, "7fffffff" + "00" * 100),
        (12, "ffffffff0f" + "00" * 100),
        (12, "00 00 00 ffffffff0f"),
    ):
        with pytest.raises(FormatError):
            decode_request(ApiKey.METADATA, version, memoryview(bytes.fromhex(text)))


def test_null_topics_mean_all_of_them_since_version_1_only() -> None:
    assert decode_request(ApiKey.METADATA, 1, memoryview(b"\xff" * 4)).topics is None
    with pytest.raises(FormatError):
        decode_request(ApiKey.METADATA, 0, memoryview(b"\xff" * 4))
