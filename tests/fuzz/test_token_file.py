"""Files of Hadoop's credentials, and identifiers of tokens, with hostile bytes: tokens or one error, in bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs.delegation_token import IDENTIFIER_BYTES_MAX, HadoopToken, TokenIdentifier
from bmq.storage.hdfs.token_file import TOKENS_MAX, Tokens, decode_tokens
from bmq.storage.hdfs.writables import Malformed, WritableReader
from tests.unit.storage.hdfs.token_files import IDENTIFIER, PROTOBUF, WRITABLE

_CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6)


def changed(data: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    """Return ``data`` with some bytes replaced, and cut off if ``cut`` is within."""
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    return bytes(damaged[:cut])


def check(data: bytes) -> None:
    try:
        tokens = decode_tokens(data)
    except Malformed as error:
        text = str(error)
    else:
        text = ""
        check_tokens(tokens)
    assert "\n" not in text
    assert len(text) < 200


def check_tokens(tokens: Tokens) -> None:
    assert len(tokens) <= TOKENS_MAX
    for alias, token in tokens.items():
        assert isinstance(alias, str)
        assert len(token.identifier) <= IDENTIFIER_BYTES_MAX
        assert str(token)
        assert isinstance(token.ends_ms, int)


@given(_CHANGES, st.integers(0, 1000))
@pytest.mark.parametrize("data", [WRITABLE, PROTOBUF], ids=["writable", "protobuf"])
def test_a_damaged_file_has_tokens_or_is_an_error(data: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    check(changed(data, changes, cut))


@given(st.sampled_from([b"HDTS\x00", b"HDTS\x01", b"HDTS\x02", b""]), st.binary(max_size=200))
def test_any_bytes_have_tokens_or_are_an_error(header: bytes, data: bytes) -> None:
    check(header + data)


@given(_CHANGES, st.integers(0, 100))
def test_a_damaged_identifier_is_read_or_is_an_error(changes: list[tuple[int, int]], cut: int) -> None:
    data = changed(IDENTIFIER, changes, cut)
    token = HadoopToken("HDFS_DELEGATION_TOKEN", "nn:8020", data, b"secret")
    assert "secret" not in repr(token) + str(token)
    try:
        content = TokenIdentifier.decode(data)
    except Malformed:
        assert "cannot read" in str(token)
        return
    assert str(content.sequence_number) in str(token)


@given(st.binary(max_size=12))
def test_a_number_is_of_64_bits(data: bytes) -> None:
    try:
        number = WritableReader(data).number()
    except Malformed:
        return
    assert -(1 << 63) <= number < 1 << 63
