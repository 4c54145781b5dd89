"""A proxy's key of the brokers that it cannot reach."""

from __future__ import annotations

import pytest

from bmq.core.errors import FormatError
from bmq.meta.cluster.unreachable import decode_unreachable, encode_unreachable, unreachable_key, unreachable_prefix


@pytest.mark.parametrize("brokers", [frozenset[str](), frozenset({"b"}), frozenset({"b-2", "b-1", "b-3"})])
def test_brokers_are_read_as_they_were_written(brokers: frozenset[str]) -> None:
    assert decode_unreachable(encode_unreachable(brokers)) == brokers


def test_the_same_brokers_in_another_order_are_the_same_bytes() -> None:
    assert encode_unreachable(["b", "a"]) == encode_unreachable(["a", "b"])


def test_a_proxys_key_is_under_its_clusters_prefix() -> None:
    assert unreachable_key("c", "p-1").startswith(unreachable_prefix("c"))
    assert not unreachable_key("c2", "p-1").startswith(unreachable_prefix("c"))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b'{"format":1}', b'{"format":2,"brokers":[]}', b'{"format":1,"brokers":[1]}', b"\xff",
        b'{"format":1,"brokers":7}', b"[" * 100_000,
    ],
    ids=["empty", "list", "no brokers", "later format", "number", "not UTF-8", "not a list", "deep"],
)  # fmt: skip
def test_a_value_that_is_not_a_list_of_brokers_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_unreachable(data)
