"""Texts that clients choose, as keys of what a process remembers: bounded in bytes, and different for different texts.

A client id may have 32 KB, a name in a request as much as the request.  A map of ten thousand such keys is 300 MB,
which anybody could fill who may send a request.
"""

from __future__ import annotations

import hashlib

PREFIX_BYTES = 256
"""Bytes of a text up to which it is its own key; of a longer text, its beginning, to which a hash is added."""
_ASCII_OR_NOT = PREFIX_BYTES // 4  # characters that take no more bytes, whatever they are
_HASH_BYTES = 16


def key_of(text: str) -> str:
    """Return the text if it has at most PREFIX_BYTES bytes, else its beginning and a hash of all of it.

    No two texts have the same key: a longer text's key is longer than any short text, and its hash is BLAKE2b's of 128
    bits.  The key is the same in every process.
    """
    if len(text) <= _ASCII_OR_NOT:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= PREFIX_BYTES:
        return text
    digest = hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()
    return f"{data[:PREFIX_BYTES].decode('utf-8', 'replace')}...{digest}"
