"""Parameters of a request's URL and fields of its body: all are checked and bounded, and unknown ones refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from bmq.console.http_connection import body_awaited
from bmq.console.listing import SKIP_MAX, Order, Page
from bmq.console.operations import NotPossible

BODY_BYTES_MAX = 16 << 10
BODY_TIMEOUT_S = 10.0
"""Time-out of the arrival of a body."""
PAGE = 100
LONG_MAX = (1 << 63) - 1
PAGE_MAX = 1_000
T = TypeVar("T")


class Query:
    """Parameters of a URL's query.  Each method raises NotPossible (400) if its parameter is wrong."""

    def __init__(self, request: web.Request, allowed: Collection[str]) -> None:
        """Check the names of the parameters.  Raises NotPossible (400) if there are others than ``allowed``."""
        unknown = sorted(set(request.query) - set(allowed))
        if unknown:
            wanted = ", ".join(sorted(allowed)) or "none"
            raise _wrong(f"unknown parameter {unknown[0][:80]!r}; allowed are: {wanted}")
        self._values = request.query

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default)

    def is_given(self, name: str) -> bool:
        return name in self._values

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self._values.get(name)
        return default if text is None else parse_number(name, text, least, most)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of ``choices``, the first if none is given."""
        text = self._values.get(name, choices[0])
        if text not in choices:
            raise _wrong(f"{name}={text[:80]!r}; choose from {', '.join(choices)}")
        return text

    def flag(self, name: str, *, default: bool = False) -> bool:
        words = ("true", "false") if default else ("false", "true")
        return self.choice(name, words) == "true"

    def page(self, default: int = PAGE) -> Page:
        return Page(self.text("after"), self.number("limit", default, 1, PAGE_MAX), self.number("skip", 0, 0, SKIP_MAX))

    def ordered_page(self, columns: Sequence[str], default: int = PAGE, sort: str = "") -> tuple[Order, Page]:
        """Return the order and the page.

        The order is by one of ``columns``, the first of which is the name.  Without the parameter ``sort`` it is
        ``sort``, or by name if that is empty.
        """
        text = self.text("sort", sort or columns[0])
        order, page = Order.parse(text), self.page(default)
        if order.by not in columns:
            raise _wrong(f"sort={text[:80]!r}; choose from {', '.join(columns)}, with - before it for the reverse")
        if page.after and order != Order(columns[0]):
            raise _wrong(f"after={page.after[:80]!r} is for the order by {columns[0]}; use skip in others")
        return order, page


def parse_number(name: str, text: str, least: int, most: int) -> int:
    """Return ``text`` as a whole number within the bounds.  Raises NotPossible (400) if it is none."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19 or not least <= int(text) <= most:
        raise _wrong(f"{name}={text[:80]!r} is not a number from {least} to {most}")
    return int(text)


def named(request: web.Request, what: str, allowed: Sequence[str] = ()) -> tuple[str, Query]:
    """Return the name in the path, else in the parameter ``id``, and the other parameters.

    Only the parameter can have the names ``.`` and ``..``: in paths, clients resolve them.  Raises NotPossible (400)
    if both are missing; the text says ``what`` is to be named.
    """
    if "id" in request.match_info:
        return request.match_info["id"], Query(request, allowed)
    query = Query(request, ("id", *allowed))
    if not query.is_given("id"):
        raise _wrong(f"name the {what}: ?id=...")
    return query.text("id"), query


def partition_page(
    rows: Sequence[T], key: Callable[[T], tuple[str, int]], page: Page
) -> tuple[Sequence[T], str | None]:
    """Return a page of rows sorted by ``key``, topic and partition, and the ``after`` of the next: ``topic/partition``.

    Raises NotPossible (400) if the page's ``after`` is not of this form.
    """
    rest = rows
    if page.after:
        name, slash, number = page.after.rpartition("/")
        if not slash or not (number.isascii() and number.isdecimal()) or len(number) > 10:
            raise _wrong(f"after={page.after[:80]!r} is not like topic/partition")
        rest = [each for each in rows if key(each) > (name, int(number))]
    if len(rest) <= page.limit:
        return rest, None
    topic, partition = key(rest[page.limit - 1])
    return rest[: page.limit], f"{topic}/{partition}"


def _wrong(message: str) -> NotPossible:
    return NotPossible(400, "wrong_parameter", message)


# -------------------------------------------------------------------------------------------------------------- bodies

_REQUIRED = object()


class BodyField(NamedTuple):
    """A field of a body: its check, a description of allowed values, and the default if it may be left out."""

    told: str
    is_met: Callable[[Any], bool]
    default: Any = _REQUIRED

    def optional(self, default: Any = None) -> BodyField:
        """Return the field as an optional one; a null stands for the default too."""
        return self._replace(default=default, is_met=lambda value: value is None or self.is_met(value))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


FLAG = BodyField("true or false", lambda value: isinstance(value, bool))
TEXT = BodyField("a text", lambda value: isinstance(value, str) and value != "")
NUMBER = BodyField("a number from 0 to 2147483647", lambda value: _is_whole(value) and 0 <= value < 1 << 31)
"""An int32 of Kafka's: partitions and counts of them."""
INTEGER = BodyField("a whole number", lambda value: _is_whole(value) and -(1 << 63) <= value < 1 << 63)
TEXTS = BodyField("an object of texts", _is_texts)
NAMES = BodyField(
    "a list of texts", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value)
)


def choice_of(*choices: str) -> BodyField:
    """Return a field that has one of these texts."""
    return BodyField(" or ".join(f'"{each}"' for each in choices), lambda value: value in choices)


BODY = web.RequestKey("body", dict[str, Any])
"""The checked fields of a request's body, once they are read: the audit log names some of them."""


async def read_body(
    request: web.Request, fields: Mapping[str, BodyField], bytes_max: int = BODY_BYTES_MAX
) -> dict[str, Any]:
    """Return these fields of the request's JSON body, each checked, with defaults for those left out.

    Raises NotPossible (400, 408, 413 or 415) if the body is wrong, too large, or does not arrive.
    """
    if request.content_type != "application/json":
        raise NotPossible(415, "unsupported_media_type", "send the body with Content-Type: application/json")
    data = await _read(request, bytes_max)
    required = [name for name, wanted in fields.items() if wanted.default is _REQUIRED]
    try:
        body = json.loads(data) if data or required else {}
        json.dumps(body, ensure_ascii=False).encode()  # refuses half a surrogate pair, which JSON can escape
    except (ValueError, RecursionError) as error:
        raise NotPossible(400, "no_json", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict) or not set(required) <= set(body) <= set(fields):
        raise NotPossible(400, "wrong_fields", f"the body must be an object with {_describe(fields, required)}")
    for name, value in body.items():
        if not fields[name].is_met(value):
            raise NotPossible(400, "wrong_value", f'"{name}" is {json.dumps(value)[:80]}, not {fields[name].told}')
    defaults = {name: wanted.default for name, wanted in fields.items() if wanted.default is not _REQUIRED}
    found = defaults | {name: value for name, value in body.items() if value is not None or name in required}
    request[BODY] = found
    return found


def _describe(fields: Mapping[str, BodyField], required: Sequence[str]) -> str:
    exactly = f"exactly these fields: {', '.join(map(json.dumps, required)) or 'none'}"
    others = ", ".join(json.dumps(name) for name in fields if name not in required)
    return f"{exactly}; it may have {others}" if others else exactly


async def _read(request: web.Request, bytes_max: int) -> bytes:
    with body_awaited(request):
        return await _read_in_time(request, bytes_max)


async def _read_in_time(request: web.Request, bytes_max: int) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while piece := await request.content.read(bytes_max + 1 - len(data)):
                data += piece
                if len(data) > bytes_max:
                    raise NotPossible(413, "too_large", f"the body is larger than {bytes_max} bytes")
    except (ConnectionError, web.RequestPayloadError) as error:
        raise NotPossible(400, "incomplete_body", f"the body did not arrive completely: {error}") from None
    except TimeoutError:
        raise NotPossible(408, "too_slow", f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    return bytes(data)
