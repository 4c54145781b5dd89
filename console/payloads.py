"""Keys and values of records as JSON can carry them, and back."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TypedDict

from bmq.console.operations import NotPossible

AUTO, JSON, TEXT, HEX, BASE64 = "auto", "json", "text", "hex", "base64"
FORMATS = (AUTO, TEXT, JSON, HEX, BASE64)
"""Of a record that is read; the first is the default."""
WRITTEN_FORMATS = (TEXT, JSON, HEX, BASE64)
_JSON_STARTS = ("{", "[")


class Payload(TypedDict):
    """A key, a value or a header's value."""

    format: str
    """Of `text`: `text`, `json`, `hex` or `base64`; `null` for a null."""
    text: str | None
    bytes: int
    """Size of the whole, though `text` may be cut."""
    is_cut: bool


def show(data: bytes | None, wanted: str, bytes_max: int) -> Payload:
    """Return `data` in the format `wanted`, or in hex where it has not that format; `auto` takes what fits."""
    if data is None:
        return Payload(format="null", text=None, bytes=0, is_cut=False)
    part, is_cut = data[:bytes_max], len(data) > bytes_max
    name, text = _text_of(data, part, wanted, is_cut=is_cut)
    return Payload(format=name, text=text, bytes=len(data), is_cut=is_cut)


def _text_of(data: bytes, part: bytes, wanted: str, *, is_cut: bool) -> tuple[str, str]:
    if wanted == BASE64:
        return BASE64, base64.b64encode(part).decode()
    if wanted == HEX:
        return HEX, part.hex()
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(part) - 3:  # else only a character at the cut is not whole
            return HEX, part.hex()
        text = part[: error.start].decode()
    if wanted == JSON or (wanted == AUTO and text.lstrip()[:1] in _JSON_STARTS):
        if is_cut or _is_json(data):
            return JSON, text
        return TEXT, text
    if wanted == AUTO and "\0" in text:
        return HEX, part.hex()
    return TEXT, text


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def parse(text: str | None, written_as: str, what: str) -> bytes | None:
    """Return the bytes of `text`.  Raises NotPossible (400) naming `what` when it has not that format."""
    if text is None:
        return None
    try:
        if written_as == HEX:
            return bytes.fromhex(text)
        if written_as == BASE64:
            return base64.b64decode(text, validate=True)
        if written_as == JSON:
            json.loads(text)
        return text.encode()
    except (ValueError, RecursionError, binascii.Error) as error:
        raise NotPossible(400, "wrong_value", f"{what} is not {written_as}: {error}") from None
