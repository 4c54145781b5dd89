"""Fields of internal messages: bounds, and values that are refused."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.errors import FormatError
from bmq.core.rpc.message import Message
from bmq.core.rpc.messages.broker import AskRequest, AskResponse, HandedOverRequest, Question, ShardAppendRequest
from bmq.core.wire.primitives import ELEMENTS_MAX, uvarint

ONE = uuid.UUID(int=1)


def bytes_of(message: Message) -> memoryview:
    return memoryview(bytearray(b"".join(message.encode())))


@pytest.mark.parametrize("count", [1, 200, 1 << 34])
def test_claimed_elements_are_refused_before_they_are_made(count: int) -> None:
    with pytest.raises(FormatError, match=f"{count} elements in 0 bytes"):
        HandedOverRequest.decode(memoryview(uvarint(count + 1)))


def test_more_elements_than_the_bound_are_refused() -> None:
    count = ELEMENTS_MAX + 1
    data = bytes(3) + uvarint(count + 1) + bytes(8 * count) + b"\0"
    with pytest.raises(FormatError, match=f"{count} elements, more than {ELEMENTS_MAX}"):
        AskResponse.decode(memoryview(b"\0\0\x01" + data[3:]))


@pytest.mark.parametrize("data", [b"\x7f\xff\x01\x01\0", b"\0\0\x02\xff\x01\0"])
def test_unknown_error_codes_and_malformed_texts_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="AskResponse"):
        AskResponse.decode(memoryview(data))


def test_an_unknown_question_is_refused() -> None:
    data = bytes_of(AskRequest(ONE, 3, Question.ENDS))
    data[20] = 99
    with pytest.raises(FormatError, match="99 is not a valid Question"):
        AskRequest.decode(data)


def test_large_bytes_are_neither_joined_nor_copied() -> None:
    records = memoryview(bytearray(1 << 20))
    request = ShardAppendRequest(ONE, 1, 2, 3, records)
    assert any(buffer is records for buffer in request.encode())
    frame = bytearray(b"".join(request.encode()))
    read = ShardAppendRequest.decode(memoryview(frame))
    assert isinstance(read.records, memoryview)
    read.records[0] = 7  # batches are numbered where they arrived
    assert 7 in frame
