"""A security layer without a mechanism: each message has its number and a checksum under a key that both sides have."""

from __future__ import annotations

import hashlib
import hmac

from bmq.storage.hdfs.security_layer import LayerBroken

OVERHEAD_BYTES = 24
_KEY = b"of both sides"


class SealedLayer:
    """One side's layer: numbers of its own for each direction, as of GSSAPI and of DIGEST-MD5.

    The data is turned around, so that nobody takes a wrapped message for a plain one.
    """

    def __init__(self, message_bytes_max: int = 1000) -> None:
        self.message_bytes_max = message_bytes_max
        self.sent = 0
        self.received = 0
        self.lengths: list[int] = []

    def wrap(self, data: bytes) -> bytes:
        assert 0 < len(data) <= self.message_bytes_max
        number = self.sent.to_bytes(8)
        self.sent += 1
        self.lengths.append(len(data))
        return number + _checksum(number + data) + data[::-1]

    def unwrap(self, token: bytes) -> bytes:
        number, checksum, data = token[:8], token[8:OVERHEAD_BYTES], token[OVERHEAD_BYTES:][::-1]
        if not hmac.compare_digest(checksum, _checksum(number + data)):
            raise ValueError("a wrong checksum")
        if number != self.received.to_bytes(8):
            raise LayerBroken(f"message {int.from_bytes(number)}, and {self.received} is the next one")
        self.received += 1
        return data


def _checksum(data: bytes) -> bytes:
    return hmac.new(_KEY, data, hashlib.sha256).digest()[:16]
