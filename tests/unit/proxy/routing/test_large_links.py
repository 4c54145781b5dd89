"""Links that many partitions use: a change of the connection, and what is answered, reach them in turns of the loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from bmq.core.aio.subscribers import Subscribers
from bmq.core.aio.timers import Deadlines
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.records.batch import Appended, Ends
from bmq.core.rpc.messages.broker import AskPartitionsRequest, AskPartitionsResponse, OwnerAnswer
from bmq.core.rpc.peers import PeerBusy, PeerLost
from bmq.endpoint.partitions import Owner, PartitionView
from bmq.endpoint.produce.queue import ProduceQueue
from bmq.proxy.routing.fetch_session_handler import LISTED_MAX, Session
from bmq.proxy.routing.owners import GRAIN_S
from bmq.proxy.routing.produce_route import ProduceRoute, RouteState
from bmq.proxy.routing.produce_sender import NOTIFIED_A_TURN, PARTS_MAX, ProduceSender
from bmq.proxy.routing.remote_owner import RemoteOwner
from bmq.proxy.routing.remote_tail import OwnerLink, RemoteTail
from tests.harness.fakes import member
from tests.harness.loop_stops import STOP_MAX_S, loop_stops
from tests.unit.endpoint.serving import AppendFuture
from tests.unit.proxy.cluster import Cluster, cluster

pytestmark = pytest.mark.slow

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
    assert stops.longest_s < STOP_MAX_S


async def until_all_are(senders: Senders, state: RouteState) -> None:
    while senders.states != {state}:  # noqa: ASYNC110 - turns of the loop are what is waited for
        await asyncio.sleep(0)


@pytest.mark.leaves_tasks  # a link that goes on connecting
async def test_a_connection_that_comes_and_goes_reaches_all() -> None:
    with senders_without_a_stop() as senders:
        assert senders.states == {RouteState.OPEN}
        senders.peers.cut()
        assert not senders.link.is_up
        await until_all_are(senders, RouteState.UNREACHED)
        senders.peers.connect()
        await until_all_are(senders, RouteState.OPEN)
        senders.peers.cut()
        senders.peers.connect()  # before all partitions see the first
        await asyncio.sleep(1)
        assert senders.states == {RouteState.OPEN}
        senders.peers.cut()
        await asyncio.sleep(1)
        assert senders.states == {RouteState.UNREACHED}


async def test_one_request_has_so_many_parts() -> None:
    senders = Senders()
    for owner in senders.owners:
        senders.append(owner, bytearray(61))
    await asyncio.sleep(0)
    assert len(senders.peer.calls) == MANY / PARTS_MAX


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


async def test_what_was_lost_is_sent_again_before_anything_newer() -> None:
    """Send more from partitions that do not see the loss yet, when the next connection is up already."""

    with senders_without_a_stop() as senders:
        last = senders.owners[-200:]
        send(senders, last, 1)
        peer = await reconnect(senders)
        assert last[-1].route.is_up, "it has not heard of the loss"
        for number in (2, 3, 4):
            send(senders, last, number)
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert senders.states == {RouteState.OPEN}
        sent = [each for body, _ in peer.calls for each in body if isinstance(each, memoryview)]
        position = {id(record): at for at, record in enumerate(sent)}
        for owner in last:
            parts = sorted(owner.route.under_way, key=lambda part: position[id(part.records)])
            assert [part.records[60] for part in parts] == [1, 2, 3, 4]


async def test_a_partition_that_is_assigned_again_is_told_of_the_connection_that_it_lost() -> None:
    """Assign a partition to another broker and back within one turn, while the connection is lost and made again."""

    senders = Senders(3 * NOTIFIED_A_TURN)
    owner = senders.owners[-1]
    send(senders, [owner], 1)
    peer = await reconnect(senders)
    assert owner.route.is_up, "it has not heard of the loss"
    assert len(owner.route.under_way) == 1, "nor of what became of its part"
    owner.assign(senders.link)
    send(senders, [owner], 2)
    await asyncio.sleep(1)
    sent = [each[60] for body, _ in peer.calls for each in body if isinstance(each, memoryview)]
    assert sent == [1, 2]
    assert senders.states == {RouteState.OPEN}


async def test_a_busy_connection_refuses_all_that_is_behind() -> None:
    # All try again in one moment of the virtual time, which real ones that were refused in turns do not.
    with senders_without_a_stop(3 * NOTIFIED_A_TURN) as senders:
        peer = senders.peer
        peer.is_busy = True
        for number in range(2):
            for at, owner in enumerate(senders.owners):
                record = bytearray(61)
                record[60] = number
                senders.append(owner, record)
                if at % NOTIFIED_A_TURN == 0:
                    await asyncio.sleep(0)
        peer.is_busy = False
        await asyncio.sleep(5)
        assert senders.states == {RouteState.OPEN}
        for owner in senders.owners:
            assert [part.records[60] for part in owner.route.under_way] == [0, 1]


@pytest.mark.leaves_tasks  # a link that goes on connecting
async def test_what_waits_for_the_same_moment_is_given_up_in_turns() -> None:
    """Hold batches of one request, which names many partitions of a broker that no process reaches."""

    with senders_without_a_stop(2 * MANY) as senders:
        until = asyncio.get_running_loop().time() + 10
        sent = []
        for at, owner in enumerate(senders.owners):
            record = bytearray(61)
            record[43:51] = (7).to_bytes(8, "big")
            sent.append(senders.append(owner, record, until))
            if at % NOTIFIED_A_TURN == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # all are sent
        senders.peers.cut()
        await until_all_are(senders, RouteState.UNREACHED)
        await asyncio.sleep(11)
        assert senders.unsure == len(sent)
        assert all(isinstance(future.exception(), RequestError) for future in sent)
        assert not senders.deadlines
        assert not senders.queue


@pytest.mark.leaves_tasks  # a link that goes on connecting
async def test_who_waits_for_an_owner_until_the_same_moment_gives_up_in_turns() -> None:
    """Wait for as many partitions as a request may name, whose broker no process reaches, until the same moment."""

    with senders_without_a_stop(2 * MANY) as senders:
        senders.peers.cut()
        await until_all_are(senders, RouteState.UNREACHED)
        loop = asyncio.get_running_loop()
        until, late = loop.time() + 10, list[float]()

        async def wait(owner: RemoteOwner) -> None:
            await owner.changed(until)
            late.append(loop.time() - until)

        waiting = []
        for at, owner in enumerate(senders.owners):
            waiting.append(loop.create_task(wait(owner)))
            if at % NOTIFIED_A_TURN == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert min(late) >= 0
        assert max(late) <= GRAIN_S + 1e-9
        assert not senders.deadlines


async def test_closing_answers_all() -> None:
    senders = Senders()
    plain = b"".ljust(43) + (-1).to_bytes(8, "big", signed=True) + bytes(10)  # without a producer id
    sent = [senders.append(owner, bytearray(plain)) for owner in senders.owners]
    await asyncio.sleep(0)
    senders.peers.cut()
    await senders.link.close()
    await asyncio.sleep(0.1)
    assert {future.exception().code for future in sent} == {ErrorCode.REQUEST_TIMED_OUT}  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------------------- tails


def session_of(count: int) -> Session:
    session = Session()
    for number in range(count):
        tail = RemoteTail(PartitionKey(TOPIC, number), 0.0)
        tail.open(Ends(1, 0, 5, 5), cast(OwnerLink, None))
        session.add(tail)
    return session


def listed_by(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the partitions that the next request lists."""
    taken: list[int] = []

    def encode(*, topics: Any, **others: Any) -> list[Buffer]:
        taken.extend(each.partition for _, partitions in topics for each in partitions)
        return []

    monkeypatch.setattr("bmq.proxy.routing.fetch_session_handler.encode_fetch_request", encode)
    session.next_request()
    return taken


async def test_a_session_of_many_partitions_is_begun_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * LISTED_MAX + 10
    session = session_of(count)
    first = listed_by(session, monkeypatch)
    assert first == list(range(LISTED_MAX))
    session.remove(PartitionKey(TOPIC, LISTED_MAX))
    session.begun(7)
    rest = listed_by(session, monkeypatch) + listed_by(session, monkeypatch)
    assert rest == list(range(LISTED_MAX + 1, count))
    assert listed_by(session, monkeypatch) == []


async def test_without_a_session_partitions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has no room for one: each request is a full one of some of them."""

    count = 2 * LISTED_MAX + 10
    session = session_of(count)
    for _ in range(2):
        found: list[int] = []
        for _ in range(3):
            found += listed_by(session, monkeypatch)
            session.begun(0)
            session.news[PartitionKey(TOPIC, 3)] = session.members[PartitionKey(TOPIC, 3)]
        assert sorted(found) == list(range(count))
    few = session_of(10)
    assert listed_by(few, monkeypatch) == listed_by(few, monkeypatch) == list(range(10))


async def test_many_tails_follow_over_each_connection_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that says of each partition that it is open, and whose connection is cut and comes again."""

    async def follow_many(world: Cluster) -> None:
        world.view.owners.update((world.key(number), "b1") for number in range(MANY))

        def answer(body: memoryview, call: Any) -> Any:
            asked = AskPartitionsRequest.decode(body).questions
            return AskPartitionsResponse(ErrorCode.NONE, "", [OwnerAnswer(0, 4, 1, 0, 0, 0) for _ in asked]).encode()

        endpoint = world.broker("b1").endpoint
        endpoint._apis[10018] = endpoint._apis[10018]._replace(handler=answer)
        real, listed = endpoint._kafka, list[int]()
        parked: list[asyncio.Future[Any]] = []

        def fetch(frame: memoryview, client: Any) -> Any:
            listed.append(len(frame))
            parked.append(asyncio.get_running_loop().create_future())
            return parked[-1]

        endpoint._kafka = cast(Any, fetch)
        with loop_stops() as stops:
            for number in range(MANY):
                if number % 500 == 0:
                    await asyncio.sleep(0)
                world.owners.follow(world.key(number))
            for _ in range(2):
                await asyncio.sleep(1)
                followed = [world.owners.follow(world.key(number)) for number in range(MANY)]
                assert None not in followed
                world.network.cut("b1")
                await asyncio.sleep(0.0001)
                assert None in [world.owners.follow(world.key(number)) for number in range(0, MANY, 100)]
        assert listed
        assert max(listed) < 40 * (LISTED_MAX + 10)
        endpoint._kafka = real
        for each in parked:
            each.cancel()
        assert stops.longest_s < STOP_MAX_S

    async with cluster(partitions=1) as world:
        await follow_many(world)
