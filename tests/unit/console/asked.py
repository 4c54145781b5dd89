"""Requests to one handler, without a socket, and the fields of the refusal that it raises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from bmq.console.access.access import ACCESS, RequestAccess
from bmq.console.kafka import Requests
from bmq.console.operations import NotPossible
from bmq.core.security.authentication import AuthenticationContext
from bmq.endpoint.authorization.authorizer import ALLOW_ALL


class Called:
    """Handlers that are called without a gate: each request may do everything, by these Kafka requests."""

    def __init__(self, handlers: Any, requests: Requests) -> None:
        self._handlers = handlers
        self._requests = requests

    def __getattr__(self, name: str) -> Callable[[web.Request], Awaitable[object]]:
        def call(request: web.Request) -> Any:
            request[ACCESS] = RequestAccess(
                ALLOW_ALL, self._requests, AuthenticationContext("127.0.0.1", "SASL_PLAINTEXT")
            )
            return getattr(self._handlers, name)(request)

        return call


def get(path: str = "/", **match_info: str) -> web.Request:
    """Return a GET with these parts of its path."""
    return make_mocked_request("GET", path, match_info=match_info)


def post(body: object, **match_info: str) -> web.Request:
    """Return a POST of a JSON body with these parts of its path."""
    payload = StreamReader(mock.Mock(_reading_paused=False), 1 << 16, loop=asyncio.get_running_loop())
    payload.feed_data(json.dumps(body).encode())
    payload.feed_eof()
    headers = {"Content-Type": "application/json"}
    return make_mocked_request("POST", "/", headers=headers, payload=payload, match_info=match_info)


async def refused(response: Awaitable[object]) -> tuple[int, str]:
    """Await the refusal of a request; return its status and code."""
    with pytest.raises(NotPossible) as raised:
        await response
    return raised.value.status, raised.value.error
