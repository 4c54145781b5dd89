"""Keys and values as text: separators, encodings, and their JSON in ``bmq consume`` and ``bmq produce``.  Pure."""

from __future__ import annotations

import argparse
import base64
import binascii
import enum
import re

from bmq.cli.output import json_bytes

SEPARATOR_BYTES_MAX = 64
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|.|$)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class Encoding(enum.StrEnum):
    """The form of a key or a value: as it is, or its bytes in hexadecimal or base64."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


def add_encodings(parser: argparse._ActionsContainer, text: str) -> None:
    """Add ``--key-encoding`` and ``--value-encoding``.

    ``text`` is their help, in which {} becomes "key" or "value".
    """
    for what in ("key", "value"):
        parser.add_argument(
            f"--{what}-encoding",
            type=Encoding,
            choices=list(Encoding),
            default=Encoding.TEXT,
            help=f"{text.format(what)} (default: %(default)s)",
        )


class NotEncoded(Exception):
    """The text is not in the expected encoding; ``str`` says why."""


def separator(text: str) -> bytes:
    r"""Return the bytes of a separator: ``\n``, ``\t``, ``\r``, ``\0``, ``\\`` and ``\xHH`` are escapes.

    Raises argparse.ArgumentTypeError for another escape, and for a separator that is empty or too long.
    """
    data = b""
    position = 0
    for match in _ESCAPE.finditer(text):
        data += text[position : match.start()].encode("utf-8", "surrogateescape")
        position = match.end()
        escape = match[1]
        if escape.startswith("x") and len(escape) == 3:
            data += bytes.fromhex(escape[1:])
        elif escape in _ESCAPES:
            data += _ESCAPES[escape].encode()
        else:
            raise argparse.ArgumentTypeError(rf"{match[0]!r}: known escapes are \n \t \r \0 \\ \xHH")
    data += text[position:].encode("utf-8", "surrogateescape")
    if not 0 < len(data) <= SEPARATOR_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"a separator has 1 to {SEPARATOR_BYTES_MAX} bytes")
    return data


def decode(data: bytes, encoding: Encoding) -> bytes:
    """Return the bytes that ``data`` stands for.  Raises NotEncoded if it is not in that encoding."""
    try:
        match encoding:
            case Encoding.TEXT:
                return data
            case Encoding.HEX:
                return binascii.unhexlify(data.strip())
            case Encoding.BASE64:
                return base64.b64decode(data.strip(), validate=True)
    except binascii.Error as error:
        raise NotEncoded(f"not {encoding}: {error}".lower()) from None


def encode(data: bytes, encoding: Encoding) -> bytes:
    """Return ``data`` in the encoding."""
    match encoding:
        case Encoding.TEXT:
            return data
        case Encoding.HEX:
            return binascii.hexlify(data)
        case Encoding.BASE64:
            return base64.b64encode(data)


def to_json(data: bytes | None, encoding: Encoding) -> object:
    """Return the JSON value of a key or a value; text that is not UTF-8 is ``{"base64": ...}``."""
    if data is None or encoding is Encoding.TEXT:
        return json_bytes(data)
    return encode(data, encoding).decode("ascii")


def from_json(found: object, encoding: Encoding) -> bytes | None:
    """Return the bytes of the JSON value of a key or a value; None for null.  Raises NotEncoded if it is not one."""
    if found is None:
        return None
    if isinstance(found, str):
        try:
            return decode(found.encode(), encoding)
        except UnicodeEncodeError:
            raise NotEncoded("half of a surrogate pair is not text") from None
    if isinstance(found, dict) and list(found) == ["base64"] and isinstance(found["base64"], str):
        try:
            return decode(found["base64"].encode(), Encoding.BASE64)
        except UnicodeEncodeError:
            raise NotEncoded("half of a surrogate pair is not base64") from None
    raise NotEncoded('expected a string, null, or {"base64": "..."}')
