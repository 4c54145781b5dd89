"""Frames of an RPC connection, and those of a connection with a layer: cut, joined, changed, left out, sent again."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import WireError, decode_varint, delimited
from bmq.storage.hdfs.rpc_frames import (
    FRAME_BYTES_MAX,
    SASL_RESPONSE_ID,
    FrameBuffer,
    WrappedFrames,
    framed,
    next_part,
    sasl_frame,
    wrapped_token,
)
from bmq.storage.hdfs.security_layer import LayerBroken
from tests.unit.storage.hdfs.fake_layer import SealedLayer


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def response(
    token: bytes, *, call_id: int = SASL_RESPONSE_ID, state: int = pb.RpcSasl.WRAP, status: int = 0, more: bytes = b""
) -> bytes:
    """Return the body of a server's frame that carries a message of the layer."""
    header = pb.RpcResponseHeader(call_id=call_id, status=pb.RpcResponseHeader.Status.Name(status))
    message = pb.RpcSasl(state=pb.RpcSasl.State.Name(state), token=token)
    return delimited(header) + delimited(message) + more


def frames_within(wrapped: WrappedFrames, plain: bytes) -> list[bytes]:
    wrapped.receive(plain)
    found = []
    while (one := wrapped.next()) is not None:
        found.append(one)
    return found


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 1000])
def test_frames_are_cut_wherever_the_stream_is(step: int) -> None:
    bodies = [b"", b"a", b"bc" * 100, b""]
    stream = b"".join(map(frame, bodies))
    buffer, found = FrameBuffer(), []
    for start in range(0, len(stream), step):
        buffer.feed(stream[start : start + step])
        while (one := buffer.next(200)) is not None:
            found.append(one)
    assert found == bodies
    assert len(buffer) == 0


@pytest.mark.parametrize("length", [201, 1 << 20, (1 << 31) - 1, (1 << 32) - 1])
def test_a_frame_that_is_too_long_is_refused_by_its_first_four_bytes(length: int) -> None:
    buffer = FrameBuffer()
    buffer.feed(frame(b"good") + length.to_bytes(4))
    assert buffer.next(200) == b"good"
    with pytest.raises(WireError, match=f"a frame of {length} bytes"):
        buffer.next(200)


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 5000])
def test_a_request_is_split_by_what_the_server_takes(size: int) -> None:
    client, server = SealedLayer(), SealedLayer()
    sent = WrappedFrames(client).wrap(frame(bytes(size)))
    assert max(client.lengths) <= 1000
    buffer, plain = FrameBuffer(), b""
    buffer.feed(sent)
    while (one := buffer.next(FRAME_BYTES_MAX)) is not None:
        length, position = decode_varint(one, 0)
        assert pb.RpcRequestHeader.FromString(one[position : position + length]).call_id == -33
        length, position = decode_varint(one, position + length)
        message = pb.RpcSasl.FromString(one[position : position + length])
        assert message.state == pb.RpcSasl.WRAP
        plain += server.unwrap(message.token)
    assert plain == frame(bytes(size))


def test_a_response_may_be_in_parts_and_several_may_be_in_one_message() -> None:
    wrapped = WrappedFrames(SealedLayer())
    stream = frame(b"first") + frame(b"second") + frame(b"third")
    assert frames_within(wrapped, stream[:2]) == []
    assert frames_within(wrapped, b"") == []
    assert frames_within(wrapped, stream[2:18]) == [b"first"]
    assert frames_within(wrapped, stream[18:]) == [b"second", b"third"]


def test_a_frame_within_is_bounded_too() -> None:
    wrapped = WrappedFrames(SealedLayer())
    wrapped.receive((FRAME_BYTES_MAX + 1).to_bytes(4))
    with pytest.raises(WireError, match=f"a frame of {FRAME_BYTES_MAX + 1} bytes"):
        wrapped.next()


def test_a_message_that_is_changed_left_out_repeated_or_moved_breaks_the_layer() -> None:
    server = SealedLayer()
    first, second, third = (server.wrap(text) for text in (b"first", b"second", b"third"))
    for wrong in (second, first[:-1] + b"X", first + b"X", first[:-1], b"", b"\0" * 8):
        with pytest.raises(LayerBroken):
            WrappedFrames(SealedLayer()).unwrap(wrong)
    wrapped = WrappedFrames(SealedLayer())
    assert wrapped.unwrap(first) == b"first"
    with pytest.raises(LayerBroken, match="message 0, and 1 is the next one"):
        wrapped.unwrap(first)
    with pytest.raises(LayerBroken, match="message 2, and 1 is the next one"):
        wrapped.unwrap(third)
    assert wrapped.unwrap(second) == b"second"


def test_a_layer_that_wraps_no_more_says_so() -> None:
    class Ended(SealedLayer):
        def wrap(self, data: bytes) -> bytes:
            raise ValueError("no more numbers")

    with pytest.raises(LayerBroken, match="no more numbers"):
        WrappedFrames(Ended()).wrap(frame(b"x"))


def test_only_a_wrapped_message_passes_where_a_layer_is() -> None:
    assert wrapped_token(response(b"token")) == b"token"
    plain = delimited(pb.RpcResponseHeader(call_id=7, status=pb.RpcResponseHeader.SUCCESS)) + b"\x00"
    fatal = delimited(pb.RpcResponseHeader(call_id=SASL_RESPONSE_ID, status=pb.RpcResponseHeader.FATAL))
    for wrong in (
        plain,
        fatal,
        response(b"token", call_id=7),
        response(b"token", status=1),
        response(b"token", state=pb.RpcSasl.SUCCESS),
        response(b"token", state=pb.RpcSasl.NEGOTIATE),
        response(b"token", more=b"x"),
        response(b"token")[:-1],
        sasl_frame(pb.RpcSasl(state=pb.RpcSasl.WRAP, token=b"x"))[4:],
        framed(pb.RpcSasl(state=pb.RpcSasl.WRAP, token=b"x"))[4:],
        b"",
        b"\xff" * 20,
        b"\x80",
    ):
        with pytest.raises((WireError, DecodeError)):
            wrapped_token(wrong)


def test_a_frame_that_is_cut_off_is_refused_wherever_it_is_cut() -> None:
    """Take none of it: the rest of a response looks like a response to a call that nobody has sent."""
    whole = response(b"token")
    assert wrapped_token(whole) == b"token"
    for length in range(len(whole)):
        with pytest.raises(WireError, match="ends within a message"):
            wrapped_token(whole[:length])


@pytest.mark.parametrize("part", [b"", b"\xff\xff\xff", b"\x01", b"\x05four"])
def test_a_part_that_does_not_end_within_its_frame_is_refused(part: bytes) -> None:
    assert next_part(b"before" + b"\x04four", 6) == (b"four", 11)
    with pytest.raises(WireError, match=f"a frame of {6 + len(part)} bytes that ends within a message"):
        next_part(b"before" + part, 6)
