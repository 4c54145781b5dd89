"""A connection to another process through a relay: a third process, which reaches it when this one does not.

It is used like a direct connection (``core.rpc.peers.Peer``).  Each call is wrapped in a RelayRequest, on a connection
to the relay (``proxy.relay.server``) that is used for nothing else, so calls keep their order.  As with a ``Peer``, a
call ends with its response, or with ``PeerLost``, which says whether it may have arrived.  The first error ends the
relayed connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import leading_error
from bmq.core.rpc.messages.member import PingRequest, PingResponse
from bmq.core.rpc.messages.proxy import RelayRequest, RelayResponse
from bmq.core.rpc.peer import NO_TAGS
from bmq.core.rpc.peers import Peer, PeerBusy, PeerLost, Peers
from bmq.meta.cluster.member import Member

BYTES_MAX = 8 << 20
"""Bytes of calls under way over a relayed connection, from which it is busy; a single call may be larger."""
LAST_RESPONSES_S = 2.0
"""Time that the relay has after an error to send the results of the other calls."""
_VERSION = 0


class Connection(Protocol):
    """A connection to another process, direct (``core.rpc.peers.Peer``) or relayed, as its users see it."""

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
    """A connection to ``incarnation`` through ``peer``, the relay, whose connection is used for nothing else.

    ``open_relayed`` returns it open.
    """

    def __init__(self, incarnation: str, peer: Peer) -> None:
        self.incarnation = incarnation
        self.is_up = True
        self.was_closed = False
        """True if this side has closed it: then it did not fail."""
        self.why = ""
        self.bytes_under_way = 0
        self._peer = peer
        self._calls = 0  # without a result yet
        self._is_over = False  # takes no more calls; closed once the last one has its result
        self._on_lost = Subscribers[[]]()
        self.on_closed: Callable[[], None] = no_op
        """Callback for the end of the connection to the relay."""
        peer.on_lost(self._broke)

    def __repr__(self) -> str:
        state = "up" if self.is_up else f"lost: {self.why}"
        return f"<RelayedConnection to {self.incarnation} through {self.via} {state} calls={self._calls}>"

    @property
    def via(self) -> str:
        """Incarnation of the relay."""
        return self._peer.incarnation

    # ------------------------------------------------------------------------------------------------------ for callers

    def call(
        self, api_key: int, api_version: int, body: Sequence[Buffer], header_tags: bytes = NO_TAGS
    ) -> asyncio.Future[memoryview]:
        """Send a request, and return a future of its response.  See ``Peer.call``.

        A relay passes on bodies without headers, so ``header_tags`` are dropped, and a trace ends here.
        """
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
        if sent.done():  # refused: the caller must see that before its next call
            self._answered(future, size, sent)
        else:
            sent.add_done_callback(partial(self._answered, future, size))
        return future

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` once when the connection is lost, or now if it is not up.  See ``Peer.on_lost``.

        Returns a function that unsubscribes.
        """
        if not self.is_up:
            call()
            return no_op
        return self._on_lost.add(call)

    def close(self) -> None:
        """Close the connection at once.  Idempotent."""
        self.was_closed = True
        self._lose("closed by this side")
        self._peer.close()

    def retire(self) -> None:
        """Take no more calls, and close once those under way have their results.  Subscribers are not notified."""
        self._on_lost = Subscribers[[]]()
        if not self._is_over:
            self._is_over, self.is_up, self.why = True, False, "another connection is used"
        self._close_if_done()

    # -------------------------------------------------------------------------------------------------------- responses

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
            return PeerLost(f"{self.incarnation}: the call through {self.via} was cancelled", was_sent=True)
        error = sent.exception()
        if isinstance(error, PeerLost):
            return error  # ``_broke`` is called, too, unless the connection is only busy
        if error is not None:
            raise error
        body = sent.result()
        try:
            response = RelayResponse.decode(body)
        except FormatError as unreadable:  # a relay of an earlier version has no such API, and has passed nothing on
            self._lose(f"{self.via} passes nothing on: {unreadable}")
            return PeerLost(f"{self.incarnation}: {self.why}", was_sent=leading_error(body) is ErrorCode.NONE)
        if response.error is ErrorCode.NONE:
            return memoryview(response.body)
        self._lose(f"{self.via} passes nothing more on: {response.message}")
        return PeerLost(f"{self.incarnation}: {self.why}", was_sent=response.was_sent)

    def _lose(self, why: str) -> None:
        """Take no more calls, notify the subscribers, and wait LAST_RESPONSES_S for the results of calls under way."""
        if self._is_over:
            return
        self._is_over, self.is_up, self.why = True, False, why
        asyncio.get_running_loop().call_later(LAST_RESPONSES_S, self._peer.close)
        self._on_lost.notify_last()

    def _broke(self) -> None:
        self._lose(f"{self.via}: {self._peer.why}")
        self.on_closed()

    def _close_if_done(self) -> None:
        if self._is_over and not self._calls:
            self._peer.close()


async def open_relayed(peers: Peers, to: Member, via: Member, timeout_s: float) -> RelayedConnection:
    """Return an open connection to ``to`` through ``via``, once a ping has passed.

    Raises PeerLost, with nothing sent, if that fails or takes longer than ``timeout_s``.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    relayed = RelayedConnection(to.incarnation, await peers.open(via, timeout_s))
    is_open = False
    try:
        async with asyncio.timeout_at(deadline):
            PingResponse.decode(await relayed.call(InternalKey.PING, _VERSION, PingRequest().encode()))
        is_open = relayed.is_up
    except (TimeoutError, FormatError, PeerLost) as error:
        raise PeerLost(str(error) or f"no response from {to.incarnation}", was_sent=False) from None
    finally:
        if not is_open:
            relayed.close()
    if not is_open:
        raise PeerLost(f"{to.incarnation}: {relayed.why}", was_sent=False)
    return relayed
