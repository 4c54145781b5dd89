"""Conversion of records' keys and values to texts for JSON, and back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypedDict

from bmq.console.operations import NotPossible
from bmq.console.schemas import SHOWN_AS, Schema, schema_id, to_json
from bmq.core.schema_registry import SchemaError

AUTO, JSON, TEXT, HEX, BASE64, REGISTRY = "auto", "json", "text", "hex", "base64", "registry"
FORMATS = (AUTO, TEXT, JSON, HEX, BASE64, REGISTRY)
"""Formats of records that are read; the first is the default."""
WRITTEN_FORMATS = (TEXT, JSON, HEX, BASE64)
"""Formats of records that are produced."""
NO_SCHEMAS: Mapping[int, Schema | SchemaError] = MappingProxyType({})
_NO_HEADER = "it does not begin with a zero byte and the id of a schema"
_JSON_STARTS = ("{", "[")


class Payload(TypedDict):
    """A key, a value or a header's value."""

    format: str
    """Format of ``text``: ``text``, ``json``, ``hex`` or ``base64``; ``avro`` or ``protobuf`` for JSON made from these;
    ``null`` for a null."""
    text: str | None
    bytes: int
    """Size of the whole payload, even if ``text`` is cut."""
    is_cut: bool
    schema_id: int | None
    """Id of the schema that ``text`` was decoded by."""
    error: str
    """Reason why it is not decoded by its schema; "" if it is, or if that was not requested."""


Schemas = Mapping[int, Schema | SchemaError]


def show(data: bytes | None, wanted: str, bytes_max: int, schemas: Schemas = NO_SCHEMAS) -> Payload:
    """Return ``data`` in the format ``wanted``, cut to ``bytes_max``; as hex or text if it has another format.

    ``auto`` takes the first that fits: the schema in ``schemas`` whose id it begins with, JSON, text, hex.
    """
    if data is None:
        return Payload(format="null", text=None, bytes=0, is_cut=False, schema_id=None, error="")
    error = ""
    if wanted in (AUTO, REGISTRY):
        number = schema_id(data)
        schema = schemas.get(number) if number is not None else None
        if isinstance(schema, Schema):
            try:
                text = to_json(schema, data)
            except SchemaError as failed:
                error = str(failed)
            else:
                shown, is_cut = text[:bytes_max], len(text) > bytes_max
                name = SHOWN_AS[schema.kind]
                return Payload(format=name, text=shown, bytes=len(data), is_cut=is_cut, schema_id=number, error="")
        elif wanted == REGISTRY:
            error = str(schema) if schema is not None else _NO_HEADER
        wanted = AUTO
    part, is_cut = data[:bytes_max], len(data) > bytes_max
    name, text = _text_of(data, part, wanted, is_cut=is_cut)
    return Payload(format=name, text=text, bytes=len(data), is_cut=is_cut, schema_id=None, error=error)


def _text_of(data: bytes, part: bytes, wanted: str, *, is_cut: bool) -> tuple[str, str]:
    if wanted == BASE64:
        return BASE64, base64.b64encode(part).decode()
    if wanted == HEX:
        return HEX, part.hex()
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(part) - 3:  # else only the character at the cut is incomplete
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
    """Return the bytes of ``text``; None for None.

    Raises NotPossible (400), which names ``what``, if the text is not in the format ``written_as``.
    """
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
