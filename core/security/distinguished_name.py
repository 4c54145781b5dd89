"""The subject of a certificate as Java writes it (``X500Principal.getName``, RFC 2253): what Kafka's rules see.

From the last part of the encoded name to its first: ``CN=alice,OU=queues,O=Example,C=CH``.  As in Java, parts that RFC
2253 has no keyword for are numbers with their encoded value (``1.2.840.113549.1.9.1=#1603...`` is an e-mail address).
"""

from __future__ import annotations

from collections.abc import Iterator

_KEYWORDS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
_CHARSETS = {
    12: "utf-8",  # UTF8String
    19: "latin-1",  # PrintableString
    20: "latin-1",  # T61String
    22: "latin-1",  # IA5String
    27: "latin-1",  # GeneralString
    30: "utf-16-be",  # BMPString
}
_ESCAPED = frozenset(',=+<>#;"\\')
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0


class BadCertificate(ValueError):
    """Bytes that are not a certificate."""


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER; "" if it has none.  Raises BadCertificate if it is not one."""
    try:
        _, whole, _ = _element(certificate)
        _, signed, _ = _element(whole)
        parts = [(tag, value) for tag, value, _ in _elements(signed)]
        if parts[0][0] == _VERSION:
            parts = parts[1:]
        tag, subject = parts[4]  # after serial number, algorithm, issuer and validity
        if tag != _SEQUENCE:
            raise BadCertificate("its subject is not a sequence")
        names = [_relative(value) for tag, value, _ in _elements(subject) if tag == _SET]
    except (IndexError, UnicodeDecodeError) as error:
        raise BadCertificate(f"not a certificate: {error}") from None
    return ",".join(reversed(names))


def _relative(data: bytes) -> str:
    return "+".join(_attribute(value) for _, value, _ in _elements(data))


def _attribute(data: bytes) -> str:
    tag, oid, rest = _element(data)
    if tag != _OID:
        raise BadCertificate("a part of its subject has no type")
    number = _dotted(oid)
    tag, value, _ = _element(rest)
    if number not in _KEYWORDS or tag not in _CHARSETS:
        return f"{_KEYWORDS.get(number, number)}=#{rest.hex()}"
    return f"{_KEYWORDS[number]}={_escaped(value.decode(_CHARSETS[tag]))}"


def _escaped(text: str) -> str:
    """Return a value as ``AVA.toRFC2253String`` does: special characters, NUL, and blanks at both ends escaped."""
    middle = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    inner = middle.strip(" \r")
    if not inner:
        return "".join(f"\\{each}" for each in middle)
    lead = middle[: middle.index(inner)]
    trail = middle[len(lead) + len(inner) :]
    return "".join(f"\\{each}" for each in lead) + inner + "".join(f"\\{each}" for each in trail)


def _dotted(data: bytes) -> str:
    arcs, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            arcs.append(value)
            value = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(str(arc) for arc in (first, arcs[0] - 40 * first, *arcs[1:]))


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and value of the first element, and what follows it.  Raises IndexError if it is cut short."""
    tag, length, pos = data[0], data[1], 2
    if length & 0x80:
        pos += length & 0x7F
        length = int.from_bytes(data[2:pos], "big")
    if pos + length > len(data):
        raise IndexError("cut short")
    return tag, data[pos : pos + length], data[pos + length :]


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield tag, value and rest of each element."""
    while data:
        tag, value, data = _element(data)
        yield tag, value, data
