"""The client's side of ``codec``: requests that this project sends, and the responses to them, without headers.

A process forwards a client's request to another as it would have come, and reads the response.  The peer may be of
another version of this software: what it sends is checked as a client's request is, with room for larger responses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from bmq.core.errors import FormatError
from bmq.core.net.request import Buffer
from bmq.core.wire import messages
from bmq.core.wire.codec import body_reader
from bmq.core.wire.header import is_flexible
from bmq.core.wire.messages import request_class, schema_range

RESPONSE_ELEMENTS_MAX = 5_000_000
"""Array elements in one response: a listing of all groups is the largest."""


def encode_request(api_key: int, version: int, message: Any) -> Buffer:
    """Return the body of a request of ``version``; fields that the version lacks are left out."""
    assert type(message) is request_class(api_key), f"{type(message).__name__} is not a request of API {api_key}"
    body: Buffer = message.encode(version=version)
    return body


def encode_response_body(message: Any, version: int) -> Buffer:
    """Return the body of a response to a request of ``version``."""
    body: Buffer = message.encode(version=version)
    return body


def decode_response(api_key: int, version: int, body: memoryview) -> Any:
    """Return the message in ``body``.

    Raises FormatError if ``body`` is not a response of this API and version, or there is no such version.
    """
    known = schema_range(api_key)
    if known is None or request_class(api_key) is None or not known[0] <= version <= known[1]:
        raise FormatError(f"API {api_key} has no version {version} here")
    return _response_reader(api_key, version)(body)


@cache
def _response_reader(api_key: int, version: int) -> Callable[[memoryview], Any]:
    request = request_class(api_key)
    assert request is not None
    response = getattr(messages, request.__name__.removesuffix("Request") + "Response")
    flexible = is_flexible(api_key, version)
    return body_reader(response, version, flexible=flexible, elements_max=RESPONSE_ELEMENTS_MAX)
