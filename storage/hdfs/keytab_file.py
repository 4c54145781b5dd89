"""The entries of a keytab: principals and key version numbers, for a check of the log-in.  Pure; keys are skipped.

The format is MIT's, version 5.2: records with their length before them, a negative one for a hole.  Numbers are
big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

KEYTAB_BYTES_MAX = 1 << 20
_MAGIC = b"\x05\x02"
_ENCRYPTION = {
    1: "des-cbc-crc",
    3: "des-cbc-md5",
    16: "des3-cbc-sha1",
    17: "aes128-cts-hmac-sha1-96",
    18: "aes256-cts-hmac-sha1-96",
    19: "aes128-cts-hmac-sha256-128",
    20: "aes256-cts-hmac-sha384-192",
    23: "arcfour-hmac",
    25: "camellia128-cts-cmac",
    26: "camellia256-cts-cmac",
}


@dataclass(frozen=True, slots=True)
class KeytabEntry:
    """One key: its principal, the key version number (kvno), and the name of its encryption."""

    principal: str
    number: int
    encryption: str


def parse_keytab(data: bytes) -> list[KeytabEntry]:
    """Return the entries in the order of the file.  Raises ValueError if the bytes are no keytab."""
    if data[:2] != _MAGIC:
        raise ValueError("it does not begin as a keytab of version 5.2")
    entries, position = [], 2
    while position + 4 <= len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        end = position + abs(size)
        if size == 0 or end > len(data):
            raise ValueError(f"an entry of {size} bytes at byte {position - 4}, and the file has {len(data)}")
        if size > 0:
            try:
                entries.append(_entry(data[position:end]))
            except (struct.error, UnicodeDecodeError) as error:
                raise ValueError(f"a malformed entry at byte {position - 4}: {error}") from error
        position = end
    return entries


def _entry(data: bytes) -> KeytabEntry:
    (count,) = struct.unpack_from(">H", data)
    position = 2
    parts = []
    for _ in range(count + 1):  # the realm comes first
        (length,) = struct.unpack_from(">H", data, position)
        text = data[position + 2 : position + 2 + length]
        if len(text) < length:
            raise struct.error("a name beyond the entry's end")
        parts.append(text.decode())
        position += 2 + length
    _, _, number, encryption, key_bytes = struct.unpack_from(">iIBHH", data, position)
    position += 13 + key_bytes
    if position > len(data):
        raise struct.error("a key beyond the entry's end")
    if position + 4 <= len(data) and (whole := int.from_bytes(data[position : position + 4])):
        number = whole  # the byte before the key holds numbers below 256 only
    realm, *names = parts
    return KeytabEntry(f"{'/'.join(names)}@{realm}", number, _ENCRYPTION.get(encryption, f"type {encryption}"))
