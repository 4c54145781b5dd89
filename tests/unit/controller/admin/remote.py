"""A proxy whose requests reach the services of a world's controllers, and are lost as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from enum import Enum
from random import Random
from typing import Any, cast

import pytest

from bmq.controller.admin.client import RemoteAdmin
from bmq.controller.admin.cluster import LeaderAdmin
from bmq.controller.admin.server import AdminService
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.peers import PeerLost, Peers
from bmq.meta.catalog import KvCatalog
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import Member
from bmq.meta.kv_memory import MemoryKeyValue
from tests.unit.controller.world import Standby, World, world


class Fate(Enum):
    ANSWERED = "answered"
    NOT_SENT = "certainly not sent"
    ANSWER_LOST = "done, and the connection broke before the answer"
    REQUEST_LOST = "sent, not done, and the connection broke"
    SILENT = "sent, and never answered"


class FakePeers:
    """Calls the services of the world's controllers; ``fates`` are used up one a call, then all is well."""

    def __init__(self, w: World) -> None:
        self.services: dict[str, AdminService] = {}
        self.fates: list[Fate] = []
        self.calls = 0
        self.is_earlier = False
        for one in w.standbys:
            cluster = LeaderAdmin(one.controller, one.catalog, w.members)
            self.services[one.name] = AdminService(one.controller, one.view, cluster)

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        self.calls += 1
        fate = self.fates.pop(0) if self.fates else Fate.ANSWERED
        await asyncio.sleep(0.01)
        if fate is Fate.NOT_SENT:
            raise PeerLost("refused", was_sent=False)
        if fate is Fate.SILENT:
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        if fate is Fate.REQUEST_LOST:
            raise PeerLost("reset", was_sent=True)
        if self.is_earlier:
            text = f"{member.incarnation} does not serve API {message.KEY}"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, text)
        request = type(message).decode(memoryview(b"".join(message.encode())))
        try:
            response = await self.services[member.incarnation].serve(request)
        finally:
            if fate is Fate.ANSWER_LOST:
                raise PeerLost("reset", was_sent=True)
        return message.RESPONSE.decode(memoryview(b"".join(response.encode())))


class Remote:
    """A proxy."""

    def __init__(self, w: World, kv: MemoryKeyValue, *, local: Standby | None = None) -> None:
        self.view = KvClusterView(kv, "c", "proxy" if local is None else local.name)
        self.catalog = KvCatalog(kv, "c")
        self.peers = FakePeers(w)
        service = None if local is None else self.peers.services[local.name]
        self.admin = RemoteAdmin(self.view, self.catalog, cast(Peers, self.peers), LoopClock(), local=service)


@asynccontextmanager
async def remote(w: World, local: Standby | None = None) -> AsyncIterator[Remote]:
    await w.join(*(one.name for one in w.standbys), roles=["controller"])
    kv = MemoryKeyValue(w.store, random=Random(1))
    one = Remote(w, kv, local=local)
    await one.view.start()
    await one.catalog.start()
    try:
        yield one
    finally:
        await one.view.close()
        await one.catalog.close()


@asynccontextmanager
async def proxied(*controllers: str) -> AsyncIterator[tuple[World, Remote]]:
    """Start a cluster with these controllers, and a proxy of it."""
    async with world("a", "b", controllers=controllers) as w, remote(w) as one:
        yield w, one


async def refused(act: Awaitable[Any], code: ErrorCode) -> str:
    with pytest.raises(RequestError) as caught:
        await act
    assert caught.value.code is code
    return caught.value.message
