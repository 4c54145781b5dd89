"""The fixture of handlers that are called without a connection."""

from __future__ import annotations

import contextlib

import pytest
from aiohttp import web

from bmq.console import queries


@pytest.fixture
def without_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let handlers read the bodies of requests that came by no connection: its turns are `http_connection`'s."""

    def body_awaited(request: web.Request) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    monkeypatch.setattr(queries, "body_awaited", body_awaited)
