"""Connections to a broker that respond wrongly, or are busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bmq.core.net.request import Buffer
from bmq.core.rpc.peers import PeerBusy
from tests.unit.proxy.cluster import Connection


def answering(body: bytes) -> Callable[[int, int, Sequence[Buffer]], asyncio.Future[memoryview]]:
    """Return a peer's ``call`` that returns ``body`` at once."""

    def call(api_key: int, version: int, asked: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        future.set_result(memoryview(body))
        return future

    return call


def refusing(link: Connection, keys: set[int], refused: list[int], room: Callable[[], bool]) -> Callable[..., Any]:
    """Return a peer's ``call`` that is too busy for these APIs until there is ``room``."""
    real = Connection.call

    def call(api_key: int, version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        if api_key in keys and not room():
            refused.append(api_key)
            future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
            future.set_exception(PeerBusy("too much", was_sent=False))
            return future
        return real(link, api_key, version, body)

    return call
