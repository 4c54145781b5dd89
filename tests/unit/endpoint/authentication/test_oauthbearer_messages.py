"""The first message of OAUTHBEARER: what Kafka accepts, and every other byte string."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.endpoint.authentication.oauthbearer_messages import InitialResponse, WrongMessage, parse_initial_response


@pytest.mark.parametrize(
    ("message", "parsed"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", InitialResponse("a.b.c")),
        (b"n,,\x01auth=bearer  a-_~+/.9==\x01\x01", InitialResponse("a-_~+/.9==")),
        (b"n,a=alice,\x01auth=BEARER t\x01\x01", InitialResponse("t", "alice")),
        (b"n,a=a=2Cb=3Dc,\x01auth=Bearer t\x01\x01", InitialResponse("t", "a,b=c")),
        (
            b"n,,\x01one=1\x01auth=Bearer t\x01two=a=b \t\r\n\x01\x01",
            InitialResponse("t", "", {"one": "1", "two": "a=b \t\r\n"}),
        ),
    ],
)
def test_a_message_is_parsed(message: bytes, parsed: InitialResponse) -> None:
    assert parse_initial_response(message) == parsed


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "the message is not"),
        (b"\x01", "the message is not"),
        (b"\0user\0password", "the message is not"),
        (b"y,,\x01auth=Bearer t\x01\x01", "the message is not"),
        (b"p=tls-unique,,\x01auth=Bearer t\x01\x01", "the message is not"),
        (b"n,,\x01auth=Bearer t\x01", "the message is not"),
        (b"n,,auth=Bearer t\x01\x01", "the message is not"),
        (b"n,,\x01auth=Bearer t\x01\x01\x01", "the message is not"),
        (b"n,,\x01auth=Bearer t\x01\x01\n", "the message is not"),
        (b"n,a=,\x01auth=Bearer t\x01\x01", "the message is not"),
        (b"n,a=a=2Db,\x01auth=Bearer t\x01\x01", "the message is not"),
        (b"n,a=a=b,\x01auth=Bearer t\x01\x01", "the message is not"),
        (b"n,,\x01au_th=Bearer t\x01\x01", "the message is not"),
        (b"n,,\x01auth=\x01\x01", "the message is not"),
        (b"n,,\x01auth=Bearer \xc3\xa9\x01\x01", "the message is not"),
        (b"n,,\x01auth=Bearer t\0\x01\x01", "the message is not"),
        (b"n,,\x01\x01", "'auth' is not given"),
        (b"n,,\x01Auth=Bearer t\x01\x01", "'auth' is not given"),
        (b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01", "'auth' is given twice"),
        (b"n,,\x01a=1\x01a=2\x01auth=Bearer t\x01\x01", "'a' is given twice"),
        (b"n,,\x01auth=Bearer\x01\x01", "not a scheme and a token"),
        (b"n,,\x01auth=Bearer =\x01\x01", "not a scheme and a token"),
        (b"n,,\x01auth=Bearer t=u\x01\x01", "not a scheme and a token"),
        (b"n,,\x01auth=Bearer t u\x01\x01", "not a scheme and a token"),
        (b"n,,\x01auth= Bearer t\x01\x01", "not a scheme and a token"),
        (b"n,,\x01auth=Bearer\tt\x01\x01", "not a scheme and a token"),
        (b"n,,\x01auth=Basic dTpw\x01\x01", "the scheme is 'Basic'"),
    ],
)
def test_another_message_is_refused(message: bytes, why: str) -> None:
    with pytest.raises(WrongMessage, match=why):
        parse_initial_response(message)


def test_neither_a_reason_nor_a_repr_has_the_token() -> None:
    with pytest.raises(WrongMessage) as raised:
        parse_initial_response(b"n,,\x01auth=Bearer secret secret\x01\x01")
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(parse_initial_response(b"n,,\x01auth=Bearer secret\x01\x01"))


@pytest.mark.parametrize(
    "message",
    [
        b"n,a=" + b"=2C" * 170_000,
        b"n,a=" + b"a" * 500_000,
        b"n,,\x01" + b"a=b\x01" * 120_000,
        b"n,,\x01a=" + b"=" * 500_000,
        b"n,,\x01auth=Bearer " + b"=" * 500_000 + b"\x01\x01",
        b"n,,\x01auth=" + b"B" * 500_000 + b"\x01\x01",
        b"n,,\x01auth=B" + b" " * 500_000 + b"\x01\x01",
    ],
)
def test_the_largest_message_costs_little(message: bytes) -> None:
    began = time.process_time()
    with pytest.raises(WrongMessage):
        parse_initial_response(message)
    assert time.process_time() - began < 1.0


PIECES = st.sampled_from([b"n,", b"a=", b",", b"\x01", b"auth=", b"Bearer ", b"t", b"x=y", b"=2C", b"=", b" ", b"\xff"])


@pytest.mark.slow
@given(st.binary(max_size=60) | st.lists(PIECES, max_size=14).map(b"".join))
def test_any_bytes_are_parsed_or_refused(message: bytes) -> None:
    try:
        parsed = parse_initial_response(message)
    except WrongMessage:
        return
    assert parsed.token.encode() in message
    assert all(name.encode() + b"=" + value.encode() in message for name, value in parsed.extensions.items())
