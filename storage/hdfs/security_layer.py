"""The security layers of DIGEST-MD5 (RFC 2831, sections 2.3 and 2.4): integrity, and privacy with 3DES or RC4.  Pure.

::

    auth-int:   message, MAC (10 bytes), type 0x0001, sequence number (4 bytes)
    auth-conf:  CIPHER(message, padding, MAC), type 0x0001, sequence number

The MAC covers the sequence number and the message.  A cipher goes on from message to message.  So a message that is
lost, repeated or changed ends the connection.  The length before each message belongs to the caller's protocol.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.decrepit.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import Cipher, modes

MAC_BYTES = 10
OVERHEAD_BYTES_MAX = 26
"""Most bytes that ``wrap`` adds: padding, MAC, type and sequence number, as the JDK counts them."""
_END = struct.Struct(">HI")
_TYPE = 1
_BLOCK_BYTES = 8
_BUFFER_BYTES = 65536
_CLIENT, _SERVER = "client-to-server", "server-to-client"
_SEQUENCE = 1 << 32


class LayerBroken(ConnectionError):
    """The peer's message is changed, repeated or out of order: the connection must end.  Never leaves this package."""


class SecurityLayer:
    """The layer of one connection after its log-in: ``wrap`` sent messages, ``unwrap`` received messages, in order.

    ``session_key`` is the hash of RFC 2831's A1.  ``cipher`` is "3des", "rc4", or empty for integrity alone.
    ``message_bytes_max`` is the longest message whose wrapped form the peer's buffer holds.  ``wrap`` and ``unwrap``
    have separate states: a thread may call the first while another thread calls the second.
    """

    def __init__(
        self, session_key: bytes, cipher: str = "", *, is_server: bool = False, peer_buffer_bytes: int = _BUFFER_BYTES
    ) -> None:
        mine, peers = (_SERVER, _CLIENT) if is_server else (_CLIENT, _SERVER)
        self.cipher = cipher
        self.message_bytes_max = peer_buffer_bytes - OVERHEAD_BYTES_MAX
        self._is_padded = cipher == "3des"
        self._mac_key = _integrity_key(session_key, mine)
        self._peer_mac_key = _integrity_key(session_key, peers)
        self._encryptor = _cipher(cipher, _privacy_key(session_key, mine)).encryptor() if cipher else None
        self._decryptor = _cipher(cipher, _privacy_key(session_key, peers)).decryptor() if cipher else None
        self._sequence = 0
        self._peer_sequence = 0

    def __repr__(self) -> str:
        return f"SecurityLayer({self.cipher or 'integrity'}, sent={self._sequence}, received={self._peer_sequence})"

    def wrap(self, data: bytes) -> bytes:
        """Return the protected form of the next message; of an empty message nothing, as the JDK does."""
        if not data:
            return b""
        sequence = self._sequence
        self._sequence = (sequence + 1) % _SEQUENCE
        mac = _mac(self._mac_key, sequence, data)
        body = b"".join((data, _padding(len(data)) if self._is_padded else b"", mac))
        if self._encryptor is not None:
            body = self._encryptor.update(body)
        return body + _END.pack(_TYPE, sequence)

    def unwrap(self, token: bytes) -> bytes:
        """Return the peer's next message.

        Raises LayerBroken if its MAC, type, sequence number or padding is wrong.  The layer must not be used after it.
        """
        if not token:
            return b""
        size = len(token) - _END.size
        if size < MAC_BYTES or (self._is_padded and size % _BLOCK_BYTES):
            raise LayerBroken(f"a protected message of {len(token)} bytes")
        kind, sequence = _END.unpack_from(token, size)
        body = token[:size]
        if self._decryptor is not None:
            body = self._decryptor.update(body)
        end = size - MAC_BYTES
        padding = body[end - 1] if self._is_padded and end else 0
        if self._is_padded and not 1 <= padding <= min(_BLOCK_BYTES, end):
            raise LayerBroken("a protected message with a wrong MAC")  # a forger learns nothing about the padding
        data = body[: end - padding]
        if not hmac.compare_digest(_mac(self._peer_mac_key, sequence, data), body[end:]):
            raise LayerBroken("a protected message with a wrong MAC")
        if sequence != self._peer_sequence or kind != _TYPE:
            raise LayerBroken(f"message {sequence} of type {kind}, {self._peer_sequence} of type {_TYPE} expected")
        self._peer_sequence = (sequence + 1) % _SEQUENCE
        return data


@functools.cache
def available_ciphers() -> Sequence[str]:
    """Return the ciphers of ``auth-conf`` that this machine's library has, in the JDK's order of preference.

    OpenSSL keeps RC4 in its legacy provider, which may be absent.
    """
    found = []
    for name in ("3des", "rc4"):
        try:
            _cipher(name, bytes(range(16))).encryptor()
        except UnsupportedAlgorithm:
            continue
        found.append(name)
    return tuple(found)


def _cipher(name: str, key: bytes) -> Cipher[Any]:
    if name == "rc4":
        return Cipher(algorithms.ARC4(key), None)
    if name != "3des":
        raise AssertionError(f"no cipher of this layer: {name}")
    first, second = _des_key(key[:7]), _des_key(key[7:14])
    return Cipher(algorithms.TripleDES(first + second + first), modes.CBC(key[8:16]))


def _des_key(bits: bytes) -> bytes:
    """Return the 8 bytes of a DES key for its 56 bits, 7 of them in each byte; ciphers ignore the parity bit."""
    number = int.from_bytes(bits)
    return bytes((number >> shift & 0x7F) << 1 for shift in range(49, -1, -7))


def _integrity_key(session_key: bytes, direction: str) -> bytes:
    return _digest(session_key + f"Digest session key to {direction} signing key magic constant".encode())


def _privacy_key(session_key: bytes, direction: str) -> bytes:
    return _digest(session_key + f"Digest H(A1) to {direction} sealing key magic constant".encode())


def _mac(key: bytes, sequence: int, data: bytes) -> bytes:
    mac = hmac.new(key, sequence.to_bytes(4), "md5")
    mac.update(data)
    return mac.digest()[:MAC_BYTES]


def _padding(length: int) -> bytes:
    count = _BLOCK_BYTES - (length + MAC_BYTES) % _BLOCK_BYTES
    return bytes([count]) * count


def _digest(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()  # the mechanism's own hash
