"""``/api/v1/cluster/...``: from a request's body to an operator's act, and from what became of it to JSON.

Nobody is asked who they are (see ``console.http``); but a page on another site must not be able to act through the
browser of somebody who can reach this address.  So a POST has to say ``Content-Type: application/json``, which a
browser sends to another site only after asking us, and must not carry ``Origin``, which browsers send with every POST:
that holds too when a name of the other site is made to mean this machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from bmq.console.operations import ClusterOperations, NotPossible
from bmq.core.errors import ErrorCode, RequestError

BODY_BYTES_MAX = 16 << 10
BODY_TIMEOUT_S = 10.0
"""How long a body may take to arrive."""
_REFUSED = {
    ErrorCode.BROKER_ID_NOT_REGISTERED: (404, "`bmq cluster status` shows the members"),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, "`bmq topic list` shows what there is"),
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: (409, "name a member with the broker's role that is not draining"),
    ErrorCode.BROKER_NOT_AVAILABLE: (503, "try again; if its process hangs, end it with a signal"),
    ErrorCode.NOT_CONTROLLER: (503, "the leader is changing, try again"),
    ErrorCode.REQUEST_TIMED_OUT: (503, "look with `bmq cluster status`, then try again"),
    ErrorCode.UNSUPPORTED_VERSION: (501, "finish the upgrade first"),
}
"""Kafka's codes as HTTP's, and what to do."""
_ADVICE = "the log of the leader may say more"


class _Wanted(NamedTuple):
    """What a field of a body has to be."""

    told: str
    is_met: Callable[[object], bool]


_FLAG = _Wanted("true or false", lambda value: isinstance(value, bool))
_CHOICE = _Wanted('"skip" or "shorter"', lambda value: value in ("skip", "shorter"))
_TEXT = _Wanted("a text", lambda value: isinstance(value, str) and value != "")
_NUMBER = _Wanted(
    "a number from 0 up", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0
)


class ClusterApi:
    """The handlers."""

    def __init__(self, operations: ClusterOperations) -> None:
        self._operations = operations

    async def status(self, request: web.Request) -> web.Response:
        return _answer(await self._operations.status())

    async def drain(self, request: web.Request) -> web.Response:
        """202: it has been asked to leave, which takes it some time."""
        body = await _body(request, {"member": _TEXT})
        try:
            return _answer(await self._operations.drain(body["member"]), status=202)
        except RequestError as error:
            raise _refusal(error) from error

    async def balance(self, request: web.Request) -> web.Response:
        await _body(request, {})
        try:
            return _answer({"moves": await self._operations.balance()})
        except RequestError as error:
            raise _refusal(error) from error

    async def move(self, request: web.Request) -> web.Response:
        body = await _body(request, {"topic": _TEXT, "partition": _NUMBER, "member": _TEXT})
        try:
            return _answer(await self._operations.move(body["topic"], body["partition"], body["member"]))
        except RequestError as error:
            raise _refusal(error) from error

    async def repair(self, request: web.Request) -> web.Response:
        """200: what is damaged, and whether it was mended.  Takes as long as reading, and copying, the files does."""
        fields = {
            "topic": _TEXT,
            "partition": _NUMBER,
            "choice": _CHOICE,
            "records": _FLAG,
            "all": _FLAG,
            "unreadable_is_lost": _FLAG,
            "apply": _FLAG,
        }
        body = await _body(request, fields)
        try:
            return _answer(await self._operations.repair(body))
        except RequestError as error:
            raise _refusal(error) from error


def _answer(facts: object, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(facts, separators=(",", ":")), status=status, content_type="application/json")


def _refusal(error: RequestError) -> NotPossible:
    status, advice = _REFUSED.get(error.code, (503 if error.code.is_retriable else 500, _ADVICE))
    told = error.message.rstrip(".")
    return NotPossible(status, error.code.name.lower(), f"{told}; {advice}" if told else advice)


# -------------------------------------------------------------------------------------------------------------- bodies


async def _body(request: web.Request, fields: Mapping[str, _Wanted]) -> Mapping[str, Any]:
    """The request's JSON: exactly these fields, each as it has to be.  NotPossible."""
    if "Origin" in request.headers:
        raise NotPossible(403, "from_a_browser", "no web page may do this; use `bmq cluster`, or curl")
    if request.content_type != "application/json":
        raise NotPossible(415, "unsupported_media_type", "send the body with Content-Type: application/json")
    data = await _read(request)
    try:
        body = json.loads(data) if data or fields else {}
    except (ValueError, RecursionError) as error:
        raise NotPossible(400, "no_json", f"the body is no JSON: {error}") from None
    if not isinstance(body, dict) or set(body) != set(fields):
        wanted = ", ".join(f'"{name}"' for name in fields) or "none"
        raise NotPossible(400, "wrong_fields", f"the body must be an object with exactly these fields: {wanted}")
    for name, wanted_value in fields.items():
        if not wanted_value.is_met(body[name]):
            raise NotPossible(400, "wrong_value", f'"{name}" is {json.dumps(body[name])[:80]}, not {wanted_value.told}')
    return body


async def _read(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise NotPossible(413, "too_large", f"a body has {BODY_BYTES_MAX} bytes at most") from None
    except TimeoutError:
        raise NotPossible(408, "too_slow", f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
