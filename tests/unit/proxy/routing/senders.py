"""Routes of many partitions over one produce connection, which the test cuts and makes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from bmq.core.aio.subscribers import Subscribers
from bmq.core.aio.timers import Deadlines
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.records.batch import Appended
from bmq.core.rpc.peers import PeerBusy, PeerLost
from bmq.endpoint.partitions import Owner, PartitionView
from bmq.endpoint.produce.queue import ProduceQueue
from bmq.proxy.routing.owners import GRAIN_S
from bmq.proxy.routing.produce_route import ProduceRoute, RouteState
from bmq.proxy.routing.produce_sender import ProduceSender
from bmq.proxy.routing.remote_owner import RemoteOwner
from tests.harness.fakes import member
from tests.harness.loop_stops import is_short, loop_stops
from tests.unit.endpoint.serving import AppendFuture

TOPIC = uuid.UUID(int=1)


MANY = 5_000


class FakePeer:
    """A ``Peer`` that keeps what it is given; ``cut`` loses it."""

    bytes_under_way = 0
    incarnation = "b1"
    why = "cut"

    def __init__(self) -> None:
        self.is_up = True
        self.is_busy = False
        self.calls: list[tuple[Sequence[Buffer], asyncio.Future[memoryview]]] = []
        self._lost = Subscribers[[]]()

    def call(self, api_key: int, version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self.is_busy:
            future.set_exception(PeerBusy("too much", was_sent=False))
        else:
            self.calls.append((body, future))
        return future

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        return self._lost.add(call)

    def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        if self.is_up:
            self.is_up = False
            for _, future in self.calls:
                if not future.done():
                    future.set_exception(PeerLost("cut", was_sent=True))
            self._lost.notify()


class FakePeers:
    def __init__(self) -> None:
        self.peer: FakePeer | None = FakePeer()
        self._waiting: list[asyncio.Future[FakePeer]] = []

    def get(self, member: Any, kind: Any) -> FakePeer | None:
        return self.peer

    async def reach(self, member: Any, kind: Any, timeout_s: float) -> FakePeer:
        if self.peer is not None:
            return self.peer
        self._waiting.append(asyncio.get_running_loop().create_future())
        return await self._waiting[-1]

    def connect(self) -> FakePeer:
        self.peer = FakePeer()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.set_result(self.peer)
        return self.peer

    def cut(self) -> None:
        peer, self.peer = self.peer, None
        assert peer is not None
        peer.cut()


class Part(AppendFuture):
    """A part of a produce, which waits in the partition's queue while its route is not open."""

    def __init__(self, senders: Senders, key: PartitionKey, data: memoryview, held_until: float) -> None:
        super().__init__()
        self.held_until = held_until
        self.on_over: Callable[[], None] = lambda: None
        self._senders = senders
        self._key = key
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def append(self, owner: Owner) -> None:
        owner.append(self._data, self, acks_all=True, held_until=self.held_until)

    def fail(self, error: RequestError) -> None:
        self.on_failed(error)

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        self._senders.unsure += may_be_appended
        self._senders.queue.hold_first(self._key, self, self._senders)


class Senders:
    """Partitions with a route each over one link, and the queue in front of them."""

    def __init__(self, count: int = MANY) -> None:
        self.peers = FakePeers()
        self.link = ProduceSender(cast(Any, self.peers), member("b1"))
        self.deadlines = Deadlines(GRAIN_S)
        self.queue = ProduceQueue()
        self.unsure = 0  # parts that were given back, and may have been appended
        self.owners: list[RemoteOwner] = []
        for number in range(count):
            owner = RemoteOwner(PartitionKey(TOPIC, number), ProduceRoute(1 << 20), cast(Any, None), self.deadlines)
            owner.assign(self.link)
            self.owners.append(owner)

    def append(self, owner: RemoteOwner, data: bytearray, held_until: float | None = None) -> asyncio.Future[Appended]:
        until = asyncio.get_running_loop().time() + 60 if held_until is None else held_until
        part = Part(self, owner.key, memoryview(data), until)
        if owner.is_open and not self.queue.is_held(owner.key):
            part.append(owner)
        else:
            self.queue.hold(owner.key, part, self, NodeConfig())
        return part.future

    def get(self, key: PartitionKey) -> RemoteOwner | None:
        owner = self.owners[key.partition]
        return owner if owner.is_open else None

    async def wait(self, key: PartitionKey, timeout_s: float) -> RemoteOwner:
        owner, loop = self.owners[key.partition], asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not owner.is_open:
            if loop.time() >= deadline:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no owner")
            await owner.changed(deadline)
        return owner

    def follow(self, key: PartitionKey) -> PartitionView | None:
        raise NotImplementedError

    @property
    def states(self) -> set[RouteState]:
        return {owner.route.state for owner in self.owners}

    @property
    def peer(self) -> FakePeer:
        assert self.peers.peer is not None
        return self.peers.peer


@contextmanager
def senders_without_a_stop(count: int = MANY) -> Iterator[Senders]:
    """Yield senders whose story stops the loop for no longer than any request may."""
    senders = Senders(count)
    with loop_stops() as stops:
        yield senders
    assert is_short(stops.longest_s), stops.longest_s


async def until_all_are(senders: Senders, state: RouteState) -> None:
    while senders.states != {state}:  # noqa: ASYNC110 - turns of the loop are what is waited for
        await asyncio.sleep(0)


def send(senders: Senders, owners: Sequence[RemoteOwner], number: int) -> None:
    """Hand each a record of this number, of an idempotent producer: it may be sent again."""
    for owner in owners:
        record = bytearray(61)
        record[43:51] = (7).to_bytes(8, "big")
        record[60] = number
        senders.append(owner, record)


async def reconnect(senders: Senders) -> FakePeer:
    """Lose the connection once what was handed over is under way, and return the next as soon as the link has it."""
    await asyncio.sleep(0)
    senders.peers.cut()
    peer = senders.peers.connect()
    while not senders.link.is_up:  # noqa: ASYNC110 - a turn of the loop is what is waited for
        await asyncio.sleep(0)
    return peer
