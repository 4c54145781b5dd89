"""The store's count as it stands in the store."""

from __future__ import annotations

import pytest

from bmq.core.errors import FormatError
from bmq.core.store_count import StoreCount
from bmq.meta.kv import Entry
from bmq.meta.store_count import decode_store_count, encode_store_count, store_count_key

COUNT = StoreCount(rebuild_count=2, number=7, id="ab" * 16)


def test_a_count_is_read_as_it_was_written() -> None:
    assert decode_store_count(Entry(store_count_key("c"), encode_store_count(COUNT), 1)) == COUNT


@pytest.mark.parametrize(
    "value",
    [
        b"", b"\xff", b"[]", b"[" * 100_000, b'{"format":2,"incarnation":0,"number":1,"id":"a"}',
        b'{"format":1,"incarnation":0,"number":1}', b'{"format":1,"incarnation":0,"number":"1","id":"a"}',
        b'{"format":1,"incarnation":null,"number":1,"id":"a"}', b'{"format":1,"incarnation":0,"number":1,"id":""}',
    ],
    ids=["empty", "not UTF-8", "list", "deep", "later format", "no id", "text", "null", "empty id"],
)  # fmt: skip
def test_a_value_that_is_not_a_count_is_a_format_error(value: bytes) -> None:
    with pytest.raises(FormatError, match="/c/store_count"):
        decode_store_count(Entry(store_count_key("c"), value, 1))
