"""A connection with a layer under a man in the middle: the client takes what the server sent, in order, or it ends."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import WireError, delimited
from bmq.storage.hdfs.rpc_frames import FRAME_BYTES_MAX, SASL_RESPONSE_ID, FrameBuffer, WrappedFrames, wrapped_token
from bmq.storage.hdfs.security_layer import LayerBroken, SecurityLayer

_CIPHERS = st.sampled_from(["", "3des"])
_RESPONSES = st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=6)
_CUTS = st.lists(st.integers(1, 50), min_size=1, max_size=8)
_DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "drop", "repeat", "move", "cut", "insert"]),
        st.integers(0, 1000),
        st.binary(max_size=9),
    ),
    max_size=2,
)
_KEY = bytes(range(16))


def in_parts(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    parts, number = [], 0
    while data:
        size = cuts[number % len(cuts)]
        parts.append(data[:size])
        data, number = data[size:], number + 1
    return parts


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def sent(layer: SecurityLayer, stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return the frames of a server that splits and joins its responses as it likes."""
    header = delimited(pb.RpcResponseHeader(call_id=SASL_RESPONSE_ID, status=pb.RpcResponseHeader.SUCCESS))
    return [
        framed(header + delimited(pb.RpcSasl(state=pb.RpcSasl.WRAP, token=layer.wrap(part))))
        for part in in_parts(stream, cuts)
    ]


def tamper(frames: list[bytes], deed: str, where: int, data: bytes) -> list[bytes]:
    at = where % len(frames)
    frame = frames[at]
    if not frame:
        return frames
    match deed:
        case "flip":
            spot = where % len(frame)
            frames[at] = frame[:spot] + bytes([frame[spot] ^ (1 << where % 8)]) + frame[spot + 1 :]
        case "drop":
            del frames[at]
        case "repeat":
            frames.insert(at, frame)
        case "move":
            frames.append(frames.pop(at))
        case "cut":
            frames[at] = frame[: where % len(frame)]
        case "insert":
            frames.insert(at, data)
    return frames or [b""]


def received(bodies: Sequence[bytes], layer: SecurityLayer) -> tuple[list[bytes], bool]:
    """Return the frames that a client takes out of these pieces of a stream, and whether it has ended."""
    outside, within, found = FrameBuffer(), WrappedFrames(layer), []
    try:
        for body in bodies:
            outside.feed(body)
            while (frame := outside.next(FRAME_BYTES_MAX)) is not None:
                within.receive(within.unwrap(wrapped_token(frame)))
                while (one := within.next()) is not None:
                    found.append(one)
    except (WireError, DecodeError, LayerBroken):
        return found, True
    return found, False


@given(_CIPHERS, _RESPONSES, _CUTS, _CUTS, _DEEDS)
def test_a_client_takes_what_the_server_sent_or_ends(
    cipher: str,
    responses: list[bytes],
    messages: list[int],
    pieces: list[int],
    deeds: list[tuple[str, int, bytes]],
) -> None:
    server, client = SecurityLayer(_KEY, cipher, is_server=True), SecurityLayer(_KEY, cipher)
    frames = sent(server, b"".join(map(framed, responses)), messages)
    whole = b"".join(frames)
    for deed, where, data in deeds:
        frames = tamper(frames, deed, where, data)
    stream = b"".join(frames)
    found, has_ended = received(in_parts(stream, pieces), client)
    assert found == responses[: len(found)]
    if stream == whole:
        assert found == responses
        assert not has_ended


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes_end_the_connection_or_wait(bodies: list[bytes]) -> None:
    found, _ = received(bodies, SecurityLayer(_KEY))
    assert found == []
