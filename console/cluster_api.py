"""Handlers of ``/api/v1/cluster/...``: from a request's body to an operator's command, and from its result to JSON.

Web pages of other sites cannot send commands through a browser that reaches this address: see ``console.origins``.
"""

from __future__ import annotations

import json

from aiohttp import web

from bmq.console.operations import NAMED_MAX, ClusterOperations
from bmq.console.queries import FLAG, NUMBER, TEXT, Query, choice_of, read_body
from bmq.console.refusals import refusal
from bmq.core.errors import RequestError

_CHOICE = choice_of("skip", "shorter")


class ClusterApi:
    """Handlers of the cluster's status, commands and log levels."""

    def __init__(self, operations: ClusterOperations) -> None:
        self._operations = operations

    async def status(self, request: web.Request) -> web.Response:
        named_max = Query(request, ("limit",)).number("limit", NAMED_MAX, 0, NAMED_MAX)
        return _response(await self._operations.status(named_max))

    async def drain(self, request: web.Request) -> web.Response:
        """Respond 202: the member got the request to drain, which takes some time."""
        body = await read_body(request, {"member": TEXT})
        try:
            return _response(await self._operations.drain(body["member"]), status=202)
        except RequestError as error:
            raise refusal(error) from error

    async def balance(self, request: web.Request) -> web.Response:
        await read_body(request, {})
        try:
            return _response({"moves": await self._operations.balance()})
        except RequestError as error:
            raise refusal(error) from error

    async def move(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"topic": TEXT, "partition": NUMBER, "member": TEXT})
        try:
            return _response(await self._operations.move(body["topic"], body["partition"], body["member"]))
        except RequestError as error:
            raise refusal(error) from error

    async def log_levels(self, request: web.Request) -> web.Response:
        return _response(await self._operations.log_levels(request.match_info["member"]))

    async def set_log_level(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"logger": TEXT, "level": TEXT})
        found = await self._operations.set_log_level(request.match_info["member"], body["logger"], body["level"])
        return _response(found)

    async def repair(self, request: web.Request) -> web.Response:
        """Respond 200 with the damage found, and whether it was repaired.  Takes as long as reading the files, and
        copying them."""
        fields = {
            "topic": TEXT,
            "partition": NUMBER,
            "choice": _CHOICE,
            "records": FLAG,
            "all": FLAG,
            "unreadable_is_lost": FLAG,
            "abort_hanging": FLAG.optional(default=False),
            "apply": FLAG,
        }
        body = await read_body(request, fields)
        try:
            return _response(await self._operations.repair(body))
        except RequestError as error:
            raise refusal(error) from error


def _response(facts: object, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(facts, separators=(",", ":")), status=status, content_type="application/json")
