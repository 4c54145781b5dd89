"""Stub brokers: members of a cluster that answer its leader, and do nothing with their partitions."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.core.features import FEATURES
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import Listener
from bmq.core.rpc.messages.broker import LoadRequest, LoadResponse
from bmq.core.rpc.peers import PROTOCOL
from bmq.core.rpc.server import Body, InternalCall, InternalEndpoint
from bmq.meta.cluster.keys import member_key
from bmq.meta.cluster.member import BROKER, Address, Member, encode_member
from bmq.meta.cluster.membership import TTL_S
from bmq.meta.kv import KeyValue, KvError, Put

HOST = "127.0.0.1"


class StubBroker:
    """Stub broker: `join` first, then `die` (its connections break) or `leave` (its lease is revoked too)."""

    def __init__(self, kv: KeyValue, cluster: str, name: str) -> None:
        self.name = name
        self._kv = kv
        self._cluster = cluster
        endpoint = InternalEndpoint(name, cluster, SystemClock(), is_serving=lambda: True)
        endpoint.register(LoadRequest, _load)
        self._listener = Listener(endpoint, NodeConfig(), PortCounters(), in_order=False)
        self._lease = 0
        self._renewing: asyncio.Task[None] | None = None

    async def join(self) -> None:
        await self._listener.start(HOST, 0)
        self._lease = await self._kv.grant(TTL_S)
        member = Member(
            incarnation=self.name,
            roles=frozenset({BROKER}),
            internal=Address(host=HOST, port=self._listener.port),
            protocols=PROTOCOL,
            features=tuple(sorted(FEATURES.ranges.items())),  # nothing is given to a member of a lower level
        )
        await self._kv.commit([], [Put(member_key(self._cluster, self.name), encode_member(member), self._lease)])
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(TTL_S / 3)
            with suppress(KvError):
                await self._kv.keep_alive(self._lease)

    async def die(self) -> None:
        """Stop without leaving, as a killed process does: the lease goes on until it expires."""
        assert self._renewing is not None
        self._renewing.cancel()
        self._listener.close()

    async def leave(self) -> None:
        await self._kv.revoke(self._lease)
        await self.die()


def _load(body: memoryview, call: InternalCall) -> Body:
    return LoadResponse().encode()


class StubBrokers:
    """Stub brokers of one cluster."""

    def __init__(self, kv: KeyValue, cluster: str) -> None:
        self._kv = kv
        self._cluster = cluster
        self._numbers: Iterator[int] = count()
        self.living: dict[str, StubBroker] = {}

    async def join(self, many: int = 1) -> None:
        for _ in range(many):
            broker = StubBroker(self._kv, self._cluster, f"stub-{next(self._numbers)}")
            await broker.join()
            self.living[broker.name] = broker

    async def kill(self) -> str:
        """Kill the oldest broker and return its name."""
        name = next(iter(self.living))
        await self.living.pop(name).die()
        return name

    async def leave(self) -> str:
        name = next(iter(self.living))
        await self.living.pop(name).leave()
        return name

    async def close(self) -> None:
        for broker in self.living.values():
            await broker.leave()
        self.living.clear()
