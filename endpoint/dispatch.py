"""The path from a frame to its response: header, API and version, decoder, plan, handler, encoder.

The plan (``endpoint.request_plan``) is chosen in one place, ``Endpoint._call``; its workers are the methods behind it.

A request without a possible response closes the connection, as in Kafka: an API or version that is not served, or a
body that is malformed for its version.  The one exception is ApiVersions, whose client cannot know yet which versions
are served (KIP-511).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from bmq.core.aio.eager import start
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer, Client, CloseConnection, Outcome, PendingResponse, Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.header import Header, parse_header
from bmq.core.wire.large import is_large
from bmq.core.wire.primitives import TooManyPartitions
from bmq.core.wire.produce import expects_response
from bmq.core.wire.response_errors import error_codes
from bmq.endpoint.api import Api
from bmq.endpoint.api_versions import unsupported_version
from bmq.endpoint.request_plan import AT_ONCE, Plan, choose_plan
from bmq.endpoint.response_budget import COUNTED_LEAST
from bmq.endpoint.scopes import AnyScopes, Caller, P, Scopes, V

RESPONSE_TO_BODY = 4
"""Bytes of the response to a large body, at most, for each byte of the body, if the API gives no estimate."""


class Endpoint:
    """The dispatcher of the requests of one kind of caller through one listener."""

    def __init__(self, process: P, view: V, caller: Caller, apis: Sequence[Api[Scopes[P, V]]]) -> None:
        self.scopes: AnyScopes = Scopes(process, view, caller)
        self.apis: Sequence[Api[Any]] = tuple(api.within(apis) for api in apis)
        """All APIs of the endpoint, with their handlers for it."""
        self._metrics = caller.metrics
        self._responses = process.responses
        self._large = process.large
        self._order = process.produce_order
        self._clock = process.clock
        self._quotas = caller.quotas
        self._apis: dict[int, Api[Any]] = {int(api.key): api for api in self.apis}
        assert len(self._apis) == len(apis), "an API is registered twice"
        self.expects_response = expects_response
        self._pipelined = frozenset(int(api.key).to_bytes(2, "big") for api in apis if api.is_pipelined)
        self._parking = frozenset(int(api.key).to_bytes(2, "big") for api in apis if api.waits_for_clients)

    def __repr__(self) -> str:
        return f"<Endpoint {len(self._apis)} APIs>"

    def is_pipelined(self, frame: memoryview) -> bool:
        """Return whether a frame's request may begin before earlier ones of its connection have their responses."""
        return bytes(frame[:2]) in self._pipelined

    def may_park(self, frame: memoryview) -> bool:
        """Return whether the response of a frame's request may wait for other clients' requests."""
        return bytes(frame[:2]) in self._parking

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        """Serve the request in ``frame`` (without its size field).  Return its response, or an awaitable of it.

        The request is worked on up to its first await before this returns: requests begin in the order of their frames.
        Raises CloseConnection, here or when awaited, if the request cannot have a response.
        """
        try:
            header = parse_header(frame)
        except FormatError as error:
            raise CloseConnection(f"a request's header cannot be read: {error}") from None
        key, version, correlation_id, client_id, body_start = header
        api = self._apis.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            return self._refuse(header)
        arrived = self._clock.monotonic()
        request = Request(key, version, correlation_id, client_id, frame[body_start:], client, arrived)
        if self._quotas.is_active:
            return self._quotas.serve(request, len(frame), partial(self._serve, api, request))
        return self._serve(api, request)

    def _serve(self, api: Api[Any], request: Request) -> Response | Awaitable[Response]:
        """Return the response of a request, or an awaitable of it."""
        try:
            result = self._call(api, request)
            if isinstance(result, PendingResponse):
                result.on_over(partial(self._over, api, request))
                return result
            if type(result) is not Response:
                if hasattr(result, "__await__"):
                    return start(self._finish(api, request, result))
                if is_large(result):
                    return start(self._finish_large(request, [result]))
            return self._to_response(request, result)
        except CloseConnection:
            raise
        except Exception as error:
            error.add_note(_whose(api, request))
            raise

    def _call(self, api: Api[Any], request: Request) -> Any:
        """Choose the request's plan, and serve it accordingly.  Return its result, or an awaitable of it."""
        rule, body = api.rule, request.body
        message, size, is_many, room = None, 0, False, 0
        try:
            if (parse := api.parse) is not None:
                message = parse(body, request.api_version, rule.partitions)
            elif (size := len(body)) <= rule.body_bytes:
                message = decode_request(request.api_key, request.api_version, body)
                if api.response_bytes is not None:
                    room = api.response_bytes(self.scopes, message)
        except TooManyPartitions:
            is_many = True
        except FormatError as error:
            raise _malformed(api, request, error) from None
        is_held = rule.keeps_order and self._order.is_held(request.client)
        plan = choose_plan(rule, size, is_many, is_held, room)
        if plan is AT_ONCE:
            return api.handle(self.scopes, request, message)
        if plan is Plan.IN_ROOM:
            return self._call_in_room(api, request, message, room)
        if plan is Plan.AFTER_OTHERS:
            return self._call_after_others(api, request, [message])
        return self._call_large(api, request) if api.begin_large is None else self._begin_large(api, request)

    async def _call_after_others(self, api: Api[Any], request: Request, box: list[Any]) -> Any:
        """Handle the one message in ``box`` once all earlier requests of its connection have begun."""
        async with self._order.turn(request.client):
            result = api.handle(self.scopes, request, box.pop())
        return await result if hasattr(result, "__await__") else result

    async def _begin_large(self, api: Api[Any], request: Request) -> Response:
        """Serve a large request by the API's own handler of these."""
        assert api.begin_large is not None
        async with AsyncExitStack() as until_answered:
            if api.rule.keeps_order:
                async with self._order.turn(request.client):
                    begun = await api.begin_large(self.scopes, request, until_answered)
            else:
                begun = await api.begin_large(self.scopes, request, until_answered)
            return begun if isinstance(begun, Response) else await begun

    async def _call_in_room(self, api: Api[Any], request: Request, message: Any, size: int) -> Response:
        """Handle the request and encode its response, once the budget has room for ``size`` bytes."""
        responses = self._responses
        taken = await responses.take(size)
        try:
            result = api.handle(self.scopes, request, message)
            if hasattr(result, "__await__"):
                result = await result
            return responses.count(await self._encode(request, result), taken)
        except BaseException:
            taken.release()
            raise

    async def _call_large(self, api: Api[Any], request: Request) -> Any:
        """Decode the request in the thread for large ones, in the order of arrival, and handle it."""
        async with self._large.admitted(len(request.body)) as leave:
            try:
                box = [await self._large.decode(request.api_key, request.api_version, request.body)]
            except FormatError as error:
                raise _malformed(api, request, error) from None
            if api.waits_for_clients:
                leave()
                return await self._call_now(api, request, box)
            size = RESPONSE_TO_BODY * len(request.body)
            if api.response_bytes is not None:
                size = max(size, api.response_bytes(self.scopes, box[0]))
            responses = self._responses
            taken = await responses.take(size) if size >= COUNTED_LEAST else None
            try:
                return responses.count(await self._encode(request, await self._call_now(api, request, box)), taken)
            except BaseException:
                if taken is not None:
                    taken.release()
                raise

    async def _call_now(self, api: Api[Any], request: Request, box: list[Any]) -> Any:
        result = api.handle(self.scopes, request, box[0])
        if hasattr(result, "__await__"):
            result = await result
        await self._large.free(box)
        return result

    async def _encode(self, request: Request, result: Any) -> Response:
        """Return the encoded response; a large one is encoded in the thread for large requests."""
        if type(result) is Response:
            return result
        key, version, correlation_id = request.api_key, request.api_version, request.correlation_id
        if is_large(result):
            box = [result]
            del result
            return Response(await self._encode_large(request, box))
        self._count_errors(request, result)
        return Response(encode_response(key, version, correlation_id, result))

    async def _finish(self, api: Api[Any], request: Request, work: Awaitable[Any]) -> Response:
        try:
            result = await (work if request.quota is None else request.quota.timed(work))
            if type(result) is not Response and is_large(result):
                box = [result]
                del result
                return await self._finish_large(request, box)
            return self._to_response(request, result)
        except CloseConnection:
            raise
        except Exception as error:
            error.add_note(_whose(api, request))
            raise

    def _over(self, api: Api[Any], request: Request, outcome: Outcome) -> None:
        """Count a request whose response was pending."""
        if isinstance(outcome, Response):
            self._to_response(request, outcome)
        elif not isinstance(outcome, CloseConnection):
            outcome.add_note(_whose(api, request))

    async def _finish_large(self, request: Request, box: list[Any]) -> Response:
        return self._to_response(request, Response(await self._encode_large(request, box)))

    async def _encode_large(self, request: Request, box: list[Any]) -> list[Buffer]:
        """Count the errors of the one response in ``box``, in turns of the loop, and encode it in the thread."""
        turns, counters = Turns(), self._metrics.api(request.api_key)
        for code in error_codes(box[0]):
            if turns.is_over():
                await next_turn()
            if code:
                counters.failed(code)
        return await self._large.encode(request.api_key, request.api_version, request.correlation_id, box)

    def _count_errors(self, request: Request, message: Any) -> None:
        """Count the error codes of a response with few elements."""
        counters = self._metrics.api(request.api_key)
        for code in error_codes(message):
            if code:
                counters.failed(code)

    def _to_response(self, request: Request, result: Any) -> Response:
        """Encode the handler's result, unless it is encoded already, and count the request."""
        if type(result) is Response:
            response = result
        else:
            self._count_errors(request, result)
            response = Response(encode_response(request.api_key, request.api_version, request.correlation_id, result))
        if response.size >= COUNTED_LEAST:
            self._responses.count(response)
        ms = (self._clock.monotonic() - request.arrived) * 1000
        self._metrics.api(request.api_key).answered(ms)
        return response

    def _refuse(self, header: Header) -> Response:
        if header.api_key == ApiKey.API_VERSIONS and ApiKey.API_VERSIONS in self._apis:
            api = self._apis[ApiKey.API_VERSIONS]
            self._metrics.api(header.api_key).failed(ErrorCode.UNSUPPORTED_VERSION)
            return Response(encode_response(api.key, 0, header.correlation_id, unsupported_version(api)))
        raise CloseConnection(
            f"a request for API {_name(header.api_key)} version {header.api_version}, which is not supported"
        )


def _malformed(api: Api[Any], request: Request, error: FormatError) -> CloseConnection:
    if api.parse is not None:
        return CloseConnection(str(error))  # it names API and version itself
    return CloseConnection(f"{api.key.name} version {request.api_version}: {error}")


def _whose(api: Api[Any], request: Request) -> str:
    return (
        f"answering {api.key.name} version {request.api_version} of {request.client.peer} ({request.client_id!r:.100})"
    )


def _name(api_key: int) -> str:
    try:
        return f"{ApiKey(api_key).name} ({api_key})"
    except ValueError:
        return str(api_key)
