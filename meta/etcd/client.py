"""Calls to an etcd cluster, repeated where that is safe, with the errors of ``meta.kv``.

Invariants:

* A call that might be done twice is sent again only after a failure that proves that the call was not done.
* Nothing is sent before its member has a connection, so that a time-out never hides a refused connection.
* A call without hope of a response is given up within a second or so, and not after its time-out. Then its member is
  silent or has lost its cluster, or etcd has lost the call in an election.
* After ``close`` begins nothing new is sent, and channels close when the last call has its response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import grpc

from bmq.core.aio.children import wait_for_task
from bmq.core.aio.held_up import HeldUp
from bmq.core.aio.standstill import Standstill
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.metrics.counters import Histogram
from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.address import EtcdAddress
from bmq.meta.etcd.attempts import Attempts, Repeatability, Rotation
from bmq.meta.etcd.errors import FailureVerdict
from bmq.meta.etcd.member import (
    STATUS,
    CallFailed,
    EtcdMember,
    HeldRequest,
    Metadata,
    Method,
    Request,
    Response,
    Superseded,
    Tokens,
    WatchCall,
)
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.kv import KvUnavailable, KvUnknown, LeaseNotFound

T = TypeVar("T")

# A member that has lost its cluster refuses at once, and ends watches, rather than being silent.
_NEEDS_LEADER: Metadata = (("hasleader", "true"),)
_TICKS = 8
"""Checks during a question for a member's status whether this process is held up itself."""


class _Standing(NamedTuple):
    """The facts of a member's status; the defaults say nothing against it."""

    is_silent: bool = False
    has_leader: bool = True
    term: int = 0


class EtcdClient:
    """A process's connections to one cluster; belongs to the loop that created it."""

    def __init__(self, address: EtcdAddress, settings: EtcdSettings) -> None:
        self.settings = settings
        self.dice = Random()
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when ``close`` has begun."""
        self._where = ", ".join(address.endpoints)
        credentials = _credentials(address)
        self._members = [EtcdMember(endpoint, credentials, settings) for endpoint in address.endpoints]
        # A random first one: the clients of a cluster spread over its members.
        first = self.dice.randrange(len(self._members))
        self._rotation = Rotation(len(self._members), settings.avoid_s, first=first)
        self._tokens = Tokens(address.user, address.password)
        self._room = asyncio.Semaphore(settings.calls_in_flight)
        self._term = 0  # etcd's, as far as a response has shown it
        self._asking: dict[EtcdMember, asyncio.Task[_Standing]] = {}  # the questions for their status under way
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._work: set[asyncio.Task[Any]] = set()
        self.calls_ms: dict[str, Histogram] = {}
        """Durations of calls with all their attempts and the wait for room, by etcd's name of the call."""
        self.calls_failed = 0
        """Calls that no member answered."""

    async def ask(
        self,
        method: Method[Request, Response],
        request: Request,
        kind: Repeatability,
        *,
        retry_for_s: float | None = None,
        is_urgent: bool = False,
        standstill: Standstill | None = None,
    ) -> Response:
        """Send a call and return the response.  Raises KvUnavailable, KvUnknown, LeaseNotFound.

        An urgent call does not wait for room among the others, and no longer than ``urgent_timeout_s`` for one member.
        With ``standstill``, a look for a standstill comes before each attempt.  It cancels calls for absent clients.
        """
        self._require_open()
        self._calls += 1
        self._idle.clear()
        began = self._now()
        try:
            if is_urgent:
                timeout_s = self.settings.urgent_timeout_s
                return await self._ask(method, request, self._attempts(kind, retry_for_s), timeout_s)
            async with self._room:
                return await self._ask(method, request, self._attempts(kind, retry_for_s), standstill=standstill)
        except (KvUnavailable, KvUnknown):
            self.calls_failed += 1
            raise
        finally:
            self._observe(method, began)
            self._calls -= 1
            if self._calls == 0:
                self._idle.set()

    async def ask_each(
        self, method: Method[Request, Response], request: Request
    ) -> list[tuple[str, Response | CallFailed]]:
        """Send a call to every member once.  Return each one's response or failure, by its endpoint."""
        self._require_open()

        async def ask(member: EtcdMember) -> tuple[str, Response | CallFailed]:
            try:
                await member.connect()
                return member.endpoint, await member.call(method, request, await self._tokens.get(member))
            except CallFailed as failed:
                return member.endpoint, failed

        return await self.unless_closed(_gathered(*(ask(member) for member in self._members)))

    def _observe(self, method: Method[Any, Any], began: float) -> None:
        name = method.path.rsplit("/", 1)[1]
        times = self.calls_ms.get(name)
        if times is None:
            times = self.calls_ms[name] = Histogram()
        times.observe((self._now() - began) * 1000)

    async def watch(self, create: pb.WatchRequest) -> tuple[EtcdMember, WatchCall]:
        """Return a stream on the member whose turn it is, with this request sent.  Raises CallFailed."""
        member_index = self._rotation.choose(self._now())
        member = self._members[member_index]
        try:
            await member.connect()
            return member, await member.watch(create, _NEEDS_LEADER + await self._tokens.get(member))
        except CallFailed:
            self._rotation.failed(member_index, self._now())
            raise

    def lost(self, member: EtcdMember) -> None:
        """Avoid this member for a while: a watch on it broke."""
        self._rotation.failed(self._members.index(member), self._now())

    def forget_token(self) -> None:
        """Drop the token, for which a watch was refused."""
        self._tokens.refused(())

    async def unless_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` for as long as the client is open.  Raises KvUnavailable if it closes first."""
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        try:
            either: tuple[asyncio.Future[Any], ...] = (task, self.closing)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._require_open()
            return task.result()
        finally:
            await cancel_and_wait(task)

    async def close(self) -> None:
        """Refuse new calls, wait for those in progress, and close the channels.  Idempotent."""
        if not self.closing.done():
            self.closing.set_result(None)
        await self._idle.wait()
        if self._work:
            await asyncio.wait(self._work)
        await cancel_and_wait(*self._asking.values())
        for member in self._members:
            await member.close()

    async def _ask(
        self, method: Method[Request, Response], request: Request, attempts: Attempts, timeout_s: float | None = None,
        standstill: Standstill | None = None,
    ) -> Response:  # fmt: skip
        while True:
            index = self._rotation.choose(self._now())
            try:
                response = await self._attempt(self._members[index], method, request, timeout_s, standstill)
            except CallFailed as failed:
                if failed.verdict is FailureVerdict.LEASE_GONE:
                    raise LeaseNotFound(str(failed)) from None
                is_its_fault = failed.verdict in (FailureVerdict.NOT_DONE, FailureVerdict.UNKNOWN)
                if is_its_fault and not isinstance(failed, Superseded):
                    self._rotation.failed(index, self._now())
                pause_s = attempts.pause_s(failed.verdict, self._now())
                if pause_s is None:
                    raise attempts.error(str(failed)) from None
                await asyncio.sleep(pause_s)
            else:
                self._rotation.answered(index)
                return response

    async def _attempt(
        self, member: EtcdMember, method: Method[Request, Response], request: Request, timeout_s: float | None,
        standstill: Standstill | None,
    ) -> Response:  # fmt: skip
        await member.connect()
        token = await self._tokens.get(member)
        try:
            return await self._sent(member, method, request, token, timeout_s, standstill)
        except CallFailed as failed:
            if failed.verdict is FailureVerdict.TOKEN and not self._tokens.refused(token):
                raise CallFailed(FailureVerdict.FORBIDDEN, str(failed)) from None
            raise

    async def _sent(
        self, member: EtcdMember, method: Method[Request, Response], request: Request, token: Metadata,
        timeout_s: float | None, standstill: Standstill | None,
    ) -> Response:  # fmt: skip
        """Send a call, and return its response.  Raises CallFailed, UNKNOWN as soon as none is to be expected."""
        term = self._term
        metadata = _NEEDS_LEADER + token
        if standstill is None:
            call = asyncio.create_task(member.call(method, request, metadata, timeout_s))
        else:
            call = asyncio.create_task(_look_and_call(member, method, request, metadata, timeout_s, standstill))
        try:
            while not await wait_for_task(call, self.settings.doubt_s):
                await self._doubt(member, token, call, term)
            response = call.result()
        finally:
            await cancel_and_wait(call)
        if isinstance(response, pb.RangeResponse | pb.TxnResponse):
            self._term = max(self._term, response.header.raft_term)
        elif isinstance(response, pb.StatusResponse):
            self._term = max(self._term, response.raft_term)
        return response

    async def _doubt(self, member: EtcdMember, token: Metadata, call: asyncio.Future[Any], term: int) -> None:
        """Ask the member of a call without a response for its status.

        Raises CallFailed if it is silent, Superseded if there was an election since ``term``, or it has lost its
        cluster: the call may be lost.
        """
        silent_s = self.settings.doubt_s
        standing = await self._standing(member, token)
        if call.done():
            return
        if standing.is_silent:
            member.found_silent()
            raise CallFailed(FailureVerdict.UNKNOWN, f"{member.endpoint}: silent for {2 * silent_s:g} s")
        self._term = max(self._term, standing.term)
        if 0 < term < standing.term or not standing.has_leader:
            await asyncio.wait([call], timeout=silent_s)
            if not call.done():
                raise Superseded(f"{member.endpoint}: an election since this was sent, or no leader: it may be lost")

    async def _standing(self, member: EtcdMember, token: Metadata) -> _Standing:
        """Return the standing of a member.  Calls that doubt it at the same time share a question.

        When etcd is slow, all calls under way doubt it twice a second.
        """
        asking = self._asking.get(member)
        if asking is None:
            asking = self._asking[member] = asyncio.ensure_future(self._ask_standing(member, token))
            asking.add_done_callback(lambda _: self._asking.pop(member))
        return await asyncio.shield(asking)

    async def _ask_standing(self, member: EtcdMember, token: Metadata) -> _Standing:
        """Ask the member for its status.  A question during which this process was held up itself shows nothing."""
        held_up = HeldUp(self.settings.doubt_s / _TICKS)
        try:
            status = await member.call(STATUS, pb.StatusRequest(), token, self.settings.doubt_s)
        except CallFailed as failed:
            is_unanswered = failed.verdict in (FailureVerdict.NOT_DONE, FailureVerdict.UNKNOWN)
            return _Standing(is_silent=is_unanswered and held_up.seconds == 0.0)
        finally:
            held_up.close()
        return _Standing(has_leader=status.leader != 0, term=status.raft_term)

    def _attempts(self, kind: Repeatability, retry_for_s: float | None) -> Attempts:
        until = self._now() + (self.settings.retry_for_s if retry_for_s is None else retry_for_s)
        return Attempts(
            kind, members=len(self._members), backoff_s=self.settings.backoff_s, dice=self.dice, until=until
        )

    def _require_open(self) -> None:
        if self.closing.done():
            raise KvUnavailable(f"the client of etcd at {self._where} is closed")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _look_and_call(
    member: EtcdMember, method: Method[Request, Response], request: Request, metadata: Metadata,
    timeout_s: float | None, standstill: Standstill,
) -> Response:  # fmt: skip
    """Send a call once no standstill is unnoticed, and return its response.  Raises CallFailed."""
    while True:
        await standstill.looked()
        held = HeldRequest(request, standstill)
        try:
            return await member.call(method, held, metadata, timeout_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not held.is_late or task is None or task.cancelling():
                raise


async def _gathered(*work: Coroutine[Any, Any, T]) -> list[T]:
    return await asyncio.gather(*work)


def _credentials(address: EtcdAddress) -> grpc.ChannelCredentials | None:
    if not address.is_tls:
        return None
    ca, key, cert = (_content(path) for path in (address.ca, address.key, address.cert))
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


def _content(path: str) -> bytes | None:
    return Path(path).read_bytes() if path else None
