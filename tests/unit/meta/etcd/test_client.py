"""Calls that no response comes to: given up when the member is silent, or when etcd may have lost them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from bmq.core.aio.eager import start
from bmq.core.aio.standstill import DOUBT_S as DOUBT_S_OF_LOOP
from bmq.core.aio.standstill import Standstill
from bmq.core.clock import LoopClock
from bmq.meta.etcd import client as etcd_client
from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.address import EtcdAddress
from bmq.meta.etcd.attempts import Repeatability
from bmq.meta.etcd.client import EtcdClient
from bmq.meta.etcd.errors import FailureVerdict
from bmq.meta.etcd.member import RANGE, STATUS, TXN, CallFailed, EtcdMember, HeldRequest
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.etcd.store import EtcdKeyValue
from bmq.meta.kv import KvUnknown, Put
from bmq.meta.kv_for_clients import KvForClients
from tests.harness.fakes import FakeClock

SETTINGS = EtcdSettings()
DOUBT_S, TIMEOUT_S = SETTINGS.doubt_s, SETTINGS.call_timeout_s
NEVER = float("inf")


class FakeMember:
    """A member that responds after ``takes_s``, to a question for its status after ``status_s``, in ``term``."""

    members: list[FakeMember]

    def __init__(self, endpoint: str, *_: object) -> None:
        self.endpoint = endpoint
        self.takes_s, self.status_s, self.term, self.leader = 0.001, 0.001, 7, 1
        self.stops = 0
        """Questions for the status during which this process stands still, until their time is over."""
        self.sent: list[str] = []
        self.silence: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        FakeMember.members.append(self)

    async def connect(self) -> None:
        await asyncio.sleep(0)

    async def call(self, method: Any, request: object, metadata: object, timeout_s: float | None = None) -> Any:
        self.sent.append(method.path)
        timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        takes_s = self.status_s if method is STATUS else self.takes_s
        if method is STATUS and self.stops:
            self.stops -= 1
            time.sleep(timeout_s)  # noqa: ASYNC251 - that is the stop
            takes_s = NEVER
            timeout_s = 0
        await asyncio.sleep(min(takes_s, timeout_s))
        if takes_s > timeout_s:
            raise CallFailed(FailureVerdict.UNKNOWN, f"{self.endpoint}: time-out")
        if method is STATUS:
            return pb.StatusResponse(raft_term=self.term, leader=self.leader)
        return method.response(header=pb.Header(raft_term=self.term))

    def found_silent(self) -> None:
        self.silence.set_result(None)

    async def close(self) -> None:
        pass


class GrpcMember(FakeMember):
    """A member whose calls leave as those of gRPC: a task of each call serializes the request and sends it."""

    async def call(self, method: Any, request: Any, metadata: object, timeout_s: float | None = None) -> Any:
        async def invoke() -> Any:
            request.SerializeToString()
            return await super(GrpcMember, self).call(method, request, metadata, timeout_s)

        return await asyncio.create_task(invoke())


@asynccontextmanager
async def opened(
    monkeypatch: pytest.MonkeyPatch, kind: type[FakeMember] = FakeMember
) -> AsyncIterator[tuple[EtcdClient, FakeMember, FakeMember]]:
    """Yield a client, the member that it uses, and the other one."""
    monkeypatch.setattr(etcd_client, "EtcdMember", kind)
    FakeMember.members = []
    client = EtcdClient(EtcdAddress(("a:1", "b:1")), SETTINGS)
    await commit(client)
    used, other = sorted(FakeMember.members, key=lambda member: not member.sent)
    yield client, used, other
    await client.close()


async def commit(client: EtcdClient) -> None:
    await client.ask(TXN, pb.TxnRequest(), Repeatability.ONCE)


async def read(client: EtcdClient) -> None:
    await client.ask(RANGE, pb.RangeRequest(), Repeatability.READ)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_member_that_is_slow_and_responds_to_a_question_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as (client, used, other):
        used.takes_s = TIMEOUT_S - 0.1
        await commit(client)
        assert used.sent.count(STATUS.path) == (TIMEOUT_S - 0.1) // DOUBT_S
        assert not other.sent
        assert not used.silence.done()


async def test_calls_that_doubt_a_slow_member_share_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand processes with some calls each would else ask a slow etcd thousands of times a second."""
    async with opened(monkeypatch) as (client, used, _):
        used.takes_s, used.status_s = TIMEOUT_S - 0.1, 0.05
        await asyncio.gather(*(commit(client) for _ in range(100)))
        assert 1 <= used.sent.count(STATUS.path) <= TIMEOUT_S / DOUBT_S


async def test_a_call_that_is_cancelled_leaves_the_question_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as (client, used, _):
        used.takes_s = used.status_s = NEVER
        first, second = (asyncio.create_task(commit(client)) for _ in range(2))
        await asyncio.sleep(1.5 * DOUBT_S)
        first.cancel()
        with pytest.raises(KvUnknown, match="silent"):
            await second
        assert first.cancelled()


async def test_a_client_that_closes_leaves_no_question_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as (client, used, _):
        used.takes_s = used.status_s = NEVER
        call = asyncio.create_task(commit(client))
        await asyncio.sleep(1.5 * DOUBT_S)
        call.cancel()
        await asyncio.wait([call])


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_stop_of_this_process_is_no_silence_of_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as (client, used, other):
        used.takes_s, used.stops = 1.5 * DOUBT_S, 1
        await commit(client)
        assert used.stops == 0
        assert not other.sent
        assert not used.silence.done()


async def test_a_call_at_a_member_that_has_lost_its_cluster_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that is cut off gives its status, and raises no term."""
    async with opened(monkeypatch) as (client, used, _):
        used.takes_s, used.leader = NEVER, 0
        began = now()
        with pytest.raises(KvUnknown, match="election"):
            await commit(client)
        assert now() - began < 2 * DOUBT_S + 0.1
        assert not used.silence.done(), "etcd ends the watches there itself"
        used.takes_s = 1.5 * DOUBT_S
        await commit(client)


async def test_a_silent_member_is_given_up_soon_and_another_one_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as (client, used, other):
        used.takes_s = used.status_s = NEVER
        began = now()
        await read(client)
        assert now() - began < 2 * DOUBT_S + 0.1
        assert other.sent == [RANGE.path]
        assert used.silence.done(), "its watches end"


async def test_a_commit_at_a_silent_member_has_an_unknown_outcome_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as (client, used, other):
        used.takes_s = used.status_s = NEVER
        began = now()
        with pytest.raises(KvUnknown, match="silent for 1 s"):
            await commit(client)
        assert now() - began < 2 * DOUBT_S + 0.1
        await commit(client)
        assert other.sent == [TXN.path], "the silent one is avoided"


async def test_a_commit_that_an_election_may_have_lost_has_an_unknown_outcome_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(monkeypatch) as (client, used, other):
        used.takes_s, used.term = NEVER, 8
        began = now()
        with pytest.raises(KvUnknown, match="election"):
            await commit(client)
        assert now() - began < 2 * DOUBT_S + 0.1
        used.takes_s = 0.001
        await commit(client)
        assert not other.sent, "it is not the member's fault"
        assert not used.silence.done()


async def test_a_commit_that_is_answered_after_the_election_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(monkeypatch) as (client, used, _):
        used.takes_s, used.term = 1.5 * DOUBT_S, 8
        await commit(client)
        used.takes_s = 4 * DOUBT_S
        await commit(client)  # sent in the term that is known by now


class StoodStill:
    """A commit for a client, in a process that stands still so many turns of the loop after the commit began."""

    def __init__(self, client: EtcdClient, member: FakeMember) -> None:
        self.standstill = Standstill(LoopClock())
        self.standstill.start()
        self._kv = KvForClients(EtcdKeyValue(client), self.standstill)
        self._member = member
        self._before = member.sent.count(TXN.path)

    @property
    def sent(self) -> int:
        return self._member.sent.count(TXN.path) - self._before

    async def begin(self, turns: int) -> asyncio.Task[Any]:
        """Begin a commit, and return its task after the standstill, which nobody has noticed yet."""
        begun = start(self._kv.commit([], [Put("/k", b"an old password")]))
        assert isinstance(begun, asyncio.Task)
        for _ in range(turns):
            await asyncio.sleep(0)
        loop: Any = asyncio.get_running_loop()
        loop.clock.now += DOUBT_S_OF_LOOP + 0.5
        return begun


@pytest.mark.parametrize("kind", [FakeMember, GrpcMember])
@pytest.mark.parametrize("has_gone", [True, False])
async def test_a_commit_is_not_sent_for_a_client_that_has_gone_while_the_process_stood_still(
    monkeypatch: pytest.MonkeyPatch, kind: type[FakeMember], has_gone: bool
) -> None:
    """Stand still in each turn of the loop, up to the turn that sends it."""
    turns = 0
    while True:
        async with opened(monkeypatch, kind) as (client, used, _):
            played = StoodStill(client, used)
            writing = await played.begin(turns)
            if played.sent:
                await writing
                assert turns >= 2
                return
            if has_gone:
                played.standstill.on_doubt.add(partial(_cancel, writing))
            await asyncio.wait((writing,))
            played.standstill.stop()
            assert played.standstill.doubts == 1
            assert writing.cancelled() is has_gone
            assert played.sent == (0 if has_gone else 1)
        turns += 1


def _cancel(task: asyncio.Task[Any], _: float) -> None:
    task.cancel()


@pytest.mark.loops("asyncio")
async def test_grpc_sends_no_late_request() -> None:
    """Call a port without a server: a call that is sent fails, and a late call ends before."""
    now_s = 0.0
    standstill = Standstill(FakeClock(monotonic=lambda: now_s))
    standstill.start()
    member = EtcdMember("127.0.0.1:1", None, SETTINGS)
    now_s += DOUBT_S_OF_LOOP + 0.5
    held = HeldRequest(pb.TxnRequest(), standstill)
    with pytest.raises(asyncio.CancelledError):
        await member.call(TXN, held, ())
    assert held.is_late
    await standstill.looked()
    with pytest.raises(CallFailed):
        await member.call(TXN, HeldRequest(pb.TxnRequest(), standstill), ())
    standstill.stop()
    await member.close()
