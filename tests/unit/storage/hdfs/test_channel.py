"""Protection of a connection after its handshake: AES/CTR, and frames of a SASL layer, in any pieces."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs.channel import FRAME_BYTES_MAX, AesCtr, Frames
from bmq.storage.hdfs.security_layer import LayerBroken, SecurityLayer

KEYS = (b"k" * 16, b"\xff" * 16, b"p" * 32, b"\0" * 16)
PIECES = st.lists(st.binary(max_size=300), max_size=8)


def frames(cipher: str = "", buffer_bytes: int = 200) -> tuple[Frames, Frames]:
    """Return both ends of a connection, which has small frames."""
    client = SecurityLayer(b"k" * 16, cipher, peer_buffer_bytes=buffer_bytes)
    return Frames(client), Frames(SecurityLayer(b"k" * 16, cipher, is_server=True))


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@pytest.mark.slow
@pytest.mark.parametrize("cipher", ["", "3des", "rc4"])
@given(sent=PIECES, sizes=st.lists(st.integers(0, 400), max_size=6))
def test_frames_are_opened_in_whatever_pieces_they_come(cipher: str, sent: list[bytes], sizes: list[int]) -> None:
    client, server = frames(cipher)
    wire = b"".join(client.seal([memoryview(part) for part in sent]))
    assert b"".join(server.open(piece) for piece in in_pieces(wire, sizes)) == b"".join(sent)


def test_a_frame_fits_the_peers_buffer() -> None:
    client, _ = frames(buffer_bytes=200)
    sealed = client.seal([bytes(1000)])
    assert max(map(len, sealed)) <= 200


@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 1 << 31, (1 << 32) - 1])
def test_an_announced_frame_is_bounded(length: int) -> None:
    _, server = frames()
    with pytest.raises(LayerBroken, match=f"a frame of {length} bytes"):
        server.open(length.to_bytes(4))


@pytest.mark.parametrize("history", ["dropped", "repeated", "swapped", "flipped"])
@pytest.mark.parametrize("cipher", ["", "3des", "rc4"])
def test_frames_that_are_changed_end_the_connection(cipher: str, history: str) -> None:
    client, server = frames(cipher)
    first, second, third = (b"".join(client.seal([text])) for text in (b"first", b"second", b"third"))
    assert server.open(first) == b"first"
    wire = {
        "dropped": third,
        "repeated": first,
        "swapped": third + second,
        "flipped": second[:-9] + bytes([second[-9] ^ 1]) + second[-8:],
    }[history]
    with pytest.raises(LayerBroken):
        server.open(wire)


def test_an_empty_frame_is_no_data() -> None:
    client, server = frames()
    assert client.seal([b"", b""]) == []
    assert server.open(bytes(4)) == b""


def aes(key: bytes, counter: bytes, data: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(data)


@pytest.mark.slow
@given(sent=PIECES, sizes=st.lists(st.integers(0, 400), max_size=6))
def test_aes_has_one_counter_in_each_direction(sent: list[bytes], sizes: list[int]) -> None:
    client = AesCtr(*KEYS)
    sealed = b"".join(client.seal([memoryview(part) for part in sent]))
    assert sealed == aes(KEYS[0], KEYS[1], b"".join(sent))
    received = aes(KEYS[2], KEYS[3], b"".join(sent))
    opened = b""
    for number, piece in enumerate(in_pieces(received, sizes)):
        if number % 2:
            place = bytearray(piece + b"behind")
            half = len(piece) // 2
            client.open_in_place([memoryview(place)[:half], memoryview(place)[half:]], len(piece))
            assert place[len(piece) :] == b"behind"
            opened += place[: len(piece)]
        else:
            opened += client.open(piece)
    assert opened == b"".join(sent)


def test_what_is_sealed_is_not_changed() -> None:
    data = bytearray(b"records")
    AesCtr(*KEYS).seal([data])
    frames("rc4")[0].seal([data])
    assert data == b"records"
