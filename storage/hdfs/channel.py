"""The protection of a connection to a datanode after its handshake: AES/CTR, or the frames of a SASL layer.  Pure.

::

    AES/CTR:  the bytes of both directions, each encrypted by one counter from the handshake on (CryptoInputStream)
    frames:   u32 length, wrapped message             a frame for each piece that is sent (SaslOutputStream)

AES/CTR encrypts and does not detect changes.  The checksums of the data detect damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from bmq.storage.filesystem import Buffer
from bmq.storage.hdfs.security_layer import LayerBroken, SecurityLayer

FRAME_BYTES_MAX = 17 << 20
"""Longest frame of a datanode: a packet of 16 MB (PacketReceiver.MAX_PACKET_SIZE) in a single write."""
_LENGTH = struct.Struct(">I")


class Channel(Protocol):
    """The protection of both directions of a connection.

    ``seal`` and ``open`` have separate states, and each takes bytes in the order of the connection.
    """

    def seal(self, parts: Sequence[Buffer]) -> list[bytes]:
        """Return the bytes to send for ``parts``, which are not changed."""

    def open(self, data: bytes) -> bytes:
        """Return what the received bytes complete.  Raises LayerBroken if they were changed."""


class AesCtr:
    """AES/CTR/NoPadding: a key and a counter of 16 bytes for this side, and another pair for the peer's."""

    def __init__(self, key: bytes, counter: bytes, peer_key: bytes, peer_counter: bytes) -> None:
        self._encryptor: CipherContext = _aes(key, counter).encryptor()
        self._decryptor: CipherContext = _aes(peer_key, peer_counter).decryptor()

    def seal(self, parts: Sequence[Buffer]) -> list[bytes]:
        return [self._encryptor.update(part) for part in parts]

    def open(self, data: bytes) -> bytes:
        return self._decryptor.update(data)

    def open_in_place(self, places: Sequence[memoryview], size: int) -> None:
        """Decrypt the first ``size`` bytes of ``places``, one after the other, where they are."""
        for place in places:
            if not size:
                return
            part = place[:size]
            self._decryptor.update_into(part, part)
            size -= len(part)


class Frames:
    """The frames of a SASL layer, with integrity or privacy."""

    def __init__(self, layer: SecurityLayer) -> None:
        self._layer = layer
        self._received = bytearray()

    def seal(self, parts: Sequence[Buffer]) -> list[bytes]:
        data = b"".join(parts)
        return [part for piece in _pieces(data, self._layer.message_bytes_max) for part in self._framed(piece)]

    def _framed(self, piece: bytes) -> tuple[bytes, bytes]:
        wrapped = self._layer.wrap(piece)
        return _LENGTH.pack(len(wrapped)), wrapped

    def open(self, data: bytes) -> bytes:
        received = self._received
        received += data
        opened = []
        start = 0
        while len(received) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, start)
            if length > FRAME_BYTES_MAX:
                raise LayerBroken(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if end > len(received):
                break
            with memoryview(received) as view:
                opened.append(self._layer.unwrap(bytes(view[start + _LENGTH.size : end])))
            start = end
        del received[:start]
        return b"".join(opened)


def _aes(key: bytes, counter: bytes) -> Cipher[Any]:
    return Cipher(algorithms.AES(key), modes.CTR(counter))


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
