"""The throttle time in an encoded response: where it is, and a response that has it.

A response is encoded before its size, and so its throttle time, is known.  Nothing is changed in place but what belongs
to the response alone: parts of a Metadata response are other responses', too.
"""

from __future__ import annotations

from functools import cache

from bmq.core.net.request import Response
from bmq.core.wire import messages
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import response_is_flexible
from bmq.core.wire.primitives import INT32

THROTTLE_MS_MAX = (1 << 31) - 1


def set_throttle_ms(api_key: int, version: int, response: Response, ms: int) -> None:
    """Set a response's throttle time, if its API and version have one."""
    if not response.size:
        return  # a produce with acks=0 has none
    ms = min(ms, THROTTLE_MS_MAX)
    flexible = response_is_flexible(api_key, version)
    if api_key == ApiKey.PRODUCE:
        first, *endpoints = response.buffers  # see ``encode_produce``
        end = len(first) - (flexible and not endpoints)
        response.buffers = (b"".join((first[: end - INT32.size], INT32.pack(ms), first[end:])), *endpoints)
    elif api_key == ApiKey.FETCH or _begins_with_throttle_time(api_key, version):
        start = INT32.size + flexible  # behind the header: correlation id, tagged fields
        _replace(response, start, INT32.pack(ms))


def _replace(response: Response, start: int, data: bytes) -> None:
    """Replace bytes near the beginning of a response."""
    count, size = 0, 0
    while size < start + len(data):
        size += len(response.buffers[count])
        count += 1
    head = bytearray(b"".join(response.buffers[:count]))
    head[start : start + len(data)] = data
    response.buffers = (head, *response.buffers[count:])


@cache
def _begins_with_throttle_time(api_key: int, version: int) -> bool:
    """Return whether the first field of a response is its throttle time, as in most of Kafka's.

    ApiVersions has it behind a list; SaslHandshake and its kin have none.
    """
    request = messages.request_class(api_key)
    if request is None:
        return False
    response = getattr(messages, request.__name__.removesuffix("Request") + "Response", None)
    if response is None:
        return False
    present = [field for field in response.fields.values() if field.for_version_q(version)]
    return bool(present) and present[0].name == "throttle_time_ms"
