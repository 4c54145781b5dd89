"""Request and response headers (KIP-482, KIP-511).

Request header v1: api key, api version, correlation id, client id.  Version 2 adds tagged fields; the client id keeps
its two-byte length.  Response header v0: correlation id; v1 adds tagged fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from bmq.core.errors import FormatError
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import flexible_since, schema_range
from bmq.core.wire.primitives import CUT_SHORT, read_nullable_string, skip_tags

_FIXED = struct.Struct(">hhi")


class Header(NamedTuple):
    """A request's header.  ``body_start`` is the message's position in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether this version of the API has compact types and tagged fields."""
    since = flexible_since(api_key)
    return since is not None and version >= since


def response_is_flexible(api_key: int, version: int) -> bool:
    """Return whether the response has header v1.

    The response of ApiVersions never has it: the client may support no version of this server.
    """
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version)


def parse_header(frame: memoryview) -> Header:
    """Return the header of a frame (without its size).

    Raises FormatError if it is cut short or its client id is not text.  For an API or version without a schema here,
    nothing past the correlation id is understood: client id is None and the body begins right there.  The correlation
    id is enough to respond to ApiVersions with UNSUPPORTED_VERSION.
    """
    try:
        api_key, version, correlation_id = _FIXED.unpack_from(frame)
        known = schema_range(api_key)
        if known is None or not 0 <= version <= known[1]:
            return Header(api_key, version, correlation_id, None, _FIXED.size)
        client_id, pos = read_nullable_string(frame, _FIXED.size, flexible=False)
        if is_flexible(api_key, version):
            pos = skip_tags(frame, pos)
        return Header(api_key, version, correlation_id, client_id, pos)
    except CUT_SHORT as error:
        raise FormatError(f"request header: {error}") from None
