"""A way to another process: a connection of ours to it, or one through a process that reaches it where we do not.

Links and questions go over either alike.  Through another process (``proxy.relay.server`` is the other side) each call
is wrapped in a RelayRequest on a connection of the way's own, so calls keep their order.  What becomes of one is told
as a ``Peer`` would: its answer, or ``PeerLost`` with what is known of its arrival.  The first error ends the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from bmq.core.aio.subscribers import Subscribers
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages import (
    InternalKey,
    PingRequest,
    PingResponse,
    RelayRequest,
    RelayResponse,
    leading_error,
)
from bmq.core.rpc.peer import NO_TAGS
from bmq.core.rpc.peers import Peer, PeerBusy, PeerLost, Peers
from bmq.meta.cluster.member import Member

BYTES_MAX = 8 << 20
"""Under way over one relayed way, or one request: past it the way is busy."""
LAST_ANSWERS_S = 2.0
"""After an error the process between has as long to say what became of the other calls."""
_VERSION = 0


class Connection(Protocol):
    """``core.rpc.peers.Peer``, as far as its callers know it."""

    @property
    def incarnation(self) -> str: ...
    @property
    def is_up(self) -> bool: ...
    def call(
        self, api_key: int, api_version: int, body: Sequence[Buffer], header_tags: bytes = NO_TAGS
    ) -> asyncio.Future[memoryview]: ...
    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]: ...
    def close(self) -> None: ...


class RelayedConnection:
    """To ``incarnation`` over ``peer``, which is this way's alone.  It is open once ``open_way`` has given it."""

    def __init__(self, incarnation: str, peer: Peer) -> None:
        self.incarnation = incarnation
        self.is_up = True
        self.was_closed = False
        """This side gave it up: it did not fail."""
        self.why = ""
        self.bytes_under_way = 0
        self._peer = peer
        self._calls = 0  # not answered
        self._is_over = False  # closed once the last of them is
        self._on_lost = Subscribers[[]]()
        self.on_closed: Callable[[], None] = _nothing
        """Called when its connection is gone, lost or retired before."""
        peer.on_lost(self._broke)

    def __repr__(self) -> str:
        state = "up" if self.is_up else f"lost: {self.why}"
        return f"<RelayedWay to {self.incarnation} through {self.via} {state} calls={self._calls}>"

    @property
    def via(self) -> str:
        return self._peer.incarnation

    # ------------------------------------------------------------------------------------------------- for callers

    def call(
        self, api_key: int, api_version: int, body: Sequence[Buffer], header_tags: bytes = NO_TAGS
    ) -> asyncio.Future[memoryview]:
        """As ``Peer.call``; but a relay passes on bodies without headers, and a trace ends here."""
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if not self.is_up:
            future.set_exception(PeerLost(f"{self.incarnation}: {self.why}", was_sent=False))
            return future
        if self.bytes_under_way >= BYTES_MAX:
            text = f"{self.incarnation}: {self.bytes_under_way} bytes are under way through {self.via}"
            future.set_exception(PeerBusy(text, was_sent=False))
            return future
        size = sum(map(len, body))
        self._calls += 1
        self.bytes_under_way += size
        request = RelayRequest(self.incarnation, api_key, api_version, body)
        sent = self._peer.call(InternalKey.RELAY, _VERSION, request.encode())
        if sent.done():  # refused: whoever calls must know before it calls again
            self._answered(future, size, sent)
        else:
            sent.add_done_callback(partial(self._answered, future, size))
        return future

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """As ``Peer.on_lost``."""
        if not self.is_up:
            call()
            return _nothing
        return self._on_lost.add(call)

    def close(self) -> None:
        """At once.  Idempotent."""
        self.was_closed = True
        self._lose("closed by this side")
        self._peer.close()

    def retire(self) -> None:
        """Nothing more goes this way: it closes when what is under way is answered.  Nobody is told."""
        self._on_lost = Subscribers[[]]()
        if not self._is_over:
            self._is_over, self.is_up, self.why = True, False, "another way is used"
        self._close_if_done()

    # ------------------------------------------------------------------------------------------------ what comes back

    def _answered(self, future: asyncio.Future[memoryview], size: int, sent: asyncio.Future[memoryview]) -> None:
        self._calls -= 1
        self.bytes_under_way -= size
        result = self._result(sent)
        if not future.done():
            if isinstance(result, PeerLost):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._close_if_done()

    def _result(self, sent: asyncio.Future[memoryview]) -> memoryview | PeerLost:
        if sent.cancelled():
            return PeerLost(f"{self.incarnation}: nobody waits for {self.via}", was_sent=True)
        error = sent.exception()
        if isinstance(error, PeerLost):
            return error  # ``_broke`` is told of it too, unless it is only busy
        if error is not None:
            raise error
        body = sent.result()
        try:
            response = RelayResponse.decode(body)
        except FormatError as unreadable:  # an earlier version has no such API, and has passed nothing on
            self._lose(f"{self.via} passes nothing on: {unreadable}")
            return PeerLost(f"{self.incarnation}: {self.why}", was_sent=leading_error(body) is ErrorCode.NONE)
        if response.error is ErrorCode.NONE:
            return memoryview(response.body)
        self._lose(f"{self.via} passes nothing more on: {response.message}")
        return PeerLost(f"{self.incarnation}: {self.why}", was_sent=response.was_sent)

    def _lose(self, why: str) -> None:
        """No call is taken any more; those under way have their answers yet, for a while."""
        if self._is_over:
            return
        self._is_over, self.is_up, self.why = True, False, why
        asyncio.get_running_loop().call_later(LAST_ANSWERS_S, self._peer.close)
        self._on_lost.tell_last()

    def _broke(self) -> None:
        self._lose(f"{self.via}: {self._peer.why}")
        self.on_closed()

    def _close_if_done(self) -> None:
        if self._is_over and not self._calls:
            self._peer.close()


async def open_way(peers: Peers, to: Member, via: Member, timeout_s: float) -> RelayedConnection:
    """A way to ``to`` through ``via``, which has reached it just now.  PeerLost, of which nothing was sent."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    way = RelayedConnection(to.incarnation, await peers.open(via, timeout_s))
    is_open = False
    try:
        async with asyncio.timeout_at(deadline):
            PingResponse.decode(await way.call(InternalKey.PING, _VERSION, PingRequest().encode()))
        is_open = way.is_up
    except (TimeoutError, FormatError, PeerLost) as error:
        raise PeerLost(str(error) or f"no answer from {to.incarnation}", was_sent=False) from None
    finally:
        if not is_open:
            way.close()
    if not is_open:
        raise PeerLost(f"{to.incarnation}: {way.why}", was_sent=False)
    return way


def _nothing() -> None:
    """What there is to forget of a call that was made."""
